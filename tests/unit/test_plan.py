# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a mesh plan, the findings about excluded hosts, and that no host has two
measurements at once.
"""

from __future__ import annotations

import copy
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    read_facts,
    read_plan,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    ACTIONS,
    STATUSES,
    Finding,
)

PING = {
    "count": 20,
    "peers": 32,
    "maximum_loss": 2.0,
    "maximum_latency": None,
    "packets_per_second": 100000,
    "family": "auto",
}
IPERF = {
    "duration": 6.0,
    "streams": 1,
    "zerocopy": True,
    "minimum": None,
    "ports": "5200-5299",
    "force": False,
}
NOW = 1000.0


def interface(name, number, plane, **changes):
    return {
        "name": name,
        "kind": "",
        "up": True,
        "carrier": True,
        "mtu": 9000,
        "speed": 100e9,
        "default_route": name == "eth0",
        "addresses": [{"family": 4, "address": f"10.{plane}.0.{number}", "prefix": 24}],
        **changes,
    }


def facts(number, names=("eth0", "eth1", "eth2"), offset=0.0, uncertainty=0.02, **changes):
    """What host ``number`` says of itself; ``changes`` are to parts of it, or by name to interfaces
    (None: it is gone).
    """
    own = [
        interface(name, number, plane, **(changes.get(name) or {}))
        for plane, name in enumerate(names)
        if changes.get(name, True) is not None
    ]
    told = {
        "interfaces": own,
        "iperf3": {"path": "/usr/bin/iperf3", "version": "3.12"},
        "fping": {"path": "/usr/bin/fping", "version": "5.1"},
        "busy": [],
        "clock": {
            "offset_seconds": offset,
            "uncertainty_seconds": uncertainty,
            "asked": 900.0,
            "answered": 901.0,
        },
    }
    return {
        **told,
        **{
            key: value
            for key, value in changes.items()
            if key in told or key in ("error", "clock_error")
        },
    }


def fleet(count, **of_hosts):
    """``count`` hosts n1, n2, ...; ``n3={...}`` changes one, ``n3=None`` is a host without facts."""
    changes = {number: of_hosts.get(f"n{number}", {}) for number in range(1, count + 1)}
    return {
        f"n{number}": None if changed is None else facts(number, **changed)
        for number, changed in changes.items()
    }


def make(hosts, ping=None, iperf=None, **settings):
    options = {"ping_mesh": {**PING, **(ping or {})}, "iperf3_pairs": {**IPERF, **(iperf or {})}}
    return plan.make(
        {host: read_facts(own) for host, own in hosts.items()},
        plan.MeshSettings(**{"seed": 7, "options": options, **settings}),
        NOW,
        "run",
    )


def left_out(made):
    """The findings: (host, plane, check, status, code, action)."""
    said = []
    for one in made["left_out"]:
        finding = one["finding"]
        said.append(
            (
                one["host"],
                one["plane"],
                one["check"],
                finding["status"],
                finding["code"],
                finding["action"],
            )
        )
    return sorted(said, key=str)


def message(made, host, code):
    return next(
        one["finding"]["message"]
        for one in made["left_out"]
        if one["host"] == host and one["finding"]["code"] == code
    )


def members(made):
    """Interfaces of each plane by host."""
    return {
        one["name"]: {
            host: member["interface"]
            for host, member in zip(made["hosts"], one["members"])
            if member
        }
        for one in made["planes"]
    }


def paired(made):
    """Hosts in rounds, by plane."""
    found = {}
    for one in made["pairs"]["rounds"] if made["pairs"] else []:
        for plane, *ends in one["pairs"]:
            found.setdefault(made["planes"][plane]["name"], set()).update(
                made["hosts"][place] for place in ends
            )
    return found


def pinged(made):
    return {
        one["name"]: {host for host, peers in zip(made["hosts"], lists) if peers}
        for one, lists in zip(made["planes"], made["ping"]["peers"] if made["ping"] else [])
    }


def names(*numbers):
    return {f"n{number}" for number in numbers}


# ---- a healthy fleet ----


def test_a_plan_of_a_healthy_fleet():
    made = make(
        fleet(8),
        group_of={f"n{number}": f"r{number // 5}" for number in range(1, 9)},
        group_by="rack",
        lead_seconds=12.0,
    )
    assert (made["run"], made["pass"], made["seed"], made["start"], made["checks"]) == (
        "run",
        1,
        7,
        1012.0,
        ["ping_mesh", "iperf3_pairs"],
    )
    assert made["hosts"] == [f"n{number}" for number in range(1, 9)]
    assert (made["groups"], made["group_by"]) == (["r0"] * 4 + ["r1"] * 4, "rack")
    assert members(made) == {
        name: {f"n{number}": name for number in range(1, 9)} for name in ("eth1", "eth2")
    }
    assert made["planes"][0]["members"][2] == {
        "interface": "eth1",
        "address": "10.1.0.3",
        "mtu": 9000,
        "speed": 100e9,
    }
    assert (made["left_out"], made["findings"]) == ([], [])
    assert pinged(made) == {name: names(*range(1, 9)) for name in ("eth1", "eth2")}
    assert paired(made) == {name: names(*range(1, 9)) for name in ("eth1", "eth2")}
    assert len(made["pairs"]["rounds"]) == 10
    pairs = made["pairs"]
    assert (
        pairs["period"],
        pairs["leg_seconds"],
        pairs["handshake_seconds"],
        pairs["slack_seconds"],
    ) == (7.0, 3.0, 0.4, 0.3)
    assert (pairs["ports"], pairs["streams"], pairs["zerocopy"]) == ([5200, 5299], 1, True)
    assert pairs["offset"] >= made["ping"]["offset"] + made["ping"]["seconds"]
    assert made["seconds"] == pairs["offset"] + 70


def test_hosts_are_in_natural_order():
    assert make({name: facts(number) for number, name in enumerate(["gpu10", "gpu9", "gpu1"], 1)})[
        "hosts"
    ] == ["gpu1", "gpu9", "gpu10"]


def test_a_plan_is_json_and_says_the_same_twice():
    hosts = fleet(9, n4=None)
    assert json.loads(json.dumps(make(hosts))) == make(hosts)
    assert make(hosts, seed=8)["pairs"]["rounds"] != make(hosts)["pairs"]["rounds"]


@pytest.mark.parametrize(
    "together, hosts, rounds, expected",
    [
        (False, 8, 5, 10),
        (True, 8, 5, 5),
        (False, 8, "all", 14),
        (True, 8, "all", 7),
        (False, 8, 99, 14),
        (True, 7, "all", 7),
        (False, 2, 5, 2),
    ],
)
def test_planes_take_turns_or_go_together(together, hosts, rounds, expected):
    made = make(fleet(hosts), together=together, rounds=rounds)
    assert len(made["pairs"]["rounds"]) == expected
    for one in made["pairs"]["rounds"]:
        ends = [(plane if together else 0, end) for plane, *both in one["pairs"] for end in both]
        assert len(ends) == len(set(ends))
        assert len({plane for plane, *_ends in one["pairs"]}) == (2 if together else 1)


def rails(number, count=8, port="0000:{bus}:01.0", **changes):
    """The facts of a host with rails, each below a root port."""
    own = facts(number, names=[f"eth{plane}" for plane in range(1, count + 1)])
    for plane, interface in enumerate(own["interfaces"]):
        bus = f"{16 + plane:x}"
        interface["pci"] = [f"pci0000:{bus}", port.format(bus=bus), f"0000:{bus}:02.0"]
    return {**own, "cores": 2 * count, "virtual": False, **changes}


def test_rails_that_share_nothing_are_measured_in_one_round():
    made = make({f"n{number}": rails(number) for number in range(1, 5)}, together="auto", rounds=3)
    assert (made["together"], len(made["pairs"]["rounds"])) == (True, 3)
    assert "PCIe root port" in made["together_why"]
    assert plan.follow_up(made, [("eth1", "n1", "n2")], NOW, 5.0)["together"] is True


@pytest.mark.parametrize(
    "change, why",
    [
        ({"cores": 15}, "n2: 15 cores for 8 networks, expected 2 for each"),
        ({"cores": None}, "n2: 0 cores for 8 networks, expected 2 for each"),
        ({"virtual": True}, "n2: the PCIe tree of a virtual machine is not that of its host"),
        ({"virtual": None}, "n2: it is not known whether the host is a virtual machine"),
    ],
)
def test_rails_of_a_host_that_cannot_carry_them_take_turns(change, why):
    hosts = {f"n{number}": rails(number) for number in (1, 3)}
    made = make({**hosts, "n2": rails(2, **change)}, together="auto", rounds=2)
    assert (made["together"], made["together_why"]) == (False, why)
    assert len(made["pairs"]["rounds"]) == 16


def test_rails_below_one_root_port_or_of_unknown_place_take_turns():
    hosts = {f"n{number}": rails(number) for number in range(1, 5)}
    hosts["n2"]["interfaces"][4]["pci"] = [*hosts["n2"]["interfaces"][1]["pci"][:2], "0000:2f:00.0"]
    made = make(hosts, together="auto")
    assert made["together_why"] == "n2: eth2 and eth5 share the PCIe root port 0000:11:01.0"
    for unknown in ([], ["pci0000:00", "0000:00:05.0"], "x", None):
        hosts["n2"] = rails(2)
        hosts["n2"]["interfaces"][4]["pci"] = unknown
        made = make(hosts, together="auto")
        assert made["together_why"] == "n2: the PCIe root port of eth5 is not known"
    made = make({f"n{number}": facts(number) for number in range(1, 5)}, together="auto")
    assert made["together"] is False
    assert make(fleet(4), together=True)["together_why"] == "set by the operator"


def test_planes_differ_in_who_meets_whom():
    made = make(fleet(32))
    met = [
        {
            frozenset(ends)
            for one in made["pairs"]["rounds"]
            for plane, *ends in one["pairs"]
            if plane == number
        }
        for number in (0, 1)
    ]
    assert len(met[0] & met[1]) < len(met[0]) / 2


def test_planes_without_a_host_in_common_need_not_take_turns():
    hosts = {
        f"n{number}": facts(number, names=("eth0", "ib0" if number < 5 else "ib1"))
        for number in range(1, 9)
    }
    made = make(hosts, rounds=3)
    assert set(members(made)) == {"ib0", "ib1"}
    assert len(made["pairs"]["rounds"]) == 3


def test_a_check_that_is_not_asked_for_is_not_planned():
    only_pings, only_pairs = (
        make(fleet(4), checks=["ping_mesh"]),
        make(fleet(4), checks=["iperf3_pairs"]),
    )
    assert (only_pings["pairs"], only_pings["seconds"]) == (None, only_pings["ping"]["seconds"])
    assert (only_pairs["ping"], only_pairs["pairs"]["offset"]) == (None, 0.0)


# ---- which interfaces ----


def test_without_data_interfaces_those_with_the_default_route_are_used():
    hosts = {f"n{number}": facts(number, names=("eth0",)) for number in range(1, 5)}
    assert members(make(hosts)) == {"eth0": {f"n{number}": "eth0" for number in range(1, 5)}}


def test_the_management_interface_when_asked_for():
    assert set(members(make(fleet(4), plane_class="mgmt"))) == {"eth0"}
    assert set(members(make(fleet(4), plane_class="data"))) == {"eth1", "eth2"}


@pytest.mark.parametrize(
    "name, kind",
    [
        ("lo", ""),
        ("docker0", "bridge"),
        ("br-0123456789ab", "bridge"),
        ("virbr0", "bridge"),
        ("cni0", "bridge"),
        ("flannel.1", "vxlan"),
        ("cali1a2b", "veth"),
        ("tunl0", "ipip"),
        ("kube-ipvs0", "dummy"),
        ("dummy0", "dummy"),
        ("mine", "wireguard"),
        ("mine", "tun"),
        ("mine", "vxlan"),
        ("veth12ab", "veth"),
    ],
)
def test_interfaces_within_a_host_are_not_chosen(name, kind):
    hosts = {
        f"n{number}": facts(number, names=("eth0", "eth1", name), **{name: {"kind": kind}})
        for number in range(1, 5)
    }
    assert set(members(make(hosts))) == {"eth1"}


@pytest.mark.parametrize(
    "name, kind",
    [
        ("eth2", "veth"),
        ("bond0", "bond"),
        ("eth1.100", "vlan"),
        ("br0", "bridge"),
        ("ib0", "ipoib"),
        ("enp1s0f0np0", ""),
        ("lom1", ""),
    ],
)
def test_others_are(name, kind):
    hosts = {
        f"n{number}": facts(number, names=("eth0", name), **{name: {"kind": kind}})
        for number in range(1, 5)
    }
    assert set(members(make(hosts))) == {name}


@pytest.mark.parametrize(
    "address", ["169.254.3.{}", "192.168.7.2"], ids=["link-local", "the same everywhere"]
)
def test_the_way_to_the_service_processor_is_no_plane(address):
    hosts = {}
    for number in range(1, 9):
        usb0 = {"addresses": [{"family": 4, "address": address.format(number), "prefix": 24}]}
        hosts[f"n{number}"] = facts(number, names=("eth0", "usb0"), usb0=usb0)
    made = make(hosts)
    assert set(members(made)) == {"eth0"}
    assert made["left_out"] == []


def test_interfaces_by_name():
    made = make(fleet(4), interfaces={f"n{number}": ["eth2"] for number in range(1, 5)})
    assert members(made) == {"eth2": {f"n{number}": "eth2" for number in range(1, 5)}}


def test_planes_of_named_interfaces_go_by_position_and_are_called_as_most_are():
    hosts = {
        f"n{number}": facts(
            number, names=("eth0", "eth1", "eth2") if number != 3 else ("eth0", "ens7", "ens8")
        )
        for number in range(1, 5)
    }
    made = make(
        hosts,
        interfaces={host: ["eth1", "eth2"] if host != "n3" else ["ens7", "ens8"] for host in hosts},
    )
    assert members(made)["eth1"] == {"n1": "eth1", "n2": "eth1", "n3": "ens7", "n4": "eth1"}
    assert members(made)["eth2"] == {"n1": "eth2", "n2": "eth2", "n3": "ens8", "n4": "eth2"}


def test_two_positions_with_the_same_name_are_two_planes():
    made = make(
        fleet(4),
        interfaces={
            "n1": ["eth1", "eth2"],
            "n2": ["eth1", "eth2"],
            "n3": ["eth2", "eth1"],
            "n4": ["eth2", "eth1"],
        },
    )
    assert sorted(members(made)) == ["eth1", "eth2"]
    assert all(len(own) == 4 for own in members(made).values())


def test_hosts_that_name_theirs_meet_those_that_do_not():
    made = make(fleet(4), interfaces={"n1": ["eth1"], "n2": []})
    assert members(made) == {
        "eth1": {f"n{number}": "eth1" for number in range(1, 5)},
        "eth2": {f"n{number}": "eth2" for number in (2, 3, 4)},
    }


V6 = {"family": 6, "address": "fd00::1", "prefix": 64}


@pytest.mark.parametrize(
    "family, of_n1, of_n2, address",
    [
        ("auto", 4, 4, "10.1.0.1"),
        ("auto", 46, 46, "10.1.0.1"),
        ("auto", 6, 6, "fd00::1:1"),
        ("6", 46, 46, "fd00::1:1"),
        ("4", 46, 46, "10.1.0.1"),
        ("auto", 46, 6, "fd00::1:1"),
    ],
)
def test_the_family_is_one_that_the_hosts_of_a_plane_have(family, of_n1, of_n2, address):
    hosts = {}
    for number, has in ((1, of_n1), (2, of_n2)):
        both = {
            4: {"family": 4, "address": f"10.1.0.{number}", "prefix": 24},
            6: {"family": 6, "address": f"fd00::1:{number}", "prefix": 64},
        }
        hosts[f"n{number}"] = facts(
            number,
            names=("eth0", "eth1"),
            eth1={"addresses": [both[int(digit)] for digit in reversed(str(has))]},
        )
    made = make(hosts, ping={"family": family})
    assert made["planes"][0]["members"][0]["address"] == address
    assert made["left_out"] == []


def test_a_host_without_an_address_of_the_family_is_left_out():
    made = make(
        fleet(4, n2={"eth1": {"addresses": [V6]}}),
        interfaces={f"n{number}": ["eth1"] for number in range(1, 5)},
    )
    assert left_out(made) == [
        ("n2", "eth1", None, "unknown", "interface_without_address", "fix_configuration")
    ]
    assert "IPv4" in message(made, "n2", "interface_without_address")


def test_an_address_that_many_share_does_not_hide_the_own_one():
    shared = {"family": 4, "address": "10.9.9.9", "prefix": 32}
    hosts = {
        f"n{number}": facts(
            number,
            names=("eth0", "eth1"),
            eth1={
                "addresses": [shared, {"family": 4, "address": f"10.1.0.{number}", "prefix": 24}]
            },
        )
        for number in range(1, 5)
    }
    made = make(hosts)
    assert [member["address"] for member in made["planes"][0]["members"]] == [
        f"10.1.0.{number}" for number in range(1, 5)
    ]
    assert made["left_out"] == []


# ---- who is left out, and why ----

NAMED = {f"n{number}": ["eth1", "eth2"] for number in range(1, 9)}


@pytest.mark.parametrize(
    "change, code, status, action",
    [
        ({"eth2": None}, "interface_missing", "unknown", "fix_configuration"),
        (
            {"eth2": {"up": False, "carrier": None}},
            "interface_down",
            "unknown",
            "fix_configuration",
        ),
        ({"eth2": {"carrier": False}}, "no_carrier", "fail", "drain_node"),
        ({"eth2": {"addresses": []}}, "interface_without_address", "unknown", "fix_configuration"),
    ],
)
@pytest.mark.parametrize("interfaces", [NAMED, {}], ids=["named", "chosen"])
def test_an_interface_that_cannot_be_used(interfaces, change, code, status, action):
    made = make(fleet(8, n3=change), interfaces=interfaces)
    assert left_out(made) == [("n3", "eth2", None, status, code, action)]
    assert made["left_out"][0]["finding"]["subject"] == {"kind": "interface", "name": "eth2"}
    assert paired(made) == {"eth1": names(*range(1, 9)), "eth2": names(1, 2, 4, 5, 6, 7, 8)}
    assert pinged(made) == paired(made)


def test_a_carrier_that_could_not_be_read_is_no_reason():
    assert make(fleet(4, n2={"eth1": {"carrier": None}}), interfaces=NAMED)["left_out"] == []


def test_a_missing_interface_is_said_with_those_the_host_has():
    made = make(
        fleet(4),
        interfaces={f"n{number}": ["eth1"] if number > 1 else ["eht1"] for number in range(1, 5)},
    )
    assert "eth0, eth1, eth2" in message(made, "n1", "interface_missing")


def test_a_host_that_lost_all_of_its_data_interfaces_is_not_measured_on_another():
    made = make(fleet(8, n3={"eth1": {"carrier": False}, "eth2": None}))
    assert left_out(made) == [
        ("n3", "eth1", None, "fail", "no_carrier", "drain_node"),
        ("n3", "eth2", None, "unknown", "interface_missing", "fix_configuration"),
    ]
    assert set(members(made)) == {"eth1", "eth2"}


def test_a_fleet_of_two_kinds_is_not_told_to_be_of_one():
    hosts = {
        f"n{number}": facts(
            number, names=("eth0", "eth1", "eth2") if number < 6 else ("eth0", "eth1")
        )
        for number in range(1, 9)
    }
    assert make(hosts)["left_out"] == []
    named_otherwise = {
        f"n{number}": facts(
            number, names=("eth0", "ib0", "ib1") if number < 8 else ("eth0", "ibp1", "ibp2")
        )
        for number in range(1, 10)
    }
    assert make(named_otherwise)["left_out"] == []


def test_a_spare_port_without_a_cable_is_nobodys_fault():
    made = make(
        {
            **fleet(4),
            "n9": facts(9, names=("eth0", "eth1", "eth2", "spare"), spare={"carrier": False}),
        }
    )
    assert made["left_out"] == []


def test_an_interface_that_nobody_else_has_has_no_partner():
    made = make({**fleet(4), "n9": facts(9, names=("eth0", "eth1", "eth2", "eth3"))})
    assert left_out(made) == [("n9", "eth3", None, "skip", "no_partner", "none")]
    assert set(members(made)) == {"eth1", "eth2"}


def test_a_host_with_nothing_to_use():
    made = make({**fleet(4), "n9": facts(9, names=("lo", "docker0"))}, plane_class="mgmt")
    assert left_out(made) == [
        ("n9", None, None, "unknown", "interface_without_address", "fix_configuration")
    ]
    assert "docker0, lo" in message(made, "n9", "interface_without_address")


@pytest.mark.parametrize("interfaces", [NAMED, {}], ids=["named", "chosen"])
def test_two_hosts_with_one_address_name_each_other(interfaces):
    made = make(
        fleet(8, n3={"eth1": {"addresses": [{"family": 4, "address": "10.1.0.5", "prefix": 24}]}}),
        interfaces=interfaces,
    )
    assert left_out(made) == [
        (host, "eth1", None, "unknown", "duplicate_address", "fix_configuration")
        for host in ("n3", "n5")
    ]
    assert "10.1.0.5 is also used by n5" in message(made, "n3", "duplicate_address")
    assert "also used by n3" in message(made, "n5", "duplicate_address")
    assert paired(made)["eth1"] == names(1, 2, 4, 6, 7, 8)


@pytest.mark.parametrize(
    "change, code",
    [
        (None, "not_in_mesh"),
        (
            {"clock": None, "clock_error": "the host's clock could not be read: refused"},
            "clock_not_read",
        ),
        ({"clock": {"offset_seconds": None, "uncertainty_seconds": 0.1}}, "clock_not_read"),
        ({"uncertainty": 1.5}, "clock_not_read"),
        (
            {
                "interfaces": [],
                "error": {"reason": "missing", "message": "ip is not installed (package iproute2)"},
            },
            "interfaces_not_read",
        ),
    ],
)
def test_a_host_of_which_too_little_is_known(change, code):
    made = make(fleet(6, n2=change))
    assert left_out(made) == [("n2", None, None, "unknown", code, "watch")]
    assert paired(made)["eth1"] == names(1, 3, 4, 5, 6)
    assert "n2" not in plan.shares(made, b"secret")


@pytest.mark.parametrize(
    "change, codes",
    [
        ({"interfaces": "eth1"}, {"interface_missing"}),
        ({"interfaces": [3, {"name": 5, "addresses": []}]}, {"interface_missing"}),
        (
            {"interfaces": [{"name": "eth1"}, {"name": "eth2", "addresses": [{"family": 4}]}]},
            {"interface_down"},
        ),
        ({"iperf3": "present", "fping": ["present"]}, {"iperf3_missing", "fping_missing"}),
        ({"busy": 3}, {"use_unknown"}),
    ],
)
def test_facts_of_the_wrong_type_cost_only_the_host_that_sent_them(change, codes):
    made = make(fleet(6, n2=change))
    assert {(host, code) for host, _plane, _check, _status, code, _action in left_out(made)} == {
        ("n2", code) for code in codes
    }
    assert paired(made)["eth1"] == names(1, 3, 4, 5, 6)


@pytest.mark.parametrize("seed", [1, 2**70, -(2**70)])
def test_a_plan_comes_back_whole_from_its_json(seed):
    made = make(fleet(3), seed=seed)
    again = read_plan(json.loads(json.dumps(made)))
    assert again == made and plan.describe(again)["seed"] == seed


@pytest.mark.parametrize(
    "name, path, value",
    [
        *((name, (name, 0), 3) for name in ("hosts", "groups", "planes", "clocks", "checks")),
        ("planes", ("planes", 0, "members", 0), "eth1"),
        ("left_out", ("left_out",), [None]),
        ("findings", ("findings",), [None]),
        ("findings", ("findings",), "x"),
        ("ping", ("ping", "peers", 0), [None, None, None]),
        ("ping", ("ping", "peers", 0, 0), [{}]),
        ("pairs", ("pairs", "rounds", 0), None),
        ("pairs", ("pairs", "rounds", 0), {"pairs": "x"}),
    ],
)
def test_a_plan_that_is_not_understood_is_not_read(name, path, value):
    """In its lists a place is a name: with one item less the readings would be laid to others."""
    made = copy.deepcopy(make(fleet(3)))
    part = made
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(ValueError, match=f"unreadable {name}$"):
        read_plan(made)
    with pytest.raises(ValueError, match="unreadable .*seed"):
        read_plan({})


@pytest.mark.parametrize(
    "tool, check, left", [("fping", "ping_mesh", pinged), ("iperf3", "iperf3_pairs", paired)]
)
@pytest.mark.parametrize(
    "told", [{"error": "fping or iperf3 is not installed", "reason": "missing"}, None]
)
def test_a_missing_tool_costs_its_check_only(tool, check, left, told):
    made = make(fleet(6, n2={tool: told}))
    assert left_out(made) == [
        ("n2", None, check, "unknown", f"{tool}_missing", "fix_configuration")
    ]
    assert left(made)["eth1"] == names(1, 3, 4, 5, 6)
    other = paired if left is pinged else pinged
    assert other(made)["eth1"] == names(*range(1, 7))


BUSY = [
    Finding("use_unknown", "unknown", "could not be told", "watch").to_dict(),
    Finding("gpu_in_use", "skip", "in use by python").to_dict(),
]


def test_a_host_whose_gpus_are_in_use_is_pinged_only():
    made = make(fleet(6, n2={"busy": BUSY}))
    assert left_out(made) == [("n2", None, "iperf3_pairs", "skip", "gpu_in_use", "none")]
    assert (paired(made)["eth1"], pinged(made)["eth1"]) == (
        names(1, 3, 4, 5, 6),
        names(*range(1, 7)),
    )
    assert left_out(make(fleet(6, n2={"busy": BUSY[:1]})))[0][3:5] == ("unknown", "use_unknown")
    assert make(fleet(6, n2={"busy": BUSY}), iperf={"force": True})["left_out"] == []


def test_the_only_host():
    made = make(fleet(1))
    assert left_out(made) == [("n1", None, None, "skip", "no_partner", "none")]
    assert (
        made["ping"],
        made["pairs"],
        made["planes"],
        made["seconds"],
        plan.shares(made, b"secret"),
    ) == (None, None, [], 0.0, {})
    assert plan.describe(made)["hosts"] == 0


def test_the_only_host_left():
    made = make(fleet(3, n2=None, n3=None))
    assert left_out(made)[0] == ("n1", "eth1", None, "skip", "no_partner", "none")
    assert {one[4] for one in left_out(made)} == {"no_partner", "not_in_mesh"}


def test_the_only_host_left_for_a_check():
    made = make(
        fleet(3, n2={"iperf3": None}, n3={"iperf3": None}), checks=["ping_mesh", "iperf3_pairs"]
    )
    assert [one for one in left_out(made) if one[0] == "n1"] == [
        ("n1", plane, "iperf3_pairs", "skip", "no_partner", "none") for plane in ("eth1", "eth2")
    ]
    assert made["pairs"] is None
    assert pinged(made)["eth1"] == names(1, 2, 3)


# ---- clocks ----


@pytest.mark.parametrize(
    "offset, uncertainty, words",
    [
        (3.0, 0.02, "3.0 s ahead of"),
        (-3.5, 0.02, "3.5 s behind"),
        (0.9, 0.02, None),
        (1.3, 0.5, None),
        (-1.6, 0.5, "1.6 s behind"),
    ],
)
def test_a_clock_that_is_off_is_said_and_its_host_takes_part(offset, uncertainty, words):
    made = make(fleet(8, n5={"offset": offset, "uncertainty": uncertainty}))
    assert made["left_out"] == []
    assert "n5" in paired(made)["eth1"]
    if words is None:
        assert made["findings"] == []
    else:
        (said,) = made["findings"]
        assert (said["host"], said["check"]) == ("n5", "ping_mesh")
        assert (said["finding"]["status"], said["finding"]["code"], said["finding"]["action"]) == (
            "warn",
            "clock_offset",
            "fix_configuration",
        )
        assert words in said["finding"]["message"]


def test_a_controller_whose_clock_is_off_is_no_hosts_fault():
    assert (
        make({f"n{number}": facts(number, offset=500.0 + number / 100) for number in range(1, 9)})[
            "findings"
        ]
        == []
    )


def test_a_share_starts_by_the_clock_of_its_node():
    shares = plan.shares(make(fleet(4, n2={"offset": -2.5}), lead_seconds=10.0), b"secret")
    assert {host: share["start"] for host, share in shares.items()} == {
        "n1": 1010.0,
        "n2": 1007.5,
        "n3": 1010.0,
        "n4": 1010.0,
    }


@pytest.mark.parametrize(
    "asked, answered, now, seconds",
    [(900.0, 901.0, 1000.0, 5.0), (900.0, 920.0, 1000.0, 27.0), (900.0, 990.0, 920.0, 27.0)],
)
def test_the_lead_is_what_gathering_the_facts_took_and_some(asked, answered, now, seconds):
    hosts = {
        "n1": {
            "clock": {
                "offset_seconds": 0,
                "uncertainty_seconds": 0,
                "asked": asked,
                "answered": asked + 1,
            }
        },
        "n2": {
            "clock": {
                "offset_seconds": 0,
                "uncertainty_seconds": 0,
                "asked": asked,
                "answered": answered,
            }
        },
        "n3": None,
        "n4": {},
    }
    assert plan.lead(hosts, now) == pytest.approx(seconds)


def test_the_lead_when_no_host_answered():
    assert plan.lead({"n1": None}, NOW) == 5.0


# ---- shares ----


def test_shares_have_what_the_plan_says():
    made = make(fleet(6))
    shares = plan.shares(made, b"secret")
    assert set(shares) == names(*range(1, 7))
    for host, share in shares.items():
        assert (share["run"], share["pass"], share["host"], share["lifetime"]) == (
            "run",
            1,
            host,
            made["seconds"] + 600,
        )
        pings = [window for window in share["windows"] if window["kind"] == "ping"]
        assert [(window["plane"], set(window["targets"])) for window in pings] == [
            (plane, set(shares) - {host}) for plane in ("eth1", "eth2")
        ]
        assert pings[1]["targets"] == {
            f"n{number}": f"10.2.0.{number}" for number in range(1, 7) if f"n{number}" != host
        }
        assert (pings[0]["interface"], pings[0]["address"], pings[0]["mtu"]) == (
            "eth1",
            f"10.1.0.{host[1:]}",
            9000,
        )
        assert {
            key: pings[0][key]
            for key in ("count", "big_count", "interval_ms", "period_ms", "seconds")
        } == {
            key: made["ping"][key]
            for key in ("count", "big_count", "interval_ms", "period_ms", "seconds")
        }


def test_both_ends_of_a_pair_agree():
    made = make(fleet(7))
    windows = [
        (host, window)
        for host, share in plan.shares(made, b"secret").items()
        for window in share["windows"]
        if window["kind"] == "pair"
    ]
    assert len(windows) == 2 * sum(len(one["pairs"]) for one in made["pairs"]["rounds"])
    ends = {(host, window["plane"], window["round"]): window for host, window in windows}
    for (host, plane, number), window in ends.items():
        other = ends[window["peer"], plane, number]
        assert (other["peer"], other["offset"], other["peer_address"], other["address"]) == (
            host,
            window["offset"],
            window["address"],
            window["peer_address"],
        )
        assert {window["side"], other["side"]} == {"client", "server"}
        assert (window["seconds"], window["leg_seconds"], window["ports"]) == (
            7.0,
            3.0,
            [5200, 5299],
        )
        assert window["offset"] == made["pairs"]["offset"] + 7.0 * number


@given(
    st.integers(1, 12),
    st.booleans(),
    st.integers(1, 12) | st.just("all"),
    st.integers(0, 99),
    st.lists(
        st.tuples(
            st.integers(1, 12),
            st.sampled_from(
                [
                    None,
                    {"eth1": None},
                    {"eth2": {"carrier": False}},
                    {"eth1": {"addresses": []}},
                    {"busy": BUSY},
                    {"fping": None},
                    {"iperf3": None},
                    {"clock": None},
                    {"offset": 5.0},
                    {"eth1": {"addresses": [{"family": 4, "address": "10.1.0.2", "prefix": 24}]}},
                    {"eth2": {"addresses": [V6]}},
                ]
            ),
        ),
        max_size=5,
    ),
)
def test_whatever_is_wrong_nobody_does_two_things_at_once_and_everybody_is_accounted_for(
    count, together, rounds, seed, wrong
):
    made = make(
        fleet(count, **{f"n{number}": change for number, change in wrong}),
        together=together,
        rounds=rounds,
        seed=seed,
    )
    shares = plan.shares(made, b"secret")
    json.dumps([made, shares, plan.describe(made)])
    said = {one["host"] for one in made["left_out"]}
    assert set(made["hosts"]) == said | set(shares)
    for share in shares.values():
        by_plane = Counter(
            (window["plane"] if together else "any", window["round"])
            for window in share["windows"]
            if window["kind"] == "pair"
        )
        assert set(by_plane.values()) <= {1}
        ends = [window["offset"] + window["seconds"] for window in share["windows"]]
        assert max(ends) <= made["seconds"]
        first = min(
            (window["offset"] for window in share["windows"] if window["kind"] == "pair"),
            default=1e9,
        )
        assert all(
            window["offset"] + window["seconds"] < first
            for window in share["windows"]
            if window["kind"] == "ping"
        )
    for one in made["left_out"] + made["findings"]:
        assert one["finding"]["status"] in STATUSES
        assert one["finding"]["action"] in ACTIONS
        assert one["finding"]["message"]


# ---- pacing ----


@pytest.mark.parametrize("hosts, budget", [(4, 100000), (64, 1000), (200, 100000), (200, 5000)])
def test_pings_keep_to_what_the_fleet_may_send(hosts, budget):
    made = make(
        {f"n{number}": facts(number) for number in range(1, hosts + 1)},
        ping={"packets_per_second": budget, "peers": 8},
        checks=["ping_mesh"],
    )
    ping = made["ping"]
    per_node = sum(1000.0 / ping["interval_ms"] for _plane in made["planes"])
    assert per_node <= 1000
    assert per_node * hosts <= budget
    most = max(len(some) for lists in ping["peers"] for some in lists)
    assert ping["interval_ms"] >= 1.0
    assert ping["period_ms"] == max(20.0, most * ping["interval_ms"])
    assert ping["seconds"] >= (ping["count"] + ping["big_count"]) * ping["period_ms"] / 1000 + 2
    assert (ping["count"], ping["big_count"]) == (20, 3)


@pytest.mark.parametrize(
    "budget, peers, limit", [(100000, 32, None), (2000, 21, 21), (600, 6, 6), (100, 4, 4)]
)
def test_the_pings_of_a_large_fleet_take_a_minute_at_most(budget, peers, limit):
    """Fewer peers, as the plan says, but enough to tell a host from its partners."""
    made = make(
        {f"n{number}": facts(number) for number in range(1, 101)},
        ping={"packets_per_second": budget},
        checks=["ping_mesh"],
    )
    assert {len(some) for lists in made["ping"]["peers"] for some in lists} <= {peers - 1, peers}
    assert made["ping"].get("peers_limit") == limit
    assert made["ping"]["seconds"] <= 60 or peers == 4
    assert read_plan(json.loads(json.dumps(made))) == made


def test_hosts_keep_their_readings_as_long_as_collecting_may_take():
    assert make(fleet(4))["uncollected_seconds"] == 600
    made = make(fleet(4), lead_seconds=500.0)
    assert made["uncollected_seconds"] == 2300
    assert {share["lifetime"] for share in plan.shares(made, b"secret").values()} == {
        made["seconds"] + 2300
    }


def test_a_plan_of_an_earlier_version_is_read():
    made = make(fleet(4))
    for name in ("group_source", "uncollected_seconds", "together_why"):
        del made[name]
    assert read_plan(json.loads(json.dumps(made))) == made


def test_a_large_fleet_pings_a_sample():
    made = make({f"n{number}": facts(number) for number in range(1, 201)}, checks=["ping_mesh"])
    assert {len(some) for lists in made["ping"]["peers"] for some in lists} == {32}


# ---- what it costs ----


def test_what_a_plan_costs():
    told = plan.describe(make(fleet(8), rounds=2))
    requests = 8 * 7 * 2
    assert {
        key: told[key]
        for key in ("hosts", "planes", "rounds", "pairs", "pings", "seed", "left_out")
    } == {
        "hosts": 8,
        "planes": ["eth1", "eth2"],
        "rounds": 4,
        "pairs": 16,
        "pings": requests * 23,
        "seed": 7,
        "left_out": 0,
    }
    # 100 Gbit/s for 6 s are 75 GB; a ping and its answer are packets of about 100 bytes, or fill
    # the MTU.
    assert 0 < told["bytes"] - 16 * 75e9 < requests * 2 * (20 * 150 + 3 * 9100)
    assert told["seconds"] == make(fleet(8), rounds=2)["seconds"]


def test_the_slower_end_says_how_much_a_pair_may_send():
    made = make(
        fleet(2, n1={"eth1": {"speed": 10e9}}),
        checks=["iperf3_pairs"],
        interfaces={"n1": ["eth1"], "n2": ["eth1"]},
    )
    assert plan.describe(made)["bytes"] == 7.5e9


def test_the_bytes_are_not_known_when_a_speed_is_not():
    assert plan.describe(make(fleet(4, n2={"eth1": {"speed": None}})))["bytes"] is None
    assert (
        plan.describe(make(fleet(4, n2={"eth1": {"speed": None}}), checks=["ping_mesh"]))["bytes"]
        > 0
    )


# ---- the retest ----


def met(made):
    """Pairs in the rounds: plane, client, server."""
    return [
        (made["planes"][plane]["name"], *(made["hosts"][place] for place in ends))
        for one in made["pairs"]["rounds"]
        for plane, *ends in one["pairs"]
    ]


WANTED = [("eth1", "n3", "n1"), ("eth1", "n3", "n2"), ("eth2", "n4", "n1")]


def test_a_second_pass_measures_the_wanted_pairs_and_no_others():
    first = make(fleet(8))
    again = plan.follow_up(first, [*WANTED, ("eth1", "n1", "n3")], 2000.0, 6.0, 100)
    assert (again["pass"], again["start"], again["run"]) == (2, 2006.0, "run")
    for key in ("hosts", "planes", "groups", "clocks", "options", "checks"):
        assert again[key] == first[key]
    assert pinged(again) == {"eth1": names(1, 2, 3), "eth2": names(1, 4)}
    assert again["ping"]["peers"][0] == [[2], [2], [0, 1], [], [], [], [], []]
    assert again["ping"]["count"] == 100
    assert {(plane, frozenset(ends)) for plane, *ends in met(again)} == {
        (plane, frozenset(ends)) for plane, *ends in WANTED
    }
    assert len(met(again)) == plan.TIMES_AGAIN * 3
    assert len(again["pairs"]["rounds"]) == plan.TIMES_AGAIN * 2
    assert set(plan.shares(again, b"secret")) == names(1, 2, 3, 4)
    assert plan.describe(again)["pairs"] == plan.TIMES_AGAIN * 3
    assert json.loads(json.dumps(again)) == again


@pytest.mark.parametrize("together", [False, True])
def test_a_second_pass_measures_one_plane_of_a_host_at_a_time(together):
    wanted = [("eth1", "n3", "n1"), ("eth2", "n3", "n1")]
    again = plan.follow_up(make(fleet(4), together=together), wanted, NOW, 5.0)
    assert len(again["pairs"]["rounds"]) == plan.TIMES_AGAIN * 2


@pytest.mark.parametrize("together", [False, True])
def test_a_second_pass_measures_each_pair_several_times_in_odd_and_even_rounds(together):
    first = make(fleet(8), together=together)
    again = plan.follow_up(first, [*WANTED, ("eth2", "n3", "n1")], NOW, 5.0)
    rounds = [sorted(one["pairs"]) for one in again["pairs"]["rounds"]]
    part = len(rounds) // plan.TIMES_AGAIN
    places = {}
    for place, pairs in enumerate(rounds):
        for pair in pairs:
            places.setdefault(tuple(pair), []).append(place)
    assert len(places) == 4
    for own in places.values():
        assert [place // part for place in own] == list(range(plan.TIMES_AGAIN))
        assert {place % 2 for place in own} == {0, 1}
    # What it takes and sends counts each time, and each has a window of its own.
    assert again["seconds"] == again["pairs"]["offset"] + len(rounds) * again["pairs"]["period"]
    assert plan.describe(again)["rounds"] == len(rounds)
    for share in plan.shares(again, b"secret").values():
        offsets = [
            (window["plane"], window["offset"])
            for window in share["windows"]
            if window["kind"] == "pair"
        ]
        assert len(set(offsets)) == len(offsets)


def test_a_suspect_is_measured_with_six_partners_at_most():
    again = plan.follow_up(
        make(fleet(8)), [("eth1", "n1", f"n{number}") for number in range(2, 9)], NOW, 5.0
    )
    assert Counter(met(again)) == {
        ("eth1", "n1", f"n{number}"): plan.TIMES_AGAIN for number in range(2, 8)
    }
    assert len(again["ping"]["peers"][0][0]) == 7


def test_few_pairs_of_a_second_pass_cross_between_groups_at_once():
    """They would share uplinks, and be slow for no fault of theirs."""
    first = make(fleet(8), group_of={f"n{number}": f"r{number % 2}" for number in range(1, 9)})
    across = [("eth1", f"n{number}", f"n{number + 1}") for number in (1, 3, 5, 7)]
    within = [("eth1", "n1", "n3"), ("eth1", "n2", "n4")]
    again = plan.follow_up(first, [*across, *within], NOW, 5.0)
    for one in again["pairs"]["rounds"]:
        crossing = [pair for pair in one["pairs"] if (pair[1] - pair[2]) % 2]
        assert len(crossing) <= 1
    assert len(met(again)) == plan.TIMES_AGAIN * 6


@pytest.mark.parametrize(
    "wanted", [[], [("eth9", "n1", "n2")], [("eth1", "n1", "gone")], [("eth1", "n1", "n2")]]
)
def test_no_second_pass_of_what_cannot_be_measured(wanted):
    assert plan.follow_up(make(fleet(4, n2=None)), wanted, NOW, 5.0) is None


def test_who_was_left_out_of_a_check_stays_out():
    again = plan.follow_up(
        make(fleet(6, n2={"iperf3": None}, n4={"eth1": {"carrier": False}})),
        [("eth1", "n1", "n2"), ("eth1", "n1", "n4")],
        NOW,
        5.0,
    )
    assert again["pairs"] is None
    assert pinged(again)["eth1"] == names(1, 2)
    assert (
        plan.follow_up(make(fleet(4), checks=["iperf3_pairs"]), [("eth1", "n1", "n2")], NOW, 5.0)[
            "ping"
        ]
        is None
    )


def test_what_was_said_in_the_first_pass_is_not_said_again():
    again = plan.follow_up(
        make(fleet(6, n2=None, n3={"offset": 9.0})), [("eth1", "n1", "n3")], NOW, 5.0
    )
    assert (again["left_out"], again["findings"]) == ([], [])


# ---- settings that mean nothing ----


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"rounds": 0}, "rounds: 0 "),
        ({"rounds": -1}, "rounds: -1 "),
        ({"rounds": "some"}, "rounds: 'some' .*'all'"),
        ({"rounds": True}, "rounds: True "),
        ({"rounds": 2.5}, "rounds: 2.5 "),
        ({"together": "always"}, "together: 'always' .*auto"),
        ({"checks": ["ping"]}, "checks: 'ping' .*ping_mesh, iperf3_pairs"),
        ({"checks": []}, "checks: .*ping_mesh"),
        ({"plane_class": "both"}, "plane: 'both' .*data or mgmt"),
        ({"interfaces": {"n1": ["eth1", "eth2", "eth1"]}}, "interfaces: .*n1 has eth1 twice"),
        ({"interfaces": {"n1": "eth1"}}, "interfaces: 'eth1' of n1 .*list"),
        ({"interfaces": {"n1": [1]}}, "interfaces: .*n1"),
        *(
            ({"iperf": {"ports": ports}}, "ports: .*1024 to 65535")
            for ports in ("5299-5200", "80-90", "65000-65536", "a-b", "5200-", "5200-5299x")
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        make(fleet(2), **settings)
