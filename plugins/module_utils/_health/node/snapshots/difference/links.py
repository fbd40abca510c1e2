# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Changes of the GPUs' links: PCIe, NVLink, and the bandwidth measured before and after."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from ....knowledge.links import GENERATIONS, over_pcie, replays_per_minute
from ....model import FAIL, PASS, WARN, Finding, NODE, Subject
from ....lenient import Unsigned
from ..snapshot import (
    CheckSnapshot,
    Counters,
    EngineSnapshot,
    GpuSnapshot,
    LinkSnapshot,
    NvlinkSnapshot,
    TransferSnapshot,
)
from .between import JOB, REPLAY_BITS, Between, Pair, counted, key_of, named

#: Share of bandwidth that may be lost without a finding. A judgement: repeated measurements of a
#: healthy GPU differ by 1 %, and no clock or placement left by a job costs a tenth.
LOST = 0.1
#: Minimum seconds for an average rate: a few errors in a moment are no rate.
_LEAST_SECONDS = 60.0
#: Seconds from which too many replays mean a faulty link rather than a burst (a judgement; the
#: limit is a rate per minute).
_LASTING_SECONDS = 600.0


def replays(between: Between) -> List[Finding]:
    """PCIe replays. A rate above PCIe's error rate (see `knowledge.links`) over the whole time
    means a faulty link, over a short time a link to watch; fewer replays are reported.
    """
    found = []
    for pair in between.pairs("pcie_link"):
        # Whether a load of the driver resets it is not documented; it has grown by at least the
        # difference.
        grown = counted(
            pair.before.get("replays"),
            pair.after.get("replays"),
            between.same_boot is not False,
            REPLAY_BITS,
        )
        if not grown or not grown.value:
            continue
        link = pair.after.get("link") or LinkSnapshot()
        generation, width = link.get("max_generation"), link.get("max_width")
        line = replays_per_minute(generation, width) if generation and width else None
        rate = (
            grown.value * 60 / max(between.seconds, _LEAST_SECONDS)
            if between.seconds is not None
            else None
        )
        evidence = {
            "before": pair.before.get("replays"),
            "after": pair.after.get("replays"),
            "seconds": between.seconds,
            "allowed_per_minute": line,
        }
        message = f"{grown} packet{'s' * (grown.value != 1)} resent over PCIe during {JOB}"
        if line is not None and rate is not None and rate > line:
            message += (
                f", {rate:.3g} a minute, expected at most {line:.3g} (PCIe {generation}.0 x{width})"
            )
            if between.seconds is not None and between.seconds >= _LASTING_SECONDS:
                found.append(
                    Finding("new_pcie_replays", FAIL, message, "drain_node", pair.subject, evidence)
                )
            else:
                message += (
                    "; the time is too short to tell a burst from a lasting error "
                    f"({_LASTING_SECONDS / 60:.0f} minutes of work are enough)"
                )
                found.append(
                    Finding("new_pcie_replays", WARN, message, "watch", pair.subject, evidence)
                )
        else:
            found.append(Finding("new_pcie_replays", PASS, message, "none", pair.subject, evidence))
    return found


def aer(between: Between) -> List[Finding]:
    """Errors reported by GPUs and the bridges above them. Corrected errors are reported; an
    uncorrected one aborted a transfer. The kernel counts from boot, so a load of the driver loses
    none.
    """
    found = []
    bridges: Dict[str, bool] = {}
    for pair in between.pairs("pcie_link"):
        found += _aer(
            between, pair.before.get("aer") or {}, pair.after.get("aer") or {}, pair.subject
        )
        old = {key_of(bridge, "pci"): bridge for bridge in pair.before.get("bridges") or []}
        for bridge in pair.after.get("bridges") or []:
            address = key_of(bridge, "pci")
            if address not in bridges and address in old:
                bridges[address] = True
                found += _aer(
                    between,
                    old[address].get("aer") or {},
                    bridge.get("aer") or {},
                    Subject("link", pci=address),
                )
    return found


