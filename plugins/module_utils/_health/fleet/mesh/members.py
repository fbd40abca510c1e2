# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Choose the members of a mesh: which hosts take part on which planes with which interfaces, from
the hosts' facts. Pure.

A plane is a network that connects hosts: interfaces of the same name, interfaces at the same
position of the operator's lists, or ports of HCAs of the same name. A host that cannot take part is
excluded with a finding that gives the reason; no host is dropped silently.
"""

from __future__ import annotations

import re
from collections import Counter
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ...model import FAIL, SKIP, UNKNOWN, WARN, Finding, Subject
from ...node_names import natural
from .documents import (
    HostAddress,
    HostClock,
    HostFacts,
    HostHca,
    HostInterface,
    LeftOut,
    Plane,
    PlaneMember,
    PlannedFinding,
    program_of,
)
from .planning.groups import group_hosts
from .probes.record import ADDRESS, HCA
from .probes.registry import BY_CHECK, DEFAULT_CHECKS, PROBES

Facts = Optional[HostFacts]

#: Seconds that a clock may differ from the fleet's median. NTP keeps clocks within milliseconds of
#: each other, over the Internet too (README of chrony, "typical accuracy"). The plan corrects for
#: the difference, so the finding is about the host and not about the run.
CLOCK_OFFSET = 1.0
#: Maximum uncertainty of a clock in seconds: the gap between two rounds. Beyond it the host might
#: send during another pair's round.
CLOCK_DOUBT = 1.0

#: Name prefixes and kinds of virtual interfaces (containers, virtual machines, tunnels): their
#: packets leave through another interface.
_INNER_NAMES = re.compile(
    r"lo$|docker|virbr|vnet|cni|flannel|cali|cilium|lxc|lxd|veth|tunl|kube|nodelocaldns|dummy|"
    r"vxlan|geneve|genev_|tun|tap|wg|weave|antrea|ovn|ovs|podman|"
    r"nerdctl|tailscale|zt|ifb|sit|gre|erspan|ip6tnl|br-[0-9a-f]{12}$"
)
_INNER_KINDS = (
    "dummy",
    "tun",
    "wireguard",
    "vxlan",
    "geneve",
    "ipip",
    "ip6tnl",
    "sit",
    "gre",
    "gretap",
    "ip6gre",
    "vti",
    "ifb",
    "nlmon",
    "xfrm",
)
#: Names of the interfaces of InfiniBand ports, by the kernel and by udev.
_IPOIB = re.compile(r"ib(\d+|p\d+|s\d+)")
#: Minimum share of other hosts that use an automatically chosen interface before a host gets a
#: finding for no carrier on its own; and before a host with fewer interfaces gets a finding for the
#: missing ones. A fleet may have several kinds of nodes.
_MOST, _NEARLY_ALL = 0.5, 0.75
#: Maximum number of planes of HCAs. A host has up to 8 rails today; hosts that report many ports must
#: not take the ports of the servers from the rails of all others.
_MOST_RAILS = 16
#: Share of the usual link speed up to which a port counts as trained down: a link that loses lanes
#: or falls back to an older rate runs at half its speed or less.
_TRAINED_DOWN = 0.5
#: Number and share of hosts with the same low speed from which they count as a kind of their own,
#: unless their network cards are known to be those of the others.
_KIND, _KIND_SHARE = 2, 0.05


class MeshSettings(NamedTuple):
    """The operator's settings. ``options`` holds the validated options of each check."""

    checks: Sequence[str] = DEFAULT_CHECKS
    #: Rounds on each plane, or "all" for every pair.
    rounds: Union[int, str] = 5
    #: Interface names by host; without an entry, or with an empty list, interfaces are chosen
    #: automatically.
    interfaces: Mapping[str, Sequence[str]] = {}
    #: Class of the automatically chosen interfaces: ``data`` (or None), those without the default
    #: route if there are any; ``mgmt``, the one with the default route.
    plane_class: Optional[str] = None
    #: True if all planes carry traffic at the same time; ``auto``: where the hosts can carry it.
    together: Union[bool, str] = False
    seed: int = 0
    #: Group of each host by name, and the kind of group (``rack``).
    group_of: Mapping[str, str] = {}
    group_by: Optional[str] = None
    options: Mapping[str, Mapping[str, Any]] = {}
    #: Seconds from now to the first window.
    lead_seconds: float = 5.0


