# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does each GPU's link to the host carry what a link of its class should, both ways, without
changing the data?

The copy engines decide; our copy kernel's figures are evidence. The class is that of the link's
maximum, never of the link as it is, so that a link that trained too slow is not measured against
itself.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..devices import pcie_state
from ..system.bounded import Child, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import AGAIN, DIAGNOSTIC, FindingText, IF_FAIL
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.links import GB, WRONG_NODE, expected_bandwidth, over_pcie
from ...model import (
    FAIL,
    LIGHT,
    PASS,
    UNKNOWN,
    WARN,
    CheckResult,
    Expectation,
    Finding,
    Measurement,
    NODE,
    Subject,
    concluded,
    gpu_subject,
    worst,
)
from ...lenient import mapping, positive, whole_number
from ..framework.cuda_findings import (
    ENOUGH_PEERS,
    GPU_SECONDS,
    GRACE,
    KERNEL_NOT_LOADED,
    NODE_KINDS,
    PEER_FAIL,
    PEER_WARN,
    STOP_SECONDS,
    Gate,
    cuda_finding,
    doubted,
    in_turn,
    lost_meanwhile,
    middle,
    node_findings,
    whole,
)
from ..framework.driver_findings import judge_gpus, listed_gpus, mishap_findings

NAME = "pcie_bandwidth"
DIRECTIONS = ("host_to_device", "device_to_host")

_LINK_SAMPLES = 10


# --- measuring ---


def measure(probe: Probe) -> Readings:
    """``gpus``, each with ``link``, ``numa``, ``transfers``, ``verified`` (see `transfers.one`) or
    with what kept it from being measured (``withheld``, ``hung``, ``crashed``, ``cuda_error``);
    ``gate`` and ``after`` (see `gate.look`); ``concurrent`` when asked for.
    """

    def together(readings: Readings, until: float) -> None:
        if probe.options.get("concurrent"):
            probe.keep(readings)
            readings["concurrent"] = _measure_together(
                probe, [gpu for gpu in readings["gpus"] if "transfers" in gpu and whole(gpu)], until
            )

    return in_turn(
        probe, lambda nvml, gpu, seconds: _measure_one(probe, nvml, gpu, seconds), together
    )


def _measure_one(probe: Probe, nvml: Any, gpu: Dict[str, Any], seconds: float) -> Readings:
    """What a child finds out about a GPU within its time, while this process watches the link."""
    from ..devices import host_copies as transfers

    link = pcie_state.limits(probe.host, nvml, gpu)
    probe.stage(f"measuring GPU {gpu['index']}")
    until = time.monotonic() + seconds
    child = Child(lambda report: transfers.one(report, probe.host, gpu), seconds + GRACE)
    try:
        looks = 0
        while not wait([child], min(until, time.monotonic() + 0.01)) and time.monotonic() < until:
            phase = child.values.get("phase")
            if phase and looks < _LINK_SAMPLES:
                seen = pcie_state.now(probe.host, nvml, gpu)
                wait([child], time.monotonic() + 0.001)
                if child.values.get("phase") == phase:
                    looks += 1
                    link.update(
                        {
                            key: max(value, link.get(key) or 0)
                            for key, value in seen.items()
                            if value is not None
                        },
                        looks=looks,
                    )
    finally:
        child.stop(GRACE)
    found: Readings = {
        key: child.values[key]
        for key in ("numa", "transfers", "verified", "kernel_error", "cuda_error")
        if key in child.values
    }
    return dict(
        found, link=dict(link, replays=pcie_state.replays(nvml, gpu, link)), **child.mishap()
    )


def _measure_together(probe: Probe, gpus: List[Dict[str, Any]], until: float) -> Readings:
    from ..devices import host_copies as transfers

    seconds = min(GPU_SECONDS, until - time.monotonic()) - STOP_SECONDS
    if len(gpus) < 2 or seconds <= 0:
        return {"too_few": len(gpus)} if len(gpus) < 2 else {"no_time": True}
    probe.stage("measuring all GPUs at once")
    child = Child(lambda report: transfers.together(report, probe.host, gpus), seconds + GRACE)
    try:
        wait([child], time.monotonic() + seconds)
    finally:
        child.stop(GRACE)
    return dict(
        {key: child.values[key] for key in ("together", "errors") if key in child.values},
        **child.mishap(),
    )


