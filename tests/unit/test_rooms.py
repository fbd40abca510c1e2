# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure of the code: which room may import which, how large rooms and functions may be.

The import graph is read from the source, imports within functions included.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "plugins" / "module_utils" / "_health"
#: Lines that a function may have, from its name to its end.
MOST_LINES = 60
#: Modules that a folder may have, apart from checks/.
MOST_MODULES = 14
MOST_FILES_OF_CORE = 6

#: The rooms of the core from the floor up: a room imports from itself and from rooms of lower levels.
LEVELS = {
    "": 0,
    "knowledge": 1,
    "node.system": 2,
    "node.devices": 3,
    "node.framework": 4,
    "node.sampling": 5,
    "node.snapshots": 5,
    "node.checks": 6,
    "node.mesh": 7,
    "node": 8,
    "cluster": 2,
    "fleet.judging": 11,
    "fleet.mesh": 10,
    "fleet.usage": 10,
    "fleet.output": 12,
}
#: All that the fleet takes from the node: the registry, the checks' records and judges.
OF_NODE_FOR_FLEET = (
    "node.checks",
    "node.registry",
    "node.framework.check",
    "node.framework.conclude",
)
#: The rooms of the agent: what each may import from, beside itself and the core.
AGENT_ROOMS: Dict[str, Set[str]] = {
    "": {"", "http", "fleet", "passes", "cluster"},
    "http": {"", "fleet", "passes", "cluster"},
    "fleet": {"", "passes", "cluster"},
    "passes": {"", "cluster"},
    "cluster": {""},
}


class Arrow(NamedTuple):
    """``importer`` imports ``imported``, both as dotted names below the package's root."""

    importer: str
    imported: str


def modules_of(root: Path) -> Dict[str, Path]:
    """The modules of a package by dotted name; the package itself is the empty name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows_of(root: Path) -> List[Arrow]:
    """Who imports whom within a package, by relative imports."""
    modules = modules_of(root)
    return [
        Arrow(name, imported)
        for name, path in modules.items()
        for imported in _imports(name, path, modules)
    ]


def _imports(name: str, path: Path, modules: Dict[str, Path]) -> Iterator[str]:
    package = name.split(".") if name else []
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                yield whole if whole in modules else ".".join(base)


def room_of(module: str) -> str:
    """The room that a module of the core lies in; files of the floor lie in the empty room."""
    parts = module.split(".")
    for length in (2, 1):
        room = ".".join(parts[:length])
        if room in LEVELS:
            return room
    return ""


CORE_ARROWS = arrows_of(CORE)


def test_arrows_of_the_core_point_down():
    upwards = [
        arrow
        for arrow in CORE_ARROWS
        if room_of(arrow.importer) != room_of(arrow.imported)
        and LEVELS[room_of(arrow.imported)] >= LEVELS[room_of(arrow.importer)]
    ]
    assert upwards == []


def test_the_wings_of_the_core_keep_apart():
    allowed = {
        "node": ("node", "knowledge"),
        "cluster": ("cluster", "knowledge"),
        "knowledge": ("knowledge",),
        "fleet": ("fleet", "knowledge", *OF_NODE_FOR_FLEET),
    }
    outside = [
        arrow
        for arrow in CORE_ARROWS
        for wing in (arrow.importer.split(".")[0],)
        if wing in allowed
        and room_of(arrow.imported) != ""
        and not any(
            arrow.imported == place or arrow.imported.startswith(place + ".")
            for place in allowed[wing]
        )
    ]
    assert outside == []


def test_no_check_imports_a_check():
    of_checks = "node.checks."
    assert [
        arrow
        for arrow in CORE_ARROWS
        if arrow.importer.startswith(of_checks) and arrow.imported.startswith(of_checks)
    ] == []


@pytest.mark.parametrize(
    "package", [CORE, ROOT / "src/agent/autopilot_agent"], ids=lambda p: p.name
)
def test_no_modules_import_each_other_in_a_circle(package):
    imported: Dict[str, Set[str]] = {}
    for arrow in arrows_of(package):
        imported.setdefault(arrow.importer, set()).add(arrow.imported)
    done: Set[str] = set()

    def visit(module: str, path: List[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in sorted(imported.get(module, set()) - {module}):
                visit(target, [*path, module])
            done.add(module)

    for module in sorted(imported):
        visit(module, [])


def test_arrows_of_the_agent_point_down():
    def room(module: str) -> str:
        first = module.split(".")[0]
        return first if first in AGENT_ROOMS else ""

    upwards = [
        arrow
        for arrow in arrows_of(ROOT / "src/agent/autopilot_agent")
        if room(arrow.imported) not in AGENT_ROOMS[room(arrow.importer)] | {room(arrow.importer)}
    ]
    assert upwards == []


def test_no_folder_has_more_modules_than_one_can_look_over():
    large = {}
    for root in (CORE, ROOT / "plugins/plugin_utils", ROOT / "src/agent"):
        for folder in {path.parent for path in root.rglob("*.py")}:
            count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
            if count > MOST_MODULES and folder.name != "checks":
                large[str(folder.relative_to(ROOT))] = count
    assert large == {}
    assert len(list(CORE.glob("*.py"))) <= MOST_FILES_OF_CORE


def test_class_names_are_unique_within_the_core():
    places: Dict[str, List[str]] = {}
    for name, path in modules_of(CORE).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_functions_are_short():
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    paths = [ROOT / name for name in listed] or sorted(ROOT.glob("plugins/**/*.py"))
    long = [
        (node.end_lineno - node.lineno + 1, str(path.relative_to(ROOT)), node.name)
        for path in paths
        if path.exists()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > MOST_LINES
    ]
    assert sorted(long, reverse=True) == []