class Members:
    """Hosts in natural order, referred to by place, and the planes that connect them."""

    def __init__(self, hosts: Mapping[str, Facts], settings: MeshSettings) -> None:
        self.settings = settings
        self.hosts = sorted(hosts, key=natural)
        self.facts = [hosts[host] for host in self.hosts]
        self.clocks = [clock_of(facts) for facts in self.facts]
        self.groups, self.group_source = group_hosts(self.hosts, self.facts, settings.group_of)
        self.left_out: List[LeftOut] = []
        family = next(
            (own["family"] for own in settings.options.values() if own.get("family")), "auto"
        )
        self._families = (4, 6) if family == "auto" else (int(family),)
        self._present = [place for place in range(len(self.hosts)) if self._is_present(place)]
        self._interfaces = [
            {one["name"]: one for one in facts["interfaces"]} if facts else {}
            for facts in self.facts
        ]
        #: Hosts of which only the management interface was found, while data was to be measured.
        self._only_management: Set[int] = set()
        self.planes: List[Plane] = []
        endpoints = {BY_CHECK[check].endpoint for check in settings.checks}
        if ADDRESS in endpoints:
            chosen_interfaces = self._choose()
            self.planes += [self._plane(name, own) for name, own in chosen_interfaces.items()]
        if HCA in endpoints:
            self.planes += self._hca_planes()
        self.planes = [plane for plane in self.planes if any(plane["members"])]

    def able(self, check: str) -> List[List[int]]:
        """Places of the hosts that can run a check, by plane. Hosts that cannot, or that have no
        partner, are recorded in ``left_out``.
        """
        kept = set()
        for place in self._present:
            finding = self._unable(place, check)
            if finding:
                self._leave_out(place, finding, check=check)
            else:
                kept.add(place)
        found = []
        for plane in self.planes:
            places = [
                place
                for place, member in enumerate(plane["members"])
                if member and place in kept and endpoint_of(plane) == BY_CHECK[check].endpoint
            ]
            if len(places) == 1:
                interface = member_at(plane, places[0])["interface"]
                self._leave_out(
                    places[0],
                    _no_partner(interface, f"no other host of {plane['name']} can run {check}"),
                    plane["name"],
                    check,
                )
                places = []
            found.append(places)
        return found

    def off_clocks(self) -> List[PlannedFinding]:
        """A finding for each clock that is off; the host still takes part."""
        clocks = [
            (place, clock)
            for place, clock in ((place, self.clocks[place]) for place in self._present)
            if clock
        ]
        usual = median([clock["offset_seconds"] for _place, clock in clocks] or [0.0])
        check = next(probe.check for probe in PROBES if probe.check in self.settings.checks)
        found: List[PlannedFinding] = []
        for place, clock in clocks:
            off, doubt = clock["offset_seconds"] - usual, clock["uncertainty_seconds"]
            if abs(off) - doubt > CLOCK_OFFSET:
                way = "ahead of" if off > 0 else "behind"
                message = (
                    f"clock is {abs(off):.1f} s {way} the fleet's median (read to "
                    f"{doubt:.2f} s); check NTP or chrony"
                )
                evidence = {
                    "offset_seconds": round(off, 3),
                    "uncertainty_seconds": doubt,
                    "hosts": len(clocks),
                }
                finding = Finding(
                    "clock_offset", WARN, message, "fix_configuration", evidence=evidence
                )
                found.append(
                    {"host": self.hosts[place], "check": check, "finding": finding.to_dict()}
                )
        return found

    def odd_links(self) -> List[PlannedFinding]:
        """A finding for each link that is slower than nearly all others on its plane, or has
        another MTU. The host still takes part and is measured against the speed of its own link.
        """
        found: List[PlannedFinding] = []
        for plane in self.planes:
            check = self._last_check_of(plane)
            members = {place: member for place, member in enumerate(plane["members"]) if member}
            properties: Tuple[Tuple[str, float, Dict[int, Optional[float]]], ...] = (
                (
                    "link_speed_differs",
                    1e9,
                    {place: one["speed"] for place, one in members.items()},
                ),
                ("mtu_differs", 1, {place: one["mtu"] for place, one in members.items()}),
            )
            for code, unit, given in properties:
                values = {place: value for place, value in given.items() if value}
                usual, times = Counter(values.values()).most_common(1)[0] if values else (0, 0)
                usual_places = {place for place, value in values.items() if value == usual}
                for place, value in values.items():
                    is_speed = code == "link_speed_differs"
                    if (
                        value == usual
                        or (is_speed and value > usual)
                        or times < 2
                        or times < _NEARLY_ALL * (len(values) - 1)
                    ):
                        continue
                    trained_down = (
                        is_speed
                        and value <= _TRAINED_DOWN * usual
                        # Where few hosts tell their speed, these are not most of the fleet.
                        and 2 * times >= len(members)
                        and not self._is_population(place, members, usual_places)
                    )
                    finding = _odd(
                        code,
                        members[place]["interface"],
                        value / unit,
                        usual / unit,
                        times,
                        trained_down,
                    )
                    found.append(
                        {"host": self.hosts[place], "check": check, "finding": finding.to_dict()}
                    )
        return found

    def unmeasured_fabrics(self, able: Mapping[str, List[List[int]]]) -> List[PlannedFinding]:
        """A finding for each host that is measured over its management interface only, although it
        has active InfiniBand ports, which no check of the plan measures: the result of such a check
        says nothing about the network that jobs use. ``able``: the result of `able` by check.
        """
        measured = {
            place
            for check, places in able.items()
            if BY_CHECK[check].endpoint == HCA
            for some in places
            for place in some
        }
        checks = [check for check in able if BY_CHECK[check].endpoint == ADDRESS]
        instead = " or ".join(probe.check for probe in PROBES if probe.endpoint == HCA)
        found: List[PlannedFinding] = []
        for place in sorted(self._only_management - measured):
            facts = self.facts[place]
            ports = (
                [name_of(hca) for hca in _infiniband(facts)] or _infiniband_interfaces(facts)
                if facts
                else []
            )
            if not ports:
                continue
            names = ", ".join(ports[:8]) + (", ..." if len(ports) > 8 else "")
            message = (
                "only the management interface was measured: the active InfiniBand ports "
                f"({names}) have no IP address; run {instead}, or configure IPoIB"
            )
            finding = Finding(
                "fabric_not_measured",
                UNKNOWN,
                message,
                "fix_configuration",
                evidence={"ports": ports},
            )
            found += [
                {"host": self.hosts[place], "check": check, "finding": finding.to_dict()}
                for check in checks
            ]
        return found

    def _last_check_of(self, plane: Plane) -> str:
        """The last of the checks that measure on a plane."""
        probes = [probe for probe in PROBES if probe.endpoint == endpoint_of(plane)]
        return [probe.check for probe in probes if probe.check in self.settings.checks][-1]

    def _is_population(
        self, place: int, members: Mapping[int, PlaneMember], usual_places: Set[int]
    ) -> bool:
        """True if a slow link has another explanation than the port: no host with the usual speed
        has the same network card, so many hosts have this speed that they may be of another kind,
        or all hosts of its group have it.
        """
        model = self._model(place, members[place]["interface"])
        usual_models = {
            self._model(other, members[other]["interface"]) for other in usual_places
        } - {None}
        if model and usual_models and model not in usual_models:
            return True
        equal = sum(member["speed"] == members[place]["speed"] for member in members.values())
        is_known = model and model in usual_models
        if not is_known and equal >= max(_KIND, _KIND_SHARE * len(members)):
            return True
        group = self.groups[place]
        alike = [other for other in members if group and self.groups[other] == group]
        return len(alike) > 1 and all(
            members[other]["speed"] == members[place]["speed"] for other in alike
        )

    def _model(self, place: int, name: str) -> Optional[str]:
        """The model of a network card, None if the host did not report it."""
        return self._interfaces[place].get(name, HostInterface()).get("model")

    def _leave_out(
        self,
        place: int,
        finding: Finding,
        plane: Optional[str] = None,
        check: Optional[str] = None,
        endpoint: Optional[str] = ADDRESS,
    ) -> None:
        """Exclude a host from a plane, from a check, or from all checks between such endpoints
        (None: from all).
        """
        self.left_out.append(
            {
                "host": self.hosts[place],
                "plane": plane,
                "check": check,
                "endpoint": None if check else endpoint,
                "finding": finding.to_dict(),
            }
        )

    def _is_present(self, place: int) -> bool:
        facts, clock = self.facts[place], self.clocks[place]
        if facts is None:
            message = (
                "excluded from the mesh: unreachable, or it did not report its interfaces and tools"
            )
            finding = Finding("not_in_mesh", UNKNOWN, message, "watch")
        elif len(self.hosts) == 1:
            finding = Finding("no_partner", SKIP, "the only host: no partner to measure with")
        elif facts.get("error", {}).get("reason") == "late":
            message = f"excluded from the mesh: {facts['error'].get('message')}"
            finding = Finding("not_in_mesh", UNKNOWN, message, "watch")
        elif "error" in facts:
            error = facts["error"]
            why = "" if error.get("reason") == "twin" else "its interfaces could not be read: "
            message = f"excluded from the mesh: {why}{error.get('message')}"
            finding = Finding("interfaces_not_read", UNKNOWN, message, "watch", evidence=error)
        elif not clock:
            message = (
                "excluded from the mesh, which is scheduled by clock: "
                f"{facts.get('clock_error') or 'its clock was not read'}"
            )
            finding = Finding("clock_not_read", UNKNOWN, message, "watch")
        elif clock["uncertainty_seconds"] > CLOCK_DOUBT:
            doubt = clock["uncertainty_seconds"]
            message = (
                f"the clock could be read only to {doubt:.1f} s; beyond "
                f"{CLOCK_DOUBT:.0f} s its traffic could overlap other rounds"
            )
            finding = Finding(
                "clock_not_read", UNKNOWN, message, "watch", evidence={"uncertainty_seconds": doubt}
            )
        else:
            return True
        self._leave_out(place, finding, endpoint=None)
        return False

    # ---- which interfaces ----

    def _choose(self) -> Dict[str, Dict[int, HostInterface]]:
        """The interface of each host on each plane, by the plane's name."""
        positions = self._positions()
        planes: Dict[str, Dict[int, HostInterface]] = {name: {} for name in positions}
        unnamed = []
        for place in self._present:
            names = self.settings.interfaces.get(self.hosts[place]) or []
            if not names:
                unnamed.append(place)
            for plane, name in zip(positions, names):
                trouble = self._trouble(place, name)
                if trouble:
                    self._leave_out(place, trouble, plane)
                else:
                    planes[plane][place] = self._interfaces[place][name]
        by_name: Dict[str, Dict[int, HostInterface]] = {}
        for place, chosen in self._by_themselves(unnamed).items():
            for name, interface in chosen.items():
                by_name.setdefault(name, {})[place] = interface
        for name in sorted(by_name, key=natural):
            planes.setdefault(name, {}).update(by_name[name])
        return planes

    def _positions(self) -> List[str]:
        """Plane names for hosts with interface lists: the most common name at each position of the
        lists.
        """
        lists = [self.settings.interfaces.get(host) or [] for host in self.hosts]
        names: List[str] = []
        for position in range(max((len(one) for one in lists), default=0)):
            common = [
                name
                for name, _times in Counter(
                    one[position] for one in lists if len(one) > position
                ).most_common()
            ]
            names.append(
                next((name for name in common if name not in names), f"{common[0]}@{position + 1}")
            )
        return names

    def _by_themselves(self, places: List[int]) -> Dict[int, Dict[str, HostInterface]]:
        """Automatically chosen interfaces of hosts without interface lists, by interface name."""
        usable = self._usable(places)
        chosen = {place: self._of_class(usable[place]) for place in places}
        # Only missing data interfaces are reported: the management interface carried the
        # connection.
        holders = Counter(
            name
            for own in chosen.values()
            for name, one in own.items()
            if not one.get("default_route")
        )
        others = len(places) - 1
        common = [
            name
            for name in sorted(holders, key=natural)
            if holders[name] >= 2 and holders[name] > _MOST * others
        ]
        for place in places:
            own = chosen[place]
            own.update({name: usable[place][name] for name in common if name in usable[place]})
            fewer = sum(not one.get("default_route") for one in own.values()) < len(common)
            lacking = False
            for name in [name for name in common if name not in own]:
                trouble = self._trouble(place, name) or _without_address(name, self._families)
                if trouble.code == "no_carrier" or (
                    fewer and holders[name] >= _NEARLY_ALL * others
                ):
                    lacking = True
                    message = f"{trouble.message}; {holders[name]} of {others} other hosts use this interface"
                    self._leave_out(
                        place,
                        Finding(
                            trouble.code, trouble.status, message, trouble.action, trouble.subject
                        ),
                        name,
                    )
            if (
                lacking
            ):  # and the way by which it was reached instead is not what was to be measured
                chosen[place] = {
                    name: one
                    for name, one in own.items()
                    if name in common or not one.get("default_route")
                }
            elif not own:
                self._leave_out(place, self._nothing(place))
            if (
                self.settings.plane_class != "mgmt"
                and chosen[place]
                and all(one.get("default_route") for one in chosen[place].values())
            ):
                self._only_management.add(place)
        return chosen

    def _usable(self, places: List[int]) -> Dict[int, Dict[str, HostInterface]]:
        """Interfaces that lead to other hosts: up, with carrier, and without an address that all
        hosts share.
        """
        found = {
            place: {
                name: one for name, one in self._interfaces[place].items() if self._leads_out(one)
            }
            for place in places
        }
        private = _private([one for own in found.values() for one in own.values()])
        return {
            place: {name: one for name, one in own.items() if name not in private}
            for place, own in found.items()
        }

    def _leads_out(self, interface: HostInterface) -> bool:
        inner = _INNER_NAMES.match(interface["name"]) or interface.get("kind") in _INNER_KINDS
        # A link-local IPv4 address belongs to the connection to the host's own service processor
        # (BMC).
        reachable = [
            one
            for one in _addresses(interface, self._families)
            if not one["address"].startswith("169.254.")
        ]
        return bool(
            not inner
            and interface.get("up")
            and interface.get("carrier") is not False
            and reachable
        )

    def _of_class(self, usable: Dict[str, HostInterface]) -> Dict[str, HostInterface]:
        management = {name: one for name, one in usable.items() if one.get("default_route")}
        data = {name: one for name, one in usable.items() if not one.get("default_route")}
        return management if self.settings.plane_class == "mgmt" else data or management

    def _nothing(self, place: int) -> Finding:
        what = (
            "no interface with the default route"
            if self.settings.plane_class == "mgmt"
            else "no interface"
        )
        message = (
            f"{what} is up with a carrier and an address of its own; the host "
            f"has: {self._names(place)}"
        )
        return Finding("interface_without_address", UNKNOWN, message, "fix_configuration")

    def _trouble(self, place: int, name: str) -> Optional[Finding]:
        """The reason why an interface is unusable, apart from its address."""
        subject, interface = Subject("interface", name=name), self._interfaces[place].get(name)
        if interface is None:
            return Finding(
                "interface_missing",
                UNKNOWN,
                f"no such interface; the host has: {self._names(place)}",
                "fix_configuration",
                subject,
            )
        if not interface.get("up"):
            return Finding(
                "interface_down", UNKNOWN, "it is set down", "fix_configuration", subject
            )
        if interface.get("carrier") is False:
            return Finding(
                "no_carrier",
                FAIL,
                "no carrier; check the cable, transceiver, switch port and network card",
                "drain_node",
                subject,
            )
        return None

    def _names(self, place: int) -> str:
        return ", ".join(sorted(self._interfaces[place], key=natural)) or "none"

    # ---- planes and checks ----

    def _plane(self, name: str, chosen: Mapping[int, HostInterface]) -> Plane:
        """Build a plane from its interfaces, without interfaces that lack an address of the plane's
        family or share an address with another host.
        """
        holders = {
            family: sum(1 for one in chosen.values() if _addresses(one, (family,)))
            for family in self._families
        }
        family = max(self._families, key=lambda one: holders[one])  # the first, IPv4, of equals
        times = Counter(
            one["address"]
            for interface in chosen.values()
            for one in _addresses(interface, (family,))
        )
        addresses: Dict[int, str] = {}
        for place, interface in chosen.items():
            own = sorted(
                (one["address"] for one in _addresses(interface, (family,))),
                key=lambda address: times[address] > 1,
            )
            if own:
                addresses[place] = own[0]
            else:
                self._leave_out(place, _without_address(interface["name"], (family,)), name)
        unique = {}
        for place, address in addresses.items():
            others = (
                [
                    self.hosts[other]
                    for other, same in addresses.items()
                    if same == address and other != place
                ]
                if times[address] > 1
                else []
            )
            if others:
                self._leave_out(place, _duplicate(chosen[place]["name"], address, others), name)
            else:
                unique[place] = address
        if len(unique) == 1:
            place = next(iter(unique))
            self._leave_out(
                place,
                _no_partner(chosen[place]["name"], f"no other host takes part on {name}"),
                name,
            )
            unique = {}
        members: List[Optional[PlaneMember]] = [None] * len(self.hosts)
        for place, address in unique.items():
            interface = chosen[place]
            members[place] = {
                "interface": interface["name"],
                "address": address,
                "mtu": interface.get("mtu"),
                "speed": interface.get("speed"),
            }
        return {"name": name, "members": members}

    def _unable(self, place: int, check: str) -> Optional[Finding]:
        facts, probe = self.facts[place] or HostFacts(), BY_CHECK[check]
        found = program_of(facts, probe.program)
        if not found.get("path"):
            return Finding(
                f"{probe.program}_missing",
                UNKNOWN,
                f"{probe.program} cannot be used: {found.get('error') or 'it was not found'}",
                "fix_configuration",
            )
        busy = [Finding.from_dict(one) for one in facts.get("busy", [])]
        if probe.loads and busy and not self.settings.options[check].get("force"):
            # One reason is enough; a known reason is better than an unknown state.
            return min(busy, key=lambda finding: finding.status != SKIP)
        return None

    # ---- ports of HCAs ----

    def _hca_planes(self) -> List[Plane]:
        """A plane for each port of HCAs that several hosts have: ``mlx5_0:1``."""
        wanted = self._wanted_hcas()
        ports: Dict[int, Dict[str, HostHca]] = {
            place: _data_ports(self.facts[place], wanted) for place in self._present
        }
        meeting = self._meeting_points([place for place in self._present if ports[place]])
        for place in self._present:
            if not ports[place]:
                self._leave_out(place, self._no_hcas(place, wanted), endpoint=HCA)
            elif place not in meeting:
                message = (
                    "no address that other hosts can reach, at which the two ends of a "
                    "measurement find each other"
                )
                finding = Finding(
                    "interface_without_address", UNKNOWN, message, "fix_configuration"
                )
                self._leave_out(place, finding, endpoint=HCA)
        holders = Counter(name for place in meeting for name in ports[place])
        # The first by name of equals.
        order = sorted(holders, key=lambda name: (-holders[name], natural(name)))
        for place in meeting:
            beyond = [name for name in order[_MOST_RAILS:] if name in ports[place]]
            if beyond:
                message = (
                    f"{beyond[0]} and {len(beyond) - 1} more ports are not measured: only the "
                    f"{_MOST_RAILS} port names that most hosts have are; name ports with devices"
                )
                finding = Finding("too_many_hca_ports", UNKNOWN, message, "fix_configuration")
                self._leave_out(place, finding, beyond[0], endpoint=HCA)
        names = sorted(order[:_MOST_RAILS], key=natural)
        return [self._hca_plane(name, ports, meeting) for name in names]

    def _wanted_hcas(self) -> Sequence[str]:
        """The devices and ports that the operator named; none: all."""
        named = (
            self.settings.options.get(check, {}).get("devices")
            for check in self.settings.checks
            if BY_CHECK[check].endpoint == HCA
        )
        return next((devices for devices in named if devices), [])

    def _no_hcas(self, place: int, wanted: Sequence[str]) -> Finding:
        facts = self.facts[place]
        hcas = facts.get("hcas", []) if facts else []
        if not hcas:
            return Finding("no_hca", SKIP, "the host has no InfiniBand or RoCE card")
        has = ", ".join(f"{name_of(hca)} {hca.get('state')}" for hca in hcas[:8])
        which = f" of {', '.join(wanted)}" if wanted else " for data"
        return Finding(
            "no_active_hca_port",
            UNKNOWN,
            f"no port{which} is active; the host has: {has}",
            "fix_configuration",
        )

    def _meeting_points(self, places: List[int]) -> Dict[int, Tuple[str, str]]:
        """The interface and address of each host at which its peers find it: any address that they
        can reach, of the management network if there is one, and of the same family on all hosts.
        """
        usable = self._usable(places)
        found: List[Dict[int, Tuple[str, str]]] = []
        for family in self._families:
            own: Dict[int, Tuple[str, str]] = {}
            for place in places:
                ordered = sorted(
                    usable[place].values(),
                    key=lambda one: (not one.get("default_route"), natural(one["name"])),
                )
                for interface in ordered:
                    for one in _addresses(interface, (family,)):
                        own.setdefault(place, (interface["name"], one["address"]))
            found.append(own)
        best = max(found, key=len)  # the first, IPv4, of equals
        times = Counter(address for _interface, address in best.values())
        for place, (name, address) in best.items():
            if times[address] > 1:
                others = [
                    self.hosts[other]
                    for other, (_other_name, same) in best.items()
                    if same == address and other != place
                ]
                self._leave_out(place, _duplicate(name, address, others), endpoint=HCA)
        return {place: end for place, end in best.items() if times[end[1]] == 1}

    def _hca_plane(
        self,
        name: str,
        ports: Mapping[int, Mapping[str, HostHca]],
        meeting: Mapping[int, Tuple[str, str]],
    ) -> Plane:
        """The plane of one port name: its active ports of the link layer that most hosts have."""
        active = {
            place: ports[place][name]
            for place in meeting
            if name in ports[place] and ports[place][name].get("active")
        }
        layers = Counter(hca.get("link_layer") for hca in active.values())
        layer = layers.most_common(1)[0][0] if layers else None
        others = len(meeting) - 1
        members: List[Optional[PlaneMember]] = [None] * len(self.hosts)
        for place in meeting:
            hca = ports[place].get(name)
            subject = Subject("port", name=name)
            if place in active and hca and hca.get("link_layer") == layer:
                interface, address = meeting[place]
                members[place] = {
                    "interface": name,
                    "address": address,
                    "via": interface,
                    "mtu": None,
                    "speed": hca.get("speed"),
                    "endpoint": {
                        "device": hca["device"],
                        "port": hca["port"],
                        "gid_index": hca.get("gid_index"),
                        "netdev": hca.get("netdev"),
                        "gpu": hca.get("gpu"),
                    },
                }
            elif place in active and hca:
                message = (
                    f"the link layer is {hca.get('link_layer')}, expected {layer} as on "
                    f"{layers[layer]} other hosts"
                )
                finding = Finding(
                    "link_layer_differs", UNKNOWN, message, "fix_configuration", subject
                )
                self._leave_out(place, finding, name, endpoint=HCA)
            elif len(active) > _MOST * others:
                self._leave_out(
                    place, _inactive(hca, subject, len(active), others), name, endpoint=HCA
                )
        taking = [place for place, member in enumerate(members) if member]
        if len(taking) == 1:
            finding = _no_partner(name, f"no other host takes part on {name}")
            self._leave_out(taking[0], finding, name, endpoint=HCA)
            members[taking[0]] = None
        return {"name": name, "members": members}


