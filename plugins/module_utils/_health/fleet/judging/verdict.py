# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From what the checks of many nodes say to a decision: per node, across the fleet, and for the
run. Pure.

A node is ``fit``, ``unfit``, ``skipped`` (nothing to check there) or it ``could_not_tell``: not
reached, not checked, or a check that gave no answer. The last is neither healthy nor a reason to
drain.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from fractions import Fraction
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import fleet_activity, fleet_versions
from ...node import registry
from ...knowledge.fleet import MAD_TO_DEVIATION, OUTLIER
from ..mesh import judge as mesh_judge
from ...model import (
    ACTIONS,
    FAIL,
    SKIP,
    STATUSES,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
    left_out,
    overall,
    worst,
)
from ...lenient import mapping

FIT, UNFIT, COULD_NOT_TELL, SKIPPED = "fit", "unfit", "could_not_tell", "skipped"
FITNESS = (FIT, UNFIT, COULD_NOT_TELL, SKIPPED)

#: Findings about a node that no check looked at; no policy turns them into a warning, since that
#: would make it fit.
_NOT_LOOKED_AT = ("unreachable", "not_checked")

#: The code of what check mode says would run.
WOULD_RUN = "would_run"

#: Links and paths that the reason of a failed run names; the document has all.
_MOST_REASONS = 5

#: What ansible-core puts before the message of any task that failed.
_PREFIX = "Task failed: "

#: A measurement is compared when at least so many nodes have it, and so many others beside it.
MINIMUM_NODES = 5
MINIMUM_PEERS = 5
#: A fleet whose nodes agree within a few per mille has outliers that mean nothing: this share of
#: the median is the least that is said. 5 % is well above the spread of repeated bandwidth
#: measurements on one healthy GPU (below 1 %).
LEAST_SHARE = 0.05
#: Units of which less is worse; nothing is said of the others.
_LESS_IS_WORSE = ("bytes/s", "FLOP/s")
#: Labels that say whose a measurement is: a GPU's, a NUMA node's.
_WHO = ("gpu", "numa")


# ---- policy ----

Limit = Union[int, str]


class Policy(NamedTuple):
    """What the operator tolerates. Read it from what a user wrote with `policy_from`."""

    #: Statuses that make a node unfit.
    unfit: Tuple[str, ...] = (FAIL,)
    #: Codes of findings that count as a warning at most.
    warn_only: Tuple[str, ...] = ()
    #: How many nodes may be unfit before the run has failed: a number, or a share of the nodes such
    #: as ``"5%"``.
    max_unfit: Limit = 0
    #: How many nodes may be left undecided, likewise.
    max_unknown: Limit = 0

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            unfit=list(self.unfit),
            warn_only=list(self.warn_only),
            max_unfit=self.max_unfit,
            max_unknown=self.max_unknown,
        )


def policy_from(given: Any) -> Policy:
    """The policy a user wrote; raises ValueError that names the option, its value and what is
    accepted.
    """
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise _refused("policy", given, f"a dictionary with any of {', '.join(Policy._fields)}")
    for name in given:
        if name not in Policy._fields:
            raise ValueError(
                f"policy.{name} does not exist; accepted are {', '.join(Policy._fields)}"
            )
    chosen = {name: value for name, value in given.items() if value is not None}
    read: Dict[str, Callable[[str, Any], Any]] = {
        "unfit": _unfit,
        "warn_only": _codes,
        "max_unfit": _limit,
        "max_unknown": _limit,
    }
    return Policy(**{name: read[name](f"policy.{name}", value) for name, value in chosen.items()})


