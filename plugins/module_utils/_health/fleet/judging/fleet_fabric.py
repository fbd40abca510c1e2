# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare the NVLink fabric of the nodes of a rack (GB200 NVL72 and alike): a fault that all nodes
of an NVLink domain report is one fault, of a switch tray, and no reason to drain each node. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Set, Tuple

from .node_answer import NodeAnswer
from ...lenient import decode, mapping
from ...model import FAIL, WARN, CheckResult, Finding, Subject, concluded, gpu_subject
from ...node.checks.nvlink import NAME, NvlinkReadings
from ...node_names import fold_few

CHECK, CODE = NAME, "fabric_degraded"
#: Least nodes with the same fault: one node may have it on its own cables.
MINIMUM_NODES = 2


def merge_rack_faults(answers: Sequence[NodeAnswer]) -> Tuple[List[NodeAnswer], List[Finding]]:
    """The answers with the degraded fabric of a whole rack as a warning of each node, and a finding
    about the run for each such rack. A rack counts if at least `MINIMUM_NODES` nodes of its NVLink
    domain answered, and all GPUs of all of them are degraded.
    """
    racks: Dict[str, List[NodeAnswer]] = {}
    for answer in answers:
        domain = _domain(answer)
        if domain:
            racks.setdefault(domain, []).append(answer)
    faulty = {
        domain: nodes
        for domain, nodes in racks.items()
        if len(nodes) >= MINIMUM_NODES and all(map(_is_degraded, nodes))
    }
    shared = {answer.name: len(nodes) for nodes in faulty.values() for answer in nodes}
    merged = [
        answer._replace(results=[_as_warning(one, shared[answer.name]) for one in answer.results])
        if answer.name in shared
        else answer
        for answer in answers
    ]
    return merged, [_rack_finding(domain, nodes) for domain, nodes in sorted(faulty.items())]


def _subjects(answer: NodeAnswer) -> List[Tuple[Subject, Optional[str]]]:
    """The GPUs of a node with their NVLink domains."""
    readings = mapping(mapping(answer.readings.get(CHECK)).get("readings"))
    return [
        (gpu_subject(gpu), (gpu.get("fabric") or {}).get("domain"))
        for gpu in decode(NvlinkReadings, readings).get("gpus", [])
        if gpu
    ]


def _domain(answer: NodeAnswer) -> Optional[str]:
    """The NVLink domain of a node; None if it has none, or GPUs in several."""
    domains = {domain for _subject, domain in _subjects(answer)}
    return domains.pop() if len(domains) == 1 else None


def _degraded(answer: NodeAnswer) -> Set[Optional[str]]:
    """Bus addresses of the GPUs that the fabric reports as degraded."""
    return {
        finding.subject.pci
        for result in answer.results
        if result.check == CHECK
        for finding in result.findings
        if finding.code == CODE
    }


def _is_degraded(answer: NodeAnswer) -> bool:
    return {subject.pci for subject, _domain in _subjects(answer)} <= _degraded(answer)


def _as_warning(result: CheckResult, nodes: int) -> CheckResult:
    """The result of a node whose rack has the fault."""
    if result.check != CHECK:
        return result
    findings = [
        replace(
            finding,
            status=WARN,
            action="watch",
            message=f"{finding.message}, like all {nodes} nodes of its NVLink domain in this run",
        )
        if finding.code == CODE and finding.status == FAIL
        else finding
        for finding in result.findings
    ]
    lowered = concluded(CHECK, findings, result.summary, result.measurements)
    return replace(lowered, duration_seconds=result.duration_seconds)


def _rack_finding(domain: str, nodes: List[NodeAnswer]) -> Finding:
    names = sorted(answer.name for answer in nodes)
    message = (
        f"the NVSwitch fabric is degraded for all GPUs of all {len(names)} nodes of this NVLink "
        f"domain in this run ({', '.join(fold_few(names))}): one fault, of a switch tray or of the "
        "fabric's configuration"
    )
    subject = Subject("rack", name=domain)
    evidence = {"domain": domain, "nodes": names}
    return Finding("rack_fabric_degraded", FAIL, message, "fix_configuration", subject, evidence)
