# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of pcie_bandwidth: one table of readings and what must be said about them, and
properties over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import host_copies
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.pcie_bandwidth import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.conclude import (
    conclude,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GB = 1e9
GEN5 = {
    "max_generation": 5,
    "max_width": 16,
    "gpu_max_generation": 5,
    "idle_generation": 1,
    "idle_width": 16,
    "generation": 5,
    "width": 16,
    "looks": 10,
    "replays": 0,
}
GEN4_SLOT = dict(GEN5, max_generation=4, generation=4)
UNKNOWN_LINK = {
    "max_generation": None,
    "max_width": None,
    "gpu_max_generation": None,
    "idle_generation": None,
    "idle_width": None,
    "replays": None,
}
TRAINING = {"pid": 4242, "name": "python3", "how": "compute", "memory": 1 << 36}
INTACT = {
    "copy_engine": {"size": 1 << 26, "wrong_blocks": 0, "first_wrong": None},
    "kernel": {"size": 1 << 26, "wrong_blocks": 0, "first_wrong": None},
}
BROKEN = dict(INTACT, copy_engine={"size": 1 << 26, "wrong_blocks": 1, "first_wrong": 4711})
HUNG = {"what": "cuInit", "seconds": 12.0, "abandoned_pid": None}


def identity(index):
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index + 0x18:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
    }


def copies(rate):
    return {
        "samples": [rate * GB * factor for factor in (0.999, 1, 1.001, 1, 0.998)],
        "copies": 16,
        "size": 1 << 26,
    }


def gpu(index, h2d=55.2, d2h=55.0, **changes):
    """A GPU measured at these rates in GB/s; ``None`` as a change takes the part away."""
    base = {
        "numa": {"node": 0, "cpus": 56, "memory": "preferred", "problems": []},
        "link": GEN5,
        "verified": INTACT,
        "transfers": {
            "host_to_device": {"copy_engine": copies(h2d), "kernel": copies(0.6 * h2d)},
            "device_to_host": {"copy_engine": copies(d2h), "kernel": copies(d2h)},
        },
    }
    return {
        **identity(index),
        **{key: value for key, value in {**base, **changes}.items() if value is not None},
    }


def unsteady(*samples):
    """The transfers of a GPU whose copies to the device had these rates in GB/s."""
    slow = dict(copies(1), samples=[sample * GB for sample in samples])
    return {"host_to_device": {"copy_engine": slow}, "device_to_host": {"copy_engine": copies(55)}}


def unmeasured(index, **changes):
    return gpu(index, transfers=None, verified=None, **changes)


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


def node(*gpus, before=None, after=None, concurrent=None):
    readings = {
        "driver_version": "580.95.05",
        "gpus": list(gpus),
        "gate": {"locked_by": None, "looks": [look(gpus, **(before or {}))] * 2},
        "after": {"locked_by": None, "looks": [look(gpus, **(after or {}))]},
    }
    return dict(readings, concurrent=concurrent) if concurrent is not None else readings


def eight(third, **how):
    """Eight healthy GPUs, but for number 3."""
    return node(*[third if index == 3 else gpu(index) for index in range(8)], **how)


def error(kind, code, call="cuMemAlloc_v2"):
    return {"kind": kind, "call": call, "code": code, "text": ""}


FAR = {
    "node": 1,
    "cpus": 0,
    "memory": None,
    "problems": ["none of its CPUs may be used by this process"],
}

