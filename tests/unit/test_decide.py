# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From judged runs to what becomes of a job, pass by pass."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.job_decision import (
    JobPolicy,
    decide,
    job_policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.durations import seconds_of

START = 1_700_000_000


def finding(code, status, index=3, **more):
    subject = (
        {"kind": "gpu", "index": index, "pci": f"00000000:{index:02X}:00.0"}
        if index is not None
        else {"kind": "node"}
    )
    return {
        "code": code,
        "status": status,
        "action": "watch",
        "subject": subject,
        "message": f"says {code}",
        "evidence": {},
        "check": "gpu_activity",
        **more,
    }


def document(turn=0, run=(), minutes=5, **nodes):
    """A run document: findings by node, five minutes after the one before."""
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START + 60 * minutes * turn))
    made = {
        "run_id": f"run{turn}",
        "finished": finished,
        "findings": list(run),
        "nodes": [{"name": name, "findings": found} for name, found in nodes.items()],
    }
    return RunReport.from_dict(made)


def decisions(policy, *documents, hosts=None):
    """The decision of each pass, with the history of those before it as it comes out of a file."""
    history, found = None, []
    for one in documents:
        found.append(decide(one, policy, history, hosts))
        history = json.loads(json.dumps(found[-1].history))
    return [one.decision for one in found]


LOST, HOT, WARNED, UNKNOWN = (
    finding("gpu_lost", "fail"),
    finding("hw_thermal_slowdown", "fail"),
    finding("straggler", "warn", None),
    finding("hung", "unknown"),
)
SUSPEND = JobPolicy(on_fail="suspend")


@pytest.mark.parametrize(
    "policy, found, decision",
    [
        (JobPolicy(), [], "continue"),
        (JobPolicy(), [LOST], "warn_owner"),
        (JobPolicy(), [WARNED], "continue"),
        (JobPolicy(), [UNKNOWN], "continue"),
        (
            JobPolicy(on_fail="stop", on_warn="stop", codes={"hung": "stop"}, passes=1),
            [UNKNOWN],
            "continue",
        ),
        (JobPolicy(on_warn="warn_owner"), [WARNED], "warn_owner"),
        (JobPolicy(on_fail="continue"), [LOST], "continue"),
        (JobPolicy(on_fail="suspend", passes=1), [LOST], "suspend"),
        (JobPolicy(on_fail="stop", passes=1), [LOST], "stop"),
        (JobPolicy(codes={"gpu_lost": "suspend"}, passes=1), [LOST, HOT], "suspend"),
        (JobPolicy(codes={"gpu_lost": "continue"}), [LOST], "continue"),
        (JobPolicy(codes={"straggler": "suspend"}, passes=1), [WARNED], "suspend"),
        (SUSPEND, [LOST], "warn_owner"),
        (JobPolicy(), ["nonsense", None, finding("x", "splendid"), {}], "continue"),
    ],
)
def test_one_pass(policy, found, decision):
    assert decisions(policy, document(gpu07=found)) == [decision]


def test_what_ends_a_job_was_seen_in_several_passes_in_a_row():
    passes = [
        document(turn, gpu07=[LOST] if seen else []) for turn, seen in enumerate([1, 1, 0, 1, 1, 1])
    ]
    assert decisions(SUSPEND, *passes) == [
        "warn_owner",
        "suspend",
        "continue",
        "warn_owner",
        "suspend",
        "suspend",
    ]
    assert decisions(SUSPEND._replace(passes=3), *passes) == [
        "warn_owner",
        "warn_owner",
        "continue",
        "warn_owner",
        "warn_owner",
        "suspend",
    ]


