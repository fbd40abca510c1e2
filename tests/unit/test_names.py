# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every name that a plugin takes from a module of the collection exists. mypy does not see it: the
collection is importable by its full name only where it is installed.
"""

from __future__ import annotations

import ast
import importlib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "ansible_collections.autopilot.gpu."
FILES = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "plugins").rglob("*.py"))
    if COLLECTION in path.read_text(encoding="utf-8")
]


def find(module: str, name: str) -> object:
    """What ``from module import name`` gives; raises ImportError where there is no such name."""
    imported = importlib.import_module(module)
    return (
        getattr(imported, name)
        if hasattr(imported, name)
        else importlib.import_module(f"{module}.{name}")
    )


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_names_that_a_plugin_imports_exist(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    modules = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(
            COLLECTION
        ):
            for alias in statement.names:
                found = find(statement.module, alias.name)
                if isinstance(found, types.ModuleType):
                    modules[alias.asname or alias.name] = found
    # A parameter or a variable may have the name of a module.
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    missing = [
        f"{node.value.id}.{node.attr} in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules.keys() - own
        and not hasattr(modules[node.value.id], node.attr)
    ]
    assert missing == []
