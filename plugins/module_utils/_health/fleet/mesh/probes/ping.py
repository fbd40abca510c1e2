# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe of ``ping_mesh``: all hosts ping many peers at once."""

from __future__ import annotations

import math
from typing import List, Optional

from ..documents import PlannedPings
from .record import Options, PairProbe, Peers

#: Seconds for fping to start and to wait for the last answers on a busy host, once for small and
#: once for large packets.
_PING_ENDS = 5.0
#: Large packets to each peer: one arrival proves the path MTU, three tolerate some loss.
BIG_COUNT = 3
#: Minimum milliseconds between two packets of one fping, which is the limit for unprivileged users
#: (fping(8), LIMITS), and between two packets to one target: twice that limit.
_LEAST_INTERVAL, _LEAST_PERIOD = 1.0, 20.0
#: Maximum seconds of the pings, which are spread over all networks and hosts: in a large fleet with
#: many networks each host pings fewer peers on each network, but at least so many.
_MOST_PING_SECONDS, _LEAST_PEERS = 60.0, 4


def _ping_interval(nodes: int, planes: int, options: Options) -> float:
    """Milliseconds between two packets of a host on a plane. Packets are paced for the total over
    all planes, equally on all hosts. Whole milliseconds: older versions of fping accept no
    fractions.
    """
    return float(
        math.ceil(planes * max(_LEAST_INTERVAL, 1000.0 * nodes / options["packets_per_second"]))
    )


def _most_peers(able: List[List[int]], options: Options) -> int:
    """Peers of a host on each plane such that the pings take at most `_MOST_PING_SECONDS`."""
    wanted = int(options["peers"])
    planes = sum(1 for places in able if places)
    nodes = len({place for places in able for place in places})
    interval = _ping_interval(nodes, planes, options)
    rounds = options["count"] + BIG_COUNT
    fitting = int((_MOST_PING_SECONDS - _PING_ENDS) * 1000.0 / (1.1 * rounds * max(interval, 1.0)))
    return wanted if wanted <= fitting else min(wanted, max(_LEAST_PEERS, fitting))


def _pings(peers: Peers, options: Options, count: int) -> Optional[PlannedPings]:
    """The window in which all hosts ping all their peers on all planes."""
    most = max((len(some) for lists in peers for some in lists), default=0)
    if not most:
        return None
    nodes = sum(1 for own in zip(*peers) if any(own))
    planes = sum(1 for lists in peers if any(lists))
    interval = _ping_interval(nodes, planes, options)
    period = max(_LEAST_PERIOD, most * interval)
    seconds = math.ceil((count + BIG_COUNT) * period / 1000.0 * 1.1 + _PING_ENDS)
    return {
        "offset": 0.0,
        "seconds": float(seconds),
        "count": count,
        "interval_ms": interval,
        "period_ms": period,
        "big_count": BIG_COUNT,
        "peers": peers,
    }


PROBE = PairProbe(
    check="ping_mesh",
    title="ping",
    kind="ping",
    program="fping",
    validate=lambda options: None,
    directed=False,
    by_default=True,
    loads=False,
    member="ping",
    can_be_filtered=False,
    most_peers=_most_peers,
    pings=_pings,
)
