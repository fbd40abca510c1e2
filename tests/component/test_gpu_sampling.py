# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sample of every GPU through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import json
import subprocess

import pytest

SAMPLE = """
import json
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices.nvml import Nvml
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import gpus
stages = []
nvml = Nvml(Host({root!r}), {library!r}, stages.append)
first = gpus.read(nvml)
del stages[:]
print(json.dumps([first, gpus.read(nvml), stages]))
"""
H100 = 81559 * 1024 * 1024


def sampled(node):
    """Two samples of a node, and the driver calls that the second made."""
    program = SAMPLE.format(root=node.root, library=node.library)
    done = subprocess.run(
        [node.python, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def node_with_every_figure(node):
    """A node of one GPU for which NVML answers every call with a figure of its own."""
    rules = [
        on(0, "nvmlDeviceGetUtilizationRates", 97, 41),
        on(0, "nvmlDeviceGetClockInfo.1", 1755),
        on(0, "nvmlDeviceGetPowerUsage", 655500),
        on(0, "nvmlDeviceGetTemperature", 61),
        on(0, "nvmlDeviceGetCurrentClocksEventReasons", 4),
        on(0, "nvmlDeviceGetTotalEnergyConsumption", 7500),
        on(0, "nvmlDeviceGetTotalEccErrors.1.0", 2),
        on(0, "nvmlDeviceGetMemoryErrorCounter.1.0.2", 1),
        on(0, "nvmlDeviceGetMemoryErrorCounter.1.0.7", 3),
        *(on(0, f"field.{field}", field) for field in (38, 45, 52, 59, 138, 139)),
        *(on(0, f"field.{field}", f"{field}+1000") for field in (74, 75, 77, 79, 269, 270, 271)),
    ]
    processes = [
        dict(gpu=0, pid=4711, name="python", memory=1 << 30),
        dict(gpu=0, pid=4712, name="x", kind="mps"),
    ]
    return node(dict(gpus=1, rules=rules, processes=processes))


def test_everything_a_gpu_tells_is_in_its_units(node):
    built = node_with_every_figure(node)
    first, second, _stages = sampled(built)
    sample = first[0]
    expected = {
        "utilization": 97,
        "memory_bandwidth_busy": 41,
        "memory_used": 1 << 30,
        "memory_total": H100,
        "sm_clock": 1755,
        "power": 655.5,
        "temperature": 61,
        "reasons": 4,
        "energy": 7.5,
        "processes": [4711, 4712],
        "error": None,
        "ecc_uncorrected": 2,
        "ecc_uncorrected_dram": 1,
        "ecc_uncorrected_sram": 3,
        "nvlink": {
            "errors": {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59},
            "sent": 138 * 1024,
            "received": 139 * 1024,
        },
        "violation": {
            "power": 74,
            "thermal": 75,
            "board_limit": 77,
            "reliability": 79,
            "sw_thermal": 269,
            "hw_thermal": 270,
            "power_brake": 271,
        },
    }
    assert {key: sample[key] for key in expected} == expected
    assert (sample["index"], sample["uuid"]) == (0, built.gpus[0]["uuid"])
    # Counters are read anew for each sample.
    assert {
        cause: second[0]["violation"][cause] - value for cause, value in sample["violation"].items()
    } == dict.fromkeys(sample["violation"], 1000)


def test_what_a_gpu_does_not_have_is_none_and_no_zero(node):
    gone = (
        "UtilizationRates",
        "ClockInfo",
        "PowerUsage",
        "Temperature",
        "TotalEnergyConsumption",
        "TotalEccErrors",
        "MemoryErrorCounter",
        "FieldValues",
        "ViolationStatus",
        "CurrentClocksEventReasons",
        "CurrentClocksThrottleReasons",
        "ComputeRunningProcesses",
        "MemoryInfo",
    )
    sample = sampled(
        node(dict(gpus=1, rules=[on(0, f"nvmlDeviceGet{name}", returns=3) for name in gone]))
    )[0][0]
    rest = {
        key: value for key, value in sample.items() if key not in ("index", "uuid", "pci", "name")
    }
    assert rest == dict.fromkeys(rest, None) | {"violation": {}}


@pytest.mark.parametrize("call, kind", [("*", "lost"), ("nvmlDeviceGetPowerUsage", "lost")])
def test_a_gpu_that_does_not_answer_has_an_error_and_takes_nothing_from_the_others(
    node, call, kind
):
    first = sampled(node(dict(gpus=3, rules=[on(1, call, returns=15)])))[0]
    assert [sample["error"] and sample["error"]["kind"] for sample in first] == [None, kind, None]
    assert [sample["power"] for sample in first] == [70.0, None, 70.0]


def test_a_part_that_could_not_be_read_is_named(node):
    sample = sampled(node(dict(gpus=1, rules=[on(0, "nvmlDeviceGetPowerUsage", returns=999)])))[0][
        0
    ]
    assert (
        sample["power"] is None
        and list(sample["unread"]) == ["power"]
        and sample["temperature"] == 34
    )


def test_a_gpu_costs_a_few_calls_of_getters_that_disturb_nothing(node):
    _first, second, stages = sampled(node("healthy_8xh100"))
    assert len(second) == 8 and 8 * 10 < len(stages) < 8 * 20
    calls = {stage.split(" ")[0] for stage in stages}
    assert (
        calls
        and all(call.startswith("nvmlDeviceGet") for call in calls)
        and "nvmlDeviceGetPcieThroughput" not in calls
    )
    assert len(stages) <= 8 * 25
