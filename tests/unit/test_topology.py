# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The place of a host in the network: what lldpd, networkd, an InfiniBand leaf and a cloud tell, and
the groups of a mesh from these places.
"""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning import (
    groups,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    read_facts,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import topology
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host

from .test_plan import facts, fleet, make


def interface(name, default_route=False, **changes):
    return {
        "name": name,
        "kind": "",
        "up": True,
        "carrier": True,
        "mtu": 9000,
        "speed": None,
        "addresses": [{"family": 4, "address": "10.0.0.1", "prefix": 24}],
        "default_route": default_route,
        **changes,
    }


INTERFACES = [interface("eth0", default_route=True), interface("eth2"), interface("eth1")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """``host(lldpctl="...")`` has programs that print these texts."""

    def build(**printed):
        programs = tmp_path / "bin"
        programs.mkdir(exist_ok=True)
        for name, words in printed.items():
            (tmp_path / name).write_text(words)
            (programs / name).write_text(f'#!/bin/sh\nexec cat "{tmp_path / name}"\n')
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return Host(str(tmp_path))

    return build


def lldpd(*neighbours):
    """What ``lldpctl -f json0`` prints; a neighbour is interface, chassis, name, capability."""
    found = [
        {
            "name": name,
            "via": via,
            "chassis": [
                {
                    "id": [{"type": "mac", "value": chassis}],
                    "name": [{"value": switch}],
                    "capability": [
                        {"type": "Bridge", "enabled": capability == "Bridge"},
                        {"type": "Station", "enabled": True},
                    ],
                }
            ],
        }
        for name, chassis, switch, capability, via in ((*one, "LLDP")[:5] for one in neighbours)
    ]
    return json.dumps({"lldp": [{"interface": found}]})


LEAF1, LEAF2 = ("aa:01", "leaf01", "Bridge"), ("aa:02", "leaf02", "Bridge")


@pytest.mark.parametrize(
    "neighbours, group",
    [
        ([("eth0", *LEAF2), ("eth1", *LEAF1)], "leaf01 (aa:01)"),
        ([("eth1", "aa:01", "", "Bridge")], "aa:01"),
        # The first data interface has none, and that of another one is another switch.
        ([("eth0", *LEAF2), ("eth2", *LEAF1)], None),
        ([("eth1", *LEAF1), ("eth1", *LEAF2)], None),
        ([("eth1", "aa:03", "dpu", "Station")], None),
        ([("eth1", *LEAF1, "CDPv2")], None),
        ([("eth1", "", "leaf01", "Bridge")], None),
        ([("eth1", "aa:01", "leaf\n01", "Bridge")], None),
        ([("eth1", "aa:01", "l" * 300, "Bridge")], None),
        ([], None),
    ],
)
def test_the_switch_of_the_first_data_interface(host, neighbours, group):
    found = topology.read_topology(host(lldpctl=lldpd(*neighbours)), INTERFACES)
    assert found == (group and {"source": "lldp", "group": group})


def test_a_bond_leads_to_all_switches_of_its_members(host, tmp_path):
    built = host(lldpctl=lldpd(("eth4", *LEAF2), ("eth3", *LEAF1)))
    bond = tmp_path / "sys/class/net/bond0"
    bond.mkdir(parents=True)
    for name in ("eth3", "eth4"):
        (bond / f"lower_{name}").symlink_to(f"../{name}")
    interfaces = [interface("bond0", kind="bond"), interface("eth3", addresses=[])]
    assert topology.read_topology(built, interfaces)["group"] == "leaf01 (aa:01) + leaf02 (aa:02)"


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "[]",
        "null",
        "{",
        '{"lldp": {}}',
        '{"lldp": [{"interface": [{"name": 3, "chassis": 1}]}]}',
    ],
)
def test_what_is_no_answer_of_lldpd_is_none(host, printed):
    assert topology.read_topology(host(lldpctl=printed), INTERFACES) is None


def test_networkd_is_asked_where_it_has_neighbours(host, tmp_path):
    printed = json.dumps(
        {
            "Neighbors": [
                {
                    "InterfaceName": "eth1",
                    "Neighbors": [
                        {"ChassisID": "aa:01", "SystemName": "leaf01", "EnabledCapabilities": 20}
                    ],
                }
            ]
        }
    )
    built = host(networkctl=printed)
    assert topology.read_topology(built, INTERFACES) is None
    (tmp_path / "run/systemd/netif/lldp").mkdir(parents=True)
    (tmp_path / "run/systemd/netif/lldp/3").write_text("")
    assert topology.read_topology(built, INTERFACES) == {
        "source": "lldp",
        "group": "leaf01 (aa:01)",
    }


NODE_INFO = """# Node info: DR path slid 65535; dlid 65535; 0,1
BaseVers:........................1
ClassVers:.......................1
NodeType:........................{kind}
NumPorts:........................41
SystemGuid:......................0xb8cef60300c5e2e4
Guid:............................0xb8cef60300c5e2e5
PortGuid:........................0xb8cef60300c5e2e6
"""


@pytest.mark.parametrize(
    "kind, state, group",
    [
        ("Switch", "4: ACTIVE", "0xb8cef60300c5e2e5"),
        ("Channel Adapter", "4: ACTIVE", None),
        ("Switch", "1: DOWN", None),
    ],
)
def test_the_leaf_of_the_first_infiniband_port(host, tmp_path, kind, state, group):
    built = host(smpquery=NODE_INFO.format(kind=kind))
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "state").write_text(state + "\n")
    assert topology.read_topology(built, []) is None, "nobody may send a management packet"
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/umad0").write_text("")
    found = topology.read_topology(built, [])
    assert found == (group and {"source": "infiniband", "group": group})


@pytest.fixture
def metadata():
    """A metadata server; ``body`` and ``flavor`` are what it answers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        body, flavor = "/b1/s2/h3", "Google"

        def do_GET(self):
            asked = self.headers["Metadata-Flavor"] == "Google" and self.path.endswith(
                "/attributes/physical_host"
            )
            self.send_response(200 if asked else 404)
            self.send_header("Metadata-Flavor", self.flavor)
            self.end_headers()
            self.wfile.write(self.body.encode())

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address, Handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "product, body, flavor, group",
    [
        ("Google Compute Engine", "/b1/s2/h3", "Google", "b1/s2"),
        ("Google Compute Engine", "b1/s2/h3\n", "Google", "b1/s2"),
        ("Google Compute Engine", "b1", "Google", None),
        ("Google Compute Engine", "<html>", "Google", None),
        ("Google Compute Engine", "/b1/s2/h3", "Other", None),
        ("PowerEdge XE9680", "/b1/s2/h3", "Google", None),
    ],
)
def test_the_block_of_a_machine_in_a_cloud(host, tmp_path, metadata, product, body, flavor, group):
    address, handler = metadata
    handler.body, handler.flavor = body, flavor
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_name").write_text(product + "\n")
    found = topology.read_topology(host(), INTERFACES, address)
    assert found == (group and {"source": "gcp", "group": group})