def _refused(name: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{name}: {value!r} is not accepted, give {accepted}")


def _unfit(name: str, value: Any) -> Tuple[str, ...]:
    accepted = (FAIL, UNKNOWN, WARN)
    if (
        not isinstance(value, (list, tuple))
        or FAIL not in value
        or any(item not in accepted for item in value)
    ):
        raise _refused(
            name, value, f"a list that contains {FAIL}, and {UNKNOWN} or {WARN} if they count too"
        )
    return tuple(status for status in accepted if status in value)


def _codes(name: str, value: Any) -> Tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or any(
        not isinstance(item, str) or not re.match(r"^[a-z][a-z0-9_]*$", item) for item in value
    ):
        raise _refused(name, value, "a list of codes of findings, such as [link_degraded]")
    for code in _NOT_LOOKED_AT:
        if code in value:
            raise _refused(
                name,
                code,
                "codes of what checks find; how many nodes may stay unchecked is policy.max_unknown",
            )
    return tuple(str(item) for item in value)


def _limit(name: str, value: Any) -> Limit:
    accepted = "a number of nodes from 0, or a share of them from 0% to 100% such as '5%'"
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise _refused(name, value, accepted)
    text = str(value).strip()
    if re.match(r"^[0-9]+$", text):
        return int(text)
    if re.match(r"^[0-9]+(\.[0-9]+)? ?%$", text) and _share(text) <= 1:
        return text
    raise _refused(name, value, accepted)


def _share(text: str) -> Fraction:
    return Fraction(text.rstrip("% ")) / 100


def tolerated(limit: Limit, nodes: int) -> int:
    """How many of the nodes a limit stands for; a share is rounded down."""
    return limit if isinstance(limit, int) else int(_share(limit) * nodes)


# ---- nodes ----


class Node(NamedTuple):
    """What came back from one host."""

    name: str
    results: List[CheckResult] = []
    #: ``gpus`` (index, uuid, pci, name), ``driver_version``, ``cpu_model``, ``boot_id``; empty when
    #: the node did not answer.
    facts: Dict[str, Any] = {}
    #: Options and raw readings by check, as the modules return them.
    readings: Dict[str, Any] = {}
    #: Why there are no results: not reached, or not checked.
    trouble: Optional[Finding] = None
    #: Why nothing was to be checked there.
    skipped: Optional[str] = None
    #: What it collected in each pass of the mesh; None where it gave no answer.
    mesh: Tuple[Optional[Dict[str, Any]], ...] = ()


class CheckFinding(NamedTuple):
    """A finding and the check that found it (empty for what the controller found)."""

    check: str
    finding: Finding

    def to_dict(self) -> Dict[str, Any]:
        return dict(self.finding.to_dict(), check=self.check)


class NodeVerdict(NamedTuple):
    """The decision about one node; ``findings`` are those to act on, worst first, each fact once."""

    name: str
    status: str
    fit: str
    findings: List[CheckFinding]
    #: What to do next, the most drastic first.
    actions: List[str]
    #: Whether some check did not run there.
    partial: bool = False


class RunVerdict(NamedTuple):
    """The decision about the run; ``counts`` are nodes: ``nodes`` in all, by fitness, and
    ``partial``, fit as far as checked.
    """

    status: str
    passed: bool
    reason: str
    counts: Dict[str, int]
    #: What is wrong with no single node: links and paths between them.
    findings: List[CheckFinding] = []


def node_of(name: str, answer: Any) -> Node:
    """A host from what its check task returned: the module's result, or what Ansible made of a host
    that gave none (None: no result at all).
    """
    if not isinstance(answer, dict):
        return Node(
            name,
            trouble=Finding(
                "not_checked", UNKNOWN, "was not checked: its checks left no result", "watch"
            ),
        )
    words = _words(answer)
    if answer.get("unreachable"):
        return Node(
            name, trouble=Finding("unreachable", UNKNOWN, f"could not be reached: {words}", "watch")
        )
    health = answer.get("health")
    # None at all is what a host says that was only asked for checks of the mesh.
    if isinstance(health, list) and (health or "node" in answer):
        return Node(
            name,
            [CheckResult.from_dict(result) for result in health],
            mapping(answer.get("node")),
            mapping(answer.get("readings")),
        )
    if answer.get("skipped"):
        return Node(name, skipped="the checks were not asked for on this host")
    return Node(name, trouble=Finding("not_checked", UNKNOWN, f"was not checked: {words}", "watch"))


def _words(answer: Dict[str, Any]) -> str:
    """What a failed task says: its message and the last line of the error behind it."""
    message = str(answer.get("msg") or "").strip() or "the task says nothing"
    message = message[len(_PREFIX) :] if message.startswith(_PREFIX) else message
    lines = [
        line.strip()
        for key in ("module_stderr", "module_stdout")
        for line in str(answer.get(key) or "").splitlines()
        if line.strip()
    ]
    return (f"{message} ({lines[-1]})" if lines and lines[-1] not in message else message)[:2000]


def judge_node(
    name: str, results: Sequence[CheckResult], policy: Policy, trouble: Optional[Finding] = None
) -> NodeVerdict:
    """Whether a node is fit, by the results of its checks. No results at all is never fit; what
    would run is no result.
    """
    if trouble is None and not results:
        trouble = Finding("not_checked", UNKNOWN, "was not checked: there is no result", "watch")
    judged = by_policy(results, policy) or list(results)
    if trouble is not None:
        judged.append(CheckResult("", trouble.status, trouble.message, [trouble]))
    statuses = [result.status for result in judged]
    status = overall(judged)
    if any(one in policy.unfit for one in statuses):
        fit = UNFIT
    elif status == UNKNOWN:
        fit = COULD_NOT_TELL
    else:
        # A host that is well says nothing of GPUs that no check has seen.
        telling = [one for one in judged if one.check not in registry.names_of_host()] or judged
        # A check that skipped some GPUs and measured the others has checked the node.
        fit = (
            SKIPPED if all(one.status == SKIP and not one.measurements for one in telling) else FIT
        )
        status = worst([status, SKIP]) if fit == SKIPPED else status
    findings = _loudest(judged)
    actions = {found.finding.action for found in findings} - {"none"}
    return NodeVerdict(
        name,
        status,
        fit,
        findings,
        sorted(actions, key=ACTIONS.index, reverse=True),
        fit == FIT and any(map(left_out, judged)),
    )


def by_policy(results: Sequence[CheckResult], policy: Policy) -> List[CheckResult]:
    """The results as the policy takes them; what would run is left out as far as nothing is known
    without running it.
    """
    known = [_known(result) if is_planned(result) else result for result in results]
    return [_downgraded(result, policy.warn_only) for result in known if result]


def is_planned(result: CheckResult) -> bool:
    """Whether it only says what would run without check mode."""
    return any(finding.code == WOULD_RUN for finding in result.findings)


def _known(result: CheckResult) -> Optional[CheckResult]:
    """What is wrong by a result that says what would run, as far as that is known without running
    it.
    """
    rest = [finding for finding in result.findings if finding.status in (WARN, UNKNOWN, FAIL)]
    return concluded(result.check, rest, result.summary) if rest else None


def _downgraded(result: CheckResult, codes: Iterable[str]) -> CheckResult:
    """The result with the findings of these codes no worse than a warning."""
    lenient = [
        Finding(one.code, WARN, one.message, one.action, one.subject, one.evidence)
        if one.code in codes and one.status in (FAIL, UNKNOWN)
        else one
        for one in result.findings
    ]
    if lenient == result.findings:
        return result
    # A status that no finding explains is the check's own word and stays.
    own = result.status if result.status != worst([one.status for one in result.findings]) else WARN
    return CheckResult(
        result.check,
        worst([own] + [one.status for one in lenient]),
        result.summary,
        lenient,
        result.measurements,
        result.duration_seconds,
    )


def _loudest(results: Sequence[CheckResult]) -> List[CheckFinding]:
    """The findings from warning up, worst first; a fact that several checks met is said once."""
    by_fact: Dict[Any, CheckFinding] = {}
    for result in results:
        findings = list(result.findings)
        if (
            result.status in (WARN, UNKNOWN, FAIL)
            and worst([one.status for one in findings]) != result.status
        ):
            findings.append(
                Finding(f"{result.check}_{result.status}", result.status, result.summary, "watch")
            )
        for finding in findings:
            if STATUSES.index(finding.status) < STATUSES.index(WARN):
                continue
            subject = finding.subject
            fact = (
                finding.code,
                subject.kind,
                subject.pci or subject.uuid or (subject.index, subject.name),
            )
            known = by_fact.get(fact)
            if known is None or STATUSES.index(finding.status) > STATUSES.index(
                known.finding.status
            ):
                by_fact[fact] = CheckFinding(result.check, finding)
    return sorted(by_fact.values(), key=lambda found: -STATUSES.index(found.finding.status))


def judge_run(
    nodes: Sequence[NodeVerdict], policy: Policy, findings: Sequence[CheckFinding] = ()
) -> RunVerdict:
    """Whether the run passed. Shares are of the nodes that there was something to check on.

    ``findings`` are those about what lies between nodes: one that counts as unfit fails the run,
    whatever is tolerated of nodes.
    """
    names = {fit: [node.name for node in nodes if node.fit == fit] for fit in FITNESS}
    counts = dict({"nodes": len(nodes)}, **{fit: len(those) for fit, those in names.items()})
    counts["partial"] = sum(node.partial for node in nodes)
    checked = len(nodes) - counts[SKIPPED]
    total = f"{checked} node{'' if checked == 1 else 's'}"
    reasons = []
    for fit, limit, verb in (
        (UNFIT, policy.max_unfit, "unfit"),
        (COULD_NOT_TELL, policy.max_unknown, "undecided"),
    ):
        if counts[fit] > tolerated(limit, checked):
            most = (
                f"{limit}, that is {tolerated(limit, checked)}"
                if isinstance(limit, str)
                else f"{limit}"
            )
            reasons.append(
                f"{counts[fit]} of {total} {verb} ({', '.join(_few(names[fit]))}), tolerated {most}"
            )
    between = _loudest(
        [
            _downgraded(
                CheckResult(one.check, one.finding.status, "", [one.finding]), policy.warn_only
            )
            for one in findings
        ]
    )
    reasons += [
        f"{one.finding.subject}: {one.finding.message}"
        for one in between
        if one.finding.status in policy.unfit + (UNKNOWN,)
    ][:_MOST_REASONS]
    status = worst([node.status for node in nodes] + [one.finding.status for one in between], SKIP)
    if reasons:
        return RunVerdict(status, False, "; ".join(reasons), counts, between)
    if not checked:
        return RunVerdict(status, True, "there was nothing to check on any node", counts, between)
    return RunVerdict(
        status,
        True,
        f"{counts[FIT]} of {total} {'is' if counts[FIT] == 1 else 'are'} fit",
        counts,
        between,
    )


def _few(names: Sequence[str], most: int = 10) -> List[str]:
    """Names for one sentence: the first of them and how many more there are."""
    folded = fold(names)
    return (
        folded if len(folded) <= most else folded[:most] + [f"and more, {len(names)} nodes in all"]
    )


def natural(name: str) -> List[Any]:
    """Sort key under which gpu9 comes before gpu10."""
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _parts(name) if part
    ]