@pytest.mark.parametrize(
    "second, decision",
    [
        (document(1, gpu07=[finding("gpu_lost", "fail", 4)]), "warn_owner"),
        (document(1, gpu07=[HOT]), "warn_owner"),
        (document(1, gpu07=[], gpu08=[LOST]), "warn_owner"),
        (document(1, gpu07=[UNKNOWN]), "continue"),
        (document(0, gpu07=[LOST]), "warn_owner"),
        (document(1, minutes=26 * 60 + 1, gpu07=[LOST]), "warn_owner"),
        (document(1, minutes=24 * 60, gpu07=[LOST]), "suspend"),
        (document(-1, gpu07=[LOST]), "warn_owner"),
    ],
    ids=[
        "another GPU",
        "another fault",
        "another node",
        "could not be told",
        "the same pass",
        "too long ago",
        "long ago",
        "earlier",
    ],
)
def test_only_the_same_in_the_same_place_counts(second, decision):
    assert decisions(SUSPEND, document(0, gpu07=[LOST]), second) == ["warn_owner", decision]


def test_the_facts_carry_the_decision():
    first = decide(document(0, gpu07=[LOST], gpu08=[HOT]), SUSPEND)
    second = decide(document(1, gpu07=[LOST, HOT], gpu08=[]), SUSPEND, first.history)
    assert second.decision == "suspend"
    assert [(one.node, one.finding.code, one.decided, one.seen) for one in second.facts] == [
        ("gpu07", "gpu_lost", "suspend", 2),
        ("gpu07", "hw_thermal_slowdown", "warn_owner", 1),
    ]
    assert second.reason == (
        "gpu07: GPU 3 (03:00.0): says gpu_lost; gpu07: GPU 3 (03:00.0): says "
        "hw_thermal_slowdown (would suspend, seen in 1 of 2 passes)"
    )
    fact = second.facts[0].to_dict()
    assert (fact["node"], fact["wanted"], fact["seen"], fact["subject"]["index"]) == (
        "gpu07",
        "suspend",
        2,
        3,
    )


@pytest.mark.parametrize(
    "minutes, decided",
    [
        ([0, 6 * 60, 12 * 60], ["warn_owner", "suspend", "suspend"]),
        ([0, 5, 10, 5 * 60], ["warn_owner", "suspend", "suspend", "warn_owner"]),
        ([0, 5, 5 * 60, 10 * 60], ["warn_owner", "suspend", "warn_owner", "suspend"]),
        ([0, 6 * 60, 17 * 60, 41 * 60], ["warn_owner", "suspend", "suspend", "warn_owner"]),
    ],
    ids=["every six hours", "a pause", "every five hours from then on", "a day left out"],
)
def test_passes_in_a_row_follow_the_schedule_of_the_job(minutes, decided):
    passes = [document(1 + at / 5, gpu07=[LOST]) for at in minutes]
    assert decisions(SUSPEND, *passes) == decided


def test_passes_that_are_too_far_apart_are_said_to_be():
    history = None
    for minute in (0, 5):
        history = decide(document(minute / 5, gpu07=[HOT]), SUSPEND, history).history
    late = decide(document(1 + 6 * 12, gpu07=[LOST]), SUSPEND, history)
    assert late.reason == (
        "gpu07: GPU 3 (03:00.0): says gpu_lost (would suspend, seen in 1 of 2 passes; the pass "
        "before does not count: 6.0 h ago, more than 2 h)"
    )
    first = decide(document(0, gpu07=[LOST]), SUSPEND)
    in_time = decide(document(1, minutes=119, gpu07=[HOT]), SUSPEND, first.history)
    assert in_time.reason.endswith("(would suspend, seen in 1 of 2 passes)")


def test_only_the_nodes_of_the_job_count():
    run = document(0, gpu07=[], gpu08=[LOST])
    assert decide(run, JobPolicy(), hosts=["gpu07"]).decision == "continue"
    assert decide(run, JobPolicy(), hosts=["gpu07", "gpu08"]).decision == "warn_owner"
    with pytest.raises(
        ValueError, match="^hosts: 'gpu09' is not in the run; its hosts: gpu07, gpu08$"
    ):
        decide(run, JobPolicy(), hosts=["gpu09"])


def test_findings_of_the_run_count_where_the_job_has_one_of_its_nodes():
    stalled = finding(
        "stalled_collective",
        "warn",
        None,
        evidence={"nodes": ["gpu07", "gpu08"]},
        subject={"kind": "run"},
    )
    policy = JobPolicy(codes={"stalled_collective": "warn_owner"})
    run = document(0, [stalled], gpu07=[], gpu08=[], gpu09=[])
    assert [
        decide(run, policy, hosts=hosts).decision for hosts in (None, ["gpu08"], ["gpu09"])
    ] == ["warn_owner", "warn_owner", "continue"]
    assert decide(run, policy).reason == "says stalled_collective"


