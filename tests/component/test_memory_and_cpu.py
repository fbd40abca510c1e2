# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""memory_and_cpu on nodes whose files say what memory and processors there are, and on this
machine.
"""

from __future__ import annotations

import os

import pytest

EDAC, CPU, NUMA = "sys/devices/system/edac/mc", "sys/devices/system/cpu", "sys/devices/system/node"
#: Two sockets of two cores of two threads, numbered as Linux does: first all first threads.
TOPOLOGY = {
    f"{CPU}/cpu{cpu}/topology/{name}": text
    for cpu in range(8)
    for name, text in (
        ("package_cpus_list", "0-1,4-5" if cpu % 4 < 2 else "2-3,6-7"),
        ("core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}"),
    )
}
SMALL = {f"{CPU}/online": "0-7", f"{CPU}/present": "0-7", f"{CPU}/smt/control": "on", **TOPOLOGY}
OLD = {
    path.replace("package_cpus_list", "core_siblings_list").replace(
        "core_cpus_list", "thread_siblings_list"
    ): text
    for path, text in SMALL.items()
}


def on(files=None, **more):
    return {"gpus": 0, "files": files or {}, **more}


#: Scenario, options -> status, then (code, status, subject) of every finding.
TABLE = {
    "as it comes": (
        on(),
        {
            "threads": 224,
            "minimum_memory_gib": 2000,
            "maximum_swap_gib": 0,
            "governor": "performance",
        },
        "pass",
        [],
    ),
    "an uncorrected error": (
        on({f"{EDAC}/mc1/ue_count": "1"}),
        {},
        "fail",
        [("memory_uncorrected", "fail", "mc1")],
    ),
    "corrected errors": (
        on({f"{EDAC}/mc0/ce_count": "51"}),
        {},
        "warn",
        [("memory_corrected", "warn", "mc0")],
    ),
    "no driver for its errors": (on({EDAC: None}), {}, "pass", []),
    "less memory": (on(), {"minimum_memory_gib": 2048}, "fail", [("memory_missing", "fail", None)]),
    "fewer processors": (
        on(SMALL),
        {"sockets": 2, "cores": 8},
        "fail",
        [("cpus_missing", "fail", None)],
    ),
    "as many": (on(SMALL), {"sockets": 2, "cores": 4, "threads": 8}, "pass", []),
    "as many on an old kernel": (on(OLD), {"sockets": 2, "cores": 4, "threads": 8}, "pass", []),
    "a socket that is off": (
        on({**SMALL, f"{CPU}/online": "0-1,4-5"}),
        {"sockets": 2},
        "fail",
        [("cpus_missing", "fail", None), ("cpus_offline", "warn", None)],
    ),
    "multithreading off": (
        on({**SMALL, f"{CPU}/online": "0-3", f"{CPU}/smt/control": "off"}),
        {"cores": 4},
        "pass",
        [],
    ),
    "a node without memory": (
        on({f"{NUMA}/node1/meminfo": "Node 1 MemTotal:  0 kB"}),
        {},
        "warn",
        [("numa_node_without_memory", "warn", "node1")],
    ),
    "another governor": (
        on({f"{CPU}/cpufreq/policy1/scaling_governor": "powersave"}),
        {"governor": "performance"},
        "warn",
        [("governor_differs", "warn", None)],
    ),
    "a load": (
        on({"proc/loadavg": "99.5 80.1 70.2 3/900 1234"}),
        {"stream": True},
        "skip",
        [("memory_bandwidth_not_measured", "skip", None)],
    ),
    "neither proc nor sysfs": (
        on({"proc/meminfo": None, "sys/devices/system": None}),
        {},
        "unknown",
        [("host_not_read", "unknown", None), ("host_not_read", "unknown", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, options, status, findings = TABLE[case]
    result = measure(node(scenario), "memory_and_cpu", **options).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.name) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    files = {
        **SMALL,
        f"{CPU}/online": "0-6",
        f"{EDAC}/mc0/ce_count": "4",
        f"{EDAC}/mc0/dimm3/dimm_label": "CPU_SrcID#0_Chan#1_DIMM#0",
        f"{EDAC}/mc0/dimm3/dimm_ce_count": "4",
        f"{EDAC}/mc0/dimm3/dimm_ue_count": "0",
        f"{EDAC}/mc0/dimm4/dimm_ce_count": "0",
        f"{EDAC}/mc1/csrow2/ce_count": "0",
        f"{EDAC}/mc1/csrow2/ue_count": "2",
    }
    read = measure(node(on(files)), "memory_and_cpu").readings
    assert read["edac"] == [
        {
            "controller": "mc0",
            "name": "Intel_10nm Socket#0 IMC#0",
            "ce": 4,
            "ue": 0,
            "modules": [{"label": "CPU_SrcID#0_Chan#1_DIMM#0", "ce": 4, "ue": 0}],
        },
        {
            "controller": "mc1",
            "name": "Intel_10nm Socket#1 IMC#0",
            "ce": 0,
            "ue": 0,
            "modules": [{"label": "csrow2", "ce": 0, "ue": 2}],
        },
    ]
    assert read["cpus"] == {
        "sockets": 2,
        "cores": 4,
        "threads": 7,
        "present": 8,
        "offline": "7",
        "smt": "on",
    }
    assert {
        name: read[name] for name in ("memory_total", "swap_total", "hugepages", "governors")
    } == {
        "memory_total": 2113124772 * 1024,
        "swap_total": 0,
        "hugepages": {"size": 2 << 20, "total": 0, "free": 0},
        "governors": {"performance": 4},
    }
    assert read["numa"] == [
        {"node": 0, "memory_total": 1056562386 * 1024, "cpus": "0-55,112-167"},
        {"node": 1, "memory_total": 1056562386 * 1024, "cpus": "56-111,168-223"},
    ]


def test_this_machine_is_read(node, measure):
    outcome = measure.several(node(on()), ["memory_and_cpu"], settings={"host_root": "/"})[0]
    assert outcome.readings["memory_total"] == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.02
    )
    assert outcome.readings["cpus"]["threads"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert (
        1
        <= outcome.readings["cpus"]["sockets"]
        <= outcome.readings["cpus"]["cores"]
        <= outcome.readings["cpus"]["threads"]
    )


def test_the_bandwidth_of_this_machines_memory(node, measure):
    # The load is the node's, which is idle; the memory and the processors are this machine's.
    files = {f"{NUMA}/node0/cpulist": "0-4095", f"{NUMA}/node1": None}
    outcome = measure(node(on(files)), "memory_and_cpu", stream=True)
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == ("pass", [])
    (measured,) = outcome.readings["stream"]["nodes"]
    assert (measured["node"], measured["threads"]) == (0, min(len(os.sched_getaffinity(0)), 16))
    # Anything that runs Linux copies more than a hundred megabytes in a second, and nothing a
    # hundred terabytes.
    assert 1e8 < measured["bytes_per_second"] < 1e14
    assert [
        (one.labels, one.unit)
        for one in outcome.result.measurements
        if one.name == "host_memory_bandwidth"
    ] == [({"numa": "0"}, "bytes/s")]
