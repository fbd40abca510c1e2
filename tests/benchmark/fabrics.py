# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""How right the mesh is on modelled fabrics, compared with three simple methods on the same figures.

Each row of `tests/worlds/fabric_rows.py` is planned, measured, retested and judged as the role does
it, with several seeds; its verdicts are compared with what is really bad. The simple methods judge
rates only; a leg without a figure counts as 0:

- MAD: median rate of each host, plane and direction; bad below the fleet's median minus three
  deviations (1.4826 times the median absolute deviation).
- z-score: mean rate; bad below the fleet's mean minus three standard deviations.
- pairing: both hosts of a pair below 80 % of the plane's median are suspects; each suspect is
  measured again with two hosts that were never slow; who is slow with both is bad.

    .venv/bin/python tests/benchmark/fabrics.py [--n 8 32 128] [--seeds 10] [--seed 0] \\
        [--rows PART ...] [--jobs 1] [--json] [--failures]

Drained: healthy hosts with a FAIL that drains them, a run. FAILed: runs with a FAIL of a healthy
host or of the run that no fault explains. Found, right: share of the bad parts (hosts, links, paths, the
fleet) that were found, and found with the right kind, direction and place. ``ok``: at most 0.01
drained, at most 1 % FAILed, at least 95 % found (or what the row says), at least 90 % right.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, NamedTuple, Set, Tuple

# The directory of this program has a module of the same name as the fabrics.
sys.path[:] = [one for one in sys.path if Path(one or ".").resolve() != Path(__file__).parent]
sys.path.insert(0, str(Path(__file__).parent.parent / "worlds"))

import fabric

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import (
    plan as planning,
)

#: Rates in bits/s by plane, source and target, in the order of the rounds.
Rates = Dict[Tuple[str, str, str], List[float]]
DEVIATIONS, MAD_TO_DEVIATION, SLOW = 3.0, 1.4826, 0.8


class Baseline(NamedTuple):
    drained: int
    found: int


def rates_of(passes: Iterable[Mapping[str, dict]]) -> Rates:
    found: Rates = defaultdict(list)
    for readings in passes:
        for host, own in readings.items():
            for window in own["windows"]:
                if window["kind"] != "pair" or window.get("side") != "client":
                    continue
                for leg, ends in (
                    ("transmit", (host, window["peer"])),
                    ("receive", (window["peer"], host)),
                ):
                    reading = (window.get("legs") or {}).get(leg)
                    if reading is not None:
                        found[(window["plane"], *ends)].append(
                            reading.get("bits_per_second") or 0.0
                        )
    return found


def by_host(rates: Rates) -> Dict[Tuple[str, str], Dict[str, List[float]]]:
    """Rates by plane and direction, and host."""
    found: Dict[Tuple[str, str], Dict[str, List[float]]] = defaultdict(lambda: defaultdict(list))
    for (plane, source, target), several in rates.items():
        found[plane, "transmit"][source] += several
        found[plane, "receive"][target] += several
    return found


def by_mad(rates: Rates) -> Set[str]:
    bad = set()
    for own in by_host(rates).values():
        medians = {host: statistics.median(several) for host, several in own.items()}
        usual = statistics.median(medians.values())
        spread = statistics.median(abs(one - usual) for one in medians.values())
        floor = usual - DEVIATIONS * MAD_TO_DEVIATION * spread
        bad |= {host for host, one in medians.items() if one < floor}
    return bad


def by_z_score(rates: Rates) -> Set[str]:
    bad = set()
    for own in by_host(rates).values():
        means = {host: statistics.fmean(several) for host, several in own.items()}
        usual, spread = statistics.fmean(means.values()), statistics.pstdev(means.values())
        bad |= {host for host, one in means.items() if one < usual - DEVIATIONS * spread}
    return bad


def by_pairing(measured: fabric.Measured, rates: Rates) -> Set[str]:
    """The bad hosts after a retest of suspects with hosts that were never slow."""
    medians = {
        plane: statistics.median(
            rate for (on, *_ends), several in rates.items() if on == plane for rate in several
        )
        for plane in {plane for plane, *_ends in rates}
    }

    def is_slow(plane: str, several: List[float]) -> bool:
        return statistics.median(several) < SLOW * medians[plane]

    suspects: Dict[str, Set[str]] = defaultdict(set)
    seen: Dict[str, Set[str]] = defaultdict(set)
    for (plane, *ends), several in rates.items():
        seen[plane].update(ends)
        if is_slow(plane, several):
            suspects[plane].update(ends)
    wanted = []
    for plane, some in suspects.items():
        good = sorted(seen[plane] - some)
        for place, host in enumerate(sorted(some)):
            for turn in range(min(2, len(good))):
                wanted.append((plane, host, good[(2 * place + turn) % len(good)]))
    first = measured.plans[0]
    second = planning.follow_up(first, wanted, 2000.0, 5.0, 100) if wanted else None
    if not second:
        return set()
    again = rates_of([measured.case.world.readings(second)])
    bad = set()
    for (plane, _direction), own in by_host(again).items():
        for host in suspects[plane] & own.keys():
            several = [
                rates
                for (on, *ends), rates in again.items()
                if on == plane and ends[_direction == "receive"] == host
            ]
            if several and all(is_slow(plane, rates) for rates in several):
                bad.add(host)
    return bad


