# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leaf-spine fabrics of network namespaces, healthy and with a fault, and what a verdict may say
about each.

`CASES` maps a name to a `Case`; `run_case` measures one on a fresh fabric and classifies the
verdict.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, List, NamedTuple, Tuple

from faults import facts_of, run
from leaf_spine import LeafSpine

_PLANE = "eth1"
_HOST_MBIT = 100
#: Spines with links at the host's rate: connections collide. With links as fast as the whole rack:
#: they hardly do.
_EQUAL = {"spines": 4, "uplink_mbit": _HOST_MBIT}
_FAST = {"spines": 4, "uplink_mbit": 4 * _HOST_MBIT}

SLOW = ("slow_both_ways", "slow_transmit", "slow_receive")
_SLOW_BETWEEN = ("slow_path", "slow_group")


@dataclass
class Truth:
    """What is broken: ``host`` with the codes that name it, or something between hosts with the
    codes that name it and the racks it touches (empty: no rack in particular). ``suspects`` may be
    named together as undecided. A healthy fabric may have codes too, of findings that warn.
    """

    host: str = ""
    codes: Tuple[str, ...] = ()
    racks: FrozenSet[str] = frozenset()
    suspects: FrozenSet[str] = frozenset()
    is_healthy: bool = False


@dataclass
class Case:
    """``inflict(fabric, rng)`` makes the fault and returns its truth. ``flaps``: the bad host's
    rate in every second round, in Mbit/s.
    """

    inflict: Callable[[LeafSpine, random.Random], Truth]
    settings: Dict[str, int] = field(default_factory=lambda: dict(_FAST))
    labelled: bool = True
    flaps: float = 0.0


class Outcome(NamedTuple):
    """``word``: named, undecided (nothing false is said, the fault or all that can be said is),
    missed (nothing is said) or wrong; ``lines``: all findings above info.
    """

    word: str
    why: str
    lines: List[str]
    truth: Truth
    judged: object
    plans: list
    passes: list


def _healthy(_fabric, _rng):
    return Truth(is_healthy=True)


def _oversubscribed(_fabric, _rng):
    return Truth(codes=("oversubscribed", "slow_path"), is_healthy=True)


def _any_host(fabric, rng):
    return rng.choice(fabric.hosts)


def _any_rack(fabric, rng):
    rack = rng.choice(fabric.rack_names)
    return rack, frozenset(fabric.hosts_of(rack))


def _spine(inflict, codes):
    def apply(fabric, rng):
        inflict(fabric, rng.choice(fabric.spines))
        return Truth(codes=codes, suspects=frozenset(fabric.hosts))

    return apply


def _leaf(inflict, codes):
    def apply(fabric, rng):
        rack, hosts = _any_rack(fabric, rng)
        inflict(fabric, rack, rng)
        return Truth(codes=codes, racks=frozenset([rack]), suspects=hosts)

    return apply


def _host(inflict, codes):
    def apply(fabric, rng):
        host = _any_host(fabric, rng)
        inflict(fabric, host)
        return Truth(host=host, codes=codes, suspects=frozenset([host]))

    return apply


CASES = {
    "clos": Case(_healthy, _EQUAL),
    "clos_unlabelled": Case(_healthy, _EQUAL, labelled=False),
    "oversubscribed_2": Case(_oversubscribed, {"spines": 2, "uplink_mbit": 100}),
    "oversubscribed_4": Case(_oversubscribed, {"spines": 2, "uplink_mbit": 50}),
    "oversubscribed_2_unlabelled": Case(
        _healthy, {"spines": 2, "uplink_mbit": 100}, labelled=False
    ),
    "oversubscribed_4_unlabelled": Case(_healthy, {"spines": 2, "uplink_mbit": 50}, labelled=False),
    "slow_spine": Case(_spine(lambda fabric, spine: fabric.slow_spine(spine, 15), _SLOW_BETWEEN)),
    "spine_mtu": Case(
        _spine(LeafSpine.spine_mtu, ("mtu_on_the_way", "no_path", "slow_path", "slow_group")),
        {**_FAST, "link_mtu": 9000},
    ),
    "lossy_spine": Case(
        _spine(
            lambda fabric, spine: fabric.lossy_spine(spine, 10),
            ("packet_loss", "slow_path", "slow_group"),
        )
    ),
    "slow_uplink": Case(
        _leaf(
            lambda fabric, rack, rng: fabric.slow_uplink(rack, rng.choice(fabric.spines), 15),
            _SLOW_BETWEEN,
        )
    ),
    "slow_uplinks": Case(
        _leaf(lambda fabric, rack, _rng: fabric.slow_uplinks(rack, 30), _SLOW_BETWEEN)
    ),
    "slow_leaf": Case(_leaf(lambda fabric, rack, _rng: fabric.slow_leaf(rack, 50), _SLOW_BETWEEN)),
    "leaf_down": Case(_leaf(lambda fabric, rack, _rng: fabric.leaf_down(rack), ("no_path",))),
    "flapping_host": Case(_host(lambda _fabric, _host: None, SLOW), flaps=20),
    "lossy_host": Case(
        _host(
            lambda fabric, host: fabric.lossy(host, _PLANE, 2),
            ("packet_loss", "slightly_slow", *SLOW),
        )
    ),
    "slow_host": Case(
        _host(lambda fabric, host: fabric.slow_sender(host, _PLANE, 25), ("slow_transmit",)), _EQUAL
    ),
}