def _aer(between: Between, old: Counters, new: Counters, subject: Subject) -> List[Finding]:
    # A reset of the GPU and a load of its driver have findings of their own.
    reset = subject.kind == "gpu" and (between.reloaded or subject.uuid in between.set_back)
    counts = {
        kind: counted(old.get(kind), new.get(kind), between.same_boot is not False)
        if reset
        else between.grown(subject, f"{kind} PCIe errors", old.get(kind), new.get(kind))
        for kind in ("correctable", "nonfatal", "fatal")
    }
    bad = [
        f"{count} {'fatal' if kind == 'fatal' else 'uncorrected'}"
        for kind, count in counts.items()
        if kind != "correctable" and count and count.value
    ]
    if bad:
        message = f"{named(bad)} PCIe errors during {JOB}"
        return [
            Finding(
                "new_pcie_errors", WARN, message, "watch", subject, {"before": old, "after": new}
            )
        ]
    if counts["correctable"] and counts["correctable"].value:
        return [
            Finding(
                "new_pcie_errors",
                PASS,
                f"{counts['correctable']} corrected PCIe errors during {JOB}",
                "none",
                subject,
                {"before": old, "after": new},
            )
        ]
    return []


def trained(between: Between) -> List[Finding]:
    """Narrower or slower links. Before PCIe 6.0 idle links keep their lanes, so widths are
    comparable when idle, and an earlier greater width proves what both ends support; generations
    are comparable only under load.
    """
    found = []
    for pair in between.pairs("pcie_link"):
        old = pair.before.get("link") or LinkSnapshot()
        new = pair.after.get("link") or LinkSnapshot()
        if not over_pcie(pair.after.get("name")):
            continue  # as `pcie_link` has it: its link says nothing of what carries its data
        found += _narrower(
            old.get("width"),
            new.get("width"),
            pair.subject,
            {"before": old, "after": new},
            old.get("max_generation"),
        )
        then, now = old.get("max_generation"), new.get("max_generation")
        if then and now and now < then:
            message = f"the slot is limited to PCIe {now:g}.0, in the snapshot PCIe {then:g}.0"
            found.append(
                Finding(
                    "link_slower",
                    WARN,
                    message,
                    "fix_configuration",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
        found += _narrower_above(pair, found)
    return found + _slower_under_load(between)


def _narrower_above(pair: Pair, told: List[Finding]) -> List[Finding]:
    """Links of the ports and switches above a GPU; ``told`` holds the links already reported."""
    found: List[Finding] = []
    above = {key_of(bridge, "pci"): bridge for bridge in pair.before.get("bridges") or []}
    for bridge in pair.after.get("bridges") or []:
        before = above.get(key_of(bridge, "pci"))
        subject = Subject("link", pci=key_of(bridge, "pci"))
        # The GPU's own port is the other end of the same link, and several GPUs share bridges.
        known = any(
            one.subject in (subject, pair.subject) and one.code == "link_narrower"
            for one in [*told, *found]
        )
        if before and not known:
            generation = GENERATIONS.get(bridge.get("max_link_speed") or 0.0, 0)
            widths = before.get("current_link_width"), bridge.get("current_link_width")
            found += _narrower(*widths, subject, {"before": before, "after": bridge}, generation)
    return found


def _slower_under_load(between: Between) -> List[Finding]:
    found = []
    for pair in between.pairs("pcie_bandwidth"):
        old = pair.before.get("link") or LinkSnapshot()
        new = pair.after.get("link") or LinkSnapshot()
        then, now = old.get("generation"), new.get("generation")
        if then and now and now < then:
            message = f"the link runs at PCIe {now:g}.0 under load, in the snapshot at {then:g}.0"
            found.append(
                Finding(
                    "link_slower",
                    WARN,
                    message,
                    "watch",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
    return found


def _narrower(
    old: Optional[int],
    new: Optional[int],
    subject: Subject,
    evidence: Dict[str, Any],
    generation: Optional[int],
) -> List[Finding]:
    if not old or not new or new >= old or (generation or 0) >= 6:
        return []
    message = f"link is up at x{new}, in the snapshot at x{old}"
    return [Finding("link_narrower", FAIL, message, "drain_node", subject, evidence)]


def nvlink(between: Between) -> List[Finding]:
    """NVLinks that went down, and their errors. A link resends damaged data, so errors are only
    reported; a link that recovered was down for a moment (DCGM watches recoveries as errors of the
    link).
    """
    found = []
    for pair in between.pairs("nvlink"):
        old = {key_of(link, "link"): link for link in pair.before.get("links") or []}
        new = {
            key_of(link, "link"): link
            for link in pair.after.get("links") or []
            if key_of(link, "link") in old
        }
        down = [
            name
            for name, link in new.items()
            if link.get("active") is False and old[name].get("active") is True
        ]
        evidence = {"before": list(old.values()), "after": list(new.values())}
        # On some models MIG disables the links (MIG User Guide); the changed setting is reported.
        if down and not pair.after.get("mig"):
            several = len(down) > 1
            message = (
                f"NVLink{'s' * several} {named(down, 18)} {'are' if several else 'is'} down, "
                "up in the snapshot"
            )
            found.append(
                Finding(
                    "nvlink_lost",
                    FAIL,
                    message,
                    "drain_node",
                    pair.subject,
                    {"down": down, **evidence},
                )
            )
        found += _nvlink_errors(pair, old, new)
    return found


def _nvlink_errors(
    pair: Pair, old: Dict[str, NvlinkSnapshot], new: Dict[str, NvlinkSnapshot]
) -> List[Finding]:
    totals: Dict[str, int] = {}
    least = False
    for name, link in new.items():
        before = old[name].get("errors") or {}
        for kind, value in (link.get("errors") or {}).items():
            grown = counted(before.get(kind, Unsigned(0)), value, pair.ran_on)
            totals[kind] = totals.get(kind, 0) + (grown.value if grown else 0)
            least = least or bool(grown and grown.value and grown.least)
    totals = {kind: count for kind, count in totals.items() if count}
    if not totals:
        return []
    counts = named(
        [f"{'at least ' * least}{count} {kind.replace('_', ' ')}" for kind, count in totals.items()]
    )
    recovered = "recovery" in totals
    message = f"{counts} errors on NVLinks during {JOB}"
    return [
        Finding(
            "new_nvlink_errors",
            WARN if recovered else PASS,
            message,
            "watch" if recovered else "none",
            pair.subject,
            {"errors": totals},
        )
    ]


def bandwidth(between: Between) -> List[Finding]:
    """Rates that were measured before and after."""
    found = []
    for check, rates in _RATES.items():
        for pair in between.pairs(check):
            found += _lost(rates(pair.before), rates(pair.after), pair.subject)
    # Pairs are named by index, which is comparable only if the GPUs keep their indices.
    indexes = [{uuid: gpu.get("index") for uuid, gpu in gpus.items()} for gpus in between.gpus()]
    if indexes[0] == indexes[1]:
        old, new = between.node("gpu_link")
        found += _lost(_pairs_rates(old), _pairs_rates(new), NODE)
    return found


def _lost(old: Dict[str, float], new: Dict[str, float], subject: Subject) -> List[Finding]:
    lost = {
        what: (old[what], new[what])
        for what in old
        if what in new and new[what] < (1 - LOST) * old[what]
    }
    if not lost:
        return []
    words = named(
        [
            f"{what} {_rate(now, what)} instead of {_rate(then, what)}, {1 - now / then:.0%} less"
            for what, (then, now) in lost.items()
        ],
        2,
    )
    evidence = {what: {"before": then, "after": now} for what, (then, now) in lost.items()}
    return [
        Finding(
            "bandwidth_lost",
            WARN,
            f"slower than in the snapshot: {words}",
            "watch",
            subject,
            evidence,
        )
    ]


def _rate(value: float, what: str) -> str:
    return f"{value / 1e12:.3g} TFLOP/s" if what in _OPERATIONS else f"{value / 1e9:.3g} GB/s"


def _pcie_rates(gpu: GpuSnapshot) -> Dict[str, float]:
    found: Dict[str, float] = {}
    for direction in ("host_to_device", "device_to_host"):
        transfer = gpu.get("transfers", {}).get(direction, TransferSnapshot())
        samples = (transfer.get("copy_engine") or EngineSnapshot()).get("samples", [])
        rates = sorted(rate for rate in samples if rate > 0)
        if rates:
            found[f"PCIe {direction.replace('_', ' ')}"] = rates[len(rates) // 2]
    return found


_OPERATIONS = ("fp64", "tensor")


def _memory_rates(gpu: GpuSnapshot) -> Dict[str, float]:
    return {what: rate for what, rate in gpu.get("rates", {}).items() if rate and rate > 0}


def _pairs_rates(readings: CheckSnapshot) -> Dict[str, float]:
    rated = [(pair, pair.get("bytes_per_second") or 0.0) for pair in readings.get("pairs", [])]
    return {
        f"GPU {pair.get('from')} to GPU {pair.get('to')}": rate for pair, rate in rated if rate > 0
    }


_RATES: Dict[str, Callable[[GpuSnapshot], Dict[str, float]]] = {
    "pcie_bandwidth": _pcie_rates,
    "gpu_memory": _memory_rates,
}