def clock_of(facts: Facts) -> Optional[HostClock]:
    """The clock reading of a host; None if the clock was not read."""
    clock = facts.get("clock") if facts else None
    return clock if clock and {"offset_seconds", "uncertainty_seconds"} <= clock.keys() else None


def endpoint_of(plane: Plane) -> str:
    """What the members of a plane are: `ADDRESS` or `HCA`."""
    return HCA if any(member and "endpoint" in member for member in plane["members"]) else ADDRESS


def name_of(hca: HostHca) -> str:
    return f"{hca['device']}:{hca['port']}"


def _infiniband(facts: HostFacts) -> List[HostHca]:
    """The active ports whose link layer is InfiniBand."""
    return [
        hca
        for hca in facts.get("hcas", [])
        if hca.get("active") and hca.get("link_layer") == "InfiniBand"
    ]


def _infiniband_interfaces(facts: HostFacts) -> List[str]:
    """Interfaces of InfiniBand ports (IPoIB) that are up and have no address."""
    return [
        one["name"]
        for one in facts["interfaces"]
        if _IPOIB.match(one["name"])
        and one.get("up")
        and one.get("carrier") is not False
        and not one["addresses"]
    ]


def _data_ports(facts: Facts, wanted: Sequence[str]) -> Dict[str, HostHca]:
    """The ports of a host that carry data, by name: the wanted ones, else those of InfiniBand if any
    is active, else those of RoCE that do not belong to the interface with the default route. Empty
    if none of them is active.
    """
    if facts is None:
        return {}
    hcas = facts.get("hcas", [])
    if wanted:
        chosen = [hca for hca in hcas if hca["device"] in wanted or name_of(hca) in wanted]
    elif _infiniband(facts):
        chosen = [hca for hca in hcas if hca.get("link_layer") == "InfiniBand"]
    else:
        management = {
            one["name"] for one in facts.get("interfaces", []) if one.get("default_route")
        }
        chosen = [
            hca
            for hca in hcas
            if hca.get("link_layer") == "Ethernet" and hca.get("netdev") not in management
        ]
    if not any(hca.get("active") for hca in chosen):
        return {}
    return {name_of(hca): hca for hca in chosen}


