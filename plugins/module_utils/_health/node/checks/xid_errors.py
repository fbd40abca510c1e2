# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which errors of GPUs and NVSwitches did the driver log since boot, which was the cause, and what
does NVIDIA recommend?

Only current errors count. A boot ends every log. A load of the driver, or its own report that no
recovery is needed any more (Xid 154 to "None", or field 230 at 0 after an Xid 154 that requested
one), ends errors that a reset clears. Errors of applications alone say nothing about the GPU. A
manual reset that the driver does not report is known only to the operator: the option ``since``
ignores earlier events.
"""

from __future__ import annotations

import re
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Literal,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
)

from ..system import kernel_log
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge import xids
from ...knowledge.gpus import NO_RECOVERY, Recovery, recovery_action
from ...knowledge.xids import Verdict
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    STATUSES,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    NODE,
    Subject,
    concluded,
    gpu_subject,
    normalise_pci,
)
from ...lenient import Unsigned, number
from ..framework.driver_findings import GpuReading, all_gpus, read_parts

#: Maximum events kept of one log.
MOST_EVENTS = 200
#: Maximum characters kept of a message.
_MOST_TEXT = 300
#: Seconds of silence that end a burst of errors of one GPU, as in NVIDIA's Xid catalogue.
SILENCE = 180
#: Processes that failed with application errors on one GPU, and on no other, before the GPU is
#: reported. A judgement: three applications with the same fault rarely choose the same GPU of many.
MANY_PROCESSES = 3

_BDF = r"(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(
    r"^NVRM: Xid \((?:PCI:)?"
    + _BDF
    + r"(?:\s+(?P<mig>GPU-[^)]*))?\)\s*:\s*(?P<xid>\d+)\s*(?:,\s*(?P<text>.*))?$"
)
_PROCESS = re.compile(r"pid='?(\d+|<unknown>)'?(?:, name=([^,]+))?")
_SXID = re.compile(
    r"^nvidia-nvswitch(?P<index>\d+): SXid \((?:PCI:)?"
    + _BDF
    + r"\)\s*:\s*(?P<sxid>\d+)\s*,?\s*(?P<text>.*)$"
)
_OFF_BUS = re.compile(
    r"^NVRM: (?:GPU|The NVIDIA GPU)(?: at)? (?:PCI:)?" + _BDF + r"[: ].*fallen off the bus"
)
#: The same over several lines: "The NVIDIA GPU <address>", "(PCI ID: ...)", "installed in this
#: system has fallen off the bus".
_OFF_BUS_BEGINS = re.compile(r"^NVRM: The NVIDIA GPU " + _BDF)
_LOADED = "NVRM: loading NVIDIA UNIX"
#: Logged once before the first Xid of a GPU since its initialisation (open driver, kernel_rc.c,
#: _krcLogUuidOnce).
_ANNOUNCED = re.compile(r"^NVRM: GPU at PCI:" + _BDF + r": GPU-")
_AER = re.compile(
    r"^\S+ " + _BDF + r": (?:AER: )?PCIe Bus Error: severity=(?P<severity>Correct|Uncorrect)\w*(?: "
    r"\((?P<fatal>[\w-]+)\))?"
)
_RECOVERY_TO = re.compile(r"\bto\s+0x([0-9a-fA-F]{1,8})(?:\s*\(([^)]*)\))?")
_LINK_REASON = re.compile(r"\bLink\s+\w+\s+[(\[]0x([0-9a-fA-F]{1,8})\b")
#: On hosts whose firmware reads PCIe errors first, one error is several records (ACPI APEI).
_FIRMWARE = re.compile(
    r"^(?P<source>\{\d+\})?\[Hardware Error\]:\s+(?:Error \d+, type: (?P<severity>\w+)"
    r"|section_type: (?P<section>.+)|device_id: " + _BDF + r")"
)
_SEVERITIES = {"corrected": "corrected", "recoverable": "nonfatal", "fatal": "fatal"}
_WORDS = ("NVRM:", "SXid", "PCIe Bus Error", "[Hardware Error]")


class LogReading(TypedDict, total=False):
    """`kernel_log.Log.to_dict`."""

    source: Optional[str]
    first_seq: Optional[int]
    last_seq: Optional[int]
    #: Microseconds since boot.
    first_usec: Optional[float]
    #: Any value counts.
    overwritten: Any
    error: Optional[str]


class LoadReading(TypedDict):
    """When the driver was loaded. Total: an event that ends errors must be complete."""

    seq: Optional[int]
    #: Microseconds since boot.
    usec: float


class AnewReading(LoadReading):
    """When the log shows that a GPU was initialised anew."""

    pci: str


class LoggedEvent(TypedDict, total=False):
    """A logged driver error; values missing in its line are None."""

    seq: Optional[int]
    #: Microseconds since boot.
    usec: float
    pci: str
    kind: Literal["xid", "sxid", "off_bus"]
    xid: Optional[int]
    sxid: Optional[int]
    #: Any value counts.
    fatal: Any
    mig: Optional[str]
    pid: Optional[int]
    process: Optional[str]
    text: str


class AerReading(TypedDict, total=False):
    """PCIe errors of one device and severity: how many, and the last of them."""

    seq: Optional[int]
    #: Microseconds since boot.
    usec: float
    pci: str
    severity: str
    count: Unsigned
    text: str


class XidGpu(GpuReading, total=False):
    #: Field 230.
    recovery: Optional[int]
    #: Uncorrected memory errors since the GPU was initialised; read after an error that counts.
    uncorrected: Optional[Unsigned]


class XidReadings(TypedDict, total=False):
    boot_id: Optional[str]
    uptime_seconds: Optional[float]
    log: LogReading
    events: List[Optional[LoggedEvent]]
    #: Number of events that were dropped.
    dropped: Unsigned
    aer: List[AerReading]
    loads: List[LoadReading]
    #: The last of each GPU.
    anew: List[AnewReading]
    #: Addresses of GPUs on the PCI bus.
    bus: List[str]
    driver_version: Optional[str]
    gpus: List[Optional[XidGpu]]


# --- measuring ---


def measure(probe: Probe) -> Readings:
    """`XidReadings`. A driver that does not answer has a ``driver_error`` and costs nothing else."""
    from ..devices.nvml import DriverError

    probe.stage("reading the kernel log")
    log = kernel_log.read(probe.host, probe.run, lambda text: any(word in text for word in _WORDS))
    readings: Readings = {
        "boot_id": probe.host.boot_id(),
        "uptime_seconds": probe.host.uptime(),
        "log": log.to_dict(),
        "gpus": [],
        **parse(log.records),
    }
    readings["bus"] = [gpu["pci"] for gpu in probe.host.pci_gpus() or []]
    # Before the driver is asked: when it hangs, the log matters most.
    probe.keep(readings)
    try:
        nvml = probe.nvml()
        readings["driver_version"] = nvml.driver_version
        counted = any(event["xid"] in xids.COUNTED for event in readings["events"])
        readings["gpus"] = [_with_recovery(nvml, gpu, counted) for gpu in nvml.gpus]
    except DriverError as error:
        readings["driver_error"] = error.to_dict()
    return readings


def _with_recovery(nvml: Any, gpu: Mapping[str, Any], counted: bool) -> Readings:
    if "error" in gpu:
        return dict(gpu)
    parts: Dict[str, Callable[[], Any]] = {"recovery": lambda: nvml.fields(gpu, [230])[230]}
    if counted:
        # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
        parts["uncorrected"] = lambda: nvml.optional(gpu, "nvmlDeviceGetTotalEccErrors", 1, 0)
    return dict(gpu, **read_parts(parts))


def parse(records: Iterable[kernel_log.Record]) -> Readings:
    """``events``, ``dropped``, ``aer``, ``loads`` and ``anew`` of a log, see `XidReadings`."""
    events: List[LoggedEvent] = []
    loads: List[LoadReading] = []
    announced: Dict[str, List[AnewReading]] = {}
    aer: Dict[Tuple[str, str], AerReading] = {}
    begun: Optional[str] = None
    reported: Dict[Optional[str], _Reported] = {}
    for record in records:
        when: LoadReading = {"seq": record.seq, "usec": record.usec}
        for line in record.text.split("\n"):
            begins = _OFF_BUS_BEGINS.match(line)
            event = _event(line, begun)
            begun = (
                begins.group("bdf")
                if begins and not event
                else begun
                if line.startswith("NVRM:") and not event
                else None
            )
            if event:
                events.append({**when, **event})
            elif line.startswith(_LOADED):
                loads.append(when)
            else:
                _note_announcement(announced, when, line)
                _count_aer(aer, when, line)
                _count_reported(aer, reported, when, line)
    kept = _thinned(events)
    return {
        "events": kept,
        "dropped": len(events) - len(kept),
        "aer": list(aer.values())[-MOST_EVENTS:],
        "loads": loads[-8:],
        "anew": [times[-1] for times in announced.values() if len(times) > 1][-MOST_EVENTS:],
    }


def _note_announcement(
    announced: Dict[str, List[AnewReading]], when: LoadReading, line: str
) -> None:
    found = _ANNOUNCED.match(line)
    if found:
        pci = normalise_pci(found.group("bdf"))
        announced.setdefault(pci, []).append({**when, "pci": pci})


def _event(line: str, begun: Optional[str]) -> Optional[LoggedEvent]:
    found = _XID.match(line)
    if found:
        text = found.group("text") or ""
        process = _PROCESS.search(text)
        pid = process.group(1) if process else ""
        fatal = _fatal(text) if int(found.group("xid")) in xids.FATAL_IN_TEXT else None
        name = process.group(2).strip() if process and process.group(2) else None
        return {
            **_made("xid", found.group("bdf"), text),
            "xid": int(found.group("xid")),
            "mig": found.group("mig"),
            "fatal": fatal,
            "pid": int(pid) if pid.isdecimal() else None,
            "process": None if name == "<unknown>" else name,
        }
    found = _SXID.match(line)
    if found:
        # One error is several lines, of which the first says how bad it is.
        if re.match(r"(Severity|Data)\b", found.group("text")):
            return None
        text = found.group("text")
        return {
            **_made("sxid", found.group("bdf"), text),
            "sxid": int(found.group("sxid")),
            "fatal": _fatal(text),
        }
    found = _OFF_BUS.match(line)
    if found:
        return _made("off_bus", found.group("bdf"), line)
    if begun and line.startswith("NVRM:") and "fallen off the bus" in line:
        return _made("off_bus", begun, line)
    return None


def _fatal(text: str) -> Optional[bool]:
    found = re.search(r"\b(non-?)?fatal\b", text, re.IGNORECASE)
    return None if not found else not found.group(1)


def _made(kind: Literal["xid", "sxid", "off_bus"], bdf: str, text: str) -> LoggedEvent:
    return {
        "pci": normalise_pci(bdf),
        "kind": kind,
        "xid": None,
        "sxid": None,
        "fatal": None,
        "mig": None,
        "pid": None,
        "process": None,
        "text": text[:_MOST_TEXT],
    }


def _count_aer(aer: Dict[Tuple[str, str], AerReading], when: LoadReading, line: str) -> None:
    found = _AER.match(line)
    if found:
        severity = (
            "corrected"
            if found.group("severity") == "Correct"
            else "fatal"
            if (found.group("fatal") or "").lower() == "fatal"
            else "nonfatal"
        )
        _count(aer, when, found.group("bdf"), severity, line)


class _Reported(NamedTuple):
    """What the lines of an error that the firmware reported have said so far."""

    severity: str
    is_pcie: bool


def _count_reported(
    aer: Dict[Tuple[str, str], AerReading],
    reported: Dict[Optional[str], _Reported],
    when: LoadReading,
    line: str,
) -> None:
    """Count an error that the firmware reported; ``reported`` keeps the open ones by source."""
    found = _FIRMWARE.match(line)
    if not found:
        return
    source, severity, section = found.group("source", "severity", "section")
    known = reported.get(source)
    if severity:
        reported[source] = _Reported(_SEVERITIES.get(severity, ""), False)
    elif section and known:
        reported[source] = known._replace(is_pcie=section.strip() == "PCIe error")
    elif found.group("bdf") and known and known.is_pcie:
        if known.severity:
            _count(aer, when, found.group("bdf"), known.severity, line)
        del reported[source]


def _count(
    aer: Dict[Tuple[str, str], AerReading], when: LoadReading, bdf: str, severity: str, line: str
) -> None:
    pci = normalise_pci(bdf)
    known = aer.pop((pci, severity), None)
    aer[pci, severity] = {
        **when,
        "pci": pci,
        "severity": severity,
        "count": Unsigned((known["count"] if known else 0) + 1),
        "text": line[:_MOST_TEXT],
    }


def _thinned(events: List[LoggedEvent]) -> List[LoggedEvent]:
    """At most `MOST_EVENTS`: the newest of each error of each GPU, so that frequent errors do not
    displace rare ones.
    """
    if len(events) <= MOST_EVENTS:
        return events
    by_error: Dict[Any, List[int]] = {}
    for place, event in enumerate(events):
        by_error.setdefault(
            (event["pci"], event["kind"], event["xid"], event["sxid"], event["fatal"]), []
        ).append(place)
    most = max(1, MOST_EVENTS // len(by_error))
    kept = sorted(place for places in by_error.values() for place in places[-most:])
    return [events[place] for place in kept[-MOST_EVENTS:]]


# --- judging ---


class _Told(NamedTuple):
    """An event with its meaning."""

    event: LoggedEvent
    verdict: Verdict
    #: The event as text.
    what: str


#: Before every moment, also one that a clock has before the boot.
_NEVER = float("-inf")


class _Ends(NamedTuple):
    """By GPU, the last time that the driver requested no recovery, the last load of the driver, and
    the last initialisation of the GPU (microseconds since boot, ``_NEVER`` if it did not happen).
    """

    word: float
    load: float
    anew: float
    #: True if the driver counts no uncorrected error since the GPU was initialised.
    uncounted: bool


class _Burst(NamedTuple):
    """Errors of one device without silence between them: the cause, and what came with it."""

    cause: _Told
    told: List[_Told]
    recovered: bool


def _log_not_read(log: LogReading) -> Finding:
    message = f"the kernel log could not be read ({log.get('error') or 'not tried'})"
    return Finding("kernel_log_not_read", UNKNOWN, message, "fix_configuration", NODE, dict(log))


def _subjects(bus: List[str], gpus: List[XidGpu]) -> Dict[Optional[str], Subject]:
    """The GPUs on the bus by address, with the driver's values for those that it lists."""
    subjects: Dict[Optional[str], Subject] = {pci: Subject("gpu", pci=pci) for pci in bus}
    subjects.update({subject.pci: subject for subject in map(gpu_subject, gpus) if subject.pci})
    return subjects


