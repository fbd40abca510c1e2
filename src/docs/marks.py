# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The page of the node marks: the table of marks, and what leads where by asking the rules
themselves.
"""

from __future__ import annotations

from typing import Callable, Iterable, List, Sequence

from _health.cluster import mark_writer, mark_states
from _health.knowledge.marks import EVICT, MARKS, NONE, TESTING
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

PAGE = """<!-- Made by `make -C src/docs` from the table in plugins/module_utils/_health/knowledge/marks.py and the rules in marks.py; do not edit. -->

# Node marks

A node of a Kubernetes cluster has one mark, the value of the label `{label_key}`, so that schedulers, alerts and people act on what the checks found. The
agents on the nodes write it, the module `autopilot.gpu.node_mark` does, and a preflight with `-e preflight_mark_nodes=true`; all by the same rules. You may
change it with `kubectl`.

{meanings}

## What each does

The taint and the cordon are options and off by default (`agent_taint`, `agent_cordon` of the role `agent`; `taint`, `cordon` of the module). A cordon is only
undone where it was made for the mark. A taint with the label's key and the value `{evict}` goes with the mark, whoever made it, and stays as long: a preflight
that wants none leaves that of the agents, one that wants another effect puts its own there. Only a status `False` of the condition `GPUHealthy` is what
programs that drain nodes act on.

{effects}

AppWrapper acts by the label alone, on pods that ask for `nvidia.com/gpu`. Its versions until 1.0.3, and configurations that were written for these, say `ERR`
where later ones say `WARN`: they do nothing about a node that is `WARN`. In its configuration:

```yaml
appwrapper:
  autopilot:
    resourceTaints:
      nvidia.com/gpu:
        - {{key: {label_key}, value: WARN, effect: PreferNoSchedule}}
        - {{key: {label_key}, value: TESTING, effect: NoSchedule}}
        - {{key: {label_key}, value: EVICT, effect: NoExecute}}
```

## What leads where

{steps}

- A node is never `EVICT` for what could not be told, and no check, no time and no restart ends `EVICT`.
- What a deep diagnostic found is cleared by one of the same or a higher level that passes, or by a person. Checks that pass, lower levels and restarts leave
  `WARN` and `EVICT`: they look at less.
- A deep diagnostic ends `EVICT` only if it began while the node was `EVICT`. One that began before says nothing about what was found since.
- What checks find while a diagnostic runs counts when it is over: a diagnostic that passes then ends in `WARN`.
- A test has a lease, of {lease} hours at most. Clocks may differ by {skew} seconds. Where the lease has ended, or says a time that it cannot, the node has its
  former mark again. A result that comes later still counts, unless a person has spoken meanwhile.
- `TESTING` that is set by hand, or by IBM Autopilot, ends after {found} minutes.
- `ERR` of IBM Autopilot until 2.1.0 is read as `WARN`, an empty label and words that nobody knows as no mark.

## By hand

```console
$ kubectl label node gpu07 --overwrite {label_key}=EVICT     # out of service, until a person or a passing deep diagnostic says otherwise
$ kubectl label node gpu07 {label_key}-                      # forget the mark; the next checks decide
$ kubectl get nodes -L {label_key}
$ kubectl get node gpu07 -o jsonpath='{{.metadata.annotations}}'           # the record: why, since when, by whom, who is testing
```

The record is the annotation `{label_key}.record`. Where label and record differ, somebody has changed the label, and the label counts; taint, cordon
and condition follow at the agent's next look, within six minutes. A node object that is deleted takes its mark along.

A deep diagnostic of DCGM also writes the label `{result}.N` (N is the level) with `PASS_` or `ERR_` and the time, and what failed to the
annotation `{result}.N.output`, as IBM Autopilot does; the tests are separated by commas.

## How many

At most a share of the GPU nodes (`max_bad_share`, {share} by default) is `EVICT` at once; one node always may be. GPU nodes are those with the label
`{gpu_nodes}` and those with a mark. What is `EVICT` by hand counts. Beyond that a node with a fatal failure is `WARN`, its record says why, an event
stands at the node, `autopilot_marks_refused_total` counts it, and the module fails. The share holds however many ask at once: who wants to mark a node `EVICT`
first takes a place in the Lease `{lease_name}` of the agents' namespace.

## What a writer may do

Cluster-wide: `nodes` get, list, patch; `nodes/status` patch. In the agents' namespace: `leases` get, create, update (and delete for `state: absent`). In the
namespace `{events}`: `events` create.
"""

#: What happens, in words, and the event.
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
_OF_A_TEST = (TestingEnded, Refresh)


def _named(mark: str) -> str:
    return f"`{mark}`" if mark else "no mark"


def _after(mark: str, event: Event) -> str:
    """What an event leads to from a mark; what ends a test is told of nodes that are tested."""
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
                    row.condition or "none",
                    f"{row.severity} after {row.patience} minute{'' if row.patience == 1 else 's'}"
                    if row.severity
                    else "none",
                )
                for mark, row in MARKS.items()
            ],
        ),
        steps=table(("", *(_named(mark) for mark in MARKS)), rows),
    )
