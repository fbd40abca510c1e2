# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The EXAMPLES of each module: Ansible accepts them, and those of the checks of a node run on a
stand-in node.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

import node as sandbox

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    ON_NODE,
)

ROOT = Path(__file__).resolve().parents[2]


def examples(module):
    text = (ROOT / "plugins/modules" / f"{module}.py").read_text(encoding="utf-8")
    return yaml.safe_load(re.search(r'^EXAMPLES = r"""\n(.*?)^"""', text, re.M | re.S)[1])


def play(tasks):
    return {"name": "Examples", "hosts": "all", "gather_facts": False, "tasks": tasks}


def test_ansible_accepts_them(controller, tmp_path):
    modules = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
    plays = [
        given if "hosts" in given else play([given])
        for module in modules
        for given in examples(module)
    ]
    (tmp_path / "examples.yml").write_text(json.dumps(plays), encoding="utf-8")
    done = controller.run("ansible-playbook", "--syntax-check", "examples.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_those_of_checks_run(controller, tmp_path):
    checks = [check.name for check in registry.of_node() if check.place == ON_NODE]
    with_modules = [name for name in checks if (ROOT / f"plugins/modules/{name}.py").exists()]
    tasks = []
    for given in (task for name in with_modules for task in examples(name)):
        tasks.append({**given, "register": "example", "ignore_errors": True})
        # A gate may fail for what it finds, and not for how it is called.
        tasks.append(
            {
                "name": f"Expect a result of {given['name']}",
                "ansible.builtin.assert": {
                    "that": "example.health | length > 0",
                    "fail_msg": "{{ example.msg | default('no result') }}",
                },
            }
        )
    node = sandbox.build("healthy_8xh100", tmp_path / "node")
    host = {"ansible_connection": "local", "ansible_python_interpreter": node.python}
    options = {"autopilot.gpu." + name: {"host_root": node.root} for name in with_modules}
    whole = {**play(tasks), "module_defaults": options}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"gpu07": host}}}))
    (tmp_path / "examples.yml").write_text(json.dumps([whole]), encoding="utf-8")
    done = controller.run("ansible-playbook", "-i", "hosts.json", "examples.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