def _by_device(events: List[LoggedEvent]) -> Dict[Tuple[bool, str], List[LoggedEvent]]:
    """Events in the order of time, by whether the device is a switch and by its bus address."""
    found: Dict[Tuple[bool, str], List[LoggedEvent]] = {}
    for event in sorted(events, key=lambda one: one["usec"]):
        found.setdefault((event["kind"] == "sxid", normalise_pci(event["pci"])), []).append(event)
    return found


def judge(readings: XidReadings, options: Options) -> CheckResult:
    log, uptime = readings.get("log", LogReading()), readings.get("uptime_seconds")
    listed = readings.get("events")
    if log.get("source") not in ("kmsg", "journal") or listed is None:
        return concluded(NAME, [_log_not_read(log)], "")
    events = [event for event in listed if event is not None and _understood(event)]
    findings: List[Finding] = []
    if len(events) < len(listed):
        findings.append(
            Finding(
                "kernel_log_not_read",
                UNKNOWN,
                "a part of the kernel log could not be parsed",
                "watch",
                NODE,
                dict(log),
            )
        )
    since = number(options.get("since"))
    if since is not None and uptime is not None:
        events = [event for event in events if uptime - event["usec"] / 1e6 <= since]
    gpus = all_gpus(readings.get("gpus"))
    subjects = _subjects(readings.get("bus", []), gpus)
    by_pci = {normalise_pci(str(gpu.get("pci"))): gpu for gpu in gpus}
    loads = [load["usec"] for load in readings.get("loads", [])]
    anew = {normalise_pci(each["pci"]): each["usec"] for each in readings.get("anew", [])}
    by_device = _by_device(events)
    devices = {
        key: _bursts(several, by_pci.get(key[1], {}), loads, anew.get(key[1], _NEVER))
        for key, several in by_device.items()
    }
    for (switch, pci), bursts in devices.items():
        subject = (
            Subject("nvswitch", pci=pci) if switch else subjects.get(pci, Subject("gpu", pci=pci))
        )
        findings += _judge_device(bursts, subject, uptime, switch)
    findings += _judge_applications(
        {
            subjects.get(pci, Subject("gpu", pci=pci)): bursts
            for (switch, pci), bursts in devices.items()
            if not switch
        },
        len(gpus),
    )
    findings += _judge_aer(readings.get("aer", []), subjects, since, uptime)
    findings += _judge_log(log, readings.get("dropped"), uptime)
    return concluded(
        NAME, findings, _summary(devices, uptime, since), _measured(by_device, subjects)
    )


