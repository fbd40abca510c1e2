# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does each GPU's link to the host carry what a link of its class should, both ways, without changing the data?

The copy engines decide; our copy kernel's figures are evidence. The class is that of the link's maximum, never of the
link as it is, so that a link that trained too slow is not measured against itself.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .. import gate, pcie_link
from ..bounded import Child, wait
from ..check import Check, Options, Probe, Readings
from ..knowledge.links import GB, WRONG_NODE, expected_bandwidth, over_pcie
from ..model import FAIL, LIGHT, PASS, UNKNOWN, WARN, CheckResult, Expectation, Finding, Measurement, NODE, Subject, concluded, gpu_subject, worst
from ._driver import NOT_READ, driver_finding, judge_gpus, listed_gpus, mishap_findings

NAME = "pcie_bandwidth"
DIRECTIONS = ("host_to_device", "device_to_host")

#: Below these parts of the median of the node's GPUs of the same model and link class a GPU is slow, and broken. Our own figures: healthy GPUs of
#: one node lie within 3 % (nvbandwidth issue 24 and its README); half the lanes or one generation lost is 0.5.
PEER_WARN, PEER_FAIL = 0.9, 0.8
#: A median of fewer GPUs cannot tell which of them is the odd one.
ENOUGH_PEERS = 3

#: Seconds one GPU may take at most; a healthy one takes less than one, its driver's start included.
_GPU_SECONDS = 20.0
#: Seconds left for each GPU that has not had its turn, whatever the one before it does.
_RESERVED = 4.0
#: Seconds between SIGTERM and SIGKILL, for ending a child that hangs in all, and for the look at the GPUs after the measurement.
_GRACE, _STOP_SECONDS, _LOOK_SECONDS = 0.5, 1.5, 2.0
_LINK_SAMPLES = 10

_HIDDEN = "is not shown by CUDA though NVML lists it; look at device nodes and container permissions"
#: Kind of CUDA error -> code, status, action, message. Meanings: CUDA driver API reference, CUresult. Only what is
#: beyond doubt the node's or the GPU's own defect fails; who may not use a GPU, or finds it full, has learnt nothing about it.
_CUDA_ERRORS: Dict[str, Tuple[str, str, str, str]] = {
    "out_of_memory": ("out_of_memory", UNKNOWN, "watch", "has no memory left for the copies; something holds it"),
    "devices_unavailable": ("gpu_unavailable", UNKNOWN, "fix_configuration", "may not be used: taken in exclusive mode, or its compute mode is prohibited"),
    "no_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "invalid_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "ecc_uncorrectable": ("ecc_uncorrectable", FAIL, "reset_gpu", "met an uncorrectable memory error while copying"),
    "not_permitted": ("no_permission", UNKNOWN, "fix_configuration", "may not be used by this user; run with become"),
    "operating_system": ("cuda_not_started", UNKNOWN, "fix_configuration", "could not be opened by CUDA; look at device nodes and permissions"),
    "system_not_ready": ("fabric_not_ready", FAIL, "fix_configuration",
                         "no CUDA program can start, the NVSwitch fabric is not ready; look at nv-fabricmanager"),
    "driver_mismatch": ("driver_version_mismatch", FAIL, "reboot_node", "libcuda and the kernel module differ in version; reboot or reload the module"),
    "library_missing": ("cuda_library_missing", UNKNOWN, "fix_configuration", "libcuda.so.1 was not found; a driver without its compute part is installed"),
    "stub_library": ("cuda_library_missing", UNKNOWN, "fix_configuration", "libcuda.so.1 is the toolkit's stub, not the driver's library"),
}
#: Why a driver may not take our kernel, which says nothing about the GPU. Any other error of the kernel is one of a GPU that ran it.
_KERNEL_NOT_LOADED = (
    "out_of_memory", "invalid_image", "no_binary_for_gpu", "invalid_ptx", "jit_compiler_missing", "unsupported_ptx", "jit_disabled", "not_found",
    "not_supported", "function_missing",
)
#: Kinds that are about the node: said once.
_NODE_KINDS = ("system_not_ready", "driver_mismatch", "library_missing", "stub_library")


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(probe: Probe) -> Readings:
    """``gpus``, each with ``link``, ``numa``, ``transfers``, ``verified`` (see `transfers.one`) or with what kept it from being measured
    (``withheld``, ``hung``, ``crashed``, ``cuda_error``); ``gate`` and ``after`` (see `gate.look`); ``concurrent`` when asked for."""
    began = time.monotonic()
    until = began + probe.seconds - _LOOK_SECONDS
    nvml = probe.nvml()
    gpus = [dict(gpu, error=gpu.get("error", NOT_READ)) for gpu in nvml.gpus]
    readings: Readings = {"driver_version": nvml.driver_version, "gpus": gpus}
    probe.keep(readings)
    with gate.lock(probe.host) as locked_by:
        readings["gate"] = gate.look(probe, locked_by)
        free = nvml.gpus if probe.options.get("force") else gate.free(nvml.gpus, gate.judge(readings["gate"]))
        for position, gpu in enumerate(nvml.gpus):
            probe.keep(readings)
            if "error" in gpu:
                continue
            if gpu not in free:
                gpus[position] = dict(gpu, withheld=True)
                continue
            left = len([other for other in nvml.gpus[position:] if other in free])
            remaining = until - time.monotonic()
            seconds = min(_GPU_SECONDS, max(remaining / left, remaining - _RESERVED * (left - 1))) - _STOP_SECONDS
            if seconds > 0:
                gpus[position] = dict(gpu, **_measure_one(probe, nvml, gpu, seconds))
        if probe.options.get("concurrent"):
            probe.keep(readings)
            readings["concurrent"] = _measure_together(probe, [gpu for gpu in gpus if "transfers" in gpu and _whole(gpu)], until)
        probe.keep(readings)
        readings["after"] = gate.look(probe, times=1)
    return readings


