# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For any history the agent's label, ``/status``, its metrics and a run document agree."""

from __future__ import annotations

import agent_world
import pytest
from _health.cluster.mark_states import Checked, State, step
from _health.fleet.judging.policy import Policy
from _health.fleet.judging.report import COULD_NOT_TELL, FIT, SKIPPED, UNFIT
from _health.fleet.judging.verdict import judge_node
from _health.model import STATUSES, UNKNOWN, CheckResult, Finding, Subject, concluded
from autopilot_agent.cluster.kube import Kube
from autopilot_agent.fleet import node_row
from autopilot_agent.http.exposition import Exposition
from autopilot_agent.passes.deep import DeepDiagnostics
from autopilot_agent.passes.engine import Engine
from autopilot_agent.passes.history import History, results_that_count
from autopilot_agent.passes.mark_decision import decide_mark
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

NODE = "gpu01"
PERIODIC = ("gpu_count", "ethernet", "dcgm_diag")
CHECKS = PERIODIC + ("ping_mesh", "iperf3_pairs", "volume_claim")
SUBJECTS = (Subject("node"), Subject("gpu", 0, "GPU-0"), Subject("peer", name="gpu02"))
CODES = ("gpu_in_use", "locked", "hung", "link_down", "no_answer")

findings = st.builds(
    Finding,
    st.sampled_from(CODES),
    st.sampled_from(STATUSES),
    st.just("words"),
    st.just("watch"),
    st.sampled_from(SUBJECTS),
)
results = st.builds(
    lambda check, found, status: concluded(check, found, "healthy", status=status),
    st.sampled_from(CHECKS),
    st.lists(findings, max_size=2),
    st.sampled_from(STATUSES),
)
passes = st.lists(
    st.tuples(st.lists(results, min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 250)),
    max_size=5,
)

AGENT_SETTINGS = agent_world.settings(PERIODIC_CHECKS=",".join(PERIODIC))


def history_of(passes_of_node):
    history, now = History(PERIODIC, 100.0), 1000.0
    for found, level, seconds in passes_of_node:
        now += seconds
        history.note(found, {"dcgm_diag": {"level": level}}, 1e9 + now, now)
    return history, now


def metrics_of(history):
    """Values of the metrics without labels of their own, by name."""
    engine = Engine(AGENT_SETTINGS)
    kube = Kube(AGENT_SETTINGS.api_server)
    deep = DeepDiagnostics(AGENT_SETTINGS, engine, kube, None)
    text, _type = Exposition(engine, history, kube, deep, None).render("")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if set(sample.labels) == {"node", "phase"}
    }


@given(passes)
@settings(max_examples=300, deadline=None)
def test_label_status_metrics_and_run_document_agree(passes_of_node):
    history, now = history_of(passes_of_node)
    counting = results_that_count(history)
    metrics, decision = metrics_of(history), decide_mark(history, now)
    if not counting:
        assert decision is None and "autopilot_node_status" not in metrics
        return
    # What a run document has of a node by the same results.
    verdict = judge_node(counting, Policy())
    row = node_row.judged(NODE, counting)
    assert (row.fit, row.status) == (verdict.fit, verdict.status)
    assert metrics["autopilot_node_status"] == STATUSES.index(verdict.status)
    assert metrics.get("autopilot_node_fit") == {FIT: 1.0, UNFIT: 0.0}.get(verdict.fit)
    allowed = {
        FIT: ("pass", "warn", None),
        UNFIT: ("fail",),
        COULD_NOT_TELL: ("unknown",),
        SKIPPED: (None,),
    }
    assert (decision.status if decision else None) in allowed[verdict.fit]
    if verdict.fit == FIT and decision is None:
        assert history.missing(now)


def mark_after(*found):
    """The mark of a node without one, after a pass with these results."""
    history, now = history_of([(found, 1, 0)])
    decision = decide_mark(history, now)
    if decision is None:
        return ""
    return step(State(), Checked(decision.status), 0.0, "agent").state.mark


def test_a_node_without_gpus_whose_network_is_well_is_skipped_and_not_marked():
    found = [CheckResult("gpu_count", "skip", ""), CheckResult("ethernet", "pass", "")]
    found.append(CheckResult("dcgm_diag", "skip", ""))
    assert judge_node(found, Policy()).fit == SKIPPED
    assert mark_after(*found) == ""


@pytest.mark.parametrize("status", ["warn", "fail"])
def test_a_peer_that_fails_a_check_does_not_mark_this_node(status):
    """Either end may be the bad one; that peer's own checks mark the peer."""
    peer = Finding("no_answer", status, "gpu02 does not answer", "watch", SUBJECTS[2])
    found = [CheckResult(check, "pass", "") for check in PERIODIC]
    assert mark_after(*found, concluded("ping_mesh", [peer], "")) == "PASS"


def test_an_unknown_result_of_a_check_that_is_not_periodic_does_not_count():
    history, now = history_of([([CheckResult(name, "pass", "") for name in PERIODIC], 1, 0)])
    before = results_that_count(history)
    history.note([CheckResult("volume_claim", UNKNOWN, "no storage class")], {}, 1e9, now)
    assert results_that_count(history) == before