def run_case(fabric: LeafSpine, facts, case: Case, seed: int, **how) -> Outcome:
    """Inflict a case on a healthy fabric of its settings, measure and judge, and heal it again."""
    rng = random.Random(f"fabric {seed}")
    truth = case.inflict(fabric, rng)
    # Bad in the odd rounds, or in the even ones.
    ahead = rng.randrange(2)

    def flap(plan):
        if plan["pairs"]:
            period = plan["pairs"]["period"]
            first = plan["start"] + plan["pairs"]["offset"] - ahead * period
            fabric.flap(truth.host, case.flaps, first, period)

    passes = []
    try:
        judged, plans = run(
            fabric,
            facts,
            seed,
            groups=None if case.labelled else {},
            once_planned=flap if case.flaps else None,
            readings=passes,
            **how,
        )
    finally:
        fabric.heal()
    word, why = classify(judged, truth)
    return Outcome(word, why, _lines(judged), truth, judged, plans, passes)


def measure_case(case: Case, seed: int, **how) -> Outcome:
    """The outcome of a case on a fabric of its own."""
    with LeafSpine(rate_mbit=_HOST_MBIT, **case.settings) as fabric:
        return run_case(fabric, facts_of(fabric, fabric.hosts), case, seed, **how)


def classify(judged, truth: Truth) -> Tuple[str, str]:
    """See `Outcome`."""
    told = [
        (host, finding)
        for host, results in judged.results.items()
        for result in results
        for finding in result.findings
        if finding.status in ("warn", "unknown", "fail")
    ]
    of_run = [finding for _check, finding in judged.findings if finding.status != "ok"]
    for host, finding in told:
        if finding.status == "fail" and host != truth.host:
            return "wrong", f"{host} fails: {finding.message}"
    for finding in of_run:
        if finding.status == "fail" and (truth.is_healthy or not _fits(finding, truth)):
            return "wrong", f"the run fails: {_subject(finding)}: {finding.message}"
    if truth.is_healthy:
        doubts = [f"{host}: {finding.code}" for host, finding in told if finding.status != "warn"]
        doubts += [finding.code for finding in of_run if finding.status == "unknown"]
        if truth.codes and not any(_names(finding, truth) for finding in of_run):
            return ("undecided" if doubts else "missed"), ", ".join(doubts[:3])
        return ("undecided", ", ".join(doubts[:3])) if doubts else ("named", "")
    if any(host == truth.host and finding.code in truth.codes for host, finding in told) or any(
        _names(finding, truth) for finding in of_run
    ):
        return "named", ""
    about = [host for host, _finding in told if host in truth.suspects]
    about += [finding.code for finding in of_run]
    if about:
        return "undecided", ", ".join(sorted(set(about)))
    return "missed", ""


def _fits(finding, truth: Truth) -> bool:
    """True if a finding of the run says nothing false about what is broken."""
    if truth.host or finding.code not in truth.codes or finding.subject.kind == "link":
        return False
    racks = _racks(finding)
    return not truth.racks or not racks or bool(racks & truth.racks)


def _names(finding, truth: Truth) -> bool:
    """True if a finding of the run names what is broken, with its rack where that is one's."""
    return _fits(finding, truth) and (not truth.racks or bool(_racks(finding)))


def _racks(finding) -> FrozenSet[str]:
    return frozenset(re.findall(r"\brack (r\d+)", _subject(finding)))


def _subject(finding) -> str:
    return finding.subject.name or ""


def _lines(judged) -> List[str]:
    told = [
        (host, finding)
        for host, results in judged.results.items()
        for result in results
        for finding in result.findings
    ]
    told += [("run", finding) for _check, finding in judged.findings]
    lines = [
        f"{owner} {_subject(finding)} {finding.code} {finding.status} {finding.action}: "
        f"{finding.message} (confidence {(finding.evidence or {}).get('confidence')})"
        for owner, finding in told
        if finding.status in ("warn", "unknown", "fail")
    ]
    return list(dict.fromkeys(lines))
