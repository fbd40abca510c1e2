# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent knows of its node, and when that is good enough for the mark PASS."""

from __future__ import annotations

import pytest
from _health.model import CheckResult, Finding, Subject
from autopilot_agent.passes.history import History
from autopilot_agent.passes.mark_decision import decide_mark

PERIODIC = ("gpu_count", "pcie_bandwidth", "dcgm_diag")
PERIOD = 100.0


def result(check, status="pass", code=""):
    return CheckResult(
        check, status, f"{check} {status}", [Finding(code, status, "")] if code else []
    )


def put_off(check, code="gpu_in_use"):
    return result(check, "unknown" if code == "locked" else "skip", code)


class Passes:
    """Passes over a node, a period apart."""

    def __init__(self):
        self.history, self.now = History(PERIODIC, PERIOD), 1000.0

    def __call__(self, *results, level=None, after=PERIOD):
        self.now += after
        self.history.note(results, {"dcgm_diag": {"level": level}}, 1e9 + self.now, self.now)
        return self.status()

    def status(self):
        decision = self.decision()
        return decision.status if decision else None

    def decision(self):
        return decide_mark(self.history, self.now)

    def all(self, **statuses):
        return self(*(result(check, statuses.get(check, "pass")) for check in PERIODIC))


@pytest.fixture
def passes():
    return Passes()


def test_all_periodic_checks_fresh_and_well_is_a_pass(passes):
    assert passes.all() == "pass"


def test_one_check_that_is_well_says_nothing_of_the_others(passes):
    assert passes(result("gpu_count")) is None
    assert passes(result("pcie_bandwidth"), after=1) is None
    assert passes(result("dcgm_diag"), after=1) == "pass"


def test_a_check_that_was_not_run_for_two_periods_takes_the_pass_away(passes):
    passes.all()
    assert passes(result("gpu_count"), result("pcie_bandwidth"), after=2 * PERIOD + 1) is None
    assert passes.history.missing(passes.now) == ("dcgm_diag",)


@pytest.mark.parametrize("status", ["warn", "unknown", "fail"])
def test_what_could_not_be_told_or_is_bad_is_no_pass(passes, status):
    assert passes.all(pcie_bandwidth=status) == status
    assert passes.decision().reasons == [f"pcie_bandwidth: pcie_bandwidth {status}"]
    assert passes.all() == "pass"


def test_one_check_alone_can_make_it_worse(passes):
    passes.all()
    assert passes(result("pcie_bandwidth", "fail"), after=1) == "fail"
    assert passes(result("gpu_count"), after=1) == "fail"


@pytest.mark.parametrize("status", ["warn", "unknown", "fail"])
def test_n1_nothing_bad_is_hidden_by_a_skip(passes, status):
    passes.all(pcie_bandwidth=status)
    assert passes(result("gpu_count"), put_off("pcie_bandwidth"), result("dcgm_diag")) == status
    assert (
        passes(result("gpu_count"), result("pcie_bandwidth", "skip"), result("dcgm_diag")) == status
    )


def test_n1_a_check_of_somebody_else_is_not_forgotten_either(passes):
    passes(result("iperf3_pairs", "fail"))
    for _turn in range(5):
        assert passes.all() == "fail"
    assert passes(result("iperf3_pairs")) == "pass"


def test_a_node_in_use_keeps_its_pass_by_what_was_found_before(passes):
    passes.all()
    for _turn in range(20):
        assert passes(result("gpu_count"), put_off("pcie_bandwidth"), result("dcgm_diag")) == "pass"


@pytest.mark.parametrize("code", ["gpu_in_use", "jobs_on_node", "locked"])
def test_a_check_that_was_only_ever_put_off_says_nothing(passes, code):
    assert passes(result("gpu_count"), put_off("pcie_bandwidth", code), result("dcgm_diag")) is None
    assert passes(result("gpu_count"), result("pcie_bandwidth"), result("dcgm_diag")) == "pass"


def test_a_check_that_does_not_apply_does_not_keep_the_others_from_a_pass(passes):
    assert (
        passes(
            result("gpu_count"),
            result("pcie_bandwidth", "skip", "mig_enabled"),
            result("dcgm_diag", "skip", "mig_enabled"),
        )
        == "pass"
    )


def test_n8_a_node_without_gpus_is_not_marked(passes):
    assert passes(*(result(check, "skip") for check in PERIODIC)) is None


def test_n1_a_lower_level_of_dcgm_does_not_clear_what_a_higher_one_found(passes):
    passes.all()
    assert passes(result("dcgm_diag", "fail"), level=3) == "fail"
    for _turn in range(5):
        assert passes.all() == "fail"
    assert passes(result("dcgm_diag", "unknown"), level=1, after=1) == "fail"
    assert passes(result("dcgm_diag"), level=2, after=1) == "fail"
    assert passes(result("dcgm_diag"), level=3, after=1) == "pass"
    assert passes.all() == "pass"


