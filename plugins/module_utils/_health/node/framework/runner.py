# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run the checks of one host, each within its deadline, and judge their readings.

Passive checks share one child process and one driver session. If one of them is slow or ends the
child, the others get children of their own, so that a check that hangs or crashes costs no other
result. Other checks run afterwards, one at a time, and not at all on a node that already failed.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypedDict

from ..system.bounded import Child, ReportPipe, call, end, wait
from .check import Check, Options, Readings
from .conclude import conclude
from .probe import Probe, HostSettings
from ..system.host import Host
from ...model import FAIL, PASSIVE, SKIP, CheckResult, Finding, concluded

#: Seconds of silence of the shared child after which the other passive checks get their own; at
#: most a quarter of the deadline.
_PATIENCE = 5.0

#: Seconds between two measurements of a check that is measured again.
_PAUSE = 1.0

Request = Tuple[Check, Options]


class Outcome(NamedTuple):
    """A check's result and its readings."""

    result: CheckResult
    readings: Readings
    options: Options


def run(
    requests: Sequence[Request],
    settings: HostSettings,
    stop_on_fail: bool = True,
    again: Optional[Callable[[Outcome, float], bool]] = None,
) -> List[Outcome]:
    """Run the checks and return their outcomes in the order of the requests.

    ``stop_on_fail`` skips the remaining checks on a node that already failed. A passive check is
    repeated while ``again(outcome, seconds)`` is true (seconds since its first measurement); other
    checks wait.
    """
    outcomes: Dict[str, Outcome] = {}
    passive = [request for request in requests if request[0].intrusion == PASSIVE]
    for (check, options), (readings, seconds) in zip(passive, _measure_passive(passive, settings)):
        outcomes[check.name] = _outcome(check, options, readings, seconds, settings)
    began = time.monotonic()
    for check, options in passive if again else []:
        while again and again(outcomes[check.name], time.monotonic() - began):
            time.sleep(_PAUSE)
            outcomes[check.name] = _outcome(
                check, options, *_measure_passive([(check, options)], settings)[0], settings
            )
    for check, options in requests:
        if check.intrusion == PASSIVE:
            continue
        failed = [
            outcome.result.check for outcome in outcomes.values() if outcome.result.status == FAIL
        ]
        if failed and stop_on_fail:
            skipped = not_run(check.name, f"not run: the node already failed {failed[0]}")
            outcomes[check.name] = Outcome(skipped, {}, options)
        else:
            readings, seconds = _measure_alone(check, options, settings)
            outcomes[check.name] = _outcome(check, options, readings, seconds, settings)
    return [outcomes[check.name] for check, _options in requests]


def planned(requests: Sequence[Request], settings: HostSettings) -> List[Outcome]:
    """The planned checks, in check mode: nothing is measured."""
    return [
        Outcome(_would_run(check, options, settings), {}, options) for check, options in requests
    ]


def deadline(check: Check, options: Options, settings: HostSettings) -> float:
    """Deadline of the check on this host in seconds."""
    return settings.timeout or check.deadline(options, settings.expected_gpus or 8)


class NodeFacts(TypedDict):
    #: Index, UUID, PCI address and name.
    gpus: List[Dict[str, Any]]
    driver_version: Optional[str]
    cpu_model: Optional[str]
    boot_id: Optional[str]


def node_facts(outcomes: Sequence[Outcome], settings: HostSettings) -> NodeFacts:
    """Facts about the node, from the readings."""
    host = Host(settings.host_root)
    facts: NodeFacts = {
        "gpus": [],
        "driver_version": None,
        "cpu_model": host.cpu_model(),
        "boot_id": host.boot_id(),
    }
    for outcome in outcomes:
        gpus = outcome.readings.get("gpus")
        if gpus:
            facts["gpus"] = [
                {key: gpu.get(key) for key in ("index", "uuid", "pci", "name")} for gpu in gpus
            ]
            facts["driver_version"] = outcome.readings.get("driver_version")
            break
    return facts


def _outcome(
    check: Check, options: Options, readings: Readings, seconds: float, settings: HostSettings
) -> Outcome:
    # The result is recorded, and the password is no longer needed.
    options = {
        name: value
        for name, value in options.items()
        if not check.options.get(name, {}).get("no_log")
    }
    options = dict(options, expected_gpus=settings.expected_gpus)
    result = conclude(check, options, readings)
    result = CheckResult(
        result.check,
        result.status,
        result.summary,
        result.findings,
        result.measurements,
        round(seconds, 3),
    )
    return Outcome(result, readings, options)


def not_run(name: str, why: str) -> CheckResult:
    """The result of a requested check that was not run."""
    return concluded(name, [Finding("not_run", SKIP, why)], "")


