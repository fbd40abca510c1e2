# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The causes of all bad figures of a run, each once: what one cause explains is not named again. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, List, Mapping, Sequence

from ..figures import Leg
from ..inference.causes import Cause
from ..inference.follow_up import repeated
from ..inference.localise import localise
from ..inference.observation import KINDS, Key, Observation
from .explained import IPERF, PING, Explained, explains, kind_of, place_of, touches
from .view import View

#: Expected number of healthy parts named by the sensitive comparison.
SURE = 0.01


def explain(view: View, known: Iterable[Cause] = ()) -> List[Explained]:
    """Return the causes of all bad observations, each once, root causes first, and the causes
    that the retest did not confirm. ``known`` are slow causes that the retest has shown.
    """
    found = [Explained(cause, "slow", IPERF, repeated=True) for cause in known]
    for family, second, first in zip(
        view.families(view.observed), view.families(view.second), view.families(view.first)
    ):
        check = IPERF if family is view.observed.rate else PING
        again = list(second.values())
        before = _not_repeated(view, list(first.values()), again)
        # Bad pairs of such a host that were not measured again are no link faults either.
        over = {
            one
            for cause in before
            if not any(one.bad and touches(cause, one, view.groups) for one in again)
            for one in cause.bad
        }
        causes = localise(
            [one for one in family.values() if one not in over],
            view.groups,
            strays=view.references.minimum is None,
        )
        places = {place_of(cause) for cause in causes}
        named = _times_named(causes)
        found += [_explained(view, cause, check, again, named) for cause in causes]
        found += [
            Explained(cause, kind_of(cause.bad), check, repeated=False)
            for cause in before
            if place_of(cause) not in places
        ]
    found += _slight_causes(view)
    found = [_with_other_check(view, one) for one in found]
    found.sort(
        key=lambda one: (
            one.repeated is False,
            one.cause.scope == "undecided",
            one.cause.scope == "link",
            one.slight and one.cause.scope != "group",
            one.is_weak,
            KINDS.index(one.kind),
            one.cause.scope != "group",
        )
    )
    return [_named(view, one) for one in _merged(found, view.groups)]


def _named(view: View, explained: Explained) -> Explained:
    """A cause with the names of the view's checks."""
    names = {
        PING: view.part.echoes.check if view.part.echoes else PING,
        IPERF: view.part.rates.check if view.part.rates else IPERF,
    }
    return explained._replace(check=names[explained.check], echoes=names[PING], rates=names[IPERF])


def _explained(
    view: View, cause: Cause, check: str, again: Sequence[Observation], times_named: Counter[Key]
) -> Explained:
    """A cause with its kind, and whether the observations of the retest confirm it: what another
    cause explains does not. ``times_named``: how many causes explain a pair, see `_times_named`.
    """
    own = {one[:3] for one in cause.bad}
    left = [one for one in again if times_named[one[:3]] <= (one[:3] in own)]
    confirmed = repeated(cause, left, view.groups)
    return Explained(cause, kind_of(cause.bad), check, repeated=confirmed)


def _times_named(causes: Iterable[Cause]) -> Counter[Key]:
    return Counter(key for cause in causes for key in {one[:3] for one in cause.bad})


def _slight_causes(view: View) -> List[Explained]:
    """Hosts, paths and groups whose pairs are each too little bad to tell, but all of them are."""
    found = []
    for observed, again, check in (
        (view.observed.drop, view.second.drop, PING),
        (view.observed.dent, view.second.dent, IPERF),
    ):
        seen = list(observed.values())
        repeats = list(again.values())
        causes = localise(seen, view.groups, SURE)
        named = _times_named(causes)
        found += [
            _explained(view, cause, check, repeats, named)._replace(slight=True)
            for cause in causes
            if cause.scope in ("node", "interface", "path", "group")
        ]
    return found


def _not_repeated(
    view: View, first: Sequence[Observation], again: Sequence[Observation]
) -> List[Cause]:
    """Hosts and paths that were bad with several partners in the first pass and good in the
    second.
    """
    before = localise(first, view.groups) if again and any(one.bad for one in first) else []
    return [
        cause
        for cause in before
        if cause.scope in ("node", "interface", "path", "group")
        # Pairs that share an uplink are slow together, with no fault to be over.
        and not (cause.scope == "path" and kind_of(cause.bad) == "slow")
        and repeated(cause, again, view.groups) is False
    ]


def _merged(found: Sequence[Explained], groups: Mapping[str, str]) -> List[Explained]:
    """Drop each cause that an earlier one explains, which takes its bad observations: an interface
    that loses packets is also slow, and one without a connection is both.
    """
    kept: List[Explained] = []
    for explained in found:
        deeper = [
            place for place, accepted in enumerate(kept) if explains(accepted, explained, groups)
        ]
        if not deeper:
            kept.append(explained)
            continue
        place = deeper[0]
        accepted = kept[place]
        cause = accepted.cause
        if place_of(cause) == place_of(explained.cause):
            # Figures of several kinds show the same fault, so the surest of them counts.
            chance = min(cause.chance, explained.cause.chance)
            if (
                cause.direction == "both"
                and explained.cause.direction != "both"
                and accepted.kind == explained.kind
            ):
                # Pings go both ways, so that only the rates' end of it knows the direction.
                cause = explained.cause
            cause = cause._replace(chance=chance)
        confirmed = accepted.repeated if accepted.repeated is not None else explained.repeated
        kept[place] = accepted._replace(
            cause=cause, further=accepted.further + explained.cause.bad, repeated=confirmed
        )
    return kept


def _with_other_check(view: View, explained: Explained) -> Explained:
    """Mark causes that only one check finds blocked, with the other check's observations there."""
    # Where a share of the paths is blocked, the rates may take another path than the pings.
    is_share = explained.cause.scope == "path" and explained.cause.is_partial
    if explained.kind != "blocked" or explained.repeated is False or is_share:
        return explained
    if explained.check == IPERF:
        echoes = [
            view.observed.echo_between(bad.plane, bad.source, bad.target)
            for bad in explained.cause.bad
        ]
        return explained._replace(
            filtered=any(echo is not None and echo.value > 0 for echo in echoes)
        )
    tried = [legs for legs in (_legs_since(view, bad) for bad in explained.cause.bad) if legs]
    carried = [legs for legs in tried if any(leg.rate for leg in legs)]
    return explained._replace(filtered=2 * len(carried) > len(tried))


def _legs_since(view: View, pair: Observation) -> List[Leg]:
    """The rates between the two ends of a ping, either way, taken after the ping; each
    pass begins with the pings.
    """
    sent = max([echo.turn for echo in view.echoes_of(pair)], default=1)
    ends = {pair.source, pair.target}
    return [
        leg
        for leg in view.legs_at(pair.source)
        if leg.plane == pair.plane and {leg.source, leg.target} == ends and leg.turn >= sent
    ]