# ---- groups ----


def at(group, source="lldp"):
    return {"topology": {"source": source, "group": group}}


def grouped(*places, labels=None):
    """Groups and their source for hosts n1, n2, ... at these places (None: unknown)."""
    hosts = {
        f"n{number}": {**facts(number), **(at(place) if isinstance(place, str) else place or {})}
        for number, place in enumerate(places, 1)
    }
    made = make(hosts, group_of=labels or {}, group_by="rack" if labels else None)
    return made["groups"], made["group_source"]


@pytest.mark.parametrize(
    "places, labels, expected",
    [
        ([None] * 3, {}, ([""] * 3, None)),
        ([None] * 3, {"n1": "r1"}, (["r1", "", ""], "labels")),
        (["a", "a", "b", "b"], {}, (["a", "a", "b", "b"], "lldp")),
        (["a", "a", "b", None], {}, (["a", "a", "b", ""], "lldp")),
        # The operator's labels win, and tell what a place is called.
        (
            ["a", "a", "b", "b"],
            {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"},
            (["r1", "r1", "r2", "r2"], "labels"),
        ),
        (["a", "a", "b", "b"], {"n1": "r1"}, (["r1", "r1", "b", "b"], "labels, lldp")),
        (["a", "a", "a", "b"], {"n1": "r1", "n2": "r2"}, (["r1", "r2", "", "b"], "labels, lldp")),
        # A device for each host is no group, nor is the place of a lone other source.
        (["a", "b", "c", "d"], {}, ([""] * 4, None)),
        (["a", "a", at("a", "gcp"), "a"], {}, (["a", "a", "", "a"], "lldp")),
        (["a", "a", at("a", "oracle"), at("")], {}, (["a", "a", "", ""], "lldp")),
    ],
)
def test_groups_are_from_labels_and_else_from_the_places_of_the_hosts(places, labels, expected):
    assert grouped(*places, labels=labels) == expected


@pytest.mark.parametrize(
    "told", [at("x" * 201), at("a\x1b[0m"), {"topology": "leaf01"}, {"topology": {"group": "a"}}]
)
def test_a_place_that_is_not_understood_is_none(told):
    assert "topology" not in read_facts({**facts(1), **told})


def test_hosts_without_a_group_are_a_hint():
    assert groups.group_hint(make(fleet(7))) is None
    assert groups.group_hint(make(fleet(8))).startswith("8 of 8 hosts have no group")
    some = make(fleet(9, n9=None), group_of={"n1": "r1", "n2": "r2"})
    assert groups.group_hint(some).startswith("6 of 8 hosts have no group")
    all_labelled = make(fleet(8), group_of={f"n{number}": "r1" for number in range(1, 9)})
    assert groups.group_hint(all_labelled) is None
    assert groups.group_hint({}) is None