def _would_run(check: Check, options: Options, settings: HostSettings) -> CheckResult:
    seconds = deadline(check, options, settings)
    message = (
        f"check mode: would run ({check.intrusion}, at most {seconds / 60:.1f} min): "
        f"{check.purpose}"
    )
    return concluded(
        check.name,
        [
            Finding(
                "would_run",
                SKIP,
                message,
                evidence={"intrusion": check.intrusion, "seconds": seconds},
            )
        ],
        "",
    )


def _measure_passive(
    requests: Sequence[Request], settings: HostSettings
) -> List[Tuple[Readings, float]]:
    if not requests:
        return []
    began = time.monotonic()
    seconds = max(deadline(check, options, settings) for check, options in requests)
    until = began + seconds
    children: List[Tuple[Child, List[Request]]] = [
        (Child(_measuring(requests, settings, seconds), seconds), list(requests))
    ]
    shared = children[0][0]
    wait([shared], began + min(_PATIENCE, seconds / 4))
    waiting = [request for request in requests if not _begun(shared, request[0])]
    remaining = until - time.monotonic()
    children += [
        (Child(_measuring([request], settings, remaining), remaining), [request])
        for request in waiting
    ]
    _wait_for_all(children, until)
    end([child for child, _requests in children], 0.5)
    return [_best_readings(check, children, began) for check, _options in requests]


def _wait_for_all(children: List[Tuple[Child, List[Request]]], until: float) -> None:
    """Wait until the children measured every check, or the deadline passed."""
    names = {check.name for _child, requests in children for check, _options in requests}
    while time.monotonic() < until:
        done = {
            name
            for child, _requests in children
            for name in names
            if _done_key(name) in child.values
        }
        if names <= done or wait(
            [child for child, _requests in children], min(until, time.monotonic() + 0.1)
        ):
            return


def _measure_alone(
    check: Check, options: Options, settings: HostSettings
) -> Tuple[Readings, float]:
    seconds = deadline(check, options, settings)
    began = time.monotonic()
    # The check cleans up within its own deadline; this is the fallback.
    child = call(_measuring([(check, options)], settings, seconds), seconds + 1, 1.0)
    return _best_readings(check, [(child, [(check, options)])], began)


def _measuring(requests: Sequence[Request], settings: HostSettings, seconds: float) -> Any:
    """The function that a child runs: measure each check and report its readings."""

    def measure(report: ReportPipe) -> None:
        probe = Probe(settings, report)
        absent = _absence(probe.host)
        for check, options in requests:
            probe.begin(check.name, options, seconds, check.grace)
            began = time.monotonic()
            probe.keep(_measured(check, probe, absent))
            report.send(_done_key(check.name), time.monotonic() - began)
        probe.close()

    return measure


def _measured(check: Check, probe: Probe, absent: Optional[Dict[str, Any]]) -> Readings:
    from ..devices.nvml import DriverError

    if absent and check.gpu:
        return {"absent": absent}
    try:
        return check.measure(probe)
    except DriverError as error:
        return {"error": error.to_dict(), "kernel_driver": probe.host.driver_gpus() is not None}


def _done_key(name: str) -> str:
    return f"done:{name}"


def _begun(child: Child, check: Check) -> bool:
    return (
        check.name in child.values
        or _done_key(check.name) in child.values
        or child.stage == check.name
    )


def _best_readings(
    check: Check, children: List[Tuple[Child, List[Request]]], began: float
) -> Tuple[Readings, float]:
    """The readings of the child that finished the check, else partial readings with the reason."""
    own = [
        child for child, requests in children if any(request[0] is check for request in requests)
    ]
    for child in own:
        if _done_key(check.name) in child.values:
            return child.values[check.name], child.values[_done_key(check.name)]
    child = own[-1]
    readings = dict(child.values.get(check.name) or {}, **child.mishap())
    return readings, time.monotonic() - began


def _absence(host: Host) -> Optional[Dict[str, Any]]:
    """Evidence that the host has no NVIDIA GPU of its own; None if it has one or it is unknown."""
    on_bus = host.pci_gpus()
    if on_bus is None and host.names("sys/bus") is not None:
        on_bus = []  # machines without PCI, such as small virtual machines
    passed_through = [gpu["pci"] for gpu in on_bus or [] if gpu["driver"] == "vfio-pci"]
    devices = [
        name
        for name in host.names("dev") or []
        if name == "dxg" or (name.startswith("nvidia") and name[6:].isdecimal())
    ]
    if on_bus is None or len(on_bus) > len(passed_through) or host.driver_gpus() or devices:
        return None
    return {"pci": [], "passed_through": passed_through}
