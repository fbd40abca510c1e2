# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network on paper: what every node of a plan would collect, given what is wrong with whom. For
tests of what judges a mesh.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

RATE = 9.4e9


@dataclass
class World:
    """Faults by name; a direction is ``(plane, from, to)``. Shares are of what is usual, 0 to 1."""

    seed: int = 0
    #: What is left of the rate where a host sends or receives: {(host, plane, "transmit" |
    #: "receive"): share}.
    slow: dict = field(default_factory=dict)
    #: What is left of the rate of single directions: {(plane, from, to): share}.
    links: dict = field(default_factory=dict)
    #: Share of packets lost in a direction: {(plane, from, to): share}.
    loss: dict = field(default_factory=dict)
    #: Directions in which nothing arrives, as a function of (plane, from, to).
    blocked: object = staticmethod(lambda plane, source, target: False)
    #: Directions in which large packets vanish, likewise.
    narrow: object = staticmethod(lambda plane, source, target: False)
    #: Directions in which no ping arrives although all else does, likewise.
    no_pings: object = staticmethod(lambda plane, source, target: False)
    #: Directions in which iperf3 connects and then ends without a figure, likewise.
    stalled: object = staticmethod(lambda plane, source, target: False)
    #: Median round trip in ms of a host's pings: {(host, plane): ms}; the slower end's counts.
    delays: dict = field(default_factory=dict)
    #: The largest packet that a host takes on a plane, header included: {(host, plane): bytes}.
    takes: dict = field(default_factory=dict)
    #: Hosts that collect nothing and answer nothing.
    dead: frozenset = frozenset()
    #: Hosts whose windows were all missed.
    late: frozenset = frozenset()
    #: Standard deviation of a rate, as a share of it.
    noise: float = 0.02
    cpu: float = 30.0

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def passes(self, plane, source, target):
        return not {source, target} & set(self.dead) and not self.blocked(plane, source, target)

    def readings(self, plan):
        """What mesh_run would return for every host of the plan."""
        found = {
            host: {
                "run": plan["run"],
                "pass": plan["pass"],
                "host": host,
                "state": "done",
                "reason": None,
                "late_seconds": 0.0,
                "windows": [],
            }
            for host in plan["hosts"]
            if host not in self.dead
        }
        for host, readings in found.items():
            readings["windows"] += (
                [self._late(window) for window in self._windows(plan, host)]
                if host in self.late
                else self._windows(plan, host)
            )
        return found

    @staticmethod
    def _late(window):
        kept = {
            key: window[key] for key in ("kind", "plane", "round", "peer", "side") if key in window
        }
        return {**kept, "error": {"reason": "late", "message": "was started too late"}}

    def _windows(self, plan, host):
        hosts, place = plan["hosts"], plan["hosts"].index(host)
        windows = []
        for plane, peers in zip(plan["planes"], (plan["ping"] or {}).get("peers", [])):
            targets = {
                hosts[peer]: self._ping(plan, plane["name"], host, hosts[peer])
                for peer in peers[place]
            }
            if targets:
                windows.append(
                    {"kind": "ping", "plane": plane["name"], "targets": targets, "error": None}
                )
        for number, one in enumerate((plan["pairs"] or {}).get("rounds", [])):
            for plane, client, server in one["pairs"]:
                if place in (client, server):
                    windows.append(
                        self._pair(
                            plan,
                            plan["planes"][plane]["name"],
                            number,
                            hosts[client],
                            hosts[server],
                            host,
                        )
                    )
        return windows

    def _ping(self, plan, plane, source, target):
        both = ((plane, source, target), (plane, target, source))
        there = all(self.passes(*way) and not self.no_pings(*way) for way in both)
        lost = 1 - (1 - self.loss.get((plane, source, target), 0)) * (
            1 - self.loss.get((plane, target, source), 0)
        )
        sent = plan["ping"]["count"]
        received = sum(self.random.random() >= lost for _ping in range(sent)) if there else 0
        delay = max(self.delays.get((host, plane), 0.1) for host in (source, target))
        times = (
            dict(p50_ms=delay, p99_ms=2 * delay, jitter_ms=0.01)
            if received
            else dict(p50_ms=None, p99_ms=None, jitter_ms=None)
        )
        wide = (
            received
            and not self.narrow(plane, source, target)
            and not self.narrow(plane, target, source)
        )
        own = self._member(plan, plane, source)
        wide = wide and (own["mtu"] or 1500) <= self.takes.get((target, plane), 1_000_000)
        big, size = (
            plan["ping"]["big_count"],
            (own["mtu"] or 1500) - (48 if ":" in own["address"] else 28),
        )
        return {
            "small": dict(sent=sent, received=received, **times),
            "big": dict(size=size, sent=big, received=big if wide else 0, **times),
        }

    @staticmethod
    def _member(plan, plane, host):
        return next(one for one in plan["planes"] if one["name"] == plane)["members"][
            plan["hosts"].index(host)
        ]

    def _pair(self, plan, plane, number, client, server, host):
        peer, side = (server, "client") if host == client else (client, "server")
        window = {
            "kind": "pair",
            "plane": plane,
            "round": number,
            "peer": peer,
            "side": side,
            "port": 5200,
            "error": None,
        }
        window["hello"] = {
            "sent": 8,
            "heard": 7 if self.passes(plane, peer, host) and peer not in self.late else 0,
            "offset_seconds": None,
        }
        if side == "client":
            ready = (
                peer not in self.late
                and self.passes(plane, client, server)
                and self.passes(plane, server, client)
            )
            silent = {"error": {"reason": "timeout", "message": "no connection within 0.4 s"}}
            window["legs"] = {
                "transmit": self._leg(plane, client, server) if ready else silent,
                "receive": self._leg(plane, server, client) if ready else silent,
            }
        return window

    def _leg(self, plane, source, target):
        if self.stalled(plane, source, target):
            return {
                "error": {
                    "reason": "timeout",
                    "message": "iperf3 was not done within 3.6 s and was ended",
                }
            }
        share = min(
            self.slow.get((source, plane, "transmit"), 1),
            self.slow.get((target, plane, "receive"), 1),
            self.links.get((plane, source, target), 1),
        )
        if self.loss.get((plane, source, target)):
            share = min(share, 0.1)
        if self.narrow(plane, source, target):
            share = 0.0
        rate = RATE * share * min(1.01, self.random.gauss(1, self.noise))
        return dict(
            bits_per_second=rate,
            retransmits=0 if share == 1 else 900,
            seconds=3.0,
            cpu_local_percent=self.cpu,
            cpu_remote_percent=self.cpu,
        )
