# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The record by which the plan and the judgement of a mesh know a probe. The node's half is
`node.mesh.probes`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

Options = Mapping[str, Any]

#: What the ends of a measurement are: addresses of interfaces, or ports of HCAs.
ADDRESS, HCA = "address", "hca"
#: The peers of every host on every plane, as places of hosts.
Peers = List[List[List[int]]]


class PairTimes(NamedTuple):
    """The times of one pair, in seconds, without its handshake: the traffic of a direction, what a
    leg may take beside its traffic, and all legs together.
    """

    leg_seconds: float
    slack_seconds: float
    legs_seconds: float


class PairProbe(NamedTuple):
    """What is measured between two hosts. The engine knows no program, but two shapes of probes: a
    directed one measures the rate of each direction, pair by pair in rounds; the other one pings
    many peers at once.
    """

    #: The check whose results it gives.
    check: str
    #: The name of what it runs, in messages.
    title: str
    #: The kind of its windows in a share, and in the readings of a host.
    kind: str
    #: The name of its program in the facts of a host.
    program: str
    #: Raises ValueError for options that cannot be planned.
    validate: Callable[[Options], Any]
    #: The options of the check as the plan takes them; ``rounds`` and ``plane`` are the mesh's.
    translated: Callable[[Dict[str, Any]], Dict[str, Any]] = dict
    #: `ADDRESS` or `HCA`.
    endpoint: str = ADDRESS
    directed: bool = True
    #: Whether it runs when no check is named.
    by_default: bool = False
    #: Whether it loads the hosts: their GPUs must be idle, unless the option ``force`` is set.
    loads: bool = True
    #: The member of the plan that has its rounds or pings; empty: ``probes``, by its check.
    member: str = ""

    # ---- a directed probe ----
    times: Optional[Callable[[Options], PairTimes]] = None
    #: Fields of its windows, which the node's half of the probe understands.
    fields: Callable[[Options], Dict[str, Any]] = lambda options: {}
    #: First and last port of its servers, and the ports that a server needs.
    ports: Callable[[Options], Tuple[int, int]] = lambda options: (5200, 5299)
    server_ports: int = 1
    #: Whether all planes carry traffic at the same time, whatever the mesh does.
    together: Callable[[Options], bool] = lambda options: False
    #: Share of the data rate of a link that a healthy pair reaches at least.
    expected_share: float = 0.8
    #: CPU time of an end in percent of a core from which the program is the limit; None: the
    #: program uses no CPU for its data.
    cpu_limit: Optional[float] = None
    #: Reasons of legs without a figure that do not tell whether packets arrive; the handshake then
    #: tells, because it takes the same way.
    silent: Tuple[str, ...] = ()
    #: Reasons of legs without a figure that say that nothing arrives.
    unreached: Tuple[str, ...] = ()
    #: Whether a firewall may stop it while the link is good.
    can_be_filtered: bool = True
    #: The legs whose figure is a latency.
    latency_leg: str = ""
    #: What an operator sets if the program was the limit, or if nothing is expected.
    cpu_hint: str = "set the option minimum"

    # ---- the other one ----
    #: (places of hosts by plane, options): peers of a host on each plane.
    most_peers: Optional[Callable[[List[List[int]], Options], int]] = None
    #: (peers, options, count): the window in which all hosts ping; None without peers.
    pings: Optional[Callable[[Peers, Options, int], Any]] = None
