# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From bad pairs to what is broken: each fault is named, one that cannot be known stays undecided,
and what is well is left alone.
"""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.observation import (
    Observation,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.evidence import (
    ELSEWHERE,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.follow_up import (
    follow_up,
    repeated,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.inference.localise import (
    localise,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmark"))
import localising  # noqa: E402

PLANES = ("eth1", "eth2")


def names(count):
    return [f"n{number}" for number in range(count)]


def racks(nodes, size):
    return {node: f"r{number // size}" for number, node in enumerate(nodes)}


def one(plane, source, target, directed=True, bad=True, kind=""):
    return Observation(
        plane, source, target, directed, bad, kind if bad else "", 0.4 if bad else 1.0
    )


# Each fault says of (plane, source, target, directed) whether it makes that observation bad. A rate
# that is low harms no ping.


def slow(node, direction="both", plane=None):
    def hits(on, source, target, directed):
        ends = {"both": (source, target), "transmit": (source,), "receive": (target,)}[direction]
        return directed and plane in (None, on) and node in ends

    return hits


def blackhole(node, direction, plane):
    """Nothing of what a node sends, or of what is sent to it, arrives: no ping comes back either."""

    def hits(on, source, target, directed):
        return on == plane and (
            node in (source, target)
            if not directed
            else node == (source if direction == "transmit" else target)
        )

    return hits


def dead(node, plane=None):
    return lambda on, source, target, directed: plane in (None, on) and node in (source, target)


def mtu(node, plane):
    return lambda on, source, target, directed: (
        on == plane and not directed and node in (source, target)
    )


def link(first, second, plane, one_way=False):
    def hits(on, source, target, directed):
        return (
            on == plane
            and {source, target} == {first, second}
            and (not (directed and one_way) or source == first)
        )

    return hits


def path(groups, first, second, plane, one_way=False):
    def hits(on, source, target, directed):
        between = (groups[source], groups[target])
        return on == plane and (
            between == (first, second) or between == (second, first) and not (directed and one_way)
        )

    return hits


def uplink(groups, group):
    return lambda on, source, target, directed: (
        (groups[source] == group) != (groups[target] == group)
    )


def world(nodes, *faults, planes=PLANES, pairs=None, pings=True):
    """What is observed when these pairs, or all, are measured: a rate each way, and a ping."""
    seen = []
    for plane in planes:
        for first, second in pairs if pairs is not None else itertools.combinations(nodes, 2):
            for source, target, directed in [(first, second, True), (second, first, True)] + [
                (first, second, False)
            ] * pings:
                seen.append(
                    one(
                        plane,
                        source,
                        target,
                        directed,
                        any(fault(plane, source, target, directed) for fault in faults),
                        "slow",
                    )
                )
    return seen


def named(causes):
    """What the causes say, without the evidence."""
    return sorted(
        (cause.scope, cause.nodes or cause.groups, cause.plane, cause.direction) for cause in causes
    )


EIGHT = names(8)
TWO_RACKS = racks(EIGHT, 4)

TABLE = {
    "slow sender": ([slow("n3", "transmit")], [("node", ("n3",), None, "transmit")]),
    "slow receiver": ([slow("n3", "receive")], [("node", ("n3",), None, "receive")]),
    "slow both": ([slow("n3")], [("node", ("n3",), None, "both")]),
    "one plane slow": ([slow("n3", "both", "eth2")], [("interface", ("n3",), "eth2", "both")]),
    "one plane sends slowly": (
        [slow("n3", "transmit", "eth2")],
        [("interface", ("n3",), "eth2", "transmit")],
    ),
    "lossy link": ([link("n1", "n6", "eth1")], [("link", ("n1", "n6"), "eth1", "both")]),
    "one-way blackhole between two": (
        [link("n6", "n1", "eth1", one_way=True)],
        [("link", ("n6", "n1"), "eth1", "forward")],
    ),
    "deaf interface": (
        [blackhole("n2", "receive", "eth1")],
        [("interface", ("n2",), "eth1", "receive")],
    ),
    "mute interface": (
        [blackhole("n2", "transmit", "eth1")],
        [("interface", ("n2",), "eth1", "transmit")],
    ),
    "dead node": ([dead("n5")], [("node", ("n5",), None, "both")]),
    "dead interface": ([dead("n5", "eth1")], [("interface", ("n5",), "eth1", "both")]),
    "mtu of an interface": ([mtu("n4", "eth2")], [("interface", ("n4",), "eth2", "both")]),
    "rack to rack": (
        [path(TWO_RACKS, "r0", "r1", "eth1")],
        [("path", ("r0", "r1"), "eth1", "both")],
    ),
    "rack to rack one way": (
        [path(TWO_RACKS, "r1", "r0", "eth1", one_way=True)],
        [("path", ("r1", "r0"), "eth1", "forward")],
    ),
    "node and link": (
        [slow("n3"), link("n0", "n6", "eth1")],
        [("link", ("n0", "n6"), "eth1", "both"), ("node", ("n3",), None, "both")],
    ),
    "two nodes that met": (
        [slow("n3"), slow("n5")],
        [("node", ("n3",), None, "both"), ("node", ("n5",), None, "both")],
    ),
    "slow sender met slow receiver": (
        [slow("n3", "transmit"), slow("n5", "receive")],
        [("node", ("n3",), None, "transmit"), ("node", ("n5",), None, "receive")],
    ),
    "interface and path": (
        [slow("n3", "both", "eth2"), path(TWO_RACKS, "r0", "r1", "eth1")],
        [("interface", ("n3",), "eth2", "both"), ("path", ("r0", "r1"), "eth1", "both")],
    ),
    "interface on the path's own plane": (
        [dead("n3", "eth1"), path(TWO_RACKS, "r0", "r1", "eth1")],
        [("interface", ("n3",), "eth1", "both"), ("path", ("r0", "r1"), "eth1", "both")],
    ),
    "an interface each way": (
        [slow("n3", "transmit", "eth1"), slow("n3", "receive", "eth2")],
        [("interface", ("n3",), "eth1", "transmit"), ("interface", ("n3",), "eth2", "receive")],
    ),
    "three of eight": (
        [dead("n0"), dead("n1"), dead("n6")],
        [("node", (node,), None, "both") for node in ("n0", "n1", "n6")],
    ),
    "healthy": ([], []),
}


@pytest.mark.parametrize("what", TABLE)
def test_each_fault_is_named(what):
    faults, expected = TABLE[what]
    seen = world(EIGHT, *faults)
    causes = localise(seen, TWO_RACKS)
    assert named(causes) == expected
    assert {bad for cause in causes for bad in cause.bad} == {bad for bad in seen if bad.bad}
    assert not any(cause.against for cause in causes)


def test_the_partners_are_the_healthy_ones():
    [first, second] = localise(world(EIGHT, slow("n3"), slow("n5")), TWO_RACKS)
    assert first.partners == second.partners == ("n0", "n1", "n2", "n4", "n6", "n7")


@pytest.mark.parametrize("direction", ["transmit", "receive", "both"])
def test_one_of_three_is_named(direction):
    nodes = names(3)
    assert named(localise(world(nodes, slow("n1", direction), planes=["eth1"]), {})) == [
        ("interface", ("n1",), "eth1", direction)
    ]


def test_one_link_of_three_is_named():
    assert named(localise(world(names(3), link("n0", "n2", "eth1"), planes=["eth1"]), {})) == [
        ("link", ("n0", "n2"), "eth1", "both")
    ]


@pytest.mark.parametrize(
    "fault", [slow("n0"), slow("n0", "transmit"), link("n0", "n1", "eth1"), dead("n1", "eth1")]
)
def test_two_hosts_cannot_tell(fault):
    [cause] = localise(world(names(2), fault, planes=["eth1"]), {})
    assert (cause.scope, cause.nodes, cause.further) == ("undecided", ("n0", "n1"), ())
    assert follow_up([cause], world(names(2), fault, planes=["eth1"]), {}) == []


@pytest.mark.parametrize("count", [2, 3, 4, 16])
def test_where_everything_is_bad_nobody_is_blamed(count):
    """What the operator calls slow, say."""
    seen = world(names(count), lambda *_any: True)
    [cause] = localise(seen, racks(names(count), 2), strays=False)
    assert (cause.scope, cause.plane, cause.further, cause.partners) == ("undecided", None, (), ())
    assert set(cause.nodes) == set(names(count))


def test_where_everything_measured_is_bad_other_pairs_would_decide():
    pairs = [("n0", "n1"), ("n2", "n3"), ("n1", "n2"), ("n3", "n0")]
    [cause] = localise(world(names(4), lambda *_any: True, planes=["eth1"], pairs=pairs), {})
    assert cause.scope == "undecided"
    assert sorted(cause.further) == [("eth1", "n0", "n2"), ("eth1", "n1", "n3")]


def test_one_partner_alone_is_not_enough():
    """n3 met n0 only: it, or their link. Others that are good would tell."""
    pairs = [("n0", "n1"), ("n1", "n2"), ("n0", "n2"), ("n0", "n3")]
    seen = world(names(4), dead("n3"), planes=["eth1"], pairs=pairs)
    [cause] = localise(seen, {})
    assert (cause.scope, cause.nodes, cause.partners) == ("undecided", ("n3",), ("n0",))
    assert cause.further == (("eth1", "n1", "n3"), ("eth1", "n2", "n3"))
    assert set(cause.further) <= set(follow_up([cause], seen, {}))


def test_partners_who_are_good_with_nobody_else_have_no_word():
    """n0 was measured with n1 and n2, which were measured with no other node."""
    seen = world(
        names(5), dead("n0"), planes=["eth1"], pairs=[("n0", "n1"), ("n0", "n2"), ("n3", "n4")]
    )
    [cause] = localise(seen, {})
    assert (cause.scope, cause.nodes) == ("undecided", ("n0", "n1", "n2"))


def test_good_pings_do_not_vouch_for_rates():
    """n0's partners have good pings with others, but their rates were not measured."""
    seen = world(names(5), slow("n0"), planes=["eth1"])
    seen = [obs for obs in seen if not obs.directed or "n0" in obs[1:3]]
    [cause] = localise(seen, {})
    assert cause.scope == "undecided"


