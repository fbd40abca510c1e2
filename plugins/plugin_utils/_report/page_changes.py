# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The changes since the previous run, for the report page. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    COULD_NOT_TELL,
    FITNESS,
    FITNESS_TEXTS,
    UNFIT,
    CheckFinding,
    NodeReport,
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import STATUSES
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import (
    folded,
    name_of,
    time_of,
)

_MOST_LINES = 30
#: Ranks of changes: changes for the worse come first.
_WORSE, _NEW, _BETTER, _GONE, _ONLY_NOW, _ONLY_BEFORE = range(6)


class Change(t.NamedTuple):
    """The same change on several nodes."""

    text: str
    nodes: int
    names: str


class Changes(t.NamedTuple):
    """The changes since the run ``run_id``."""

    run_id: str
    finished: str
    #: ``passed`` or ``failed``.
    word: str
    lines: list[Change]
    #: Changes that are not shown.
    more: int


#: Rank and text of a change.
_Key = t.Tuple[int, int, str]


def changes_of(before: RunReport, after: RunReport) -> Changes:
    """The changes of fitness and findings from one run to the next, each with its nodes or links."""
    old, new = _by_name(before), _by_name(after)
    nodes: dict[_Key, list[str]] = {
        (_ONLY_NOW, 0, "only in this run"): list(new.keys() - old.keys()),
        (_ONLY_BEFORE, 0, "only in the run before"): list(old.keys() - new.keys()),
    }
    for name in old.keys() & new.keys():
        was, now = old[name].verdict, new[name].verdict
        changed = _findings_changed(was.findings, now.findings)
        if was.fit != now.fit:
            rank = _WORSE if now.fit in (UNFIT, COULD_NOT_TELL) else _BETTER
            changed.add(
                (
                    rank,
                    FITNESS.index(now.fit),
                    f"{FITNESS_TEXTS[now.fit]}, was {FITNESS_TEXTS[was.fit]}",
                )
            )
        for key in changed:
            nodes.setdefault(key, []).append(name)
    links = _by_subject(before.findings), _by_subject(after.findings)
    for subject in links[0].keys() | links[1].keys():
        for key in _findings_changed(*(found.get(subject, []) for found in links)):
            nodes.setdefault(key, []).append(subject)
    lines = [
        Change(text, len(names), folded(names))
        for (_rank, _status, text), names in sorted(nodes.items())
        if names
    ]
    return Changes(
        name_of(before.run.run_id),
        time_of(before.run.finished),
        before.verdict.word,
        lines[:_MOST_LINES],
        max(0, len(lines) - _MOST_LINES),
    )


def _by_name(report: RunReport) -> dict[str, NodeReport]:
    return {name_of(node.name): node for node in report.nodes if node.name}


def _by_subject(findings: t.Sequence[CheckFinding]) -> dict[str, list[CheckFinding]]:
    by_subject: dict[str, list[CheckFinding]] = {}
    for found in findings:
        by_subject.setdefault(name_of(str(found.finding.subject)), []).append(found)
    return by_subject


def _findings_changed(
    before: t.Sequence[CheckFinding], after: t.Sequence[CheckFinding]
) -> set[_Key]:
    """The findings that appeared and disappeared."""
    old, new = ({_fact(found) for found in findings} for findings in (before, after))
    return {(_NEW, -status, f"new: {text}") for status, text in new - old} | {
        (_GONE, -status, f"no longer found: {text}") for status, text in old - new
    }


def _fact(found: CheckFinding) -> tuple[int, str]:
    """The rank of a finding's status, and its status, check and code as text."""
    finding = found.finding
    words = (finding.status, name_of(found.check), name_of(finding.code))
    return STATUSES.index(finding.status), " ".join(filter(None, words))
