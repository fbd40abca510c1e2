# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The alert rules of the role monitoring, by promtool: what fires and clears for what runs found,
real runs among them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers import missing

from alerting import PUSHED, RULES, alert_of, groups_of_rules, promised, promtool, series_of
from controller import ROOT, linked, write_inventory

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge import agent
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.metrics import (
    Group,
    Sample,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES

pytestmark = pytest.mark.skipif(bool(missing("promtool")), reason=missing("promtool"))

#: What a finding of any code may say.
VARIANTS = [("fail", action) for action in ACTIONS if action != "none"] + [
    ("unknown", "watch"),
    ("warn", "reset_gpu"),
]
DAY = 24 * 60


def finding(code, status="fail", action="drain_node", subject="node", check="gpu_count"):
    return Sample(
        "autopilot_finding",
        {"check": check, "code": code, "status": status, "action": action, "subject": subject},
        1.0,
    )


def group(node, *samples, at=0.0, phase="preflight"):
    return Group(
        {"node": node, "phase": phase},
        [Sample("autopilot_last_run_timestamp_seconds", {}, at), *samples],
    )


def checked(status, at, check="gpu_count"):
    """What a run that ended ``at`` says of a check."""
    return Sample("autopilot_check_status", {"check": check}, STATUSES.index(status)), Sample(
        "autopilot_check_timestamp_seconds", {"check": check}, at
    )


def document(nodes, findings=()):
    """A run document as far as the metrics read it; ``nodes`` maps names to findings of the check
    gpu_count.
    """
    return {
        "run_id": "r",
        "phase": "preflight",
        "finished": "1970-01-01T00:00:00Z",
        "policy": {},
        "duration_seconds": 1.0,
        "versions": {},
        "verdict": {"status": "fail", "passed": False},
        "counts": {"fit": 0, "unfit": 0, "could_not_tell": 0, "skipped": 0},
        "findings": list(findings),
        "nodes": [
            {
                "name": name,
                "status": "fail",
                "fit": "unfit",
                "facts": {},
                "health": [],
                "fleet": [],
                "readings": {},
                "findings": found,
            }
            for name, found in nodes.items()
        ],
    }


def names():
    """Every alert there is."""
    return [
        rule["alert"] for part in groups_of_rules() for rule in part["rules"] if "alert" in rule
    ]


def only(minute, expected):
    """Tests that at this minute these alerts fire, and no other."""
    by_name = {}
    for one in expected:
        by_name.setdefault(promised(one["exp_labels"])[0], []).append(one)
    return [(minute, name, by_name.get(name, [])) for name in dict.fromkeys(names())]


def test_the_rules_are_those_of_the_table():
    done = subprocess.run(
        [sys.executable, str(ROOT / "src/monitoring/alerts.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = {"AutopilotNodeUnreachable"} | {
        f"Autopilot{kind}{end}"
        for kind in ("Node", "Mesh")
        for end in ("Failed", "Degraded", "Unknown", "Warning")
    }
    runs = {
        "AutopilotNotCheckedLately",
        "AutopilotNoSuccessLately",
        "AutopilotNeverFit",
        "AutopilotRunIncomplete",
        "AutopilotPushFailed",
        "AutopilotPushgatewayDown",
        "AutopilotNoResults",
    }
    nodes = {
        "AutopilotNodeMarkedWarn",
        "AutopilotNodeMarkedTesting",
        "AutopilotNodeMarkedEvict",
        "AutopilotMarkRefused",
        "AutopilotAgentGone",
        "AutopilotAgentMissing",
        "AutopilotAgentCertificateEnds",
    }
    queue = {
        "AutopilotQueueCapacityLost",
        "AutopilotQuotaAboveSchedulable",
        "AutopilotQueuePending",
    }
    assert sorted(names()) == sorted(findings | runs | nodes | queue) and len(names()) == 26


def test_rules_ask_for_metrics_that_there_are():
    known = {metric.name: set(metric.labels) for metric in (*metrics.METRICS, *agent.METRICS)}
    asked = set(re.findall(r"\bautopilot_\w+", RULES.read_text()))
    assert asked <= set(known) and "autopilot_finding" in asked
    assert {"check", "code", "status", "action", "subject"} == known["autopilot_finding"]


#: Codes of findings: of a GPU, of no check, and one that only a newer version has.
CODES = {"gpu_lost": "gpu_count", "unreachable": "", "melted": "gpu_count"}


def test_a_finding_fires_by_its_status_and_next_step_and_clears(tmp_path):
    found = {
        f"{code}-{status}-{action}": [
            {
                "check": check,
                "code": code,
                "status": status,
                "action": action,
                "message": "",
                "evidence": {},
                "subject": {"kind": "gpu", "index": 3, "pci": "00000000:9A:00.0"},
            }
        ]
        for code, check in CODES.items()
        for status, action in VARIANTS
    }
    bad, good = (
        list(metrics.groups_of(RunReport.from_dict(document(nodes))))
        for nodes in (found, dict.fromkeys(found, []))
    )
    alerts = [
        alert_of(one, sample)
        for one in bad
        for sample in one.samples
        if sample.metric == "autopilot_finding"
    ]
    assert len(alerts) == len(CODES) * len(VARIANTS)
    assert "GPU 3 (9A:00.0)" in alerts[0]["exp_annotations"]["summary"]
    at_once = [one for one in alerts if promised(one["exp_labels"])[0] != "AutopilotNodeUnknown"]
    expected = only(2, at_once) + only(18, alerts) + only(21, [])
    assert not promtool(tmp_path, series_of([(20, bad), (5, good)]), expected)


@pytest.mark.parametrize(
    "status, action",
    [
        ("fail", "drain_node"),
        ("fail", "fix_configuration"),
        ("unknown", "watch"),
        ("warn", "watch"),
    ],
)
def test_a_link_is_one_alert_though_both_its_ends_have_it(tmp_path, status, action):
    link = {
        "check": "iperf3_pairs",
        "code": "slow_pair",
        "status": status,
        "action": action,
        "message": "",
        "subject": {"kind": "link", "name": "gpu01 and gpu02 on eth1"},
        "evidence": {"pairs": [{"from": "gpu01", "to": "gpu02"}]},
    }
    nodes = {"gpu01": [], "gpu02": []}
    bad, good = (
        list(metrics.groups_of(RunReport.from_dict(document(nodes, [link])))),
        list(metrics.groups_of(RunReport.from_dict(document(nodes)))),
    )
    found = [
        (one, sample)
        for one in bad
        for sample in one.samples
        if sample.metric == "autopilot_finding"
    ]
    assert len(found) == 2
    expected = [alert_of(*found[0], node=False)]
    # One end is measured again without the other, and still has it; then both are.
    series = series_of([(20, bad), (5, [good[0], *bad[1:]]), (5, good)])
    assert not promtool(tmp_path, series, only(17, expected) + only(22, expected) + only(27, []))


def test_a_gap_of_the_pushgateway_mends_nothing_and_brings_nothing_back(tmp_path):
    bad, good = [group("gpu07", finding("gpu_lost"))], [group("gpu07")]
    held = [alert_of(bad[0], bad[0].samples[1])]
    # Seen for 5 minutes, a gap of 10, seen again, cleared, a gap soon after.
    series = series_of([(5, bad), (10, []), (5, bad), (5, good), (8, []), (2, good)])
    alerts = [
        (minute, "AutopilotNodeFailed", held if minute < 20 else [])
        for minute in (2, 5, 8, 13, 15, 19, 21, 25, 27, 31)
    ]
    assert not promtool(tmp_path, series, alerts)


def test_what_is_gone_for_good_is_held_for_a_quarter_of_an_hour(tmp_path):
    series = series_of(
        [(5, [group("gpu07", finding("gpu_lost")), group("gpu08")]), (25, [group("gpu08")])]
    )
    bad = group("gpu07", finding("gpu_lost"))
    held = [alert_of(bad, bad.samples[1])]
    assert not promtool(
        tmp_path, series, [(17, "AutopilotNodeFailed", held), (21, "AutopilotNodeFailed", [])]
    )


@pytest.mark.parametrize("code, check", [("gpu_lost", "gpu_count"), ("unreachable", "")])
@pytest.mark.parametrize(
    "said, at, ends",
    [
        ("pass", 200.0, True),
        ("warn", 200.0, True),
        ("pass", 50.0, False),
        ("skip", 200.0, False),
        ("unknown", 200.0, False),
    ],
)
def test_a_later_run_of_another_phase_has_the_last_word(tmp_path, code, check, said, at, ends):
    name = "AutopilotNodeFailed" if check else "AutopilotNodeUnreachable"
    told = [finding(code, check=check), *(checked("fail", 100.0) if check else ())]
    before = group("gpu07", *told, at=100.0, phase="postflight")
    after = group("gpu07", *checked(said, at), at=at)
    elsewhere = group("gpu08", *checked("pass", 300.0), at=300.0)
    fires = [alert_of(before, told[0])]
    alerts = [(minute, name, fires if minute < 5 or not ends else []) for minute in (2, 7, 14, 18)]
    # In a gap of the Pushgateway what was answered does not come back.
    assert not promtool(
        tmp_path,
        series_of(
            [
                (5, [before, elsewhere]),
                (5, [before, after, elsewhere]),
                (7, []),
                (3, [before, after, elsewhere]),
            ]
        ),
        alerts,
    )


@pytest.mark.parametrize("subject, stays", [("GPU 3", True), ("node", True), ("GPU 4", False)])
def test_what_failed_lasts_until_it_is_an_alert_that_the_check_cannot_tell_any_more(
    tmp_path, subject, stays
):
    bad = group("gpu07", finding("gpu_lost", subject="GPU 3"), *checked("fail", 0.0))
    lost = group(
        "gpu07",
        finding("hung", "unknown", "watch", subject=subject),
        *checked("unknown", 60.0),
        at=60.0,
    )
    good = group("gpu07", *checked("pass", 120.0), at=120.0)
    fires, hung = [alert_of(bad, bad.samples[1])], [alert_of(lost, lost.samples[1])]
    series = series_of([(5, [bad]), (30, [lost]), (5, [good])])
    alerts = [
        (minute, "AutopilotNodeFailed", fires if minute < 5 or (stays and minute < 24) else [])
        for minute in (2, 5, 12, 20, 21, 26, 37)
    ]
    assert not promtool(
        tmp_path,
        series,
        [
            *alerts,
            *(
                (minute, "AutopilotNodeUnknown", hung if 20 <= minute < 35 else [])
                for minute in (12, 20, 21, 26, 37)
            ),
        ],
    )
    # Found well before that, it ends at once.
    assert not promtool(
        tmp_path,
        series_of([(5, [bad]), (5, [lost]), (5, [good])]),
        [(11, "AutopilotNodeFailed", []), (11, "AutopilotNodeUnknown", [])],
    )


def test_a_node_that_nobody_checks_is_an_alert(tmp_path):
    checked = 26 * 3600 / 60
    series = series_of(
        [(3 * DAY // 10, [group("gpu07"), group("gpu07", at=7200.0, phase="postflight")])]
    )
    counted = 'count by (node) (ALERTS{alertname="AutopilotNotCheckedLately"})'
    tests = [
        (int(checked + 119) // 10 * 10, counted, []),
        (int(checked + 121) // 10 * 10 + 10, counted, [{"labels": '{node="gpu07"}', "value": 1}]),
    ]
    assert not promtool(tmp_path, series, expressions=tests, interval="10m")


def test_a_node_that_no_run_finds_fit_is_an_alert(tmp_path):
    never_again = Sample("autopilot_last_success_timestamp_seconds", {}, 0.0)
    day = 24 * 3600.0
    timeline = [
        (DAY // 10, [group("gpu07", never_again, at=at)]) for at in (0.0, day, 2 * day, 3 * day)
    ]
    counted = 'count by (node) (ALERTS{alertname="AutopilotNoSuccessLately"})'
    tests = [
        (72 * 60 - 10, counted, []),
        (72 * 60 + 20, counted, [{"labels": '{node="gpu07"}', "value": 1}]),
    ]
    assert not promtool(tmp_path, series_of(timeline), expressions=tests, interval="10m")


def test_a_node_that_no_run_ever_found_fit_is_an_alert(tmp_path):
    fit = Sample("autopilot_last_success_timestamp_seconds", {}, 0.0)
    days = [24 * 3600.0 * day for day in range(4)]
    timeline = [
        (
            DAY // 10,
            [
                group("gpu07", at=at),
                group("gpu08", fit, at=at),
                group("gpu09", at=0.0),
                # It audits the quota.
                group("controller", at=at, phase="quota"),
            ],
        )
        for at in days
    ]
    # The Pushgateway restarts, and no time is lost by that.
    timeline[1:2] = [(72, timeline[1][1]), (1, []), (71, timeline[1][1])]
    counted = 'count by (node) (ALERTS{alertname="AutopilotNeverFit", alertstate="firing"})'
    tests = [
        (72 * 60 - 30, counted, []),
        (72 * 60 + 30, counted, [{"labels": '{node="gpu07"}', "value": 1}]),
    ]
    assert not promtool(tmp_path, series_of(timeline), expressions=tests, interval="10m")


def test_a_moment_without_the_pushgateway_ends_no_alert_about_runs(tmp_path):
    old = [
        group("gpu07"),
        Group({"phase": "preflight"}, [Sample("autopilot_run_complete", {}, 0.0)]),
    ]
    late = 27 * 60
    series = series_of([(late, old), (10, []), (5, old)])
    counted = (
        "count by (alertname) "
        '(ALERTS{alertname=~"AutopilotNotCheckedLately|AutopilotRunIncomplete", '
        'alertstate="firing"})'
    )
    both = [
        {"labels": f'{{alertname="{name}"}}', "value": 1}
        for name in ("AutopilotNotCheckedLately", "AutopilotRunIncomplete")
    ]
    assert not promtool(
        tmp_path,
        series,
        expressions=[
            (minute, counted, both) for minute in (late - 2, late + 5, late + 9, late + 13)
        ],
    )


def test_alerts_about_runs(tmp_path):
    def run(complete):
        return Group({"phase": "preflight"}, [Sample("autopilot_run_complete", {}, complete)])

    def push(failed):
        return Group(
            {"node": "gpu07", "phase": "preflight"},
            [
                Sample("push_time_seconds", {}, 100.0),
                Sample("push_failure_time_seconds", {}, failed),
            ],
        )

    other = Group(
        {"instance": "backup"},
        [Sample("push_time_seconds", {}, 1.0), Sample("push_failure_time_seconds", {}, 2.0)],
    )
    up = [
        Group({"job": "autopilot-pushgateway", "instance": "a:9091"}, [Sample("up", {}, value)])
        for value in (0.0, 1.0)
    ]
    series = series_of(
        [
            (20, [run(0.0), push(200.0), other, up[0]]),
            (10, [group("gpu07"), run(1.0), push(0.0), other, up[1]]),
        ]
    )
    firing = 'count by (alertname, severity, node, phase, instance) (ALERTS{alertstate="firing"})'
    labels = [
        '{alertname="AutopilotRunIncomplete", severity="warning", phase="preflight"}',
        '{alertname="AutopilotPushFailed", severity="warning", node="gpu07", phase="preflight"}',
        '{alertname="AutopilotPushgatewayDown", severity="critical", instance="a:9091"}',
        '{alertname="AutopilotNoResults", severity="warning"}',
    ]
    tests = [
        (2, firing, [{"labels": one, "value": 1} for one in labels[:2]]),
        (12, firing, [{"labels": one, "value": 1} for one in labels]),
        (22, firing, []),
    ]
    assert not promtool(tmp_path, series, expressions=tests)


def audited(schedulable, pending, quota=20.0, node="ctl"):
    """What an audit on a host pushes: 24 GPUs and as many cores, of which some can be scheduled."""
    samples = [Sample("autopilot_queue_workloads", {"queue": "red", "state": "pending"}, pending)]
    samples.append(Sample("autopilot_queue_workloads", {"queue": "red", "state": "admitted"}, 1.0))
    for resource in ("nvidia.com/gpu", "cpu"):
        labels = {"flavor": "default-flavor", "resource": resource}
        samples += [
            Sample(f"autopilot_flavor_{name}", labels, value)
            for name, value in (
                ("capacity", 24.0),
                ("schedulable", schedulable),
                ("quota", quota if resource != "cpu" else 1.0),
            )
        ]
    return group(node, *samples)


def test_alerts_about_the_queue(tmp_path):
    lost, above, pending = (
        ("AutopilotQueueCapacityLost", "warning", 'flavor="default-flavor", ', "nvidia.com/gpu"),
        (
            "AutopilotQuotaAboveSchedulable",
            "warning",
            'flavor="default-flavor", ',
            "nvidia.com/gpu",
        ),
        ("AutopilotQueuePending", "info", 'queue="red", ', ""),
    )
    firing = (
        "count by (alertname, severity, flavor, queue, resource, node) "
        '(ALERTS{alertname=~"AutopilotQu.*", alertstate="firing"})'
    )

    def expected(*alerts):
        return [
            {
                "labels": f'{{alertname="{name}", {part}severity="{severity}"'
                + (f', resource="{resource}"}}' if resource else "}"),
                "value": 1,
            }
            for name, severity, part, resource in alerts
        ]

    series = series_of(
        [
            (90, [audited(16.0, 2.0)]),
            # Ten minutes without the Pushgateway end no alert.
            (10, []),
            (20, [audited(20.0, 2.0)]),
            (20, [audited(24.0, 0.0)]),
        ]
    )
    tests = [
        (5, firing, []),
        (20, firing, expected(lost, above)),
        (70, firing, expected(lost, above, pending)),
        (99, firing, expected(lost, above, pending)),
        # As many as the quota says; some are still out of service.
        (105, firing, expected(lost, pending)),
        (125, firing, []),
    ]
    assert not promtool(tmp_path, series, expressions=tests)


#: Scenario of tests/sandbox -> codes of which alerts fire after a run over such a node.
REAL = {
    "gpu_lost": {"gpu_lost"},
    "remap_failure": {"row_remap_failure", "no_spare_rows", "recovery_action"},
    "mig": {"not_readable_with_mig"},
}


@pytest.mark.full
def test_real_runs_fire_and_clear(node, tmp_path):
    controller = linked(tmp_path / "controller", Path(sys.executable).parent)
    well = node("healthy_8xh100")

    def run(name, nodes):
        directory = tmp_path / name
        directory.mkdir()
        inventory = write_inventory(
            directory / "hosts.json",
            nodes,
            expected_gpus=8,
            checks_list=["gpu_count", "remapped_rows"],
        )
        done, _document = controller.preflight(
            ROOT / "playbooks/preflight.yml", inventory, directory, "--skip-tags", "mesh"
        )
        (written,) = directory.glob("reports/*/metrics.json")
        return done, metrics.from_json(written.read_text(encoding="utf-8")).groups

    done, bad = run("bad", {scenario: node(scenario) for scenario in REAL})
    assert done.returncode == 2, done.stdout
    _done, good = run("good", dict.fromkeys(REAL, well))
    found = {
        one.labels.get("node"): [
            sample for sample in one.samples if sample.metric == "autopilot_finding"
        ]
        for one in bad
    }
    assert {
        scenario: {sample.labels["code"] for sample in found[scenario]} for scenario in REAL
    } == REAL
    expected = [
        alert_of(one, sample)
        for one in bad
        for sample in one.samples
        if sample.metric == "autopilot_finding"
    ]
    assert {one["exp_labels"]["severity"] for one in expected} == {"critical", "warning", "info"}
    assert PUSHED.items() <= expected[0]["exp_labels"].items()
    (tmp_path / "alerts.json").write_text(json.dumps(expected), encoding="utf-8")
    assert not promtool(
        tmp_path, series_of([(20, bad), (5, good)]), only(17, expected) + only(22, [])
    )
