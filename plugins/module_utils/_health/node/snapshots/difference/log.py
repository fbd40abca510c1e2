# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Kernel log records since the snapshot: Xids and similar, and whether the log is complete.

Records are identified by their number, which counts from each boot
(Documentation/ABI/testing/dev-kmsg); journal records have none and are identified by their time
since boot. `xid_errors` judges which Xids still matter; here the new ones are reported.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from ....knowledge import xids
from ....model import PASS, STATUSES, WARN, Finding, NODE, Subject, gpu_subject, normalise_pci
from ..snapshot import EventSnapshot, LogSnapshot
from .between import JOB, Between, named

_EVIDENCE = ("seq", "usec", "xid", "sxid", "pid", "process", "text")


def events(between: Between) -> List[Finding]:
    """One finding for each device with new records."""
    _old, new = between.node("xid_errors")
    subjects = {
        normalise_pci(str(gpu.get("pci"))): gpu_subject(gpu) for gpu in between.gpus()[1].values()
    }
    by_device: Dict[Subject, List[EventSnapshot]] = {}
    for event in new.get("events", []):
        if between.came_since(event) and event.get("kind") in ("xid", "sxid", "off_bus"):
            pci = normalise_pci(str(event.get("pci")))
            subject = (
                Subject("nvswitch", pci=pci)
                if event["kind"] == "sxid"
                else subjects.get(pci, Subject("gpu", pci=pci))
            )
            by_device.setdefault(subject, []).append(event)
    return [_finding(subject, several) for subject, several in by_device.items()]


def _finding(subject: Subject, several: List[EventSnapshot]) -> Finding:
    verdicts = {_word(event): _verdict(event) for event in several}
    ranked = sorted(verdicts, key=lambda word: -STATUSES.index(verdicts[word].status))
    times = {word: sum(_word(event) == word for event in several) for word in ranked}
    words = named(
        [f"{word}{f' {times[word]} times' if times[word] > 1 else ''}" for word in ranked]
    )
    worst = verdicts[ranked[0]]
    harmless = worst.status == PASS
    evidence = {"events": [{key: event.get(key) for key in _EVIDENCE} for event in several[-16:]]}
    if harmless:
        return Finding(
            "new_xids",
            PASS,
            f"{words} during {JOB}, usually errors of an application",
            "none",
            subject,
            evidence,
        )
    return Finding("new_xids", WARN, f"{words} during {JOB}", worst.action, subject, evidence)


def _word(event: EventSnapshot) -> str:
    if event["kind"] == "off_bus":
        return "loss of the GPU (fell off the bus)"
    if event["kind"] == "sxid":
        return f"SXid {event.get('sxid')}"
    row = xids.XIDS.get(event.get("xid") or 0)
    return f"Xid {event.get('xid')}" + (f" ({row.meaning})" if row else "")


def _verdict(event: EventSnapshot) -> xids.Verdict:
    if event["kind"] == "sxid":
        return xids.SWITCH_FATAL if event.get("fatal") else xids.SWITCH_NOT_FATAL
    code = xids.OFF_THE_BUS if event["kind"] == "off_bus" else event.get("xid") or 0
    if code in xids.FATAL_IN_TEXT and event.get("fatal"):
        return xids.FATAL_LINK
    return xids.XIDS[code].verdict if code in xids.XIDS else xids.NOT_KNOWN


def gap(between: Between) -> List[Finding]:
    """Records that were overwritten before they were read: an Xid may have been among them. A
    warning, since verbose kernels overwrite their log on healthy nodes too, and most other counters
    show the effects of an Xid.
    """
    old, new = between.node("xid_errors")
    if between.same_boot is not True or not new:
        return []
    then, now = old.get("log", LogSnapshot()), new.get("log", LogSnapshot())
    missing = _missing(then, now, old.get("uptime_seconds"))
    if not missing:
        return []
    message = (
        f"{missing} since the snapshot were overwritten before they were read; they may have "
        "contained Xids"
    )
    return [Finding("kernel_log_gap", WARN, message, "watch", NODE, {"before": then, "after": now})]


def _missing(then: LogSnapshot, now: LogSnapshot, uptime: Optional[float]) -> str:
    """Describe the lost part of the log; "" if nothing is lost."""
    last, first = then.get("last_seq"), now.get("first_seq")
    if last is not None and first is not None:
        return f"{first - last - 1} records of the kernel log" if first > last + 1 else ""
    begins = now.get("first_usec")
    # The journal may begin anywhere; only a log that reports lost records has lost some.
    if (
        now.get("overwritten")
        and uptime is not None
        and begins is not None
        and begins / 1e6 > uptime
    ):
        return "records of the kernel log"
    return ""