#: Readings, options -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    "eight healthy": (eight(gpu(3)), {}, "pass", []),
    "one healthy GPU alone": (node(gpu(0)), {}, "pass", []),
    "at the floor is above it": (node(gpu(0, 51, 51)), {}, "pass", []),
    # against the table
    "the link of one GPU is up at x1": (
        eight(gpu(3, 3.3, 3.2, link=dict(GEN5, width=1, idle_width=1))),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 3)] * 2
        + [("link_width", "fail", "drain_node", 3)],
    ),
    "slow one way only": (
        node(gpu(0, 55.2, 27.0)),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)],
    ),
    "in the band": (node(gpu(0, 48, 55)), {}, "warn", [("low_bandwidth", "warn", "watch", 0)]),
    "slow by our kernel only": (
        node(
            gpu(
                0,
                transfers={
                    way: {"copy_engine": copies(55), "kernel": copies(10)}
                    for way in ("host_to_device", "device_to_host")
                },
            )
        ),
        {},
        "pass",
        [],
    ),
    "trained to generation 3": (
        node(gpu(0, 13, 13, link=dict(GEN5, generation=3))),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)] * 2
        + [("link_speed", "fail", "drain_node", 0)],
    ),
    "generation 1 at rest is power saving": (
        node(gpu(0, link=dict(GEN5, generation=None, width=None))),
        {},
        "pass",
        [],
    ),
    "a fast GPU in a slower slot": (
        node(gpu(0, 26, 26, link=GEN4_SLOT)),
        {},
        "pass",
        [("link_limited_by_slot", "pass", "none", 0)],
    ),
    "a link narrower than it could be that carries all the same": (
        node(gpu(0, link=dict(GEN5, width=8))),
        {},
        "warn",
        [("link_width", "warn", "watch", 0)],
    ),
    "the PCIe link of a superchip carries no copies": (
        node(gpu(0, 350, 295, name="NVIDIA GH200 480GB", link=dict(GEN5, width=1))),
        {},
        "pass",
        [],
    ),
    "a superchip at PCIe rates": (
        node(gpu(0, 55, 55, name="NVIDIA GH200 480GB")),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)] * 2,
    ),
    # from the wrong socket
    "low but not below what the wrong socket costs": (
        node(gpu(0, 40, 55, numa=FAR)),
        {},
        "warn",
        [("low_bandwidth", "warn", "watch", 0)],
    ),
    "lower than the wrong socket explains": (
        node(gpu(0, 27, 55, numa=FAR)),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)],
    ),
    # beside other users of the host's memory
    "slow beside a load on the processors": (
        node(gpu(0, 42, 55, processors={"online": 16, "busy": 12.1})),
        {},
        "unknown",
        [("low_bandwidth", "unknown", "watch", 0)],
    ),
    "a little slow beside a load": (
        node(gpu(0, 48, 55, processors={"online": 16, "busy": 6.0})),
        {},
        "warn",
        [("low_bandwidth", "warn", "watch", 0)],
    ),
    "slow beside a light load": (
        node(gpu(0, 42, 55, processors={"online": 16, "busy": 3.9})),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)],
    ),
    "fast beside a load": (node(gpu(0, processors={"online": 16, "busy": 16.0})), {}, "pass", []),
    "some samples at the full rate": (
        node(gpu(0, transfers=unsteady(42.8, 53.9, 55.1, 41.8, 34.8))),
        {},
        "unknown",
        [("low_bandwidth", "unknown", "watch", 0)],
    ),
    "unsteady, no sample at the floor": (
        node(gpu(0, transfers=unsteady(20, 27, 18, 24, 27.5))),
        {},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)],
    ),
    # against the operator's minimum
    "above the minimum, below the table": (node(gpu(0, 40, 40)), {"minimum": 35.0}, "pass", []),
    "below the minimum, above the table": (
        node(gpu(0)),
        {"minimum": 58},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)] * 2,
    ),
    "a minimum of nothing is none": (
        node(gpu(0, 3.3, 55)),
        {"minimum": 0},
        "fail",
        [("low_bandwidth", "fail", "drain_node", 0)],
    ),
    # against the node's own GPUs
    "a little below its peers": (eight(gpu(3, 55 * 0.89 + 3, 55)), {}, "pass", []),
    "below 0.9 of its peers": (
        node(*[gpu(n, 60, 60) for n in range(3)], gpu(3, 53, 60)),
        {},
        "warn",
        [("low_bandwidth", "warn", "watch", 3)],
    ),
    "below 0.8 of its peers": (
        node(
            *[gpu(n, 26.5, 26, link=GEN4_SLOT) for n in range(3)], gpu(3, 20.5, 26, link=GEN4_SLOT)
        ),
        {},
        "fail",
        [("link_limited_by_slot", "pass", "none", n) for n in range(3)]
        + [("low_bandwidth", "fail", "drain_node", 3), ("link_limited_by_slot", "pass", "none", 3)],
    ),
    "below its peers, above the minimum": (
        node(*[gpu(n) for n in range(3)], gpu(3, 30, 55)),
        {"minimum": 20.0},
        "warn",
        [("low_bandwidth", "warn", "watch", 3)],
    ),
    "below its peers, measured from the wrong socket": (
        node(*[gpu(n, 60, 60) for n in range(3)], gpu(3, 47.5, 60, numa=FAR)),
        {},
        "warn",
        [("low_bandwidth", "warn", "watch", 3)],
    ),
    "two GPUs are no peers": (node(gpu(0, 63, 63), gpu(1, 52, 52)), {}, "pass", []),
    "peers of another model or slot are none": (
        node(*[gpu(n, 60, 60, name="NVIDIA B200") for n in range(3)], gpu(3, 52, 52)),
        {},
        "pass",
        [],
    ),
    # nothing to compare with
    "an unknown link": (
        node(gpu(0, link=UNKNOWN_LINK)),
        {},
        "unknown",
        [("no_expectation", "unknown", "fix_configuration", 0)] * 2,
    ),
    "an unknown link with a minimum": (
        node(gpu(0, link=UNKNOWN_LINK)),
        {"minimum": 50},
        "pass",
        [],
    ),
    "unknown links that agree": (
        node(*[gpu(n, link=UNKNOWN_LINK) for n in range(3)]),
        {},
        "pass",
        [("no_expectation", "pass", "none", n) for n in (0, 0, 1, 1, 2, 2)],
    ),
    "unknown links that do not": (
        node(*[gpu(n, link=UNKNOWN_LINK) for n in range(4)], gpu(4, 20, 55, link=UNKNOWN_LINK)),
        {},
        "fail",
        [("no_expectation", "pass", "none", n) for n in (0, 0, 1, 1, 2, 2, 3, 3)]
        + [("low_bandwidth", "fail", "drain_node", 4), ("no_expectation", "pass", "none", 4)],
    ),
    # data
    "data changed": (
        eight(gpu(3, verified=BROKEN)),
        {},
        "fail",
        [("data_corrupted", "fail", "drain_node", 3)],
    ),
    "data changed by our kernel": (
        node(gpu(0, verified=dict(INTACT, kernel=BROKEN["copy_engine"]))),
        {},
        "fail",
        [("data_corrupted", "fail", "drain_node", 0)],
    ),
    "a comparison that is not understood": (
        node(gpu(0, verified={"copy_engine": {"size": 1 << 26, "wrong_blocks": "?"}})),
        {},
        "unknown",
        [("not_verified", "unknown", "watch", 0)],
    ),
    "data not compared": (
        node(gpu(0, verified=None)),
        {},
        "unknown",
        [("not_verified", "unknown", "watch", 0)],
    ),
    # what kept a GPU from being measured
    "out of memory": (
        eight(unmeasured(3, cuda_error=error("out_of_memory", 2))),
        {},
        "unknown",
        [("out_of_memory", "unknown", "watch", 3)],
    ),
    "memory error": (
        eight(unmeasured(3, cuda_error=error("ecc_uncorrectable", 214))),
        {},
        "fail",
        [("ecc_uncorrectable", "fail", "reset_gpu", 3)],
    ),
    "memory error in our kernel": (
        node(gpu(0, kernel_error=error("ecc_uncorrectable", 214))),
        {},
        "fail",
        [("ecc_uncorrectable", "fail", "reset_gpu", 0)],
    ),
    "exclusive mode": (
        eight(unmeasured(3, cuda_error=error("devices_unavailable", 46))),
        {},
        "unknown",
        [("gpu_unavailable", "unknown", "fix_configuration", 3)],
    ),
    "not shown by CUDA": (
        eight(unmeasured(3, cuda_error=error("no_device", 100))),
        {},
        "unknown",
        [("cuda_shows_no_gpu", "unknown", "fix_configuration", 3)],
    ),
    "any other error": (
        eight(unmeasured(3, cuda_error=error("illegal_address", 700))),
        {},
        "unknown",
        [("cuda_error", "unknown", "watch", 3)],
    ),
    "no fabric manager": (
        node(
            *[unmeasured(n, cuda_error=error("system_not_ready", 802, "cuInit")) for n in range(8)]
        ),
        {},
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", None)],
    ),
    "library of another version": (
        node(unmeasured(0, cuda_error=error("driver_mismatch", 803))),
        {},
        "fail",
        [("driver_version_mismatch", "fail", "reboot_node", None)],
    ),
    "no libcuda": (
        node(unmeasured(0, cuda_error=error("library_missing", None))),
        {},
        "unknown",
        [("cuda_library_missing", "unknown", "fix_configuration", None)],
    ),
    "kernel not loaded": (
        node(gpu(0, kernel_error=error("unsupported_ptx", 222, "cuModuleLoadData"))),
        {},
        "pass",
        [("kernel_not_run", "pass", "none", 0)],
    ),
    "kernel failed on the GPU": (
        node(gpu(0, kernel_error=error("launch_failed", 719, "cuEventSynchronize"))),
        {},
        "unknown",
        [("cuda_error", "unknown", "watch", 0)],
    ),
    "kernel met an unknown error": (
        node(gpu(0, kernel_error=error("unknown_error", 999, "cuLaunchKernel"))),
        {},
        "unknown",
        [("cuda_error", "unknown", "watch", 0)],
    ),
    "hung": (eight(unmeasured(3, hung=HUNG)), {}, "unknown", [("hung", "unknown", "watch", 3)]),
    "hung after a slow half": (
        eight(
            gpu(
                3,
                hung=HUNG,
                verified=None,
                transfers={"host_to_device": {"copy_engine": copies(3.3)}},
            )
        ),
        {},
        "fail",
        [("hung", "unknown", "watch", 3), ("low_bandwidth", "fail", "drain_node", 3)],
    ),
    "crashed": (
        eight(unmeasured(3, crashed={"what": "cuInit", "signal": 11, "raised": None, "trace": ""})),
        {},
        "unknown",
        [("crashed", "unknown", "watch", 3)],
    ),
    "one direction only": (
        node(gpu(0, transfers={"host_to_device": {"copy_engine": copies(55)}})),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", 0)],
    ),
    "one direction only and no kernel": (
        node(
            gpu(
                0,
                transfers={"host_to_device": {"copy_engine": copies(55)}},
                kernel_error=error("unsupported_ptx", 222),
            )
        ),
        {},
        "unknown",
        [("kernel_not_run", "pass", "none", 0), ("not_measured", "unknown", "watch", 0)],
    ),
    "no turn": (
        eight(dict(identity(3), error={"kind": "not_read"})),
        {},
        "unknown",
        [("gpu_not_read", "unknown", "watch", 3)],
    ),
    "lost before": (
        eight(
            dict(identity(3), error={"kind": "lost", "call": "x", "code": 15}),
            before={"gpu3": {"error": {"kind": "lost"}, "processes": None}},
        ),
        {},
        "fail",
        [("gpu_lost", "fail", "reboot_node", 3)],
    ),
    "lost meanwhile": (
        eight(
            unmeasured(3, cuda_error=error("unknown_error", 999)),
            after={"gpu3": {"error": {"kind": "lost", "call": "x", "code": 15}}},
        ),
        {},
        "fail",
        [("cuda_error", "unknown", "watch", 3), ("gpu_lost", "fail", "reboot_node", 3)],
    ),
    # the busy gate
    "a GPU in use": (
        eight(dict(identity(3), withheld=True), before={"gpu3": {"processes": [TRAINING]}}),
        {},
        "skip",
        [("gpu_in_use", "skip", "none", 3)],
    ),
    "MIG": (
        eight(dict(identity(3), withheld=True), before={"gpu3": {"mig": True}}),
        {},
        "skip",
        [("mig_enabled", "skip", "none", 3)],
    ),
    "withheld without a reason": (
        eight(dict(identity(3), withheld=True)),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", 3)],
    ),
    "in use, forced, fast": (
        eight(gpu(3), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "pass",
        [],
    ),
    "in use, forced, slow": (
        eight(gpu(3, 20, 55), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "unknown",
        [("low_bandwidth", "unknown", "watch", 3)],
    ),
    "in use, forced, data changed": (
        eight(gpu(3, verified=BROKEN), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "fail",
        [("data_corrupted", "fail", "drain_node", 3)],
    ),
    "disturbed": (
        eight(gpu(3), after={"gpu3": {"processes": [TRAINING]}}),
        {},
        "unknown",
        [("disturbed", "unknown", "watch", 3)],
    ),
    "disturbed and slow": (
        eight(gpu(3, 20, 55), after={"gpu3": {"processes": [TRAINING]}}),
        {},
        "unknown",
        [("disturbed", "unknown", "watch", 3), ("low_bandwidth", "unknown", "watch", 3)],
    ),
    "nothing read": (
        {},
        {},
        "unknown",
        [("use_unknown", "unknown", "watch", None), ("no_gpu_seen", "unknown", "watch", None)],
    ),
}


def said(result):
    return [(one.code, one.status, one.action, one.subject.index) for one in result.findings]


@pytest.mark.parametrize("case", TABLE)
def test_judge(case):
    readings, options, status, findings = TABLE[case]
    result = judge(readings, dict(CHECK.defaults(), **options))
    assert (result.status, sorted(said(result), key=str)) == (status, sorted(findings, key=str))


def test_the_words_name_the_gpu_the_figure_the_expectation_and_its_source():
    result = judge(eight(gpu(3, 3.3, 55, link=dict(GEN5, width=1))), {})
    assert (
        result.summary
        == "GPU 3 (1B:00.0): host to device 3.3 GB/s, expected at least 46 (PCIe 5.0 x16, "
        "table) (and 1 more)"
    )
    assert [one.message for one in result.findings][1] == "link is up at x1 instead of x16"
    assert result.findings[0].evidence["expected"] == {
        "minimum": 46e9,
        "unit": "bytes/s",
        "source": "table",
        "detail": "PCIe 5.0 x16",
    }


def test_the_words_name_the_operators_minimum():
    assert (
        judge(node(gpu(0, 40, 60)), {"minimum": 48.0}).findings[0].message
        == "host to device 40 GB/s, expected at least 48 (minimum, override)"
    )


def test_the_words_of_a_doubt_name_who_was_there():
    result = judge(TABLE["in use, forced, slow"][0], {"force": True})
    assert result.summary.endswith("the GPU was not idle: in use by python3 (pid 4242)")


def test_healthy_summary_and_measurements():
    result = judge(node(gpu(0), gpu(1, 55.4, 54.9)), {})
    assert result.summary == "54.9 to 55.4 GB/s each way"
    assert [(one.name, one.value, one.unit, one.labels) for one in result.measurements][:2] == [
        (
            "pcie_bandwidth",
            55.2e9,
            "bytes/s",
            {"gpu": "0", "direction": "host_to_device", "method": "copy_engine"},
        ),
        (
            "pcie_bandwidth",
            round(0.6 * 55.2e9),
            "bytes/s",
            {"gpu": "0", "direction": "host_to_device", "method": "kernel"},
        ),
    ]
    assert len(result.measurements) == 8


# --- all at once ---


def at_once(**rates):
    together = {
        key[3:]: {
            "host_to_device": {"samples": [rate * GB]},
            "device_to_host": {"samples": [50 * GB]},
        }
        for key, rate in rates.items()
    }
    return {"together": together, "errors": {}}


GPUS = [gpu(index) for index in range(4)]

TOGETHER = {
    "pairs that share an uplink alike": (at_once(gpu0=28, gpu1=28, gpu2=28, gpu3=28), "pass", []),
    "one that gets less": (
        at_once(gpu0=28, gpu1=28, gpu2=28, gpu3=14),
        "warn",
        [("low_concurrent_bandwidth", "warn", "watch", 3)],
    ),
    "one GPU alone has no peer to copy with": ({"too_few": 1}, "pass", []),
    "hung": ({"hung": HUNG}, "unknown", [("hung", "unknown", "watch", None)]),
    "one failed": (
        dict(at_once(gpu0=28, gpu1=28, gpu2=28), errors={"3": error("out_of_memory", 2)}),
        "unknown",
        [("out_of_memory", "unknown", "watch", 3)],
    ),
    "no time left": (
        {"no_time": True},
        "unknown",
        [("not_measured_together", "unknown", "watch", None)],
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_all_at_once(case):
    readings, status, findings = TOGETHER[case]
    result = judge(node(*GPUS, concurrent=readings), {"concurrent": True})
    assert (result.status, said(result)) == (status, findings)


@pytest.mark.parametrize("junk", [[], "", 5, True, {"together": 5}])
def test_all_at_once_that_is_not_understood_was_not_measured(junk):
    result = judge(node(*GPUS, concurrent=junk), {"concurrent": True})
    assert said(result) == [("not_measured_together", "unknown", "watch", None)]


def test_all_at_once_has_measurements_of_its_own():
    result = judge(node(*GPUS, concurrent=at_once(gpu0=28, gpu1=28, gpu2=28, gpu3=28)), {})
    own = [one for one in result.measurements if one.name == "pcie_bandwidth_concurrent"]
    assert len(own) == 8
    assert own[0].to_dict() == {
        "name": "pcie_bandwidth_concurrent",
        "value": 28 * GB,
        "unit": "bytes/s",
        "labels": {"gpu": "0", "direction": "host_to_device", "method": "copy_engine"},
    }


# --- properties ---

keys = st.sampled_from(
    [
        "gpus",
        "gate",
        "after",
        "looks",
        "link",
        "numa",
        "transfers",
        "host_to_device",
        "copy_engine",
        "samples",
        "verified",
        "index",
        "uuid",
        "name",
        "error",
        "kind",
        "hung",
        "crashed",
        "cuda_error",
        "kernel_error",
        "withheld",
        "concurrent",
        "together",
        "errors",
        "processes",
        "max_generation",
        "max_width",
        "width",
    ]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(
    st.dictionaries(keys, anything, max_size=6),
    st.fixed_dictionaries({"minimum": anything, "force": anything}),
)
@settings(max_examples=200)
def test_no_readings_make_the_judge_raise_or_pass(readings, options):
    assert judge(readings, options).status not in ("pass", "warn")


def paths(value, here=()):
    """Every place in a document."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [here] * bool(here) + [
        path for key, item in inner for path in paths(item, here + (key,))
    ]


SLOW = eight(gpu(3, 3.3, 3.3))
EVERYWHERE = paths(SLOW)


@given(st.sampled_from(EVERYWHERE), anything)
@settings(max_examples=300)
def test_one_part_replaced_by_anything_never_hides_a_slow_gpu(path, junk):
    readings = copy.deepcopy(SLOW)
    place = readings
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = junk
    result = judge(readings, {})
    # A figure or a link limit replaced by another number is another GPU.
    another = path[:2] == ("gpus", 3) and path[2:3] in (("transfers",), ("link",))
    assert result.status in ("fail", "unknown") or another


@given(st.integers(0, 8), st.sampled_from(["hung", "crashed"]))
@settings(max_examples=30)
def test_a_measurement_that_ended_early_keeps_what_it_had_and_is_no_pass(measured, how):
    readings = node(
        *[
            gpu(n) if n < measured else dict(identity(n), error={"kind": "not_read"})
            for n in range(8)
        ]
    )
    del readings["after"]
    readings[how] = {
        "what": "nvmlDeviceGetCount",
        "seconds": 3.0,
        "abandoned_pid": None,
        "signal": 11,
        "raised": None,
    }
    result = conclude(CHECK, dict(CHECK.defaults(), expected_gpus=None), readings)
    assert result.status == "unknown"
    assert (
        len([one for one in result.measurements if one.labels["method"] == "copy_engine"])
        == 2 * measured
    )


@given(st.floats(0.1, 200), st.floats(0.1, 200))
@settings(max_examples=200)
def test_a_faster_link_is_never_judged_worse(one, other):
    order = ("pass", "skip", "warn", "unknown", "fail")
    slow, fast = sorted((one, other))
    assert order.index(judge(node(gpu(0, fast, 55)), {}).status) <= order.index(
        judge(node(gpu(0, slow, 55)), {}).status
    )


@pytest.mark.parametrize(
    ("series", "taken"),
    [
        ([[55, 55, 54.8], [55, 54.9, 55]], 2),  # undisturbed
        ([[27, 27, 27], [27.1, 27, 27]], 2),  # slow
        ([[43, 54, 35], [55, 55, 55], [55, 54.9, 55]], 3),  # disturbed at first
        ([[55, 55, 55], [43, 54, 35], [55, 55, 54.5]], 3),  # disturbed later
        ([[40, 55, 35]] * 8, 8),  # disturbed throughout
    ],
)
def test_a_disturbed_copy_is_repeated_until_two_series_agree(series, taken):
    left = [list(one) for one in series]
    best, count = host_copies.best_series(lambda: left.pop(0), 8, pause=0)
    assert (count, left) == (taken, [])
    assert sorted(best)[1] == max(sorted(one)[1] for one in series)


def test_the_load_on_the_processors_is_that_of_other_programs(tmp_path):
    stat = tmp_path / "proc" / "stat"
    stat.parent.mkdir()

    def used(ticks):
        stat.write_text(f"cpu  {ticks} 0 0 90000 5 0 0 0 0 0\ncpu0 1 0 0\ncpu1 1 0 0\n")

    used(1000)
    load = host_copies.Load(Host(str(tmp_path)))
    used(1000)
    assert load.reading() == {"online": 2, "busy": 0.0}
    used(10**9)
    assert load.reading()["busy"] > 2
    stat.unlink()
    assert load.reading() is None
