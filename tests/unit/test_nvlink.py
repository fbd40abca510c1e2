# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of nvlink: one table of readings and what must be said about them, and properties over
any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.nvlink import CHECK
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.nvlinks import (
    LINKS,
    SWITCHED,
    nvlinks_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


H100, A100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200"
NVL, PCIE, V100, L40S = (
    "NVIDIA H100 NVL",
    "NVIDIA A100 80GB PCIe",
    "Tesla V100-SXM2-32GB",
    "NVIDIA L40S",
)
JOINED = {"state": 3, "status": 0, "health_mask": 0, "health_summary": 1}
NONE = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}


def link(number, active=True, **changes):
    base = {
        "link": number,
        "active": active,
        "version": 6 if active else None,
        "speed_mbps": 26562 if active else None,
        "errors": NONE if active else {},
    }
    return {
        **base,
        "remote": {"type": "switch", "pci": "00000000:05:00.0"} if active else None,
        **changes,
    }


def links(up, down=0, **changes):
    return [
        link(number, number < up, **(changes if number < up else {})) for number in range(up + down)
    ]


def gpu(index=3, name=H100, up=18, down=0, **parts):
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": name,
        "mig": False,
        "fabric": JOINED if name in (H100, A100, B200) else None,
        "links": links(up, down),
    }
    return {**base, **parts}


def eight(third, **node):
    """GPU 3 among seven healthy ones of the same model."""
    well = (
        {"up": 12, "down": 0}
        if third.get("name") in (A100, NVL, PCIE)
        else {"up": 6}
        if third.get("name") == V100
        else {}
    )
    return dict(
        {
            "gpus": [
                third if index == 3 else gpu(index, third.get("name"), **well) for index in range(8)
            ],
            "uptime_seconds": 36000.0,
        },
        **node,
    )


def alone(one, **node):
    return dict({"gpus": [one], "uptime_seconds": 36000.0}, **node)


def all_of(count, **how):
    return {"gpus": [gpu(index, **how) for index in range(count)], "uptime_seconds": 36000.0}


def fabric(**changes):
    return dict(JOINED, **changes)


DOWN = [("nvlink_down", "fail", "drain_node", 3)]