def _inactive(hca: Optional[HostHca], subject: Subject, active: int, others: int) -> Finding:
    """The finding of a port that is active on most other hosts."""
    as_others = f"active on {active} of {others} other hosts"
    if hca is None:
        return Finding(
            "hca_port_missing",
            UNKNOWN,
            f"the host has no such port, which is {as_others}",
            "fix_configuration",
            subject,
        )
    message = (
        f"the port is {str(hca.get('state')).rpartition(': ')[2]}, {as_others}; check the cable, "
        "transceiver, switch port and card"
    )
    return Finding("hca_port_down", FAIL, message, "drain_node", subject)


def member_at(plane: Plane, place: int) -> PlaneMember:
    """The interface of a host that takes part on the plane."""
    member = plane["members"][place]
    if member is None:
        raise ValueError(f"host {place} does not take part on {plane['name']}")
    return member


def _addresses(interface: HostInterface, families: Tuple[int, ...]) -> List[HostAddress]:
    return [one for one in interface["addresses"] if one["family"] in families]


def _private(interfaces: List[HostInterface]) -> Set[str]:
    """Names of interfaces that carry the same addresses on most hosts: networks inside a host, such
    as container bridges.
    """
    holders = Counter(one["name"] for one in interfaces)
    times = Counter(
        (one["name"], address["address"]) for one in interfaces for address in one["addresses"]
    )

    def shared(name: str, address: str) -> bool:
        return times[name, address] >= 3 and times[name, address] > holders[name] / 2

    return {
        one["name"]
        for one in interfaces
        if all(shared(one["name"], address["address"]) for address in one["addresses"])
    }


