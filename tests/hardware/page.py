# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the page of make hardware, in Markdown."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List

from compare import Comparison


def sentence(one: Comparison) -> str:
    """A comparison in one line."""
    where = "" if one.gpu is None else f"GPU {one.gpu}: "
    figures = f" ({_shown(one.ours)}, {one.tool} {_shown(one.theirs)})"
    why = f" {one.why}" if one.why.startswith("by ") else f": {one.why}" if one.why else ""
    return f"{one.check}: {where}{one.figure}: {one.result}{why}{figures}"


def render(document: Dict[str, Any]) -> str:
    verdict, about = document["verdict"], document["about"]
    names = sorted(set(about["gpus"]), key=str)
    models = ", ".join(f"{about['gpus'].count(name)} x {name}" for name in names)
    lines = ["# autopilot.gpu on a real GPU", "", f"**Verdict: {verdict['text']}**", ""]
    lines += [f"- {_cell(reason)}" for reason in verdict["reasons"]]
    lines += ["", "## Machine", "", *_table(("what", "value"), [("GPUs", models)])]
    lines += [f"| {key} | {_shown(about[key])} |" for key in about if key != "gpus"]
    lines += ["", "## Checks", ""]
    lines += _table(
        ("check", "status", "seconds", "summary"),
        [
            (one["check"], one["status"], one["duration_seconds"], one["summary"])
            for one in document["checks"]
        ],
    )
    lines += ["", "## Comparisons", "", "Rates are in GB/s (decimal).", ""]
    lines += _table(
        ("check", "figure", "GPU", "this release", "tool", "its figure", "result"),
        [
            (
                one["check"],
                one["figure"],
                one["gpu"],
                one["ours"],
                one["tool"],
                one["theirs"],
                " ".join(filter(None, (one["result"], one["why"]))),
            )
            for one in document["comparisons"]
        ],
    )
    return "\n".join(lines) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> List[str]:
    titles = list(head)
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    return lines + [f"| {' | '.join(_cell(_shown(cell)) for cell in row)} |" for row in rows]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.0f}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cell(text: str) -> str:
    """Text that cannot break a table or become markup."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    for letter in "\\|<>`*":
        plain = plain.replace(letter, f"\\{letter}")
    return plain
