# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_link through the real CUDA path on nodes of stand-in hardware: real copies between the
memories of GPUs, a virtual clock.
"""

from __future__ import annotations

import pytest
from node import processes_of

CHECK = "gpu_link"


def on(gpu, call, **outcome):
    return dict(gpu=gpu, call=call, **outcome)


def said(outcome):
    return [
        (one.code, one.status, one.action, one.subject.index) for one in outcome.result.findings
    ]


def rates(outcome):
    return {
        (one["from"], one["to"]): one["bytes_per_second"]
        for one in outcome.readings["pairs"]
        if one["access"]
    }


def test_every_configured_rate_is_reported(node, measure):
    cuda = {
        one: {f"peer.{other}": (370 + 3 * one + other) * 1e9 for other in range(3) if other != one}
        for one in range(3)
    }
    outcome = measure(node({"gpus": 3, "cuda": cuda}), CHECK)
    assert (outcome.result.status, said(outcome)) == ("pass", [])
    assert rates(outcome) == {
        (one, int(key[5:])): pytest.approx(rate, rel=0.005)
        for one, keys in cuda.items()
        for key, rate in keys.items()
    }
    assert all(
        one["verified"] == {"size": 1 << 25, "wrong_blocks": 0, "first_wrong": None}
        for one in outcome.readings["pairs"]
    )
    assert [(one.labels, one.value) for one in outcome.result.measurements][0] == (
        {"gpu": "0", "kind": "nvlink"},
        pytest.approx(371e9, rel=0.005),
    )


#: Scenario -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    "over switches": ({"gpus": 3}, "pass", []),
    "one GPU slow": (
        {"gpus": 4, "cuda": {2: {"peer": 180e9}}},
        "fail",
        [("low_peer_bandwidth", "fail", "drain_node", 2)],
    ),
    "six of 18 links down": (
        {
            "gpus": 3,
            "rules": [on(1, f"nvmlDeviceGetNvLinkState.{link}", values=[0]) for link in range(6)],
        },
        "fail",
        [("low_peer_bandwidth", "fail", "drain_node", 1)],
    ),
    "data that comes changed": (
        {"gpus": 2, "cuda": {1: {"peer_corrupt": 1}}},
        "fail",
        [("peer_data_corrupted", "fail", "drain_node", 1)],
    ),
    "two bridged pairs": ({"model": "H100-NVL", "gpus": 4}, "pass", []),
    "cards without access": (
        {"model": "RTX-4090", "gpus": 2, "cuda": {"*": {"peer_access": 0}}},
        "pass",
        [("no_peer_access", "pass", "none", None)],
    ),
    "no access over NVLink": (
        {"gpus": 2, "cuda": {"*": {"peer_access": 0}}},
        "warn",
        [("no_peer_access", "warn", "fix_configuration", None)],
    ),
    "one GPU": ({"gpus": 1}, "skip", []),
    "no GPU": ({"gpus": 0}, "skip", []),
    "one GPU in use": (
        {"gpus": 3, "processes": [{"gpu": 0, "pid": 4242, "name": "python3", "memory": 1 << 36}]},
        "skip",
        [("gpu_in_use", "skip", "none", 0)],
    ),
    "the fabric is not ready": (
        {"gpus": 2, "rules": [on("*", "cuInit", returns=802)]},
        "fail",
        [("fabric_not_ready", "fail", "fix_configuration", None)],
    ),
    "out of memory": (
        {"gpus": 2, "rules": [on(1, "cuMemAlloc_v2", returns=2)]},
        "unknown",
        [("out_of_memory", "unknown", "watch", 1)],
    ),
    "a driver that ends the process": (
        {"gpus": 2, "cuda": {0: {"crash": "cuMemcpyPeerAsync"}}},
        "unknown",
        [("crashed", "unknown", "watch", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    outcome = measure(node(scenario), CHECK)
    assert (outcome.result.status, said(outcome)) == (status, findings)


def test_what_was_measured_before_a_hang_is_kept(node, measure):
    hanging = node(
        {
            "gpus": 3,
            "cuda": {"*": {"peer": 380e9}},
            "rules": [on(2, "cuMemcpyPeerAsync", hang="ignore_term")],
        }
    )
    outcome = measure(hanging, CHECK, timeout=15)
    assert (
        said(outcome) == [("hung", "unknown", "watch", None)]
        and "cuMemcpyPeerAsync did not return" in outcome.result.findings[0].message
    )
    assert outcome.readings["phase"].startswith("copying from GPU to GPU: 2 to") and (
        1,
        2,
    ) in rates(outcome)
    assert not processes_of(hanging)
