# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of README.md and docs that no other test runs, as they are written there: each page
from top to bottom in a directory of its own, on a healthy stand-in node.
"""

from __future__ import annotations

import json
import subprocess

import pytest

import documented
import node as sandbox

PAGES = sorted({block.page for block in documented.consoles() if block.marker is None})
#: The files that the commands name.
FILES = {
    "policy.yml": {"preflight_policy": {"max_unfit": "2%", "max_unknown": 1}},
    "ansible.cfg": "[connection]\npipelining = True\n",
    "nhc.conf": "* || check_hw_cpuinfo 2 64 64\n",
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The inventory of a healthy stand-in node, with short measurements."""
    node = sandbox.build("healthy_8xh100", tmp_path_factory.mktemp("node"))
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node.python,
        "checks_host_root": node.root,
        "expected_gpus": 8,
        "checks_list": ["gpu_count", "remapped_rows", "pcie_bandwidth"],
        "inflight_checks": ["gpu_count", "gpu_activity"],
        "postflight_checks": ["gpu_count"],
        "checks_options": {"gpu_activity": {"window": 2, "interval": 1}},
    }
    return {"gpu_nodes": {"hosts": {"gpu07": variables}}}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_succeed(controller, hosts, tmp_path, page):
    for name, content in {"hosts.yml": hosts, **FILES}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for block in documented.consoles():
        if block.page != page or block.marker is not None:
            continue
        for command in block.commands:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=controller.environment({"PAGER": "cat"}),
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=300,
                text=True,
            )
            assert done.returncode == 0, f"{block.page}:{block.line}: {command}\n{done.stdout}"
