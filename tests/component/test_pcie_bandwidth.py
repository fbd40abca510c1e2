# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pcie_bandwidth through the real CUDA path on nodes of stand-in hardware: real copies, a virtual
clock, every way to go wrong.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from node import processes_of

CHECK = "pcie_bandwidth"
GB = 1e9
HEALTHY = {"*": {"h2d": 55.2e9, "d2h": 55.0e9}}


def said(outcome):
    return [
        (one.code, one.status, one.action, one.subject.index) for one in outcome.result.findings
    ]


def rates(outcome, name=CHECK):
    return {
        tuple(one.labels[key] for key in ("gpu", "direction", "method")): one.value
        for one in outcome.result.measurements
        if one.name == name
    }


#: Scenario -> status of the check, (code, status, action, GPU) of every finding, GPUs measured.
SCENARIOS = {
    "healthy_8xh100": ("pass", [], 8),
    "slow_link": (
        "fail",
        [("low_bandwidth", "fail", "drain_node", 4)] * 2
        + [("link_width", "fail", "drain_node", 4)],
        8,
    ),
    "corrupt_copy": ("fail", [("data_corrupted", "fail", "drain_node", 6)], 8),
    "out_of_memory": ("unknown", [("out_of_memory", "unknown", "watch", 4)], 7),
    "gpu_busy": ("skip", [("gpu_in_use", "skip", "none", 2)], 7),
    "mig": ("skip", [("mig_enabled", "skip", "none", 0)], 7),
    "no_gpu": ("skip", [], 0),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios(node, measure, scenario):
    status, findings, measured = SCENARIOS[scenario]
    outcome = measure(node(scenario), CHECK)
    assert (outcome.result.status, sorted(said(outcome), key=str)) == (
        status,
        sorted(findings, key=str),
    )
    assert len({gpu for gpu, _direction, _method in rates(outcome)}) == measured


def test_a_link_that_comes_up_from_its_sleep_is_measured_awake(node, measure):
    outcome = measure(
        node({"gpus": 1, "cuda": {0: {"h2d": 55.2e9, "d2h": 55.0e9, "asleep": 0.08}}}), CHECK
    )
    assert (outcome.result.status, said(outcome)) == ("pass", [])


def test_every_configured_rate_is_reported(node, measure):
    """Each within 0.5 %, from a Gen3 x1 link to NVLink-C2C, and both of the all-at-once ones."""
    configured = {
        0: {"h2d": 55.2e9, "d2h": 54.9e9, "kernel_h2d": 35.0e9, "kernel_d2h": 52.8e9},
        1: {"h2d": 0.81e9, "d2h": 0.79e9, "kernel_h2d": 0.7e9, "kernel_d2h": 0.6e9},
        2: {"h2d": 26.17e9, "d2h": 3.3e9, "kernel_h2d": 13.6e9, "kernel_d2h": 20.2e9},
        3: {"h2d": 419.0e9, "d2h": 297.0e9, "kernel_h2d": 300e9, "kernel_d2h": 200e9},
    }
    for gpu, keys in configured.items():
        keys.update(concurrent_h2d=(20 + gpu) * GB, concurrent_d2h=(30 + gpu) * GB)
    outcome = measure(node({"gpus": 4, "cuda": configured}), CHECK, concurrent=True)
    ways = {
        ("host_to_device", "copy_engine"): "h2d",
        ("device_to_host", "copy_engine"): "d2h",
        ("host_to_device", "kernel"): "kernel_h2d",
        ("device_to_host", "kernel"): "kernel_d2h",
    }
    expected = {
        (str(gpu), *way): pytest.approx(keys[key], rel=0.005)
        for gpu, keys in configured.items()
        for way, key in ways.items()
    }
    assert rates(outcome) == expected
    assert rates(outcome, "pcie_bandwidth_concurrent") == {
        (str(gpu), direction, "copy_engine"): pytest.approx(keys[key], rel=0.005)
        for gpu, keys in configured.items()
        for direction, key in (
            ("host_to_device", "concurrent_h2d"),
            ("device_to_host", "concurrent_d2h"),
        )
    }


def test_each_gpu_has_a_trouble_of_its_own_and_costs_no_other_its_figures(node, measure):
    outcome = measure(
        node(
            {
                "gpus": 8,
                "cuda": {
                    **HEALTHY,
                    1: {"corrupt": 1},
                    3: {"crash": "cuMemcpyDtoHAsync_v2"},
                    4: {"d2h": 27.0e9},
                },
                "pci": {"link": {4: {"current_link_speed": "16.0 GT/s PCIe"}}},
                "rules": [
                    {"gpu": 2, "call": "cuMemHostAlloc", "returns": 2},
                    {"gpu": 5, "call": "cuModuleLoadData", "returns": 222},
                    {"gpu": 6, "call": "cuEventSynchronize", "returns": 214},
                    {"gpu": 7, "call": "cuInit", "returns": 999},
                ],
            }
        ),
        CHECK,
    )
    assert sorted(said(outcome), key=lambda one: (one[3], one[0])) == [
        ("data_corrupted", "fail", "drain_node", 1),
        ("out_of_memory", "unknown", "watch", 2),
        ("crashed", "unknown", "watch", 3),
        ("link_speed", "fail", "drain_node", 4),
        ("low_bandwidth", "fail", "drain_node", 4),
        ("kernel_not_run", "pass", "none", 5),
        ("ecc_uncorrectable", "fail", "reset_gpu", 6),
        ("cuda_error", "unknown", "watch", 7),
    ]
    figures = rates(outcome)
    assert {gpu for gpu, _direction, _method in figures} == {"0", "1", "3", "4", "5"}
    # What GPU 3 had measured before its driver crashed is kept, and GPU 5 has the copy engines'
    # figures.
    assert [key[1:] for key in figures if key[0] == "3"] == [("host_to_device", "copy_engine")]
    assert {key[2] for key in figures if key[0] == "5"} == {"copy_engine"}
    crashed = next(one for one in outcome.result.findings if one.code == "crashed")
    assert crashed.message == "the measurement was ended by signal 11 in cuMemcpyDtoHAsync_v2"


def test_a_gpu_that_hangs_is_named_and_the_others_are_measured(node, measure):
    hanging = node(
        {
            "gpus": 3,
            "cuda": HEALTHY,
            "rules": [{"gpu": 1, "call": "cuMemAlloc_v2", "hang": "ignore_term"}],
        }
    )
    outcome = measure(hanging, CHECK, timeout=18)
    assert said(outcome) == [("hung", "unknown", "watch", 1)]
    assert "cuMemAlloc_v2 did not return" in outcome.result.findings[0].message
    assert {gpu for gpu, _direction, _method in rates(outcome)} == {"0", "2"}
    assert not processes_of(hanging)
    with open(Path(hanging.root) / "run/autopilot-gpu/checks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: What the driver answers everywhere -> what is said once, about the node.
NODE_TROUBLES = {
    "the fabric manager does not run": (
        [{"gpu": "*", "call": "cuInit", "returns": 802}],
        ("fabric_not_ready", "fail", "fix_configuration", None),
    ),
    "libcuda of another version": (
        [{"gpu": "*", "call": "cuInit", "returns": 803}],
        ("driver_version_mismatch", "fail", "reboot_node", None),
    ),
}


@pytest.mark.parametrize("trouble", NODE_TROUBLES)
def test_what_is_wrong_with_the_node_is_said_once(node, measure, trouble):
    rules, finding = NODE_TROUBLES[trouble]
    outcome = measure(node({"gpus": 2, "rules": rules}), CHECK)
    assert said(outcome) == [finding]


def test_a_driver_without_its_compute_part(node, measure):
    bare = node({"gpus": 1})
    (bare.directory / "lib/libcuda.so.1").unlink()
    assert said(measure(bare, CHECK)) == [
        ("cuda_library_missing", "unknown", "fix_configuration", None)
    ]


def test_the_library_of_a_driver_container_is_found(node, measure):
    inside = node({"gpus": 1, "cuda": HEALTHY})
    home = Path(inside.root) / "run/nvidia/driver/usr/lib64"
    home.mkdir(parents=True)
    (inside.directory / "lib/libcuda.so.1").rename(home / "libcuda.so.1")
    assert measure(inside, CHECK).result.status == "pass"


BUSY = {
    "gpus": 2,
    "cuda": {**HEALTHY, 1: {"h2d": 20e9, "d2h": 55e9}},
    "processes": [{"gpu": 1, "pid": 4242, "name": "python3", "memory": 1 << 36}],
}


def test_a_gpu_in_use_is_measured_when_forced_and_its_slowness_proves_nothing(node, measure):
    outcome = measure(node(BUSY), CHECK, force=True)
    assert said(outcome) == [("low_bandwidth", "unknown", "watch", 1)]
    assert "the GPU was not idle: in use by python3 (pid 4242)" in outcome.result.summary
    assert ("1", "host_to_device", "copy_engine") in rates(outcome)


def test_nothing_is_measured_while_another_check_has_the_lock(node, measure):
    shared = node({"gpus": 1, "cuda": HEALTHY})
    Path(shared.root, "run/autopilot-gpu").mkdir(mode=0o700)
    with open(Path(shared.root) / "run/autopilot-gpu/checks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = measure(shared, CHECK, timeout=8)
    assert said(outcome) == [("locked", "unknown", "watch", None)]
    assert not rates(outcome)