def fold(names: Iterable[str]) -> List[str]:
    """Names in order, those that count up sharing a bracket: ``["gpu[0001-0003].rack7",
    "login1"]``.
    """
    runs: List[Tuple[Optional[int], str, str]] = []
    for name in sorted(names, key=natural):
        place = _counted(runs[-1][2], name) if runs else None
        if place is not None and runs[-1][0] in (None, place):
            runs[-1] = (place, runs[-1][1], name)
        else:
            runs.append((None, name, name))
    return [_bracket(*run) for run in runs]


def _counted(name: str, following: str) -> Optional[int]:
    """Which part of the names is a number that counts up by one from the first to the second, where
    nothing else differs.
    """
    parts, others = _parts(name), _parts(following)
    different = [place for place, (one, other) in enumerate(zip(parts, others)) if one != other]
    if len(parts) != len(others) or len(different) != 1 or different[0] % 2 == 0:
        return None
    digits = parts[different[0]]
    return different[0] if others[different[0]] == f"{int(digits) + 1:0{len(digits)}d}" else None


def _parts(name: str) -> List[str]:
    """Text and numbers of a name in turn, text first and last."""
    return re.split(r"([0-9]+)", name)


def _bracket(place: Optional[int], first: str, last: str) -> str:
    if place is None:
        return first
    parts = _parts(first)
    parts[place] = f"[{parts[place]}-{_parts(last)[place]}]"
    return "".join(parts)


