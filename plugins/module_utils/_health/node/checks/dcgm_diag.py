# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own diagnostic (``dcgmi diag``), at a level or by named tests, judged by the severity of
its errors.

DCGM's document decides. The exit status is a hint (it comes from another table than the severities
and can contradict them), and the word Fail is no evidence, since warnings are printed as Fail too.
DCGM has no PCIe bandwidth threshold for any model (DCGM 4.6, diag-skus.yaml.in), so it receives
ours wherever the test ``pcie`` runs. That test copies for all GPUs from one buffer on any socket
(DCGM, nvvs/plugin_src/pcie/PcieMain.cpp), so our threshold is the one for remote memory.

Level 1 only reads and needs no gate; higher levels take the GPUs and use the busy gate.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..devices import dcgm_report, dcgm_run
from ..devices.dcgm_report import DcgmReport
from ..devices.dcgm_run import DcgmRun
from ..framework import busy_gate
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import StatusText
from ...knowledge import dcgm as knowledge
from ...knowledge.gpus import model_of
from ...knowledge.links import GB, WRONG_NODE, expected_bandwidth
from ...lenient import decode
from ...model import (
    FAIL,
    INVASIVE,
    NODE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Subject,
    gpu_subject,
)
from ..framework.driver_findings import GpuReading, all_gpus, judge_gpus, read_gpus, read_parts

_PCIE = "pcie.h2d_d2h_single_pinned."


# --- options ---


class Wanted(NamedTuple):
    """What to run, from the options."""

    level: int
    #: The requested test names in ``--run`` format; empty for a level.
    tests: Tuple[str, ...]
    parameters: Dict[str, str]

    @property
    def run(self) -> str:
        # DCGM 4 rejects the name software; its tests come first in every run (NVIDIA/DCGM issue
        # 296).
        return ",".join(test for test in self.tests if test != "software") or str(self.level)

    @property
    def words(self) -> str:
        return f"tests {', '.join(self.tests)}" if self.tests else f"level {self.level}"

    @property
    def required(self) -> Sequence[str]:
        return [test for test in self.tests if test != "software"] or knowledge.REQUIRED[self.level]


def wanted(options: Options) -> Wanted:
    """Parse the options; raises ValueError with what is accepted."""
    level, tests = options.get("level"), options.get("tests")
    if tests and level is not None:
        raise ValueError("level excludes tests; give one of them")
    if tests is not None and (
        not isinstance(tests, list)
        or not tests
        or not all(re.fullmatch(r"[A-Za-z][\w ]*", str(test)) for test in tests)
    ):
        raise ValueError(
            f"tests: {tests!r} is invalid; expected names as dcgmi diag --run takes them, for "
            "example memory, pcie"
        )
    if level not in (None, 1, 2, 3, 4):
        raise ValueError(f"level: {level!r} is invalid; expected a number from 1 to 4")
    host_engine = options.get("host_engine")
    if host_engine is not None and not re.fullmatch(r"[^\s-]\S*", str(host_engine)):
        raise ValueError(
            f"host_engine: {host_engine!r} is invalid; expected a host, host:port or unix:// path"
        )
    names = tuple(knowledge.run_name(str(test)) for test in tests or ())
    if names:
        level = max(knowledge.LEVEL_OF.get(name, 3) for name in names)
    return Wanted(level or 1, names, _parameters(options.get("parameters")))


def _parameters(given: Any) -> Dict[str, str]:
    if isinstance(given, dict):
        pairs = [(str(name), str(value)) for name, value in given.items()]
    else:
        parts = [
            part
            for item in (given if isinstance(given, list) else [given] if given else [])
            for part in str(item).split(";")
            if part
        ]
        pairs = [(name, value) for name, _equals, value in (part.partition("=") for part in parts)]
    for name, value in pairs:
        if not re.fullmatch(r"[\w ]+(\.\w+)+", name) or not re.fullmatch(r"[^;\s]+", value):
            raise ValueError(
                f"parameters: {name}={value} is invalid; expected test.parameter=value"
            )
    return dict(pairs)


