# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A cause with what explains it further: the kind of its bad figures, the check that revealed it, and
whether the retest confirmed it. Pure.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Optional, Set, Tuple

from ..inference.causes import Cause
from ..inference.evidence import crosses
from ..inference.observation import KINDS, Observation
from ..probes.registry import BY_CHECK, DEFAULT_CHECKS

#: The checks that stand for the two kinds of figures, echoes and rates, until `explain` gives causes
#: the names of the view's own checks.
PING, IPERF = DEFAULT_CHECKS


class Explained(NamedTuple):
    """A cause, its kind, and the observations of other kinds that it explains."""

    cause: Cause
    kind: str
    #: The check whose figures revealed the cause.
    check: str
    #: Observations of other kinds that the cause explains too.
    further: Tuple[Observation, ...] = ()
    #: Whether the retest confirmed the cause; None if it was not measured again.
    repeated: Optional[bool] = None
    #: True if nothing arrives in this check while the other check's packets arrive.
    filtered: bool = False
    #: True if only the sensitive comparison of several pairs shows the cause.
    slight: bool = False
    #: The checks whose figures are echoes and rates.
    echoes: str = PING
    rates: str = IPERF

    @property
    def is_weak(self) -> bool:
        """True if a firewall may be the cause: a refused connection says nothing about the link, nor
        does a lost ping if connections get through.
        """
        return self.kind == "blocked" and (self.filtered or BY_CHECK[self.check].can_be_filtered)

    @property
    def checks(self) -> Set[str]:
        """The checks whose figures show the cause: its own check, and the other one if its
        observations follow from the cause.
        """
        following = [one for one in self.further if KINDS.index(one.kind) >= KINDS.index(self.kind)]
        return {self.check} | {self.rates if one.directed else self.echoes for one in following}


def kind_of(observations: Iterable[Observation]) -> str:
    """The first kind, in root-cause order, of at least a third of the observations."""
    kinds = [one.kind for one in observations if one.kind in KINDS]
    return next((kind for kind in KINDS if 3 * kinds.count(kind) >= len(kinds) > 0), "slow")


def place_of(cause: Cause) -> Tuple[Any, ...]:
    """The place of a cause, regardless of direction."""
    return cause.scope, tuple(sorted(cause.nodes)), cause.plane, tuple(sorted(cause.groups))


def touches(cause: Cause, observation: Observation, groups: Mapping[str, str]) -> bool:
    """True if the observation is of a place where the cause lies."""
    if cause.plane not in (None, observation.plane):
        return False
    ends = {observation.source, observation.target}
    if cause.scope in ("node", "interface"):
        return cause.nodes[0] in ends
    if cause.scope == "link":
        return set(cause.nodes) == ends
    if cause.scope in ("path", "group"):
        return crosses(cause.groups, groups.get(observation.source), groups.get(observation.target))
    return bool(ends & set(cause.nodes))


def explains(deeper: Explained, follower: Explained, groups: Mapping[str, str]) -> bool:
    """True if all bad observations of the other cause lie where the root cause lies."""
    if deeper.repeated is False and follower.repeated is not False:
        return False
    if deeper.slight and not follower.slight and follower.cause.scope != "link":
        # Where a whole group is slightly bad, some of its nodes and paths look worse by chance.
        if deeper.cause.scope != "group" or deeper.kind != follower.kind:
            return False
    if deeper.cause.scope == "undecided" and follower.cause.scope != "undecided":
        return False
    if follower.is_weak and KINDS.index(deeper.kind) > KINDS.index(follower.kind):
        return False  # neither loss nor a low rate closes a port
    if (
        deeper.cause.scope == "path"
        and deeper.cause.is_partial
        and follower.cause.scope in ("node", "interface")
    ):
        return False  # a path that is bad for some pairs cannot make all pairs of a node bad
    return all(touches(deeper.cause, one, groups) for one in follower.cause.bad)
