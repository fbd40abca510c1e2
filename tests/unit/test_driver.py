# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of driver: one table of readings and what must be said about them, what is read from
files, and properties over any readings.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import driver
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.driver import CHECK
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


H100, RTX4090 = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"
VERSION, OTHER = "580.95.05", "575.57.08"


def gpu(index=0, name=H100, **parts):
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": name,
        "vbios": "96.00",
        "inforom": "G520",
        "gsp": VERSION,
        "persistence": 1,
        "compute_mode": 0,
        "mig": {"current": 0, "pending": 0},
        "clocks": {"graphics": 1980, "memory": 2619},
        "fabric": {"state": 3, "status": 0},
    }
    return {**base, **parts}


def node(*gpus, **more):
    base = {
        "driver_version": VERSION,
        "library_version": VERSION,
        "module_version": VERSION,
        "cuda_version": "13.0",
        "cuda_library_versions": {},
        "fabric_manager": {"switches": 4, "running": True, "version": None},
        "persistenced": True,
        "nvlink_disabled": None,
        "processes_scope": "host",
    }
    return {**base, "gpus": list(gpus or [gpu(0), gpu(1), gpu(2), gpu(3)]), **more}


def manager(switches=4, running=False, version=None):
    return {"switches": switches, "running": running, "version": version}


def all_gpus(**parts):
    return [gpu(index, **parts) for index in range(4)]


VERSIONS, PERSISTENCE = ("driver_versions_differ", "warn", None), ("persistence_off", "warn", None)
STOPPED, UNWATCHED = (
    ("fabric_manager_not_running", "fail", None),
    ("fabric_manager_not_running", "warn", None),
)