#: Readings -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    # how many are up: where they go to switches
    "eight H100": (eight(gpu()), "pass", []),
    "eight A100": (eight(gpu(name=A100, up=12)), "pass", []),
    "one of 18 down": (eight(gpu(up=17, down=1)), "fail", DOWN),
    "a link the driver does not list": (eight(gpu(up=17)), "fail", DOWN),
    "all of one GPU down": (eight(gpu(up=0, down=18)), "fail", DOWN),
    "none of one GPU listed": (eight(gpu(up=0)), "fail", DOWN),
    "all of all down": (
        all_of(8, up=0, down=18),
        "fail",
        [("nvlinks_inactive", "fail", "fix_configuration", None)],
    ),
    "switched off by a parameter": (
        dict(all_of(8, up=0, down=18), nvlink_disabled=True),
        "warn",
        [("nvlink_disabled", "warn", "fix_configuration", None)],
    ),
    "switched off, and one GPU with MIG": (
        {"gpus": [gpu(0, up=0, down=18), gpu(1, up=0, down=18, mig=True)], "nvlink_disabled": True},
        "warn",
        [("nvlink_disabled", "warn", "fix_configuration", None)],
    ),
    "switched off, and a fabric that never starts": (
        dict(all_of(2, up=0, down=18, fabric=fabric(state=2)), nvlink_disabled=True),
        "warn",
        [("nvlink_disabled", "warn", "fix_configuration", None)],
    ),
    "vGPUs, whose links are the host's": (
        all_of(2, name="NVIDIA H100XM-80C", links=[]),
        "pass",
        [],
    ),
    "vGPUs of an older driver": (all_of(2, name="GRID A100-40C", links=[]), "pass", []),
    "vGPUs of slices": (all_of(2, name="NVIDIA H100-3-40C", links=[]), "pass", []),
    "vGPUs that have links": (all_of(2, name="NVIDIA H100XM-80C", up=18), "pass", []),
    "cards by the kind of their memory": (
        all_of(2, name="NVIDIA H100 80GB HBM2e", up=0, down=18),
        "pass",
        [],
    ),
    "one GPU in a virtual machine": (alone(gpu(up=0, down=18)), "pass", []),
    "one GPU with some links": (alone(gpu(up=12, down=6)), "fail", DOWN),
    "A100 with MIG": (
        eight(gpu(name=A100, up=0, down=12, mig=True)),
        "pass",
        [("nvlinks_off_for_mig", "pass", "none", 3)],
    ),
    "all A100 with MIG": (
        all_of(2, name=A100, up=0, down=12, mig=True),
        "pass",
        [("nvlinks_off_for_mig", "pass", "none", n) for n in range(2)],
    ),
    "MIG and some links down": (eight(gpu(up=17, down=1, mig=True)), "fail", DOWN),
    "eight of H800": (all_of(2, name="NVIDIA H800", up=8, down=10), "pass", []),
    "B200": (all_of(8, name=B200, links=links(18, speed_mbps=53125, version=7)), "pass", []),
    # bridges
    "cards without bridges": (all_of(4, name=PCIE, up=0, down=12), "pass", []),
    "cards that list no link": (all_of(4, name=PCIE, up=0), "pass", []),
    "a bridged pair": (all_of(2, name=NVL, up=12, down=6), "pass", []),
    "a pair with fewer bridges": (all_of(2, name=NVL, up=8, down=10), "pass", []),
    "a link of a bridge down at both ends": (
        all_of(2, name=NVL, up=11, down=7),
        "warn",
        [("nvlink_down", "warn", "watch", n) for n in range(2)],
    ),
    "one pair with fewer bridges than the other": (
        {"gpus": [gpu(0, NVL, 12), gpu(1, NVL, 12), gpu(2, NVL, 8), gpu(3, NVL, 8)]},
        "warn",
        [("nvlink_down", "warn", "watch", n) for n in (2, 3)],
    ),
    "a card beside a pair": (
        {"gpus": [gpu(0, NVL, 12), gpu(1, NVL, 12), gpu(2, NVL, 0, 18)]},
        "pass",
        [],
    ),
    # wired by the maker
    "eight V100": (eight(gpu(name=V100, up=6)), "pass", []),
    "V100 with less than the others": (
        eight(gpu(name=V100, up=5, down=1)),
        "warn",
        [("nvlink_down", "warn", "watch", 3)],
    ),
    "half a board of V100": (all_of(4, name=V100, up=4, down=2), "pass", []),
    "GH200 alone": (alone(gpu(name="NVIDIA GH200 480GB", up=0, down=18)), "pass", []),
    "no NVLink at all": (all_of(8, name=L40S, links=[]), "pass", []),
    # models that are not known
    "unknown, all up": (all_of(8, name="NVIDIA X900", up=20), "pass", []),
    "unknown, none listed": (all_of(8, name="NVIDIA X900", links=[]), "pass", []),
    "unknown, some down": (
        eight(gpu(name="NVIDIA X900", up=17, down=1)),
        "warn",
        [("nvlink_down", "warn", "watch", 3)],
    ),
    "unknown, all alike": (
        all_of(2, name="NVIDIA X900", up=8, down=10),
        "pass",
        [("nvlinks_not_known", "pass", "none", n) for n in range(2)],
    ),
    "unknown, none up": (
        all_of(2, name="NVIDIA X900", up=0, down=18),
        "unknown",
        [("nvlinks_not_known", "unknown", "watch", n) for n in range(2)],
    ),
    "unknown and alone": (
        alone(gpu(name="NVIDIA X900", up=8, down=10)),
        "unknown",
        [("nvlinks_not_known", "unknown", "watch", 3)],
    ),
    # the fabric
    "not started": (
        eight(gpu(fabric=fabric(state=1), up=0, down=18)),
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", 3)],
    ),
    "in progress": (
        eight(gpu(fabric=fabric(state=2))),
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", 3)],
    ),
    "in progress just after boot": (
        eight(gpu(fabric=fabric(state=2)), uptime_seconds=45.5),
        "unknown",
        [("fabric_not_ready", "unknown", "watch", 3)],
    ),
    "not started on any GPU": (
        all_of(8, fabric=fabric(state=1), up=0, down=18),
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", None)],
    ),
    "completed with an error": (
        eight(gpu(fabric=fabric(status=999))),
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", 3)],
    ),
    "no fabric, as on A100": (eight(gpu(name=A100, up=12, fabric=fabric(state=0))), "pass", []),
    "an unknown state": (
        eight(gpu(fabric=fabric(state=7))),
        "unknown",
        [("fabric_not_known", "unknown", "watch", 3)],
    ),
    "in progress on a card without switches": (
        all_of(2, name=PCIE, up=0, down=12, fabric=fabric(state=2)),
        "pass",
        [],
    ),
    "health not supported": (
        eight(gpu(fabric=fabric(health_mask=0, health_summary=0))),
        "pass",
        [],
    ),
    "every part of the mask well": (
        eight(gpu(fabric=fabric(health_mask=0b10_10_10_10 | 1 << 8))),
        "pass",
        [],
    ),
    "bandwidth degraded": (
        eight(gpu(fabric=fabric(health_mask=1, health_summary=2))),
        "fail",
        [("fabric_degraded", "fail", "drain_node", 3)],
    ),
    "routes unhealthy": (
        eight(gpu(fabric=fabric(health_mask=1 << 4))),
        "fail",
        [("fabric_degraded", "fail", "drain_node", 3)],
    ),
    "routes repaired": (
        eight(gpu(fabric=fabric(health_mask=1 << 2))),
        "warn",
        [("fabric_recovering", "warn", "watch", 3)],
    ),
    "access timed out": (
        eight(gpu(fabric=fabric(health_mask=1 << 6))),
        "warn",
        [("fabric_recovering", "warn", "watch", 3)],
    ),
    "no partition": (
        eight(gpu(fabric=fabric(health_mask=4 << 8))),
        "fail",
        [("fabric_misconfigured", "fail", "fix_configuration", 3)],
    ),
    "unhealthy without a reason": (
        eight(gpu(fabric=fabric(health_summary=2))),
        "fail",
        [("fabric_degraded", "fail", "drain_node", 3)],
    ),
    "limited capacity": (
        eight(gpu(fabric=fabric(health_summary=3))),
        "warn",
        [("fabric_limited", "warn", "watch", 3)],
    ),
    # speed
    "a slow link": (
        eight(gpu(links=[link(0, speed_mbps=13281), *links(18)[1:]])),
        "warn",
        [("nvlink_speed", "warn", "watch", 3)],
    ),
    "all slow": (
        eight(gpu(links=links(18, speed_mbps=19688))),
        "warn",
        [("nvlink_speed", "warn", "watch", 3)],
    ),
    "speeds not told": (eight(gpu(links=links(18, speed_mbps=None))), "pass", []),
    "NVLink 5 at the speed of 4": (
        all_of(2, name=B200, up=18),
        "warn",
        [("nvlink_speed", "warn", "watch", n) for n in range(2)],
    ),
    # errors
    "counted long ago": (
        eight(gpu(links=[link(0, errors=dict(NONE, replay=12), grown={}), *links(18)[1:]])),
        "pass",
        [("nvlink_errors", "pass", "none", 3)],
    ),
    "growing": (
        eight(
            gpu(
                links=[
                    link(0, errors=dict(NONE, crc_flit=12), grown={"crc_flit": 3}),
                    *links(18)[1:],
                ]
            ),
            looked_seconds=0.5,
        ),
        "warn",
        [("nvlink_errors_growing", "warn", "watch", 3)],
    ),
    # what not read
    "links not read": (eight(gpu(links=None)), "unknown", [("not_read", "unknown", "watch", 3)]),
    "links met an error": (
        eight(
            gpu(
                links=None,
                unread={
                    "links": {
                        "kind": "other_error",
                        "call": "nvmlDeviceGetNvLinkState",
                        "code": 999,
                        "text": "",
                    }
                },
            )
        ),
        "unknown",
        [("driver_error", "unknown", "watch", 3)],
    ),
    "the fabric met an error": (
        eight(
            gpu(
                fabric=None,
                unread={
                    "fabric": {
                        "kind": "other_error",
                        "call": "nvmlDeviceGetGpuFabricInfoV",
                        "code": 999,
                        "text": "",
                    }
                },
            )
        ),
        "unknown",
        [("driver_error", "unknown", "watch", 3)],
    ),
    "a lost GPU": (
        eight(
            {
                "index": 3,
                "uuid": "GPU-3",
                "pci": "00000000:03:00.0",
                "name": H100,
                "error": {"kind": "lost", "call": "x", "code": 15, "text": ""},
            }
        ),
        "fail",
        [("gpu_lost", "fail", "reboot_node", 3)],
    ),
    "no GPU": ({"gpus": []}, "unknown", [("no_gpu_seen", "unknown", "watch", None)]),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(case):
    readings, status, findings = TABLE[case]
    before = copy.deepcopy(readings)
    result = judge(readings, {})
    assert (
        result.status,
        [(one.code, one.status, one.action, one.subject.index) for one in result.findings],
    ) == (status, findings)
    assert readings == before and result.summary