def deadline(options: Options, gpus: int) -> float:
    """Seconds for the level (`knowledge.DEADLINES`, with sources), or for the level of the named
    tests, plus the requested durations.
    """
    try:
        what = wanted(options)
    except ValueError:
        return knowledge.DEADLINES[1]
    return knowledge.DEADLINES[what.level] + dcgm_run.test_seconds(what.parameters)


# --- measuring ---


class DcgmGpu(GpuReading, total=False):
    serial: Optional[str]
    #: Current, and after the next reset.
    mig: Optional[List[int]]
    #: Maximum of the GPU's link.
    generation: Optional[int]
    width: Optional[int]


class DcgmReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[DcgmGpu]]
    #: The path of the program; None if it is not installed.
    dcgmi: Optional[str]
    #: Without dcgmi: whether this runs in the agent's image.
    in_agent_image: bool
    version: List[int]
    #: See `busy_gate.look`.
    before: Any
    after: Any
    #: The diagnostic, and its repetition if an error required one.
    runs: List[DcgmRun]


def measure(probe: Probe) -> Readings:
    """Run dcgmi; returns `DcgmReadings`."""
    until = time.monotonic() + probe.seconds
    what = wanted(probe.options)
    readings = read_gpus(probe, _read_gpu)
    if any(_has_mig(gpu) for gpu in readings["gpus"]):
        return readings
    readings["dcgmi"] = shutil.which("dcgmi")
    if not readings["dcgmi"]:
        readings["in_agent_image"] = os.environ.get(knowledge.AGENT_IMAGE) == "true"
        return readings
    if what.run == "1":
        _diagnose(probe, readings, what, until)
        return readings
    with busy_gate.lock(probe.host, busy_gate.lock_seconds(probe)) as locked_by:
        readings["before"] = busy_gate.look(probe, locked_by)
        probe.keep(readings)
        if busy_gate.judge(readings["before"]) and not probe.options.get("force"):
            return readings
        _diagnose(probe, readings, what, until - min(15.0, probe.seconds / 20))
        if not any(run.get("timed_out") for run in readings["runs"]):
            readings["after"] = busy_gate.look(probe, times=1)
    return readings