# ---- fleet ----


class _Value(NamedTuple):
    node: str
    model: str
    subject: Subject
    measurement: Measurement


def compare_fleet(nodes: Sequence[Node]) -> Dict[str, List[CheckResult]]:
    """Each measurement of a GPU against the same measurement on the same model of GPU across the
    fleet, and of a NUMA node on the same model of processor.

    Returns by node name what stands out, as further results of the checks that measured it:
    findings ``below_fleet``, status ``warn``. A GPU that already failed the check is neither
    compared nor a peer.
    """
    groups: Dict[Any, List[_Value]] = {}
    for node in nodes:
        for result in node.results:
            for value in _comparable(node, result):
                labels = tuple(
                    sorted(item for item in value.measurement.labels.items() if item[0] not in _WHO)
                )
                key = (
                    result.check,
                    value.model,
                    value.measurement.name,
                    value.measurement.unit,
                    labels,
                )
                groups.setdefault(key, []).append(value)
    outliers: Dict[Any, List[Dict[str, Any]]] = {}
    subjects: Dict[Any, Subject] = {}
    for (check, model, _name, _unit, _labels), values in groups.items():
        for value, evidence in _below(values):
            where = (value.node, check, str(value.subject))
            outliers.setdefault(where, []).append(dict(evidence, model=model))
            subjects[where] = value.subject
    found: Dict[str, List[CheckResult]] = {}
    for where, several in outliers.items():
        name, check, _subject = where
        finding = _below_fleet(subjects[where], several)
        found.setdefault(name, []).append(CheckResult(check, WARN, finding.message, [finding]))
    return found