# --- judging (pure) ---


def judge(readings: Readings, options: Options) -> CheckResult:
    readings = readings if isinstance(readings, dict) else {}
    gpus = listed_gpus(readings)
    gates = Gate(readings, gpus, options.get("force") is True)
    findings = gates.findings + node_findings(gpus)
    rates = {number: _rates(gpu) for number, gpu in enumerate(gpus)}
    numbered = [dict(gpu, number=number) for number, gpu in enumerate(gpus)]

    def judge_gpu(gpu: Dict[str, Any], subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        if gates.explains(gpu, subject):
            return [], []
        doubt = gates.doubt(subject)
        found = _mishap_findings(gpu, subject) + _data_findings(gpu, subject)
        slow = _bandwidth_findings(gpu, subject, rates, numbered, options)
        found += [doubted(one, doubt) for one in slow] + _link_findings(
            gpu, subject, worst([one.status for one in slow])
        )
        told = mapping(gpu.get("cuda_error")).get("kind") in NODE_KINDS or worst(
            [one.status for one in found]
        ) in (UNKNOWN, FAIL)
        if not told and not all(rates[gpu["number"]].values()):
            found.append(Finding("not_measured", UNKNOWN, "was not measured", "watch", subject))
        return found, _measurements(gpu, rates[gpu["number"]])

    result = judge_gpus(NAME, numbered, judge_gpu, lambda _gpus: "", findings)
    together_findings, together_measurements = _judge_together(readings.get("concurrent"), gpus)
    lost = lost_meanwhile(gpus, readings.get("after"))
    return concluded(
        NAME,
        result.findings + lost + together_findings,
        _healthy(rates),
        result.measurements + together_measurements,
    )


def _mishap_findings(gpu: Dict[str, Any], subject: Subject) -> List[Finding]:
    """What kept a GPU from being measured, whole or in part."""
    found = mishap_findings(gpu, subject)
    error, kernel = (mapping(gpu.get(key)) for key in ("cuda_error", "kernel_error"))
    if error and error.get("kind") not in NODE_KINDS:
        found.append(cuda_finding(error, subject))
    if kernel.get("kind") in KERNEL_NOT_LOADED:
        words = (
            f"our copy kernel did not run: {kernel.get('call')} answered "
            f"{kernel.get('kind')} ({kernel.get('code')}); the copy engines decide"
        )
        found.append(Finding("kernel_not_run", PASS, words, "none", subject, kernel))
    elif kernel:
        found.append(cuda_finding(kernel, subject))
    return found


def _data_findings(gpu: Dict[str, Any], subject: Subject) -> List[Finding]:
    # What does not tell how many blocks are wrong is no comparison.
    verified = {
        method: value
        for method, value in mapping(gpu.get("verified")).items()
        if whole_number(mapping(value).get("wrong_blocks")) is not None
    }
    wrong = {method: value for method, value in verified.items() if value["wrong_blocks"]}
    if wrong:
        method, first = next(iter(wrong.items()))
        where = (
            f"copied by {' and '.join(str(name).replace('_', ' ') for name in wrong)}, "
            f"first wrong byte {first.get('first_wrong')} of {first.get('size')}"
        )
        return [
            Finding(
                "data_corrupted",
                FAIL,
                f"data came back changed ({where})",
                "drain_node",
                subject,
                {"verified": verified},
            )
        ]
    if mapping(gpu.get("transfers")) and "copy_engine" not in verified and whole(gpu):
        return [
            Finding("not_verified", UNKNOWN, "the copied data was not compared", "watch", subject)
        ]
    return []


def _link_findings(gpu: Dict[str, Any], subject: Subject, bandwidth: str) -> List[Finding]:
    """The link as it is against the most that GPU and slot can do. A link that carries what its
    class should is only worth a look.
    """
    link = mapping(gpu.get("link"))
    if not over_pcie(gpu.get("name")):
        return []
    found = []
    generation, width = (
        whole_number(link.get("max_generation"), 1),
        whole_number(link.get("max_width"), 1),
    )
    status = WARN if bandwidth == PASS and all(_rates(gpu).values()) else FAIL
    action = "drain_node" if status == FAIL else "watch"
    # Lanes do not go to sleep before PCIe 6.0, so that a narrow link at rest is narrow; the speed
    # does on every link.
    actual_width = whole_number(link.get("width"), 1) or (
        whole_number(link.get("idle_width"), 1) if generation and generation < 6 else None
    )
    actual_generation = whole_number(link.get("generation"), 1)
    if width and actual_width and actual_width < width:
        found.append(
            Finding(
                "link_width",
                status,
                f"link is up at x{actual_width} instead of x{width}; reseat the card",
                action,
                subject,
                link,
            )
        )
    if generation and actual_generation and actual_generation < generation:
        words = (
            f"link runs at PCIe {actual_generation}.0 instead of {generation}.0 under "
            "load; reseat the card"
        )
        found.append(Finding("link_speed", status, words, action, subject, link))
    capable = whole_number(link.get("gpu_max_generation"), 1)
    if generation and capable and capable > generation:
        found.append(
            Finding(
                "link_limited_by_slot",
                PASS,
                f"the GPU could do PCIe {capable}.0, the slot allows {generation}.0",
                "none",
                subject,
                link,
            )
        )
    return found


#: A status, its message, and what was expected.
_Verdict = Tuple[str, str, Expectation]


def _verdicts(
    words: str,
    value: float,
    minimum: Optional[float],
    row: Any,
    peers: List[Optional[float]],
    local: bool,
) -> List[_Verdict]:
    """What is wrong with a rate, by the operator's minimum, the table and its peers."""
    verdicts: List[_Verdict] = []
    if minimum and value < minimum * GB:
        expected = Expectation(minimum * GB, "bytes/s", "override", "minimum")
        verdicts.append((FAIL, f"{words}, expected at least {minimum:.3g} ({expected})", expected))
    if row and value < row.warn:
        expected = Expectation(
            row.fail if value < row.fail else row.warn, "bytes/s", "table", row.detail
        )
        status = (
            WARN if value >= row.fail or (not local and value >= WRONG_NODE * row.fail) else FAIL
        )
        verdicts.append(
            (
                status,
                f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})",
                expected,
            )
        )
    if len(peers) >= ENOUGH_PEERS:
        median = middle(float(rate or 0) for rate in peers)
        if value < PEER_WARN * median:
            part = PEER_FAIL if value < PEER_FAIL * median else PEER_WARN
            expected = Expectation(
                part * median,
                "bytes/s",
                "fleet",
                f"{part} of the median of {len(peers)} of its kind in this node",
            )
            # Peers say that a GPU is odd; against what its operator asks for, or from another
            # socket, that is no proof of a defect.
            status = FAIL if part == PEER_FAIL and local and not minimum else WARN
            verdicts.append(
                (
                    status,
                    f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})",
                    expected,
                )
            )
    return verdicts


