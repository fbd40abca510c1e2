# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""infiniband on nodes whose sysfs has ports as the kernel shows them."""

from __future__ import annotations

import pytest

ACTIVE = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x1b",
    "sm_lid": "0x1",
}
DOWN = {
    **ACTIVE,
    "state": "1: DOWN",
    "phys_state": "2: Polling",
    "rate": "10 Gb/sec (4X SDR)",
    "lid": "0xffff",
}
ROCE = {**ACTIVE, "link_layer": "Ethernet", "rate": "100 Gb/sec (4X EDR)", "lid": "0x0"}


def card(name, bus, port, board="MT_0000000838", firmware="28.39.1002", **files):
    """A card in a PCI slot with one port, and a link to it in its class; ``files`` below the card
    by path, with ``__`` for ``/``.
    """
    home = f"sys/devices/pci0000:{bus}/0000:{bus}:01.0"
    about = {
        "fw_ver": firmware,
        "board_id": board,
        "hca_type": "MT4129",
        "node_guid": "a088:c203:00ab:0f00",
    }
    about.update(
        {f"ports/1/{key}": text for key, text in port.items()},
        **{key.replace("__", "/"): text for key, text in files.items()},
    )
    return {
        f"{home}/numa_node": "1",
        f"{home}/infiniband/{name}/device": {"link": "../.."},
        f"sys/class/infiniband/{name}": {
            "link": f"../../devices/pci0000:{bus}/0000:{bus}:01.0/infiniband/{name}"
        },
        **{f"{home}/infiniband/{name}/{key}": text for key, text in about.items()},
    }


def cards(*ports, **files):
    """A host of these cards only."""
    found = {"sys/class/infiniband": None}
    for index, port in enumerate(ports):
        found.update(card(f"mlx5_{index}", f"{0x40 + index:02x}", port, **files))
    return {"gpus": 0, "files": found}


#: Scenario, options -> status, then (code, status, subject) of every finding.
TABLE = {
    "as it comes": ({"gpus": 0}, {}, "pass", []),
    "no InfiniBand in the kernel": (
        {"gpus": 0, "files": {"sys/class/infiniband": None}},
        {},
        "skip",
        [],
    ),
    "no InfiniBand where it is expected": (
        {"gpus": 0, "files": {"sys/class/infiniband": None}},
        {"expected_ports": 8},
        "fail",
        [("ports_missing", "fail", None)],
    ),
    "three of four up": (
        cards(ACTIVE, ACTIVE, DOWN, ACTIVE),
        {},
        "warn",
        [("port_down_unlike_others", "warn", "mlx5_2:1")],
    ),
    "three of four up, two wanted": (
        cards(ACTIVE, ACTIVE, DOWN, ACTIVE),
        {"ports": {"mlx5_0:1": 400, "mlx5_1:1": 400}},
        "warn",
        [("port_down_unlike_others", "warn", "mlx5_2:1")],
    ),
    "three of four up, this one wanted": (
        cards(ACTIVE, ACTIVE, DOWN, ACTIVE),
        {"ports": {"mlx5_2:1": 400}},
        "fail",
        [("port_down", "fail", "mlx5_2:1")],
    ),
    "RoCE beside InfiniBand": (cards(ACTIVE, ROCE), {"minimum_rate_gbps": 400}, "pass", []),
    "flaps": (
        cards(ACTIVE, ports__1__counters__link_downed="7"),
        {},
        "warn",
        [("port_flaps", "warn", "mlx5_0:1")],
    ),
    "no sysfs": (
        {"gpus": 0, "files": {"sys/class": None, "sys/bus": None}},
        {},
        "unknown",
        [("host_not_read", "unknown", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, options, status, findings = TABLE[case]
    result = measure(node(scenario), "infiniband", **options).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.name) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    pkeys = {
        f"ports__1__pkeys__{index}": "0xffff"
        if index == 0
        else "0x8012"
        if index == 33
        else "0x0000"
        for index in range(128)
    }
    pkeys["ports__1__pkeys__1"] = "0x8001"
    files = {
        "ports__1__counters__symbol_error": "12",
        "ports__1__counters__port_xmit_wait": "N/A (no PMA)",
        "hw_counters__out_of_sequence": "5",
    }
    read = measure(node(cards(ACTIVE, **files, **pkeys)), "infiniband").readings
    assert read == {
        "uptime_seconds": 86400.25,
        "ports": [
            {
                "device": "mlx5_0",
                "port": 1,
                "state": "4: ACTIVE",
                "phys_state": "5: LinkUp",
                "rate_gbps": 400.0,
                "width": 4,
                "link_layer": "InfiniBand",
                "lid": 27,
                "sm_lid": 1,
                "pkeys": ["0xffff", "0x8001", "0x8012"],
                "firmware": "28.39.1002",
                "board_id": "MT_0000000838",
                "hca_type": "MT4129",
                "node_guid": "a088:c203:00ab:0f00",
                "pci": "00000000:40:01.0",
                "numa_node": 1,
                "virtual_function": False,
                "counters": {"symbol_error": 12},
                "hw_counters": {"out_of_sequence": 5},
            }
        ],
    }


def test_a_virtual_function_of_the_host_is_known(node, measure):
    files = cards(ACTIVE, ACTIVE, DOWN)
    files["files"]["sys/devices/pci0000:42/0000:42:01.0/physfn"] = {"link": "../0000:42:00.0"}
    outcome = measure(node(files), "infiniband")
    assert [port["virtual_function"] for port in outcome.readings["ports"]] == [False, False, True]
    assert (outcome.result.status, outcome.result.summary) == (
        "pass",
        "2 of 3 ports up (2 InfiniBand at 400 Gb/s), the others without a link",
    )
