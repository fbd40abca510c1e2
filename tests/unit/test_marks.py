# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The marks: every state with every event, nodes with anything in them, and what is written to
them.
"""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    mark_writer,
    mark_states,
    mark_on_node,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.marks import (
    EVICT,
    MARKS,
    NONE,
    PASS,
    TESTING,
    WARN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    Checked,
    Refresh,
    Removed,
    Rules,
    Set,
    State,
    settled,
    step,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    Test as Lease,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    TestingAbandoned as Abandoned,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    TestingBegan as Began,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    TestingEnded as Ended,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import STATUSES

NOW = 1_800_000_000.0
HOUR = 3600.0
RULES = Rules()
KEY = RULES.label_key
RECORD = mark_on_node.record_key(RULES)

#: Leases: valid, within the skew, over, longer than any may be, and none that can be read.
UNTILS = (NOW + HOUR, NOW - 30, NOW - 61, NOW + 4 * HOUR, -math.inf)
WHOSE = [("mine", until) for until in UNTILS] + [("theirs", until) for until in UNTILS[1:3]]
TESTS = (
    None,
    *(
        Lease(name, "agent/a", until, base, seen)
        for name, until in WHOSE
        for base in (NONE, PASS, WARN, EVICT)
        for seen in (NONE, PASS, WARN)
    ),
)
#: Every state that can be read from a node, whatever nonsense it is.
STATES = [
    State(mark, "as before", "somebody", "r0", NOW - 10 * HOUR, test)
    for mark in MARKS
    for test in TESTS
]
EVENTS = [
    *(Checked(status, "news") for status in STATUSES),
    *(Checked(status, "old news", NOW - 11 * HOUR) for status in STATUSES),
    *(
        Ended(name, outcome, 3, ("pcie.3",), "outcome")
        for name in ("mine", "-")
        for outcome in mark_states.OUTCOMES
    ),
    Began("mine", HOUR),
    Began("new", HOUR),
    Abandoned("agent/a"),
    Abandoned("agent/b"),
    *(Set(mark, "word") for mark in MARKS if mark != TESTING),
    Refresh(),
    Removed(),
]
PAIRS = list(itertools.product(STATES, EVENTS))


def is_valid(test):
    return test is not None and NOW - 60 <= test.until <= NOW + 3 * HOUR + 60


def is_evicted(state):
    """EVICT, whether it says so or somebody has put TESTING over it."""
    return state.mark == EVICT or (
        state.mark == TESTING and state.test is not None and state.test.base == EVICT
    )


def say(state, event):
    return step(state, event, NOW, "me", "r1")


def test_evict_is_left_only_by_a_passing_diagnostic_that_began_then_or_by_a_person():
    left = [
        (state, event)
        for state, event in PAIRS
        if is_evicted(state) and say(state, event).state.mark != EVICT
    ]
    by_a_person = [(state, event) for state, event in left if isinstance(event, (Set, Removed))]
    by_passing = [
        (state, event)
        for state, event in left
        if isinstance(event, Ended)
        and event.outcome == "pass"
        and state.test.id == event.id
        and state.test.base == EVICT
    ]
    assert len(left) == len(by_a_person) + len(by_passing) and by_a_person and by_passing


def test_evict_is_entered_only_by_a_fatal_diagnostic_of_which_nothing_is_older_or_by_a_person():
    entered = [
        (state, event)
        for state, event in PAIRS
        if not is_evicted(state) and say(state, event).state.mark == EVICT
    ]
    assert entered
    for state, event in entered:
        assert event == Set(EVICT, "word") or (
            isinstance(event, Ended) and event.outcome == "fatal" and state.test.id == event.id
        )


@pytest.mark.parametrize(
    "event",
    [
        Checked("unknown", "x"),
        Checked("skip", "x"),
        Ended("mine", "unknown", 3),
        Refresh(),
        Abandoned("agent/a"),
    ],
    ids=lambda event: (
        f"{type(event).__name__}-{getattr(event, 'status', getattr(event, 'outcome', ''))}"
    ),
)
def test_what_cannot_be_told_makes_nothing_better_and_never_evicts(event):
    for state in STATES:
        after = say(state, event).state
        assert after.mark != EVICT or is_evicted(state)
        if after.mark == PASS and state.mark != PASS:
            # Then it is what it was before a test, or what checks said during it.
            assert (
                state.mark == TESTING
                and PASS in (state.test.base, state.test.seen)
                and state.test.seen != WARN
            )


def test_nothing_but_a_pass_of_checks_a_diagnostic_or_a_person_leads_to_pass():
    for state, event in PAIRS:
        after = say(state, event).state
        if after.mark == PASS and state.mark not in (PASS, TESTING):
            passed = (isinstance(event, Checked) and event.status == "pass") or (
                isinstance(event, Ended) and event.outcome == "pass"
            )
            assert passed or event == Set(PASS, "word"), (state, event)


def test_what_a_check_found_while_a_diagnostic_ran_outlasts_a_diagnostic_that_passes():
    for state in STATES:
        if (
            state.test
            and state.test.id == "mine"
            and state.mark == TESTING
            and state.test.seen == WARN
            and state.test.base != EVICT
        ):
            assert say(state, Ended("mine", "pass", 3)).state.mark == WARN
    begun = say(State(PASS), Began("mine", HOUR)).state
    for statuses, mark in (
        (["fail"], WARN),
        (["unknown"], WARN),
        (["fail", "pass"], PASS),
        (["fail", "unknown"], WARN),
        ([], PASS),
        (["skip"], PASS),
    ):
        state = begun
        for status in statuses:
            state = say(state, Checked(status)).state
            assert state.mark == TESTING
        assert say(state, Ended("mine", "pass", 3)).state.mark == mark, statuses
        assert say(state, Ended("mine", "unknown", 3)).state.mark == mark, statuses


def test_testing_always_ends():
    for state, event in PAIRS:
        after = say(state, event).state
        # As long as no lease can be: it is over, and so is one that this look has found without a
        # lease.
        for later in (3 * HOUR + 61, 30 * 24 * HOUR):
            assert settled(after, NOW + later).mark != TESTING
        # A clock that was set back by a day makes no lease longer.
        assert settled(after, NOW - 24 * HOUR).mark != TESTING
        if after.mark == TESTING:
            assert is_valid(after.test)


def test_a_lease_that_is_valid_keeps_others_out_and_one_that_is_over_does_not():
    for state in STATES:
        begun = say(state, Began("new", HOUR))
        found = state.mark == TESTING and state.test is None
        held = found or (state.mark in (TESTING, EVICT) and is_valid(state.test))
        assert bool(begun.refused) == held, state
        if not held:
            assert begun.state.test == Lease("new", "me", NOW + HOUR, settled(state, NOW).mark)
            assert begun.state.mark == (EVICT if is_evicted(state) else TESTING)
        again = say(begun.state, Began("new", 2 * HOUR))
        assert held or (
            not again.refused
            and again.state.test.until == NOW + 2 * HOUR
            and again.state.test.base == begun.state.test.base
        )


@pytest.mark.parametrize(
    "mark, status, expected",
    [
        *((mark, "pass", PASS) for mark in (NONE, PASS, WARN)),
        *(
            (mark, status, WARN)
            for mark in (NONE, PASS, WARN)
            for status in ("warn", "fail", "unknown")
        ),
        *((mark, "skip", mark) for mark in MARKS),
        *((mark, status, mark) for mark in (TESTING, EVICT) for status in STATUSES),
    ],
)
def test_what_checks_say(mark, status, expected):
    assert (
        say(
            State(mark, test=Lease("theirs", "agent/a", NOW + HOUR) if mark == TESTING else None),
            Checked(status, "x"),
        ).state.mark
        == expected
    )


def test_a_warning_says_whether_it_could_not_be_told():
    assert (
        say(State(PASS), Checked("unknown", "the driver hangs")).state.reason
        == "could not tell: the driver hangs"
    )
    known = State(WARN, "GPU 3: remap pending", "somebody", "r0", NOW - HOUR)
    untold = say(known, Checked("unknown", "the driver hangs")).state
    assert untold == known._replace(fitness="unknown")
    worse = say(known, Checked("fail", "GPU 3 is lost")).state
    assert worse == State(WARN, "GPU 3 is lost", "me", "r1", NOW - HOUR, fitness="unfit")


@pytest.mark.parametrize(
    "outcome, base, expected",
    [
        ("pass", NONE, PASS),
        ("pass", PASS, PASS),
        ("pass", WARN, PASS),
        ("pass", EVICT, PASS),
        ("failed", NONE, WARN),
        ("failed", PASS, WARN),
        ("failed", WARN, WARN),
        ("failed", EVICT, EVICT),
        ("fatal", NONE, EVICT),
        ("fatal", PASS, EVICT),
        ("fatal", WARN, EVICT),
        ("fatal", EVICT, EVICT),
        ("unknown", NONE, NONE),
        ("unknown", PASS, PASS),
        ("unknown", WARN, WARN),
        ("unknown", EVICT, EVICT),
    ],
)
def test_how_a_diagnostic_ends(outcome, base, expected):
    begun = say(State(base, since=NOW - HOUR), Began("mine", HOUR)).state
    ended = say(begun, Ended("mine", outcome, 3, (), "why")).state
    assert (ended.mark, ended.test) == (expected, None)
    # The same late, when its lease had led back already: what it says still counts.
    late = step(
        settled(begun, NOW + 2 * HOUR), Ended("mine", outcome, 3, (), "why"), NOW + 2 * HOUR, "me"
    ).state
    assert late.mark == (WARN if (outcome, base) == ("pass", WARN) else expected)


@pytest.mark.parametrize("outcome", ["failed", "fatal"])
def test_what_a_diagnostic_found_outlasts_checks_lower_levels_and_restarts(outcome):
    """Nothing but the node remembers it when the agent has been restarted; ``refusal``: a fatal
    failure beyond the share is WARN.
    """

    def after(node, level, outcome):
        begun, _decision = told(node, Began("again", HOUR))
        return told(begun, Ended("again", outcome, level, (), "a diagnostic"))[0]

    node, _decision = told(
        told(a_node("PASS"), Began("mine", HOUR))[0],
        Ended("mine", outcome, 3, ("pcie.3",), "PCIe of GPU 3"),
        refusal="too many are EVICT",
    )
    for _hour in range(3):
        node, decision = told(node, Checked("pass"))
        assert label(node) == "WARN" and "dcgm.level.3.output" in decision.state.reason
    tested, _decision = told(told(node, Began("other", HOUR))[0], Checked("pass"))
    assert (
        label(told(tested, Ended("other", "unknown", 3))[0])
        == label(told(tested, Abandoned("me"))[0])
        == "WARN"
    )
    assert label(told(tested, Refresh(), now=NOW + 2 * HOUR)[0]) == "WARN"
    by_hand = told(
        dict(node, metadata=dict(node["metadata"], labels={KEY: "TESTING"})), Checked("pass")
    )[0]
    assert (
        label(told(told(by_hand, Refresh(), now=NOW + 2 * HOUR)[0], Checked("pass"))[0]) == "WARN"
    )
    assert (
        label(after(node, 2, "pass"))
        == label(told(after(node, 2, "pass"), Checked("pass"))[0])
        == "WARN"
    )
    for level in (3, 4):
        assert (
            label(after(node, level, "pass"))
            == label(told(after(node, level, "pass"), Checked("pass"))[0])
            == "PASS"
        )
    assert label(told(told(node, Set(PASS, "new board"))[0], Checked("pass"))[0]) == "PASS"


def test_a_lower_level_does_not_end_an_evict():
    node, _decision = told(told(a_node("PASS"), Began("a", HOUR))[0], Ended("a", "fatal", 3))
    lower, _decision = told(told(node, Began("b", HOUR))[0], Ended("b", "pass", 2))
    assert (label(node), label(lower)) == ("EVICT", "EVICT")
    assert label(told(told(lower, Began("c", HOUR))[0], Ended("c", "pass", 3))[0]) == "PASS"


def test_a_diagnostic_that_is_older_than_a_persons_word_neither_clears_nor_evicts():
    begun = say(State(EVICT), Began("mine", HOUR)).state
    again = say(begun, Set(EVICT, "smells of smoke")).state
    assert say(again, Ended("mine", "pass", 3)).state == again
    mended = say(begun, Set(PASS, "new board")).state
    assert say(mended, Ended("mine", "fatal", 3)).state.mark == WARN


def test_news_that_were_long_on_their_way_do_not_cover_newer_ones():
    warned = State(WARN, "GPU 3 is lost", "a playbook", "r9", NOW - 600)
    assert say(warned, Checked("pass", "", NOW - 3000)).state == warned
    assert say(warned, Checked("pass", "", NOW - 500)).state.mark == PASS
    # A mark from a clock that is ahead blocks other writers for no longer than that offset.
    assert (
        say(warned._replace(since=NOW + 9 * HOUR), Checked("pass", "", NOW - 3000)).state.mark
        == PASS
    )


@pytest.mark.parametrize(
    "event, words",
    [
        (Checked("ok"), "status: 'ok'"),
        (Began("a", 0), "lease: 0"),
        (Began("a", 4 * HOUR), "lease: 14400"),
        (Began("a", math.nan), "lease: nan"),
        (Ended("a", "PASS", 3), "outcome 'PASS'"),
        (Ended("a", "pass", 7), "level 7"),
        (Set("BAD"), "mark: 'BAD'"),
        (Set(TESTING), "mark: 'TESTING'"),
    ],
)
def test_events_that_mean_nothing_are_refused(event, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        say(State(), event)


@pytest.mark.parametrize(
    "rules, option",
    [
        ({"label_key": "a b"}, "label_key"),
        ({"label_key": "example.org/"}, "label_key"),
        ({"label_key": "Example.org/x"}, "label_key"),
        ({"label_key": "x" * 57}, "label_key"),
        ({"taint": "Evict"}, "taint"),
        ({"max_bad_share": 1.5}, "max_bad_share"),
        ({"max_bad_share": math.nan}, "max_bad_share"),
        ({"namespace": "a/b"}, "namespace"),
        ({"namespace": ""}, "namespace"),
        ({"slack_queue": "a b"}, "slack_queue"),
    ],
)
def test_rules_that_mean_nothing_are_refused(rules, option):
    with pytest.raises(ValueError, match=f"^{option}: .* is invalid; expected"):
        mark_states.validate_rules(Rules(**rules))


def test_rules_are_accepted_as_they_are_meant():
    mark_states.validate_rules(RULES)
    mark_states.validate_rules(Rules("health", "NoExecute", True, False, 1, "gpu-ops"))


# ---- in a Node object ----


def a_node(label=None, record=None, **spec):
    labels = {} if label is None else {KEY: label}
    annotations = (
        {}
        if record is None
        else {RECORD: record if isinstance(record, str) else json.dumps(record)}
    )
    return {
        "kind": "Node",
        "metadata": {
            "name": "gpu07",
            "resourceVersion": "17",
            "labels": dict(labels, zone="b"),
            "annotations": dict(annotations, other="1"),
        },
        "spec": {"podCIDR": "10.0.0.0/24", **spec},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def told(node, event, rules=RULES, now=NOW, refusal=""):
    """The node after an event, as the API server would have it, and the decision."""
    decision = mark_on_node.decide(node, event, rules, now, "me", "r1", refusal)
    if decision.patch:
        assert decision.patch["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"]
    after = mark_writer._merge(node, decision.patch or {})
    for change in (decision.status_patch or {"status": {"conditions": []}})["status"]["conditions"]:
        kept = [one for one in after["status"]["conditions"] if one["type"] != change["type"]]
        after = dict(after, status={"conditions": kept + ([] if "$patch" in change else [change])})
    return after, decision


def label(node):
    return node["metadata"]["labels"].get(KEY)


def condition(node):
    return next(
        (one["status"] for one in node["status"]["conditions"] if one["type"] == "GPUHealthy"), None
    )


def fitness(node):
    return node["metadata"]["labels"].get("autopilot.gpu/fitness")


def reason(node):
    return next(
        (one["reason"] for one in node["status"]["conditions"] if one["type"] == "GPUHealthy"), None
    )


CONDITION_OF = {"fit": "True", "unfit": "False", "unknown": "Unknown", None: None}


def taints(node):
    return [
        (taint["key"], taint["value"], taint["effect"])
        for taint in node["spec"].get("taints") or []
    ]


ALL = Rules(taint="NoExecute", cordon=True)
OURS = (KEY, "EVICT", "NoExecute")


def test_what_is_written_is_read_again_and_needs_no_second_write():
    for state, event in PAIRS:
        recorded = mark_on_node._recorded(state)
        node = a_node(state.mark or None, recorded)
        after, decision = told(node, event, ALL)
        assert label(after) == (decision.state.mark or None)
        again, nothing = told(after, Refresh(), ALL)
        assert nothing.patch is None and nothing.status_patch is None and again == after, (
            state,
            event,
            nothing,
        )
        read = mark_on_node.read(after, ALL, NOW)
        assert read.mark == decision.state.mark
        assert condition(after) == CONDITION_OF[fitness(after)] or (
            (read.mark, fitness(after), condition(after)) == (TESTING, "fit", "Unknown")
        )
        if read.mark in (PASS, EVICT):
            assert fitness(after) == ("fit" if read.mark == PASS else "unfit")
        assert (
            (OURS in taints(after))
            == (read.mark == EVICT)
            == bool(after["spec"].get("unschedulable"))
        )
        assert (
            after["metadata"]["labels"]["zone"] == "b"
            and after["metadata"]["annotations"]["other"] == "1"
            and after["spec"]["podCIDR"]
        )


#: Events, then label, fitness, condition and its reason.
FITNESS = {
    "checks pass": ([Checked("pass")], "PASS", "fit", "True", "AutopilotPass"),
    "checks warn": ([Checked("warn", "hot")], "WARN", "fit", "True", "AutopilotWarn"),
    "checks fail": (
        [Checked("fail", "GPU 3", code="row_remap_failure")],
        *("WARN", "unfit", "False", "row_remap_failure"),
    ),
    "checks cannot tell": ([Checked("unknown")], "WARN", "unknown", "Unknown", "AutopilotWarn"),
    "checks fail, then cannot tell": (
        [Checked("fail", "x", code="gpu_lost"), Checked("unknown", "the driver hangs")],
        *("WARN", "unfit", "False", "gpu_lost"),
    ),
    "checks fail, then are skipped": (
        [Checked("fail", "x", code="gpu_lost"), Checked("skip")],
        *("WARN", "unfit", "False", "gpu_lost"),
    ),
    "checks fail, then pass": (
        [Checked("fail", "x", code="gpu_lost"), Checked("pass")],
        *("PASS", "fit", "True", "AutopilotPass"),
    ),
    "a code that is none": (
        [Checked("fail", "x", code="Bad code!")],
        *("WARN", "unfit", "False", "AutopilotWarn"),
    ),
    "testing a fit node": (
        [Checked("pass"), Began("mine", HOUR)],
        *("TESTING", "fit", "Unknown", "AutopilotTesting"),
    ),
    "testing an unfit node": (
        [Checked("fail", "x", code="gpu_lost"), Began("mine", HOUR)],
        *("TESTING", "unfit", "False", "gpu_lost"),
    ),
    "a diagnostic fails": (
        [Checked("pass"), Began("mine", HOUR), Ended("mine", "failed", 3), Checked("pass")],
        *("WARN", "unfit", "False", "deep_diagnostic_failed"),
    ),
    "a diagnostic fails, then passes": (
        [
            *(Began("mine", HOUR), Ended("mine", "fatal", 3)),
            *(Began("mine", HOUR), Ended("mine", "pass", 3)),
        ],
        *("PASS", "fit", "True", "AutopilotPass"),
    ),
    "a person evicts": ([Checked("pass"), Set(EVICT)], "EVICT", "unfit", "False", "AutopilotEvict"),
    "a person warns": (
        [Checked("pass"), Set(WARN)],
        *("WARN", "unknown", "Unknown"),
        "AutopilotWarn",
    ),
    "a person passes": (
        [Checked("fail", "x", code="gpu_lost"), Set(PASS)],
        *("PASS", "fit", "True", "AutopilotPass"),
    ),
    "nothing is known": ([Refresh()], None, None, None, None),
    "all is removed": ([Checked("fail", "x", code="gpu_lost"), Removed()], None, None, None, None),
}


@pytest.mark.parametrize("case", FITNESS)
def test_unfit_is_not_what_could_not_be_told(case):
    events, *expected = FITNESS[case]
    node = a_node()
    for event in events:
        node, _decision = told(node, event)
    assert [label(node), fitness(node), condition(node), reason(node)] == expected
    assert told(node, Refresh())[1].patch is None


@pytest.mark.parametrize(
    "value, mark",
    [
        ("PASS", PASS),
        ("WARN", WARN),
        ("EVICT", EVICT),
        ("evict", EVICT),
        (" Evict ", EVICT),
        ("ERR", WARN),
        *((word, NONE) for word in ("", "GOOD", None, 7, [])),
    ],
)
def test_labels_of_other_programs_and_hands(value, mark):
    assert mark_on_node.mark_of(value) == mark


def test_a_label_that_was_changed_by_hand_is_a_persons_word():
    evicted, _decision = told(
        told(a_node("PASS"), Began("mine", HOUR))[0], Ended("mine", "fatal", 3, (), "PCIe"), ALL
    )
    assert (label(evicted), taints(evicted), condition(evicted)) == ("EVICT", [OURS], "False")
    for word, later in (("PASS", "WARN"), (None, "WARN"), ("WARN", "WARN"), ("EVICT", "EVICT")):
        by_hand = mark_writer._merge(evicted, {"metadata": {"labels": {KEY: word}}})
        seen, _decision = told(by_hand, Refresh(), ALL)
        assert (label(seen), bool(taints(seen)), bool(seen["spec"].get("unschedulable"))) == (
            word,
            word == "EVICT",
            word == "EVICT",
        )
        assert label(told(seen, Checked("fail", "x"), ALL)[0]) == later
    # EVICT by hand is as firm as any other.
    by_hand = mark_writer._merge(
        told(a_node(), Checked("pass"))[0], {"metadata": {"labels": {KEY: "EVICT"}}}
    )
    assert label(told(told(by_hand, Checked("pass"))[0], Checked("pass"))[0]) == "EVICT"


def test_testing_by_hand_expires_and_uncovers_the_evict_below():
    evicted, _decision = told(a_node(), Set(EVICT, "smoke"))
    covered = mark_writer._merge(evicted, {"metadata": {"labels": {KEY: "TESTING"}}})
    assert label(told(covered, Refresh())[0]) == "EVICT"
    found, _decision = told(a_node("TESTING"), Refresh())
    assert label(found) == "TESTING"
    assert label(told(found, Refresh(), now=NOW + HOUR + 30)[0]) == "TESTING"
    assert label(told(found, Refresh(), now=NOW + HOUR + 62)[0]) is None
    was_pass = mark_writer._merge(
        told(a_node(), Checked("pass"))[0], {"metadata": {"labels": {KEY: "TESTING"}}}
    )
    assert label(told(told(was_pass, Refresh())[0], Refresh(), now=NOW + 2 * HOUR)[0]) == "PASS"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "mark",
                    "since",
                    "test",
                    "until",
                    "base",
                    "seen",
                    "id",
                    "by",
                    "cordoned",
                    "reason",
                    "x",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(
    record=st.one_of(st.text(max_size=30), JSON.map(json.dumps), st.just("[" * 100_000)),
    value=st.sampled_from([None, "", *MARKS, "ERR", "x"]),
)
def test_whatever_stands_in_a_record_evict_stays_and_testing_ends(record, value):
    node = a_node(value, record)
    for event in EVENTS:
        after, decision = told(node, event, ALL)
        if value == EVICT and not isinstance(event, (Set, Removed, Ended)):
            assert label(after) == EVICT
        assert decision.patch is None or told(after, Refresh(), ALL)[1].patch is None
        much_later = told(
            told(after, Refresh(), ALL, now=NOW + 4 * HOUR)[0], Refresh(), ALL, now=NOW + 8 * HOUR
        )[0]
        assert label(much_later) != TESTING


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"metadata": None},
        {
            "metadata": {"labels": None, "annotations": None, "resourceVersion": "1"},
            "spec": None,
            "status": None,
        },
        {
            "metadata": {"resourceVersion": "1"},
            "spec": {"taints": ["x", None]},
            "status": {"conditions": ["x"]},
        },
    ],
)
def test_nodes_that_lack_everything(node):
    decision = mark_on_node.decide(node, Checked("pass"), ALL, NOW, "me")
    assert decision.state.mark == PASS and decision.patch["metadata"]["labels"] == {
        KEY: "PASS",
        "autopilot.gpu/fitness": "fit",
    }


events = st.one_of(
    st.builds(Checked, st.sampled_from(STATUSES), st.just("news")),
    st.builds(Began, st.sampled_from(["a", "b"]), st.sampled_from([60.0, HOUR, 3 * HOUR])),
    st.builds(
        Ended, st.sampled_from(["a", "b"]), st.sampled_from(mark_states.OUTCOMES), st.just(3)
    ),
    st.just(Refresh()),
    st.just(Abandoned("me")),
)


@given(st.lists(st.tuples(events, st.floats(-2 * HOUR, 6 * HOUR)), max_size=25))
def test_however_events_and_clocks_run_evict_waits_for_a_test_that_began_after_it(story):
    node, began = told(a_node(), Set(EVICT, "smoke"), ALL)[0], set()
    now = NOW
    for event, passed in story:
        now += passed
        node, decision = told(node, event, ALL, now)
        assert label(node) == (decision.state.mark or None)
        if isinstance(event, Began) and not decision.refused:
            began.add(event.id)
        if label(node) != EVICT:
            assert isinstance(event, Ended) and event.outcome == "pass" and event.id in began
            return
        assert (taints(node), condition(node), node["spec"].get("unschedulable")) == (
            [OURS],
            "False",
            True,
        )


# ---- taint, cordon, condition, result ----


def test_a_taint_and_a_cordon_of_others_stay():
    theirs = [
        {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},
        {"key": KEY, "value": "mine", "effect": "NoExecute"},
    ]
    node, _decision = told(
        a_node(taints=theirs, unschedulable=True),
        Set(EVICT),
        Rules(taint="NoSchedule", cordon=True),
    )
    assert taints(node) == [
        ("nvidia.com/gpu", "true", "NoSchedule"),
        (KEY, "mine", "NoExecute"),
        (KEY, "EVICT", "NoSchedule"),
    ]
    node, _decision = told(node, Set(PASS), Rules(taint="NoSchedule", cordon=True))
    assert node["spec"]["taints"] == theirs and node["spec"]["unschedulable"] is True


def test_a_cordon_that_somebody_has_undone_stays_undone_and_theirs_stays():
    node, _decision = told(a_node(), Set(EVICT), ALL)
    assert node["spec"]["unschedulable"] is True
    node["spec"].pop("unschedulable")
    node, _decision = told(node, Checked("fail"), ALL)
    assert "unschedulable" not in node["spec"] and label(node) == EVICT
    node["spec"]["unschedulable"] = True
    node, _decision = told(node, Set(PASS), ALL)
    assert node["spec"]["unschedulable"] is True


def test_what_is_turned_off_or_on_later_follows():
    node, _decision = told(a_node(), Set(EVICT), Rules(taint="NoSchedule"))
    node, _decision = told(node, Refresh(), ALL)
    assert taints(node) == [OURS] and node["spec"]["unschedulable"] is True
    node, _decision = told(node, Refresh(), Rules(taint="NoSchedule", condition=False))
    assert taints(node) == [(KEY, EVICT, "NoSchedule")] and condition(node) is None


@pytest.mark.parametrize(
    "event",
    [Checked("pass"), Checked("fail"), Began("later", HOUR), Refresh()],
    ids=lambda event: type(event).__name__,
)
def test_a_writer_that_wants_no_taint_and_no_cordon_leaves_those_of_a_node_out_of_service(event):
    """Such as a preflight by its defaults, in a cluster whose agents taint: the node would take
    jobs until an agent looks again.
    """
    node, _decision = told(a_node(), Set(EVICT), ALL)
    node, _decision = told(node, event, RULES)
    assert (label(node), taints(node), node["spec"]["unschedulable"]) == (EVICT, [OURS], True)
    node, _decision = told(node, Set(WARN), RULES)
    assert not taints(node) and "unschedulable" not in node["spec"] and condition(node) == "Unknown"


UNFIT_TAINT = ("autopilot.gpu/fitness", "unfit", "NoSchedule")
TAINT_UNFIT = Rules(taint_unfit=True)
LOST = Checked("fail", "x", code="gpu_lost")


@pytest.mark.parametrize("case", FITNESS)
def test_the_taint_of_unfit_nodes_follows_the_fitness_and_is_off_by_default(case):
    events, _mark, wanted, *_condition = FITNESS[case]
    for rules in (RULES, TAINT_UNFIT):
        node = a_node(taints=[{"key": "theirs", "value": "x", "effect": "NoSchedule"}])
        for event in events:
            node, _decision = told(node, event, rules)
        ours = [UNFIT_TAINT] if rules.taint_unfit and wanted == "unfit" else []
        assert taints(node) == [("theirs", "x", "NoSchedule"), *ours]
        assert mark_writer.takes_place(node["metadata"], RULES) == bool(
            ours or label(node) == EVICT
        )
        assert told(node, Refresh(), rules)[1].patch is None


def test_a_writer_without_the_taint_of_unfit_nodes_leaves_it_until_the_node_is_fit():
    node, _decision = told(a_node(), LOST, TAINT_UNFIT)
    node, _decision = told(node, Checked("unknown"), RULES)
    node, _decision = told(node, Refresh(), RULES)
    assert taints(node) == [UNFIT_TAINT] and mark_writer.takes_place(node["metadata"], RULES)
    node, _decision = told(node, Checked("pass"), RULES)
    assert not taints(node) and not mark_writer.takes_place(node["metadata"], RULES)


def test_a_taint_of_an_unfit_node_needs_a_place_and_without_one_the_label_says_unfit():
    fit, _decision = told(a_node(), Checked("pass"), TAINT_UNFIT)
    assert mark_on_node.decide(fit, LOST, TAINT_UNFIT, NOW, "me").needs_place
    node, decision = told(fit, LOST, TAINT_UNFIT, refusal="2 of 20")
    assert (label(node), fitness(node), taints(node)) == ("WARN", "unfit", [])
    assert (decision.refused, decision.untainted, decision.needs_place) == ("", "2 of 20", False)
    # An agent's look at a node without news does not count the nodes again; the next checks do.
    assert not told(node, Refresh(), TAINT_UNFIT)[1].needs_place
    node, decision = told(node, LOST, TAINT_UNFIT)
    assert decision.needs_place and taints(node) == [UNFIT_TAINT]
    assert not told(node, LOST, TAINT_UNFIT)[1].needs_place
    # The place of a tainted node is not needed twice by the writer, who leaves the node out.
    evicted, decision = told(node, Set(EVICT), TAINT_UNFIT)
    assert decision.needs_place and taints(evicted) == [UNFIT_TAINT]


def test_a_condition_of_another_program_is_left_where_none_is_wanted():
    node = a_node("PASS")
    node["status"]["conditions"].append(
        {"type": "GPUHealthy", "status": "True", "reason": "TheirsIsFine"}
    )
    assert told(node, Removed(), Rules(condition=False))[1].status_patch is None


def test_the_condition_tells_that_somebody_still_looks():
    node, _decision = told(a_node(), Checked("pass"))
    same, decision = told(node, Checked("pass"), now=NOW + 1000)
    assert same == node and not decision.changes
    for later in (NOW + 2000, NOW - 24 * HOUR):
        beaten, decision = told(node, Checked("pass"), now=later)
        (whole,) = [one for one in beaten["status"]["conditions"] if one["type"] == "GPUHealthy"]
        assert (
            whole["lastHeartbeatTime"] != whole["lastTransitionTime"]
            and not decision.changes
            and decision.patch is None
        )
        assert told(node, Refresh(), now=later)[0] == node


@pytest.mark.parametrize(
    "outcome, word, output",
    [
        ("pass", "PASS", None),
        ("failed", "ERR", "memtest.0,pcie.3"),
        ("fatal", "ERR", "memtest.0,pcie.3"),
    ],
)
def test_the_result_of_a_diagnostic_stands_where_ibm_autopilot_had_it(outcome, word, output):
    begun, _decision = told(a_node(), Began("mine", HOUR))
    begun["metadata"]["annotations"]["autopilot.ibm.com/dcgm.level.3.output"] = "old.1"
    node, _decision = told(
        begun, Ended("mine", outcome, 3, ("memtest.0", "pcie.3") if output else ())
    )
    assert (
        node["metadata"]["labels"]["autopilot.ibm.com/dcgm.level.3"]
        == f"{word}_2027-01-15_08.00.00UTC"
    )
    assert node["metadata"]["annotations"].get("autopilot.ibm.com/dcgm.level.3.output") == output
    kept, _decision = told(
        told(node, Began("b", HOUR))[0], Ended("b", "unknown", 3), now=NOW + HOUR / 2
    )
    assert (
        kept["metadata"]["labels"]["autopilot.ibm.com/dcgm.level.3"]
        == f"{word}_2027-01-15_08.00.00UTC"
    )
    # Nothing is left behind.
    assert told(kept, Removed(), ALL)[0] == a_node()


def test_a_refused_evict_warns_and_says_why():
    begun, _decision = told(a_node("PASS"), Began("mine", HOUR))
    assert mark_on_node.decide(begun, Ended("mine", "fatal", 3), ALL, NOW, "me").needs_place
    node, decision = told(
        begun,
        Ended("mine", "fatal", 3, (), "PCIe of GPU 3"),
        ALL,
        refusal="2 of 20 are EVICT already",
    )
    assert (label(node), decision.refused, taints(node)) == (
        "WARN",
        "2 of 20 are EVICT already",
        [],
    )
    assert (
        decision.state.reason == "not marked EVICT because 2 of 20 are EVICT already: PCIe of GPU 3"
    )
    known, _decision = told(a_node("PASS"), Refresh(), ALL)
    node, decision = told(known, Set(EVICT), ALL, refusal="2 of 20 are EVICT already")
    assert (label(node), decision.refused, decision.patch) == (
        "PASS",
        "2 of 20 are EVICT already",
        None,
    )
    # Who is EVICT needs no place to stay so.
    evicted, _decision = told(a_node("EVICT"), Refresh())
    assert not mark_on_node.decide(evicted, Set(EVICT, "again"), ALL, NOW, "me").needs_place


def test_long_words_are_cut():
    node, _decision = told(a_node(), Began("mine", HOUR, "x" * 10_000))
    node, _decision = told(node, Ended("mine", "fatal", 3, ("pcie.1",) * 10_000, "y" * 10_000))
    assert sum(map(len, node["metadata"]["annotations"].values())) < 4000


# ---- the share ----


@pytest.mark.parametrize(
    "share, nodes, most",
    [(0.1, 5, 1), (0.1, 30, 3), (0.29, 100, 29), (0, 1000, 1), (1, 7, 7), (0.1, 0, 1), (0.5, 3, 1)],
)
def test_how_many_may_be_evict(share, nodes, most):
    assert mark_writer.most_evicted(Rules(max_bad_share=share), nodes) == most


#: More than the 65,536 characters to which what the API says is cut.
MANY_PLACES = {f"gpu{number:04d}.cluster.example.org": NOW + 60 for number in range(2000)}


@pytest.mark.parametrize(
    "annotation, expected",
    [
        (None, {}),
        ("{", {}),
        ("[]", {}),
        ("[" * 100_000, {}),
        ('{"a": "x", "b": true, "c": null, "d": NaN, "e": 1e999}', {}),
        (7, {}),
        (json.dumps({"a": NOW + 60}), {"a": NOW + 60}),
        (json.dumps(MANY_PLACES), MANY_PLACES),
        (
            json.dumps({"a": NOW - 61, "b": NOW - 59, "c": NOW + 181, "d": NOW + 179}),
            {"b": NOW - 59, "d": NOW + 179},
        ),
    ],
)
def test_places_that_count(annotation, expected):
    lease = {
        "metadata": {"annotations": {} if annotation is None else {mark_writer.PLACES: annotation}}
    }
    assert mark_writer.places(lease, NOW) == expected
    assert mark_writer.places(None, NOW) == {}
