# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task carries to a node: the parts of the core, and the size of the archive."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The most KiB in base64, as ansible-core ships it, and the folders of the core that a module
#: carries. Some 160 KiB of each are ansible-core's.
NODE = {"node/framework", "node/devices", "node/system"}
MESH = NODE | {"node/mesh", "knowledge"}
PAYLOADS = {
    "mesh_facts": (300, MESH),
    "mesh_run": (300, MESH),
    "mesh_wait": (200, set()),
    "usage_capture": (300, NODE | {"node/sampling"}),
    "gpu_count": (300, NODE | {"node/checks"}),
    "ping_mesh": (300, NODE | {"node/checks", "knowledge"}),
    "node_checks": (
        600,
        NODE
        | {"node", "node/checks", "node/sampling", "knowledge"}
        | {"node/snapshots", "node/snapshots/difference"},
    ),
}

#: In a process of its own: ansible-core's plugin loader changes how a process imports.
PROGRAM = """
import base64, datetime, io, json, sys, zipfile
from pathlib import Path
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader([])
from ansible._internal._datatag._tags import Origin
from ansible.executor import module_common
from ansible.executor.module_common import _builder

payloads = {}
for name in sys.argv[2:]:
    path = Path(sys.argv[1], "plugins/modules", name + ".py")
    qualified = "ansible_collections.autopilot.gpu.plugins.modules." + name
    source, archive = path.read_bytes(), io.BytesIO()
    extensions = _builder.ExtensionManager.create(task_vars={})
    when = datetime.datetime.now(datetime.timezone.utc)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        tagged = Origin(path=str(path)).tag(source)
        module_common.recursive_finder(name, qualified, tagged, file, when, extensions)
        module_common._add_module_to_zip(file, when, qualified, source, str(path), extensions)
        names = file.namelist()
    payloads[name] = [len(base64.b64encode(archive.getvalue())), names]
print(json.dumps(payloads))
"""


@lru_cache(maxsize=1)
def payloads() -> dict[str, tuple[int, list[str]]]:
    """The size in bytes of each module's archive in base64, and the files of the core in it."""
    try:
        from ansible.executor.module_common import _builder  # noqa: F401
    except ImportError:
        pytest.skip("needs ansible-core 2.19, which makes archives this way")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), *PAYLOADS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: (size, [path.partition("/_health/")[2] for path in paths if "/_health/" in path])
        for name, (size, paths) in json.loads(done.stdout).items()
    }


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_task_carries_what_it_runs(name):
    files = payloads()[name][1]
    # The package above a module comes with it, empty.
    held = {path.rpartition("/")[0] for path in files if not path.endswith("__init__.py")}
    # The floor, and what is imported from a package itself.
    assert held - {""} == PAYLOADS[name][1]


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_task_is_small(name):
    assert payloads()[name][0] / 1024 <= PAYLOADS[name][0]


@pytest.mark.parametrize("name", sorted(set(PAYLOADS) - {"node_checks"}))
def test_only_a_pass_carries_device_code(name):
    assert not [path for path in payloads()[name][1] if "ptx_generated" in path]
