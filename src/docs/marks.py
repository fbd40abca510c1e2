# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Generate the page about the node marks: the table of marks, and the transitions computed by the
core's own rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterable, List, Sequence

from _health.cluster import mark_writer, mark_states
from _health.knowledge.marks import (
    EVICT,
    FIT,
    FITNESS_LABEL,
    MARKS,
    NONE,
    TESTING,
    UNFIT,
    UNFIT_EFFECT,
    UNKNOWN,
    WORKLOADS,
)
from _health.cluster.mark_states import (
    Checked,
    Event,
    Refresh,
    Rules,
    Set,
    State,
    Test,
    TestingBegan,
    TestingEnded,
)

PAGE = (Path(__file__).parent / "marks.md.in").read_text(encoding="utf-8")

#: Description of an event, and the event.
_HAPPENS: Sequence[tuple[str, Event]] = (
    ("checks pass", Checked("pass")),
    ("checks warn or fail", Checked("fail")),
    ("checks cannot tell", Checked("unknown")),
    ("checks are skipped", Checked("skip")),
    ("a deep diagnostic begins", TestingBegan("test", 3600)),
    ("it passes", TestingEnded("test", "pass", 3)),
    ("it fails, not fatally", TestingEnded("test", "failed", 3)),
    ("it fails fatally", TestingEnded("test", "fatal", 3)),
    ("it cannot tell", TestingEnded("test", "unknown", 3)),
    ("its lease ends", Refresh()),
    ("a person says PASS", Set("PASS")),
    ("a person says EVICT", Set("EVICT")),
)
#: Status of the condition by the fitness of a node whose checks say no more than its mark.
_CONDITION = {"": "none", FIT: "True", UNKNOWN: "Unknown, or as the fitness", UNFIT: "False"}
_OF_A_TEST = (TestingEnded, Refresh)


def _named(mark: str) -> str:
    return f"`{mark}`" if mark else "no mark"


def _after(mark: str, event: Event) -> str:
    """The mark that an event leads to. Events that end a test start from a node under test."""
    tested = Test(
        "test",
        "agent",
        0.0 if isinstance(event, Refresh) else 3600.0,
        EVICT if mark == EVICT else NONE,
    )
    state = State(
        mark,
        test=tested
        if mark == TESTING or (mark == EVICT and isinstance(event, _OF_A_TEST))
        else None,
    )
    if isinstance(event, _OF_A_TEST) and state.test is None:
        return ""
    if mark == TESTING and (
        isinstance(event, Refresh)
        or (isinstance(event, TestingEnded) and event.outcome == "unknown")
    ):
        return "as before"
    if mark == TESTING and isinstance(event, TestingBegan):
        return "refused"
    after = mark_states.step(
        state, event, 1800.0 if not isinstance(event, Refresh) else 7200.0, "page"
    ).state
    if (
        mark == TESTING
        and isinstance(event, Checked)
        and after.test is not None
        and after.test.seen
    ):
        return f"`{TESTING}`, then {_named(after.test.seen)}"
    return _named(after.mark)


def page(table: Callable[[Sequence[str], Iterable[Sequence[str]]], str]) -> str:
    rules = Rules()
    rows: List[List[str]] = [
        [words, *(_after(mark, event) for mark in MARKS)] for words, event in _HAPPENS
    ]
    return PAGE.format(
        label_key=rules.label_key,
        evict=EVICT,
        fitness_label=FITNESS_LABEL,
        unfit_effect=UNFIT_EFFECT,
        share=rules.max_bad_share,
        lease=int(mark_states.MOST_LEASE // 3600),
        skew=int(mark_states.SKEW),
        found=int(mark_states.FOUND_LEASE // 60),
        result="autopilot.ibm.com/dcgm.level",
        gpu_nodes=mark_writer.GPU_NODES,
        lease_name=mark_writer.LEASE,
        events=mark_writer.EVENTS,
        meanings=table(
            ("mark", "meaning", "set by", "ended by"),
            [
                (_named(mark), row.meaning, row.set_by, row.cleared_by)
                for mark, row in MARKS.items()
            ],
        ),
        effects=table(
            ("mark", "AppWrapper by the label", "taint, cordon", "condition `GPUHealthy`", "alert"),
            [
                (
                    _named(mark),
                    row.appwrapper,
                    "if chosen" if row.out_of_service else "no",
                    _CONDITION[row.fitness],
                    f"{row.severity} after {row.patience} minute{'' if row.patience == 1 else 's'}"
                    if row.severity
                    else "none",
                )
                for mark, row in MARKS.items()
            ],
        ),
        workloads=table(
            ("workload", *next(iter(WORKLOADS.values()))),
            [
                (kind, *(f"{effect.running}; {effect.new}" for effect in by_state.values()))
                for kind, by_state in WORKLOADS.items()
            ],
        ),
        steps=table(("", *(_named(mark) for mark in MARKS)), rows),
    )
