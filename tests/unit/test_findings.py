# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every code that the core, the agent or a plugin can give a finding has its words, and no other
has.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import (
    cuda_findings,
    driver_findings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    gpu_power,
    image_registry,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge import dcgm
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.finding_text import (
    node_step,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    FINDINGS,
    SHARED,
    brief_steps,
    next_step,
    runbook,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import faults
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes import (
    registry as probes,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    ACTIONS,
    FAIL,
    STATUSES,
    UNKNOWN,
    WARN,
    Finding,
)

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "plugins/module_utils/_health"
#: Where findings are made: the core, the resident agent, and the plugins on the controller.
MAKERS = (
    CORE,
    ROOT / "src/agent/autopilot_agent",
    *(ROOT / "plugins" / name for name in ("plugin_utils", "action", "modules")),
)
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for maker in MAKERS
    for path in sorted(maker.rglob("*.py"))
}
#: Text constants by name, for a code that has one.
CONSTANTS = {
    name: text
    for source in SOURCES.values()
    for name, text in re.findall(r'^([A-Z][A-Z_]+) = "([a-z0-9_]+)"$', source, re.M)
}

#: Codes that come from tables.
TABLES = {
    *(
        row[0]
        for table in (
            driver_findings._GPU_ERRORS,
            driver_findings._NODE_ERRORS,
            cuda_findings.CUDA_ERRORS,
            gpu_power.SLOWDOWNS,
        )
        for row in table.values()
    ),
    *(row[0] for row in image_registry._TROUBLES.values()),
    *(row.code for table in (dcgm.MEANINGS, dcgm.OVERRIDES) for row in table.values()),
    *(code for code, _action in faults.CODES.values()),
}
#: Codes that are put together, by how they are; None: `runbook` has words for all of them.
COMPOSED = {
    "f'{probe.program}_missing'": {f"{probe.program}_missing" for probe in probes.PROBES},
    # Where datagrams arrive beside the silence of a program.
    "f'{probe.program}_hung'": {f"{probe.program}_hung" for probe in probes.PROBES if probe.silent},
    "f'slow_{cause.scope}'": {"slow_link", "slow_path", "slow_group"},
    "f'{result.check}_{result.status}'": None,
}
#: Codes of other findings, which are collected where these are made, and what is read from a
#: document.
HANDED_ON = {"code", "one.code", "first.code", "finding.code", "trouble.code"}


def words(node):
    """The text constants that an expression can be."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.IfExp):
        return words(node.body) | words(node.orelse)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return {CONSTANTS[node.id]}
    return COMPOSED.get(ast.unparse(node)) or set()


def assigned(target, value):
    """What a name ``code`` is given in an assignment, a default row that stands in it included, or
    by a row of a loop.
    """
    if isinstance(target, ast.Name):
        return words(value) if target.id == "code" else set()
    rows = [
        one
        for one in ast.walk(value)
        if isinstance(one, ast.Tuple)
        and isinstance(target, ast.Tuple)
        and len(one.elts) == len(target.elts)
    ]
    return set().union(
        *(assigned(one, other) for row in rows for one, other in zip(target.elts, row.elts))
    )


def returned(function):
    """What a function named ``*code`` returns, where it returns text."""
    return set().union(
        *(
            words(one.value)
            for one in ast.walk(function)
            if isinstance(one, ast.Return) and one.value is not None
        )
    )


def collected():
    """Codes by the sources, and expressions that this cannot follow."""
    codes, lost = set(TABLES), set()
    for path, source in SOURCES.items():
        if "Finding(" not in source:
            continue
        tree = ast.parse(source)
        rows = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Tuple)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Finding"
            ):
                first = (
                    node.args[0]
                    if node.args
                    else next(word.value for word in node.keywords if word.arg == "code")
                )
                codes |= words(first)
                if not words(first) and ast.unparse(first) not in HANDED_ON | set(COMPOSED):
                    lost.add(f"{path.name}:{node.lineno}: {ast.unparse(first)}")
            elif isinstance(node, ast.Assign):
                codes |= set().union(*(assigned(target, node.value) for target in node.targets))
            elif isinstance(node, ast.For):
                several = rows.get(node.iter.id) if isinstance(node.iter, ast.Name) else node.iter
                codes |= (
                    set().union(*(assigned(node.target, row) for row in several.elts))
                    if isinstance(several, ast.Tuple)
                    else set()
                )
            elif isinstance(node, ast.FunctionDef) and node.name.endswith("_code"):
                codes |= returned(node)
    return codes, lost


def test_a_code_stands_in_one_table_only():
    tables = [area.FINDINGS for area in SHARED] + [check.findings for check in registry.every()]
    assert sum(map(len, tables)) == len(FINDINGS)


def test_every_code_has_its_words():
    codes, lost = collected()
    assert lost == set(), "codes that are made in a way this test does not follow"
    assert sorted(codes - set(FINDINGS)) == [] and sorted(set(FINDINGS) - codes) == []
    assert {
        "low_bandwidth",
        "slow_link",
        "fping_missing",
        "dcgm_isolate",
        "power_limit_not_reported",
        "mtu_differs",
        "ports_closed",
        # Only the resident agent makes it.
        "peers_unread",
    } <= codes


@pytest.mark.parametrize("code", FINDINGS)
def test_words_are_short_and_whole_sentences(code):
    entry = FINDINGS[code]
    assert re.fullmatch(r"[a-z][a-z0-9_]*", code)
    for text in entry:
        assert text[0].isupper() or text.split()[0] in ("dcgmi", "fping", "iperf3")
        assert text.endswith((".", ")")) and 5 < len(text) < 300
        assert text.count("`") % 2 == 0 and "{_" not in text


def test_every_code_has_a_runbook():
    assert runbook("low_bandwidth") is FINDINGS["low_bandwidth"]
    assert "check gpu_power is unknown" in runbook("gpu_power_unknown").meaning
    assert all(all(runbook(f"{check}_{status}")) for check in registry.NAMES for status in STATUSES)
    assert all(runbook("weather")) and runbook("weather") == runbook("")


#: Words that take a node, or a part, out of use at once.
OUT_OF_USE = r"drain|let no job|off the node|^(Reset|Reboot|Power-cycle|Replace)\b"
#: Their action is ``drain_node`` or ``fix_configuration``, and the reset is how the cause goes.
RESETS = {"nvlink_down", "nvlink_lost", "nvswitch_error", "ecc_mode_pending", "mig_mode_pending"}
#: Skipped checks, which need an idle node; a driver update, which ends with a reboot; a part that
#: the action says to replace.
EXCEPT = {"gpu_in_use", "jobs_on_node", "driver_version_mismatch", "no_spare_rows"} | {
    "ecc_uncorrectable"
}


def test_only_the_action_takes_a_node_out_of_use():
    """A code is a warning here and a failure there: its text holds for both, and the action's
    sentence, which comes first, says what to do with the node.
    """
    told = {code for code, entry in FINDINGS.items() if re.search(OUT_OF_USE, entry.next)}
    assert told == RESETS | EXCEPT
    for action in ("none", "watch", "fix_configuration"):
        assert [node_step(action, status) for status in STATUSES] == [""] * len(STATUSES)
    for status in (WARN, UNKNOWN):
        steps = [node_step(action, status).lower() for action in ACTIONS]
        assert not [step for step in steps if "drain" in step]


def test_action_and_text_are_one_next_step():
    gone = Finding("gpu_gone", FAIL, "missing since the snapshot", "reboot_node")
    assert next_step(gone) == (
        "Drain the node and reboot it when its jobs have ended. If the GPU is still missing after "
        "the reboot, power-cycle the node, reseat the GPU, then replace it."
    )
    slow = Finding("low_bandwidth", FAIL, "3 GB/s", "drain_node")
    link = "Check the link with `nvidia-smi -q -i <gpu>` and `lspci -vvs <address>`."
    assert brief_steps([slow]) == f"Drain the node. {link}"
    assert brief_steps([replace(slow, status=WARN, action="watch")]) == link
    narrow = replace(slow, code="link_width")
    seat = "Reseat the card, then try another riser or slot."
    assert brief_steps([slow, narrow, slow]) == f"Drain the node. {link} {seat}"
    away = Finding("unreachable", UNKNOWN, "could not be reached", "fix_configuration")
    assert next_step(away).startswith("Check that the host is powered on and that SSH reaches it")


#: Texts that name what comes after the action of their finding, and that action.
AFTERWARDS = {"after the reset": "reset_gpu", "after the reboot": "reboot_node"}


def test_a_text_that_names_the_reset_or_the_reboot_belongs_to_that_action():
    """By the findings that the code of the checks makes, as far as both stand there as words."""
    pairs = [
        (code, action)
        for path in sorted(CORE.rglob("*.py"))
        for code, action in re.findall(
            r'Finding\(\s*"([a-z0-9_]+)",[^()]*?,\s*"([a-z_]+)"', path.read_text(encoding="utf-8")
        )
        if action in ACTIONS
    ]
    assert len(pairs) > 100
    wrong = [
        (code, action)
        for code, action in pairs
        for words, wanted in AFTERWARDS.items()
        if code in FINDINGS and words in FINDINGS[code].next and action != wanted
    ]
    assert wrong == []