def _understood(event: LoggedEvent) -> bool:
    kind = event.get("kind")
    code = event.get("xid") if kind == "xid" else event.get("sxid") if kind == "sxid" else 0
    return "usec" in event and "pci" in event and kind is not None and code is not None


def _told(event: LoggedEvent) -> _Told:
    kind, text = event["kind"], event.get("text", "")
    if kind == "off_bus":
        return _Told(event, xids.XIDS[xids.OFF_THE_BUS].verdict, "GPU has fallen off the bus")
    if kind == "sxid":
        fatal = event.get("fatal")
        words = "fatal" if fatal else "not fatal" if fatal is False else "of unknown severity"
        return _Told(
            event,
            xids.SWITCH_FATAL if fatal else xids.SWITCH_NOT_FATAL,
            f"SXid {event['sxid']} ({words}: {text})",
        )
    code = event["xid"] or 0
    row = xids.XIDS.get(code)
    if row is None:
        return _Told(event, xids.NOT_KNOWN, f"Xid {code} ({text})")
    meaning, verdict = row.meaning, row.verdict
    if code in xids.RETIREMENT:
        meaning = meaning.replace(
            "row or page",
            "row" if "row" in text.lower() else "page" if "page" in text.lower() else "row or page",
        )
    if code in xids.FATAL_IN_TEXT and event.get("fatal"):
        meaning = f"{meaning}, fatal"
        if code != xids.LINK_DOWN or _link_reason(text) not in xids.LINK_DOWN_ELSEWHERE:
            verdict = xids.FATAL_LINK
    asked = recovery_of(event)
    if asked is not None:
        verdict = Verdict(*asked)
    return _Told(event, verdict, f"Xid {code} ({meaning})")