def test_news_are_news_until_somebody_was_told():
    first = decide(document(0, gpu07=[LOST]), JobPolicy())
    assert first.news and first.history[-1]["told"] is False
    again = decide(document(1, gpu07=[LOST]), JobPolicy(), first.history)
    assert again.news
    again.history[-1]["told"] = True
    known = decide(document(2, gpu07=[LOST]), JobPolicy(), again.history)
    assert not known.news and known.history[-1]["told"] is True
    assert decide(document(3, gpu07=[LOST, HOT]), JobPolicy(), known.history).news
    assert decide(document(3, gpu07=[LOST]), SUSPEND, known.history).news
    well = decide(document(3, gpu07=[]), JobPolicy(), known.history)
    assert not well.news
    assert decide(document(4, gpu07=[LOST]), JobPolicy(), well.history).news


def test_a_history_does_not_grow_for_ever():
    history = None
    for turn in range(60):
        history = decide(document(turn, gpu07=[LOST]), SUSPEND, history).history
    assert len(history) == 50


@pytest.mark.parametrize(
    "given_policy, named",
    [
        ("suspend", "policy: 'suspend' is invalid; expected a dictionary"),
        (
            {"on_unknown": "stop"},
            "policy: unsupported option 'on_unknown'; supported: on_fail, on_warn",
        ),
        (
            {"on_fail": "kill"},
            "policy.on_fail: 'kill' is invalid; expected one of continue, warn_owner, "
            "suspend, stop",
        ),
        ({"codes": ["gpu_lost"]}, "policy.codes: "),
        ({"codes": {"gpu_lost": 1}}, "policy.codes.gpu_lost: 1 is invalid"),
        ({"passes": 0}, "policy.passes: 0 is invalid; expected a number of passes from 1 to 50"),
        ({"passes": "many"}, "policy.passes: 'many'"),
        ({"passes": True}, "policy.passes: True"),
    ],
)
def test_a_wrong_policy_is_refused_by_name(given_policy, named):
    with pytest.raises(ValueError) as refused:
        job_policy_from(given_policy)
    assert str(refused.value).startswith(named)


def test_a_policy_is_read():
    assert job_policy_from(None) == JobPolicy() == job_policy_from({"on_fail": None})
    assert job_policy_from(
        {"on_fail": "stop", "passes": "3", "codes": {"gpu_lost": "suspend"}}
    ) == JobPolicy("stop", "continue", {"gpu_lost": "suspend"}, 3)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["run0", "gpu07"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "run_id",
                    "finished",
                    "facts",
                    "told",
                    "acted",
                    "decision",
                    "nodes",
                    "name",
                    "findings",
                    "evidence",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=200)
@given(ANYTHING)
def test_whatever_stands_in_a_history_or_a_document_suspends_nothing(garbage):
    assert decide(document(0, gpu07=[LOST]), SUSPEND, garbage).decision == "warn_owner"
    assert decide(
        RunReport.from_dict(garbage), JobPolicy(on_fail="stop", on_warn="stop", passes=1)
    ).decision in ("continue", "stop")


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d", 86400),
        (" 5M ", 300),
        ("45", 45),
        (45, 45),
        (0.5, 0.5),
        ("2.5", 2.5),
    ],
)
def test_a_length_of_time_is_read(text, seconds):
    assert seconds_of(text, "watch") == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "0",
        "0s",
        "-5m",
        "5 m",
        "5x",
        "m5",
        "5m5m",
        "1e3",
        "nan",
        "inf",
        None,
        True,
        [],
        "999d",
        "9" * 30,
    ],
)
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(
        ValueError,
        match=r"^watch: .* is invalid; expected a length of time such as 90s, 30m, 2h or "
        r"1h30m, or a number of seconds$",
    ):
        seconds_of(text, "watch")