def _without_address(name: str, families: Tuple[int, ...]) -> Finding:
    kinds = " or ".join(f"IPv{family}" for family in families)
    message = f"no {kinds} address that other hosts can reach"
    return Finding(
        "interface_without_address",
        UNKNOWN,
        message,
        "fix_configuration",
        Subject("interface", name=name),
    )


def _duplicate(interface: str, address: str, others: List[str]) -> Finding:
    names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    message = f"address {address} is also used by {names}"
    evidence = {"address": address, "hosts": others[:12]}
    return Finding(
        "duplicate_address",
        UNKNOWN,
        message,
        "fix_configuration",
        Subject("interface", name=interface),
        evidence,
    )


def _odd(
    code: str, interface: str, own: float, usual: float, others: int, trained_down: bool
) -> Finding:
    if code == "mtu_differs":
        message = f"MTU {own:g}, expected {usual:g} as on {others} other hosts of this network"
    else:
        message = (
            f"link speed {own:g} Gbit/s, expected {usual:g} as on {others} other hosts"
            f"; check the cable, transceiver and switch port"
        )
    return Finding(
        code,
        FAIL if trained_down else WARN,
        message,
        "drain_node" if trained_down else "fix_configuration",
        Subject("interface", name=interface),
        {"own": own, "usual": usual, "hosts": others},
    )


def _no_partner(interface: str, why: str) -> Finding:
    return Finding(
        "no_partner",
        SKIP,
        f"no partner to measure with: {why}",
        "none",
        Subject("interface", name=interface),
    )
