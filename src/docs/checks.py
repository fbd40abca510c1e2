# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Generate the page about the checks: what each check measures, its options, findings and metrics,
from the check's record and the documentation of its module.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping

import yaml

from _health.node import registry
from _health.node.framework.check import AFTER_A_JOB, ON_CLUSTER, ON_MESH, WHEN_NAMED, Check

ROOT = Path(__file__).resolve().parents[2]
PAGE = (Path(__file__).parent / "checks.md.in").read_text(encoding="utf-8")
#: Ansible's markup: a macro with one argument that stands for a literal.
_LITERAL = re.compile(r"\b(?:C|V|O|RV|E)\(((?:[^()\\]|\\.|\([^()]*\))*)\)")
_PLUGIN = re.compile(r"\b(?:M|P)\(([^)#]+)(?:#[a-z]+)?\)")
_LINK = re.compile(r"\bL\(([^,]+), *([^)]+)\)|\bU\(([^)]+)\)")
_STYLE = re.compile(r"\b[BI]\(([^)]*)\)")


def markdown(text: str) -> str:
    """Convert Ansible's markup to Markdown."""
    text = _LITERAL.sub(lambda found: f"`{found[1]}`", text)
    text = _PLUGIN.sub(r"`\1`", text)
    text = _LINK.sub(
        lambda found: f"<{found[3]}>" if found[3] else f"[{found[1]}]({found[2]})", text
    )
    return " ".join(_STYLE.sub(r"**\1**", text).split())


def documentation(module: str) -> Dict[str, Any]:
    """The DOCUMENTATION of a module; empty for a check without a module."""
    path = ROOT / "plugins" / "modules" / f"{module}.py"
    if not path.exists():
        return {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == (
            "DOCUMENTATION"
        ):
            read: Dict[str, Any] = yaml.safe_load(ast.literal_eval(statement.value))
            return read
    raise ValueError(f"{path} has no DOCUMENTATION")


def sentences(given: Any) -> List[str]:
    """The paragraphs of a description, which is a string or a list of strings."""
    return [markdown(text) for text in ([given] if isinstance(given, str) else given or [])]


def title_of(check: Check, documented: Mapping[str, Any]) -> str:
    """The purpose of the check in one line, without a full stop."""
    return markdown(documented.get("short_description") or check.purpose)


def _runs(check: Check) -> str:
    if check.place == ON_MESH:
        return "Runs between the nodes of a play, see [The network between nodes](mesh.md)."
    if check.place == ON_CLUSTER:
        return "Runs against a Kubernetes cluster, see [Kubernetes](kubernetes.md)."
    return {
        WHEN_NAMED: "Runs in the inflight, and wherever it is named in `checks_list`.",
        AFTER_A_JOB: "Runs in the postflight and the inflight, see [Jobs](jobs.md).",
    }.get(check.runs, "Runs in the preflight.")


def _options(documented: Mapping[str, Any]) -> Iterable[List[str]]:
    for name, option in (documented.get("options") or {}).items():
        default = option.get("default", "")
        text = str(default).lower() if isinstance(default, bool) else str(default)
        yield [
            f"`{name}`",
            str(option.get("type", "str")),
            f"`{text}`" if text else "",
            " ".join(sentences(option["description"])),
        ]


def section(check: Check, table: Callable[..., str]) -> str:
    """The section of one check."""
    documented = documentation(check.name)
    known = f" Short name: {', '.join(f'`{name}`' for name in check.short_names)}."
    parts = [
        f'<a id="{check.name}"></a>\n\n## `{check.name}`',
        f"{title_of(check, documented)}. Intrusion: {check.intrusion}. {_runs(check)}"
        + (known if check.short_names else ""),
        "\n".join(f"- {sentence}" for sentence in sentences(documented.get("description"))),
        table(("option", "type", "default", "meaning"), _options(documented))
        if documented.get("options")
        else "",
        "Findings: "
        + ", ".join(f"[`{code}`](findings.md#{code})" for code in sorted(check.findings))
        + "."
        if check.findings
        else "",
    ]
    return "\n\n".join(part for part in parts if part)


def page(table: Callable[..., str]) -> str:
    checks = registry.every()
    return PAGE.format(
        summary=table(
            ("check", "short name", "intrusion", "what it does"),
            [
                (
                    f"[`{check.name}`](#{check.name})",
                    ", ".join(f"`{name}`" for name in check.short_names),
                    check.intrusion,
                    title_of(check, documentation(check.name)),
                )
                for check in checks
            ],
        ),
        sections="\n\n".join(section(check, table) for check in checks),
    )