def _read_gpu(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    return read_parts(
        {
            "serial": lambda: nvml.read(gpu, "nvmlDeviceGetSerial"),
            "mig": lambda: nvml.read(gpu, "nvmlDeviceGetMigMode"),
            "generation": lambda: nvml.read(gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
            "width": lambda: nvml.read(gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
        }
    )


def _has_mig(gpu: Mapping[str, Any]) -> bool:
    return any(gpu.get("mig") or [])


def _diagnose(probe: Probe, readings: Readings, what: Wanted, until: float) -> None:
    program = readings["dcgmi"]
    version = readings["version"] = dcgm_run.version(probe, program)
    parameters = dict(
        _floor(readings["gpus"]) if "pcie" in what.required else {}, **what.parameters
    )
    readings["runs"] = []
    selection = (
        ["-n", f"gpu:{len(readings['gpus'])}"]
        if version >= [4] and probe.settings.expected_gpus == len(readings["gpus"])
        else []
    )
    engine = probe.options.get("host_engine")
    first = dcgm_run.run(
        probe, program, version, ["-r", what.run] + selection, parameters, until, engine
    )
    readings["runs"].append(first)
    probe.keep(readings)
    suspects = [
        fault.result
        for fault in dcgm_report.faults(first.get("report", {}))
        if fault.kind == knowledge.TRIAGE and fault.result.status == "fail"
    ]
    if suspects and time.monotonic() < until:
        tests = sorted({suspect.test for suspect in suspects} - {"software"})
        gpus = sorted({suspect.gpu for suspect in suspects if suspect.gpu is not None})
        everywhere = any(suspect.gpu is None for suspect in suspects) or not gpus
        selection = [] if everywhere else ["-i", ",".join(map(str, gpus))]
        parameters = {
            name: value for name, value in parameters.items() if name.split(".")[0] in tests
        }
        readings["runs"].append(
            dcgm_run.run(
                probe,
                program,
                version,
                ["-r", ",".join(tests) or "1"] + selection,
                parameters,
                until,
                engine,
            )
        )


def _floor(gpus: List[Dict[str, Any]]) -> Dict[str, str]:
    """Our host link threshold as DCGM parameters: the lowest of the node's GPUs, since the
    parameters apply to all. Empty if a GPU has no row.
    """
    read = [gpu for gpu in gpus if not gpu.get("error")]
    rows = [
        expected_bandwidth(gpu.get("generation"), gpu.get("width"), gpu.get("name")) for gpu in read
    ]
    known = [row for row in rows if row is not None and row.detail.startswith("PCIe")]
    if not known or len(known) < len(read):
        return {}
    return {
        _PCIE + "min_bandwidth": f"{WRONG_NODE * min(row.fail for row in known) / GB:g}",
        _PCIE + "min_pci_generation": str(min(gpu["generation"] for gpu in read)),
        _PCIE + "min_pci_width": str(min(gpu["width"] for gpu in read)),
    }


# --- judging ---


def first_run_statuses(readings: Readings) -> Set[str]:
    """Findings from DCGM's results of the first diagnostic; empty without its document."""
    runs = decode(DcgmReadings, readings).get("runs")
    return {result.status for result in _results(runs[0])} if runs else set()


def _results(run: DcgmRun) -> List[dcgm_report.Result]:
    return dcgm_report.results(run.get("report", {}))


def judge(readings: DcgmReadings, options: Options) -> CheckResult:
    gpus, runs = all_gpus(readings.get("gpus")), readings.get("runs")
    try:
        what = wanted(options)
    except ValueError:
        what = Wanted(1, (), {})
    if runs:
        findings = _judge_runs(runs, readings, what, [gpu for gpu in gpus if not gpu.get("error")])
    else:
        findings = _judge_absence(readings, options, gpus)
    return judge_gpus(
        NAME, gpus, lambda gpu, subject: ([], []), lambda found: _clean(readings, what), findings
    )


def _clean(readings: DcgmReadings, what: Wanted) -> str:
    """The summary when nothing is wrong."""
    numbers, runs = readings.get("version"), readings.get("runs")
    version = ".".join(map(str, numbers)) + " " if numbers else ""
    skipped = _skipped(_results(runs[0])) if runs else []
    return f"DCGM {version}{what.words} clean" + (
        f"; skipped by DCGM: {', '.join(skipped)}" if skipped else ""
    )


def _judge_absence(readings: DcgmReadings, options: Options, gpus: List[DcgmGpu]) -> List[Finding]:
    """Why the diagnostic did not run."""
    message = "MIG is enabled or pending, and DCGM's diagnostic requires GPUs without MIG"
    partitioned = [
        Finding("mig_enabled", SKIP, message, "none", gpu_subject(gpu))
        for gpu in gpus
        if _has_mig(gpu)
    ]
    if partitioned:
        return partitioned
    if "dcgmi" in readings and not readings["dcgmi"]:
        message = "dcgmi is not installed"
        if readings.get("in_agent_image") is True:
            message = "the agent's image has no dcgmi"
        return [Finding("dcgmi_missing", UNKNOWN, message, "fix_configuration")]
    held = (
        busy_gate.judge(readings["before"])
        if "before" in readings and not options.get("force")
        else []
    )
    return held or [
        Finding("diagnostic_not_run", UNKNOWN, "DCGM's diagnostic was not run", "watch")
    ]


def _judge_runs(
    runs: List[DcgmRun], readings: DcgmReadings, what: Wanted, gpus: List[DcgmGpu]
) -> List[Finding]:
    first = runs[0]
    report = first.get("report", {})
    subjects = {
        number: gpu_subject(gpu) for number, gpu in zip(dcgm_report.gpu_ids(gpus, report), gpus)
    }
    uncontained = [
        gpu_subject(gpu)
        for gpu in gpus
        for model in [model_of(gpu.get("name"))]
        if model and not model.containment
    ]
    disturbed = busy_gate.disturbed(readings.get("before"), readings.get("after"))
    faults = _judge_faults(runs, subjects, bool(disturbed))
    findings = _judge_run(first) + [
        _without_containment(one, uncontained) for one in _maybe_by_design(faults, gpus)
    ]
    results = dcgm_report.results(report)
    if results:
        findings += _judge_coverage(results, report, what, subjects)
    returncode = first.get("returncode")
    if (
        what.run != "1"
        and not first.get("timed_out")
        and not ("before" in readings and "after" in readings)
    ):
        findings.append(
            Finding(
                "use_unknown",
                UNKNOWN,
                "whether other processes used the GPUs during the diagnostic is unknown",
                "watch",
            )
        )
    if returncode != 0 and all(finding.status == SKIP for finding in findings):
        findings.append(_unexplained(returncode))
    return findings + _left_behind(runs) + disturbed


def _unexplained(returncode: Optional[int]) -> Finding:
    """An exit status of dcgmi that no result explains."""
    hint = knowledge.exit_hint(returncode)
    message = (
        f"dcgmi ended with status {returncode}"
        + (f" ({hint})" if hint else "")
        + ", and its result gives no reason"
    )
    evidence = {"returncode": returncode}
    return Finding("exit_status_unexplained", UNKNOWN, message, "watch", NODE, evidence)


def _left_behind(runs: List[DcgmRun]) -> List[Finding]:
    """Processes of the diagnostic that could not be ended."""
    left = [pid for run in runs for pid in run.get("left", [])]
    if not left:
        return []
    message = f"process {', '.join(map(str, left))} of the diagnostic could not be ended and may hold a GPU"
    return [Finding("left_behind", UNKNOWN, message, "reboot_node", NODE, {"pids": left})]


def _judge_run(run: DcgmRun) -> List[Finding]:
    """Why a run has no complete result."""
    report, returncode = run.get("report", {}), run.get("returncode")
    evidence = {"returncode": returncode, "argv": run.get("argv")}
    hint = knowledge.exit_hint(returncode)
    if run.get("error"):
        return [
            Finding(
                "dcgmi_not_started",
                UNKNOWN,
                f"dcgmi could not be started: {run['error']}",
                "fix_configuration",
                NODE,
                evidence,
            )
        ]
    if run.get("timed_out"):
        seconds = run.get("seconds")
        within = f" within {seconds:.0f} s" if seconds is not None else ""
        words = f"dcgmi did not answer{within} and was ended"
        return [Finding("dcgmi_timed_out", UNKNOWN, words, "watch", NODE, evidence)]
    said = "; ".join(map(str, report.get("errors", [])))
    problem = report.get("problem", dcgm_report.NO_DOCUMENT)
    if said or problem or not report.get("results"):
        # DCGM writes why it does not run before an empty document.
        printed = dcgm_report.before_document(run.get("text") or "")
        words = _shown(said) or _shown(printed) or _shown(run.get("stderr")) or "nothing"
        code, what = "dcgm_could_not_run", "DCGM could not run its diagnostic"
        if not said and problem == dcgm_report.INCOMPLETE:
            code, what = "result_incomplete", "dcgmi's result is truncated"
        elif dcgm_run.already_running(run):
            code, what = "diagnostic_already_running", "another DCGM diagnostic is running"
        elif not said:
            code, what = "no_result", "dcgmi returned no result"
        action = "fix_configuration" if returncode in knowledge.REMEDIES else "watch"
        return [
            Finding(
                code,
                UNKNOWN,
                f"{what}: {words}" + (f" ({hint})" if hint else ""),
                action,
                NODE,
                evidence,
            )
        ]
    if returncode is None or returncode < 0:
        return [
            Finding(
                "dcgmi_died",
                UNKNOWN,
                f"dcgmi did not exit normally (status {returncode})",
                "watch",
                NODE,
                evidence,
            )
        ]
    return []


def _shown(text: Optional[str]) -> str:
    message = " ".join((text or "").split())
    return message if len(message) <= 300 else message[:300] + "..."


def _judge_faults(
    runs: List[DcgmRun], subjects: Dict[int, Subject], disturbed: bool
) -> List[Finding]:
    """Faults in the results, each fault of a test and GPU once, even if both runs report it."""
    reports = [run.get("report", {}) for run in runs[:2]]
    faults = [dcgm_report.faults(report) for report in reports]
    findings = []
    seen = set()
    for number, found in enumerate(faults):
        other = 1 - number if len(reports) > 1 else None
        for fault in found:
            key = _place(fault.result) + (fault.kind,)
            if key in seen:
                continue
            seen.add(key)
            again = (
                _again(fault.result, dcgm_report.results(reports[other]), faults[other])
                if other is not None
                else None
            )
            finding = _judge_fault(fault, again, subjects, disturbed)
            if finding:
                findings.append(finding)
    for result in dcgm_report.results(reports[0]):
        if result.status not in ("pass", "skip", "fail"):
            findings.append(
                Finding(
                    "status_unknown",
                    UNKNOWN,
                    f"{result.title}: DCGM reports the unknown status {result.status!r}",
                    "watch",
                    _subject(result, subjects),
                )
            )
    return findings


def _maybe_by_design(findings: List[Finding], gpus: List[DcgmGpu]) -> List[Finding]:
    """Narrow links of all GPUs of a model may be the board's or the virtual machine's design;
    `pcie_link` sees whether the ports confirm them.
    """
    code = knowledge.OVERRIDES[knowledge.PCIE_WIDTH].code
    narrow = {one.subject for one in findings if one.code == code}
    names = [gpu.get("name") for gpu in gpus]
    models = list(zip(names, map(gpu_subject, gpus)))
    wide = {name for name, subject in models if subject not in narrow}
    alike = {NODE}.union(
        subject
        for name, subject in models
        if name not in wide and (names.count(name) > 1 or len(names) == 1)
    )
    return [
        replace(one, status=WARN, action="watch", message=f"{one.message}, like all of its model")
        if one.code == code and one.subject in alike
        else one
        for one in findings
    ]


def _without_containment(finding: Finding, uncontained: List[Subject]) -> Finding:
    """On a model without error containment a pending row is urgent; the node stands for GPUs that
    DCGM did not name.
    """
    if finding.code == "row_remap_pending" and uncontained:
        if finding.subject in (NODE, *uncontained):
            return replace(finding, status=FAIL)
    return finding


def _place(result: dcgm_report.Result) -> Tuple[Any, ...]:
    return (result.title, result.gpu, result.entity)


def _again(
    result: dcgm_report.Result, results: List[dcgm_report.Result], faults: List[dcgm_report.Fault]
) -> Optional[str]:
    """The result of the same test on the same GPU in the other run: pass, fail, or None if missing."""
    nobody = result.gpu is None and result.entity is None
    same = [
        one
        for one in results
        if one.title == result.title and (nobody or _place(one) == _place(result))
    ]
    bad = [
        fault
        for fault in faults
        if fault.result in same
        and fault.result.status == "fail"
        and fault.kind not in (knowledge.MONITOR, knowledge.CONFIG)
    ]
    if bad:
        return "fail"
    return "pass" if same and all(one.status in ("pass", "fail") for one in same) else None


def _judge_fault(
    fault: dcgm_report.Fault, again: Optional[str], subjects: Dict[int, Subject], disturbed: bool
) -> Optional[Finding]:
    code, status, action, words = dcgm_report.meaning(fault)
    result = fault.result
    if result.status == "skip" and fault.kind == knowledge.UNRATED:
        return None
    if result.status != "fail" and status == FAIL:
        # DCGM can report Pass for a memory test that could not allocate memory (NVIDIA/DCGM issue
        # 284).
        status, action, words = (
            (WARN if fault.kind == knowledge.UNRATED else UNKNOWN),
            "watch",
            f"{result.status}, but with an error",
        )
    elif fault.kind == knowledge.TRIAGE:
        if again == "fail":
            words = "failed twice"
        elif again == "pass":
            status, action, words = WARN, "watch", "failed once and passed when repeated"
        else:
            status, action, words = UNKNOWN, "watch", "failed once and could not be repeated"
    if disturbed and status == FAIL and fault.kind in (knowledge.TRIAGE, knowledge.UNRATED):
        status, action, words = UNKNOWN, "watch", f"{words} while other processes used the GPUs"
    texts = [text for text in (_shown(warning.get("text")) for warning in fault.warnings) if text]
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    error_ids = {warning.get("error_id") for warning in fault.warnings}
    evidence: Dict[str, Any] = {
        "test": result.test,
        "error_ids": sorted(number for number in error_ids if number is not None),
        "severity": fault.kind if isinstance(fault.kind, str) else "overridden",
    }
    categories = [warning.get("category") for warning in fault.warnings]
    named = sorted(
        {
            knowledge.CATEGORIES[number]
            for number in categories
            if number is not None and 0 <= number < len(knowledge.CATEGORIES)
        }
    )
    if named:
        evidence["categories"] = named
    about = f"{result.entity}, " if result.entity else ""
    message = f"DCGM {about}{result.title}: {words}" + (f": {texts[0]}{more}" if texts else "")
    return Finding(code, status, message, action, _subject(result, subjects), evidence)


def _subject(result: dcgm_report.Result, subjects: Dict[int, Subject]) -> Subject:
    if result.gpu is None:
        return NODE
    return subjects.get(result.gpu) or Subject("gpu", index=result.gpu)


def _judge_coverage(
    results: List[dcgm_report.Result],
    report: DcgmReport,
    what: Wanted,
    subjects: Dict[int, Subject],
) -> List[Finding]:
    """Findings about GPUs and tests without a result: these did not pass."""
    findings = []
    by_test: Dict[str, Dict[Optional[int], List[str]]] = {}
    for result in results:
        by_test.setdefault(result.test, {}).setdefault(result.gpu, []).append(result.status)
    listed = report.get("gpus")
    per_gpu = {
        test: found
        for test, found in by_test.items()
        if any(number is not None for number in found)
        and not (test == "software" and None in found)
    }
    for number, subject in subjects.items():
        missing = sorted(test for test, found in per_gpu.items() if number not in found)
        statuses = [status for found in per_gpu.values() for status in found.get(number, [])]
        if missing or (not per_gpu and listed is not None and number not in listed):
            findings.append(
                Finding(
                    "gpu_without_result",
                    UNKNOWN,
                    f"DCGM has no result of this GPU for {', '.join(missing) or 'any test'}",
                    "watch",
                    subject,
                )
            )
        elif per_gpu and not set(statuses) - {"skip"}:
            findings.append(
                Finding(
                    "gpu_without_result",
                    UNKNOWN,
                    "DCGM skipped every test of this GPU",
                    "watch",
                    subject,
                )
            )
    absent = [test for test in what.required if test not in by_test]
    if absent:
        findings.append(
            Finding("test_not_run", UNKNOWN, f"DCGM has no result of {', '.join(absent)}", "watch")
        )
    skipped = [test for test in _skipped(results) if test in what.required]
    if skipped or not {result.status for result in results} - {"skip"}:
        findings.append(
            Finding(
                "test_skipped", SKIP, f"DCGM skipped {', '.join(skipped) or 'every test'}", "none"
            )
        )
    return findings


def _skipped(results: List[dcgm_report.Result]) -> List[str]:
    """Tests that DCGM skipped on all GPUs."""
    return sorted(
        {result.test for result in results}
        - {result.test for result in results if result.status != "skip"}
    )


NAME = "dcgm_diag"
CHECK = Check(
    name=NAME,
    short_names=("dcgm",),
    purpose="NVIDIA's diagnostic, dcgmi diag, at a level or by named tests",
    intrusion=INVASIVE,
    measure=measure,
    judge=judge,
    readings=DcgmReadings,
    options={
        "level": {"type": "int", "choices": [1, 2, 3, 4]},
        "tests": {"type": "list", "elements": "str"},
        "parameters": {"type": "raw"},
        "host_engine": {"type": "str"},
        "force": {"type": "bool", "default": False},
    },
    deadline=deadline,
    grace=30.0,
    validate_options=wanted,
    status_text=StatusText("[[ DCGM ]]", "DCGM", "DCGM test"),
    predecessor_label="dcgm",
    findings={
        "dcgmi_missing": FindingText(
            "DCGM is not installed, so its diagnostic did not run.",
            "Install datacenter-gpu-manager-4-core and datacenter-gpu-manager-4-cuda12 or "
            "-cuda13, matching the driver. In a cluster, rebuild the agent's image with the build "
            "argument `DCGM_REPOSITORY`. Otherwise leave `dcgm_diag` out of `checks_list`.",
        ),
        "dcgmi_not_started": FindingText(
            "dcgmi could not be started.",
            "Run `dcgmi --version` on the node and resolve its error.",
        ),
        "dcgmi_timed_out": FindingText(
            "dcgmi did not answer in time and was ended.",
            "Run the check again. If it happens again, check `systemctl status nvidia-dcgm` and "
            "search for Xids in `dmesg`.",
        ),
        "dcgmi_died": FindingText(
            "dcgmi was ended by a signal.",
            "Run the check again, and check `journalctl -u nvidia-dcgm`.",
        ),
        "dcgm_could_not_run": FindingText(
            "DCGM could not run its diagnostic.",
            "Resolve DCGM's reason in the message; check `systemctl status nvidia-dcgm`.",
        ),
        "diagnostic_already_running": FindingText(
            "Another DCGM diagnostic was running.",
            "Wait for the other diagnostic or end it, then run the check again.",
        ),
        "diagnostic_not_run": FindingText("DCGM's diagnostic did not run.", "Run the check again."),
        "no_result": FindingText(
            "DCGM returned no result.",
            "Run the check again, then try `dcgmi diag -r 1` on the node.",
        ),
        "result_incomplete": FindingText(
            "DCGM's result is truncated.",
            "Run the check again. A GPU that fails during a test can be the cause, so search for "
            "Xids with `dmesg | grep -i xid`.",
        ),
        "exit_status_unexplained": FindingText(
            "dcgmi ended with an error that its result does not explain.",
            "Run the check again, then try `dcgmi diag -r 1` on the node.",
        ),
        "status_unknown": FindingText(
            "DCGM gave a test a status that this collection does not know.",
            "Report it with the run document.",
        ),
        "gpu_without_result": FindingText(
            "DCGM has no result for a GPU.",
            "Check whether `dcgmi discovery -l` lists the GPU, then run the check again.",
        ),
        "test_not_run": FindingText(
            "DCGM did not run a test that belongs to the level.",
            "Check whether DCGM is installed completely, including its cuda package, then run the "
            "check again.",
        ),
        "test_skipped": FindingText(
            "DCGM skipped a test.", "No action is needed; the GPU may not support the test."
        ),
        "left_behind": FindingText(
            "A process of the diagnostic could not be ended and may hold a GPU.",
            "The reboot ends the process.",
        ),
    },
)