def _link_reason(text: str) -> Optional[int]:
    """Why a link went down, by the text of an Xid 149; None for a text that does not say it."""
    found = _LINK_REASON.search(text)
    return int(found.group(1), 16) >> 20 & 0x3F if found else None


def recovery_of(event: LoggedEvent) -> Optional[Recovery]:
    """The recovery that an Xid 154 changes to, `NO_RECOVERY` included; None for other events and a
    text that does not say it.
    """
    found = (
        _RECOVERY_TO.search(event.get("text", ""))
        if event.get("xid") == xids.RECOVERY_CHANGED
        else None
    )
    if not found:
        return None
    number = int(found.group(1), 16)
    return recovery_action(number, found.group(2) or "") if number else NO_RECOVERY


def _bursts(
    events: List[LoggedEvent], gpu: XidGpu, loads: List[float], anew: float
) -> List[_Burst]:
    """The bursts of one device. ``loads`` are the times at which the driver was loaded, ``anew`` is
    the last initialisation of the GPU.
    """
    recovery = gpu.get("recovery")
    asked = [event for event in events if recovery_of(event) is not None]
    words = [event["usec"] for event in asked if recovery_of(event) == NO_RECOVERY]
    # The driver requested a recovery before and does not now, so it was carried out.
    if asked and recovery == 0:
        words.append(asked[-1]["usec"])
    # What the driver requests now counts more than a sign of a reset, and drivers that request
    # nothing log that they did.
    ends = _Ends(
        max(words, default=_NEVER),
        max(loads, default=_NEVER),
        _NEVER if recovery else anew,
        recovery is None and gpu.get("uncorrected") == 0,
    )
    bursts: List[List[_Told]] = []
    for event in events:
        told = _told(event)
        if bursts and event["usec"] - bursts[-1][-1].event["usec"] <= SILENCE * 1e6:
            bursts[-1].append(told)
        else:
            bursts.append([told])
    return [_burst(part, ends) for whole in bursts for part in _parted(whole, ends)]