def test_pings_alone_have_no_direction():
    seen = [obs for obs in world(EIGHT, blackhole("n2", "transmit", "eth1")) if not obs.directed]
    assert named(localise(seen, {})) == [("interface", ("n2",), "eth1", "both")]


def test_a_direction_is_named_only_when_the_other_was_seen_good():
    seen = [obs for obs in world(EIGHT, slow("n2", "transmit", "eth1")) if obs.target != "n2"]
    assert named(localise(seen, {})) == [("interface", ("n2",), "eth1", "both")]
    seen = [
        obs
        for obs in world(EIGHT, link("n1", "n6", "eth1", one_way=True))
        if obs[:3] != ("eth1", "n6", "n1")
    ]
    assert named(localise(seen, {})) == [("link", ("n1", "n6"), "eth1", "both")]


def test_a_plane_on_which_the_other_direction_was_not_seen_is_no_other_fault():
    seen = [
        obs
        for obs in world(EIGHT, slow("n2", "transmit"))
        if not (obs.plane == "eth2" and obs.target == "n2")
    ]
    assert named(localise(seen, {})) == [("node", ("n2",), None, "transmit")]


def test_a_node_needs_one_word_only_on_its_other_plane():
    seen = [
        obs
        for obs in world(EIGHT, dead("n2"))
        if obs.plane == "eth1" or "n2" not in obs[1:3] or "n0" in obs[1:3]
    ]
    assert named(localise(seen, {})) == [("node", ("n2",), None, "both")]


