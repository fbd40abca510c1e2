# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of a host's network: what is read from ip's JSON, from sysfs and from the tables of
sockets, and that nothing raises.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import interfaces
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host

MAC = "0c:42:a1:00:00:01"


def address(local, prefix, scope="global", **more):
    return dict(
        {
            "family": "inet6" if ":" in local else "inet",
            "local": local,
            "prefixlen": prefix,
            "scope": scope,
        },
        **more,
    )


def link(name, *addresses, flags=("BROADCAST", "UP", "LOWER_UP"), **more):
    return dict(
        {
            "ifindex": 2,
            "ifname": name,
            "flags": list(flags),
            "mtu": 1500,
            "address": MAC,
            "addr_info": list(addresses),
        },
        **more,
    )


@pytest.fixture
def host(tmp_path, monkeypatch):
    """``host(links, routes4=[], routes6=[], speeds={})``: an `ip` that answers with these, before a
    sysfs with these speeds.
    """

    def build(links, routes4=(), routes6=(), speeds=None, script=None):
        for name, content in (
            ("links", links),
            ("routes4", list(routes4)),
            ("routes6", list(routes6)),
        ):
            (tmp_path / name).write_text(
                content if isinstance(content, str) else json.dumps(content)
            )
        program = tmp_path / "bin" / "ip"
        program.parent.mkdir()
        asked = {
            "links": "-details -json address show",
            "routes4": "-4 -json route show default",
            "routes6": "-6 -json route show default",
        }
        answer = (
            "".join(
                f'[ "$*" = "{arguments}" ] && exec cat "{tmp_path}/{name}"\n'
                for name, arguments in asked.items()
            )
            + "exit 9"
        )
        program.write_text(f"#!/bin/sh\n{script or answer}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        for name, speed in (speeds or {}).items():
            base = tmp_path / "sys/class/net" / name
            base.mkdir(parents=True)
            (base / "speed").write_text(speed)
            (base / "address").write_text(MAC + "\n")
        return Host(str(tmp_path))

    return build


def test_an_interface_has_all_that_a_plan_needs(host):
    built = host(
        [
            link(
                "eth1",
                address("10.78.1.1", 24),
                address("fd78::1", 64),
                address("fe80::1", 64, "link"),
            )
        ],
        [{"dst": "default", "gateway": "10.78.1.254", "dev": "eth1"}],
        speeds={"eth1": "100000\n"},
    )
    assert interfaces.look(built) == {
        "interfaces": [
            {
                "name": "eth1",
                "kind": "",
                "up": True,
                "carrier": True,
                "mtu": 1500,
                "speed": 100e9,
                "default_route": True,
                "addresses": [
                    {"family": 4, "address": "10.78.1.1", "prefix": 24},
                    {"family": 6, "address": "fd78::1", "prefix": 64},
                ],
            }
        ]
    }


def test_a_network_card_has_its_model_and_its_place_on_the_pci_bus(host):
    built = host([link("eth1"), link("bond0")], speeds={"eth1": "100000", "bond0": "100000"})
    sysfs = pathlib.Path(built.root) / "sys"
    card = sysfs / "devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x15b3\n")
    (card / "device").write_text("0x1021\n")
    (sysfs / "class/net/eth1/device").symlink_to(
        "../../../devices/" + str(card)[len(str(sysfs)) + 9 :]
    )
    first, second = interfaces.interfaces(built)
    assert (first["model"], first["pci"]) == (
        "15b3:1021",
        ["pci0000:15", "0000:15:01.0", "0000:16:00.0"],
    )
    assert not {"model", "pci"} & second.keys()
    (sysfs / "class/net/eth1/address").write_text("aa:aa:aa:aa:aa:aa")
    assert "model" not in interfaces.interfaces(built)[0], "the sysfs of another namespace"