def test_a_higher_level_that_could_not_tell_does_not_last(passes):
    passes.all()
    assert passes(result("dcgm_diag", "unknown"), level=2) == "unknown"
    assert passes.all() == "pass"


def test_when_a_result_was_had_is_kept_while_the_check_is_put_off(passes):
    passes.all()
    had = passes.now
    passes(put_off("pcie_bandwidth"))
    assert {one.result.check: one.finished for one in passes.history.counting()}[
        "pcie_bandwidth"
    ] == 1e9 + had


def test_gpus_that_are_gone_altogether_are_no_pass(passes):
    passes.all()
    gone = [result(check, "skip") for check in PERIODIC]
    assert (
        passes(*gone) == "unknown"
        and "there is nothing to check any more" in passes.decision().reasons[0]
    )
    assert passes(*gone) == "unknown"
    assert passes.all() == "pass"


def test_what_somebody_asked_in_vain_does_not_mark_the_node(passes):
    passes.all()
    assert passes(result("volume_claim", "unknown"), after=1) == "pass"
    assert passes(result("volume_claim", "fail"), after=1) == "fail"
    assert passes(result("volume_claim", "unknown"), after=1) == "fail"
    assert passes(result("volume_claim"), after=1) == "pass"


def test_a_peer_that_does_not_answer_does_not_mark_this_node(passes):
    passes.all()
    peer = Finding("peer_unreachable", "warn", "", subject=Subject("peer", name="gpu08"))
    assert passes(CheckResult("ping_mesh", "warn", "gpu08 does not answer", [peer])) == "pass"
    own = Finding("plane_down", "fail", "", subject=Subject("interface", name="eth0"))
    assert passes(CheckResult("ping_mesh", "fail", "eth0 is down", [peer, own]), after=1) == "fail"


PING = ("gpu_count", "ping_mesh")


def noted(*results, options=None):
    history = History(PING, PERIOD)
    history.note([result("gpu_count"), result("ping_mesh")], {}, 1e9, 1000.0)
    history.note(results, {one.check: options or {} for one in results}, 1e9 + 1, 1001.0)
    return decide_mark(history, 1001.0)


def test_neither_a_peer_that_a_caller_named_nor_an_outage_of_the_api_server_marks_a_node():
    absent = result("ping_mesh", "unknown", "not_measured")
    assert noted(absent).status == "unknown"
    assert noted(absent, options={"peers": ["gpu09"]}).status == "pass"
    assert noted(result("ping_mesh", "unknown", "peers_unread")).status == "pass"
    peer = Finding("no_answer", "warn", "", subject=Subject("peer", name="gpu09"))
    assert noted(CheckResult("ping_mesh", "warn", "", [peer])).status == "pass"


@pytest.mark.parametrize("options", [{}, {"peers": ["gpu09"], "minimum": 900.0}])
def test_a_slow_pair_does_not_make_this_end_unfit(options):
    """A failure about the node itself does."""
    slow = Finding("low_bandwidth", "fail", "9 Gbit/s", subject=Subject("peer", name="gpu09"))
    assert noted(CheckResult("iperf3_pairs", "fail", "", [slow]), options=options).status == "pass"
    own = Finding("link_down", "fail", "", subject=Subject("interface", name="eth0"))
    pair = CheckResult("iperf3_pairs", "fail", "", [slow, own])
    assert noted(pair, options=options).status == "fail"


def test_pings_of_peers_that_a_caller_named_do_not_mark_the_node():
    """Both peers may have the fault for which they are pinged."""
    own = Finding("no_path", "fail", "", subject=Subject("interface", name="net1"))
    failed = CheckResult("ping_mesh", "fail", "", [own])
    assert noted(failed, options={"peers": ["gpu08", "gpu09"]}).status == "pass"
    assert noted(failed).status == "fail"


@pytest.mark.parametrize("code", ["claim_not_bound", "volume_quota_exceeded"])
def test_a_storage_class_that_fails_does_not_make_every_node_unfit(code):
    """A volume that fails on this node does."""
    history = History(("gpu_count", "volume_claim"), PERIOD)
    history.note([result("gpu_count"), result("volume_claim", "fail", code)], {}, 1e9, 1000.0)
    assert decide_mark(history, 1000.0).status == "unknown"
    history.note([result("volume_claim", "fail", "volume_io_failed")], {}, 1e9, 1000.0)
    assert decide_mark(history, 1000.0).status == "fail"