def test_a_good_one_among_many_bad_is_tolerated_and_told():
    seen = [
        obs._replace(bad=False) if obs[:3] == ("eth1", "n3", "n6") else obs
        for obs in world(EIGHT, slow("n3", "transmit"))
    ]
    [cause] = localise(seen, TWO_RACKS)
    assert (cause.scope, cause.nodes, cause.direction) == ("node", ("n3",), "transmit")
    assert [obs[:3] for obs in cause.against] == [("eth1", "n3", "n6")]


def test_an_interface_that_comes_and_goes_is_named_not_its_links():
    """Bad with four of seven partners: more than links by chance."""
    bad = [link("n3", partner, "eth1") for partner in ("n0", "n1", "n6", "n7")]
    [cause] = localise(world(EIGHT, *bad), TWO_RACKS)
    assert (cause.scope, cause.nodes, cause.plane) == ("interface", ("n3",), "eth1")
    assert {"n0", "n1", "n6", "n7"} == set(cause.partners)
    assert len(cause.against) == 3 * 3
    assert (round(cause.share, 2), cause.chance < 0.001) == (0.57, True)


def test_an_interface_that_lost_its_witnesses_hides_no_bad_link():
    # d comes and goes with three partners, which turn out to come and go themselves, with others
    # too. Nobody is left to blame d, so that its bad pair with h is a bad link.
    others = names(12)
    ill = {("d", partner): 7 for partner in ("p0", "p1", "p2", "h")}
    met = [*ill, ("d", "n0"), ("d", "n1"), *itertools.combinations(others, 2)]
    met += [("h", node) for node in others[:6]]
    for number in range(3):
        mine = [(f"p{number}", others[(3 * number + place) % 12]) for place in range(6)]
        ill.update(dict.fromkeys(mine[:3], 5))
        met += mine
    seen = [
        one("eth1", source, target, False, bad > 4, "loss")._replace(counts=(bad, 8))
        for source, target in met
        for bad in [ill.get((source, target), 0)]
    ]
    groups = {node: "rack 1" for ends in met for node in ends}
    causes = {(cause.scope, cause.nodes) for cause in localise(seen, groups)}
    assert causes == {
        *(("interface", (f"p{number}",)) for number in range(3)),
        ("link", ("d", "h")),
    }


