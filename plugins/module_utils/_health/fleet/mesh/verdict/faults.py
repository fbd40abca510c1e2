# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The finding about a cause: of a node, undecided among several, or between hosts. Pure.

A fault between hosts (a link, a path between racks) is a finding of the run and of no host.
"""

from __future__ import annotations

from collections import Counter
from typing import Tuple

from ....knowledge import network as rules
from ....model import FAIL, NODE, UNKNOWN, WARN, Finding, Subject
from ..inference.causes import Cause
from .doubt import Doubt, is_alone
from .explained import Explained
from .fabric import may_be_design
from .messages import (
    between,
    evidence_of,
    fault_text,
    firewall_hint,
    interface_of,
    lost_pings,
    no_traffic,
    out_of,
    ping_fault_text,
    typical,
)
from .view import View

#: Code and action by kind; for slow rates by kind and direction.
CODES = {
    ("blocked", "both"): ("no_path", "drain_node"),
    ("loss", "both"): ("packet_loss", "drain_node"),
    ("mtu", "both"): ("mtu_on_the_way", "fix_configuration"),
    ("latency", "both"): ("high_latency", "watch"),
    ("slow", "both"): ("slow_both_ways", "drain_node"),
    ("slow", "transmit"): ("slow_transmit", "drain_node"),
    ("slow", "receive"): ("slow_receive", "drain_node"),
}


def _code(kind: str, direction: str) -> Tuple[str, str]:
    return CODES.get((kind, direction)) or CODES[(kind, "both")]


def node_finding(view: View, explained: Explained, doubt: Doubt) -> Finding:
    """The finding about a fault of a node or an interface."""
    cause = explained.cause
    code, action = _code(explained.kind, cause.direction)
    status = _status(view, explained)
    message = fault_text(view, explained)
    if status == WARN and explained.slight:
        code, action = ("slightly_slow" if explained.kind == "slow" else code), "watch"
    if explained.is_weak:
        code, action = _firewall_code(explained), "fix_configuration"
        message += f"; {firewall_hint(view, explained)}"
    elif status == FAIL and action == "watch":
        action = "drain_node"
    if explained.repeated is False:
        status, action = WARN, "watch"
        message += "; the retest did not confirm this"
    why = doubt.about(explained) if status == FAIL else ""
    if why:
        status, action = UNKNOWN, "watch"
        message += f"; undecided: {why}"
    plane = interface_of(view, cause.nodes[0], cause.plane)
    subject = Subject("interface", name=plane) if cause.scope == "interface" and plane else NODE
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _status(view: View, explained: Explained) -> str:
    """The status of a cause whose place is known."""
    if explained.is_weak:
        return UNKNOWN
    if explained.slight:
        return FAIL if _is_severe(view, explained) else WARN
    # High latency fails only against a maximum that the operator set.
    return WARN if explained.kind == "latency" and not view.ping_limits.latency_is_set else FAIL


def _is_severe(view: View, explained: Explained) -> bool:
    """True if what several pairs show together is as bad as a single pair may not be."""
    cause = explained.cause
    if explained.kind == "slow":
        rate, usual = typical(view, cause)
        is_steady = not cause.is_partial and explained.repeated is True
        return is_steady and rate < rules.FLEET_SHARE * usual
    if explained.repeated is not True:
        return False
    lost, sent = lost_pings(view, [*cause.bad, *cause.against])
    return lost >= rules.POOLED_LOSS * view.ping_limits.loss * sent


def _firewall_code(explained: Explained) -> str:
    return (
        "pings_filtered"
        if explained.check == explained.echoes
        else "ports_closed"
        if explained.filtered
        else "no_connection"
    )


def undecided_finding(view: View, explained: Explained) -> Finding:
    """The finding of an undecided cause: the evidence does not single out a host."""
    cause = explained.cause
    names = list(cause.nodes)
    who = (
        f"{', '.join(names[:-1])} or {names[-1]}"
        if 1 < len(names) <= 4
        else f"one of {len(names)} hosts"
        if len(names) > 4
        else names[0]
    )
    what = {
        "slow": "slow pairs",
        "blocked": "pairs without a connection",
        "loss": "pairs that lose packets",
        "mtu": "pairs that lose large packets",
        "latency": "pairs with slow round trips",
    }[explained.kind]
    further = "; ".join(
        f"{first} with {second} on {plane}" for plane, first, second in cause.further[:3]
    )
    decide = (
        f"; to decide, measure {further}"
        if further
        else "; there is no other healthy partner to decide with"
    )
    rate, usual = typical(view, cause)
    figures = f" ({out_of(rate, usual)})" if explained.kind == "slow" and usual else ""
    message = (
        f"{what}{figures} on {cause.plane or 'every plane'}: the fault is at {who}, or between "
        f"the hosts{decide}"
    )
    code, action = "undecided", "watch"
    if explained.is_weak and explained.filtered:
        code, action = _firewall_code(explained), "fix_configuration"
        message = (
            f"{no_traffic(explained)} gets through on {cause.plane or 'any plane'}; "
            f"{firewall_hint(view, explained)}"
        )
    # A cause that warns at most when decided is not worse when undecided.
    return Finding(
        code,
        WARN if _status(view, explained) == WARN else UNKNOWN,
        message,
        action,
        NODE,
        evidence_of(view, explained),
    )


def run_finding(view: View, explained: Explained) -> Finding:
    """Findings about links between two hosts and paths between two groups, whose ends are good
    elsewhere.
    """
    cause = explained.cause
    code = f"slow_{cause.scope}" if explained.kind == "slow" else _code(explained.kind, "both")[0]
    if explained.kind == "slow":
        what = out_of(*typical(view, cause))
    elif explained.kind == "blocked":
        what = f"{no_traffic(explained)} gets through"
    else:
        what = ping_fault_text(view, explained)
    fine = {
        "link": "both ends are good with other hosts",
        "path": "the hosts at both ends are good elsewhere",
        "group": "nearly all of its hosts are bad with each other and with hosts of other groups",
    }[cause.scope]
    if cause.scope == "path" and cause.is_partial:
        fine = f"{100 * cause.share:.0f} % of the measurements; {fine}"
    message = f"{what}, {fine}"
    # A link that is slow in few measurements may be a disturbance and does not fail a run.
    measured = [max(one.counts[0], int(one.bad)) for one in cause.bad]
    few = (
        cause.scope == "link"
        and explained.kind == "slow"
        and (max(measured) < rules.TIMES_BAD or cause.is_unsure)
    )
    # A group's switch is slow always, or other traffic is.
    at_times = cause.scope == "group" and explained.kind == "slow" and cause.is_partial
    unsure = at_times or (cause.scope != "link" and cause.is_unsure)
    loaded = explained.repeated is False and explained.kind == "slow" and cause.scope == "path"
    over = explained.repeated is False and not (loaded and _is_uplink(view, cause))
    shared = cause.scope == "link" and not is_alone(view, explained)
    status = WARN if over or few or unsure or shared else _status(view, explained)
    if status == FAIL and cause.scope == "path" and not view.groups:
        status = UNKNOWN
        message += "; without groups of hosts it is undecided where (option mesh_group_by)"
    elif status == FAIL and explained.kind == "slow" and may_be_design(view, cause):
        status = WARN
    action = "watch" if status == WARN else "fix_configuration"
    if explained.is_weak:
        code = _firewall_code(explained)
        message += f"; {firewall_hint(view, explained)}"
    if loaded:
        message += "; only under load, not with few pairs at once"
    elif explained.repeated is False:
        message += "; the retest did not confirm this"
    elif few:
        message += f"; bad in {max(measured)} measurement{'' if max(measured) == 1 else 's'}"
    elif shared:
        message += (
            "; other pairs of these hosts, between their groups or of the same rounds are bad too"
        )
    subject = Subject(cause.scope, name=f"{between(view, cause)} on {cause.plane or 'every plane'}")
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _is_uplink(view: View, cause: Cause) -> bool:
    """True if load is no excuse for a path that is slow only under load: a group without this fault
    is as large as each group of the path, so its uplinks carry as much; and no other path is slow
    anyway, whose flows share uplinks with those of this one.
    """
    sizes = Counter(view.groups.values())
    others = [size for group, size in sizes.items() if group not in cause.groups]
    return cause.plane not in view.slow_again and all(
        sizes.get(group, 0) <= max(others, default=-1) for group in cause.groups
    )