#: Readings -> (code, status, GPU) of every finding.
TABLE = {
    "healthy": (node(), []),
    "healthy, without a fabric": (
        node(gpu(name="NVIDIA L40S", fabric=None, mig=None, gsp=None), fabric_manager=manager(0)),
        [],
    ),
    # versions
    "library and module differ": (node(library_version=OTHER), [VERSIONS]),
    "module and driver differ": (node(module_version=OTHER), [VERSIONS]),
    "the module's version is not told": (node(module_version=None), []),
    "Windows' subsystem for Linux": (
        node(
            driver_version="581.29",
            library_version="580.95",
            module_version=None,
            processes_scope="namespace",
        ),
        [],
    ),
    "libcuda differs": (node(cuda_library_versions={"/usr/lib64": OTHER}), [VERSIONS]),
    "libcuda is the same": (node(cuda_library_versions={"/usr/lib64": VERSION}), []),
    "libcuda in a container": (
        node(cuda_library_versions={"/usr/lib64": OTHER}, processes_scope="namespace"),
        [],
    ),
    # GPUs that differ
    "one VBIOS": (node(*all_gpus()[:3], gpu(3, vbios="96.01")), [("gpu_differs", "warn", 3)]),
    "one InfoROM and GSP": (
        node(*all_gpus()[:3], gpu(3, inforom="G530", gsp=OTHER)),
        [("gpu_differs", "warn", 3)],
    ),
    "one of another model": (node(*all_gpus()[:3], gpu(3, name="NVIDIA L40S", vbios="95")), []),
    "one does not tell": (node(*all_gpus()[:3], gpu(3, inforom=None)), []),
    "two and two": (
        node(gpu(0), gpu(1), gpu(2, vbios="x"), gpu(3, vbios="x")),
        [("gpu_differs", "warn", None)],
    ),
    "each another": (
        node(gpu(0, vbios="a"), gpu(1, vbios="b"), gpu(2, vbios="c")),
        [("gpu_differs", "warn", None)],
    ),
    # modes
    "persistence off": (node(*all_gpus(persistence=0)), [PERSISTENCE]),
    "persistence off on one": (node(*all_gpus()[:3], gpu(3, persistence=0)), [PERSISTENCE]),
    "persistence off on a GeForce": (
        node(gpu(name=RTX4090, persistence=0)),
        [("persistence_off", "pass", None)],
    ),
    "persistence not supported": (node(*all_gpus(persistence=None)), []),
    "prohibited": (
        node(*all_gpus(compute_mode=2)),
        [("compute_prohibited", "fail", index) for index in range(4)],
    ),
    "exclusive": (
        node(*all_gpus(compute_mode=3)),
        [("compute_exclusive", "pass", index) for index in range(4)],
    ),
    "exclusive on one": (
        node(*all_gpus()[:3], gpu(3, compute_mode=3)),
        [("gpu_differs", "warn", 3), ("compute_exclusive", "pass", 3)],
    ),
    "MIG on": (node(*all_gpus(mig={"current": 1, "pending": 1})), []),
    "MIG soon": (
        node(*all_gpus()[:3], gpu(3, mig={"current": 0, "pending": 1})),
        [("mig_mode_pending", "warn", 3)],
    ),
    # fabric manager
    "does not run": (
        node(*all_gpus(fabric={"state": 1, "status": 0}), fabric_manager=manager()),
        [STOPPED],
    ),
    "does not run, some have joined": (
        node(*all_gpus()[:3], gpu(3, fabric={"state": 2, "status": 0}), fabric_manager=manager()),
        [STOPPED],
    ),
    "does not run, the fabric is not told": (
        node(*all_gpus(fabric=None), fabric_manager=manager()),
        [STOPPED],
    ),
    "does not run, all have joined": (node(fabric_manager=manager()), [UNWATCHED]),
    "does not run and is not needed": (node(fabric_manager=manager(0)), []),
    "does not run, NVLink is off": (
        node(*all_gpus(fabric=None), fabric_manager=manager(), nvlink_disabled=True),
        [],
    ),
    "not to be seen in a container": (
        node(*all_gpus(fabric=None), fabric_manager=manager(), processes_scope="namespace"),
        [],
    ),
    "another version": (
        node(fabric_manager=manager(running=True, version=OTHER)),
        [("fabric_manager_differs", "warn", None)],
    ),
    "the same version": (node(fabric_manager=manager(running=True, version=VERSION)), []),
    # what was not read
    "lost": (
        node(gpu(0), gpu(1), gpu(2, error={"kind": "lost", "call": "x", "code": 15})),
        [("gpu_lost", "fail", 2)],
    ),
    "modes not read": (
        node({key: value for key, value in gpu().items() if key != "compute_mode"}),
        [("not_read", "unknown", 0)],
    ),
    "modes without permission": (
        node(
            {
                key: value
                for key, value in gpu(
                    unread={"mig": {"kind": "no_permission", "call": "x"}}
                ).items()
                if key != "mig"
            }
        ),
        [("no_permission", "unknown", 0)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_verdict(case):
    readings, findings = TABLE[case]
    assert [
        (one.code, one.status, one.subject.index) for one in judge(readings, {}).findings
    ] == findings


def test_the_messages_name_the_versions():
    assert (
        "the driver 580.95.05, libnvidia-ml 575.57.08, the kernel module 580.95.05"
        in judge(node(library_version=OTHER), {}).summary
    )
    assert (
        "/usr/lib64 575.57.08, expected 580.95.05"
        in judge(node(cuda_library_versions={"/usr/lib64": OTHER}), {}).summary
    )
    assert (
        "VBIOS 96.01, expected 96.00 (3 of 4 GPUs of its model)"
        in judge(node(*all_gpus()[:3], gpu(3, vbios="96.01")), {}).summary
    )
    assert (
        "compute mode prohibited, expected default (3 of 4 GPUs of its model)"
        in judge(node(*all_gpus()[:3], gpu(3, compute_mode=2)), {}).findings[0].message
    )


def test_the_summary_of_a_healthy_node():
    assert judge(node(), {}).summary == "driver 580.95.05, CUDA 13.0, VBIOS 96.00"
    assert (
        judge(node(gpu(mig={"current": 1, "pending": 1})), {}).summary
        == "driver 580.95.05, CUDA 13.0, VBIOS 96.00, MIG on for 1 of 1 GPUs"
    )


#: The log of a fabric manager -> its version.
LOGS = {
    "Fabric Manager version is : 535.54.03\n": "535.54.03",
    "Fabric Manager version 580.95.05 is running with the following options\n": "580.95.05",
    "Fabric Manager version is : 535.54.03\nFabric Manager version is : 570.1\n"
    + "x" * 300_000
    + "\n": None,
    "x" * 300_000 + "\nFabric Manager version is : 570.86.15\nlater\n": "570.86.15",
    "": None,
    "Fabric Manager version unknown": None,
}


@pytest.mark.parametrize("log", LOGS)
def test_the_fabric_manager_s_version_is_that_of_its_last_start(log, tmp_path):
    (tmp_path / "var/log").mkdir(parents=True)
    (tmp_path / "var/log/fabricmanager.log").write_text(log)
    assert driver._fabric_manager_version(Host(str(tmp_path))) == LOGS[log]
    assert driver._fabric_manager_version(Host(str(tmp_path / "var"))) is None


def test_libcuda_is_known_by_where_its_link_leads(tmp_path):
    for directory, target in (
        ("usr/lib64", "libcuda.so.580.95.05"),
        ("usr/lib/x86_64-linux-gnu", "libcuda.so.1.1"),
        ("usr/lib/wsl/lib", "other.so"),
    ):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "libcuda.so.1").symlink_to(target)
    assert driver._cuda_libraries(Host(str(tmp_path))) == {
        "/usr/lib64": "580.95.05",
        "/usr/lib/x86_64-linux-gnu": "1.1",
    }


@pytest.mark.parametrize(
    "text, version",
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 "
            "UTC 2025",
            "580.95.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build",
            "575.57.08",
        ),
        ("", None),
        (None, None),
    ],
)
def test_the_module_says_its_version_in_a_sentence(text, version):
    assert driver._found(driver._VERSION, text) == version


# ---- any readings ----

NAMES = (
    "gpus",
    "driver_version",
    "fabric_manager",
    "running",
    "switches",
    "mig",
    "current",
    "name",
    "vbios",
    "fabric",
    "state",
    "error",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
PARTS = ("vbios", "inforom", "gsp", "persistence", "compute_mode", "mig")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(list(node())), JSON))
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([key for key in node() if key != "gpus"]), JSON)
def test_a_part_of_the_node_that_is_not_understood_fails_nothing(key, value):
    assert judge(node(**{key: value}), {}).status in ("pass", "warn")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PARTS), st.booleans() | st.floats() | st.lists(st.integers(), max_size=2))
def test_a_part_of_a_gpu_that_is_not_understood_is_unknown(key, value):
    assert judge(node(gpu(**{key: value})), {}).status == "unknown"


@settings(max_examples=50, deadline=None)
@given(st.sets(st.sampled_from(PARTS), min_size=1))
def test_a_truncated_gpu_is_never_a_pass(cut):
    assert (
        judge(node({key: value for key, value in gpu().items() if key not in cut}), {}).status
        == "unknown"
    )


def test_no_gpu_and_no_readings_are_unknown():
    assert [
        judge(readings, {}).status
        for readings in (
            {},
            {"gpus": []},
            {"gpus": None},
            {"gpus": [None]},
            {"gpus": [{}]},
            [],
            None,
        )
    ] == ["unknown"] * 7