def test_a_link_towards_a_slow_sender_is_a_link():
    """What the sender receives is good elsewhere."""
    causes = localise(
        world(
            EIGHT,
            slow("n3", "transmit", "eth1"),
            link("n6", "n3", "eth1", one_way=True),
            pings=False,
        ),
        TWO_RACKS,
    )
    assert named(causes) == [
        ("interface", ("n3",), "eth1", "transmit"),
        ("link", ("n3", "n6"), "eth1", "both"),
    ]


def test_two_bad_links_of_a_node_are_two_links():
    causes = localise(world(EIGHT, link("n3", "n0", "eth1"), link("n3", "n6", "eth1")), TWO_RACKS)
    assert named(causes) == [
        ("link", ("n0", "n3"), "eth1", "both"),
        ("link", ("n3", "n6"), "eth1", "both"),
    ]


@pytest.mark.parametrize(
    "missing", [obs for obs in world(names(4), planes=["eth1"]) if "n1" in obs[1:3]]
)
def test_a_missing_good_one_is_no_reason_to_blame(missing):
    """Between four nodes with one bad link, whatever else was not seen."""
    seen = [
        obs for obs in world(names(4), link("n1", "n2", "eth1"), planes=["eth1"]) if obs != missing
    ]
    assert {cause.scope for cause in localise(seen, {})} <= {"link", "undecided"}


# ---- groups ----


def test_a_dead_node_in_a_group_of_two_is_no_path():
    groups = dict(TWO_RACKS, n6="r2", n7="r2")
    assert named(localise(world(EIGHT, dead("n7")), groups)) == [("node", ("n7",), None, "both")]


def test_a_node_that_is_its_whole_group_is_a_node():
    groups = dict(TWO_RACKS, n7="r2")
    assert named(localise(world(EIGHT, dead("n7")), groups)) == [("node", ("n7",), None, "both")]


def test_two_dead_nodes_that_are_a_whole_group_are_nodes():
    groups = dict(TWO_RACKS, n6="r2", n7="r2")
    assert named(localise(world(EIGHT, dead("n6"), dead("n7")), groups)) == [
        ("node", ("n6",), None, "both"),
        ("node", ("n7",), None, "both"),
    ]


def test_a_path_from_a_group_of_two_is_no_node():
    groups = {node: "r1" if node in ("n6", "n7") else "r0" for node in EIGHT}
    assert named(localise(world(EIGHT, path(groups, "r0", "r1", "eth1")), groups)) == [
        ("path", ("r0", "r1"), "eth1", "both")
    ]


def test_a_group_of_two_that_did_not_meet_is_undecided():
    """Their path or both of them: the pair within would tell."""
    groups = {node: "r1" if node in ("n6", "n7") else "r0" for node in EIGHT}
    pairs = [pair for pair in itertools.combinations(EIGHT, 2) if pair != ("n6", "n7")]
    [cause] = localise(
        world(EIGHT, path(groups, "r0", "r1", "eth1"), planes=["eth1"], pairs=pairs), groups
    )
    assert (cause.scope, cause.nodes, cause.groups) == ("undecided", ("n6", "n7"), ("r0", "r1"))
    assert ("eth1", "n6", "n7") in follow_up(
        [cause], world(EIGHT, planes=["eth1"], pairs=pairs), groups
    )


