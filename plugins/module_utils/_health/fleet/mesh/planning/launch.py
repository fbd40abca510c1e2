# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Estimate how long it takes to start a process on every host of a mesh, from what the hosts took to
report their facts. Pure.

The controller hands a task to one host after the other and runs as many at the same time as it has
forks. A host that takes much longer than the others does not delay their start.
"""

from __future__ import annotations

import heapq
from statistics import median
from typing import Dict, List, Mapping, NamedTuple, Optional

from ..documents import HostFacts

#: Shortest time in seconds from a plan to its first window; the share and the seconds by which an
#: estimate may be wrong.
LEAST_LEAD, _MARGIN, _SPARE = 5.0, 1.3, 3.0
#: Seconds for each host in which Ansible registers the plan before it starts the first host, and
#: their maximum.
_REGISTER, _MOST_REGISTER = 0.01, 3.0
#: Seconds to hand a task to a fork: 5 to 15 milliseconds, measured with ansible-core 2.18 and 2.19.
_DISPATCH = 0.02
#: A host is late if it takes longer than this, in seconds and as a multiple of the median; not if
#: more than this share of the hosts does, or there are fewer hosts than this.
_LATE_SECONDS, _LATE_FACTOR, _MOST_LATE, _FEWEST = 10.0, 5.0, 0.25, 4
#: Seconds from which a late host would miss most rounds, and share and seconds of delay for the
#: others from which late hosts are left out whatever they take.
_TOO_LATE, _HOLDS_UP, _HOLDS_UP_SECONDS = 30.0, 1.25, 2.0


class Launch(NamedTuple):
    """``lead``: seconds to leave for the start. ``left_out``: hosts that could not be started in
    time, with the seconds that they took; ``usual``: the median of all hosts in seconds.
    """

    lead: float
    left_out: Dict[str, float]
    usual: float


class _Cost(NamedTuple):
    asked: float
    host: str
    seconds: float


def estimate_launch(
    facts: Mapping[str, Optional[HostFacts]],
    now: float,
    forks: Optional[int] = None,
    tasks: Optional[int] = None,
) -> Launch:
    """Estimate the start of all hosts that reported facts. ``now`` is a controller time; ``forks``
    None: as many as the facts show; ``tasks``: how many hosts the task is handed to, also to be
    skipped (None: those of ``facts``).
    """
    costs = _costs(facts, now)
    if not costs:
        return Launch(LEAST_LEAD, {}, 0.0)
    workers = forks or _concurrency(facts, costs)
    usual = median(cost.seconds for cost in costs)
    late = _late(costs, usual)
    hosts = len(facts) if tasks is None else tasks
    handed_out = _dispatch_seconds(costs, workers) * hosts
    left_out = {host: late[host] for host in late if late[host] > _TOO_LATE}
    kept = [cost for cost in costs if cost.host not in left_out]
    alone = [cost for cost in costs if cost.host not in late]
    together = _makespan(kept, workers, late)
    if together > _HOLDS_UP * _makespan(alone, workers, late) + _HOLDS_UP_SECONDS:
        left_out = dict(late)
        together = _makespan(alone, workers, late)
    seconds = max(together, handed_out)
    spare = _SPARE + min(_MOST_REGISTER, _REGISTER * hosts)
    return Launch(max(LEAST_LEAD, _MARGIN * seconds + spare), left_out, usual)


def _costs(facts: Mapping[str, Optional[HostFacts]], now: float) -> List[_Cost]:
    """What each host took in the order of the questions, without the time in which it only sampled
    its GPUs.
    """
    found = []
    for host, own in facts.items():
        clock = own.get("clock") if own else None
        if not own or not clock or not {"asked", "answered"} <= clock.keys():
            continue
        took = max(0.0, min(now, clock["answered"]) - clock["asked"])
        # What follows the module, such as reading the clock, is not part of a start.
        took = min(took, max(0.0, clock.get("spent_seconds", took)))
        sampled = min(max(own.get("gate_seconds", 0.0), 0.0), took)
        found.append(_Cost(clock["asked"], host, took - sampled))
    return sorted(found)


def _concurrency(facts: Mapping[str, Optional[HostFacts]], costs: List[_Cost]) -> int:
    """The largest number of hosts that were asked at the same time."""
    events = []
    for cost in costs:
        own = facts[cost.host]
        clock = own.get("clock") if own else None
        if clock:
            events += [(clock["asked"], 1), (clock["answered"], -1)]
    running = most = 0
    for _time, change in sorted(events):
        running += change
        most = max(most, running)
    return max(1, most)


def _late(costs: List[_Cost], usual: float) -> Dict[str, float]:
    limit = max(_LATE_SECONDS, _LATE_FACTOR * usual)
    late = {cost.host: cost.seconds for cost in costs if cost.seconds > limit}
    is_usual = len(costs) < _FEWEST or len(late) > _MOST_LATE * len(costs)
    return {} if is_usual else late


def _dispatch_seconds(costs: List[_Cost], workers: int) -> float:
    """Seconds between two hosts while the controller has free forks: until it has used all of them
    for the first time, nothing else delays it.
    """
    first = [cost.asked for cost in costs[:workers]]
    gaps = [after - before for before, after in zip(first, first[1:])]
    return max(_DISPATCH, median(gaps)) if gaps else _DISPATCH


def _makespan(costs: List[_Cost], workers: int, late: Mapping[str, float]) -> float:
    """Seconds until all hosts that are not late have started."""
    free = [0.0] * workers
    last = 0.0
    for cost in costs:
        end = heapq.heappop(free) + cost.seconds
        heapq.heappush(free, end)
        if cost.host not in late:
            last = max(last, end)
    return last
