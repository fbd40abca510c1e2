# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The alert rules about node marks, by promtool: what the agents say of their nodes, over restarts
and gaps.
"""

from __future__ import annotations

import pytest
from servers import missing

from alerting import promtool

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.agent import (
    CERTIFICATE_END,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.marks import (
    EVICT,
    MARKS,
    NONE,
    PASS,
    TESTING,
    WARN,
)

pytestmark = pytest.mark.skipif(bool(missing("promtool")), reason=missing("promtool"))


def series(stories):
    """Series of nodes with a sample a minute: node -> [(minutes, pod, mark)]; no pod: nothing is
    scraped.
    """
    made, names = {}, [mark for mark in MARKS if mark]
    for node, story in stories.items():
        minute = 0
        for lasts, pod, mark in story:
            labels = f'node="{node}", cluster="a", pod="{pod}"'
            values = (
                {
                    f'autopilot_node_mark{{{labels}, mark="{name}"}}': int(name == mark)
                    for name in names
                }
                if pod
                else {}
            )
            values.update({f'autopilot_agent_info{{{labels}, version="1"}}': 1} if pod else {})
            for key, value in values.items():
                known = made.setdefault(key, [])
                known += ["_"] * (minute - len(known)) + [str(value)] * lasts
            minute += lasts
            for key, known in made.items():
                if f'node="{node}"' in key:
                    known += ["stale"] * (minute - len(known))
    return [{"series": key, "values": " ".join(values)} for key, values in made.items()]


def firing(*expected):
    """The alerts about nodes that fire, by name, node and severity."""
    expression = (
        "count by (alertname, node, severity) "
        '(ALERTS{alertname=~"AutopilotNodeMarked.*|AutopilotMark.*|AutopilotAgent.*", '
        'alertstate="firing"})'
    )
    return expression, [
        {"labels": f'{{alertname="{name}", node="{node}", severity="{severity}"}}', "value": 1}
        for name, node, severity in expected
    ]


def test_every_mark_fires_as_bad_as_the_table_says_and_clears(tmp_path):
    stories = {
        f"gpu-{mark or 'none'}": [(MARKS[mark].patience + 10, "p1", mark), (20, "p1", PASS)]
        for mark in (NONE, PASS, WARN, TESTING, EVICT)
    }
    tests = []
    for mark, row in MARKS.items():
        name, alert = f"gpu-{mark or 'none'}", f"AutopilotNodeMarked{mark.capitalize()}"
        expression = (
            f'count by (alertname, severity) (ALERTS{{node="{name}", alertstate="firing"}})'
        )
        fires = (
            [{"labels": f'{{alertname="{alert}", severity="{row.severity}"}}', "value": 1}]
            if row.severity
            else []
        )
        tests += [(row.patience + 5, expression, fires), (row.patience + 15, expression, [])]
        if row.patience > 1:
            tests.append((row.patience - 1, expression, []))
    assert [mark for mark, row in MARKS.items() if row.severity == "critical"] == [EVICT]
    assert not promtool(tmp_path, series(stories), expressions=tests)


def test_an_agent_that_restarts_mends_nothing_and_brings_nothing_back(tmp_path):
    evict = ("AutopilotNodeMarkedEvict", "gpu07", "critical")
    # Restarted, away for ten minutes, back, and then mended by its next pod.
    story = [
        (10, "p1", EVICT),
        (10, "p2", EVICT),
        (10, "", ""),
        (10, "p2", EVICT),
        (15, "p3", PASS),
    ]
    tests = [
        (minute, *firing(*([evict] if minute < 40 else [])))
        for minute in (5, 11, 19, 21, 29, 35, 39, 41, 50)
    ]
    assert not promtool(tmp_path, series({"gpu07": story}), expressions=tests)


def test_an_agent_that_is_gone_is_an_alert(tmp_path):
    gone, evict = (
        ("AutopilotAgentGone", "gpu07", "warning"),
        ("AutopilotNodeMarkedEvict", "gpu07", "critical"),
    )
    stories = {
        "gpu07": [(10, "p1", EVICT), (60, "", ""), (10, "p2", EVICT)],
        "gpu08": [(30, "p1", PASS), (30, "p2", PASS)],
    }
    tests = [
        (minute, *firing(*expected))
        for minute, expected in (
            (5, [evict]),
            (20, [evict]),
            (30, [gone]),
            (60, [gone]),
            (75, [evict]),
        )
    ]
    stories["gpu08"].append((40, "p2", PASS))
    assert not promtool(tmp_path, series(stories), expressions=tests)


def test_a_node_with_gpus_that_never_had_an_agent_is_an_alert(tmp_path):
    missing = ("AutopilotAgentMissing", "gpu09", "warning")
    capacity = [
        {
            "series": f'kube_node_status_capacity{{node="{node}", resource="{resource}", cluster="a"}}',
            "values": f"{count}x60",
        }
        for node, resource, count in (
            ("gpu07", "nvidia_com_gpu", 8),
            ("gpu09", "nvidia_com_mig_1g_10gb", 7),
            ("cpu01", "nvidia_com_gpu", 0),
            ("cpu02", "cpu", 64),
        )
    ]
    given = series({"gpu07": [(60, "p1", PASS)]})
    assert not promtool(tmp_path, given + capacity, expressions=[(30, *firing(missing))])
    # A cluster without any agent has none by choice.
    assert not promtool(tmp_path, capacity, expressions=[(30, *firing())])


def test_a_mark_that_was_refused_is_an_alert_for_an_hour(tmp_path):
    values = ["0"] * 10 + ["1"] * 120
    given = [
        {
            "series": 'autopilot_marks_refused_total{node="gpu07", cluster="a", pod="p1"}',
            "values": " ".join(values),
        }
    ]
    refused = ("AutopilotMarkRefused", "gpu07", "critical")
    tests = [(5, *firing()), (12, *firing(refused)), (65, *firing(refused)), (75, *firing())]
    assert not promtool(tmp_path, given, expressions=tests)


def test_a_certificate_that_nears_its_end_is_one_alert_of_the_cluster(tmp_path):
    """promtool's clock starts at 0."""
    day = 86400
    made = [
        {
            "series": f'{CERTIFICATE_END}{{node="{node}", cluster="{cluster}"}}',
            "values": f"{end}x60",
        }
        for cluster, node, end in (
            ("a", "gpu07", 20 * day),
            ("a", "gpu08", 20 * day),
            ("b", "gpu09", 30 * day),
        )
    ]
    expression = 'ALERTS{alertname="AutopilotAgentCertificateEnds", alertstate="firing"}'
    labels = (
        'ALERTS{alertname="AutopilotAgentCertificateEnds", alertstate="firing", cluster="a", '
        'severity="warning"}'
    )
    tests = [(5, expression, []), (30, expression, [{"labels": labels, "value": 1}])]
    assert not promtool(tmp_path, made, expressions=tests)
