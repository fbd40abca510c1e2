# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rooms of the collection: imports point down, no circle, small folders, short functions."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "plugins/module_utils/_health"
AGENT = ROOT / "src/agent/autopilot_agent"
PLUGIN_UTILS = ROOT / "plugins/plugin_utils"
COLLECTION = "ansible_collections.autopilot.gpu.plugins."
PREFIXES = {
    CORE: (COLLECTION + "module_utils._health", "_health"),
    AGENT: ("autopilot_agent",),
    PLUGIN_UTILS: (COLLECTION + "plugin_utils",),
}

FLOOR = {"lenient", "model", "node_names", "spelling", "text", "times"}
#: Rooms of the core by level: a module imports from its own room and from rooms of lower levels.
LEVELS = {
    "floor": 0,
    "knowledge": 1,
    "node.system": 2,
    "node.devices": 3,
    "node.framework": 4,
    "node.sampling": 5,
    "node.snapshots": 5,
    "node.checks": 6,
    "node.mesh": 7,
    # What lies in node/ itself puts the rooms together.
    "node": 8,
    "cluster": 2,
    # What node/ and cluster/ have in common for the resident agent.
    "agent": 9,
    "fleet.mesh": 9,
    "fleet.usage": 9,
    "fleet.judging": 10,
    "fleet.output": 11,
}
LEVELS_OF_PLUGIN_UTILS = {
    "_controller": 0,
    "_report": 1,
    "_verdict": 2,
    "_pushgateway": 3,
    "_agents": 4,
}
#: What fleet/ imports from node/: the records of checks (`node.checks`), how they are found and how
#: readings become a result.
FROM_NODE_TO_FLEET = {
    "node.registry",
    "node.framework.check",
    "node.framework.check_texts",
    "node.framework.conclude",
    "node.framework.pair_options",
}
MOST_MODULES = 14
MOST_FILES_OF_THE_CORE = 7
MOST_LINES = 60


def module_of(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def graph(root: Path) -> dict[str, set[str]]:
    """The modules below ``root`` and which of each other they import, within functions too."""
    modules = {module_of(root, path): path for path in sorted(root.rglob("*.py"))}
    return {
        name: {
            found for given in imports(root, path) if (found := nearest(given, modules)) is not None
        }
        - {name}
        for name, path in modules.items()
    }


def imports(root: Path, path: Path) -> list[str]:
    """What a file imports from below ``root``, as dotted names relative to it; a name imported from
    a module is appended to the module's.
    """
    package = path.relative_to(root).parent.parts
    found = []
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom):
            given = statement.module.split(".") if statement.module else []
            if statement.level:
                kept = len(package) - statement.level + 1
                if kept < 0:
                    continue
                base = ".".join([*package[:kept], *given])
            else:
                base = below(root, ".".join(given))
                if base is None:
                    continue
            found += [f"{base}.{name.name}".strip(".") for name in statement.names]
        elif isinstance(statement, ast.Import):
            found += [
                name for given in statement.names if (name := below(root, given.name)) is not None
            ]
    return found


def below(root: Path, dotted: str) -> str | None:
    for prefix in PREFIXES[root]:
        if dotted == prefix or dotted.startswith(prefix + "."):
            return dotted[len(prefix) + 1 :]
    return None


def nearest(dotted: str, modules: dict[str, Path]) -> str | None:
    """The module that a dotted name is, or that it is a name of."""
    if dotted in modules:
        return dotted
    parent = dotted.rpartition(".")[0]
    return parent if parent in modules else None


def room_of(module: str) -> str:
    """The room of a module of the core."""
    parts = module.split(".")
    if module in FLOOR or module == "":
        return "floor"
    if parts[0] in ("node", "fleet"):
        room = ".".join(parts[:2])
        return room if room in LEVELS else parts[0]
    return parts[0]


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Nodes from which a path leads back to themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(arrows.get(start, ()))
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += arrows.get(at, ())
        return seen

    return sorted(start for start in arrows if start in reached(start))


CORE_GRAPH = graph(CORE)
ARROWS = [(name, target) for name, targets in CORE_GRAPH.items() for target in sorted(targets)]


def test_no_arrow_of_the_core_points_up():
    up = [
        f"{name} -> {target}"
        for name, target in ARROWS
        if room_of(name) != room_of(target)
        # The packages node and fleet are empty but for a docstring.
        and target not in ("node", "fleet")
        and LEVELS[room_of(target)] >= LEVELS[room_of(name)]
    ]
    assert not up


def test_wings_import_of_each_other_what_they_may():
    strange = []
    for name, target in ARROWS:
        wings = name.split(".")[0], target.split(".")[0]
        if wings in (("node", "fleet"), ("node", "cluster"), ("cluster", "node")):
            strange.append(f"{name} -> {target}")
        if wings in (("cluster", "fleet"), ("fleet", "cluster")):
            strange.append(f"{name} -> {target}")
        if wings == ("fleet", "node") and room_of(target) != "node.checks":
            strange += [f"{name} -> {target}"] * (target not in FROM_NODE_TO_FLEET)
    assert not strange


def test_no_check_imports_a_check():
    assert not [
        f"{name} -> {target}"
        for name, target in ARROWS
        if room_of(name) == room_of(target) == "node.checks" and target != "node.checks"
    ]


def test_what_the_verdict_of_the_mesh_is_made_of_knows_nothing_of_it():
    verdict = "fleet.mesh.verdict"
    assert not [
        f"{name} -> {target}"
        for name, target in ARROWS
        if target.startswith(verdict)
        and name.startswith("fleet.mesh.")
        and not name.startswith(verdict)
    ]


@pytest.mark.parametrize("root", [CORE, AGENT, PLUGIN_UTILS], ids=lambda root: root.name)
def test_no_circle_of_modules(root):
    assert not circles(graph(root))


def test_no_circle_of_rooms():
    rooms: dict[str, set[str]] = {}
    for name, target in ARROWS:
        if room_of(name) != room_of(target):
            rooms.setdefault(room_of(name), set()).add(room_of(target))
    assert not circles(rooms)


def test_no_arrow_of_plugin_utils_points_up():
    level = LEVELS_OF_PLUGIN_UTILS
    assert not [
        f"{name} -> {target}"
        for name, targets in graph(PLUGIN_UTILS).items()
        for target in targets
        if name.split(".")[0] != target.split(".")[0]
        and level[target.split(".")[0]] >= level[name.split(".")[0]]
    ]


def test_the_core_and_what_it_is_made_of_are_small():
    assert len(list(CORE.glob("*.py"))) <= MOST_FILES_OF_THE_CORE
    folders = {
        path.parent
        for root in (CORE, AGENT, PLUGIN_UTILS)
        for path in root.rglob("*.py")
        if path.parent != CORE / "node/checks"
    }
    counts = {
        str(folder.relative_to(ROOT)): len(
            [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        )
        for folder in folders
    }
    assert not {folder: count for folder, count in counts.items() if count > MOST_MODULES}


def trees() -> dict[str, ast.Module]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("needs a git checkout")
    return {
        name: ast.parse((ROOT / name).read_text())
        for name in sorted(set(listed.stdout.split()))
        if (ROOT / name).is_file()
    }


def long_functions() -> set[str]:
    """Functions over `MOST_LINES` lines: ``path::name``."""
    return {
        f"{path}::{node.name}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES
    }


def doubled_classes() -> set[str]:
    """Names of classes that exist more than once in the core."""
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in names.items() if count > 1}


def test_functions_are_short():
    assert long_functions() == set()


def test_a_class_of_the_core_has_a_name_of_its_own():
    assert doubled_classes() == set()
