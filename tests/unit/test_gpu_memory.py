# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_memory and what its kernels must compute: one table of readings and what must be
said about them, and properties over any readings.
"""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import kernels
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import gpu_memory
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.memory import (
    BANDWIDTHS,
    memory_bandwidth_of,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    check = gpu_memory.CHECK
    return check.judge(decode(check.readings, readings), options)


H100, NEW = "NVIDIA H100 80GB HBM3", "NVIDIA X900"
TRAINING = {"pid": 4242, "name": "python3", "how": "compute", "memory": 1 << 36}


def identity(index, name=H100):
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index + 0x18:02X}:00.0",
        "name": name,
    }


def right(**wrong):
    return {
        name: {
            "size": 1 << 21,
            "wrong": wrong.get(name, 0),
            "first_wrong": 4711 if wrong.get(name) else None,
        }
        for name in ("triad", "fp64", "tensor")
    }


def gpu(index=3, triad=3020, fp64=30.0, tensor=500.0, name=H100, **changes):
    """A GPU measured at these rates in GB/s and TFLOP/s; ``None`` as a change takes the part away."""
    rates = {
        "triad": triad and triad * 1e9,
        "fp64": fp64 and fp64 * 1e12,
        "tensor": tensor and tensor * 1e12,
    }
    base = {
        "capability": 9,
        "rates": {key: value for key, value in rates.items() if value},
        "samples": {},
        "verified": right(),
    }
    return {
        **identity(index, name),
        **{key: value for key, value in {**base, **changes}.items() if value is not None},
    }


def look(gpus, **busy):
    idle = {
        "processes": [],
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_used": 0,
        "mig": False,
    }
    return {
        "gpus": [
            {**identity(one["index"]), **idle, **busy.get(f"gpu{one['index']}", {})} for one in gpus
        ],
        "mps": [],
        "jobs": None,
    }


def node(*gpus, before=None, after=None):
    return {
        "driver_version": "580.95.05",
        "gpus": list(gpus),
        "gate": {"locked_by": None, "looks": [look(gpus, **(before or {}))] * 2},
        "after": {"locked_by": None, "looks": [look(gpus, **(after or {}))]},
    }


def eight(third, **how):
    return node(
        *[third if index == 3 else gpu(index, name=third["name"]) for index in range(8)], **how
    )


def error(kind, code, call="cuMemAlloc_v2"):
    return {"kind": kind, "call": call, "code": code, "text": ""}


SLOW = ("low_memory_bandwidth", "fail", "drain_node", 3)
LOOK = ("low_memory_bandwidth", "warn", "watch", 3)
COMPUTE = ("low_compute_rate", "warn", "watch", 3)
UNMEASURED = {"rates": None, "samples": None, "verified": None}

#: Readings, options -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    "eight healthy": (eight(gpu()), {}, "pass", []),
    "one healthy": (node(gpu()), {}, "pass", []),
    # the memory against the table
    "below the floor": (node(gpu(triad=1800)), {}, "fail", [SLOW]),
    "in the band": (node(gpu(triad=2500)), {}, "warn", [LOOK]),
    "H200 is not judged by DCGM's slip": (
        node(gpu(triad=2000, name="NVIDIA H200")),
        {},
        "fail",
        [SLOW],
    ),
    "H20 has no band": (node(gpu(triad=1600, name="NVIDIA H20")), {}, "pass", []),
    "L4": (node(gpu(triad=240, name="NVIDIA L4")), {}, "pass", []),
    # against the node's GPUs of the model
    "below 0.9 of its peers": (eight(gpu(triad=2700)), {}, "warn", [LOOK]),
    "below 0.8 of its peers": (eight(gpu(triad=2300)), {}, "fail", [SLOW]),
    "double precision below 0.9": (eight(gpu(fp64=26)), {}, "warn", [COMPUTE]),
    "double precision far below is a warning still": (eight(gpu(fp64=3)), {}, "warn", [COMPUTE]),
    "tensor cores below 0.9": (eight(gpu(tensor=400)), {}, "warn", [COMPUTE]),
    "both": (eight(gpu(fp64=20, tensor=400)), {}, "warn", [COMPUTE, COMPUTE]),
    "two GPUs are not enough for a median": (node(gpu(), gpu(1, fp64=10)), {}, "pass", []),
    "slow arithmetic alone says nothing": (node(gpu(fp64=3, tensor=10)), {}, "pass", []),
    # models that are not known
    "unknown and alone": (
        node(gpu(name=NEW)),
        {},
        "unknown",
        [("no_expectation", "unknown", "fix_configuration", 3)],
    ),
    "unknown among its like": (
        node(*[gpu(n, name=NEW) for n in range(3)]),
        {},
        "pass",
        [("no_expectation", "pass", "none", n) for n in range(3)],
    ),
    "unknown with a minimum": (node(gpu(name=NEW)), {"minimum": 2000}, "pass", []),
    # against the operator's minimum
    "above the minimum, below the table": (node(gpu(triad=1500)), {"minimum": 1400.0}, "pass", []),
    "below the minimum": (node(gpu()), {"minimum": 3100}, "fail", [SLOW]),
    "above the minimum, below its peers": (
        eight(gpu(triad=2000)),
        {"minimum": 1400},
        "warn",
        [LOOK],
    ),
    # results
    "wrong in double precision": (
        eight(gpu(verified=right(fp64=1))),
        {},
        "fail",
        [("compute_wrong", "fail", "drain_node", 3)],
    ),
    "wrong in memory and tensor cores": (
        eight(gpu(verified=right(triad=9, tensor=2))),
        {},
        "fail",
        [("compute_wrong", "fail", "drain_node", 3)],
    ),
    "not compared": (
        node(gpu(verified={"triad": right()["triad"]})),
        {},
        "unknown",
        [("not_verified", "unknown", "watch", 3)],
    ),
    "wrong and slow": (
        eight(gpu(triad=1000, verified=right(triad=9))),
        {},
        "fail",
        [("compute_wrong", "fail", "drain_node", 3), SLOW],
    ),
    # what kept it from being measured
    "a GPU too old": (
        node(gpu(capability=6, name="Tesla P100-PCIE-16GB", **UNMEASURED)),
        {},
        "skip",
        [("kernels_not_for_gpu", "skip", "none", 3)],
    ),
    "in use": (
        eight(gpu(withheld=True, **UNMEASURED), before={"gpu3": {"processes": [TRAINING]}}),
        {},
        "skip",
        [("gpu_in_use", "skip", "none", 3)],
    ),
    "MIG": (
        eight(gpu(withheld=True, **UNMEASURED), before={"gpu3": {"mig": True}}),
        {},
        "skip",
        [("mig_enabled", "skip", "none", 3)],
    ),
    "slow while in use": (
        eight(gpu(triad=1500), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "unknown",
        [("low_memory_bandwidth", "unknown", "watch", 3)],
    ),
    "wrong while in use is wrong": (
        eight(gpu(verified=right(fp64=1)), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "fail",
        [("compute_wrong", "fail", "drain_node", 3)],
    ),
    "taken meanwhile": (
        eight(gpu(triad=1500), after={"gpu3": {"processes": [TRAINING]}}),
        {},
        "unknown",
        [("disturbed", "unknown", "watch", 3), ("low_memory_bandwidth", "unknown", "watch", 3)],
    ),
    "hung": (
        eight(
            gpu(
                fp64=None,
                tensor=None,
                hung={
                    "what": "cuLaunchKernel",
                    "seconds": 12.0,
                    "allowed_seconds": 14.0,
                    "abandoned_pid": None,
                },
            )
        ),
        {},
        "unknown",
        [("hung", "unknown", "watch", 3)],
    ),
    "out of memory": (
        eight(gpu(cuda_error=error("out_of_memory", 2), **UNMEASURED)),
        {},
        "unknown",
        [("out_of_memory", "unknown", "watch", 3)],
    ),
    "kernels not taken": (
        eight(gpu(cuda_error=error("unsupported_ptx", 222, "cuModuleLoadData"), **UNMEASURED)),
        {},
        "unknown",
        [("cuda_error", "unknown", "watch", 3)],
    ),
    "an uncorrectable error": (
        eight(gpu(cuda_error=error("ecc_uncorrectable", 214))),
        {},
        "fail",
        [("ecc_uncorrectable", "fail", "reset_gpu", 3)],
    ),
    "the fabric is not ready": (
        node(
            *[
                gpu(
                    n,
                    cuda_error=error("system_not_ready", 802, "cuInit"),
                    capability=None,
                    **UNMEASURED,
                )
                for n in range(2)
            ]
        ),
        {},
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", None)],
    ),
    "not measured": (
        node(gpu(**UNMEASURED)),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", 3)],
    ),
    "a part not measured": (
        node(gpu(tensor=None)),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", 3)],
    ),
    "a lost GPU": (
        eight(gpu(error=dict(error("lost", 15)))),
        {},
        "fail",
        [("gpu_lost", "fail", "reboot_node", 3)],
    ),
    "no GPU": (
        {"gpus": []},
        {},
        "unknown",
        [("use_unknown", "unknown", "watch", None), ("no_gpu_seen", "unknown", "watch", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(case):
    readings, options, status, findings = TABLE[case]
    before = copy.deepcopy(readings)
    result = judge(readings, options)
    assert (
        result.status,
        [(one.code, one.status, one.action, one.subject.index) for one in result.findings],
    ) == (status, findings)
    assert readings == before and result.summary


def test_words_and_measurements():
    result = judge(node(gpu(), gpu(4, 3010, 31, 505)), {})
    assert (
        result.summary
        == "triad 3010 to 3020 GB/s, fp64 30 to 31 TFLOP/s, tensor 500 to 505 TFLOP/s, all "
        "results right"
    )
    assert [(one.name, one.value, one.unit, one.labels) for one in result.measurements[:3]] == [
        ("gpu_memory_bandwidth", 3020e9, "bytes/s", {"gpu": "3"}),
        ("gpu_compute_rate", 30e12, "FLOP/s", {"gpu": "3", "kind": "fp64"}),
        ("gpu_compute_rate", 500e12, "FLOP/s", {"gpu": "3", "kind": "tensor"}),
    ]
    assert judge(node(gpu(triad=1800)), {}).findings[0].message == (
        "memory bandwidth (triad) 1800 GB/s, expected at least 1905 (DCGM 4.6 "
        "diag-skus.yaml.in, minimum_bandwidth, table)"
    )


def test_the_table_is_consistent_and_knows_the_models():
    assert all(row.fail <= row.warn < row.peak and row.source for row in BANDWIDTHS)
    peaks = {
        "NVIDIA H100 80GB HBM3": 3352,
        "NVIDIA H100 80GB HBM2e": 2039,
        "NVIDIA H100 PCIe": 2039,
        "NVIDIA H100 NVL": 3938,
        "NVIDIA H200": 4800,
        "NVIDIA H20": 4000,
        "NVIDIA A100-SXM4-80GB": 2039,
        "NVIDIA A100-SXM4-40GB": 1555,
        "NVIDIA A100 80GB PCIe": 1935,
        "NVIDIA A30": 933,
        "NVIDIA L40S": 864,
        "NVIDIA L4": 300,
        "Tesla T4": 320,
        "NVIDIA B200": 8000,
        "Tesla V100-SXM2-16GB": 897,
        "NVIDIA GH200 480GB": 4000,
        "NVIDIA GH200 144G HBM3e": 4900,
        "NVIDIA H20-3e": 4800,
        "NVIDIA H100": 2039,
        "NVIDIA H100 64GB HBM2": 2039,
        "NVIDIA H100 SXM5 64GB": 2039,
        "NVIDIA H100 94GB HBM2e": 2039,
        "NVIDIA H100 SXM5 96GB": 2039,
        "NVIDIA A100-SXM-64GB": 1640,
        "NVIDIA A100X": 2039,
        "NVIDIA A800-SXM4-80GB": 2039,
        "NVIDIA A30X": 1223,
        "NVIDIA L40": 864,
        "NVIDIA L40G": 864,
        "NVIDIA L20": 864,
        "NVIDIA L2": 300,
        "NVIDIA A2": 200,
        "NVIDIA A16": 200,
        "NVIDIA T4G": 320,
        "NVIDIA RTX A6000": 768,
        "NVIDIA RTX A4000": 448,
        "NVIDIA RTX 6000 Ada Generation": 960,
        "NVIDIA RTX 5880 Ada Generation": 960,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": 1597,
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": 1597,
        "NVIDIA RTX PRO 5000 Blackwell": 1344,
        "NVIDIA RTX PRO 4500 Blackwell": 896,
        "Quadro GV100": 870,
        "Quadro RTX 8000": 672,
        "Quadro RTX 5000": 448,
        "Tesla V100-DGXS-32GB": 897,
        "Tesla V100-FHHL-16GB": 829,
        "NVIDIA GB10": 273,
    }
    assert {name: round(memory_bandwidth_of(name).peak / 1e9) for name in peaks} == peaks
    assert [
        memory_bandwidth_of(name) for name in ("NVIDIA H100-80C", "NVIDIA L40S-48C", "GRID T4-16C")
    ] == [None] * 3
    assert memory_bandwidth_of(NEW) is None and memory_bandwidth_of(None) is None


@pytest.mark.parametrize("name", ["NVIDIA AX800", "NVIDIA RTX 6000D"])
def test_a_model_without_a_published_figure_is_not_taken_for_its_relative(name):
    assert memory_bandwidth_of(name) is None


#: Names of models whose names begin alike.
ALIKE = (
    "NVIDIA GB300|NVIDIA GB200|NVIDIA H100 NVL|NVIDIA A100-SXM4-80GB|NVIDIA A10|NVIDIA A40|"
    "NVIDIA A30|NVIDIA A100X|NVIDIA A16|NVIDIA A2|NVIDIA L2|NVIDIA L20|NVIDIA L40|NVIDIA L40S|"
    "NVIDIA H20|NVIDIA H20-3e|NVIDIA H200|NVIDIA H200 NVL|NVIDIA GH200 480GB|"
    "NVIDIA GH200 144G HBM3e|NVIDIA H100 PCIe|NVIDIA H100|NVIDIA H100 80GB HBM3|Tesla T4|NVIDIA T4G"
).split("|")


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_has_the_same_row_in_any_case_and_with_any_vendor(name):
    row = memory_bandwidth_of(name)
    model = name.split(" ", 1)[1]
    for other in (model, f"Tesla {model}", name.upper(), name.lower(), f"{name} "):
        assert memory_bandwidth_of(other) is row


@pytest.mark.parametrize("size", ["64GB", "94GB", "96GB"])
@pytest.mark.parametrize("board", ["", "SXM5 "])
def test_a_name_without_the_kind_of_memory_has_the_lower_thresholds(board, size):
    row = memory_bandwidth_of(f"NVIDIA H100 {board}{size}")
    assert row is memory_bandwidth_of("NVIDIA H100 64GB HBM2e")
    assert row.fail < memory_bandwidth_of("NVIDIA H100 80GB HBM3").fail


def test_the_chains_end_where_exact_arithmetic_ends_them():
    """The first steps by fractions, rounded once as an fma does; the ends differ from those of
    separate rounding, so they tell a wrong bit.
    """
    starts, steps, k = kernels._STARTS, 200, kernels._K
    fma = kernels.c_fma()
    ends = kernels.chain_ends()
    for x in starts:
        exact = x
        for _step in range(steps):
            exact = float(Fraction(exact) * Fraction(exact) - Fraction(k))
            x = fma(x, x, -k)
        assert x == exact
    assert len(set(ends)) == len(ends) == 8 and all(-2 < end < 2 for end in ends)


def test_the_tiles_are_exact():
    left, right_ = kernels.tiles()
    sums = kernels.tile_sums(left, right_)
    assert len(sums) == 1024 and 0 < max(map(abs, sums)) < 1 << 24 and len(set(sums)) > 40
    assert sums[256 + 2 * 16 + 5] == kernels._ADDITIONS * sum(
        left[32 + i] * right_[256 + 16 * i + 5] for i in range(16)
    )


def test_what_the_check_and_its_measurement_say_of_old_gpus_is_the_same():
    assert gpu_memory.OLDEST == kernels.OLDEST and list(gpu_memory.RATES) == list(
        kernels.RATES
    ) == list(kernels._MEASURES)
    assert {name: row[0] for name, row in gpu_memory.RATES.items()} == kernels.RATES


PIECES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 70),
    st.text(max_size=5),
    st.floats(allow_nan=True),
    st.lists(st.integers(), max_size=2),
)


@settings(max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "rates",
                "verified",
                "capability",
                "cuda_error",
                "hung",
                "withheld",
                "error",
                "samples",
                "crashed",
            ]
        ),
        PIECES,
        max_size=2,
    ),
    st.dictionaries(st.sampled_from(["triad", "fp64", "tensor"]), PIECES, max_size=2),
    st.dictionaries(st.sampled_from(["gate", "after"]), PIECES, max_size=1),
    PIECES,
)
def test_garbage_is_judged_and_never_raises(parts, rates, of_node, minimum):
    broken = gpu()
    broken["rates"].update(rates)
    broken["verified"].update(rates)
    result = judge({**node({**broken, **parts}, gpu(1), gpu(2)), **of_node}, {"minimum": minimum})
    assert result.status in ("pass", "warn", "unknown", "fail", "skip")
    assert all(one.action != "none" for one in result.findings if one.status == "fail")


@given(PIECES)
def test_any_value_for_readings(value):
    assert judge(value, {}).status == "unknown"
    assert judge({"gpus": value}, {}).status == "unknown"
