# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""driver through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import pytest

from host_files import FABRIC_MANAGER_PID  # of the sandbox

VERSION, FABRIC, MIG, PERSISTENCE, MODE, VBIOS = (
    "nvmlSystemGetNVMLVersion",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetVbiosVersion",
)


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def small(*rules, **more):
    return dict(gpus=4, rules=list(rules), **more)


def without_manager(*rules, files=None, **more):
    """A node whose fabric manager does not run."""
    return small(*rules, files={f"proc/{FABRIC_MANAGER_PID}": None, **(files or {})}, **more)


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "healthy A100": (dict(model="A100-SXM4-80GB"), "pass", []),
    "healthy L40S": (dict(model="L40S"), "pass", []),
    "healthy V100": (dict(model="V100-32GB"), "pass", []),
    "healthy GeForce": (dict(model="RTX-4090", gpus=1), "pass", []),
    "healthy GB10": (dict(model="GB10", gpus=1), "pass", []),
    "an old driver": (small(driver={"version": "470.82.01"}), "pass", []),
    "mig": ("mig", "pass", []),
    "no_gpu": ("no_gpu", "skip", []),
    "gpu_lost": ("gpu_lost", "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "driver_missing": (
        "driver_missing",
        "fail",
        [("driver_missing", "fail", None, "fix_configuration")],
    ),
    "version_mismatch": (
        "version_mismatch",
        "fail",
        [("driver_version_mismatch", "fail", None, "reboot_node")],
    ),
    "a library of another version": (
        small(on("system", VERSION, "13.575.57.08")),
        "warn",
        [("driver_versions_differ", "warn", None, "fix_configuration")],
    ),
    "a module of another version": (
        small(files={"sys/module/nvidia/version": "575.57.08"}),
        "warn",
        [("driver_versions_differ", "warn", None, "fix_configuration")],
    ),
    "a libcuda of another version": (
        small(files={"usr/lib64/libcuda.so.1": {"link": "libcuda.so.575.57.08"}}),
        "warn",
        [("driver_versions_differ", "warn", None, "fix_configuration")],
    ),
    "a libcuda of the same version": (
        small(files={"usr/lib64/libcuda.so.1": {"link": "libcuda.so.580.95.05"}}),
        "pass",
        [],
    ),
    "another VBIOS": (
        small(on(2, VBIOS, "96.00.61.00.99")),
        "warn",
        [("gpu_differs", "warn", 2, "fix_configuration")],
    ),
    "persistence off": (
        small(on("*", PERSISTENCE, 0)),
        "warn",
        [("persistence_off", "warn", None, "fix_configuration")],
    ),
    "prohibited": (
        small(on(1, MODE, 2)),
        "fail",
        [
            ("gpu_differs", "warn", 1, "fix_configuration"),
            ("compute_prohibited", "fail", 1, "fix_configuration"),
        ],
    ),
    "MIG at the next reset": (
        small(on(1, MIG, 0, 1)),
        "warn",
        [("mig_mode_pending", "warn", 1, "fix_configuration")],
    ),
    "no fabric manager": (
        without_manager(on("*", FABRIC, 1, 0, 0, 0)),
        "fail",
        [("fabric_manager_not_running", "fail", None, "fix_configuration")],
    ),
    "no fabric manager, the fabric set up": (
        without_manager(),
        "warn",
        [("fabric_manager_not_running", "warn", None, "fix_configuration")],
    ),
    "no fabric manager, A100": (
        without_manager(model="A100-SXM4-80GB"),
        "fail",
        [("fabric_manager_not_running", "fail", None, "fix_configuration")],
    ),
    "no fabric manager to be seen": (
        without_manager(on("*", FABRIC, 1, 0, 0, 0), files={"proc/2": None}),
        "pass",
        [],
    ),
    "NVLink switched off": (
        without_manager(
            on("*", FABRIC, 0, 0, 0, 0),
            files={"proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nNvLinkDisable: 1\n"},
        ),
        "pass",
        [],
    ),
    "a fabric manager of another version": (
        small(
            files={
                "var/log/fabricmanager.log": "x\nFabric Manager version is : 570.1.02\nFabric "
                "Manager version is : 575.57.08\n"
            }
        ),
        "warn",
        [("fabric_manager_differs", "warn", None, "fix_configuration")],
    ),
    "modes that cannot be read": (
        small(on(1, PERSISTENCE, returns=4)),
        "unknown",
        [("no_permission", "unknown", 1, "fix_configuration")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "driver").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    files = {
        "var/log/fabricmanager.log": "Fabric Manager version 580.95.05 is running with the "
        "following configuration options\n"
    }
    outcome = measure(node(dict(gpus=1, files=files)), "driver")
    readings = outcome.readings
    (gpu,) = readings.pop("gpus")
    assert {
        key: value
        for key, value in gpu.items()
        if key not in ("index", "uuid", "pci", "name", "gsp")
    } == {
        "vbios": "96.00.23.30.01",
        "inforom": "2330.0200.00.05",
        "persistence": 1,
        "compute_mode": 0,
        "mig": {"current": 0, "pending": 0},
        "clocks": {"graphics": 1980, "memory": 2619},
        "fabric": {"state": 3, "status": 0},
    }
    assert readings == {
        "driver_version": "580.95.05",
        "library_version": "580.95.05",
        "module_version": "580.95.05",
        "cuda_library_versions": {},
        "cuda_version": "13.0",
        "fabric_manager": {"switches": 1, "running": True, "version": "580.95.05"},
        "persistenced": True,
        "nvlink_disabled": None,
        "processes_scope": "host",
    }
    assert outcome.result.summary == "driver 580.95.05, CUDA 13.0, VBIOS 96.00.23.30.01"
