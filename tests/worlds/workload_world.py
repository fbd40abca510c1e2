# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A team in a lab's queue, an image of this machine's Python for its pods, and the playbook that runs
workloads there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import queue_world as world
from controller import cluster_playbook
from lab import images
from teams_world import teams_playbook

IMAGE = "localhost/python:1"
#: What a run leaves in the cluster if it is not removed.
KINDS = "appwrappers,jobs,pods,configmaps,workloads.kueue.x-k8s.io"


def load_python(lab):
    """Load the image, which has the Python of Debian with its library, and a stand-in for vLLM."""
    program = shutil.which("python3", path="/usr/bin")
    if not program:
        pytest.skip("needs /usr/bin/python3, for an image")
    program = Path(program).resolve()
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    files = {path: Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", linked)}
    library = f"/usr/lib/{program.name}"
    files.update({"/usr/bin/python3": program, library: Path(library)})
    files["/usr/bin/vllm"] = lab.directory / "vllm"
    write_vllm(files["/usr/bin/vllm"])
    files["/tmp"] = lab.directory / "tmp"
    lab.load_image(images.make(lab.directory / "python.tar", IMAGE, files, ["/usr/bin/python3"]))


def write_vllm(path):
    """The stand-in as a program."""
    stand_in = Path(__file__).with_name("vllm_stand_in.py").read_text(encoding="utf-8")
    path.write_text(f"#!/usr/bin/python3\n{stand_in}", encoding="utf-8")
    path.chmod(0o755)


def make_team(lab, name="blue"):
    """A team without GPUs in its quota."""
    lab.apply(world.flavor(lab.profile.api), *world.team(lab.profile.api, name, gpus=0))
    lab.wait(
        lambda: (
            world.conditions(lab.get("localqueue", "default-queue", "-n", name)).get("Active")
            == "True"
        ),
        f"the queue of {name} is active",
    )


def member(lab, directory, name="blue"):
    """The kubeconfig of alice, who is a member of the team by the role `teams`."""
    done = teams_playbook(lab, directory)(teams=[])
    assert done.returncode == 0, done.stdout
    lab.kubectl(
        *("create", "rolebinding", "alice", "-n", name),
        *("--clusterrole=mlbatch-edit", "--user=alice"),
    )
    return str(lab.kubeconfig_for("alice"))


def workload_playbook(lab, directory, **more):
    """``run(*arguments, **variables)``: run a small synthetic workload; the finished process."""
    return cluster_playbook("autopilot.gpu.workload", directory, **variables(lab, **more))


def variables(lab, **more):
    return {
        "kind": "synthetic",
        "team": "blue",
        "workload_kubeconfig": str(lab.kubeconfig),
        "workload_image": IMAGE,
        "workload_cpu": "100m",
        "workload_steps": 400,
        # Two pods on a node with little room differ in speed.
        "workload_fail_on": "unknown",
        **more,
    }


def left(lab, namespace="blue"):
    """Objects of runs in the namespace, by kind and name."""
    return [
        f"{one['kind']} {one['metadata']['name']}"
        for one in lab.get(KINDS, "-n", namespace)["items"]
        if one["metadata"]["name"] != "kube-root-ca.crt"
    ]
