# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The core stands alone: every file of it is importable without Ansible, by every Python that a
host may have.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    ON_NODE,
)
from interpreters import interpreter

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "plugins" / "module_utils" / "_health"
#: Minor versions of Python 3: the oldest that ansible-core 2.18 and 2.19 run modules with, and the
#: newest that is out.
VERSIONS = range(8, 15)

FILES = sorted(CORE.rglob("*.py"))
MODULES = [
    ".".join(("_health",) + path.relative_to(CORE).with_suffix("").parts).replace(".__init__", "")
    for path in FILES
]

#: Imports the modules named on standard input and runs a pass on a host without a GPU, with Ansible
#: and the binding out of reach.
PROGRAM = """
import importlib, json, sys

class Unimportable:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ansible", "ansible_collections", "yaml", "pynvml"):
            raise ImportError(name + " is not for the core")

sys.meta_path.insert(0, Unimportable())
sys.path.insert(0, sys.argv[1])
for name in json.load(sys.stdin):
    importlib.import_module(name)
from _health.node import registry
from _health.node.framework import runner
from _health.node.framework.probe import HostSettings
requests = [(check, check.defaults()) for check in registry.chosen([])]
outcomes = runner.run(requests, HostSettings(host_root=sys.argv[2]))
print(json.dumps([[outcome.result.check, outcome.result.status] for outcome in outcomes]))
"""


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"python3.{version}")
def test_the_core_is_importable_and_runs_without_ansible(version, tmp_path):
    found = interpreter(version)
    if not found:
        pytest.skip(f"needs Python 3.{version}: neither on the path nor in pyenv")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    done = subprocess.run(
        [found, "-B", "-c", PROGRAM, str(CORE.parent), str(tmp_path)],
        input=json.dumps(MODULES),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(json.loads(done.stdout))
    assert list(told) == list(registry.names_of_pass())
    # The clock is this machine's own, and a host without memory was not read.
    assert {
        name: status for name, status in told.items() if status != "skip" and name != "clock_sync"
    } == {"memory_and_cpu": "unknown"}


@pytest.mark.parametrize("path", FILES, ids=MODULES)
def test_a_file_of_the_core_imports_only_the_standard_library_and_its_own(path):
    strange = []
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            strange += [
                name.name
                for name in statement.names
                if name.name.partition(".")[0] not in sys.stdlib_module_names
            ]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            strange += (
                [statement.module]
                if statement.module.partition(".")[0] not in sys.stdlib_module_names
                else []
            )
    assert not strange


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stat().st_size], ids=lambda path: path.stem
)
def test_a_file_of_the_core_says_its_licence(path):
    lines = path.read_text().splitlines()[:2]
    assert lines == [
        "# Copyright: Contributors to the autopilot.gpu collection",
        "# SPDX-License-Identifier: Apache-2.0",
    ]


# ---- the registry ----


def test_every_check_is_registered():
    """The registry is all that a check needs beside its own file and its module, and what is
    forgotten most easily.
    """
    files = {
        path.stem
        for path in (CORE / "node" / "checks").glob("*.py")
        if not path.name.startswith("_")
    }
    assert set(registry.NAMES) == files
    assert [registry.load(name).name for name in registry.NAMES] == list(registry.NAMES)


def test_every_name_and_alias_is_found_and_means_one_check():
    records = {check.name: check.short_names for check in registry.every()}
    assert registry.short_names() == records, (
        "names of checks that run elsewhere stand in the registry"
    )
    names = [given for name, short in records.items() for given in (name, *short)]
    assert len(names) == len(set(names))
    assert all(
        registry.find(given).name == name
        for name, short in registry.short_names().items()
        for given in (name, *short)
    )


def test_checks_are_chosen_once_and_in_the_order_of_a_pass():
    assert [check.name for check in registry.chosen(["dcgm", "remapped", "remapped_rows"])] == [
        "remapped_rows",
        "dcgm_diag",
    ]
    assert [check.name for check in registry.chosen([])] == list(registry.names_of_pass())


def test_checks_of_the_mesh_and_of_the_cluster_are_passed_over_in_a_pass_over_one_node():
    assert [
        check.name for check in registry.chosen(["ping", "remapped", "iperf3_pairs", "pvc"])
    ] == ["remapped_rows"]
    assert registry.chosen(["ping"]) == registry.chosen(["pvc"]) == []
    elsewhere = {check.name for check in registry.every() if check.place != ON_NODE}
    assert elsewhere == set(registry.ELSEWHERE)
    assert {*elsewhere, *registry.names_of_pass(), "gpu_activity", "node_changes"} >= set(
        registry.NAMES
    )


def test_a_name_that_is_no_check_is_refused_with_those_that_are():
    with pytest.raises(
        ValueError, match="unsupported check 'gpu_counts' .did you mean 'gpu_count'"
    ):
        registry.find("gpu_counts")


@pytest.mark.parametrize("name", [name for name in registry.NAMES if name != "node_changes"])
def test_a_check_has_a_module_of_its_name(name):
    assert (ROOT / "plugins" / "modules" / f"{name}.py").exists()