def test_a_path_on_every_plane_is_a_cause_on_each():
    faults = [path(TWO_RACKS, "r0", "r1", plane) for plane in PLANES]
    assert named(localise(world(EIGHT, *faults), TWO_RACKS)) == [
        ("path", ("r0", "r1"), plane, "both") for plane in PLANES
    ]


def test_one_path_of_many():
    nodes = names(16)
    groups = racks(nodes, 4)
    assert named(localise(world(nodes, path(groups, "r1", "r3", "eth1")), groups)) == [
        ("path", ("r1", "r3"), "eth1", "both")
    ]


def test_a_group_cut_off_from_all_others_is_one_path():
    nodes = names(16)
    groups = racks(nodes, 4)
    causes = localise(world(nodes, uplink(groups, "r2"), planes=["eth1"]), groups)
    assert named(causes) == [("path", ("r2", ELSEWHERE), "eth1", "both")]
    assert repeated(causes[0], [one("eth1", "n8", "n0")], groups) is True
    assert repeated(causes[0], [one("eth1", "n8", "n9")], groups) is None


def test_what_connects_the_groups_is_one_path():
    nodes = names(16)
    groups = racks(nodes, 4)
    [cause] = localise(
        world(
            nodes,
            lambda _on, source, target, _directed: groups[source] != groups[target],
            planes=["eth1"],
        ),
        groups,
    )
    assert (cause.scope, cause.groups, cause.against) == ("path", (ELSEWHERE, ELSEWHERE), ())
    again = follow_up([cause], world(nodes, planes=["eth1"]), groups)
    assert len(again) == 2 and all(
        groups[first] != groups[second] for _plane, first, second in again
    )


def test_where_a_third_of_everything_is_bad_nobody_is_blamed():
    """Among so many, some are bad with nearly everybody they met by chance: flows that share uplinks,
    say. A single bad pair proves nothing either."""
    rng = random.Random(7)
    nodes = names(400)
    pairs = [pair for _turn in range(5) for pair in zip(*[iter(rng.sample(nodes, 400))] * 2)]
    seen = world(
        nodes, lambda *_any: rng.random() < 0.33, planes=["eth1"], pairs=pairs, pings=False
    )
    bad = {
        node: [[obs.bad for obs in seen if obs[side] == node] for side in (1, 2)] for node in nodes
    }
    assert any(sum(way) >= 4 for ways in bad.values() for way in ways)
    assert localise(seen, {}) == []


def test_scattered_links_are_no_path():
    """Among hundreds of paths with two pairs each, two bad links meet on one by chance."""
    nodes = names(64)
    groups = racks(nodes, 2)
    paths = list(itertools.combinations(range(32), 2))
    pairs = [
        (f"n{2 * first + side}", f"n{2 * second + side}")
        for first, second in paths
        for side in (0, 1)
    ]
    on_one = [link("n0", "n2", "eth1"), link("n1", "n3", "eth1")]
    elsewhere = [link(*pair, "eth1") for pair in pairs[100:900:60]]
    causes = localise(world(nodes, *on_one, *elsewhere, planes=["eth1"], pairs=pairs), groups)
    assert {cause.scope for cause in causes} == {"link"}
    # The links are too few to tell, so the retest looks across the path too.
    across = [
        pair
        for pair in follow_up(causes, world(nodes, planes=["eth1"], pairs=pairs), groups)
        if {groups[pair[1]], groups[pair[2]]} == {"r0", "r1"}
    ]
    assert sorted(across) == [
        ("eth1", "n0", "n2"),
        ("eth1", "n0", "n3"),
        ("eth1", "n1", "n2"),
        ("eth1", "n1", "n3"),
    ]


# ---- the retest ----


def test_suspects_meet_proven_partners_and_suspect_links_again():
    seen = world(EIGHT, slow("n3", "both", "eth2"), link("n0", "n6", "eth1"))
    pairs = follow_up(localise(seen, TWO_RACKS), seen, TWO_RACKS)
    assert ("eth1", "n0", "n6") in pairs
    partners = [
        ({first, second} - {"n3"}).pop() for plane, first, second in pairs if plane == "eth2"
    ]
    assert len(set(partners)) == len(partners) == 3


