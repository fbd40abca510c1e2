# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook of the role queue against a lab, and the sources that an operator would mirror."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from controller import cluster_playbook

#: The Go module whose files are those of a component's tag, and its folder in the archive.
MODULES = {
    "kueue": ("sigs.k8s.io/kueue", ""),
    "appwrapper": ("github.com/project-codeflare/appwrapper", ""),
    "training_operator": ("github.com/kubeflow/training-operator", ""),
    "kuberay": ("github.com/ray-project/kuberay/ray-operator", "ray-operator"),
    "scheduler": ("sigs.k8s.io/scheduler-plugins", ""),
}
#: Every kind that could be left behind, with the CRDs' own kinds gone with their CRDs.
KINDS = (
    "namespaces,priorityclasses,customresourcedefinitions,apiservices,"
    "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,"
    "clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,secrets,services,"
    "endpoints,endpointslices,deployments,replicasets,pods,leases"
)


@functools.lru_cache(maxsize=None)
def module(component, version) -> Path:
    """The files of a component's tag; skips the test where they are not to be had."""
    name = f"{MODULES[component][0]}@v{version}"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            ["go", "mod", "download", "-json", name],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        pytest.skip(f"needs {name} from a Go module proxy: {done.stderr.strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"])


def mirror(directory, versions) -> Path:
    """A folder of sources with the unpacked files of each component's version."""
    directory.mkdir(exist_ok=True)
    for component, version in versions.items():
        target = directory / f"{component}-{version}"
        folder = MODULES[component][1]
        if folder:
            target.mkdir()
            target = target / folder
        target.symlink_to(module(component, version))
    return directory


def queue_playbook(lab, directory, sources, **defaults):
    """``run(*arguments, **variables)``: run the playbook; the finished process."""
    return cluster_playbook(
        "autopilot.gpu.queue",
        directory,
        **{
            "queue_kubeconfig": str(lab.kubeconfig),
            "queue_kubectl": str(lab.kubectl_program),
            "queue_sources": str(sources),
            "queue_rollout_timeout": 0,
            **defaults,
        },
    )


def everything(lab) -> dict:
    """``kind/namespace/name`` of every object, with its resourceVersion; without what changes by
    itself.
    """
    found = {}
    for one in lab.get(KINDS, "-A")["items"]:
        meta = one["metadata"]
        name = f"{one['kind']}/{meta.get('namespace', '')}/{meta['name']}"
        is_clock = one["kind"] == "Lease" or (
            one["kind"] in ("Endpoints", "EndpointSlice", "APIService", "Pod")
        )
        found[name] = "" if is_clock else meta["resourceVersion"]
        if one.get("aggregationRule"):
            # Written anew by the controller-manager whenever a role that it collects comes or goes.
            found[name] = sorted(json.dumps(rule, sort_keys=True) for rule in one["rules"])
    return found


def changed_items(done) -> list:
    """The components that a run changed."""
    assert done.returncode == 0, done.stdout
    return re.findall(r"^changed: \[localhost\] => \(item=(\w+)\)", done.stdout, re.MULTILINE)


def archive_of(component, version, directory) -> Path:
    """The archive of a component's tag as a host packs it, with one top folder."""
    top = f"{component}-anything"
    target = directory / f"{component}-{version}.tar.gz"
    files = module(component, version)
    subprocess.run(
        ["tar", "-czf", target, "-C", files, f"--transform=s,^[.],{top},", "."],
        check=True,
        env={**os.environ, "GZIP": "-1"},
        stderr=subprocess.DEVNULL,
    )
    return target
