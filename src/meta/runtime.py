# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Writes meta/runtime.yml from the modules: which belong to a group of `module_defaults`, and which
have no action of their own.

runtime.py            write it
runtime.py --check    fail (exit 1) when what is there differs
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "meta" / "runtime.yml"
#: Group -> the fragment of documentation that its modules, and no others, extend.
GROUPS = {"cluster": "autopilot.gpu._attributes.cluster", "gpu": "autopilot.gpu._checks"}

HEAD = """\
---
# Written from the modules by `make generated`.
requires_ansible: '>=2.18.0'
action_groups:
"""
ROUTING = """\
# These have no action of their own. The action of node_checks runs them, so that no result of a node becomes a
# variable, a host or a group.
plugin_routing:
  modules:
"""


def text() -> str:
    modules = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "plugins" / "modules").glob("*.py"))
    }
    lines = [HEAD]
    for group, fragment in GROUPS.items():
        lines.append(f"  {group}:\n")
        lines += [f"    - {name}\n" for name, source in modules.items() if fragment in source]
    lines.append(ROUTING)
    lines += [
        f"    {name}: {{action_plugin: autopilot.gpu.node_checks}}\n"
        for name in modules
        if not (ROOT / "plugins" / "action" / f"{name}.py").exists()
    ]
    return "".join(lines)


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        RUNTIME.write_text(text(), encoding="utf-8")
    elif RUNTIME.read_text(encoding="utf-8") != text():
        sys.exit(f"{RUNTIME.relative_to(ROOT)} differs from the modules: run make generated")