METHODS = ("MAD", "z-score", "pairing")


def one_run(task: Tuple[str, int, int]) -> dict:
    """All that is counted of a run."""
    name, n, seed = task
    measured = fabric.measure(fabric.ROWS[name], n, seed)
    outcome = fabric.score(measured)
    rates = rates_of(measured.passes[:1])
    truth = measured.case.truth
    result = {
        **vars(outcome),
        "row": name,
        "n": n,
        "seed": seed,
        "least_found": truth.least_found,
        "hosts": len(truth.hosts),
    }
    for method, bad in zip(
        METHODS, (by_mad(rates), by_z_score(rates), by_pairing(measured, rates))
    ):
        result[method] = (len(bad - set(truth.hosts)), len(bad & set(truth.hosts)))
    return result


def summary(results: List[dict]) -> dict:
    runs = len(results)
    bad = sum(one["bad"] for one in results)
    found = sum(one["found"] for one in results)
    hosts = sum(one["hosts"] for one in results)
    line = {
        "row": results[0]["row"],
        "n": results[0]["n"],
        "runs": runs,
        "drained": sum(len(one["drained"]) for one in results) / runs,
        "failed": sum(bool(one["failed"] or one["false_fails"]) for one in results) / runs,
        "false_fails": sum(len(one["false_fails"]) for one in results) / runs,
        "found": found / bad if bad else None,
        "right": sum(one["right"] for one in results) / found if found else None,
        "undecided": sum(one["undecided"] for one in results) / runs,
        "passes": sum(one["passes"] for one in results) / runs,
        "seconds": sum(one["seconds"] for one in results) / runs,
    }
    line["ok"] = (
        line["drained"] <= 0.01
        and line["failed"] <= 0.01
        and (line["found"] is None or line["found"] >= results[0]["least_found"])
        and (line["right"] is None or line["right"] >= 0.9)
    )
    for method in METHODS:
        line[method] = {
            "drained": sum(one[method][0] for one in results) / runs,
            "found": sum(one[method][1] for one in results) / hosts if hosts else None,
        }
    return line


def share(value) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def text(line: dict) -> str:
    cells = [
        line["row"],
        str(line["n"]),
        str(line["runs"]),
        "yes" if line["ok"] else "no",
        f"{line['drained']:.2f}",
        share(line["failed"]),
        share(line["found"]),
        share(line["right"]),
        f"{line['undecided']:.1f}",
        f"{line['passes']:.1f}",
        f"{line['seconds']:.2f}",
    ]
    for method in METHODS:
        cells += [f"{line[method]['drained']:.2f}", share(line[method]["found"])]
    return f"| {' | '.join(cells)} |"


HEADS = (
    "row n runs ok drained FAILed found right undecided passes CPU_s "
    "MAD:_drained found z-score:_drained found pairing:_drained found"
).split()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rows", nargs="+", default=[""], help="parts of the names of rows")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each row and n")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON, with all runs")
    parser.add_argument("--failures", action="store_true", help="list the seeds that went wrong")
    options = parser.parse_args()
    groups = [
        [(name, n, options.seed + turn) for turn in range(options.seeds)]
        for name, row in fabric.ROWS.items()
        if any(part in name for part in options.rows)
        for n in row.sizes(options.n)
    ]
    if not options.json:
        print(f"| {' | '.join(HEADS).replace('_', ' ')} |")
        print("| --- " * len(HEADS) + "|")
    lines, everything = [], []
    with multiprocessing.Pool(options.jobs) as pool:
        for tasks in groups:
            results = pool.map(one_run, tasks, chunksize=1)
            lines.append(summary(results))
            everything += results
            if not options.json:
                print(text(lines[-1]), flush=True)
    failures = [
        one
        for one in everything
        if one["drained"] or one["failed"] or one["false_fails"] or one["missed"] or one["wrong"]
    ]
    if options.json:
        print(json.dumps({"rows": lines, "runs": everything}, indent=1))
        return
    if options.failures:
        for one in failures:
            what = {
                key: one[key][:4]
                for key in ("drained", "failed", "false_fails", "missed", "wrong")
                if one[key]
            }
            print(f"{one['row']}, n {one['n']}, seed {one['seed']}: {what}")
    good = sum(line["ok"] for line in lines)
    print(f"\n{good} of {len(lines)} lines ok.")


if __name__ == "__main__":
    main()
