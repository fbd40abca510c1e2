# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures that every test of checks uses: a node of stand-in hardware, and checks run on it for
real.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from ansible.plugins.loader import init_plugin_loader

# As Ansible does, before anything of a collection is imported.
init_plugin_loader([])

from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (  # noqa: E402
    CheckResult,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (  # noqa: E402
    Outcome,
)

import cluster as sandbox_cluster  # noqa: E402
import lab as sandbox_lab  # noqa: E402
import node as sandbox  # noqa: E402
from controller import linked  # noqa: E402

# No deadline for an example: how long one takes says more about the machine than about the code.
# Where a change is judged, the examples are the same each time: a find of chance is somebody's at a
# desk, who can look into it.
hypothesis.settings.register_profile(
    "quick", max_examples=60, deadline=None, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("quick")


def pytest_configure(config):
    # A shell has what it runs in the background ignore it, which all that tests start and interrupt
    # would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def node(tmp_path):
    """``node(name or mapping) -> Node``: build a scenario (see tests/sandbox/node.py) in a
    directory of its own.
    """
    built = []

    def build(scenario):
        if not sandbox.compiler():
            pytest.skip("needs a C compiler for the stand-in libraries: cc was not found")
        built.append(sandbox.build(scenario, tmp_path / f"node{len(built)}"))
        return built[-1]

    return build


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    """A controller of this Python's Ansible, with the collection and a home of its own."""
    return linked(tmp_path_factory.mktemp("controller"), Path(sys.executable).parent)


@pytest.fixture(scope="module")
def cluster():
    """``cluster(hosts=8, ...) -> Cluster``: a running cluster (see tests/sandbox/cluster.py), which
    ends with the tests of the file.
    """
    reason = sandbox_cluster.obstacle()
    if reason:
        pytest.skip(reason)
    with contextlib.ExitStack() as running:
        yield lambda **settings: running.enter_context(sandbox_cluster.Cluster(**settings))


def _running_lab(nodes):
    """A lab for the session; where a user names their own cluster, that."""
    if sandbox_lab.own.named():
        made = sandbox_lab.OwnCluster()
    else:
        reason = sandbox_lab.obstacle(nodes)
        if reason:
            pytest.skip(reason)
        try:
            sandbox_lab.build.programs()
        except sandbox_lab.build.Unavailable as error:
            pytest.skip(str(error))
        made = sandbox_lab.Lab(nodes=nodes)
    with made as running:
        yield running


@pytest.fixture(scope="session")
def lab():
    """A Kubernetes whose nodes are objects only (see tests/sandbox/lab): tests leave it as they
    found it.
    """
    yield from _running_lab(0)


@pytest.fixture(scope="session")
def lab_nodes():
    """A Kubernetes with two nodes that run pods."""
    yield from _running_lab(2)


@pytest.fixture
def frozen(tmp_path):
    """``frozen(directory) -> path``: a file whose opening blocks in the kernel so that not even
    SIGKILL ends it, until the test is over.
    """
    daemons = []

    def freeze(directory=tmp_path / "frozen"):
        directory.mkdir()
        program = Path(__file__).parent / "sandbox" / "frozen.py"
        daemons.append(
            subprocess.Popen(
                [sys.executable, str(program), str(directory)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        if daemons[-1].stdout.readline().strip() != "ready":
            pytest.skip(
                "needs a file system that never answers, by FUSE: "
                f"{daemons[-1].stderr.read().strip()}"
            )
        return directory / "door"

    yield freeze
    for daemon in daemons:
        daemon.terminate()
        daemon.communicate()


class Measure:
    """Runs checks in a fresh process on a node; see `__call__` and `several`."""

    #: Seconds that a whole run may take before the test fails; far above any deadline that tests
    #: set.
    PATIENCE = 120

    def __call__(self, node, check, expected_gpus=None, timeout=None, **options) -> Outcome:
        """The outcome of one check with its options."""
        return self.several(node, [check], expected_gpus, timeout, {check: options})[0]

    def several(
        self, node, checks, expected_gpus=None, timeout=None, options=None, settings=None, **how
    ) -> list[Outcome]:
        """The outcomes of several checks in one pass. ``options`` by check name; ``settings``
        overrides fields of `Settings`; what else is named (``stop_on_fail``) goes
        to `runner.run`.
        """
        request = {
            "checks": [[check, (options or {}).get(check, {})] for check in checks],
            "settings": {
                "expected_gpus": expected_gpus,
                "nvml_library": node.library,
                "host_root": node.root,
                "timeout": timeout,
                **(settings or {}),
            },
            "how": how,
        }
        program = Path(__file__).parent / "sandbox" / "measure.py"
        done = subprocess.run(
            [node.python, str(program), json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=self.PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [
            Outcome(CheckResult.from_dict(one["result"]), one["readings"], one["options"])
            for one in json.loads(done.stdout)
        ]


@pytest.fixture
def measure():
    """``measure(node, check_name, expected_gpus=, timeout=, **options) -> Outcome`` and
    ``measure.several(node, names, ...)``.
    """
    return Measure()