def _low_bandwidth(
    gpu: Dict[str, Any], subject: Subject, direction: str, value: float, verdicts: List[_Verdict]
) -> Finding:
    """The finding of the worst verdict."""
    local = _is_local(gpu)
    status, message, expected = next((one for one in verdicts if one[0] == FAIL), verdicts[0])
    message += "" if local or status == FAIL else ", measured from another NUMA node than the GPU's"
    transfers = mapping(gpu.get("transfers")).get(direction)
    evidence = dict(
        measured=value,
        expected=expected.to_dict(),
        transfers=transfers,
        link=mapping(gpu.get("link")),
        numa=gpu.get("numa"),
    )
    return Finding(
        "low_bandwidth",
        status,
        message,
        "drain_node" if status == FAIL else "watch",
        subject,
        evidence,
    )


def _bandwidth_findings(
    gpu: Dict[str, Any],
    subject: Subject,
    rates: Dict[int, Dict[str, Optional[float]]],
    gpus: List[Dict[str, Any]],
    options: Options,
) -> List[Finding]:
    """Each direction by the copy engine against the operator's minimum or the table, and against
    the node's GPUs of the same kind.
    """
    link = mapping(gpu.get("link"))
    minimum = positive(options.get("minimum"))
    row = (
        None
        if minimum
        else expected_bandwidth(
            whole_number(link.get("max_generation"), 1),
            whole_number(link.get("max_width"), 1),
            gpu.get("name"),
        )
    )
    peers = [
        rates[other["number"]]
        for other in gpus
        if _kind(other) == _kind(gpu) and all(rates[other["number"]].values())
    ]
    local = _is_local(gpu)
    found = []
    for direction in DIRECTIONS:
        value = rates[gpu["number"]][direction]
        if value is None:
            continue
        words = f"{direction.replace('_', ' ')} {value / GB:.3g} GB/s"
        verdicts = _verdicts(words, value, minimum, row, [peer[direction] for peer in peers], local)
        if verdicts:
            found.append(_low_bandwidth(gpu, subject, direction, value, verdicts))
        elif not minimum and row is None:
            found.append(_without_row(subject, words, len(peers)))
    return found


