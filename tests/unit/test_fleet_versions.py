# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must be the same everywhere: which node differs from the majority in a fleet, and when nothing is
said.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import (
    fleet_versions,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.fleet_versions import (
    Value,
    odd_ones,
)

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def driver(version="580.95.05", name=H100, vbios="96.00", gpus=2, gsp=None, **more):
    several = [
        {"index": index, "name": name, "vbios": vbios, "inforom": "G520", "gsp": gsp or version}
        for index in range(gpus)
    ]
    return {
        "driver": {"options": {}, "readings": {"driver_version": version, "gpus": several, **more}}
    }


def port(*pkeys, device="mlx5_0", state="4: ACTIVE", **more):
    base = {"port": 1, "link_layer": "InfiniBand", "hca_type": "MT4129", "virtual_function": False}
    return {**base, "device": device, "state": state, "pkeys": list(pkeys), **more}


def infiniband(*ports):
    return {"infiniband": {"options": {}, "readings": {"ports": list(ports)}}}


def told(*readings):
    nodes = [(f"gpu{number:02d}", one) for number, one in enumerate(readings)]
    return {
        name: [(one.code, one.status) for result in results for one in result.findings]
        for name, results in fleet_versions.compare(nodes).items()
    }


DIFFERS, PKEY = [("driver_differs", "warn")], [("pkey_differs", "warn")]

#: Readings of nodes -> findings by node.
TABLE = {
    "all alike": ([driver()] * 4, {}),
    "one driver differs": ([driver(), driver(), driver("570.1")], {"gpu02": DIFFERS}),
    "two of five differ": (
        [driver(), driver("570.1"), driver(), driver("570.1"), driver()],
        {"gpu01": DIFFERS, "gpu03": DIFFERS},
    ),
    "two nodes": ([driver(), driver("570.1")], {}),
    "half and half": ([driver(), driver("570.1")] * 2, {}),
    "all different": ([driver(), driver("570.1"), driver("535.1")], {}),
    "another model has another driver": ([driver(), driver(), driver(), driver("570.1", A100)], {}),
    "by model": (
        [driver()] * 3 + [driver("570.1", A100)] * 2 + [driver("580.95.05", A100)],
        {"gpu05": DIFFERS},
    ),
    "one GSP firmware differs": (
        [driver(), driver(), driver(), driver(gsp="570.1")],
        {"gpu03": DIFFERS},
    ),
    "one VBIOS differs": (
        [driver(), driver(), driver(), driver(vbios="96.01")],
        {"gpu03": DIFFERS},
    ),
    "one tells little": (
        [
            driver(),
            driver(),
            driver(),
            {"driver": {"readings": {"driver_version": "580.95.05", "gpus": [{"name": H100}]}}},
        ],
        {},
    ),
    "one was not read": ([driver(), driver(), {}, driver("570.1")], {"gpu03": DIFFERS}),
    "too few were read": ([driver(), {}, {}, driver("570.1")], {}),
    "partitions alike": (
        [infiniband(port("0xffff", "0x8001"))] * 2 + [infiniband(port("0x8001", "0xffff"))],
        {},
    ),
    "another partition": (
        [infiniband(port("0xffff"))] * 3 + [infiniband(port("0xffff", "0x8002"))],
        {"gpu03": PKEY},
    ),
    "a limited member": (
        [infiniband(port("0xffff"))] * 3 + [infiniband(port("0x7fff"))],
        {"gpu03": PKEY},
    ),
    "a key that is not understood": (
        [infiniband(port("0xffff", "0x8002"))] * 3 + [infiniband(port("0xffff", 7))],
        {},
    ),
    "a virtual function, not as true or false": (
        [infiniband(port("0xffff"))] * 3 + [infiniband(port("0x8002", virtual_function=1))],
        {},
    ),
    "another partition on a port of another name": (
        [infiniband(port("0xffff"), port("0x8009", device="mlx5_4"))] * 3
        + [infiniband(port("0xffff"), port("0x8001", device="mlx5_5"))],
        {},
    ),
    "a port that is down": (
        [infiniband(port("0xffff"))] * 3 + [infiniband(port("0x8002", state="1: DOWN"))],
        {},
    ),
    "Ethernet": (
        [infiniband(port("0xffff", link_layer="Ethernet"))] * 3
        + [infiniband(port("0x8002", link_layer="Ethernet"))],
        {},
    ),
    "a virtual function": (
        [infiniband(port("0xffff"))] * 3 + [infiniband(port("0x8002", virtual_function=True))],
        {},
    ),
    "both": (
        [dict(driver(), **infiniband(port("0xffff")))] * 3
        + [dict(driver("570.1"), **infiniband(port("0x8002")))],
        {"gpu03": DIFFERS + PKEY},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_fleet_has_its_findings(case):
    readings, findings = TABLE[case]
    assert told(*readings) == findings


def test_the_finding_names_the_majority_and_the_counts():
    nodes = [(f"gpu{number}", driver()) for number in range(15)] + [
        ("odd", driver("570.1", vbios="96.01"))
    ]
    (result,) = fleet_versions.compare(nodes)["odd"]
    assert (result.check, result.status, result.findings[0].action) == (
        "driver",
        "warn",
        "fix_configuration",
    )
    assert result.summary == (
        "differs from the fleet: driver 570.1, 580.95.05 on 15 of 16 nodes with NVIDIA H100 "
        "80GB HBM3; VBIOS 96.01, 96.00 on 15 of 16 nodes with "
        "NVIDIA H100 80GB HBM3"
    )
    assert result.findings[0].evidence["differs"][0] == {
        "what": "driver",
        "of": H100,
        "value": "570.1",
        "majority": "580.95.05",
        "count": 15,
        "nodes": 16,
    }
    nodes = [(str(number), infiniband(port("0xffff"))) for number in range(3)] + [
        ("odd", infiniband(port("0x8002", "0x7fff")))
    ]
    assert fleet_versions.compare(nodes)["odd"][0].summary.startswith(
        "port mlx5_0/1 is in the partitions 0x7fff, 0x8002, expected as on 3 of 4 nodes: 0xffff; "
    )


def test_firmware_that_differs_within_a_node_counts_as_most_of_it_is():
    mixed = driver(gpus=4)
    mixed["driver"]["readings"]["gpus"][1]["vbios"] = "96.01"
    assert told(driver(), driver(), mixed) == {}


def test_the_verdict_of_a_run_has_it():
    result = CheckResult("driver", "pass", "driver")
    nodes = [
        NodeAnswer(f"gpu{number}", [result], {}, driver("570.1" if number == 3 else "580.95.05"))
        for number in range(4)
    ]
    judged = judge_run(identify_run("r", "preflight", 0, 1, False), nodes, Policy())
    assert [
        (one.name, one.verdict.fit, [found.finding.code for found in one.verdict.findings])
        for one in judged.nodes
    ] == [
        ("gpu0", "fit", []),
        ("gpu1", "fit", []),
        ("gpu2", "fit", []),
        ("gpu3", "fit", ["driver_differs"]),
    ]
    assert [node.name for node in judged.nodes if node.fleet] == ["gpu3"]
    assert judged.verdict.passed


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab")), max_size=20), st.integers(2, 4)
)
def test_who_is_odd_is_in_the_minority(pairs, least):
    values = [Value(owner, "k", "w", value) for owner, value in pairs]
    have = dict(pairs)
    for odd in odd_ones(values, least):
        assert have[odd.value.owner] == odd.value.value != odd.majority
        assert (
            odd.share == list(have.values()).count(odd.majority) > len(have) / 2
            and odd.total == len(have) >= least
        )


NAMES = (
    "driver",
    "infiniband",
    "readings",
    "gpus",
    "ports",
    "name",
    "vbios",
    "driver_version",
    "pkeys",
    "state",
    "device",
    "link_layer",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(JSON, max_size=3))
def test_no_garbage_makes_it_raise_or_hides_a_difference(garbage):
    nodes = [(f"x{number}", one) for number, one in enumerate(garbage)]
    assert "odd" in fleet_versions.compare(
        nodes + [(str(number), driver()) for number in range(6)] + [("odd", driver("570.1"))]
    )
