# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of memory_and_cpu: one table of readings and what must be said about them, and
properties over any readings.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.memory_and_cpu import (
    CHECK,
    _list,
    _meminfo,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GIB = 1 << 30
DAY = 86400


def controller(index=0, ce=0, ue=0, *modules):
    return {
        "controller": f"mc{index}",
        "name": f"Intel_10nm Socket#{index} IMC#0",
        "ce": ce,
        "ue": ue,
        "modules": [{"label": label, "ce": few, "ue": many} for label, few, many in modules],
    }


def node(index, gib, cpus="0-55"):
    return {"node": index, "memory_total": gib * GIB, "cpus": cpus}


def host(**parts):
    """A healthy host of two sockets, up for a day, its ``parts`` changed; of ``cpus`` those that
    are given.
    """
    base = {
        "edac": [controller(0), controller(1)],
        "memory_total": 2015 * GIB,
        "memory_available": 1900 * GIB,
        "swap_total": 0,
        "hugepages": {"size": 2 << 20, "total": 0, "free": 0},
        "numa": [node(0, 1003), node(1, 1008)],
        "governors": {"powersave": 224},
        "uptime_seconds": DAY,
        "cpus": {
            "sockets": 2,
            "cores": 112,
            "threads": 224,
            "present": 224,
            "offline": "",
            "smt": "on",
            **parts.pop("cpus", {}),
        },
    }
    return {**base, **parts}


ONLY_GPUS = [node(0, 480, "0-71"), node(1, 95, ""), node(2, 0, ""), node(3, 0, "")]
FIX = "fix_configuration"

#: Readings, options -> status of the check, then (code, status, action, subject) of every finding.
TABLE = {
    "healthy": (host(), {}, "pass", []),
    "a virtual machine that counts no errors": (host(edac=None), {}, "pass", []),
    "as the options say": (
        host(),
        {
            "sockets": 2,
            "cores": 112,
            "threads": 224,
            "minimum_memory_gib": 2015,
            "maximum_swap_gib": 0,
            "governor": "powersave",
        },
        "pass",
        [],
    ),
    # errors
    "one uncorrected error": (
        host(edac=[controller(), controller(1, 0, 1)]),
        {},
        "fail",
        [("memory_uncorrected", "fail", "reboot_node", "mc1")],
    ),
    "a few corrected errors": (host(edac=[controller(0, 49)]), {}, "pass", []),
    "many corrected errors": (
        host(edac=[controller(0, 50)]),
        {},
        "warn",
        [("memory_corrected", "warn", "watch", "mc0")],
    ),
    "as many in a month": (
        host(edac=[controller(0, 1499)], uptime_seconds=30 * DAY),
        {},
        "pass",
        [],
    ),
    "more in a month": (
        host(edac=[controller(0, 1500)], uptime_seconds=30 * DAY),
        {},
        "warn",
        [("memory_corrected", "warn", "watch", "mc0")],
    ),
    "many, since an unknown time": (
        host(edac=[controller(0, 50)], uptime_seconds=None),
        {},
        "unknown",
        [("host_not_read", "unknown", "watch", "mc0")],
    ),
    "both": (
        host(edac=[controller(0, 99, 2)]),
        {},
        "fail",
        [
            ("memory_uncorrected", "fail", "reboot_node", "mc0"),
            ("memory_corrected", "warn", "watch", "mc0"),
        ],
    ),
    "a counter that not read": (
        host(edac=[{**controller(), "ue": None}]),
        {},
        "unknown",
        [("host_not_read", "unknown", "watch", "mc0")],
    ),
    "counters that are not understood": (
        host(edac="many"),
        {},
        "unknown",
        [("host_not_read", "unknown", "watch", "node")],
    ),
    # sizes
    "a module less": (
        host(),
        {"minimum_memory_gib": 2016},
        "fail",
        [("memory_missing", "fail", "drain_node", "node")],
    ),
    "swap that is allowed": (host(swap_total=8 * GIB), {"maximum_swap_gib": 8}, "pass", []),
    "swap without a limit": (host(swap_total=8 * GIB), {}, "pass", []),
    "swap that is not allowed": (
        host(swap_total=8 * GIB),
        {"maximum_swap_gib": 0},
        "warn",
        [("swap_on", "warn", FIX, "node")],
    ),
    "swap that not read": (
        host(swap_total=None),
        {"maximum_swap_gib": 0},
        "unknown",
        [("host_not_read", "unknown", "watch", "node")],
    ),
    "a socket less": (
        host(cpus={"sockets": 1}),
        {"sockets": 2},
        "fail",
        [("cpus_missing", "fail", "drain_node", "node")],
    ),
    "cores less": (
        host(cpus={"cores": 111}),
        {"cores": 112},
        "fail",
        [("cpus_missing", "fail", "drain_node", "node")],
    ),
    "threads less": (
        host(cpus={"threads": 112}),
        {"threads": 224},
        "fail",
        [("cpus_missing", "fail", "drain_node", "node")],
    ),
    "threads more": (
        host(),
        {"threads": 112},
        "warn",
        [("more_cpus_than_expected", "warn", FIX, "node")],
    ),
    "sockets that were not read": (
        host(cpus={"sockets": None}),
        {"sockets": 2},
        "unknown",
        [("host_not_read", "unknown", "watch", "node")],
    ),
    "sockets without an expected number": (
        host(cpus={"sockets": None, "cores": None}),
        {},
        "pass",
        [],
    ),
    # processors and nodes
    "some are switched off": (
        host(cpus={"offline": "4-7", "threads": 220}),
        {},
        "warn",
        [("cpus_offline", "warn", FIX, "node")],
    ),
    "multithreading is switched off": (
        host(cpus={"offline": "112-223", "threads": 112, "smt": "off"}),
        {},
        "pass",
        [],
    ),
    "multithreading is forced off": (
        host(cpus={"offline": "112-223", "threads": 112, "smt": "forceoff"}),
        {},
        "pass",
        [],
    ),
    "a node without memory": (
        host(numa=[node(0, 1003), node(1, 0)]),
        {},
        "warn",
        [("numa_node_without_memory", "warn", FIX, "node1")],
    ),
    "a node without memory, its processors not as text": (
        host(numa=[node(0, 1003), node(1, 0, cpus=[1, 2])]),
        {},
        "warn",
        [("numa_node_without_memory", "warn", FIX, "node1")],
    ),
    "a node with a module of eight less": (
        host(numa=[node(0, 1008), node(1, 882)]),
        {},
        "warn",
        [("numa_memory_uneven", "warn", "watch", "node1")],
    ),
    "the kernel's own share": (host(numa=[node(0, 960), node(1, 1008)]), {}, "pass", []),
    "the memory of GPUs and of CXL": (host(numa=ONLY_GPUS), {}, "pass", []),
    "a node's memory that not read": (
        host(numa=[node(0, 1008), {"node": 1, "memory_total": None, "cpus": "1"}]),
        {},
        "unknown",
        [("host_not_read", "unknown", "watch", "node1")],
    ),
    "another governor": (
        host(),
        {"governor": "performance"},
        "warn",
        [("governor_differs", "warn", FIX, "node")],
    ),
    "some with another governor": (
        host(governors={"performance": 200, "powersave": 24}),
        {"governor": "performance"},
        "warn",
        [("governor_differs", "warn", FIX, "node")],
    ),
    "nothing to govern": (host(governors={}), {"governor": "performance"}, "pass", []),
    # bandwidth
    "measured": (
        host(stream={"nodes": [{"node": 0, "threads": 16, "bytes_per_second": 2.5e11}]}),
        {"stream": True},
        "pass",
        [],
    ),
    "not idle": (
        host(stream={"skipped": "the load is 9"}),
        {"stream": True},
        "skip",
        [("memory_bandwidth_not_measured", "skip", "none", "node")],
    ),
    "asked for and not there": (
        host(),
        {"stream": True},
        "unknown",
        [("memory_bandwidth_not_measured", "unknown", "watch", "node")],
    ),
    "could not be measured": (
        host(stream={"nodes": [{"node": 0, "threads": 16, "bytes_per_second": 0}]}),
        {"stream": True},
        "unknown",
        [("memory_bandwidth_not_measured", "unknown", "watch", "node")],
    ),
    # what not read
    "no memory": (
        host(memory_total=None),
        {},
        "unknown",
        [("host_not_read", "unknown", "watch", "node")],
    ),
    "no processors": (
        host(cpus={"threads": None}),
        {"threads": 224},
        "unknown",
        [("host_not_read", "unknown", "watch", "node")],
    ),
    "no nodes": (host(numa=None), {}, "unknown", [("host_not_read", "unknown", "watch", "node")]),
    "a kernel without NUMA": (host(numa=[]), {}, "pass", []),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said(case):
    readings, options, status, findings = TABLE[case]
    result = judge(readings, options)
    told = [
        (one.code, one.status, one.action, one.subject.name or one.subject.kind)
        for one in result.findings
    ]
    assert (result.status, told) == (status, findings)


@pytest.mark.parametrize(
    "readings, options, summary",
    [
        (
            host(),
            {},
            "2015 GiB of memory on 2 NUMA nodes, 224 processors (2 sockets, 112 cores), "
            "governor powersave",
        ),
        (
            host(edac=None, numa=ONLY_GPUS, governors={}),
            {},
            "2015 GiB of memory on 1 NUMA node, 224 processors (2 sockets, 112 cores), its "
            "memory errors are not counted",
        ),
        (
            host(
                edac=[controller(0, 7)],
                stream={
                    "nodes": [
                        {"node": 0, "bytes_per_second": 2.5e11},
                        {"node": 1, "bytes_per_second": 2.4e11},
                    ]
                },
            ),
            {},
            "2015 GiB of memory on 2 NUMA nodes, 224 processors (2 sockets, 112 cores), "
            "governor powersave, 7 corrected memory errors, memory at 490 GB/s",
        ),
        (
            host(
                edac=[
                    controller(
                        0,
                        3,
                        2,
                        ("CPU_SrcID#0_MC#0_Chan#1_DIMM#0", 3, 2),
                        ("CPU_SrcID#0_MC#0_Chan#0_DIMM#0", 1, 0),
                    )
                ]
            ),
            {},
            "memory mc0: Intel_10nm Socket#0 IMC#0: 2 uncorrected memory errors since boot in "
            "CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        ),
        (
            host(edac=[dict(controller(0, 0, 5), name=None)]),
            {},
            "memory mc0: mc0: 5 uncorrected memory errors since boot",
        ),
        (
            host(),
            {"minimum_memory_gib": 2048},
            "2015.0 GiB of memory, expected at least 2048 (minimum_memory_gib)",
        ),
        (
            host(governors={"performance": 200, "powersave": 24}),
            {"governor": "performance"},
            "processors with another governor (24 by powersave), expected performance "
            "(option governor)",
        ),
    ],
)
def test_the_words(readings, options, summary):
    assert judge(readings, options).summary == summary


def test_what_is_measured():
    stream = {
        "nodes": [{"node": 0, "bytes_per_second": 2.5e11}, {"node": 1, "bytes_per_second": None}]
    }
    measured = judge(
        host(edac=[controller(0, 3, 1), controller(1, 4)], stream=stream), {"stream": True}
    ).measurements
    assert [(one.name, one.value, one.unit, one.labels) for one in measured] == [
        ("memory_errors", 7, "errors", {"kind": "corrected"}),
        ("memory_errors", 1, "errors", {"kind": "uncorrected"}),
        ("host_memory_bandwidth", 2.5e11, "bytes/s", {"numa": "0"}),
    ]
    assert judge(host(edac=None), {}).measurements == []


@pytest.mark.parametrize(
    "cpus, text",
    [
        (set(), ""),
        ({3}, "3"),
        ({0, 1, 2, 3, 8}, "0-3,8"),
        ({1, 3, 5}, "1,3,5"),
        ({7, 8, 9, 1}, "1,7-9"),
        ({9, 10, 11}, "9-11"),
    ],
)
def test_lists_of_processors(cpus, text):
    assert _list(cpus) == text


def test_figures_of_memory():
    assert _meminfo(
        "MemTotal:       2113124772 kB\nHugePages_Total:       3\nActive(anon):  1 kB\nodd\n"
    ) == {"MemTotal": 2113124772 * 1024, "HugePages_Total": 3, "Active(anon)": 1024}
    assert _meminfo("Node 0 MemTotal:       1056562386 kB\n") == {"MemTotal": 1056562386 * 1024}
    assert _meminfo(None) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "ce",
                    "ue",
                    "modules",
                    "threads",
                    "memory_total",
                    "cpus",
                    "nodes",
                    "skipped",
                    "offline",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(host()) + ["stream"]), JSON, max_size=5),
    st.dictionaries(st.sampled_from([*CHECK.options]), JSON, max_size=3),
)
def test_no_garbage_makes_it_raise_or_pass(readings, options):
    result = judge(readings, options)
    # Such readings have no controllers, or none that are understood, or they say so.
    assert result.status in ("unknown", "fail")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(host())), JSON)
def test_a_part_that_is_not_understood_does_not_make_it_raise_or_fail(key, value):
    result = judge({**host(), key: value}, {})
    uncorrected = (
        key == "edac"
        and isinstance(value, list)
        and any(isinstance(one, dict) and one.get("ue") for one in value)
    )
    assert result.status in ("pass", "warn", "unknown") or uncorrected
    if key == "memory_total" and (
        not isinstance(value, int) or isinstance(value, bool) or value <= 0
    ):
        assert result.status == "unknown"


def test_nothing_read_is_unknown():
    assert [judge(readings, {}).status for readings in ({}, {"edac": None}, [], None)] == [
        "unknown"
    ] * 4