def _models(node: Node) -> Dict[str, Tuple[str, Subject]]:
    """Model and subject of the node's GPUs by index, as labels spell it."""
    gpus = node.facts.get("gpus")
    models = {}
    for gpu in gpus if isinstance(gpus, list) else []:
        if isinstance(gpu, dict) and isinstance(gpu.get("name"), str):
            identity = {key: gpu.get(key) for key in ("index", "uuid", "pci")}
            models[str(gpu.get("index"))] = (
                gpu["name"],
                Subject.from_dict(dict(identity, kind="gpu")),
            )
    return models


def _comparable(node: Node, result: CheckResult) -> List[_Value]:
    models, cpu = _models(node), node.facts.get("cpu_model")
    failed = {
        str(one.subject.index)
        for one in result.findings
        if one.status == FAIL and one.subject.kind == "gpu"
    }
    values = []
    for measurement in result.measurements:
        gpu, numa = (measurement.labels.get(label) for label in _WHO)
        if measurement.unit not in _LESS_IS_WORSE:
            continue
        if gpu in models and gpu not in failed:
            values.append(_Value(node.name, *models[gpu], measurement))
        elif numa is not None and isinstance(cpu, str):
            values.append(_Value(node.name, cpu, Subject("numa", name=f"node{numa}"), measurement))
    return values


