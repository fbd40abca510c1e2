# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox cluster whose racks are joined by a leaf-spine fabric of routers, with ECMP by flow hash.

    with LeafSpine(hosts=12, racks=3, spines=4, uplink_mbit=100) as fabric:
        fabric.slow_spine("s2", 10)

    eth1         the only data plane; each rack has a bridge and a network of its own
                 10.79.<rack>.0/24
    leaf-r1 ...  a router (network namespace) for each rack, the gateway of its hosts
    spine-s1 ... a router for each spine, with one link to each leaf; both ends are shaped by tbf

A leaf picks the spine of a TCP connection by its addresses and ports, as switches do
(`fib_multipath_hash_policy`). Pings have no ports: all pings between two hosts take one path.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster import MANAGEMENT, Cluster, _batch, _shaper

_PLANE = "eth1"
_FLAPPER = Path(__file__).parent / "flapper.py"


class LeafSpine(Cluster):
    """See the top of this file. ``uplink_mbit`` is the rate of each link between a leaf and a
    spine, in Mbit/s.
    """

    planes = (_PLANE,)

    def __init__(self, hosts=12, racks=3, spines=4, uplink_mbit=100, link_mtu=1500, **settings):
        super().__init__(hosts=hosts, racks=racks, **settings)
        self.spines = [f"s{number}" for number in range(1, spines + 1)]
        self.uplink_mbit = uplink_mbit
        self.link_mtu = link_mtu
        self._uplinks_shaped = set()
        self._routers_dropping = set()
        self._leaves_down = set()
        self.flappers = []

    # ---- what is where ----

    @property
    def rack_names(self) -> list:
        return sorted(set(self.racks.values()))

    @property
    def routers(self) -> list:
        """Names of the routers' namespaces."""
        return [f"leaf-{rack}" for rack in self.rack_names] + [
            f"spine-{spine}" for spine in self.spines
        ]

    def hosts_of(self, rack) -> list:
        return [host for host in self.hosts if self.racks[host] == rack]

    def address(self, host, plane=MANAGEMENT, family=4) -> str:
        if plane != _PLANE or family != 4 or host not in self.racks:
            return super().address(host, plane, family)
        return f"10.79.{self._place(self.racks[host])}.{self._number(host)}"

    def _place(self, rack) -> int:
        return self.rack_names.index(rack) + 1

    def _uplink(self, rack, spine, end) -> str:
        """Address of the leaf's or the spine's end of an uplink."""
        network = 4 * (self.spines.index(spine) + 1)
        return f"10.80.{self._place(rack)}.{network + ('leaf', 'spine').index(end) + 1}"

    # ---- making ----

    def _trunks(self) -> list:
        batch = [f"netns add leaf-{rack}" for rack in self.rack_names]
        batch += [f"netns add spine-{spine}" for spine in self.spines]
        mtu = f"mtu {self.link_mtu}"
        for rack in self.rack_names:
            port = f"{_PLANE}-{rack}-up"
            batch += [
                f"link add {port} {mtu} type veth peer name rack {mtu} netns leaf-{rack}",
                f"link set {port} master {_PLANE}-{rack}",
                f"link set {port} up",
            ]
            batch += [
                f"link add {spine} {mtu} netns leaf-{rack} type veth peer name {rack} {mtu} "
                f"netns spine-{spine}"
                for spine in self.spines
            ]
        return batch

    def _routers(self) -> list:
        script = []
        shaper = _shaper(self.uplink_mbit, None)
        for rack in self.rack_names:
            ip = [f"addr add 10.79.{self._place(rack)}.254/24 dev rack"]
            ip += [
                f"addr add {self._uplink(rack, spine, 'leaf')}/30 dev {spine}"
                for spine in self.spines
            ]
            ip += [f"link set {link} up" for link in ("lo", "rack", *self.spines)]
            ways = [f"nexthop via {self._uplink(rack, spine, 'spine')}" for spine in self.spines]
            ip.append(f"route add 10.79.0.0/16 {' '.join(ways)}")
            script += self._router(f"leaf-{rack}", ip, [(spine, shaper) for spine in self.spines])
        for spine in self.spines:
            ip = []
            for rack in self.rack_names:
                ip += [
                    f"addr add {self._uplink(rack, spine, 'spine')}/30 dev {rack}",
                    f"link set {rack} up",
                    f"route add 10.79.{self._place(rack)}.0/24 via "
                    f"{self._uplink(rack, spine, 'leaf')}",
                ]
            script += self._router(
                f"spine-{spine}", ip, [(rack, shaper) for rack in self.rack_names]
            )
        return script

    @staticmethod
    def _router(name, ip, shapers) -> list:
        tc = [f"qdisc add dev {device} root {shaper}" for device, shaper in shapers]
        return [
            f"ip netns exec {name} sh -e <<'ROUTER'",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "echo 1 > /proc/sys/net/ipv4/fib_multipath_hash_policy",
            "for name in all default; do echo 0 > /proc/sys/net/ipv4/conf/$name/rp_filter; done",
            _batch("ip", ip),
            _batch("tc", tc),
            "ROUTER",
        ]

    def _addressing(self, name, link) -> list:
        if link != _PLANE:
            return super()._addressing(name, link)
        gateway = f"10.79.{self._place(self.racks[name])}.254"
        return [
            f"addr add {self.address(name, link)}/24 dev {link}",
            f"link set {link} mtu {self.link_mtu}",
            f"route add 10.79.0.0/16 via {gateway} dev {link}",
        ]

    # ---- faults ----

    def slow_uplink(self, rack, spine, mbit):
        """One link between a leaf and a spine has this rate in both directions."""
        self._uplinks_shaped.add((rack, spine))
        self._shape_uplink(rack, spine, mbit)

    def slow_spine(self, spine, mbit):
        for rack in self.rack_names:
            self.slow_uplink(rack, spine, mbit)

    def slow_uplinks(self, rack, mbit):
        for spine in self.spines:
            self.slow_uplink(rack, spine, mbit)

    def slow_leaf(self, rack, mbit):
        """All ports to the hosts of a rack have this rate in both directions."""
        for host in self.hosts_of(rack):
            self.slow(host, _PLANE, mbit)

    def leaf_down(self, rack):
        """The leaf forwards nothing, neither within its rack nor to spines; carriers stay up."""
        self._leaves_down.add(rack)
        self._fabric("ip", [f"link set {_PLANE}-{rack} down"])

    def lossy_spine(self, spine, percent):
        """So many percent of the packets through a spine are lost."""
        self._drop_at(spine, f"numgen random mod 10000 < {round(percent * 100)}")

    def spine_mtu(self, spine, limit=1500):
        """The spine loses packets of more bytes than this, silently."""
        self._drop_at(spine, f"meta length > {limit}")

    def lossy_link(self, one, other, plane, percent, one_way=False):
        for source, target in [(one, other)] if one_way else [(one, other), (other, one)]:
            self._drop(
                f"iifname {self._port(source, plane)} ip daddr {self.address(target, plane)}",
                percent,
            )

    def flap(self, host, mbit, start, period):
        """From ``start`` on (Unix seconds), the host's link has this rate in every second period
        of so many seconds.
        """
        shapers = [
            (place, device, [_shaper(rate, place) for rate in (self.rate_mbit, mbit)])
            for place, device in ((host, _PLANE), (None, self._port(host, _PLANE)))
        ]
        commands = [
            [
                ["tc", *(["-n", place] if place else []), "qdisc", "change", "dev", device, "root"]
                + rates[index].split()
                for place, device, rates in shapers
            ]
            for index in (0, 1)
        ]
        self._shaped.update((place, device) for place, device, _rates in shapers)
        self._stop_flappers()
        self.flappers.append(
            self.popen(
                [sys.executable, "-I", "-S", _FLAPPER, repr(start), repr(period), repr(commands)],
                stdin=subprocess.DEVNULL,
            )
        )

    def heal(self):
        self._stop_flappers()
        for rack, spine in sorted(self._uplinks_shaped):
            self._shape_uplink(rack, spine, self.uplink_mbit)
        self._uplinks_shaped.clear()
        for spine in sorted(self._routers_dropping):
            self._load_router_rule(spine, None)
        self._routers_dropping.clear()
        self._fabric("ip", [f"link set {_PLANE}-{rack} up" for rack in sorted(self._leaves_down)])
        self._leaves_down.clear()
        super().heal()

    def close(self):
        self._stop_flappers()
        super().close()

    def _stop_flappers(self):
        while self.flappers:
            self.kill(self.flappers.pop())

    def _shape_uplink(self, rack, spine, mbit):
        for namespace, device in ((f"leaf-{rack}", spine), (f"spine-{spine}", rack)):
            self._fabric("tc", [f"qdisc change dev {device} root {_shaper(mbit, None)}"], namespace)

    def _drop_at(self, spine, match):
        self._routers_dropping.add(spine)
        self._load_router_rule(spine, match)

    def _load_router_rule(self, spine, match):
        lines = ["table ip faults", "delete table ip faults"]
        if match:
            lines += [
                "table ip faults {",
                "chain forward {",
                "type filter hook forward priority 0",
                f"{match} counter drop",
                "}",
                "}",
            ]
        self._inside(
            "ip", "netns", "exec", f"spine-{spine}", "nft", "-f", "-", input="\n".join([*lines, ""])
        )
