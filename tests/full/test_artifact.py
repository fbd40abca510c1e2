# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What users install works by itself: the built artifact, stripped to what the rules allow it to
need, and the checkout as an AWX project.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controller import ROOT, Controller, statuses, with_kubernetes_core, write_inventory

PROGRAMS = Path(sys.executable).parent
#: What ansible-galaxy wrote, and the directories that a collection has to get by with.
KEPT = {"MANIFEST.json", "FILES.json", "meta", "plugins", "roles", "playbooks"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The controller that has only the built and installed artifact."""
    base = tmp_path_factory.mktemp("artifact")
    galaxy = Controller(PROGRAMS, base / "collections", base / "home")
    built = galaxy.run(
        "ansible-galaxy", "collection", "build", "--output-path", base, ROOT, cwd=base
    )
    assert built.returncode == 0, built.stdout
    installed = galaxy.run(
        "ansible-galaxy",
        "collection",
        "install",
        "--offline",
        "-p",
        base / "collections",
        *base.glob("*.tar.gz"),
        cwd=base,
    )
    assert installed.returncode == 0, installed.stdout
    return galaxy


@pytest.fixture(scope="module")
def stripped(artifact, tmp_path_factory):
    """The controller that has only the artifact, and of that only what every collection has to get
    by with.
    """
    base = tmp_path_factory.mktemp("stripped")
    inside = "ansible_collections/autopilot/gpu"
    (base / inside).mkdir(parents=True)
    for name in KEPT:
        source = artifact.collections / inside / name
        if source.is_dir():
            shutil.copytree(source, base / inside / name)
        else:
            shutil.copy(source, base / inside / name)
    return replace(artifact, collections=base)


@pytest.fixture
def empty(tmp_path):
    directory = tmp_path / "empty"
    directory.mkdir()
    return directory


def test_nothing_of_the_workshop_is_in_the_artifact(artifact):
    names = {
        path.name for path in (artifact.collections / "ansible_collections/autopilot/gpu").iterdir()
    }
    assert names <= KEPT | {
        "CHANGELOG.rst",
        "LICENSE",
        "LICENSES",
        "README.md",
        "REUSE.toml",
        "bindep.txt",
        "changelogs",
        "docs",
        "requirements.yml",
    }
    assert {"LICENSES", "README.md", "meta", "plugins"} <= names


def test_only_the_artifact_is_found(artifact, empty):
    """Without it nothing resolves, so that the other tests cannot pass by way of this checkout."""
    bare = Controller(PROGRAMS, empty, empty / "home")
    refused = bare.run("ansible", "localhost", "-m", "autopilot.gpu.gpu_count", cwd=empty)
    assert refused.returncode != 0 and "resolve" in refused.stdout


def test_a_module_by_hand(stripped, node, tmp_path, empty):
    inventory = write_inventory(tmp_path / "hosts.json", {"well": node("healthy_8xh100")})
    result = stripped.ad_hoc(
        inventory,
        "autopilot.gpu.gpu_count",
        {"expected_gpus": 8, "host_root": "{{ checks_host_root }}"},
        empty,
    )["well"]
    assert (result["status"], len(result["node"]["gpus"])) == ("pass", 8)


def test_the_playbook(stripped, node, tmp_path, empty):
    inventory = write_inventory(
        tmp_path / "hosts.json",
        {"well": node("healthy_8xh100"), "sick": node("gpu_lost")},
        checks_list=["gpu_count", "remapped"],
    )
    done, document = stripped.preflight("autopilot.gpu.preflight", inventory, empty)
    assert document is not None, done.stdout
    assert (done.returncode, statuses(document)) == (2, {"well": "pass", "sick": "fail"})


def test_the_agent_says_that_it_needs_kubernetes_core(artifact, empty):
    done = artifact.run("ansible-playbook", "autopilot.gpu.agent", cwd=empty)
    assert done.returncode == 2
    assert "ansible-galaxy collection install kubernetes.core" in done.stdout


def test_documentation(stripped, empty):
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    listed = stripped.run("ansible-doc", "--json", "--list", "autopilot.gpu", cwd=empty)
    assert {name.rpartition(".")[2] for name in json.loads(listed.stdout)} == modules


def test_checkout_is_an_awx_project(node, tmp_path):
    """AWX installs collections/requirements.yml and runs a playbook file, both in the checkout's
    root.
    """
    laid = subprocess.run(
        [ROOT / "tests/tools/tree.sh", tmp_path],
        stdout=subprocess.PIPE,
        check=True,
        universal_newlines=True,
    )
    project = Path(laid.stdout.strip())
    awx = with_kubernetes_core(
        Controller(PROGRAMS, tmp_path / "requirements_collections", tmp_path / "home")
    )
    installed = awx.run(
        "ansible-galaxy",
        "collection",
        "install",
        "--offline",
        "-r",
        "collections/requirements.yml",
        "-p",
        awx.collections,
        cwd=project,
    )
    assert installed.returncode == 0, installed.stdout
    inventory = write_inventory(
        tmp_path / "hosts.json", {"well": node("healthy_8xh100")}, checks_list=["gpu_count"]
    )
    done, document = awx.preflight("playbooks/preflight.yml", inventory, project)
    assert done.returncode == 0, done.stdout
    assert statuses(document) == {"well": "pass"}