def _parted(burst: List[_Told], ends: _Ends) -> List[List[_Told]]:
    """Split a burst at the recovery of its error, into the events before and after it."""
    over = max(ends.word, ends.load)
    before = [
        told for told in burst if told.event["usec"] <= over or told.event["usec"] < ends.anew
    ]
    return [part for part in (before, burst[len(before) :]) if part]


def _burst(told: List[_Told], ends: _Ends) -> _Burst:
    codes = {one.event.get("xid") for one in told}

    def rank(one: _Told) -> float:
        """Rank an event as the cause of its burst: by its own severity, unless another event
        reports a consequence; the driver's recovery request ranks last.
        """
        if not codes.isdisjoint(xids.EXPLAINED.get(one.event.get("xid") or 0, ())):
            return 0
        badness = STATUSES.index(one.verdict.status)
        return min(badness, 0.5) if one.event.get("xid") == xids.RECOVERY_CHANGED else badness

    cause = max(told, key=rank)
    requests = [one for one in map(recovery_of, (one.event for one in told)) if one is not None]
    asked = requests[-1] if requests else NO_RECOVERY
    if asked.status == FAIL and cause.event.get("xid") != xids.RECOVERY_CHANGED:
        # The driver's request precedes the catalogue's general advice.
        cause = cause._replace(verdict=Verdict(*asked))
    # A reloaded driver clears what a reset clears, of a switch always. Its request counts except
    # for a GPU that needs replacement.
    last, action = told[-1].event["usec"], cause.verdict.action
    kept = ("replace_part",) if cause.event["kind"] == "sxid" else ("replace_part", "reboot_node")
    recovered = (last <= ends.word and action != "replace_part") or (
        last <= ends.load and action not in kept
    )
    forgotten = ends.uncounted and cause.event.get("xid") in xids.COUNTED
    if not recovered and action == "reset_gpu" and (last < ends.anew or forgotten):
        cause = cause._replace(verdict=xids.INITIALISED)
    return _Burst(cause, told, recovered)


