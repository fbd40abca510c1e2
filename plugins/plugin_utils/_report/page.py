# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The report of a run as one HTML page: the verdict, then findings with their next steps, then all
other results. Pure.

The page loads nothing. All texts of a document are hostile input: the template escapes each of
them, the script does not evaluate them, and the page's policy (CSP) allows only the style and the
script of this folder, by their hashes.
"""

from __future__ import annotations

import functools
import typing as t

import jinja2
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    is_planned,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    MeshReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    COULD_NOT_TELL,
    FIT,
    FITNESS_TEXTS,
    SKIPPED,
    UNFIT,
    CheckFinding,
    NodeReport,
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.healthy_groups import (
    gpu_models,
    group_healthy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    next_step,
    runbook,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping, sequence
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    ACTIONS,
    FAIL,
    PASS,
    SKIP,
    STATUSES,
    UNKNOWN,
    WARN,
    Finding,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import natural
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import (
    page_commands,
    page_heat,
    page_links,
    page_quota,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_changes import changes_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_grid import BAD, grid_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_parts import (
    SYMBOLS,
    hash_of,
    html_with_code,
    icon_of,
    read_file,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import (
    Evidence,
    duration,
    evidence_of,
    expectations_of,
    folded,
    name_of,
    plural,
    seen,
    short_names,
    shortened,
    text_of,
    time_of,
)
from markupsafe import Markup

#: Limits of the page: nodes with details of their own, findings per node, rows of the table,
#: entries of a list. The run document has everything.
_MOST_CARDS = 200
_MOST_FINDINGS, _MOST_LATER = 12, 3
_MOST_ROWS = 5000
_MOST_GROUPS = 40
#: Nodes whose details are open at first, and nodes that show `_MOST_FINDINGS`; later ones show
#: `_MOST_LATER`.
_OPEN_CARDS = 8
_WHOLE_CARDS = 40
#: Findings in the overview above the nodes.
_MOST_CODES = 40

#: Actions as text.
_NEXT = {
    "none": "nothing",
    "watch": "watch it",
    "fix_configuration": "fix the cause",
    "reset_gpu": "reset the GPU",
    "reboot_node": "reboot the node",
    "drain_node": "drain the node",
    "replace_part": "replace the part",
}


class _Finding(t.NamedTuple):
    status: str
    code: str
    check: str
    subject: str
    message: str
    next: Markup
    meaning: Markup
    expected: list[str]
    evidence: list[Evidence]


class _Card(t.NamedTuple):
    """The details of a node that needs attention."""

    anchor: str
    name: str
    status: str
    fit: str
    gpus: str
    facts: str
    actions: str
    findings: list[_Finding]
    more: int
    is_open: bool


class _Row(t.NamedTuple):
    """A node in the table."""

    name: str
    anchor: str
    status: str
    rank: int
    fit: str
    gpus: str
    first: str
    action: str
    urgency: int


class _Code(t.NamedTuple):
    """A finding code with the number and names of its nodes, and the next step."""

    status: str
    code: str
    nodes: int
    names: str
    next: Markup


class _Group(t.NamedTuple):
    """Nodes that the same lines are about."""

    names: str
    nodes: int
    lines: list[str]


def html_of(report: RunReport, before: RunReport | None = None) -> str:
    """The page of a run, with the changes since the run ``before``. A part that the document lacks is
    left out.
    """
    style, script = read_file("page.css"), read_file("page.js")
    state, word = _state(report)
    text = _template().render(
        **_of_run(report),
        **_of_nodes(report),
        changes=changes_of(before, report) if before else None,
        state=state,
        word=word,
        icon=icon_of(state),
        style=Markup(style),
        script=Markup(script),
        hashes={"style": hash_of(style), "script": hash_of(script)},
        symbols=SYMBOLS,
        statuses=list(reversed(STATUSES)),
        plural=plural,
    )
    # A string may contain half a surrogate pair, which cannot be encoded.
    return text.lstrip().encode("utf-8", "replace").decode("utf-8")


def _of_run(report: RunReport) -> dict[str, t.Any]:
    """The values of the template about the run as a whole."""
    run = report.run
    between = sorted(report.findings, key=lambda found: -STATUSES.index(found.finding.status))
    return {
        "run_id": name_of(run.run_id) or "unknown run",
        "phase": name_of(run.phase),
        "reason": report.verdict.reason or "the document has no verdict",
        "check_mode": run.check_mode,
        "cluster": run.cluster or "",
        "started_by": run.user or "",
        "command": run.command or "",
        "replay": _replay(report.replay),
        "policy": _policy(report.policy),
        "finished": time_of(run.finished),
        "took": duration(run.duration_seconds),
        "counts": _counts(report.counts),
        "versions": {"collection": run.collection or "", "ansible": run.ansible or ""},
        "findings": [_finding([found]) for found in between],
        "missed": _missed(report.mesh),
        "heats": page_heat.heats_of(report.mesh) if report.mesh else [],
        "commands": page_commands.commands_of(report),
    }


def _of_nodes(report: RunReport) -> dict[str, t.Any]:
    """The values of the template about the nodes, worst first."""
    nodes = sorted(report.nodes, key=_order)
    bad = [node for node in nodes if node.status in BAD]
    shown = bad[:_MOST_CARDS]
    anchors = {name_of(node.name): f"node-{place}" for place, node in enumerate(shown)}
    rows = [_row(node, anchors) for node in nodes[:_MOST_ROWS]]
    codes, more_codes = _codes(bad) if len(bad) > _OPEN_CARDS else ([], 0)
    return {
        "cards": [_card(node, place) for place, node in enumerate(shown)],
        "bad": len(bad),
        "codes": codes,
        "more_codes": more_codes,
        "skipped": _skipped(nodes),
        "healthy": _healthy(nodes),
        "grid": grid_of(nodes, anchors),
        "rows": rows,
        "several_gpus": len({row.gpus for row in rows if row.gpus}) > 1,
        "nodes": len(nodes),
        "charts": page_links.charts_of(nodes, anchors),
        "quotas": page_quota.quota_of(nodes),
        "short": short_names(name_of(node.name) for node in nodes),
    }


# ---- the parts that never change ----


@functools.lru_cache(maxsize=None)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        finalize=seen,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.from_string(read_file("page.html.j2"))


# ---- the run ----


def _state(report: RunReport) -> tuple[str, str]:
    """The state of the run as a status, and its word. A run that checked nothing has not passed."""
    checked = any(node.verdict.fit != SKIPPED for node in report.nodes)
    if report.verdict.passed and (report.run.check_mode or not checked):
        return SKIP, "nothing checked"
    return (PASS if report.verdict.passed else FAIL), report.verdict.word


def _order(node: NodeReport) -> t.Any:
    return -STATUSES.index(node.status), natural(name_of(node.name))


def _counts(counts: dict[str, int]) -> list[tuple[str, int, str]]:
    """Label, number and status of each fitness that nodes have."""
    kinds = ((UNFIT, FAIL), (COULD_NOT_TELL, UNKNOWN), (FIT, PASS), (SKIPPED, SKIP))
    found = [(FITNESS_TEXTS[fit], counts[fit], status) for fit, status in kinds if counts[fit]]
    partial = counts["partial"]
    return (
        [("nodes", counts["nodes"], "")]
        + found
        + ([("fit, not fully checked", partial, WARN)] if partial else [])
    )


def _policy(policy: Policy) -> str:
    parts = [
        f"{policy.max_unfit} unfit, {policy.max_unknown} undecided and {policy.max_partial} not fully "
        "checked nodes are tolerated",
        f"statuses that make a node unfit: {', '.join(policy.unfit)}",
    ]
    if policy.warn_only:
        parts.append(f"codes that only warn: {', '.join(policy.warn_only)}")
    return "; ".join(parts)


def _replay(replay: t.Optional[dict[str, t.Any]]) -> str:
    """The run that was judged again and how; "" if the document is of a run itself."""
    if not replay:
        return ""
    options = mapping(replay.get("options"))
    message = (
        f"The readings of run {name_of(replay.get('of'))}, judged again at "
        f"{time_of(text_of(replay.get('judged')))}; nothing was measured"
    )
    message += f". Options that replace the recorded ones: {text_of(options)}" if options else ""
    for check, nodes in mapping(replay.get("kept")).items():
        message += (
            f". Not judged again, because the document has no readings: {name_of(check)} on "
            f"{folded(map(name_of, sequence(nodes)), 10)}"
        )
    trouble = text_of(replay.get("mesh_trouble"))
    return message + (
        f". The network between the nodes was not judged again: {trouble}" if trouble else ""
    )


# ---- nodes that are not healthy ----


def _card(node: NodeReport, place: int) -> _Card:
    findings = node.verdict.findings
    if not findings and node.trouble:
        findings = [CheckFinding("", node.trouble)]
    driver = text_of(node.facts.get("driver_version"))
    most = _MOST_FINDINGS if place < _WHOLE_CARDS else _MOST_LATER
    actions = [_NEXT[action] for action in node.verdict.actions]
    shown, more = _findings(findings, most)
    return _Card(
        f"node-{place}",
        name_of(node.name) or "(no name)",
        node.status,
        _fitness(node),
        name_of(gpu_models(node)),
        f"driver {driver}" if driver else "",
        ", ".join(dict.fromkeys(actions)),
        shown,
        more,
        place < _OPEN_CARDS,
    )


def _findings(recorded: t.Sequence[CheckFinding], most: int) -> tuple[list[_Finding], int]:
    """The findings in their order, equal findings of several subjects as one, and the number of
    findings that are left out.
    """
    alike: dict[tuple[str, ...], list[CheckFinding]] = {}
    for found in recorded:
        finding = found.finding
        same = (finding.status, finding.code, found.check, finding.message, finding.action)
        alike.setdefault(same, []).append(found)
    groups = list(alike.values())
    return [_finding(group) for group in groups[:most]], sum(len(group) for group in groups[most:])


def _finding(alike: t.Sequence[CheckFinding]) -> _Finding:
    check, first = alike[0]
    subjects = [_subject(found.finding) for found in alike]
    code = name_of(first.code)
    entry = runbook(code)
    if len(alike) == 1:
        evidence = evidence_of(first.evidence)
    else:
        evidence = [
            Evidence(subject or "node", shortened(found.finding.evidence))
            for subject, found in zip(subjects, alike)
            if found.finding.evidence
        ]
    return _Finding(
        first.status,
        code,
        name_of(check),
        ", ".join(dict.fromkeys(filter(None, subjects))),
        first.message,
        html_with_code(next_step(first)),
        html_with_code(entry.meaning),
        expectations_of(first.evidence),
        evidence,
    )


def _subject(finding: Finding) -> str:
    """The subject of a finding; "" for the node as a whole."""
    return "" if finding.subject.kind == "node" else name_of(str(finding.subject))


def _fitness(node: NodeReport) -> str:
    words = FITNESS_TEXTS[node.verdict.fit]
    return f"{words}, not fully checked" if node.verdict.partial else words


def _codes(bad: t.Sequence[NodeReport]) -> tuple[list[_Code], int]:
    """The finding codes of all nodes, the worst and most frequent first, and the number of codes
    that are left out.
    """
    nodes: dict[tuple[str, str], dict[str, None]] = {}
    for node in bad:
        for found in node.verdict.findings:
            key = (found.finding.status, name_of(found.finding.code))
            nodes.setdefault(key, {})[name_of(node.name)] = None
    ranked = sorted(
        nodes.items(), key=lambda item: (-STATUSES.index(item[0][0]), -len(item[1]), item[0][1])
    )
    codes = [
        _Code(status, code, len(names), folded(names), html_with_code(runbook(code).next))
        for (status, code), names in ranked[:_MOST_CODES]
    ]
    return codes, len(ranked) - len(codes)


# ---- the others ----


def _skipped(nodes: t.Sequence[NodeReport]) -> list[_Group]:
    """The reasons of skipped checks, each once with its checks and nodes."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for node in nodes:
        name = name_of(node.name)
        if node.skipped:
            reasons.setdefault(("", node.skipped), {})[name] = None
        for result in node.results:
            if result.status == SKIP:
                words = f"{result.summary}{' (check mode)' if is_planned(result) else ''}"
                reasons.setdefault((name_of(result.check), words), {})[name] = None
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (check, words), names in reasons.items():
        by_reason.setdefault((words, tuple(names)), []).append(check)
    groups = [
        _Group(
            folded(names),
            len(names),
            [f"{', '.join(check for check in found if check)}: {words}" if any(found) else words],
        )
        for (words, names), found in by_reason.items()
    ]
    return _cut(sorted(groups, key=lambda group: -group.nodes))