def _without_row(subject: Subject, words: str, peers: int) -> Finding:
    """A figure that nothing is known about is no pass, unless enough GPUs of its kind say the same."""
    if peers >= ENOUGH_PEERS:
        return Finding(
            "no_expectation",
            PASS,
            f"{words}, like the {peers} of its kind in this node; no figure is known for this link",
            "none",
            subject,
        )
    return Finding(
        "no_expectation",
        UNKNOWN,
        f"{words}, but what this link should carry is not known; set the option minimum",
        "fix_configuration",
        subject,
    )


def _slower_than_peers(
    subject: Subject, direction: str, value: float, peers: List[Optional[float]]
) -> List[Finding]:
    """While all copy at once, against the others of its kind."""
    median = middle(float(peer or 0) for peer in peers)
    if len(peers) >= ENOUGH_PEERS and value < PEER_FAIL * median:
        words = (
            f"all at once: {direction.replace('_', ' ')} {value / GB:.3g} GB/s, "
            f"less than {PEER_FAIL} of the median of {len(peers)} of its kind"
        )
        message = f"{words}, {median / GB:.3g} GB/s"
        return [
            Finding(
                "low_concurrent_bandwidth",
                WARN,
                message,
                "watch",
                subject,
                {"measured": value, "median": median},
            )
        ]
    return []


def _judge_together(
    readings: Any, gpus: List[Dict[str, Any]]
) -> Tuple[List[Finding], List[Measurement]]:
    """All GPUs at once show what they share: a switch's uplink, the memory channels. No table knows
    a node's wiring, so a GPU is compared with the node's others of its kind only, and at worst that
    is a warning.
    """
    if readings is None:
        return [], []
    readings = mapping(readings)
    if "too_few" in readings:
        return [], []
    found = [
        Finding(one.code, one.status, f"all at once: {one.message}", one.action, NODE, one.evidence)
        for one in _mishap_findings(readings, NODE)
    ]
    errors = mapping(readings.get("errors"))
    together = mapping(readings.get("together"))
    rates = [
        dict(
            {
                direction: _median(
                    mapping(mapping(together.get(str(gpu.get("index")))).get(direction))
                )
                for direction in DIRECTIONS
            }
        )
        for gpu in gpus
    ]
    measured = []
    for gpu, own in zip(gpus, rates):
        subject = gpu_subject(gpu)
        if mapping(errors.get(str(gpu.get("index")))):
            found.append(cuda_finding(mapping(errors[str(gpu.get("index"))]), subject))
        for direction, value in own.items():
            if value is None:
                continue
            labels = {"gpu": str(gpu.get("index")), "direction": direction, "method": "copy_engine"}
            measured.append(
                Measurement("pcie_bandwidth_concurrent", round(value), "bytes/s", labels)
            )
            peers = [
                other[direction]
                for other, its in zip(rates, gpus)
                if _kind(its) == _kind(gpu) and other[direction] is not None
            ]
            found += _slower_than_peers(subject, direction, value, peers)
    if not found and not measured:
        found.append(
            Finding(
                "not_measured_together", UNKNOWN, "the GPUs were not measured all at once", "watch"
            )
        )
    return found, measured


