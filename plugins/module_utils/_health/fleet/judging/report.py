# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The report of a run as typed values. Console, page, metrics, marks and status take these.

`to_dict` and `from_dict` turn them into the run document and back
(``playbooks/files/run.schema.json`` is its JSON Schema). Reading is lenient: a value of the wrong
type reads as empty, and nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .node_answer import KnownGpu, NodeAnswer, gpus_of
from .policy import Policy, apply_policy, policy_as_far_as_valid
from ..mesh.documents import MeshReport
from ... import VERSION
from ...lenient import mapping, mappings_in, number, sequence, text, whole_number
from ...model import SKIP, CheckResult, Finding, read_action, read_status
from ...times import parse_stamp, stamp_of

SCHEMA = "autopilot.gpu/run"
SCHEMA_VERSION = 1

FIT, UNFIT, COULD_NOT_TELL, SKIPPED = "fit", "unfit", "could_not_tell", "skipped"
FITNESS = (FIT, UNFIT, COULD_NOT_TELL, SKIPPED)
#: The same for people, worst first.
FITNESS_TEXTS = {UNFIT: "unfit", COULD_NOT_TELL: "undecided", FIT: "fit", SKIPPED: "skipped"}
_COUNTS = ("nodes", *FITNESS, "partial")


class CheckFinding(NamedTuple):
    """A finding and the check that found it ("" for findings of the controller)."""

    check: str
    finding: Finding

    def to_dict(self) -> Dict[str, Any]:
        return dict(self.finding.to_dict(), check=self.check)

    @classmethod
    def from_dict(cls, data: Any) -> "CheckFinding":
        return cls(text(mapping(data).get("check")), Finding.from_dict(data))


@dataclass(frozen=True)
class NodeVerdict:
    """The decision about one node. `judge_node` makes it."""

    status: str
    fit: str
    #: True for a fit node with skipped checks.
    partial: bool = False
    #: Findings to act on, worst first, each fact once.
    findings: List[CheckFinding] = field(default_factory=list)
    #: What to do next, the most drastic first.
    actions: List[str] = field(default_factory=list)
    #: The results that the verdict was made of, with the policy applied.
    results: List[CheckResult] = field(default_factory=list)