def _cut(groups: list[_Group]) -> list[_Group]:
    if len(groups) <= _MOST_GROUPS:
        return groups
    rest = groups[_MOST_GROUPS:]
    return groups[:_MOST_GROUPS] + [
        _Group(
            "", sum(group.nodes for group in rest), [f"and {len(rest)} more reasons, in run.json"]
        )
    ]


def _missed(mesh: MeshReport | None) -> list[_Group]:
    """Planned measurements between nodes that did not take place, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for one in mesh.missed if mesh else []:
        words = (
            f"{name_of(one.get('check'))} on {name_of(one.get('plane'))}: "
            f"{text_of(one.get('message'))}"
        )
        reasons.setdefault(words, []).append(
            f"{name_of(one.get('host'))} with {name_of(one.get('partner'))}"
        )
    groups = [
        _Group(
            ", ".join(pairs[:6]) + (f" and {len(pairs) - 6} more" if len(pairs) > 6 else ""),
            len(pairs),
            [words],
        )
        for words, pairs in reasons.items()
    ]
    return _cut(sorted(groups, key=lambda group: -group.nodes))


def _healthy(nodes: t.Sequence[NodeReport]) -> list[_Group]:
    """Healthy nodes in groups: their GPUs, their figures as ranges, and their checks."""
    groups = []
    for group in group_healthy(nodes):
        lines = [
            name_of(group.gpus) or "no GPUs known",
            *(str(figure) for figure in group.figures if figure.check != "gpu_count"),
            f"passed: {', '.join(map(name_of, group.checks)) or 'no check'}",
        ]
        if group.skipped:
            lines.append(f"skipped: {', '.join(map(name_of, group.skipped))}")
        groups.append(_Group(folded(map(name_of, group.nodes)), len(group.nodes), lines))
    return _cut(groups)


def _row(node: NodeReport, anchors: t.Mapping[str, str]) -> _Row:
    findings = node.verdict.findings
    first = ""
    if findings:
        finding = findings[0].finding
        first = ": ".join(filter(None, (_subject(finding), finding.message)))[:300]
        first += f" (and {plural(len(findings) - 1, 'more finding')})" if findings[1:] else ""
    elif node.status == SKIP:
        first = (
            node.skipped
            or next((result.summary for result in node.results if result.status == SKIP), "")[:300]
        )
    urgency = max([ACTIONS.index(action) for action in node.verdict.actions], default=0)
    name = name_of(node.name)
    return _Row(
        name,
        anchors.get(name, "") if node.status in BAD else "",
        node.status,
        STATUSES.index(node.status),
        _fitness(node),
        name_of(gpu_models(node)),
        first,
        _NEXT[ACTIONS[urgency]] if urgency else "",
        urgency,
    )