def _measurements(gpu: Dict[str, Any], rates: Dict[str, Optional[float]]) -> List[Measurement]:
    measured = []
    for direction in DIRECTIONS:
        for method in ("copy_engine", "kernel"):
            value = (
                rates[direction]
                if method == "copy_engine"
                else _median(
                    mapping(mapping(mapping(gpu.get("transfers")).get(direction)).get(method))
                )
            )
            if value is not None:
                measured.append(
                    Measurement(
                        NAME,
                        round(value),
                        "bytes/s",
                        {"gpu": str(gpu.get("index")), "direction": direction, "method": method},
                    )
                )
    return measured


def _healthy(rates: Dict[int, Dict[str, Optional[float]]]) -> str:
    values = [value for one in rates.values() for value in one.values() if value is not None]
    return f"{min(values) / GB:.1f} to {max(values) / GB:.1f} GB/s both ways" if values else ""


def _rates(gpu: Dict[str, Any]) -> Dict[str, Optional[float]]:
    """Bytes/s by direction: the median of the copy engine's samples, None where it was not
    measured.
    """
    transfers = mapping(gpu.get("transfers"))
    return {
        direction: _median(mapping(mapping(transfers.get(direction)).get("copy_engine")))
        for direction in DIRECTIONS
    }


def _median(transfer: Dict[str, Any]) -> Optional[float]:
    samples = transfer.get("samples")
    values: Iterable[Optional[float]] = (
        [positive(sample) for sample in samples] if isinstance(samples, list) else []
    )
    numbers = [value for value in values if value is not None]
    return middle(numbers) if numbers else None


def _kind(gpu: Dict[str, Any]) -> Tuple[Any, ...]:
    link = mapping(gpu.get("link"))
    return (
        str(gpu.get("name")),
        whole_number(link.get("max_generation"), 1),
        whole_number(link.get("max_width"), 1),
    )


def _is_local(gpu: Dict[str, Any]) -> bool:
    """Whether the copies came from next to the GPU, as far as can be told. On a host that does not
    tell where its GPUs are, they did.
    """
    numa = mapping(gpu.get("numa"))
    return (
        numa.get("node") is None
        or bool(whole_number(numa.get("cpus"), 1))
        or numa.get("memory") is not None
    )


def deadline(options: Options, gpus: int) -> float:
    """Seconds: the busy gate, and time enough for a GPU that hangs to be given up and the others to
    be measured.
    """
    return 30.0 + 8.0 * gpus + (GPU_SECONDS if options.get("concurrent") else 0.0)


CHECK = Check(
    name=NAME,
    short_names=("pciebw",),
    purpose="does each GPU's link to the host carry what its class should",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    deadline=deadline,
    grace=2.0,
    options={
        "minimum": {"type": "float"},
        "concurrent": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
    },
    metrics=(
        CheckMetric(
            "pcie_bandwidth",
            "bytes/s",
            "autopilot_pcie_bandwidth_bytes_per_second",
            "Bandwidth between host and GPU, one GPU at a time.",
            ("gpu", "direction", "method"),
        ),
        CheckMetric(
            "pcie_bandwidth_concurrent",
            "bytes/s",
            "autopilot_pcie_bandwidth_concurrent_bytes_per_second",
            "Bandwidth between host and GPU, all GPUs at once.",
            ("gpu", "direction", "method"),
        ),
    ),
    status_text=StatusText("[[ PCIEBW ]]", "PCIE", "Requesting pcie test"),
    predecessor_label="pciebw",
    findings={
        "low_bandwidth": FindingText(
            "Copies between host and GPU are slower than the link or its peers promise.",
            f"{IF_FAIL}; look at the link with `nvidia-smi -q -i <gpu>` and `lspci -vvs "
            "<address>`, reseat the card, then look at riser and slot.",
        ),
        "low_concurrent_bandwidth": FindingText(
            "With all GPUs copying at once this one gets less than the others.",
            "Compare the wiring (`nvidia-smi topo -m`) and the NUMA settings with a good node; if "
            "others of the kind do the same, it is how the node is built.",
        ),
        "data_corrupted": FindingText(
            "Data came back from the GPU changed.", f"Let no job start here: {DIAGNOSTIC}."
        ),
        "not_measured_together": FindingText(
            "The GPUs were not measured all at once.", f"{AGAIN} with more time (`timeout`)."
        ),
        "kernel_not_run": FindingText(
            "The driver did not take our copy kernel; the copy engines were measured all the same.",
            "Nothing is to be done.",
        ),
    },
)
