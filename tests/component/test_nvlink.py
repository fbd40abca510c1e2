# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvlink through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import pytest
from node import PROFILES

STATE, FABRIC, ERRORS = (
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetNvLinkErrorCounter",
)


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def small(*rules, model="H100-80GB", **more):
    """A node of two GPUs with these rules."""
    return dict(model=model, gpus=2, rules=list(rules), **more)


def said(outcome):
    return [
        (one.code, one.status, one.subject.index, one.action) for one in outcome.result.findings
    ]


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "a link down": (
        small(on(1, f"{STATE}.4", 0)),
        "fail",
        [("nvlink_down", "fail", 1, "drain_node")],
    ),
    "all links down": (
        small(on("*", STATE, 0)),
        "fail",
        [("nvlinks_inactive", "fail", None, "fix_configuration")],
    ),
    "NVLink switched off": (
        small(
            on("*", STATE, 0),
            files={
                "proc/driver/nvidia/params": "EnableMSI: 1\nNvLinkDisable: 1\nRegisterPCIDriver: 1"
            },
        ),
        "warn",
        [("nvlink_disabled", "warn", None, "fix_configuration")],
    ),
    "the fabric manager does not run": (
        small(on("*", FABRIC, 1, 0, 0, 0), on("*", STATE, 0)),
        "fail",
        [("fabric_not_ready", "fail", None, "fix_configuration")],
    ),
    "the fabric is not ready for one": (
        small(on(1, FABRIC, 2, 0, 0, 0)),
        "fail",
        [("fabric_not_ready", "fail", 1, "fix_configuration")],
    ),
    "booted a moment ago": (
        small(on(1, FABRIC, 2, 0, 0, 0), files={"proc/uptime": "31.20 100.00"}),
        "unknown",
        [("fabric_not_ready", "unknown", 1, "watch")],
    ),
    "degraded bandwidth": (
        small(on(1, FABRIC, 3, 0, 1, 2)),
        "fail",
        [("fabric_degraded", "fail", 1, "drain_node")],
    ),
    "a driver that cannot say": (small(on("*", FABRIC, returns=3)), "pass", []),
    "a driver without the call": (small(driver={"version": "525.147.05"}), "pass", []),
    "errors of the past": (
        small(on(1, "field.161.7", 12)),
        "pass",
        [("nvlink_errors", "pass", 1, "none")],
    ),
    "errors now": (
        small(on(1, "field.163.7", "12+3")),
        "warn",
        [("nvlink_errors_growing", "warn", 1, "watch")],
    ),
    "errors now, a driver without the fields": (
        small(
            *(on("*", f"field.{field}", returns=3) for field in (161, 162, 163)),
            on(1, f"{ERRORS}.7.0", "12+3"),
        ),
        "warn",
        [("nvlink_errors_growing", "warn", 1, "watch")],
    ),
    "recoveries of NVLink 5": (
        small(on(1, "field.215.3", "1+1"), model="B200"),
        "warn",
        [("nvlink_errors_growing", "warn", 1, "watch")],
    ),
    "a slow link": (
        small(on(1, "field.164.3", 13281)),
        "warn",
        [("nvlink_speed", "warn", 1, "watch")],
    ),
    "the state of a link cannot be read": (
        small(on(1, f"{STATE}.3", returns=999)),
        "unknown",
        [("driver_error", "unknown", 1, "watch")],
    ),
    "a GPU that is lost": (
        small(on(1, "*", returns=15)),
        "fail",
        [("gpu_lost", "fail", 1, "reboot_node")],
    ),
    "MIG on A100": (
        small(on(1, "nvmlDeviceGetMigMode", 1, 1), on(1, STATE, 0), model="A100-SXM4-80GB"),
        "pass",
        [("nvlinks_off_for_mig", "pass", 1, "none")],
    ),
    "a bridge that is not seated well": (
        small(on("*", f"{STATE}.3", 0), model="H100-NVL"),
        "warn",
        [("nvlink_down", "warn", 0, "watch"), ("nvlink_down", "warn", 1, "watch")],
    ),
    "no GPU": (dict(gpus=0), "skip", []),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    outcome = measure(node(scenario), "nvlink")
    assert (outcome.result.status, said(outcome)) == (status, findings)


@pytest.mark.parametrize("model", PROFILES)
def test_every_healthy_model_passes_here_and_pcie_link(model, node, measure):
    outcome, pcie = measure.several(node(dict(model=model, gpus=8)), ["nvlink", "pcie_link"])
    assert (outcome.result.status, said(outcome), pcie.result.status, said(pcie)) == (
        "pass",
        [],
        "pass",
        [],
    )
    assert len(pcie.result.measurements) == 8
    expected = PROFILES[model].get("nvlink", (0, 0, 0, None))
    active = [one.value for one in outcome.result.measurements if one.name == "nvlinks_active"]
    assert active == ([expected[0] if expected[3] else 0] * 8 if expected[0] else [])


def test_every_part_is_read(node, measure):
    gpus = measure(node(small(on(1, "field.162.2", 3))), "nvlink").readings["gpus"]
    assert (
        gpus[0]["fabric"]
        == {"state": 3, "status": 0, "health_mask": 0, "health_summary": 1, "domain": None}
        and gpus[0]["mig"] is False
    )
    assert len(gpus[0]["links"]) == 18 and gpus[0]["links"][17] == {
        "link": 17,
        "active": True,
        "version": 6,
        "speed_mbps": 26562,
        "remote": {"type": "switch", "pci": "00000000:05:00.0"},
        "errors": {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0},
    }
    assert gpus[1]["links"][2]["errors"]["recovery"] == 3 and gpus[1]["links"][2]["grown"] == {}


def test_a_link_that_is_down_is_not_asked_further(node, measure):
    down = measure(node(small(on(1, f"{STATE}.4", 0))), "nvlink").readings["gpus"][1]["links"][4]
    assert down == {
        "link": 4,
        "active": False,
        "version": None,
        "speed_mbps": None,
        "remote": None,
        "errors": {},
    }
