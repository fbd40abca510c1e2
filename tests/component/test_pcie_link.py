# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pcie_link through the real nvidia-ml-py and sysfs on nodes of stand-in hardware."""

from __future__ import annotations

import pytest

CURRENT_WIDTH, MAX_WIDTH, REPLAYS = (
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
)
GEN5, GEN4, GEN1 = "32.0 GT/s PCIe", "16.0 GT/s PCIe", "2.5 GT/s PCIe"
UPLINK = {
    "current_link_speed": GEN5,
    "max_link_speed": GEN5,
    "current_link_width": 16,
    "max_link_width": 16,
}
GPU1, PORT1 = (
    "sys/devices/pci0000:29/0000:29:01.0/0000:2a:00.0",
    "sys/devices/pci0000:29/0000:29:01.0",
)


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def small(*rules, model="H100-80GB", **more):
    """A node of two GPUs with these rules."""
    return dict(model=model, gpus=2, rules=list(rules), **more)


def linked(**attributes):
    return dict(link={1: attributes})


def said(outcome):
    return [
        (one.code, one.status, one.subject.index, one.action) for one in outcome.result.findings
    ]


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "half the lanes": (
        small(pci=linked(current_link_width=8)),
        "fail",
        [("link_width", "fail", 1, "drain_node")],
    ),
    "at rest": (small(pci=linked(current_link_speed=GEN1)), "pass", []),
    "a slot of eight lanes": (
        small(pci=linked(current_link_width=8), files={f"{PORT1}/max_link_width": "8"}),
        "pass",
        [("link_limited_by_slot", "pass", 1, "none")],
    ),
    "a slot of eight lanes, as the driver says": (
        small(on(1, MAX_WIDTH, 8), pci=linked(current_link_width=8)),
        "pass",
        [("link_limited_by_slot", "pass", 1, "none")],
    ),
    "all alike": (
        small(pci=dict(link={"*": {"current_link_width": 8}})),
        "warn",
        [("link_width", "warn", 0, "watch"), ("link_width", "warn", 1, "watch")],
    ),
    "no sysfs": (
        small(on(1, CURRENT_WIDTH, 8), pci=dict(missing=[1])),
        "warn",
        [("link_width", "warn", 1, "watch")],
    ),
    "the driver does not say, sysfs does": (
        small(
            on(1, CURRENT_WIDTH, returns=3),
            on(1, MAX_WIDTH, returns=3),
            pci=linked(current_link_width=4),
        ),
        "fail",
        [("link_width", "fail", 1, "drain_node")],
    ),
    "no expected width": (
        small(on(1, CURRENT_WIDTH, returns=3), on(1, MAX_WIDTH, returns=3), pci=dict(missing=[1])),
        "unknown",
        [("not_read", "unknown", 1, "watch")],
    ),
    "below healthy switches": (small(pci=dict(uplink={"*": UPLINK})), "pass", []),
    "an uplink of half the lanes": (
        small(pci=dict(uplink={0: UPLINK, 1: dict(UPLINK, current_link_width=8)})),
        "warn",
        [("bridge_link", "warn", None, "watch")],
    ),
    "an uplink of an older generation": (
        small(pci=dict(uplink={0: UPLINK, 1: dict(UPLINK, current_link_speed=GEN4)})),
        "warn",
        [("bridge_link", "warn", None, "watch")],
    ),
    "packets sent again": (
        small(on(1, REPLAYS, 50)),
        "pass",
        [("pcie_replays", "pass", 1, "none")],
    ),
    "packets sent again right now": (
        small(on(1, REPLAYS, "50+9")),
        "warn",
        [("pcie_replays", "warn", 1, "watch")],
    ),
    "many packets sent again": (
        small(on(1, REPLAYS, 50000)),
        "warn",
        [("pcie_replays", "warn", 1, "watch")],
    ),
    "fatal errors": (
        small(files={f"{GPU1}/aer_dev_fatal": "DLP 1\nSDES 0\nTOTAL_ERR_FATAL 1"}),
        "warn",
        [("pcie_fatal_errors", "warn", 1, "watch")],
    ),
    "the port above met fatal errors": (
        small(files={f"{PORT1}/aer_dev_fatal": "DLP 0\nSDES 2\nTOTAL_ERR_FATAL 2"}),
        "warn",
        [("pcie_fatal_errors", "warn", None, "watch")],
    ),
    "a GPU that is lost": (
        small(on(1, "*", returns=15)),
        "fail",
        [("gpu_lost", "fail", 1, "reboot_node")],
    ),
    "no GPU": (dict(gpus=0), "skip", []),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    outcome = measure(node(scenario), "pcie_link")
    assert (outcome.result.status, said(outcome)) == (status, findings)


def test_every_part_is_read(node, measure):
    counts = {
        f"{GPU1}/aer_dev_{kind}": f"RxErr 1\nTOTAL_ERR_{word} {count}"
        for kind, word, count in (
            ("correctable", "COR", 4),
            ("nonfatal", "NONFATAL", 2),
            ("fatal", "FATAL", 0),
        )
    }
    gpu = measure(
        node(
            small(
                on(1, REPLAYS, "50+1"),
                pci=dict(uplink={"*": UPLINK}),
                files={
                    path.replace("/0000:2a:00.0", "/0000:29:01.1/0000:29:01.2/0000:2a:00.0"): text
                    for path, text in counts.items()
                },
            )
        ),
        "pcie_link",
    ).readings["gpus"][1]
    assert gpu["link"] == {
        "generation": 5,
        "width": 16,
        "max_generation": 5,
        "max_width": 16,
        "gpu_max_generation": 5,
        "gpu_max_width": 16,
    }
    assert (
        gpu["replays"] == 50
        and gpu["replays_meanwhile"] == 1
        and gpu["aer"] == {"correctable": 4, "nonfatal": 2, "fatal": 0}
    )
    assert [bridge["pci"] for bridge in gpu["bridges"]] == [
        "00000000:29:01.0",
        "00000000:29:01.1",
        "00000000:29:01.2",
    ]
    assert (
        gpu["bridges"][0]["current_link_width"] == 16
        and gpu["bridges"][0]["max_link_speed"] == 32.0
    )


def test_pcie_bandwidth_finds_the_same_port_as_before(node, measure):
    """The slot's limit is the lower limit of its two ends."""
    sloped = small(
        on("*", MAX_WIDTH, returns=3),
        files={"sys/devices/pci0000:17/0000:17:01.0/max_link_width": "8"},
    )
    link = measure(node(dict(sloped, gpus=1)), "pcie_bandwidth").readings["gpus"][0]["link"]
    assert link["max_width"] == 8