def test_suspects_never_vouch_for_each_other_and_partners_are_spread():
    nodes = names(40)
    groups = racks(nodes, 8)
    bad = ("n0", "n1", "n9", "n17", "n30")
    seen = world(nodes, *(slow(node, "transmit", "eth1") for node in bad), planes=["eth1"])
    pairs = follow_up(localise(seen, groups), seen, groups)
    counts = {node: sum(node in pair for pair in pairs) for node in nodes}
    assert all(len({first, second} & set(bad)) == 1 for _plane, first, second in pairs)
    assert {counts[node] for node in bad} == {3}
    assert max(counts[node] for node in nodes if node not in bad) == 1
    for node in bad:
        among = [
            groups[({first, second} - {node}).pop()]
            for _plane, first, second in pairs
            if node in (first, second)
        ]
        # One of its own group, so that no path between groups is at fault.
        assert len(set(among)) == 3 and groups[node] in among


def test_partners_not_met_yet_are_preferred():
    nodes = names(12)
    pairs = [
        pair
        for pair in itertools.combinations(nodes, 2)
        if pair not in [("n0", partner) for partner in ("n5", "n8", "n11")]
    ]
    seen = world(nodes, dead("n0"), planes=["eth1"], pairs=pairs)
    assert follow_up(localise(seen, {}), seen, {}) == [
        ("eth1", "n0", "n11"),
        ("eth1", "n0", "n5"),
        ("eth1", "n0", "n8"),
    ]


def test_a_suspect_on_two_planes_has_two_partners_on_each():
    seen = world(EIGHT, dead("n3"))
    pairs = follow_up(localise(seen, TWO_RACKS), seen, TWO_RACKS)
    assert sorted(plane for plane, *_ends in pairs) == ["eth1"] * 2 + ["eth2"] * 2


def test_a_suspect_path_is_crossed_again_and_its_groups_within():
    seen = world(EIGHT, path(TWO_RACKS, "r0", "r1", "eth1"))
    pairs = follow_up(localise(seen, TWO_RACKS), seen, TWO_RACKS)
    between = [
        tuple(sorted((TWO_RACKS[first], TWO_RACKS[second]))) for _plane, first, second in pairs
    ]
    assert sorted(between) == [("r0", "r0"), ("r0", "r1"), ("r0", "r1"), ("r1", "r1")]


def test_what_the_second_pass_says_of_a_cause():
    [sender] = localise(world(EIGHT, slow("n3", "transmit")), TWO_RACKS)
    assert (
        repeated(
            sender,
            [one("eth2", "n3", "n7"), one("eth1", "n3", "n6"), one("eth1", "n3", "n5", bad=False)],
        )
        is True
    )
    assert repeated(sender, [one("eth2", "n3", "n7"), one("eth1", "n3", "n6", bad=False)]) is False
    assert (
        repeated(
            sender,
            [
                one("eth2", "n7", "n3"),
                one("eth1", "n6", "n7"),
                one("eth1", "n3", "n5", directed=False),
            ],
        )
        is None
    )
    [lossy] = localise(world(EIGHT, link("n6", "n1", "eth1", one_way=True)), TWO_RACKS)
    assert repeated(lossy, [one("eth1", "n6", "n1", bad=False)]) is False
    assert repeated(lossy, [one("eth1", "n1", "n6", bad=False), one("eth2", "n6", "n1")]) is None
    [across] = localise(world(EIGHT, path(TWO_RACKS, "r1", "r0", "eth1", one_way=True)), TWO_RACKS)
    assert repeated(across, [one("eth1", "n7", "n0")], TWO_RACKS) is True
    assert repeated(across, [one("eth1", "n0", "n7"), one("eth1", "n0", "n1")], TWO_RACKS) is None


def lossy_ways(*pairs):
    """Pings of these pairs get lost; without rates."""
    return [
        obs
        for obs in world(EIGHT, *(link(*pair, "eth1") for pair in pairs), planes=["eth1"])
        if not obs.directed
    ]


