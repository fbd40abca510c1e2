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
from lab import images

#: The Go module whose files are those of a component's tag, and its folder in the archive.
MODULES = {
    "kueue": ("sigs.k8s.io/kueue", ""),
    "appwrapper": ("github.com/project-codeflare/appwrapper", ""),
    "training_operator": ("github.com/kubeflow/training-operator", ""),
    "kuberay": ("github.com/ray-project/kuberay/ray-operator", "ray-operator"),
    "scheduler": ("sigs.k8s.io/scheduler-plugins", ""),
}
#: Of Kueue 0.10, and of AppWrapper 0.30.
_PROXIES = [f"registry.k8s.io/kubebuilder/kube-rbac-proxy:v0.{minor}.0" for minor in (16, 15)]
#: Versions of what the profiles install in a lab with nodes.
_VERSIONS = {
    "mlbatch": {"kueue": "0.10.2", "appwrapper": "1.0.7"},
    "pinned": {"kueue": "0.10.2", "appwrapper": "0.30.0"},
    "current": {"kueue": "0.19.2", "appwrapper": "1.2.2", "scheduler": "0.34.7"},
}
#: Images of the lab are built here, so that their digests are others.
_BY_TAG = dict.fromkeys(["registry.k8s.io/kueue/kueue:v0.10.2", *_PROXIES], "")
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


def profile_playbook(lab, directory, **defaults):
    """``run(*arguments, **variables)``: run the playbook with the real managers of a `QueueLab`, which
    are waited for, and a slack queue with 8 GPUs.
    """
    versions = _VERSIONS[lab.profile.name]
    is_current = lab.profile.name == "current"
    if not is_current:
        _load_proxies(lab, directory)
    return queue_playbook(
        lab,
        directory,
        mirror(directory / "sources", versions),
        **{
            "queue_profile": "current" if is_current else "mlbatch",
            "queue_appwrapper_version": versions["appwrapper"],
            "queue_components": ["kueue", "appwrapper"],
            "queue_scheduler": "none",
            "queue_image_digests": _BY_TAG,
            "queue_rollout_timeout": 240,
            "queue_slack_quotas": {
                "default-flavor": {"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 8, "pods": 100}
            },
            **defaults,
        },
    )


def _load_proxies(lab, directory):
    """Stand-ins for the proxies before metrics: a program that waits."""
    source, program = directory / "wait.c", directory / "wait"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    archive = directory / "proxy.tar"
    for image in _PROXIES:
        images.make(archive, image, {"/wait": program}, ["/wait"], user="65532")
        lab.load_image(archive)


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