def _whole(gpu: Dict[str, Any]) -> bool:
    return not any(key in gpu for key in ("error", "hung", "crashed", "cuda_error"))


def _measure_one(probe: Probe, nvml: Any, gpu: Dict[str, Any], seconds: float) -> Readings:
    """What a child finds out about a GPU within its time, while this process watches the link."""
    from .. import transfers

    link = pcie_link.limits(probe, nvml, gpu)
    probe.stage(f"measuring GPU {gpu['index']}")
    until = time.monotonic() + seconds
    child = Child(lambda report: transfers.one(report, probe.host, gpu), seconds + _GRACE)
    try:
        looks = 0
        while not wait([child], min(until, time.monotonic() + 0.01)) and time.monotonic() < until:
            phase = child.values.get("phase")
            if phase and looks < _LINK_SAMPLES:
                seen = pcie_link.now(probe, nvml, gpu)
                wait([child], time.monotonic() + 0.001)
                if child.values.get("phase") == phase:
                    looks += 1
                    link.update({key: max(value, link.get(key) or 0) for key, value in seen.items() if value is not None}, looks=looks)
    finally:
        child.stop(_GRACE)
    found: Readings = {key: child.values[key] for key in ("numa", "transfers", "verified", "kernel_error", "cuda_error") if key in child.values}
    return dict(found, link=dict(link, replays=pcie_link.replays(nvml, gpu, link)), **child.mishap())


def _measure_together(probe: Probe, gpus: List[Dict[str, Any]], until: float) -> Readings:
    from .. import transfers

    seconds = min(_GPU_SECONDS, until - time.monotonic()) - _STOP_SECONDS
    if len(gpus) < 2 or seconds <= 0:
        return {"too_few": len(gpus)} if len(gpus) < 2 else {"no_time": True}
    probe.stage("measuring all GPUs at once")
    child = Child(lambda report: transfers.together(report, probe.host, gpus), seconds + _GRACE)
    try:
        wait([child], time.monotonic() + seconds)
    finally:
        child.stop(_GRACE)
    return dict({key: child.values[key] for key in ("together", "errors") if key in child.values}, **child.mishap())