def _judge_device(
    bursts: List[_Burst], subject: Subject, uptime: Optional[float], switch: bool
) -> List[Finding]:
    """One finding for active errors with the worst first, one for cleared errors, and one for
    errors of applications.
    """
    live = sorted(
        (burst for burst in bursts if not burst.recovered and burst.cause.verdict.status != PASS),
        key=_badness,
    )
    over = [burst for burst in bursts if burst.recovered and burst.cause.verdict.status != PASS]
    # The driver's message that no recovery is needed is not an error.
    harmless = [
        burst
        for burst in bursts
        if burst.cause.verdict.status == PASS
        and any(recovery_of(told.event) != NO_RECOVERY for told in burst.told)
    ]
    findings = []
    if live:
        worst = live[0].cause
        off = worst.event["kind"] == "off_bus" or worst.event.get("xid") == xids.OFF_THE_BUS
        code = (
            "nvswitch_error"
            if switch
            else "xid_off_the_bus"
            if off
            else "xid_error"
            if worst.verdict.status == FAIL
            else "xid_warning"
        )
        message = f"{worst.what}{_times(live, worst, uptime)}; {worst.verdict.next}"
        others = sorted({burst.cause.what for burst in live} - {worst.what})
        message += f"; also {', '.join(others[:3])}" if others else ""
        findings.append(
            Finding(
                code, worst.verdict.status, message, worst.verdict.action, subject, _evidence(live)
            )
        )
    if over:
        words = ", ".join(sorted({burst.cause.what for burst in over})[:4])
        message = f"{words}; the driver was loaded anew since, or requested no recovery"
        findings.append(Finding("xid_recovered", PASS, message, "none", subject, _evidence(over)))
    if harmless:
        words = ", ".join(sorted({told.what for burst in harmless for told in burst.told})[:4])
        message = f"{words}, usually an error of an application"
        findings.append(
            Finding("xid_harmless", PASS, message, "none", subject, _evidence(harmless))
        )
    return findings


