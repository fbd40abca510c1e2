# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_visibility through the real nvidia-ml-py in what looks like a container of stand-in hardware."""

from __future__ import annotations

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_visibility import (
    VARIABLES,
)

CGROUP = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-5f.scope"
LOST = [dict(gpu="system", call="nvmlInit", returns=999)]


def small(*rules, **more):
    return dict(model="L4", gpus=2, rules=list(rules), **more)


#: Scenario, environment, GPUs requested -> status, then code and status of every finding.
TABLE = {
    "a plain host": (small(), {"NVIDIA_VISIBLE_DEVICES": "0"}, 1, "skip", []),
    "by its file": (
        small(files={".dockerenv": ""}),
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        2,
        "pass",
        [],
    ),
    "by its other file": (small(files={"run/.containerenv": ""}), {}, 2, "pass", []),
    "by its cgroup": (
        small(files={"proc/1/cgroup": CGROUP}),
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        1,
        "warn",
        [("gpu_unrequested_visible", "warn")],
    ),
    "a cgroup of a host": (small(files={"proc/1/cgroup": "0::/init.scope"}), {}, 1, "skip", []),
    "by Kubernetes": (
        small(),
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        4,
        "fail",
        [("gpu_not_visible", "fail")],
    ),
    "its devices are lost": (
        small(*LOST, files={".dockerenv": ""}),
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        2,
        "unknown",
        [("gpu_not_visible", "unknown")],
    ),
    "no unified memory": (
        small(files={".dockerenv": "", "dev/nvidia-uvm": None}),
        {},
        None,
        "warn",
        [("gpu_device_missing", "warn")],
    ),
    "an old driver": (
        small(files={".dockerenv": ""}, driver={"version": "535.183.01"}),
        {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6 brand=tesla,driver>=550,driver<551"},
        None,
        "warn",
        [("gpu_driver_too_old", "warn")],
    ),
    "an old driver that will do": (
        small(files={".dockerenv": ""}, driver={"version": "535.183.01"}),
        {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6 brand=nvidia,driver>=535,driver<536"},
        None,
        "pass",
        [],
    ),
    "one GPU is lost": (
        small(dict(gpu=0, call="*", returns=15), files={".dockerenv": ""}),
        {"NVIDIA_REQUIRE_CUDA": "brand=nvidia,driver>=570"},
        2,
        "pass",
        [],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_container_has_its_findings(case, node, measure, monkeypatch):
    scenario, environment, requested, status, findings = TABLE[case]
    for name in (*VARIABLES, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = measure(node(scenario), "gpu_visibility", requested=requested).result
    assert (result.status, [(one.code, one.status) for one in result.findings]) == (
        status,
        findings,
    ), result


def test_what_is_read(node, measure, monkeypatch):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    read = measure(node(small(files={".dockerenv": ""})), "gpu_visibility").readings
    assert (read["devices"], read["cuda_version"], read["brand"]) == (
        ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"],
        13000,
        "nvidia",
    )
    assert [sorted(gpu) for gpu in read["gpus"]] == [["index", "name", "pci", "uuid"]] * 2 and read[
        "environment"
    ]["NVIDIA_VISIBLE_DEVICES"] == "all"