# --- judging (pure) --------------------------------------------------------------------------------------------------


def judge(readings: Readings, options: Options) -> CheckResult:
    readings = readings if isinstance(readings, dict) else {}
    gpus = listed_gpus(readings)
    forced = options.get("force") is True
    held = gate.judge(readings.get("gate"))
    meanwhile = gate.disturbed(readings.get("gate"), readings.get("after"))
    unreadable = [gpu_subject(gpu) for gpu in gpus if gpu.get("error")]
    findings = meanwhile + ([] if forced else [one for one in held if one.subject not in unreadable])
    findings += _node_findings(gpus)
    doubts = (held if forced else []) + meanwhile
    rates = {number: _rates(gpu) for number, gpu in enumerate(gpus)}
    numbered = [dict(gpu, number=number) for number, gpu in enumerate(gpus)]
    explained = [one.subject for one in held]

    def judge_gpu(gpu: Dict[str, Any], subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        if gpu.get("withheld") and not forced and (NODE in explained or subject in explained):
            return [], []
        doubt = next((one for one in doubts if one.subject in (NODE, subject)), None)
        found = _mishap_findings(gpu, subject) + _data_findings(gpu, subject)
        slow = _bandwidth_findings(gpu, subject, rates, numbered, options)
        found += [_doubted(one, doubt) for one in slow] + _link_findings(gpu, subject, worst([one.status for one in slow]))
        told = _dict(gpu.get("cuda_error")).get("kind") in _NODE_KINDS or worst([one.status for one in found]) in (UNKNOWN, FAIL)
        if not told and not all(rates[gpu["number"]].values()):
            found.append(Finding("not_measured", UNKNOWN, "was not measured", "watch", subject))
        return found, _measurements(gpu, rates[gpu["number"]])

    result = judge_gpus(NAME, dict(readings, gpus=numbered), judge_gpu, lambda _gpus: "", findings)
    together_findings, together_measurements = _judge_together(readings.get("concurrent"), gpus)
    lost = _lost_meanwhile(gpus, readings.get("after"))
    return concluded(NAME, result.findings + lost + together_findings, _healthy(rates), result.measurements + together_measurements)


def _node_findings(gpus: List[Dict[str, Any]]) -> List[Finding]:
    errors = {error["kind"]: error for error in (_dict(gpu.get("cuda_error")) for gpu in gpus) if error.get("kind") in _NODE_KINDS}
    return [_cuda_finding(error, NODE) for error in errors.values()]


def _cuda_finding(error: Dict[str, Any], subject: Subject) -> Finding:
    words = f"{error.get('call')} answered {error.get('kind')}" + (f" ({error.get('code')})" if error.get("code") is not None else "")
    code, status, action, message = _CUDA_ERRORS.get(str(error.get("kind")), ("cuda_error", UNKNOWN, "watch", "the CUDA driver gave an error"))
    return Finding(code, status, f"{message} ({words})", action, subject, dict(error))


def _mishap_findings(gpu: Dict[str, Any], subject: Subject) -> List[Finding]:
    """What kept a GPU from being measured, whole or in part."""
    found = mishap_findings(gpu, subject)
    error, kernel = (_dict(gpu.get(key)) for key in ("cuda_error", "kernel_error"))
    if error and error.get("kind") not in _NODE_KINDS:
        found.append(_cuda_finding(error, subject))
    if kernel.get("kind") in _KERNEL_NOT_LOADED:
        words = f"our copy kernel did not run: {kernel.get('call')} answered {kernel.get('kind')} ({kernel.get('code')}); the copy engines decide"
        found.append(Finding("kernel_not_run", PASS, words, "none", subject, kernel))
    elif kernel:
        found.append(_cuda_finding(kernel, subject))
    return found


def _data_findings(gpu: Dict[str, Any], subject: Subject) -> List[Finding]:
    # What does not tell how many blocks are wrong is no comparison.
    verified = {method: value for method, value in _dict(gpu.get("verified")).items() if _count(_dict(value).get("wrong_blocks"), least=0) is not None}
    wrong = {method: value for method, value in verified.items() if value["wrong_blocks"]}
    if wrong:
        method, first = next(iter(wrong.items()))
        where = f"copied by {' and '.join(str(name).replace('_', ' ') for name in wrong)}, first wrong byte {first.get('first_wrong')} of {first.get('size')}"
        return [Finding("data_corrupted", FAIL, f"data came back changed ({where})", "drain_node", subject, {"verified": verified})]
    if _dict(gpu.get("transfers")) and "copy_engine" not in verified and _whole(gpu):
        return [Finding("not_verified", UNKNOWN, "the copied data was not compared", "watch", subject)]
    return []


def _link_findings(gpu: Dict[str, Any], subject: Subject, bandwidth: str) -> List[Finding]:
    """The link as it is against the most that GPU and slot can do. A link that carries what its class should is only worth a look."""
    link = _dict(gpu.get("link"))
    if not over_pcie(gpu.get("name")):
        return []
    found = []
    generation, width = _count(link.get("max_generation")), _count(link.get("max_width"))
    status = WARN if bandwidth == PASS and all(_rates(gpu).values()) else FAIL
    action = "drain_node" if status == FAIL else "watch"
    # Lanes do not go to sleep before PCIe 6.0, so that a narrow link at rest is narrow; the speed does on every link.
    actual_width = _count(link.get("width")) or (_count(link.get("idle_width")) if generation and generation < 6 else None)
    actual_generation = _count(link.get("generation"))
    if width and actual_width and actual_width < width:
        found.append(Finding("link_width", status, f"link is up at x{actual_width} instead of x{width}; reseat the card", action, subject, link))
    if generation and actual_generation and actual_generation < generation:
        words = f"link runs at PCIe {actual_generation}.0 instead of {generation}.0 under load; reseat the card"
        found.append(Finding("link_speed", status, words, action, subject, link))
    capable = _count(link.get("gpu_max_generation"))
    if generation and capable and capable > generation:
        found.append(Finding("link_limited_by_slot", PASS, f"the GPU could do PCIe {capable}.0, the slot allows {generation}.0", "none", subject, link))
    return found


def _bandwidth_findings(
    gpu: Dict[str, Any], subject: Subject, rates: Dict[int, Dict[str, Optional[float]]], gpus: List[Dict[str, Any]], options: Options,
) -> List[Finding]:
    """Each direction by the copy engine against the operator's minimum or the table, and against the node's GPUs of the same kind."""
    link = _dict(gpu.get("link"))
    minimum = _positive(options.get("minimum"))
    row = None if minimum else expected_bandwidth(_count(link.get("max_generation")), _count(link.get("max_width")), gpu.get("name"))
    peers = [rates[other["number"]] for other in gpus if _kind(other) == _kind(gpu) and all(rates[other["number"]].values())]
    local = _is_local(gpu)
    found = []
    for direction in DIRECTIONS:
        value = rates[gpu["number"]][direction]
        if value is None:
            continue
        words = f"{direction.replace('_', ' ')} {value / GB:.3g} GB/s"
        verdicts = []
        if minimum and value < minimum * GB:
            expected = Expectation(minimum * GB, "bytes/s", "override", "minimum")
            verdicts.append((FAIL, f"{words}, expected at least {minimum:.3g} ({expected})", expected))
        if row and value < row.warn:
            expected = Expectation(row.fail if value < row.fail else row.warn, "bytes/s", "table", row.detail)
            status = WARN if value >= row.fail or (not local and value >= WRONG_NODE * row.fail) else FAIL
            verdicts.append((status, f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})", expected))
        if len(peers) >= ENOUGH_PEERS:
            median = _middle(float(peer[direction] or 0) for peer in peers)
            if value < PEER_WARN * median:
                part = PEER_FAIL if value < PEER_FAIL * median else PEER_WARN
                expected = Expectation(part * median, "bytes/s", "fleet", f"{part} of the median of {len(peers)} of its kind in this node")
                # Peers say that a GPU is odd; against what its operator asks for, or from another socket, that is no proof of a defect.
                status = FAIL if part == PEER_FAIL and local and not minimum else WARN
                verdicts.append((status, f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})", expected))
        if verdicts:
            status, message, expected = next((one for one in verdicts if one[0] == FAIL), verdicts[0])
            message += "" if local or status == FAIL else ", measured from another NUMA node than the GPU's"
            evidence = dict(measured=value, expected=expected.to_dict(), transfers=_dict(gpu.get("transfers")).get(direction), link=link, numa=gpu.get("numa"))
            found.append(Finding("low_bandwidth", status, message, "drain_node" if status == FAIL else "watch", subject, evidence))
        elif not minimum and row is None:
            found.append(_without_row(subject, words, len(peers)))
    return found


def _without_row(subject: Subject, words: str, peers: int) -> Finding:
    """A figure that nothing is known about is no pass, unless enough GPUs of its kind say the same."""
    if peers >= ENOUGH_PEERS:
        return Finding("no_expectation", PASS, f"{words}, like the {peers} of its kind in this node; no figure is known for this link", "none", subject)
    return Finding("no_expectation", UNKNOWN, f"{words}, but what this link should carry is not known; set the option minimum", "fix_configuration", subject)


def _doubted(finding: Finding, doubt: Optional[Finding]) -> Finding:
    """A slow GPU that someone else was using is not shown to be slow."""
    if doubt is None or finding.status not in (WARN, FAIL):
        return finding
    return Finding(finding.code, UNKNOWN, f"{finding.message}, but it was not idle: {doubt.message}", "watch", finding.subject, finding.evidence)


def _lost_meanwhile(gpus: List[Dict[str, Any]], after: Any) -> List[Finding]:
    """GPUs that answered before the measurement and do not after it."""
    looks = _dict(after).get("looks")
    seen = _dict(looks[-1]).get("gpus") if isinstance(looks, list) and looks else None
    answered = [gpu.get("index") for gpu in gpus if not gpu.get("error")]
    gone = [gpu for gpu in (seen if isinstance(seen, list) else []) if _dict(_dict(gpu).get("error")) and gpu.get("index") in answered]
    return [driver_finding(gpu["error"], gpu_subject(gpu)) for gpu in gone]


def _judge_together(readings: Any, gpus: List[Dict[str, Any]]) -> Tuple[List[Finding], List[Measurement]]:
    """All GPUs at once show what they share: a switch's uplink, the memory channels. No table knows a node's wiring, so a GPU is compared with the
    node's others of its kind only, and at worst that is a warning."""
    if readings is None:
        return [], []
    readings = _dict(readings)
    if "too_few" in readings:
        return [], []
    found = [Finding(one.code, one.status, f"all at once: {one.message}", one.action, NODE, one.evidence) for one in _mishap_findings(readings, NODE)]
    errors = _dict(readings.get("errors"))
    together = _dict(readings.get("together"))
    rates = [dict({direction: _median(_dict(_dict(together.get(str(gpu.get("index")))).get(direction))) for direction in DIRECTIONS}) for gpu in gpus]
    measured = []
    for gpu, own in zip(gpus, rates):
        subject = gpu_subject(gpu)
        if _dict(errors.get(str(gpu.get("index")))):
            found.append(_cuda_finding(_dict(errors[str(gpu.get("index"))]), subject))
        for direction, value in own.items():
            if value is None:
                continue
            labels = {"gpu": str(gpu.get("index")), "direction": direction, "method": "copy_engine"}
            measured.append(Measurement("pcie_bandwidth_concurrent", round(value), "bytes/s", labels))
            peers = [other[direction] for other, its in zip(rates, gpus) if _kind(its) == _kind(gpu) and other[direction] is not None]
            median = _middle(float(peer or 0) for peer in peers)
            if len(peers) >= ENOUGH_PEERS and value < PEER_FAIL * median:
                words = f"all at once: {direction.replace('_', ' ')} {value / GB:.3g} GB/s, less than {PEER_FAIL} of the median of {len(peers)} of its kind"
                message = f"{words}, {median / GB:.3g} GB/s"
                found.append(Finding("low_concurrent_bandwidth", WARN, message, "watch", subject, {"measured": value, "median": median}))
    if not found and not measured:
        found.append(Finding("not_measured_together", UNKNOWN, "the GPUs were not measured all at once", "watch"))
    return found, measured


def _measurements(gpu: Dict[str, Any], rates: Dict[str, Optional[float]]) -> List[Measurement]:
    measured = []
    for direction in DIRECTIONS:
        for method in ("copy_engine", "kernel"):
            value = rates[direction] if method == "copy_engine" else _median(_dict(_dict(_dict(gpu.get("transfers")).get(direction)).get(method)))
            if value is not None:
                measured.append(Measurement(NAME, round(value), "bytes/s", {"gpu": str(gpu.get("index")), "direction": direction, "method": method}))
    return measured


def _healthy(rates: Dict[int, Dict[str, Optional[float]]]) -> str:
    values = [value for one in rates.values() for value in one.values() if value is not None]
    return f"{min(values) / GB:.1f} to {max(values) / GB:.1f} GB/s both ways" if values else ""


def _rates(gpu: Dict[str, Any]) -> Dict[str, Optional[float]]:
    """Bytes/s by direction: the median of the copy engine's samples, None where it was not measured."""
    transfers = _dict(gpu.get("transfers"))
    return {direction: _median(_dict(_dict(transfers.get(direction)).get("copy_engine"))) for direction in DIRECTIONS}


def _median(transfer: Dict[str, Any]) -> Optional[float]:
    samples = transfer.get("samples")
    values: Iterable[Optional[float]] = [_positive(sample) for sample in samples] if isinstance(samples, list) else []
    numbers = [value for value in values if value is not None]
    return _middle(numbers) if numbers else None


def _middle(numbers: Iterable[float]) -> float:
    """The median. The module statistics costs more to load than the passive checks take."""
    ranked = sorted(numbers)
    return (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


def _kind(gpu: Dict[str, Any]) -> Tuple[Any, ...]:
    link = _dict(gpu.get("link"))
    return (str(gpu.get("name")), _count(link.get("max_generation")), _count(link.get("max_width")))


def _is_local(gpu: Dict[str, Any]) -> bool:
    """Whether the copies came from next to the GPU, as far as can be told. On a host that does not tell where its GPUs are, they did."""
    numa = _dict(gpu.get("numa"))
    return numa.get("node") is None or bool(_count(numa.get("cpus"))) or numa.get("memory") is not None


def _dict(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any, least: int = 1) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None


def _positive(value: Any) -> Optional[float]:
    """A number greater than zero that arithmetic can be done with."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18 else None


def deadline(options: Options, gpus: int) -> float:
    """Seconds: the busy gate, and time enough for a GPU that hangs to be given up and the others to be measured."""
    return 30.0 + 8.0 * gpus + (_GPU_SECONDS if options.get("concurrent") else 0.0)


CHECK = Check(
    name=NAME, purpose="does each GPU's link to the host carry what its class should", intrusion=LIGHT, measure=measure, judge=judge,
    deadline=deadline, grace=2.0,
    options={
        "minimum": {"type": "float"},
        "concurrent": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
    },
)