def _badness(burst: _Burst) -> Tuple[int, float]:
    return (-STATUSES.index(burst.cause.verdict.status), -burst.cause.event["usec"])


def _times(bursts: List[_Burst], worst: _Told, uptime: Optional[float]) -> str:
    """The number of times that this was the cause, and the age of the last one."""
    same = [burst.cause.event for burst in bursts if burst.cause.what == worst.what]
    often = f" {len(same)} times" if len(same) > 1 else ""
    ago = None if uptime is None else uptime - max(event["usec"] for event in same) / 1e6
    return often + (
        f"{', last' if often else ''} {_duration(ago)} ago" if ago is not None and ago >= 0 else ""
    )


def _duration(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _evidence(bursts: List[_Burst]) -> Dict[str, Any]:
    """The causes with what came with each; the newest eight bursts."""
    return {
        "bursts": [
            {
                "cause": _short(burst.cause.event),
                "with": [
                    _short(told.event) for told in burst.told if told.event is not burst.cause.event
                ][:12],
            }
            for burst in sorted(bursts, key=lambda one: one.cause.event["usec"])[-8:]
        ]
    }


def _short(event: LoggedEvent) -> Dict[str, Any]:
    return {
        key: event.get(key)
        for key in ("seq", "usec", "xid", "sxid", "mig", "pid", "process", "text")
        if event.get(key) is not None
    }


def _judge_applications(devices: Dict[Subject, List[_Burst]], gpus: int) -> List[Finding]:
    """A GPU on which many applications failed, and no other GPU did that."""
    failed = {}
    for subject, bursts in devices.items():
        causes = [
            burst.cause.event.get("pid")
            for burst in bursts
            if burst.cause.verdict == xids.APPLICATION
        ]
        pids = {pid for pid in causes if pid is not None}
        if pids:
            failed[subject] = pids
    often = [subject for subject, pids in failed.items() if len(pids) >= MANY_PROCESSES]
    if gpus < 2 or len(failed) != 1 or not often:
        return []
    count = len(failed[often[0]])
    message = (
        f"{count} processes failed on it with errors that applications usually cause, and "
        f"none on the other {gpus - 1} GPUs"
    )
    return [
        Finding(
            "many_application_errors",
            WARN,
            message,
            "watch",
            often[0],
            {"processes": sorted(failed[often[0]])[:32]},
        )
    ]


def _judge_aer(
    aer: List[AerReading],
    subjects: Dict[Optional[str], Subject],
    since: Optional[float],
    uptime: Optional[float],
) -> List[Finding]:
    """PCIe errors that a GPU itself reported; those of the bridges above it are read by the check
    of its link. Corrected ones were corrected.
    """
    findings = []
    for one in aer:
        when, subject = one.get("usec"), subjects.get(normalise_pci(str(one.get("pci"))))
        old = (
            since is not None
            and uptime is not None
            and when is not None
            and uptime - when / 1e6 > since
        )
        if subject is None or old or one.get("severity") not in ("fatal", "nonfatal"):
            continue
        words = "fatal" if one["severity"] == "fatal" else "uncorrected"
        message = f"{one.get('count')} {words} PCIe errors in the kernel log"
        findings.append(Finding("pcie_error_logged", WARN, message, "watch", subject, {"aer": one}))
    return findings


def _judge_log(log: LogReading, dropped: Optional[int], uptime: Optional[float]) -> List[Finding]:
    if not log.get("overwritten"):
        return []
    first = log.get("first_usec")
    reach = "has lost its oldest messages"
    if uptime and first is not None:
        reach = (
            f"reaches back {_duration(uptime - first / 1e6)} of the {_duration(uptime)} since boot"
        )
    message = f"the kernel log {reach}; earlier errors are unknown"
    return [
        Finding("kernel_log_overwritten", PASS, message, "none", NODE, dict(log, dropped=dropped))
    ]


def _summary(
    devices: Dict[Tuple[bool, str], List[_Burst]], uptime: Optional[float], since: Optional[float]
) -> str:
    """One line for a node without errors that count."""
    period = (
        f"in the last {_duration(since)}"
        if since is not None
        else f"since boot ({_duration(uptime)} ago)"
        if uptime is not None
        else "since boot"
    )
    past = sum(len(bursts) for bursts in devices.values())
    return (
        f"no active error of a GPU or switch {period} ({past} cleared)"
        if past
        else f"no error of a GPU or switch {period}"
    )


def _measured(
    by_device: Dict[Tuple[bool, str], List[LoggedEvent]], subjects: Dict[Optional[str], Subject]
) -> List[Measurement]:
    counts: Dict[Tuple[str, str], int] = {}
    for (switch, pci), events in by_device.items():
        index = subjects[pci].index if pci in subjects else None
        for event in events:
            if not switch and index is not None:
                key = (
                    str(index),
                    str(xids.OFF_THE_BUS if event["kind"] == "off_bus" else event["xid"]),
                )
                counts[key] = counts.get(key, 0) + 1
    return [
        Measurement("xid_errors", count, "events", {"gpu": gpu, "xid": xid})
        for (gpu, xid), count in sorted(counts.items())
    ]


NAME = "xid_errors"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Errors of GPUs and switches that the driver logged since boot, and how to recover.",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=XidReadings,
    options={"since": {"type": "float"}},
    metrics=(
        CheckMetric(
            "xid_errors",
            "events",
            "autopilot_xid_errors",
            "Errors of the GPU that the driver logged since boot, cleared errors included.",
            ("gpu", "xid"),
        ),
    ),
    status_text=StatusText("[[ XID ERRORS ]]", "XID ERRORS", "Xids in the kernel's log"),
    findings={
        "xid_off_the_bus": FindingText(
            "The driver lost the GPU: it fell off the PCI bus (Xid 79).",
            "If the GPU is missing after the reboot, power-cycle the node, reseat the GPU, then "
            "replace it.",
        ),
        "xid_error": FindingText(
            "The driver logged an error (Xid) after which the GPU must not be used until it has "
            "been dealt with.",
            "Look up the number in NVIDIA's Xid catalogue. The evidence contains the cause and "
            "the errors that followed.",
        ),
        "xid_warning": FindingText(
            "The driver logged an error (Xid) that does not disable the GPU.",
            "Look up the number in NVIDIA's Xid catalogue when the node is free.",
        ),
        "xid_harmless": FindingText(
            "The driver logged errors of applications, or information.",
            "No action is needed for the GPU. Check the application.",
        ),
        "xid_recovered": FindingText(
            "The driver logged an error that a reset or a reload of the driver has cleared since.",
            "No action is needed unless the error returns.",
        ),
        "many_application_errors": FindingText(
            "Several processes failed on this GPU, and on no other GPU, with errors that "
            "applications usually cause.",
            "Run the same application on another GPU. If it fails only on this GPU, run NVIDIA's "
            "field diagnostic.",
        ),
        "nvswitch_error": FindingText(
            "The driver logged an error of an NVSwitch (SXid).",
            "Reset all GPUs and switches together, or reboot the node. The fabric manager's log "
            "names the link.",
        ),
        "pcie_error_logged": FindingText(
            "The kernel logged uncorrected PCIe errors of the GPU.",
            "Check the GPU's link, seat and riser. Other findings show whether the link is "
            "degraded.",
        ),
        "kernel_log_not_read": FindingText(
            "The kernel log could not be read, so errors in it would be missed.",
            "Run the checks as root (`-e preflight_become=true`), or give the container the "
            "host's /dev/kmsg. Then run the check again.",
        ),
        "kernel_log_overwritten": FindingText(
            "The kernel dropped the oldest messages of this boot, so earlier errors are unknown.",
            "No action is needed. A larger buffer (`log_buf_len`) keeps more messages.",
        ),
    },
)
