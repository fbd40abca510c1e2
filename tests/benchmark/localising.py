# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""How exact localisation is on fleets too large for any sandbox, simulated with noise.

Two planes, racks of 16 or, from 1024 nodes on, 32; five sampled rounds on each plane and 32 ping
peers, as by default. A pair's rate is what the weaker end can do, with log-normal noise of 3 %; 1 %
of the measurements lose 30 to 60 % for no reason. What is below 0.8 of the plane's 75th percentile
is bad. One part in a hundred really is, at 30 to 70 % of its rate: of the nodes (one plane or all,
sending, receiving or both), of the links among those sampled (one way or both), or one path from
rack to rack. Then the retest, which measures each pair twice and believes the better figure,
and localisation of both together.

    .venv/bin/python tests/benchmark/localising.py [--nodes 64 256 1024 4096] [--seeds 10] \\
        [--seed 0] [--kinds nodes links paths]

First pass and retest: precision and recall of what is named after each. Exact: of the nodes
found, those whose planes and direction are right too. Links: precision and recall are over the
links that were sampled. CPU seconds: the median of a localisation of the first pass.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import defaultdict
from typing import Callable, Dict, Iterable, List, NamedTuple, Set, Tuple

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.observation import (
    Observation,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.causes import (
    Cause,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.follow_up import (
    follow_up,
    repeated,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.localise import (
    localise,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.partners import (
    Pair,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.plan import (
    TIMES_AGAIN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning.schedule import (
    disjoint_rounds,
    ping_peers,
    sampled_rounds,
)

PLANES = ("eth1", "eth2")
ROUNDS, PEERS = 5, 32
NOISE, DIPS = 0.03, 0.01
BAD, QUANTILE, FLOOR = 0.01, 0.75, 0.8

#: How much of its rate a measurement keeps: of plane, source, target.
Fault = Callable[[str, str, str], float]


class Score(NamedTuple):
    """What was named, against what is bad."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    exact: int = 0

    def __add__(self, other: Tuple[int, ...]) -> "Score":  # type: ignore[override]
        return Score(*(one + two for one, two in zip(self, other)))

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


class Outcome(NamedTuple):
    #: After the first pass alone, and after the second.
    first: Score
    score: Score
    #: Nodes that were named as the cause although another part is broken.
    innocent: int
    undecided: int
    #: Rounds of the retest, and the share of all links that the first one saw.
    rounds: int
    seen: float
    observations: int
    seconds: float


def simulate(n: int, kind: str, seed: int) -> Outcome:
    rng = random.Random(f"{n} {kind} {seed}")
    nodes = [f"gpu{number:04}" for number in range(n)]
    groups = {
        node: f"rack{number // (16 if n < 1024 else 32):03}" for number, node in enumerate(nodes)
    }
    labels = [groups[node] for node in nodes]
    pairs = [
        (plane, nodes[one], nodes[other])
        for plane in PLANES
        for some in sampled_rounds(n, ROUNDS, f"{seed} {plane}", labels)
        for one, other in some
    ]
    bad, fault = FAULTS[kind](rng, nodes, groups, pairs)
    rates = measured(rng, pairs, fault)
    floors = {
        plane: floor([rate for (on, *_ends), rate in rates.items() if on == plane])
        for plane in PLANES
    }
    first = judged(rates, floors)
    for plane in PLANES:
        peers = ping_peers(n, PEERS, f"{seed} {plane} ping", labels)
        first += [
            Observation(plane, nodes[one], nodes[other], False, False)
            for one, others in enumerate(peers)
            for other in others
        ]

    began = time.process_time()
    suspected = localise(first, groups)
    seconds = time.process_time() - began
    again = follow_up(suspected, first, groups)
    figures = [measured(rng, again, fault) for _time in range(TIMES_AGAIN)]
    second = judged({pair: max(one[pair] for one in figures) for pair in figures[0]}, floors)
    # What the retest measured again takes the place of what the first says.
    both = {one[:4]: one for one in first + second}
    causes = [
        cause
        for cause in localise(list(both.values()), groups)
        if repeated(cause, second, groups) is not False
    ]
    return Outcome(
        score(kind, suspected, bad),
        score(kind, causes, bad),
        len(named("nodes", causes)) if kind != "nodes" else 0,
        sum(cause.scope == "undecided" for cause in causes),
        TIMES_AGAIN * len(disjoint_rounds(again)),
        len(set(pairs)) / (len(PLANES) * math.comb(n, 2)),
        len(first),
        seconds,
    )


def measured(rng: random.Random, pairs: Iterable[Pair], fault: Fault) -> Dict[Pair, float]:
    """Rates of pairs both ways."""
    return {
        (plane, source, target): fault(plane, source, target)
        * rng.lognormvariate(0, NOISE)
        * (1 - rng.uniform(0.3, 0.6) if rng.random() < DIPS else 1)
        for plane, one, other in pairs
        for source, target in ((one, other), (other, one))
    }


def floor(rates: List[float]) -> float:
    return FLOOR * sorted(rates)[int(QUANTILE * len(rates))]


def judged(rates: Dict[Pair, float], floors: Dict[str, float]) -> List[Observation]:
    return [
        Observation(
            *pair,
            True,
            rate < floors[pair[0]],
            "slow" if rate < floors[pair[0]] else "",
            min(1.0, rate),
        )
        for pair, rate in rates.items()
    ]


# ---- what is broken ----


def bad_nodes(
    rng: random.Random, nodes: List[str], _groups: Dict[str, str], _pairs: List[Pair]
) -> Tuple[Dict[object, object], Fault]:
    sends: Dict[Tuple[str, str], float] = {}
    receives: Dict[Tuple[str, str], float] = {}
    bad: Dict[object, object] = {}
    for node in rng.sample(nodes, max(1, round(BAD * len(nodes)))):
        direction, plane, left = (
            rng.choice(["transmit", "receive", "both"]),
            rng.choice([None, *PLANES]),
            rng.uniform(0.3, 0.7),
        )
        bad[node] = (plane, direction)
        for on in PLANES if plane is None else (plane,):
            for of in [sends] * (direction != "receive") + [receives] * (direction != "transmit"):
                of[on, node] = left
    return bad, lambda plane, source, target: min(
        sends.get((plane, source), 1.0), receives.get((plane, target), 1.0)
    )


def bad_links(
    rng: random.Random, _nodes: List[str], _groups: Dict[str, str], pairs: List[Pair]
) -> Tuple[Dict[object, object], Fault]:
    left: Dict[Pair, float] = {}
    bad: Dict[object, object] = {}
    links = sorted({(plane, *sorted(ends)) for plane, *ends in pairs})
    for plane, one, other in rng.sample(links, max(1, round(BAD * len(links)))):
        share, ways = (
            rng.uniform(0.3, 0.7),
            rng.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]]),
        )
        bad[plane, one, other] = "forward" if len(ways) == 1 else "both"
        for way in ways:
            left[(plane, *way)] = share
    return bad, lambda *pair: left.get(pair, 1.0)


def bad_path(
    rng: random.Random, _nodes: List[str], groups: Dict[str, str], _pairs: List[Pair]
) -> Tuple[Dict[object, object], Fault]:
    between, on, share = (
        tuple(sorted(rng.sample(sorted(set(groups.values())), 2))),
        rng.choice(PLANES),
        rng.uniform(0.3, 0.7),
    )
    return (
        {(on, *between): "both"},
        lambda plane, *ends: (
            share if plane == on and tuple(sorted(groups[end] for end in ends)) == between else 1.0
        ),
    )


FAULTS = {"nodes": bad_nodes, "links": bad_links, "paths": bad_path}


def named(kind: str, causes: Iterable[Cause]) -> Dict[object, Set[object]]:
    """The subjects and texts of causes of this kind."""
    found: Dict[object, Set[object]] = defaultdict(set)
    for cause in causes:
        if kind == "nodes" and cause.scope in ("node", "interface"):
            found[cause.nodes[0]].add((cause.plane, cause.direction))
        elif kind == "links" and cause.scope == "link":
            found[(cause.plane, *sorted(cause.nodes))].add(cause.direction)
        elif kind == "paths" and cause.scope == "path":
            found[(cause.plane, *sorted(cause.groups))].add(cause.direction)
    return found


def score(kind: str, causes: Iterable[Cause], bad: Dict[object, object]) -> Score:
    found = named(kind, causes)
    right = set(found) & set(bad)
    return Score(
        len(right),
        len(set(found) - right),
        len(set(bad) - right),
        sum(found[one] == {bad[one]} for one in right),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument(
        "--kinds", nargs="+", choices=sorted(FAULTS), default=["nodes", "links", "paths"]
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each size and kind")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    options = parser.parse_args()
    print(
        "| bad | n | runs | bad in all | first pass: precision | recall | retest: "
        "precision | recall | exact | innocent nodes | undecided "
        "| rounds | n-1 | links seen | observations | localise CPU s |"
    )
    print("| --- " * 16 + "|")
    for kind in options.kinds:
        for n in options.nodes:
            outcomes = [simulate(n, kind, options.seed + turn) for turn in range(options.seeds)]
            first, last = Score(), Score()
            for one in outcomes:
                first, last = first + one.first, last + one.score
            rounds = sorted(one.rounds for one in outcomes)
            print(
                f"| {kind} | {n} | {len(outcomes)} | {last.right + last.missed} | "
                f"{first.precision:.3f} | {first.recall:.3f} | {last.precision:.3f} "
                f"| {last.recall:.3f} | {last.exact / max(1, last.right):.3f} | "
                f"{sum(one.innocent for one in outcomes)} "
                f"| {sum(one.undecided for one in outcomes)} | {len(PLANES)} x {ROUNDS} + "
                f"{rounds[0]} to {rounds[-1]} | {n - 1} "
                f"| {100 * outcomes[0].seen:.2f} % | {outcomes[0].observations} | "
                f"{statistics.median(one.seconds for one in outcomes):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