def test_words_name_the_links_and_the_numbers():
    findings = judge(eight(gpu(links=[*links(16), link(16, False), link(17, False)])), {}).findings
    assert "16 of 18 NVLinks active, down: 16, 17" in findings[0].message and findings[0].evidence[
        "down"
    ] == [16, 17]
    assert judge(eight(gpu()), {}).summary == "8 of 8 GPUs with 18 NVLinks 4.0 up, fabric completed"
    assert judge(all_of(4, name=L40S, links=[]), {}).summary == "4 GPUs without NVLinks"


def test_errors_are_measured_over_all_links():
    two = [
        link(0, errors=dict(NONE, replay=12)),
        link(1, errors=dict(NONE, replay=5)),
        *links(18)[2:],
    ]
    measured = {
        (one.name, one.labels.get("kind")): one.value
        for one in judge(alone(gpu(links=two)), {}).measurements
    }
    assert measured == {
        ("nvlinks_active", None): 18,
        ("nvlink_errors", "replay"): 17,
        ("nvlink_errors", "recovery"): 0,
        ("nvlink_errors", "crc_flit"): 0,
        ("nvlink_errors", "crc_data"): 0,
    }


#: Product names as NVML gives them -> kind, links.
NAMES = {
    "NVIDIA H100 80GB HBM3": ("switched", 18),
    "NVIDIA H200": ("switched", 18),
    "NVIDIA H20": ("switched", 18),
    "NVIDIA H20-3e": ("switched", 18),
    "NVIDIA H200 NVL": ("bridged", 18),
    "NVIDIA H100 PCIe": ("bridged", 12),
    "NVIDIA H100 NVL": ("bridged", 12),
    "NVIDIA H800": ("switched", 8),
    "NVIDIA A100-SXM4-40GB": ("switched", 12),
    "NVIDIA A100-PCIE-40GB": ("bridged", 12),
    "NVIDIA A100 80GB PCIe": ("bridged", 12),
    "NVIDIA A800-SXM4-80GB": ("switched", 8),
    "NVIDIA A800 80GB PCIe": ("bridged", 8),
    "NVIDIA A30": ("bridged", 4),
    "NVIDIA A40": ("bridged", 4),
    "NVIDIA A10": ("none", 0),
    "NVIDIA A10G": ("none", 0),
    "NVIDIA L4": ("none", 0),
    "NVIDIA L40S": ("none", 0),
    "Tesla T4": ("none", 0),
    "Tesla P100-PCIE-16GB": ("none", 0),
    "Tesla P100-SXM2-16GB": ("wired", 4),
    "Tesla V100-PCIE-32GB": ("none", 0),
    "Tesla V100-SXM2-16GB": ("wired", 6),
    "Tesla V100-SXM3-32GB": ("switched", 6),
    "Tesla V100-DGXS-32GB": ("wired", 6),
    "NVIDIA B200": ("switched", 18),
    "NVIDIA GB200": ("switched", 18),
    "NVIDIA B300 SXM6 AC": ("switched", 18),
    "NVIDIA GH200 480GB": ("wired", 18),
    "NVIDIA GB10": ("none", 0),
    "NVIDIA GeForce RTX 4090": ("none", 0),
    "NVIDIA GeForce RTX 3090": ("bridged", 4),
    "NVIDIA RTX A6000": ("bridged", 4),
    "NVIDIA RTX 6000 Ada Generation": ("none", 0),
    "Quadro RTX 8000": ("bridged", 2),
    "Quadro GV100": ("bridged", 4),
    "NVIDIA H100 64GB HBM2e": ("switched", 18),
    "NVIDIA H100 SXM5 94GB": ("switched", 18),
    "NVIDIA L40G": ("none", 0),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": ("none", 0),
    "NVIDIA RTX 6000D": ("none", 0),
    "NVIDIA RTX A4000": ("none", 0),
    "Tesla V100-FHHL-16GB": ("none", 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_table_knows_every_model_by_its_name(name):
    row = nvlinks_of(name)
    assert (row.kind, row.most) == NAMES[name]


def test_the_table_is_consistent():
    assert nvlinks_of("NVIDIA X900") is None and nvlinks_of(None) is None
    for row in LINKS:
        assert row.source and row.most % row.step == 0 and (row.fail is None) == (row.warn is None)
        assert row.fail is None or row.fail < row.warn < 1e6 * row.speed * row.most * 1.1
        assert row.kind != SWITCHED or row.speed


PIECES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 70),
    st.text(max_size=5),
    st.floats(allow_nan=True),
    st.lists(st.integers(), max_size=2),
)
PATHS = [
    ("links",),
    ("fabric",),
    ("mig",),
    ("name",),
    ("index",),
    ("links", 0),
    ("links", 0, "errors"),
    ("links", 0, "active"),
    ("links", 0, "speed_mbps"),
    ("links", 0, "grown"),
    ("links", 0, "errors", "replay"),
    ("fabric", "state"),
    ("fabric", "health_mask"),
    ("unread",),
    ("error",),
]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PATHS), PIECES), max_size=3), PIECES, PIECES)
def test_garbage_is_judged_and_never_raises(changes, uptime, seconds):
    broken = gpu()
    for path, value in changes:
        place = broken
        for key in path[:-1]:
            place = (
                place[key]
                if (isinstance(place, list) and len(place) > 0 and isinstance(key, int))
                or (isinstance(place, dict) and key in place)
                else None
            )
        if isinstance(place, dict) or (
            isinstance(place, list) and place and isinstance(path[-1], int)
        ):
            place[path[-1]] = value
    result = judge(
        {"gpus": [broken, gpu(1)], "uptime_seconds": uptime, "looked_seconds": seconds}, {}
    )
    assert result.status in ("pass", "warn", "unknown", "fail", "skip")
    assert all(one.action != "none" for one in result.findings if one.status == "fail")


@given(PIECES)
def test_any_value_for_readings(value):
    assert judge(value, {}).status == "unknown"
    assert judge({"gpus": value}, {}).status == "unknown"
