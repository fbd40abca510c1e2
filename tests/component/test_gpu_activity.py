# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_activity through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import pytest

BUSY = [
    dict(gpu="*", call="nvmlDeviceGetUtilizationRates", values=[98, 40]),
    dict(gpu="*", call="nvmlDeviceGetPowerUsage", values=[600000]),
    dict(gpu="*", call="nvmlDeviceGetCurrentClocksEventReasons", values=[4]),
]


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


#: Rules of a node of two GPUs that are otherwise at work -> status of the check, then (code,
#: status, GPU) of every finding.
TABLE = {
    "at work": ([], "pass", []),
    "hot": (
        [on(1, "nvmlDeviceGetCurrentClocksEventReasons", 0x48)],
        "fail",
        [("hw_thermal_slowdown", "fail", 1)],
    ),
    "lost": ([on(1, "*", returns=15)], "fail", [("gpu_lost", "fail", 1)]),
    "comes and goes": (
        [dict(gpu=1, call="nvmlDeviceGetUtilizationRates", returns=15, times=1)],
        "fail",
        [("gpu_flapping", "fail", 1)],
    ),
    "memory errors that are contained": (
        [
            on(1, "nvmlDeviceGetTotalEccErrors.1.0", "0+1"),
            on(1, "nvmlDeviceGetMemoryErrorCounter.1.0.2", "0+1"),
        ],
        "warn",
        [("ecc_errors_growing", "warn", 1)],
    ),
    "memory errors": (
        [on(1, "nvmlDeviceGetTotalEccErrors.1.0", "0+1")],
        "fail",
        [("ecc_errors_growing", "fail", 1)],
    ),
    "link errors": ([on(1, "field.52", "0+3")], "warn", [("nvlink_errors_growing", "warn", 1)]),
    "MIG": (
        [on("*", "nvmlDeviceGetUtilizationRates", returns=3)],
        "pass",
        [("utilization_not_reported", "pass", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    rules, status, findings = TABLE[case]
    result = measure(
        node(dict(gpus=2, rules=BUSY + rules)), "gpu_activity", window=1.0, interval=0.5
    ).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index) for one in result.findings],
    ) == (status, findings)


def test_what_is_read_and_what_it_cost(node, measure):
    outcome = measure(node(dict(gpus=8, rules=BUSY)), "gpu_activity", window=1.0, interval=0.5)
    read = outcome.readings
    assert [gpu["power_limit"] for gpu in read["gpus"]] == [700.0] * 8
    assert len(read["samples"]) == 3 and [
        one["index"] for one in read["samples"][2]["gpus"]
    ] == list(range(8))
    assert read["samples"][2]["m"] - read["samples"][0]["m"] > 0.9
    overhead = read["overhead"]
    assert (
        0 < overhead["cpu_seconds"] <= overhead["seconds"]
        and 1e6 < overhead["memory_bytes"] < 1e9
        and overhead["seconds"] >= 1
    )
    assert "sampling took" in outcome.result.summary and {"sampling_cpu", "sampling_memory"} <= {
        one.name for one in outcome.result.measurements
    }


def test_a_driver_that_hangs_is_unknown_and_what_was_sampled_is_kept(node, measure):
    call = "nvmlDeviceGetTemperature"
    built = node(
        dict(
            gpus=2,
            rules=[
                *BUSY,
                on(1, call, hang="ignore_term"),
                dict(gpu=1, call=call, values=[60], times=2),
            ],
        )
    )
    outcome = measure(built, "gpu_activity", timeout=4, window=2.0, interval=0.5)
    assert outcome.result.status == "unknown" and [one.code for one in outcome.result.findings] == [
        "hung"
    ]
    assert len(outcome.readings["samples"]) == 2