@pytest.mark.parametrize(
    "cpuinfo, hypervisor, virtual",
    [
        ("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", None, True),
        ("processor\t: 0\nflags\t\t: fpu vme lahf_lm\nbugs\t: hypervisor\n", None, False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", "xen\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd\n", None, None),
        (None, None, None),
    ],
)
def test_a_virtual_machine_is_recognised(tmp_path, cpuinfo, hypervisor, virtual):
    for path, text in (("proc/cpuinfo", cpuinfo), ("sys/hypervisor/type", hypervisor)):
        if text:
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text(text)
    assert Host(str(tmp_path)).is_virtual() is virtual


@pytest.mark.parametrize("mark", ["tentative", "deprecated", "dadfailed", "temporary"])
def test_an_address_that_is_not_settled_is_none(host, mark):
    assert (
        interfaces.interfaces(host([link("eth1", address("fd78::1", 64, **{mark: True}))]))[0][
            "addresses"
        ]
        == []
    )


@pytest.mark.parametrize(
    "flags, up, carrier",
    [
        (["UP", "LOWER_UP"], True, True),
        (["NO-CARRIER", "UP"], True, False),
        (["BROADCAST"], False, None),
        (["UP"], True, None),
        (None, False, None),
    ],
)
def test_the_state_of_a_link(host, flags, up, carrier):
    found = interfaces.interfaces(host([link("eth1", flags=flags or [])]))[0]
    assert (found["up"], found["carrier"]) == (up, carrier)


@pytest.mark.parametrize(
    "text, speed",
    [
        ("100000\n", 100e9),
        ("10\n", 10e6),
        ("-1\n", None),
        ("4294967295\n", None),
        ("0\n", None),
        ("", None),
        ("fast\n", None),
    ],
)
def test_the_speed_is_what_the_driver_knows(host, text, speed):
    assert interfaces.interfaces(host([link("eth1")], speeds={"eth1": text}))[0]["speed"] == speed


def test_the_speed_of_an_interface_of_another_namespace_is_not_this_ones(host):
    assert (
        interfaces.interfaces(
            host([link("eth1", address="0c:42:a1:00:00:99")], speeds={"eth1": "100000"})
        )[0]["speed"]
        is None
    )


@pytest.mark.parametrize(
    "routes4, routes6",
    [
        ([{"dst": "default", "dev": "eth1"}], []),
        ([], [{"dst": "default", "dev": "eth1"}]),
        ([{"dst": "default", "nexthops": [{"dev": "eth0"}, {"dev": "eth1"}]}], []),
    ],
)
def test_the_default_route_of_either_family_counts(host, routes4, routes6):
    assert [
        one["default_route"]
        for one in interfaces.interfaces(host([link("eth1"), link("eth2")], routes4, routes6))
    ] == [True, False]


def test_what_kind_of_device_it_is(host):
    links = [
        link("bond0", linkinfo={"info_kind": "bond"}),
        link("a", linkinfo={}),
        link("b", linkinfo=[]),
        link("c", linkinfo={"info_kind": 3}),
    ]
    assert [one["kind"] for one in interfaces.interfaces(host(links))] == ["bond", "", "", ""]


@pytest.mark.parametrize(
    "links",
    [
        "[]",
        "[{}]",
        '[3, null, "x"]',
        '[{"ifname": 3}]',
        '[{"ifname": "eth1", "flags": 3, "mtu": "x", "addr_info": [{}, 3, {"family": "inet"}], '
        '"linkinfo": 3}]',
    ],
)
def test_entries_that_are_not_understood_are_passed_over(host, links):
    found = interfaces.look(host(links))
    assert "error" not in found
    assert all(
        one["name"] == "eth1" and one["addresses"] == [] and one["mtu"] == 0
        for one in found["interfaces"]
    )


@pytest.mark.parametrize(
    "links, reason",
    [('{"a": 1}', "not_understood"), ("[{", "not_understood"), ("2: eth1: <UP>", "not_understood")],
)
def test_output_of_another_shape_is_an_error(host, links, reason):
    found = interfaces.look(host(links))
    assert (found["interfaces"], found["error"]["reason"]) == ([], reason)


@pytest.mark.parametrize(
    "script, reason",
    [("echo 'Option \"-json\" is unknown' >&2; exit 255", "failed"), ("sleep 60", "timeout")],
)
def test_an_ip_that_does_not_answer_is_an_error(host, script, reason, monkeypatch):
    monkeypatch.setattr(interfaces, "_SECONDS", 0.3)
    found = interfaces.look(host([], script=script))
    assert (found["interfaces"], found["error"]["reason"]) == ([], reason)


def test_routes_that_cannot_be_read_leave_the_interfaces(host):
    assert interfaces.look(host([link("eth1")], "[{"))["interfaces"][0]["default_route"] is False


# ---- who listens ----

#: As /proc/net/tcp has it on a little-endian host: 127.0.0.1:5200 and 0.0.0.0:22 listening,
#: 127.0.0.1:5201 connected.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1450 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:1451 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: cut
"""
TCP6 = """  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:1452 00000000000000000000000000000000:0000 0A 0
   1: 00000000000000000000000000000000:1453 00000000000000000000000000000000:0000 0A 0
"""


@pytest.fixture
def sockets(tmp_path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(TCP)
    (tmp_path / "proc/net/tcp6").write_text(TCP6)
    return Host(str(tmp_path))


def test_the_ports_that_somebody_listens_on(sockets):
    assert interfaces.listening(sockets) == {5200, 22, 5202, 5203}


@pytest.mark.parametrize(
    "address, port, listens",
    [
        ("127.0.0.1", 5200, True),
        ("127.0.0.2", 5200, False),
        ("10.0.0.1", 22, True),
        ("127.0.0.1", 5201, False),
        ("::1", 5202, True),
        ("::2", 5202, False),
        ("10.0.0.1", 5203, True),
        ("fd78::1", 5203, True),
    ],
)
def test_a_port_listens_at_its_address_or_at_all(sockets, address, port, listens):
    assert interfaces.port_listens(address, port, sockets) is listens


def test_a_host_without_those_tables_has_no_listeners(tmp_path):
    assert interfaces.listening(Host(str(tmp_path))) == set()
