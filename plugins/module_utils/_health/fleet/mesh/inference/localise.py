# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Localise faults: find the smallest set of causes that explains all bad observations. Pure.

Each part (an interface, the path between two groups, or a whole group) counts its measurements in
three slots: sent, received, or undirected (pings). A part is a hypothesis if at least 80 % of one
slot is bad. Greedy cover: accept the hypothesis that explains the most bad observations, remove
these, repeat. What then is left is bad by chance, for example because flows share an uplink: it
gives the background against which every hypothesis is tested, separately for pairs within a group
and between groups. Parts that are bad in a smaller share are accepted if the background makes that
unlikely. A remaining bad pair whose two ends are good elsewhere is a link fault if the background
does not explain it. Every other remainder is undecided, with the pairs to measure next. Rates and
pings are never mixed: a good ping says nothing about a slow rate, and a good rate nothing about a
lost ping.

`evidence` indexes the observations by parts, `accepted` holds the accepted hypotheses and the
background, `hypotheses` tests a part, `acceptance` chooses among the parts, `causes` and
`unexplained` make causes of what was accepted and of what remains.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from .acceptance import accept_at_times, accept_steady
from .accepted import Accepted
from .causes import Cause, between_groups, nodes_at_fault
from .evidence import INTERFACE, SCOPES, Evidence
from .hypotheses import Hypotheses
from .observation import Observation
from .unexplained import Unexplained

#: Expected number of interfaces, or paths, of a run that look this bad by chance; above it a
#: hypothesis is rejected.
BY_CHANCE = 0.05
#: The same for the choice of what the retest measures again.
SUSPECT = 0.3


def localise(
    observations: Sequence[Observation],
    groups: Mapping[str, str],
    by_chance: float = BY_CHANCE,
    strays: bool = True,
) -> List[Cause]:
    """Return the smallest set of causes that explains the bad observations, including undecided
    causes. ``groups``: the rack (or similar) of each node. ``by_chance``: the number of healthy
    parts that may be named. ``strays``: whether slow pairs may be left without a cause where many
    are slow; not where the operator says what is slow.
    """
    between = [one for one in observations if one.source != one.target]
    if not any(one.tally[0] for one in between):
        return []
    accepted = Accepted(Evidence(between, groups))
    hypotheses = Hypotheses(accepted, by_chance)
    accept_steady(hypotheses)
    accept_at_times(hypotheses)
    causes = nodes_at_fault(hypotheses)
    unexplained = Unexplained(accepted, by_chance, strays)
    causes += [
        between_groups(accepted, one, unexplained.pairs_within(one))
        for one in accepted.hypotheses
        if one.scope != INTERFACE
    ]
    causes += unexplained.links() + unexplained.undecided()
    return sorted(
        causes,
        key=lambda cause: (SCOPES.index(cause.scope), cause.nodes, cause.groups, cause.plane or ""),
    )
