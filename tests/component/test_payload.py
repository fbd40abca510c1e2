# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task carries to a node: the parts of the core that its module needs, and no more."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from controller import ROOT

#: Prints the size of a module as it is sent, in bytes, and the files that it carries.
PROGRAM = """
import base64, io, json, re, sys, zipfile
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar

init_plugin_loader([])
built = module_common.modify_module(
    module_name="autopilot.gpu." + sys.argv[1],
    module_path=sys.argv[2],
    module_args={},
    templar=Templar(loader=DataLoader(), variables={}),
    task_vars={"ansible_python_interpreter": "/usr/bin/python3"},
    module_compression="ZIP_DEFLATED",
).b_module_data
packed = max(re.findall(rb"[A-Za-z0-9+/=]{2000,}", built), key=len)
with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed))) as archive:
    print(json.dumps([len(built), archive.namelist()]))
"""
CORE = "ansible_collections/autopilot/gpu/plugins/module_utils/_health/"


@functools.lru_cache(maxsize=None)
def payload(module):
    """The size of a module as it is sent, in KiB, and the modules of the core in it."""
    path = ROOT / f"plugins/modules/{module}.py"
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    size, files = json.loads(printed)
    names = [name[len(CORE) : -3] for name in files if name.startswith(CORE)]
    return size / 1024, {name.replace("/", ".") for name in names if not name.endswith("__init__")}


@pytest.mark.parametrize(
    "module, most",
    [
        # It carries every check of a node: a new check adds some 10 KiB.
        ("node_checks", 594),
        ("mesh_facts", 300),
        ("mesh_run", 300),
        ("usage_capture", 300),
        ("gpu_count", 250),
        ("ping_mesh", 250),
    ],
)
def test_a_task_is_small(module, most):
    size, carried = payload(module)
    assert size <= most
    assert not [name for name in carried if name.startswith(("fleet.", "cluster."))]


@pytest.mark.parametrize(
    "module, checks",
    [
        ("mesh_run", set()),
        ("mesh_facts", set()),
        ("usage_capture", set()),
        ("gpu_count", {"gpu_count"}),
    ],
)
def test_a_task_carries_no_checks_but_its_own(module, checks):
    _size, carried = payload(module)
    prefix = "node.checks."
    assert {name[len(prefix) :] for name in carried if name.startswith(prefix)} == checks


def test_the_checks_of_a_node_come_without_those_of_the_mesh_and_the_cluster():
    _size, carried = payload("node_checks")
    assert not carried & {"node.checks.ping_mesh", "node.system.iperf3", "node.checks.volume_claim"}
    assert {"node.checks.gpu_count", "node.registry"} <= carried