def test_several_lossy_pairs_between_groups_are_one_path_and_its_bad_pairs_decide():
    seen = lossy_ways(("n0", "n5"), ("n2", "n7"))
    [cause] = localise(seen, TWO_RACKS)
    assert (cause.scope, cause.groups) == ("path", ("r0", "r1"))
    assert cause.share == 2 / 16
    again = follow_up([cause], seen, TWO_RACKS)
    assert {("eth1", "n0", "n5"), ("eth1", "n2", "n7")} <= set(again)
    others = [one("eth1", "n1", "n4", False, False), one("eth1", "n3", "n6", False, False)]
    bad = one("eth1", "n0", "n5", False)
    assert repeated(cause, [bad, *others], TWO_RACKS) is True
    assert repeated(cause, [bad._replace(bad=False), *others], TWO_RACKS) is False


def test_lossy_pairs_between_groups_with_a_common_node_stay_links():
    assert named(localise(lossy_ways(("n0", "n5"), ("n2", "n5")), TWO_RACKS)) == [
        ("link", ("n0", "n5"), "eth1", "both"),
        ("link", ("n2", "n5"), "eth1", "both"),
    ]


def test_a_lossy_link_on_one_plane_stays_although_the_same_pair_is_part_of_a_path_on_another():
    lossy = {("eth1", "n0", "n5"), ("eth1", "n2", "n7"), ("eth2", "n0", "n5")}
    seen = [
        one(plane, *ends, False, (plane, *ends) in lossy)
        for plane in PLANES
        for ends in itertools.combinations(EIGHT, 2)
    ]
    assert named(localise(seen, TWO_RACKS)) == [
        ("link", ("n0", "n5"), "eth2", "both"),
        ("path", ("r0", "r1"), "eth1", "both"),
    ]


def test_a_node_without_a_good_rate_is_retested_although_an_unsure_path_covers_the_node():
    seen = world(EIGHT, path(TWO_RACKS, "r0", "r1", "eth1"), planes=["eth1"], pings=False)
    [cause] = localise(seen, TWO_RACKS)
    never_good = [obs for obs in seen if "n3" not in obs.ends or obs.bad]
    sure, unsure = (
        follow_up([cause._replace(chance=chance)], never_good, TWO_RACKS) for chance in (0.0, 0.05)
    )
    assert sum("n3" in pair for pair in unsure) >= 3 > sum("n3" in pair for pair in sure)


def test_a_node_that_loses_pings_to_another_group_alone_is_no_sure_fault():
    bad = [("n0", "n5"), ("n1", "n5"), ("n3", "n5")]
    [cause] = localise(lossy_ways(*bad), TWO_RACKS)
    assert cause.nodes == ("n5",) and cause.chance > 0.8
    [within_too] = localise(lossy_ways(*bad, ("n4", "n5")), TWO_RACKS)
    assert within_too.nodes == ("n5",) and within_too.chance < 0.001


# ---- properties ----

FAULTS = {
    "transmit": lambda nodes, plane: (
        [slow(nodes[0], "transmit", plane)],
        ("interface", nodes[:1], plane, "transmit"),
    ),
    "receive": lambda nodes, plane: (
        [slow(nodes[0], "receive", plane)],
        ("interface", nodes[:1], plane, "receive"),
    ),
    "both": lambda nodes, plane: ([slow(nodes[0])], ("node", nodes[:1], None, "both")),
    "dead": lambda nodes, plane: ([dead(nodes[0], plane)], ("interface", nodes[:1], plane, "both")),
    "deaf": lambda nodes, plane: (
        [blackhole(nodes[0], "receive", plane)],
        ("interface", nodes[:1], plane, "receive"),
    ),
    "mtu": lambda nodes, plane: ([mtu(nodes[0], plane)], ("interface", nodes[:1], plane, "both")),
    "link": lambda nodes, plane: (
        [link(*nodes, plane)],
        ("link", tuple(sorted(nodes)), plane, "both"),
    ),
    "one way": lambda nodes, plane: (
        [link(*nodes, plane, one_way=True)],
        ("link", nodes, plane, "forward"),
    ),
}


@given(
    st.integers(6, 16),
    st.integers(1, 8),
    st.sampled_from(sorted(FAULTS)),
    st.sampled_from(PLANES),
    st.data(),
)
def test_a_single_fault_is_named_exactly(count, size, fault, plane, data):
    nodes = names(count)
    chosen = tuple(data.draw(st.permutations(nodes))[:2])
    faults, expected = FAULTS[fault](chosen, plane)
    assert named(localise(world(nodes, *faults), racks(nodes, size))) == [expected]


