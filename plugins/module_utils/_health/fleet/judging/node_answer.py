# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The answer of one host: results, facts and readings, before the verdict. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ...lenient import decode, mapping
from ...model import UNKNOWN, CheckResult, Finding

#: The prefix that ansible-core puts before the message of a failed task.
_PREFIX = "Task failed: "


class KnownGpu(TypedDict, total=False):
    """A GPU in the facts of its node."""

    index: int
    uuid: Optional[str]
    pci: Optional[str]
    name: str


class _NodeFacts(TypedDict, total=False):
    gpus: List[KnownGpu]


def gpus_of(facts: Mapping[str, Any]) -> List[KnownGpu]:
    """The GPUs in the facts of a node."""
    return decode(_NodeFacts, facts).get("gpus", [])


class NodeAnswer(NamedTuple):
    """The answer of one host."""

    name: str
    results: List[CheckResult] = []
    #: ``gpus`` (index, uuid, pci, name), ``driver_version``, ``cpu_model``, ``boot_id``; empty when
    #: the node did not answer.
    facts: Dict[str, Any] = {}
    #: Options and raw readings by check, as the modules return them.
    readings: Dict[str, Any] = {}
    #: Why there are no results: not reached, or not checked.
    trouble: Optional[Finding] = None
    #: Why no checks were requested on the host.
    skipped: Optional[str] = None
    #: Readings of the host in each pass of the mesh; None without an answer.
    mesh: Tuple[Optional[Dict[str, Any]], ...] = ()

    @property
    def gpus(self) -> List[KnownGpu]:
        return gpus_of(self.facts)


def not_checked(reason: str) -> Finding:
    """The finding for a host that was not checked, with the reason."""
    return Finding("not_checked", UNKNOWN, f"not checked: {reason}", "watch")


def answer_from_task(name: str, returned: Any) -> NodeAnswer:
    """The answer of a host from its registered check task: the module's result, Ansible's result of a
    failed, unreachable or skipped host, or None without a result.
    """
    if not isinstance(returned, dict):
        return NodeAnswer(name, trouble=not_checked("the checks returned no result"))
    reason = _failure_reason(returned)
    if returned.get("unreachable"):
        trouble = Finding("unreachable", UNKNOWN, f"no connection: {reason}", "fix_configuration")
        return NodeAnswer(name, trouble=trouble)
    health = returned.get("health")
    # A host with only checks of the mesh returns an empty list.
    if isinstance(health, list) and (health or "node" in returned):
        return NodeAnswer(
            name,
            [CheckResult.from_dict(result) for result in health],
            mapping(returned.get("node")),
            mapping(returned.get("readings")),
        )
    if returned.get("skipped"):
        return NodeAnswer(name, skipped="the checks were not requested on this host")
    return NodeAnswer(name, trouble=not_checked(reason))


def _failure_reason(returned: Dict[str, Any]) -> str:
    """Why a task failed: its message, and of a module that raised an exception the last line of its
    output.
    """
    message = str(returned.get("msg") or "").strip() or "the task returned no message"
    message = message[len(_PREFIX) :] if message.startswith(_PREFIX) else message
    lines = [
        line.strip()
        for key in ("module_stderr", "module_stdout")
        for line in str(returned.get(key) or "").splitlines()
        if line.strip()
    ]
    raised = any("Traceback" in line for line in lines) and lines[-1] not in message
    return (f"{message} ({lines[-1]})" if raised else message)[:2000]