def _below(values: Sequence[_Value]) -> List[Tuple[_Value, Dict[str, Any]]]:
    """The values that lie below their peers, each compared with all others but itself."""
    peers = len(values) - 1
    if peers < MINIMUM_PEERS or len({value.node for value in values}) < MINIMUM_NODES:
        return []
    ordered = sorted(value.measurement.value for value in values)
    deviations: Dict[float, List[float]] = {}
    below = []
    for value in values:
        own = value.measurement.value
        median = _median_without(ordered, own)
        if median <= 0 or own > median * (1 - LEAST_SHARE):
            continue
        if median not in deviations:
            deviations[median] = sorted(abs(one - median) for one in ordered)
        mad = _median_without(deviations[median], abs(own - median))
        if own < median - OUTLIER * MAD_TO_DEVIATION * mad:
            measurement = value.measurement
            below.append(
                (
                    value,
                    {
                        "measurement": measurement.name,
                        "labels": measurement.labels,
                        "value": own,
                        "unit": measurement.unit,
                        "median": median,
                        "mad": mad,
                        "deviation": own / median - 1,
                        "peers": peers,
                    },
                )
            )
    return below


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted numbers when one that equals ``value`` is left out."""
    out = bisect_left(ordered, value)
    count = len(ordered) - 1

    def at(position: int) -> float:
        return ordered[position if position < out else position + 1]

    return at(count // 2) if count % 2 else (at(count // 2 - 1) + at(count // 2)) / 2


def _below_fleet(subject: Subject, evidence: List[Dict[str, Any]]) -> Finding:
    """One finding for all measurements of a GPU by one check; the one furthest below is put in
    words.
    """
    evidence = sorted(evidence, key=lambda one: one["deviation"])
    first = evidence[0]
    labels = ", ".join(label for key, label in sorted(first["labels"].items()) if key not in _WHO)
    what = (first["measurement"] + (f" ({labels})" if labels else "")).replace("_", " ")
    more = (
        f"; {len(evidence) - 1} more of its measurements are low too" if len(evidence) > 1 else ""
    )
    message = (
        f"{what} is {first['value'] / 1e9:.1f} GB/s, {-first['deviation'] * 100:.0f} % below "
        "the fleet"
        f" (median {first['median'] / 1e9:.1f}, MAD {first['mad'] / 1e9:.2f} GB/s, "
        f"{first['peers']} peers){more}"
    )
    return Finding(
        "below_fleet", WARN, message, "watch", subject, {"outliers": evidence, "source": "fleet"}
    )


# ---- all of it ----


class Judgement(NamedTuple):
    """A judged run: the nodes' verdicts, in the order of the nodes, what the fleet comparison
    added, and the run's verdict.
    """

    nodes: List[NodeVerdict]
    fleet: Dict[str, List[CheckResult]]
    run: RunVerdict
    #: What the mesh found, None where there was none.
    mesh: Optional[mesh_judge.Judged] = None


def judge(
    nodes: Sequence[Node],
    policy: Policy,
    plans: Sequence[Dict[str, Any]] = (),
    planned_only: bool = False,
) -> Judgement:
    """Compare the fleet, judge the mesh by its plans (of the first pass and of the second, if any),
    judge every node, judge the run.

    ``planned_only`` says of the mesh what would run.
    """
    fleet = compare_fleet(nodes)
    beside, of_run = fleet_activity.compare(
        (node.name, node.results, node.facts.get("gpus")) for node in nodes
    )
    for name, results in [
        *beside.items(),
        *fleet_versions.compare([(node.name, node.readings) for node in nodes]).items(),
    ]:
        fleet[name] = fleet.get(name, []) + results
    mesh = _judge_mesh(nodes, plans, planned_only) if plans else None
    verdicts = []
    for node in nodes:
        of_mesh = mesh_results(node, mesh)
        # Who was not to be checked by itself may have been in the mesh.
        if node.skipped is not None and all(result.status == SKIP for result in of_mesh):
            verdicts.append(NodeVerdict(node.name, SKIP, SKIPPED, [], []))
        else:
            verdicts.append(
                judge_node(
                    node.name,
                    node.results + fleet.get(node.name, []) + of_mesh,
                    policy,
                    node.trouble,
                )
            )
    between = [CheckFinding(check, finding) for check, finding in mesh.findings] if mesh else []
    between += [CheckFinding(fleet_activity.CHECK, finding) for finding in of_run]
    return Judgement(verdicts, fleet, judge_run(verdicts, policy, between), mesh)


def _judge_mesh(
    nodes: Sequence[Node], plans: Sequence[Dict[str, Any]], planned_only: bool
) -> mesh_judge.Judged:
    if planned_only:
        return mesh_judge.planned(plans[0])
    passes = [
        {node.name: node.mesh[turn] or {} for node in nodes if len(node.mesh) > turn}
        for turn in range(len(plans))
    ]
    return mesh_judge.judge(plans, passes)


def mesh_results(node: Node, mesh: Optional[mesh_judge.Judged]) -> List[CheckResult]:
    """What the mesh says of a node. That a node which was not reached, or a node all alone, was not
    in it, is no news.
    """
    results = mesh.results.get(node.name, []) if mesh else []
    alone = mesh is not None and len(mesh.results) < 2
    news = [
        result
        for result in results
        if not (alone and node.results) and not (node.trouble and result.status in (SKIP, UNKNOWN))
    ]
    return news
