# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_count on whole nodes: who is missing, by NVML, the PCI bus, the kernel driver and the
inventory.
"""

from __future__ import annotations

import shutil

import pytest

AB = "00000000:AB:00.0"  # the bus id of the GPU in slot 5
ALL = [f"00000000:{bus}:00.0" for bus in ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")]


def told(result):
    """A result as rows of status, code, action and bus id."""
    return [
        (finding.status, finding.code, finding.action, finding.subject.pci)
        for finding in result.findings
    ]


#: Scenario, expected_gpus -> status, findings (status, code, action, bus id).
NODES = [
    ("all there", "healthy_8xh100", 8, "pass", []),
    ("no expected number", "healthy_8xh100", None, "pass", []),
    (
        "one fewer in the machine",
        {"gpus": 7},
        8,
        "fail",
        [("fail", "gpus_missing", "drain_node", None)],
    ),
    ("one fewer and no expected number", {"gpus": 7}, None, "pass", []),
    (
        "one more than expected",
        "healthy_8xh100",
        7,
        "warn",
        [("warn", "more_gpus_than_expected", "fix_configuration", None)],
    ),
    (
        "one fell off before the driver was loaded",
        {"driver": {"skips": [5]}},
        None,
        "fail",
        [("fail", "gpu_not_in_nvml", "reboot_node", AB)],
    ),
    (
        "one fell off and is expected",
        {"driver": {"skips": [5]}},
        8,
        "fail",
        [
            ("fail", "gpu_not_in_nvml", "reboot_node", AB),
            ("fail", "gpus_missing", "drain_node", None),
        ],
    ),
    (
        "one has no kernel driver",
        {"pci": {"drivers": {5: None}}},
        None,
        "fail",
        [("fail", "gpu_not_in_nvml", "reboot_node", AB)],
    ),
    (
        "one is held by nouveau",
        {"pci": {"drivers": {5: "nouveau"}}},
        None,
        "fail",
        [("fail", "gpu_not_in_nvml", "fix_configuration", AB)],
    ),
    ("one is passed through", {"pci": {"drivers": {5: "vfio-pci"}}}, None, "pass", []),
    (
        "one is passed through and expected",
        {"pci": {"drivers": {5: "vfio-pci"}}},
        8,
        "fail",
        [("fail", "gpus_missing", "drain_node", None)],
    ),
    (
        "one left the bus under the driver",
        {"pci": {"missing": [5]}},
        8,
        "fail",
        [("fail", "gpu_off_the_bus", "reboot_node", AB)],
    ),
    (
        "one is lost",
        {"rules": [{"gpu": 5, "call": "*", "returns": 15}]},
        8,
        "fail",
        [("fail", "gpu_lost", "reboot_node", AB)],
    ),
    ("no GPU", "no_gpu", None, "skip", []),
    ("no GPU and none expected", "no_gpu", 0, "skip", []),
    (
        "no GPU and eight expected",
        "no_gpu",
        8,
        "fail",
        [("fail", "gpus_missing", "drain_node", None)],
    ),
    (
        "no PCI bus",
        {
            "gpus": 0,
            "driver": {"library": False, "loaded": False},
            "files": {"sys/bus/pci": None, "sys/bus/cpu/uevent": ""},
        },
        None,
        "skip",
        [],
    ),
    (
        "all passed through",
        {
            "pci": {"drivers": dict.fromkeys(range(8), "vfio-pci")},
            "driver": {"library": False, "loaded": False},
        },
        None,
        "skip",
        [],
    ),
    (
        "GPUs, no driver",
        "driver_missing",
        None,
        "fail",
        [("fail", "driver_missing", "fix_configuration", None)],
    ),
    (
        "the driver lists nothing",
        {"driver": {"skips": list(range(8))}},
        None,
        "fail",
        [
            *[("fail", "gpu_not_in_nvml", "reboot_node", bus_id) for bus_id in ALL],
            ("unknown", "no_gpu_seen", "watch", None),
        ],
    ),
]


@pytest.mark.parametrize(
    "scenario, expected, status, findings",
    [row[1:] for row in NODES],
    ids=[row[0] for row in NODES],
)
def test_who_is_missing(scenario, expected, status, findings, node, measure):
    result = measure(node(scenario), "gpu_count", expected_gpus=expected).result
    assert (result.status, sorted(told(result), key=str)) == (status, sorted(findings, key=str))


def test_a_healthy_node_is_one_line_and_one_number(node, measure):
    result = measure(node("healthy_8xh100"), "gpu_count", expected_gpus=8).result
    assert result.summary == "8 x NVIDIA H100 80GB HBM3"
    assert [(one.name, one.value, one.unit) for one in result.measurements] == [
        ("gpu_count", 8, "gpus")
    ]


def test_a_missing_gpu_tells_the_numbers_it_is_judged_by(node, measure):
    result = measure(node({"driver": {"skips": [5]}}), "gpu_count", expected_gpus=8).result
    missing = [finding for finding in result.findings if finding.code == "gpus_missing"][0]
    assert missing.message == "the driver lists 7 GPUs, expected 8 (inventory)"
    assert (
        missing.evidence["expected_gpus"],
        missing.evidence["nvml"],
        missing.evidence["pci"],
    ) == (8, 7, 8)


def test_a_gpu_less_host_says_so_in_one_line(node, measure):
    assert measure(node("no_gpu"), "gpu_count").result.summary == "no NVIDIA GPU on the PCI bus"


def test_switches_and_network_cards_are_no_gpus(node, measure):
    outcome = measure(node("healthy_8xh100"), "gpu_count")
    assert [device["pci"] for device in outcome.readings["pci"]] == ALL
    assert {device["driver"] for device in outcome.readings["pci"]} == {"nvidia"}


def test_where_there_is_no_bus_to_read_the_driver_is_believed(node, measure):
    built = node("healthy_8xh100")
    shutil.rmtree(f"{built.root}/sys")
    outcome = measure(built, "gpu_count", expected_gpus=8)
    assert (outcome.result.status, outcome.readings["pci"]) == ("pass", None)


@pytest.mark.parametrize(
    "visible, expected, codes",
    [
        ("all", None, ["gpu_not_in_nvml"]),
        ("void", None, ["gpu_not_in_nvml"]),
        ("all", 8, ["gpu_not_in_nvml", "gpus_missing"]),
        ("0,1,2,3,4,6,7", None, ["gpu_not_visible"]),
        ("0,1,2,3,4,6,7", 8, ["gpu_not_visible"]),
        ("0,1,2,3,4,6,7", 9, ["gpu_not_visible", "gpus_missing"]),
    ],
)
def test_a_container_that_was_given_some_gpus_is_not_a_node_that_lost_the_others(
    visible, expected, codes, node, measure, monkeypatch
):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    result = measure(node({"driver": {"skips": [5]}}), "gpu_count", expected_gpus=expected).result
    assert [one.code for one in result.findings] == codes and result.findings[0].subject.pci == AB
    assert result.status == ("unknown" if codes == ["gpu_not_visible"] else "fail")
