# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changed between two snapshots: tables of what happened in between and what is said of it."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots.difference import (
    changes,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots.difference.between import (
    Between,
    Count,
    counted,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots.difference.work import (
    still_held,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    ACTIONS,
    FAIL,
    STATUSES,
)

GB = 10**9
#: Bytes in use on a GPU of which a job left 20 GB.
FULL = (600 << 20) + 20 * GB
UUIDS = ("GPU-aaaa", "GPU-bbbb")
PCI = ("00000000:18:00.0", "00000000:9A:00.0")


def each(**parts):
    return [
        {
            "index": index,
            "uuid": uuid,
            "pci": pci,
            "name": "NVIDIA H100 80GB HBM3",
            **copy.deepcopy(parts),
        }
        for index, (uuid, pci) in enumerate(zip(UUIDS, PCI))
    ]


def before():
    """A node an hour before it is looked at again; what it counted by then is not the job's."""
    return {
        "schema": "autopilot.gpu/snapshot",
        "schema_version": 1,
        "run": "job42",
        "taken": "2026-11-22T01:00:00Z",
        "uptime_seconds": 10000.0,
        "boot_id": "boot-1",
        "driver_version": "580.95.05",
        "driver_loaded": "load-1",
        "gpus": each(),
        "readings": {**gpu_readings_before(), **link_readings_before(), **host_readings_before()},
    }


def gpu_readings_before():
    """The readings of the driver and of the GPUs themselves."""
    return {
        "driver": {
            "gpus": each(
                persistence=1,
                compute_mode=0,
                mig={"current": 0, "pending": 0},
                vbios="96.00",
                inforom="G520",
            )
        },
        "remapped_rows": {
            "gpus": each(
                rows={"correctable": 1, "uncorrectable": 2, "pending": 0, "failure": 0},
                banks={"max": 2558, "high": 2, "partial": 0, "low": 0, "none": 0},
                pages={"single_bit": 3, "double_bit": 1, "pending": 0},
            )
        },
        "ecc_errors": {
            "gpus": each(
                ecc_mode={"current": 1, "pending": 1},
                volatile={"corrected": 5, "uncorrected": 1},
                aggregate={"corrected": 50, "uncorrected": 10},
            )
        },
        "xid_errors": {
            "uptime_seconds": 10000.0,
            "events": [{"seq": 12, "usec": 5, "pci": PCI[0], "kind": "xid", "xid": 31}],
            "loads": [],
            "log": {
                "source": "kmsg",
                "first_seq": 0,
                "last_seq": 900,
                "first_usec": 0,
                "overwritten": False,
            },
        },
        "gpu_power": {
            "gpus": each(
                violations={"power": 7 * GB, "thermal": 6 * GB},
                power_limit={"enforced": 700000, "configured": 700000, "default": 700000},
                graphics_clock={"application": 1980, "default": 1980},
                memory_clock={"application": 2619, "default": 2619},
            )
        },
        "gpu_processes": {
            "processes_scope": "host",
            "mps": [],
            "gpus": each(
                processes=[
                    {"pid": 70, "name": "nv-hostengine", "state": "S", "memory": None, "started": 5}
                ],
                memory={"used": 600 << 20, "reserved": 550 << 20, "total": 80 << 30},
                holders=[70],
            ),
        },
        "gpu_memory": {"gpus": each(rates={"triad": 3000 * GB, "fp64": 60000 * GB})},
    }


def link_readings_before():
    """The readings of what connects the GPUs to the host and to each other."""
    rates = {"copy_engine": {"samples": [54.9 * GB, 55 * GB, 55.1 * GB]}}
    return {
        "nvlink": {
            "gpus": each(
                mig=False,
                links=[
                    {"link": link, "active": True, "errors": {"replay": 4}} for link in range(3)
                ],
            )
        },
        "pcie_link": {
            "gpus": each(
                link={"generation": 1, "width": 16, "max_generation": 5, "max_width": 16},
                replays=20,
                aer={"correctable": 2, "nonfatal": 0, "fatal": 0},
                bridges=[
                    {
                        "pci": "00000000:17:01.0",
                        "current_link_width": 16,
                        "aer": {"correctable": 0, "nonfatal": 0, "fatal": 0},
                    }
                ],
            )
        },
        "pcie_bandwidth": {
            "gpus": each(
                transfers={"host_to_device": rates, "device_to_host": rates}, link={"generation": 5}
            )
        },
        "gpu_link": {"pairs": [{"from": 0, "to": 1, "bytes_per_second": 400 * GB}]},
    }


def host_readings_before():
    """The readings of the host: network ports, disks, memory."""
    return {
        "infiniband": {
            "ports": [
                {
                    "device": "mlx5_0",
                    "port": 1,
                    "state": "4: ACTIVE",
                    "rate_gbps": 400.0,
                    "pci": None,
                    "counters": {"link_downed": 1},
                }
            ]
        },
        "ethernet": {
            "interfaces": [
                {
                    "name": "eth0",
                    "operstate": "up",
                    "speed_mbps": 25000,
                    "pci": None,
                    "counters": {},
                }
            ]
        },
        "storage": {
            "disks": [
                {"name": "nvme0n1", "serial": "S1", "ioerr_count": 3, "nvme": {"media_errors": 0}}
            ]
        },
        "memory_and_cpu": {"edac": [{"controller": "mc0", "ce": 4, "ue": 0}]},
    }


def hour_later():
    now = before()
    now.update(taken="2026-11-22T02:00:00Z", uptime_seconds=13600.0)
    now["readings"]["xid_errors"].update(
        uptime_seconds=13600.0, log=dict(now["readings"]["xid_errors"]["log"], last_seq=950)
    )
    return now


def put(document, path, value):
    """Set what a path of keys and list positions leads to."""
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def of(check, gpu, *path):
    return ("readings", check, "gpus", gpu, *path)


def said(*differences, job_is_over=True, old=None):
    now = hour_later()
    for path, value in differences:
        put(now, path, value)
    return changes(old or before(), now, job_is_over)


def brief(findings):
    return [
        (finding.code, finding.status, finding.action, finding.subject.index)
        for finding in findings
    ]


def xid(number, seq, usec=11_000_000_000, pci="00000000:9A:00.0", **more):
    return {
        "seq": seq,
        "usec": usec,
        "pci": pci,
        "kind": "xid",
        "xid": number,
        "sxid": None,
        "text": "",
        **more,
    }


EVENTS = ("readings", "xid_errors", "events")
VOLATILE, AGGREGATE = of("ecc_errors", 1, "volatile"), of("ecc_errors", 1, "aggregate")


def test_nothing_happened():
    assert said() == []


#: What happened, what is said of it, and words of it.
HAPPENED = {
    "corrected errors": (
        [
            (VOLATILE, {"corrected": 9, "uncorrected": 1}),
            (AGGREGATE, {"corrected": 54, "uncorrected": 10}),
        ],
        ("new_corrected_errors", "pass", "none", 1),
        "4 corrected memory errors during this job",
    ),
    "uncorrectable errors": (
        [
            (VOLATILE, {"corrected": 5, "uncorrected": 4}),
            (AGGREGATE, {"corrected": 50, "uncorrected": 13}),
        ],
        ("new_uncorrectable_errors", "warn", "reset_gpu", 1),
        "3 uncorrectable memory errors during this job",
    ),
    "one error": (
        [(VOLATILE, {"corrected": 5, "uncorrected": 2})],
        ("new_uncorrectable_errors", "warn", "reset_gpu", 1),
        "1 uncorrectable memory error during",
    ),
    "eight rows": (
        [(of("remapped_rows", 1, "rows", "uncorrectable"), 10)],
        ("new_remapped_rows", "warn", "watch", 1),
        "8 remapped rows during this job",
    ),
    "rows and one waits": (
        [
            (
                of("remapped_rows", 1, "rows"),
                {"correctable": 1, "uncorrectable": 3, "pending": 1, "failure": 0},
            )
        ],
        ("new_remapped_rows", "warn", "reset_gpu", 1),
        "1 remapped row and a row that waits for a reset to be remapped during this job",
    ),
    "a row failed": (
        [(of("remapped_rows", 1, "rows", "failure"), 1)],
        ("new_remapped_rows", "warn", "replace_part", 1),
        "could not be remapped",
    ),
    "by the fields alone": (
        [
            (
                of("remapped_rows", 1, "row_fields"),
                {"correctable": 1, "uncorrectable": 4, "pending": 0, "failure": 0},
            )
        ],
        ("new_remapped_rows", "warn", "watch", 1),
        "2 remapped rows",
    ),
    "correctable rows": (
        [(of("remapped_rows", 1, "rows", "correctable"), 2)],
        ("new_correctable_rows", "pass", "none", 1),
        "1 row remapped",
    ),
    "a bank is used up": (
        [(of("remapped_rows", 1, "banks", "none"), 1)],
        ("spare_rows_used", "warn", "watch", 1),
        "1 memory bank without a spare row",
    ),
    "pages": (
        [(of("remapped_rows", 1, "pages", "double_bit"), 3)],
        ("new_retired_pages", "warn", "watch", 1),
        "2 retired pages",
    ),
    "an Xid": ([(EVENTS, [xid(94, 920)])], ("new_xids", "warn", "reset_gpu", 1), "Xid 94 ("),
    "Xids of an application": (
        [(EVENTS, [xid(31, 920), xid(31, 921)])],
        ("new_xids", "pass", "none", 1),
        "2 times during this job, usually errors of an application",
    ),
    "off the bus": (
        [(EVENTS, [xid(None, 920, kind="off_bus")])],
        ("new_xids", "warn", "reboot_node", 1),
        "fell off the bus",
    ),
    "by the journal": (
        [(EVENTS, [xid(79, None)])],
        ("new_xids", "warn", "reboot_node", 1),
        "Xid 79",
    ),
    "the log was overwritten": (
        [
            (
                ("readings", "xid_errors", "log"),
                {
                    "source": "kmsg",
                    "first_seq": 2000,
                    "last_seq": 9000,
                    "first_usec": 12_000_000_000,
                    "overwritten": True,
                },
            )
        ],
        ("kernel_log_gap", "warn", "watch", None),
        "1099 records of the kernel log since the snapshot were overwritten",
    ),
    "the journal was overwritten": (
        [
            (
                ("readings", "xid_errors", "log"),
                {
                    "source": "journal",
                    "first_seq": None,
                    "first_usec": 12_000_000_000,
                    "overwritten": True,
                },
            )
        ],
        ("kernel_log_gap", "warn", "watch", None),
        "records of the kernel log",
    ),
    "hot": (
        [(of("gpu_power", 1, "violations", "thermal"), 906 * GB)],
        ("held_back_by_heat", "warn", "watch", 1),
        "for 25% of the 1.0 h since",
    ),
    "replays": (
        [(of("pcie_link", 1, "replays"), 25)],
        ("new_pcie_replays", "pass", "none", 1),
        "5 packets resent",
    ),
    "a bad link": (
        [(of("pcie_link", 1, "replays"), 20 + 60 * 31)],
        ("new_pcie_replays", "fail", "drain_node", 1),
        "31 a minute, expected at most 30.7 (PCIe 5.0 x16)",
    ),
    "replays wrap": (
        [(of("pcie_link", 1, "replays"), 4)],
        ("new_pcie_replays", "pass", "none", 1),
        "10 packets",
        [(of("pcie_link", 1, "replays"), 2**32 - 6)],
    ),
    "AER": (
        [(of("pcie_link", 1, "aer", "nonfatal"), 2)],
        ("new_pcie_errors", "warn", "watch", 1),
        "2 uncorrected PCIe errors",
    ),
    "AER corrected": (
        [(of("pcie_link", 1, "aer", "correctable"), 3)],
        ("new_pcie_errors", "pass", "none", 1),
        "1 corrected PCIe errors",
    ),
    "narrow": (
        [(of("pcie_link", 1, "link", "width"), 8)],
        ("link_narrower", "fail", "drain_node", 1),
        "up at x8, in the snapshot at x16",
    ),
    "narrow bridge": (
        [(of("pcie_link", 0, "bridges", 0, "current_link_width"), 4)],
        ("link_narrower", "fail", "drain_node", None),
        "up at x4",
    ),
    "slot": (
        [(of("pcie_link", 1, "link", "max_generation"), 4)],
        ("link_slower", "warn", "fix_configuration", 1),
        "limited to PCIe 4.0",
    ),
    "slow under load": (
        [(of("pcie_bandwidth", 1, "link", "generation"), 3)],
        ("link_slower", "warn", "watch", 1),
        "runs at PCIe 3.0 under load",
    ),
    "NVLink errors": (
        [(of("nvlink", 1, "links", 2, "errors", "replay"), 9)],
        ("new_nvlink_errors", "pass", "none", 1),
        "5 replay errors on NVLinks",
    ),
    "NVLink recoveries": (
        [(of("nvlink", 1, "links", 2, "errors", "recovery"), 2)],
        ("new_nvlink_errors", "warn", "watch", 1),
        "2 recovery errors",
    ),
    "NVLink down": (
        [(of("nvlink", 1, "links", 2), {"link": 2, "active": False, "errors": {}})],
        ("nvlink_lost", "fail", "drain_node", 1),
        "NVLink 2 is down, up in",
    ),
    "memory": (
        [
            (of("gpu_processes", 1, "memory", "used"), FULL),
            (of("gpu_processes", 1, "holders"), []),
            (of("gpu_processes", 1, "processes"), []),
        ],
        ("left_memory", "fail", "reset_gpu", 1),
        "20.0 GB still allocated after this job, by no visible process",
    ),
    "memory of an invalid pid": (
        [
            (of("gpu_processes", 1, "memory", "used"), FULL),
            (of("gpu_processes", 1, "holders"), []),
            (
                of("gpu_processes", 1, "processes"),
                [{"pid": 4242, "name": None, "state": None, "memory": 20 * GB, "started": None}],
            ),
        ],
        ("left_memory", "fail", "reset_gpu", 1),
        "by no visible process",
    ),
    "memory that a service may hold": (
        [(of("gpu_processes", 1, "memory", "used"), FULL)],
        ("left_memory", "warn", "watch", 1),
        "possibly by nv-hostengine (pid 70)",
    ),
    "memory, seen from a container": (
        [
            (of("gpu_processes", 1, "memory", "used"), FULL),
            (("readings", "gpu_processes", "processes_scope"), "namespace"),
            (of("gpu_processes", 1, "processes"), []),
            (of("gpu_processes", 1, "holders"), []),
        ],
        ("left_memory", "unknown", "watch", 1),
        "not visible here",
    ),
    "a process": (
        [
            (
                of("gpu_processes", 1, "processes"),
                [{"pid": 4242, "name": "python3", "state": "S", "memory": 20 * GB, "started": 9}],
            ),
            (of("gpu_processes", 1, "memory", "used"), FULL),
        ],
        ("left_processes", "warn", "watch", 1),
        "python3 (pid 4242) left, which holds 20.0 GB after this job",
    ),
    "the same number, another process": (
        [
            (
                of("gpu_processes", 1, "processes"),
                [{"pid": 70, "name": "python3", "state": "R", "memory": None, "started": 900}],
            )
        ],
        ("left_processes", "warn", "watch", 1),
        "python3 (pid 70) left after this job",
    ),
    "a stuck process": (
        [
            (
                of("gpu_processes", 1, "processes"),
                [{"pid": 4242, "name": "python3", "state": "D", "memory": None, "started": 9}],
            )
        ],
        ("left_processes", "warn", "watch", 1),
        "python3 (pid 4242, blocked in the kernel)",
    ),
    "an MPS server": (
        [(("readings", "gpu_processes", "mps"), [{"pid": 99, "name": "nvidia-cuda-mps"}])],
        ("left_processes", "warn", "watch", None),
        "an MPS server (nvidia-cuda-mps",
    ),
    "power limit": (
        [(of("gpu_power", 1, "power_limit", "configured"), 500000)],
        ("settings_changed", "warn", "fix_configuration", 1),
        "500 W instead of 700 W",
    ),
    "compute mode": (
        [(of("driver", 1, "compute_mode"), 3)],
        ("settings_changed", "warn", "fix_configuration", 1),
        "exclusive process instead of default",
    ),
    "MIG": (
        [(of("driver", 1, "mig"), {"current": 1, "pending": 1})],
        ("settings_changed", "warn", "fix_configuration", 1),
        "MIG on instead of off",
    ),
    "ECC pending": (
        [(of("ecc_errors", 1, "ecc_mode", "pending"), 0)],
        ("settings_changed", "warn", "fix_configuration", 1),
        "ECC after the next reset off",
    ),
    "persistence of all": (
        [(of("driver", gpu, "persistence"), 0) for gpu in (0, 1)],
        ("settings_changed", "warn", "fix_configuration", None),
        "2 GPUs changed since",
    ),
    "VBIOS": (
        [(of("driver", 1, "vbios"), "97.00")],
        ("firmware_changed", "warn", "watch", 1),
        "VBIOS 97.00 instead of 96.00",
    ),
    "bandwidth": (
        [
            (
                of("pcie_bandwidth", 1, "transfers", "device_to_host"),
                {"copy_engine": {"samples": [40 * GB]}},
            )
        ],
        ("bandwidth_lost", "warn", "watch", 1),
        "PCIe device to host 40 GB/s instead of 55 GB/s, 27% less",
    ),
    "memory bandwidth": (
        [(of("gpu_memory", 1, "rates", "fp64"), 50000 * GB)],
        ("bandwidth_lost", "warn", "watch", 1),
        "fp64 50 TFLOP/s instead of 60 TFLOP/s",
    ),
    "peer bandwidth": (
        [(("readings", "gpu_link", "pairs", 0, "bytes_per_second"), 200 * GB)],
        ("bandwidth_lost", "warn", "watch", None),
        "GPU 0 to GPU 1 200 GB/s instead",
    ),
    "a port is down": (
        [(("readings", "infiniband", "ports", 0, "state"), "1: DOWN")],
        ("port_lost", "warn", "watch", None),
        "DOWN, in the snapshot ACTIVE",
    ),
    "a slow port": (
        [(("readings", "ethernet", "interfaces", 0, "speed_mbps"), 1000)],
        ("port_slower", "warn", "watch", None),
        "1000 Mb/s, in the snapshot",
    ),
    "a flap": (
        [(("readings", "infiniband", "ports", 0, "counters", "link_downed"), 3)],
        ("port_flapped", "warn", "watch", None),
        "link downed 2",
    ),
    "errors of a port": (
        [(("readings", "ethernet", "interfaces", 0, "counters"), {"rx_crc_errors": 7})],
        ("new_port_errors", "pass", "none", None),
        "crc errors 7",
    ),
    "a disk": (
        [(("readings", "storage", "disks", 0, "nvme", "media_errors"), 2)],
        ("new_disk_errors", "warn", "watch", None),
        "2 media errors",
    ),
    "host memory": (
        [(("readings", "memory_and_cpu", "edac", 0, "ue"), 1)],
        ("new_host_memory_errors", "warn", "watch", None),
        "1 uncorrected errors",
    ),
}


@pytest.mark.parametrize("what", HAPPENED)
def test_what_happened_is_said_once_and_of_the_right_gpu(what):
    differences, expected, words, *earlier = HAPPENED[what]
    old = before()
    for path, value in (earlier or [[]])[0]:
        put(old, path, value)
    findings = said(*differences, old=old)
    assert brief(findings) == [expected]
    assert words in findings[0].message, findings[0].message
    assert findings[0].subject.uuid == (None if expected[3] is None else UUIDS[1])


#: What is within what repeated measurements differ by, was so before, or is normal under load.
HARMLESS = {
    "an Xid before": [(EVENTS, [xid(79, 900), xid(94, 12)])],
    "an Xid before, by the journal": [(EVENTS, [xid(79, None, usec=9_000_000_000)])],
    "power-capped": [(of("gpu_power", 1, "violations", "power"), 3000 * GB)],
    "warm for a minute": [(of("gpu_power", 1, "violations", "thermal"), 66 * GB)],
    "the link sleeps": [(of("pcie_link", 1, "link", "generation"), 5)],
    "three per cent": [
        (
            of("pcie_bandwidth", 1, "transfers", "host_to_device"),
            {"copy_engine": {"samples": [53 * GB]}},
        )
    ],
    "faster": [(of("gpu_memory", 1, "rates", "triad"), 3300 * GB)],
    "not measured again": [(of("pcie_bandwidth", 1, "transfers"), None)],
    "memory of a context's size": [(of("gpu_processes", 1, "memory", "used"), 660 << 20)],
    "a service was started": [
        (
            of("gpu_processes", 1, "processes"),
            [{"pid": 71, "name": "dcgm-exporter", "state": "S", "memory": None, "started": 800}],
        )
    ],
    "the index moved": [(of("ecc_errors", 1, "index"), 5)],
    "pairs of other GPUs": [
        (("gpus", 0, "index"), 1),
        (("gpus", 1, "index"), 0),
        (("readings", "gpu_link", "pairs", 0, "bytes_per_second"), 20 * GB),
    ],
    "memory that the system uses too": [
        (of("gpu_processes", 1, "memory", "used"), 40 * GB),
        (of("gpu_processes", 1, "name"), "NVIDIA GH200 480GB"),
    ],
    "a port of PCIe 6.0 at rest": [
        (
            of("pcie_link", 0, "bridges", 0),
            {
                "pci": "00000000:17:01.0",
                "current_link_width": 8,
                "max_link_speed": 64.0,
                "aer": None,
            },
        )
    ],
    "a link that carries no data": [
        (of("pcie_link", 1, "link", "width"), 1),
        (of("pcie_link", 1, "name"), "NVIDIA GH200 480GB"),
    ],
    "the log goes on where it was": [
        (
            ("readings", "xid_errors", "log"),
            {"source": "kmsg", "first_seq": 901, "last_seq": 950, "overwritten": True},
        )
    ],
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_no_change_is_not_said(what):
    assert [finding for finding in said(*HARMLESS[what]) if finding.status != "pass"] == []


def test_what_a_running_job_may_do_is_said_only_when_it_is_over():
    held = [
        (
            of("gpu_processes", 1, "processes"),
            [{"pid": 4242, "name": "python3", "state": "R", "memory": 20 * GB, "started": 9}],
        ),
        (of("driver", 1, "compute_mode"), 3),
        (of("ecc_errors", 1, "volatile", "uncorrected"), 2),
    ]
    assert {finding.code for finding in said(*held)} == {
        "left_processes",
        "settings_changed",
        "new_uncorrectable_errors",
    }
    assert [finding.code for finding in said(*held, job_is_over=False)] == [
        "new_uncorrectable_errors"
    ]


# ---- baselines that do not hold ----


def fresh(now):
    """Counters of a node whose driver was loaded a moment ago."""
    for check, part, value in (
        ("ecc_errors", "volatile", {"corrected": 0, "uncorrected": 0}),
        ("gpu_power", "violations", {"power": 0, "thermal": 0}),
        ("pcie_link", "replays", 0),
        ("pcie_link", "aer", {"correctable": 0, "nonfatal": 0, "fatal": 0}),
    ):
        for gpu in now["readings"][check]["gpus"]:
            gpu[part] = copy.deepcopy(value)
    for gpu in now["readings"]["nvlink"]["gpus"]:
        for link in gpu["links"]:
            link["errors"] = {}
    return now


def after_reboot():
    now = fresh(hour_later())
    now.update(boot_id="boot-2", uptime_seconds=300.0, driver_loaded="load-2")
    now["readings"]["xid_errors"].update(
        uptime_seconds=300.0,
        events=[],
        log={"source": "kmsg", "first_seq": 0, "last_seq": 20, "first_usec": 0},
    )
    now["readings"]["memory_and_cpu"]["edac"][0]["ce"] = 0
    now["readings"]["infiniband"]["ports"][0]["counters"] = {}
    now["readings"]["storage"]["disks"][0]["ioerr_count"] = 0
    return now


def test_a_reboot_alone():
    assert [finding.code for finding in changes(before(), after_reboot())] == ["node_rebooted"]


@pytest.mark.parametrize("what", ["a reboot", "another driver"])
def test_memory_that_a_new_driver_takes_is_not_the_job_s(what):
    now = after_reboot() if what == "a reboot" else fresh(hour_later())
    put(now, ("driver_version",), "580.105.08")
    for part, value in (
        ("memory", {"used": 1200 << 20, "reserved": 550 << 20, "total": 80 << 30}),
        ("processes", []),
        ("holders", []),
    ):
        put(now, of("gpu_processes", 1, part), value)
    assert [finding.code for finding in changes(before(), now)] == [
        "node_rebooted" if what == "a reboot" else "driver_reloaded"
    ]


def test_after_a_reboot_counts_are_the_least_and_all_of_the_log_is_new():
    now = after_reboot()
    put(now, VOLATILE, {"corrected": 0, "uncorrected": 3})
    put(now, EVENTS, [xid(94, 12, usec=5)])
    put(now, of("remapped_rows", 1, "rows", "uncorrectable"), 10)
    findings = changes(before(), now)
    assert [(finding.code, finding.message.partition(";")[0]) for finding in findings][1:3] == [
        ("new_uncorrectable_errors", "at least 3 uncorrectable memory errors during this job"),
        ("new_remapped_rows", "8 remapped rows during this job"),
    ]
    assert [finding.code for finding in findings] == [
        "node_rebooted",
        "new_uncorrectable_errors",
        "new_remapped_rows",
        "new_xids",
    ]


@pytest.mark.parametrize(
    "difference, words",
    [
        ((("driver_version",), "580.105.08"), "in version 580.105.08 instead of 580.95.05"),
        ((("driver_loaded",), "load-2"), "the driver was reloaded since the snapshot: "),
        (
            (("readings", "xid_errors", "loads"), [{"seq": 930, "usec": 11_000_000_000}]),
            "the driver was reloaded since the snapshot: ",
        ),
    ],
)
def test_a_driver_that_was_loaded_anew(difference, words):
    now = fresh(hour_later())
    put(now, *difference)
    put(now, VOLATILE, {"corrected": 0, "uncorrected": 6})
    # More than before, and none of it was there when the driver was loaded.
    findings = changes(before(), now)
    assert [(finding.code, finding.status) for finding in findings] == [
        ("driver_reloaded", "warn"),
        ("new_uncorrectable_errors", "warn"),
    ]
    assert words in findings[0].message and "at least 6 uncorrectable" in findings[1].message


def test_counters_that_go_back_on_all_gpus_are_a_driver_that_was_loaded_anew():
    findings = changes(before(), fresh(hour_later()))
    assert brief(findings) == [("driver_reloaded", "warn", "watch", None)]


def test_a_gpu_that_was_reset():
    now = hour_later()
    put(now, VOLATILE, {"corrected": 0, "uncorrected": 0})
    assert brief(changes(before(), now)) == [("counters_set_back", "warn", "watch", 1)]


def test_what_a_reset_does_not_set_back_is_not_counted_anew():
    """A hundred thousand packets of the weeks before are not those of the last hour."""
    old, now = before(), hour_later()
    for document in (old, now):
        put(document, of("pcie_link", 1, "replays"), 100_000)
    for differences in (
        [(VOLATILE, {"corrected": 0, "uncorrected": 0})],
        [(("driver_loaded",), "load-2")],
    ):
        later = copy.deepcopy(now)
        for path, value in differences:
            put(later, path, value)
        assert {finding.code for finding in changes(old, later)} <= {
            "counters_set_back",
            "driver_reloaded",
            "new_uncorrectable_errors",
            "new_corrected_errors",
            "held_back_by_heat",
            "new_nvlink_errors",
        }


@pytest.mark.parametrize(
    "minutes, status, action",
    [(5, "warn", "watch"), (9, "warn", "watch"), (11, "fail", "drain_node")],
)
def test_a_burst_of_packets_sent_again_is_no_bad_link_yet(minutes, status, action):
    now = hour_later()
    now.update(
        taken=f"2026-11-22T01:{minutes:02}:00Z",
        uptime_seconds=before()["uptime_seconds"] + 60 * minutes,
    )
    put(now, of("pcie_link", 1, "replays"), 20 + 400)
    assert ("new_pcie_replays", status, action, 1) in brief(changes(before(), now))


@pytest.mark.parametrize(
    "path, was, is_now, fact",
    [
        (of("ecc_errors", 1, "aggregate", "corrected"), 50, 0, "lifetime corrected errors 0"),
        (of("remapped_rows", 1, "rows", "uncorrectable"), 2, 1, "uncorrectable remapped rows 1"),
        (of("remapped_rows", 1, "pages", "double_bit"), 1, 0, "retired pages (double bit) 0"),
        (of("pcie_link", 1, "aer", "correctable"), 2, 0, "correctable PCIe errors 0"),
        (("readings", "infiniband", "ports", 0, "counters"), {"link_downed": 1}, {}, "link downed"),
        (("readings", "storage", "disks", 0, "ioerr_count"), 3, 0, "failed commands 0"),
        (("readings", "memory_and_cpu", "edac", 0, "ce"), 4, 0, "corrected errors 0"),
    ],
)
def test_a_lasting_counter_that_decreased_within_a_boot_is_unknown(path, was, is_now, fact):
    old = before()
    put(old, path, was)
    (finding,) = said((path, is_now), old=old)
    assert (finding.code, finding.status) == ("counters_decreased", "unknown")
    assert finding.message.startswith(fact) and "was " in finding.message


def test_a_disk_counter_that_wrapped_has_grown():
    path = ("readings", "storage", "disks", 0, "ioerr_count")
    old = before()
    put(old, path, (1 << 32) - 1)
    assert [finding.code for finding in said((path, 3), old=old)] == ["new_disk_errors"]


def test_without_persistence_counters_go_back_by_themselves():
    old, now = before(), fresh(hour_later())
    for document in (old, now):
        for gpu in document["readings"]["driver"]["gpus"]:
            gpu["persistence"] = 0
    assert brief(changes(old, now)) == [("counters_set_back", "pass", "none", None)]


def test_a_driver_loaded_at_boot_before_the_snapshot_is_not_news():
    now = hour_later()
    put(now, ("readings", "xid_errors", "loads"), [{"seq": 40, "usec": 9_000_000}])
    assert changes(before(), now) == []


def renamed(document, uuids):
    for gpus in [document["gpus"]] + [
        found["gpus"] for found in document["readings"].values() if "gpus" in found
    ]:
        gpus[:] = [dict(gpu, uuid=uuids[gpu["uuid"]]) for gpu in gpus if uuids[gpu["uuid"]]]
    return document


def test_a_swapped_gpu_is_said_and_not_compared():
    now = renamed(hour_later(), {"GPU-aaaa": "GPU-aaaa", "GPU-bbbb": "GPU-cccc"})
    put(now, VOLATILE, {"corrected": 0, "uncorrected": 7})
    findings = changes(before(), now)
    assert brief(findings) == [("gpu_swapped", "warn", "watch", 1)]
    assert findings[0].evidence == {"before": "GPU-bbbb", "after": "GPU-cccc"}


def test_all_gpus_are_others():
    findings = changes(
        before(), renamed(hour_later(), {"GPU-aaaa": "GPU-cccc", "GPU-bbbb": "GPU-dddd"})
    )
    assert (
        brief(findings) == [("gpu_swapped", "warn", "watch", None)]
        and "another machine" in findings[0].message
    )


def test_a_gpu_that_is_gone():
    findings = changes(before(), renamed(hour_later(), {"GPU-aaaa": "GPU-aaaa", "GPU-bbbb": None}))
    assert (
        brief(findings) == [("gpu_gone", "fail", "reboot_node", 1)]
        and findings[0].subject.uuid == "GPU-bbbb"
    )


HELD = [{"pid": 4242, "name": "python3", "state": "S", "memory": GB, "started": 9.0}]


@pytest.mark.parametrize(
    "uuids, status, missing",
    [
        (("GPU-aaaa", None), "unknown", ["GPU-bbbb"]),
        (("GPU-cccc", "GPU-dddd"), "unknown", ["GPU-aaaa", "GPU-bbbb"]),
        (("GPU-aaaa", "GPU-bbbb"), "skip", []),
    ],
    ids=["one cannot be seen", "others are seen", "all are seen"],
)
def test_a_snapshot_of_another_scope_loses_no_gpu(uuids, status, missing):
    """Of the host, and now in a container that was given some of its GPUs."""
    then, now = before(), renamed(hour_later(), dict(zip(UUIDS, uuids)))
    then["scope"], now["scope"] = "host", "container pid:[4026532201], GPUs GPU-aaaa"
    now["readings"]["gpu_processes"]["gpus"][0]["processes"] = HELD
    findings = changes(then, now)
    assert [(one.code, one.status, one.evidence["missing"]) for one in findings] == [
        ("not_compared", status, missing)
    ]
    now["scope"] = "host"
    assert {one.code for one in changes(then, now)} & {"gpu_gone", "gpu_swapped", "left_processes"}


def test_a_gpu_that_does_not_answer_is_not_said_to_be_gone():
    now = hour_later()
    now["gpus"][1].update(uuid=None)
    for found in now["readings"].values():
        if "gpus" in found:
            found["gpus"][1] = {
                "index": 1,
                "uuid": None,
                "pci": None,
                "name": None,
                "error": {"kind": "lost"},
            }
    assert changes(before(), now) == []


def test_a_driver_that_shows_nothing_is_for_other_checks():
    now = hour_later()
    now["gpus"] = []
    now["readings"] = {check: {} for check in now["readings"]}
    assert [finding.code for finding in changes(before(), now)] == ["not_compared"]


def test_what_was_read_only_once_is_said():
    old, now = before(), hour_later()
    del old["readings"]["nvlink"]
    now["readings"]["infiniband"] = {}
    del now["readings"]["gpu_memory"]
    findings = changes(old, now)
    assert [(finding.code, finding.status) for finding in findings] == [("not_compared", "skip")]
    assert (
        findings[0].message
        == "not compared: infiniband was read only at the snapshot; nvlink was read only now"
    )


def test_time_between_by_the_clock_of_the_boot_or_else_by_the_date():
    now = hour_later()
    assert Between(before(), now).seconds == 3600.0
    assert (
        Between(before(), dict(now, uptime_seconds=None, taken="2026-11-22T01:30:00Z")).seconds
        == 1800.0
    )
    assert (
        Between(before(), dict(now, uptime_seconds=None, taken="2026-11-21T01:30:00Z")).seconds
        is None
    )


@pytest.mark.parametrize(
    "old, new, ran_on, bits, expected",
    [
        (3, 5, True, 0, Count(2)),
        (3, 3, True, 32, Count(0)),
        (5, 3, True, 0, Count(3, True)),
        (5, 3, True, 32, Count(3, True)),
        (3, 9, False, 0, Count(9, True)),
        (2**32 - 1, 2, True, 32, Count(3)),
        (2**32 - 1, 2**31, True, 32, Count(2**31, True)),
        (2**32 - 1, 2, True, 0, Count(2, True)),
        (None, 3, True, 0, None),
        (3, None, False, 0, None),
        (None, 3, False, 0, Count(3, True)),
    ],
)
def test_counted(old, new, ran_on, bits, expected):
    assert counted(old, new, ran_on, bits) == expected


@pytest.mark.parametrize("old", [-1, True, 2.0, "2", 1 << 64, {}])
def test_a_counter_that_is_not_understood_is_not_compared(old):
    def snapshot(corrected):
        gpu = {"uuid": "GPU-a", "volatile": {"corrected": corrected}}
        return {"boot_id": "b", "readings": {"ecc_errors": {"gpus": [gpu]}}}

    assert changes(snapshot(old), snapshot(3)) == []
    assert [one.code for one in changes(snapshot(2), snapshot(3))] == ["new_corrected_errors"]


def test_still_held():
    now = hour_later()
    assert still_held(before(), now) is False
    put(now, of("gpu_processes", 1, "memory", "used"), 20 * GB)
    assert still_held(before(), now) is True
    now = hour_later()
    put(now, of("gpu_processes", 0, "processes"), [{"pid": 4242, "name": "python3"}])
    assert still_held(before(), now) is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(document, path=()):
    yield path
    for key, value in (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    ):
        yield from paths(value, path + (key,))


PATHS = [path for path in paths(before()) if path]


@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON, st.booleans()), max_size=4))
def test_garbage_is_never_a_fail_of_something_else_and_never_raises(damages):
    documents = {False: before(), True: hour_later()}
    for path, value, which in damages:
        try:
            put(documents[which], path, value)
        except (KeyError, IndexError, TypeError):
            continue
    for finding in changes(documents[False], documents[True]):
        assert finding.status in STATUSES and finding.action in ACTIONS and finding.message
        assert not (finding.status == FAIL and finding.action == "none")