@dataclass(frozen=True)
class NodeReport:
    """A node of a run: its results, its facts and readings, and the verdict."""

    name: str
    verdict: NodeVerdict
    #: Results of the node's checks and of the mesh, as the checks judged them.
    results: List[CheckResult] = field(default_factory=list)
    #: Results that only the comparison with other nodes gave.
    fleet: List[CheckResult] = field(default_factory=list)
    facts: Dict[str, Any] = field(default_factory=dict)
    readings: Dict[str, Any] = field(default_factory=dict)
    trouble: Optional[Finding] = None
    skipped: Optional[str] = None
    mesh: Tuple[Optional[Dict[str, Any]], ...] = ()

    @property
    def status(self) -> str:
        return self.verdict.status

    @property
    def gpus(self) -> List[KnownGpu]:
        return gpus_of(self.facts)

    def answer(self) -> NodeAnswer:
        """The answer of the host, results of the mesh included, for another judgement."""
        return NodeAnswer(
            self.name,
            self.results,
            self.facts,
            self.readings,
            self.trouble,
            self.skipped,
            self.mesh,
        )

    def to_dict(self) -> Dict[str, Any]:
        verdict = self.verdict
        return {
            "name": self.name,
            "status": verdict.status,
            "fit": verdict.fit,
            "partial": verdict.partial,
            "findings": [found.to_dict() for found in verdict.findings],
            "actions": verdict.actions,
            "health": [result.to_dict() for result in self.results],
            "fleet": [result.to_dict() for result in self.fleet],
            "facts": self.facts,
            "readings": self.readings,
            "trouble": self.trouble.to_dict() if self.trouble else None,
            "skipped": self.skipped,
            "mesh": list(self.mesh),
        }

    @classmethod
    def from_dict(cls, data: Any, policy: Policy) -> "NodeReport":
        """The node as recorded; its results are those of the policy that it was judged by."""
        data = mapping(data)
        results, fleet = (
            [CheckResult.from_dict(result) for result in sequence(data.get(key))]
            for key in ("health", "fleet")
        )
        fit, trouble = data.get("fit"), data.get("trouble")
        verdict = NodeVerdict(
            read_status(data.get("status")),
            fit if fit in FITNESS else COULD_NOT_TELL,
            data.get("partial") is True,
            _findings(data.get("findings")),
            [
                read_action(action)
                for action in sequence(data.get("actions"))
                if isinstance(action, str)
            ],
            apply_policy(results + fleet, policy),
        )
        return cls(
            str(data["name"]) if data.get("name") else "",
            verdict,
            results,
            fleet,
            mapping(data.get("facts")),
            mapping(data.get("readings")),
            Finding.from_dict(trouble) if isinstance(trouble, dict) else None,
            str(data["skipped"]) if data.get("skipped") else None,
            tuple(part if isinstance(part, dict) else None for part in sequence(data.get("mesh"))),
        )


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run: names, times, versions. Times are UTC to the second."""

    run_id: str
    phase: str
    started: str
    finished: str
    duration_seconds: float
    check_mode: bool
    #: Versions of the collection and of ansible-core that ran it.
    collection: Optional[str] = VERSION
    ansible: Optional[str] = None
    #: The operator's name of the job that the phases belong to.
    job: Optional[str] = None
    #: Name of the cluster, the user who started the run, and the command line, without secrets.
    cluster: Optional[str] = None
    user: Optional[str] = None
    command: Optional[str] = None

    @property
    def finished_at(self) -> float:
        """Seconds since the epoch; 0 where the document has no such time."""
        return parse_stamp(self.finished) or 0.0


def identify_run(
    run_id: str,
    phase: str,
    started: float,
    finished: float,
    check_mode: bool,
    ansible: Optional[str] = None,
    job: Optional[str] = None,
) -> RunIdentity:
    """The identity of a run of this version; times in seconds since the epoch."""
    duration = round(max(0.0, finished - started), 3)
    return RunIdentity(
        run_id,
        phase,
        stamp_of(started),
        stamp_of(finished),
        duration,
        check_mode,
        VERSION,
        ansible,
        job,
    )


class RunVerdict(NamedTuple):
    """The decision about the run."""

    status: str
    passed: bool
    reason: str
    #: True if the run ended before all nodes were checked. An incomplete run has not passed.
    incomplete: bool = False

    @property
    def word(self) -> str:
        """``passed``, ``failed`` or ``incomplete``."""
        return "incomplete" if self.incomplete else "passed" if self.passed else "failed"

    def to_dict(self) -> Dict[str, Any]:
        return {
            "status": self.status,
            "passed": self.passed,
            "reason": self.reason,
            **({"incomplete": True} if self.incomplete else {}),
        }

    @classmethod
    def from_dict(cls, data: Any) -> "RunVerdict":
        data = mapping(data)
        incomplete = data.get("incomplete") is True
        return cls(
            read_status(data.get("status")),
            data.get("passed") is True and not incomplete,
            text(data.get("reason")),
            incomplete,
        )


@dataclass(frozen=True)
class RunReport:
    """A judged run. `judge_run` makes it."""

    run: RunIdentity
    policy: Policy
    verdict: RunVerdict
    #: Numbers of nodes: ``nodes`` in all, by fitness, and ``partial`` (fit with skipped checks).
    counts: Dict[str, int]
    nodes: List[NodeReport]
    #: Findings about no single node: links and paths between nodes, the job.
    findings: List[CheckFinding] = field(default_factory=list)
    #: Plans, figures and causes of the mesh; None where there was none.
    mesh: Optional[MeshReport] = None
    #: The run that a replay judged again; None for a run.
    replay: Optional[Dict[str, Any]] = None
    #: Members that only a newer version knows.
    extra: Dict[str, Any] = field(default_factory=dict)

    def failed_for(self, reasons: Sequence[str]) -> "RunReport":
        """The report of a run that did not pass for further reasons, which come first."""
        words = "; ".join([*reasons, self.verdict.reason])
        return replace(self, verdict=self.verdict._replace(passed=False, reason=words))

    def incomplete_for(self, reason: str) -> "RunReport":
        """The report of a run that ended for this reason before all nodes were checked."""
        report = self.failed_for([reason])
        return replace(report, verdict=report.verdict._replace(incomplete=True))

    def to_dict(self) -> Dict[str, Any]:
        """The run document."""
        run = self.run
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "run_id": run.run_id,
            **{
                name: value
                for name, value in (
                    ("run", run.job),
                    ("cluster", run.cluster),
                    ("user", run.user),
                    ("command", run.command),
                )
                if value
            },
            "phase": run.phase,
            "started": run.started,
            "finished": run.finished,
            "duration_seconds": run.duration_seconds,
            "check_mode": run.check_mode,
            "versions": {"collection": run.collection, "ansible": run.ansible},
            "policy": self.policy.to_dict(),
            "counts": self.counts,
            "verdict": self.verdict.to_dict(),
            "findings": [found.to_dict() for found in self.findings],
            "mesh": self.mesh.document if self.mesh else None,
            "nodes": [node.to_dict() for node in self.nodes],
            **self.extra,
            **({"replay": self.replay} if self.replay else {}),
        }

    @classmethod
    def from_dict(cls, document: Any) -> "RunReport":
        """The report of a run document of any version, as far as it can be read."""
        data = mapping(document)
        policy = policy_as_far_as_valid(data.get("policy"))
        counts = mapping(data.get("counts"))
        nodes = [NodeReport.from_dict(node, policy) for node in mappings_in(data.get("nodes"))]
        mesh, replayed = data.get("mesh"), data.get("replay")
        return cls(
            _identity(data),
            policy,
            RunVerdict.from_dict(data.get("verdict")),
            {
                **{name: (whole_number(counts.get(name)) or 0) for name in _COUNTS},
                "nodes": whole_number(counts.get("nodes")) or len(nodes),
            },
            nodes,
            _findings(data.get("findings")),
            MeshReport.from_dict(mesh) if isinstance(mesh, dict) else None,
            replayed if isinstance(replayed, dict) else None,
            {name: value for name, value in data.items() if name not in _MEMBERS},
        )


#: Members of a run document that `RunReport` has fields for.
_MEMBERS = (
    "schema",
    "schema_version",
    "run_id",
    "run",
    "cluster",
    "user",
    "command",
    "phase",
    "started",
    "finished",
    "duration_seconds",
    "check_mode",
    "versions",
    "policy",
    "counts",
    "verdict",
    "findings",
    "mesh",
    "nodes",
    "replay",
)


def _identity(data: Dict[str, Any]) -> RunIdentity:
    versions = mapping(data.get("versions"))
    return RunIdentity(
        text(data.get("run_id")),
        text(data.get("phase")) or "run",
        text(data.get("started")),
        text(data.get("finished")),
        number(data.get("duration_seconds"), 0) or 0.0,
        bool(data.get("check_mode")),
        text(versions.get("collection")) or None,
        text(versions.get("ansible")) or None,
        *(text(data.get(name)) or None for name in ("run", "cluster", "user", "command")),
    )


def _findings(recorded: Any) -> List[CheckFinding]:
    return [CheckFinding.from_dict(found) for found in mappings_in(recorded)]


#: The verdict on a host on which nothing was to be checked.
NOTHING_TO_CHECK = NodeVerdict(SKIP, SKIPPED)