@given(
    st.integers(0, 9),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30),
    st.booleans(),
)
def test_healthy_is_no_cause(count, size, pairs, pings):
    nodes = names(9)
    pairs = [(f"n{first}", f"n{second}") for first, second in pairs]
    assert localise(world(nodes, pairs=pairs, pings=pings), racks(nodes, size)) == []


OBSERVATIONS = st.lists(
    st.tuples(
        st.integers(0, 7), st.integers(0, 7), st.booleans(), st.sampled_from([False, True, True])
    ).filter(lambda one: one[0] != one[1]),
    max_size=60,
    unique_by=lambda one: one[:3],
)


def told(causes, new=None):
    """Causes with other names, whatever the order in them."""
    new = new or {}
    said = []
    for cause in causes:
        ordered = list if cause.direction == "forward" and cause.scope != "undecided" else sorted
        nodes, partners = (
            [new.get(node, node) for node in several]
            for several in (cause.nodes, cause.partners if cause.scope != "link" else ())
        )
        bad = sorted(
            (new.get(bad.source, bad.source), new.get(bad.target, bad.target), bad.directed)
            for bad in cause.bad
        )
        said.append(
            (
                cause.scope,
                cause.plane or "",
                cause.direction,
                ordered(nodes),
                ordered(cause.groups),
                sorted(partners),
                bad,
            )
        )
    return sorted(said)


@given(OBSERVATIONS, st.permutations(range(8)), st.randoms(use_true_random=False))
def test_names_and_order_change_nothing(drawn, order, chance):
    nodes = names(8)
    new = {f"n{number}": f"n{place}" for number, place in enumerate(order)}
    groups = racks(nodes, 3)
    seen = [
        one("eth1", f"n{source}", f"n{target}", directed, bad)
        for source, target, directed, bad in drawn
    ]
    renamed = [obs._replace(source=new[obs.source], target=new[obs.target]) for obs in seen]
    chance.shuffle(renamed)
    causes = localise(seen, groups)
    assert told(causes, new) == told(
        localise(renamed, {new[node]: group for node, group in groups.items()})
    )


@given(OBSERVATIONS, st.integers(1, 8))
def test_whatever_was_seen_all_that_is_bad_is_explained_and_nobody_is_blamed_on_one_word(
    drawn, size
):
    seen = [
        one("eth1", f"n{source}", f"n{target}", directed, bad)
        for source, target, directed, bad in drawn
    ]
    groups = racks(names(8), size)
    causes = localise(seen, groups)
    explained = {bad for cause in causes for bad in cause.bad}
    assert explained <= {obs for obs in seen if obs.bad}
    # Of several slow pairs with a part that is slow at times, the others are more of the same.
    if not any(cause.share < 0.8 for cause in causes):
        assert explained == {obs for obs in seen if obs.bad}
    named = {cause.nodes[0] for cause in causes if cause.scope in ("node", "interface")}
    for cause in causes:
        assert not any(good.bad for good in cause.against)
        if cause.scope in ("node", "interface"):
            assert len(cause.partners) >= 2 and not named & set(cause.partners)
            assert len(cause.against) <= 0.25 * len(cause.bad) or len(cause.partners) >= 3
            for partner in cause.partners:
                assert any(
                    not obs.bad and partner in obs[1:3] and not named & set(obs[1:3])
                    for obs in seen
                )
    for plane, first, second in follow_up(causes, seen, groups):
        assert plane == "eth1" and first < second


# ---- at size ----


#: One good link in a hundred that look bad by chance looks bad again each way when it is measured
#: again.
@pytest.mark.parametrize(("kind", "precision"), [("nodes", 0.99), ("links", 0.9), ("paths", 0.99)])
def test_what_is_bad_among_64_is_found_through_the_noise(kind, precision):
    outcomes = [localising.simulate(64, kind, seed) for seed in range(8)]
    total = localising.Score()
    for outcome in outcomes:
        total += outcome.score
    assert total.precision >= precision
    assert total.recall >= 0.99
    assert [outcome.innocent for outcome in outcomes] == [0] * 8
