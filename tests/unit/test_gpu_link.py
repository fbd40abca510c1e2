# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_link and its rounds: one table of readings and what must be said about them, and
properties over any readings.
"""

from __future__ import annotations

import copy
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_link import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices.peer_copies import (
    rounds,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GB = 1e9
H100, NVL, V100, L40S = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 NVL",
    "Tesla V100-SXM2-32GB",
    "NVIDIA L40S",
)
SWITCH = {"type": "switch", "pci": "00000000:05:00.0"}
INTACT = {"size": 1 << 25, "wrong_blocks": 0, "first_wrong": None}
BROKEN = {"size": 1 << 25, "wrong_blocks": 1, "first_wrong": 4711}
TRAINING = {"pid": 4242, "name": "python3", "how": "compute", "memory": 1 << 36}


def pci(index):
    return f"00000000:{index + 16:02X}:00.0"


def gpu(index, name=H100, links=None, numa=0, bridges=None, **changes):
    if links is None:
        links = [SWITCH] * 18 if name == H100 else []
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": pci(index),
        "name": name,
        "numa_node": numa,
    }
    return {
        **base,
        "bridges": bridges or [f"00000000:{index + 32:02X}:00.0"],
        "links": [{"active": True, "remote": remote} for remote in links],
        **changes,
    }


def to(index, count):
    return [{"type": "gpu", "pci": pci(index)}] * count


def look(gpus, **busy):
    idle = {
        "processes": [],
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_used": 0,
        "mig": False,
    }
    identity = ("index", "uuid", "pci", "name")
    return {
        "gpus": [
            {**{key: one[key] for key in identity}, **idle, **busy.get(f"gpu{one['index']}", {})}
            for one in gpus
        ],
        "mps": [],
        "jobs": None,
    }


def node(gpus, rate=390, access=True, before=None, after=None, changes=None, **more):
    """All pairs at a rate in GB/s (a number, or a function of both indexes); ``changes`` of pairs."""
    value = rate if callable(rate) else lambda one, other: rate
    pairs = [
        {
            "from": one["index"],
            "to": other["index"],
            "access": access,
            "verified": INTACT,
            "bytes_per_second": value(one["index"], other["index"]) * GB,
            **(changes or {}).get((one["index"], other["index"]), {}),
        }
        for one, other in permutations(gpus, 2)
    ]
    if not access:
        pairs = [{key: pair[key] for key in ("from", "to", "access")} for pair in pairs]
    readings = {
        "driver_version": "580.95.05",
        "gpus": gpus,
        "pairs": pairs,
        "gate": {"locked_by": None, "looks": [look(gpus, **(before or {}))] * 2},
    }
    return dict(readings, after={"locked_by": None, "looks": [look(gpus, **(after or {}))]}, **more)


def slow_with(guilty, value, healthy=390):
    return lambda one, other: value if guilty in (one, other) else healthy


def slow_pair(pair, value, healthy=390):
    return lambda one, other: value if {one, other} == set(pair) else healthy


EIGHT = [gpu(index) for index in range(8)]
PAIRED = [gpu(index, NVL, to(index ^ 1, 12)) for index in range(4)]
WIRED = [gpu(index, V100, to(index ^ 1, 2)) for index in range(4)]
FOUR_A100, FOUR_H100 = (
    [
        gpu(index, name, [end for n in range(4) if n != index for end in to(n, links)])
        for index in range(4)
    ]
    for name, links in (("NVIDIA A100-SXM4-40GB", 4), (H100, 6))
)
CARDS = [gpu(index, L40S, numa=index // 4) for index in range(8)]
BELOW_SWITCHES = [
    gpu(
        index,
        L40S,
        bridges=[f"00000000:{index // 4 + 64:02X}:00.0", f"00000000:{index + 32:02X}:00.0"],
    )
    for index in range(8)
]
LOW = ("low_peer_bandwidth", "fail", "drain_node")
LOOK = ("low_peer_bandwidth", "warn", "watch")


def by_distance(one, other):
    return 23 if one // 4 == other // 4 else 11


#: Readings, options -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    # against the table
    "eight over switches": (node(EIGHT), {}, "pass", []),
    "a GPU at half its rate": (node(EIGHT, slow_with(3, 190)), {}, "fail", [(*LOW, 3)]),
    "a GPU that sends slowly": (
        node(EIGHT, lambda one, other: 190 if one == 3 else 390),
        {},
        "fail",
        [(*LOW, 3)],
    ),
    "a GPU in the band": (node(EIGHT, slow_with(3, 340)), {}, "warn", [(*LOOK, 3)]),
    "one pair": (node(EIGHT, slow_pair((2, 5), 190)), {}, "fail", [(*LOW, 2)]),
    "two GPUs": (
        node(EIGHT, lambda one, other: 190 if {one, other} & {1, 6} else 390),
        {},
        "fail",
        [(*LOW, 1), (*LOW, 6)],
    ),
    "two of H100": (node(EIGHT[:2]), {}, "pass", []),
    "two of H100, slow": (node(EIGHT[:2], 200), {}, "fail", [(*LOW, 0)]),
    "a bridged pair of H100 NVL": (node(PAIRED[:2], 256), {}, "pass", []),
    "a bridged pair with two of three bridges": (
        node([gpu(index, NVL, to(index ^ 1, 8)) for index in range(2)], 170),
        {},
        "pass",
        [],
    ),
    "a bridged pair at the rate of PCIe": (node(PAIRED[:2], 50), {}, "fail", [(*LOW, 0)]),
    "pairs beside pairs over PCIe": (
        node(PAIRED, lambda one, other: 256 if one ^ 1 == other else 45),
        {},
        "pass",
        [],
    ),
    "a board of four A100": (node(FOUR_A100, 93), {}, "pass", []),
    "a board of four A100, slow": (node(FOUR_A100, slow_with(1, 60, 93)), {}, "fail", [(*LOW, 1)]),
    "a board of four H100": (node(FOUR_H100, 135), {}, "pass", []),
    "a board of four H100, slow": (
        node(FOUR_H100, slow_pair((0, 1), 100, 135)),
        {},
        "fail",
        [(*LOW, 0)],
    ),
    "two of H100 with 12 of 18 links to switches": (
        node([gpu(index, links=[SWITCH] * 12) for index in range(2)], 260),
        {},
        "fail",
        [(*LOW, 0)],
    ),
    "wired": (node(WIRED[:2], 48), {}, "pass", []),
    "wired, half of it": (node(WIRED[:2], 24), {}, "fail", [(*LOW, 0)]),
    # against the node's other pairs
    "over links that nothing is known of": (
        node([gpu(n, "NVIDIA X900", [SWITCH] * 20) for n in range(4)]),
        {},
        "pass",
        [],
    ),
    "one of them slower": (
        node([gpu(n, "NVIDIA X900", [SWITCH] * 20) for n in range(8)], slow_with(2, 330)),
        {},
        "warn",
        [(*LOOK, 2)],
    ),
    "one of them broken": (
        node([gpu(n, "NVIDIA X900", [SWITCH] * 20) for n in range(8)], slow_with(2, 200)),
        {},
        "fail",
        [(*LOW, 2)],
    ),
    "PCIe": (node(CARDS, 23), {}, "pass", []),
    "PCIe, slower from socket to socket": (node(CARDS, by_distance), {}, "pass", []),
    "PCIe, slower between switches": (node(BELOW_SWITCHES, by_distance), {}, "pass", []),
    "PCIe, one card slower than others at its distance": (
        node(CARDS, lambda one, other: by_distance(one, other) / (2 if 5 in (one, other) else 1)),
        {},
        "warn",
        [(*LOOK, 5)],
    ),
    "PCIe, two cards": (node(CARDS[:2], 3), {}, "pass", []),
    # against the operator's minimum
    "above the minimum, below the table": (node(EIGHT, 300), {"minimum": 250}, "pass", []),
    "below the minimum": (node(EIGHT[:2], 390), {"minimum": 400.0}, "fail", [(*LOW, 0)]),
    "the minimum is for NVLink where there is some": (
        node(PAIRED, lambda one, other: 256 if one ^ 1 == other else 45),
        {"minimum": 200},
        "pass",
        [],
    ),
    "a minimum that the bridges of the pair cannot carry": (
        node(PAIRED[:2], 256),
        {"minimum": 335},
        "warn",
        [("minimum_too_high", "warn", "fix_configuration", None)],
    ),
    "the same, and the pair is slow": (
        node(PAIRED[:2], 50),
        {"minimum": 335},
        "fail",
        [("minimum_too_high", "warn", "fix_configuration", None), (*LOW, 0)],
    ),
    "a minimum that fewer links to switches do not carry": (
        node([gpu(index, links=[SWITCH] * 12) for index in range(2)], 260),
        {"minimum": 335},
        "fail",
        [(*LOW, 0)],
    ),
    "a minimum that a pair cannot carry, whose links are not shown": (
        node([gpu(index, NVL, []) for index in range(2)], 256),
        {"minimum": 335},
        "warn",
        [("minimum_too_high", "warn", "fix_configuration", None)],
    ),
    "a minimum for NVLinks that the driver does not show": (
        node([gpu(index, links=[]) for index in range(2)], 40),
        {"minimum": 335},
        "fail",
        [(*LOW, 0)],
    ),
    "the minimum on cards": (node(CARDS[:2], 11), {"minimum": 20}, "fail", [(*LOW, 0)]),
    # access
    "no access over PCIe": (
        node(CARDS, access=False),
        {},
        "pass",
        [("no_peer_access", "pass", "none", None)],
    ),
    "no access over NVLink": (
        node(EIGHT, access=False),
        {},
        "warn",
        [("no_peer_access", "warn", "fix_configuration", None)],
    ),
    # data
    "data changed over NVLink": (
        node(EIGHT, changes={(3, 4): {"verified": BROKEN}}),
        {},
        "fail",
        [("peer_data_corrupted", "fail", "drain_node", 3)],
    ),
    "data changed over PCIe": (
        node(CARDS, 23, changes={(3, 4): {"verified": BROKEN}}),
        {},
        "fail",
        [("peer_data_corrupted", "fail", "fix_configuration", 3)],
    ),
    "data not compared": (
        node(EIGHT[:2], changes={(0, 1): {"verified": None}}),
        {},
        "unknown",
        [("not_verified", "unknown", "watch", None)],
    ),
    # what kept it from being measured
    "one GPU": (node(EIGHT[:1]), {}, "skip", []),
    "one GPU in use": (
        dict(
            node([gpu(0, withheld=True), *EIGHT[1:3]], before={"gpu0": {"processes": [TRAINING]}}),
            pairs=node(EIGHT[1:3])["pairs"],
        ),
        {},
        "skip",
        [("gpu_in_use", "skip", "none", 0)],
    ),
    "slow while in use": (
        node(EIGHT, slow_with(3, 190), before={"gpu3": {"processes": [TRAINING]}}),
        {"force": True},
        "unknown",
        [("low_peer_bandwidth", "unknown", "watch", 3)],
    ),
    "slow with one that is in use": (
        node(EIGHT[:2], 190, before={"gpu1": {"processes": [TRAINING]}}),
        {"force": True},
        "unknown",
        [("low_peer_bandwidth", "unknown", "watch", 0)],
    ),
    "hung": (
        dict(
            node(EIGHT[:2]),
            pairs=[],
            mishap={
                "hung": {"what": "cuMemcpyPeerAsync", "seconds": 30.0, "allowed_seconds": 40.0}
            },
        ),
        {},
        "unknown",
        [("hung", "unknown", "watch", None)],
    ),
    "the fabric is not ready": (
        dict(
            node(EIGHT[:2]),
            pairs=[],
            cuda_error={
                "kind": "system_not_ready",
                "call": "cuInit",
                "code": 802,
                "text": "",
                "gpus": [0, 1],
            },
        ),
        {},
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", None)],
    ),
    "one GPU's memory has an error": (
        dict(
            node(EIGHT[:2]),
            pairs=[],
            cuda_error={
                "kind": "ecc_uncorrectable",
                "call": "cuMemAlloc_v2",
                "code": 214,
                "text": "",
                "gpus": [1],
            },
        ),
        {},
        "fail",
        [("ecc_uncorrectable", "fail", "reset_gpu", 1)],
    ),
    "not measured": (
        dict(node(EIGHT[:2]), pairs=[]),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", n) for n in range(2)],
    ),
    "one direction missing": (
        dict(node(EIGHT[:2]), pairs=node(EIGHT[:2])["pairs"][:1]),
        {},
        "unknown",
        [("not_measured", "unknown", "watch", 1)],
    ),
    "a lost GPU": (
        dict(
            node(EIGHT[:3]),
            gpus=[
                *EIGHT[:2],
                dict(gpu(2), error={"kind": "lost", "call": "x", "code": 15, "text": ""}),
            ],
        ),
        {},
        "fail",
        [("gpu_lost", "fail", "reboot_node", 2)],
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


def test_words():
    found = judge(node(EIGHT, slow_with(3, 190)), {}).findings[0]
    assert found.message == (
        "GPU 0 to 3 over 18 NVLinks 190 GB/s (and 13 more), expected at least 335 (NVIDIA H100 "
        "80GB HBM3, 18 NVLinks, table)"
    )
    assert len(found.evidence["pairs"]) == 14
    healthy = judge(node(PAIRED, lambda one, other: 256 if one ^ 1 == other else 45), {})
    assert (
        healthy.summary
        == "4 directions over NVLink 256 to 256 GB/s, 8 directions over PCIe 45 to 45 GB/s"
    )


def test_the_slowest_direction_is_measured_by_what_it_goes_over():
    measured = judge(
        node(PAIRED, lambda one, other: 250 + one if one ^ 1 == other else 45 - one), {}
    ).measurements
    assert [(one.labels["gpu"], one.labels["kind"], one.value / GB) for one in measured[:4]] == [
        ("0", "nvlink", 250),
        ("0", "pcie", 42),
        ("1", "nvlink", 250),
        ("1", "pcie", 42),
    ]


@pytest.mark.parametrize("count", range(2, 17))
def test_rounds_have_every_pair_once_and_every_member_once_in_each(count):
    members = [index * 3 for index in range(count)]
    planned = rounds(members)
    assert len(planned) == count - 1 + count % 2
    assert sorted(tuple(sorted(pair)) for one in planned for pair in one) == list(
        combinations(members, 2)
    )
    for one in planned:
        assert len({member for pair in one for member in pair}) == 2 * len(one)


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
    st.dictionaries(st.sampled_from(list(gpu(0))), PIECES, max_size=2),
    st.dictionaries(
        st.sampled_from(["from", "to", "access", "bytes_per_second", "verified"]),
        PIECES,
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["pairs", "gate", "after", "cuda_error", "mishap"]), PIECES, max_size=1
    ),
    PIECES,
)
def test_garbage_is_judged_and_never_raises(of_gpu, of_pair, of_node, minimum):
    readings = (
        node([dict(gpu(0), **of_gpu), gpu(1), gpu(2)])
        if not of_gpu.keys() & {"index", "uuid", "pci", "name"}
        else node([gpu(0), gpu(1)])
    )
    readings["gpus"] = [dict(readings["gpus"][0], **of_gpu), *readings["gpus"][1:]]
    readings["pairs"][0].update(of_pair)
    result = judge({**readings, **of_node}, {"minimum": minimum})
    assert result.status in ("pass", "warn", "unknown", "fail", "skip")
    assert all(one.action != "none" for one in result.findings if one.status == "fail")


@given(PIECES)
def test_any_value_for_readings(value):
    assert judge(value, {}).status == "unknown"
    assert judge({"gpus": value}, {}).status == "unknown"
