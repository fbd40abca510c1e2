# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_visibility as a table, and conditions on the driver as images write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_visibility import (
    CHECK,
    VARIABLES,
    satisfied,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


DEVICES = ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]


def gpus(count):
    return [
        {
            "index": index,
            "uuid": f"GPU-{index}234-5678",
            "pci": f"00000000:{index:02X}:00.0",
            "name": "NVIDIA L4",
        }
        for index in range(count)
    ]


def read(asked=None, shown=2, devices=None, error=None, brand="nvidia", cuda=13000, **environment):
    return {
        "container": ["/.dockerenv"],
        "environment": {**dict.fromkeys(VARIABLES), "NVIDIA_VISIBLE_DEVICES": asked, **environment},
        "devices": DEVICES if devices is None else devices,
        "gpus": None if shown is None else gpus(shown),
        "driver_version": "580.95.05",
        "cuda_version": cuda,
        "brand": brand,
        **({"driver_error": {"kind": error, "call": "nvmlInit"}} if error else {}),
    }


GONE = {"shown": None, "devices": [], "error": "library_missing"}
OLD = "cuda>=13.4 brand=tesla,driver>=535,driver<536 brand=unknown,driver>=470"

#: Readings, GPUs requested -> status, then code, status and action of every finding.
TABLE = {
    "all of them": (read("all"), None, "pass", []),
    "by a way of its own": (read(None), None, "pass", []),
    "CDI": (read("void"), 2, "pass", []),
    "as requested": (read("0,1"), 2, "pass", []),
    "by name": (read("GPU-0234-5678,GPU-1234-5678"), 2, "pass", []),
    "by the beginning of a name": (read("GPU-0234,GPU-1234"), None, "pass", []),
    "slices": (read("MIG-1,MIG-2,MIG-3", shown=1), None, "pass", []),
    "mounted lists": (read("/var/run/nvidia-container-devices"), None, "pass", []),
    "none wanted": (
        read(None, **GONE),
        None,
        "unknown",
        [("gpu_env_missing", "unknown", "fix_configuration")],
    ),
    "none given": (
        read(None, **GONE),
        1,
        "fail",
        [("gpu_env_missing", "fail", "fix_configuration")],
    ),
    "void and none given": (
        read("void", shown=0, devices=[]),
        1,
        "fail",
        [("gpu_env_missing", "fail", "fix_configuration")],
    ),
    "all in the image": (
        read("all", **GONE),
        None,
        "unknown",
        [("gpu_not_visible", "unknown", "fix_configuration")],
    ),
    "all and one requested": (
        read("all", **GONE),
        1,
        "fail",
        [("gpu_not_visible", "fail", "fix_configuration")],
    ),
    "a device plugin's, and not given": (
        read("GPU-7777", **GONE),
        None,
        "fail",
        [("gpu_not_visible", "fail", "fix_configuration")],
    ),
    "fewer than requested": (
        read("all", shown=1),
        2,
        "fail",
        [("gpu_not_visible", "fail", "fix_configuration")],
    ),
    "fewer than named": (
        read("0,1,2"),
        None,
        "fail",
        [("gpu_not_visible", "fail", "fix_configuration")],
    ),
    "one named twice, as for two shares of its time": (
        read("GPU-0234-5678,GPU-0234-5678", shown=1),
        None,
        "pass",
        [],
    ),
    "another than named": (
        read("GPU-0234,GPU-9999"),
        None,
        "fail",
        [("gpu_not_visible", "fail", "fix_configuration")],
    ),
    "more than requested": (
        read("all"),
        1,
        "warn",
        [("gpu_unrequested_visible", "warn", "fix_configuration")],
    ),
    "none requested": (
        read("all"),
        0,
        "warn",
        [("gpu_unrequested_visible", "warn", "fix_configuration")],
    ),
    "more than named": (
        read("GPU-0234"),
        None,
        "warn",
        [("gpu_unrequested_visible", "warn", "fix_configuration")],
    ),
    "devices lost": (
        read("all", shown=None, error="unknown_error"),
        None,
        "unknown",
        [("gpu_not_visible", "unknown", "fix_configuration")],
    ),
    "devices lost, requested": (
        read("all", shown=None, error="no_permission"),
        2,
        "unknown",
        [("gpu_not_visible", "unknown", "fix_configuration")],
    ),
    "no binding": (
        read("all", shown=None, error="binding_missing"),
        2,
        "unknown",
        [("not_read", "unknown", "fix_configuration")],
    ),
    "graphics only": (
        read("all", NVIDIA_DRIVER_CAPABILITIES="graphics,utility"),
        None,
        "warn",
        [("gpu_env_missing", "warn", "fix_configuration")],
    ),
    "all capabilities": (read("all", NVIDIA_DRIVER_CAPABILITIES="all"), None, "pass", []),
    "usual capabilities": (
        read("all", NVIDIA_DRIVER_CAPABILITIES="compute,utility"),
        None,
        "pass",
        [],
    ),
    "no unified memory": (
        read("all", devices=["nvidia0", "nvidia1", "nvidiactl"]),
        None,
        "warn",
        [("gpu_device_missing", "warn", "fix_configuration")],
    ),
    "Windows' subsystem": (read("all", shown=1, devices=["dxg"]), None, "pass", []),
    "new enough": (read("all", NVIDIA_REQUIRE_CUDA="cuda>=12.4"), None, "pass", []),
    "too old": (
        read("all", NVIDIA_REQUIRE_CUDA=OLD),
        None,
        "warn",
        [("gpu_driver_too_old", "warn", "fix_configuration")],
    ),
    "too old, and meant so": (
        read("all", NVIDIA_REQUIRE_CUDA=OLD, NVIDIA_DISABLE_REQUIRE="1"),
        None,
        "pass",
        [],
    ),
    "brand not known": (
        read("all", NVIDIA_REQUIRE_CUDA=OLD, brand=None),
        None,
        "pass",
        [("gpu_requirement_not_told", "pass", "none")],
    ),
    "plain host": ({"container": []}, 4, "skip", []),
    "not read": (
        {"container": ["/.dockerenv"]},
        None,
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "nothing": ({}, None, "unknown", [("not_read", "unknown", "watch")]),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_container_has_its_findings(case):
    readings, requested, status, findings = TABLE[case]
    result = judge(readings, {"requested": requested})
    assert (result.status, [(one.code, one.status, one.action) for one in result.findings]) == (
        status,
        findings,
    )


def test_summary_of_a_container_that_is_well():
    assert judge(read("all"), {}).summary == "2 GPUs in this container, requested: all"
    assert judge(read(None, shown=1), {}).summary == "1 GPU in this container"


KNOWN = {"cuda": "12.8", "driver": "570.124.06", "brand": "tesla"}


@pytest.mark.parametrize(
    "required, met",
    [
        ("cuda>=12.8", True),
        ("cuda>=12.9", False),
        ("cuda>12.8", False),
        ("cuda<13", True),
        ("cuda=12.8", True),
        ("cuda!=12.8", False),
        ("cuda>=12.8.0", True),
        ("cuda>=13.0 brand=tesla,driver>=570,driver<571", True),
        ("cuda>=13.0 brand=tesla,driver>=550,driver<551", False),
        ("brand!=geforce", True),
        ("cuda>=13.0 arch>=9.0", None),
        ("cuda>=12.0 arch>=9.0", True),
        ("cuda>=13.0,arch>=9.0", False),
        ("cuda>=next", None),
        ("", True),
        (" ", True),
        ("cuda", None),
        ("brand>=tesla", None),
        ("driver>=570.124.6", True),
    ],
)
def test_conditions_on_the_driver(required, met):
    assert satisfied(required, KNOWN) is met


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["all", "GPU-1", "0,1", "cuda>=12"])
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "container",
                "environment",
                "gpus",
                "devices",
                "driver_error",
                "cuda_version",
                "driver_version",
                "brand",
            ]
        ),
        LEAVES
        | st.lists(LEAVES | st.dictionaries(st.sampled_from(["uuid", "index"]), LEAVES), max_size=3)
        | st.dictionaries(st.sampled_from([*VARIABLES, "kind"]), LEAVES),
    ),
    LEAVES,
)
def test_any_readings_are_judged(readings, requested):
    result = judge(readings, {"requested": requested})
    assert all(one.action != "none" for one in result.findings if one.status == "fail")
    assert result.status in ("unknown", "skip") or readings["container"]
