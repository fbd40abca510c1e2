# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to a person and back: preflight, callback, Pushgateway, Prometheus, Alertmanager,
webhook, all of them real.
"""

from __future__ import annotations

import json
import urllib.request
from datetime import datetime, timedelta, timezone

import pytest
from servers import Alertmanager, Webhook, eventually, missing

from controller import ROOT, write_inventory
from stack import PROGRAMS, Stack, stays

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.findings import (
    FINDINGS,
)

pytestmark = pytest.mark.skipif(bool(missing(*PROGRAMS)), reason=missing(*PROGRAMS))


@pytest.fixture(scope="module")
def stack(controller, tmp_path_factory):
    with Stack(controller, tmp_path_factory.mktemp("stack")) as running:
        yield running


def preflight(stack, directory, nodes):
    directory.mkdir()
    inventory = write_inventory(
        directory / "hosts.json", nodes, expected_gpus=8, checks_list=["gpu_count", "remapped_rows"]
    )
    done, document = stack.controller.preflight(
        ROOT / "playbooks/preflight.yml",
        inventory,
        directory,
        "--skip-tags",
        "mesh",
        "-e",
        f"pushgateway_url={stack.gateway.url}",
        "-e",
        json.dumps({"pushgateway_labels": {"cluster": "a"}}),
    )
    assert document, done.stdout
    return done


def test_a_fault_is_told_once_and_so_is_its_end(stack, node, tmp_path):
    well = node("healthy_8xh100")
    done = preflight(stack, tmp_path / "bad", {"gpu07": node("gpu_lost"), "gpu08": well})
    assert done.returncode == 2, done.stdout
    # The lost GPU is critical, so that all else there is about the node is left out.
    assert eventually(lambda: stack.of_node("gpu07", "firing"), 40) == {"AutopilotGpuLost"}
    (message,) = stack.webhook.received
    assert message["groupLabels"] == {"cluster": "a", "node": "gpu07"}
    told = message["alerts"][0]
    assert told["labels"]["severity"] == "critical" and told["labels"]["phase"] == "preflight"
    assert told["annotations"]["runbook"] == FINDINGS["gpu_lost"].next
    assert told["annotations"]["summary"].startswith("gpu07 GPU 3 (5D:00.0): gpu lost")

    before = stack.gateway.groups()
    stack.gateway.stop()
    eventually(lambda: stack.prometheus.query('up{job="autopilot-pushgateway"} == 0'))
    assert stays(
        lambda: "AutopilotGpuLost" in {alert["alertname"] for alert in stack.prometheus.alerts()}, 4
    )
    stack.gateway.start()
    eventually(lambda: stack.prometheus.query('autopilot_finding{node="gpu07"}'))
    assert stack.gateway.groups() == before
    assert {status for status, _labels in stack.received} == {"firing"}

    # A run elsewhere says nothing of gpu07.
    assert preflight(stack, tmp_path / "elsewhere", {"gpu08": well}).returncode == 0
    assert stays(lambda: stack.prometheus.query('autopilot_finding{node="gpu07"}'), 3)
    assert preflight(stack, tmp_path / "good", {"gpu07": well}).returncode == 0
    assert eventually(lambda: stack.of_node("gpu07", "resolved"), 40) == {"AutopilotGpuLost"}
    assert stack.prometheus.alerts() == []
    assert {labels["node"] for _status, labels in stack.received} == {"gpu07"}


def post(stack, *alerts, ended=False):
    """Alerts as Prometheus sends them to Alertmanager."""
    now = datetime.now(timezone.utc)
    ends = now - timedelta(seconds=1) if ended else now + timedelta(minutes=5)
    body = [
        # One that began longer ago than the group waits is told at once, whatever comes with it.
        {
            "labels": labels,
            "startsAt": min(now, ends).isoformat(),
            "endsAt": ends.isoformat(),
            "annotations": {"summary": "s", "runbook": "r"},
        }
        for labels in alerts
    ]
    request = urllib.request.Request(
        f"{stack.alertmanager.url}/api/v2/alerts",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200


def alert(name, severity, node, **more):
    return {"alertname": name, "severity": severity, "cluster": "a", "node": node, **more}


def test_one_dead_node_is_told_once(stack):
    del stack.webhook.received[:]
    dead = [
        alert("AutopilotNodeUnreachable", "critical", "dead"),
        alert("AutopilotGpuLost", "critical", "dead"),
        alert("AutopilotHung", "warning", "dead"),
    ]
    alive = [
        alert("AutopilotEccOff", "info", "alive"),
        alert("AutopilotHung", "warning", "alive"),
        alert("AutopilotHung", "warning", "dead", cluster="b"),
    ]
    # No node: what lies between nodes, and what is not of this collection.
    others = [
        {"alertname": "AutopilotSlowPair", "severity": "critical", "cluster": "a"},
        {"alertname": "AutopilotRunIncomplete", "severity": "warning", "cluster": "a"},
        alert("NodeDiskFull", "warning", "dead"),
    ]
    post(stack, *dead, *alive, *others)
    eventually(lambda: len(stack.webhook.received) >= 4)
    assert stays(lambda: len(stack.webhook.received) == 4, 3)
    told = {
        (message["groupLabels"]["cluster"], message["groupLabels"].get("node")): sorted(
            one["labels"]["alertname"] for one in message["alerts"]
        )
        for message in stack.webhook.received
    }
    assert told == {
        ("a", "dead"): ["AutopilotNodeUnreachable", "NodeDiskFull"],
        ("a", "alive"): ["AutopilotEccOff", "AutopilotHung"],
        ("b", "dead"): ["AutopilotHung"],
        ("a", None): ["AutopilotRunIncomplete", "AutopilotSlowPair"],
    }
    post(stack, *dead, *alive, *others, ended=True)


def test_who_is_told_what_goes_by_severity(controller, tmp_path):
    with Webhook() as slack, Webhook() as pager, Webhook() as everything:
        stack = Stack(
            controller,
            tmp_path,
            monitoring_components=["alertmanager"],
            monitoring_slack=[{"channel": "#gpu", "api_url": slack.url}],
            monitoring_webhook=[
                {"url": pager.url, "severities": ["critical"]},
                {"url": everything.url},
            ],
            monitoring_email=[
                {
                    "to": "a@example.org",
                    "from": "b@example.org",
                    "smarthost": "127.0.0.1:1",
                    "username": "x",
                    "password": "s3cret-word",
                }
            ],
        )
        for directory in (stack.etc, stack.defaults):
            directory.mkdir()
        done = stack.converge("-vvvv", "--diff")
        assert done.returncode == 0, done.stdout
        for secret in ("s3cret-word", slack.url, pager.url):
            assert secret not in done.stdout
        with Alertmanager(
            tmp_path / "alertmanager", stack.etc / "alertmanager.yml", stack.alertmanager.port
        ):
            post(
                stack,
                alert("AutopilotGpuLost", "critical", "n1"),
                alert("AutopilotHung", "warning", "n2"),
                alert("AutopilotEccOff", "info", "n3"),
            )
            eventually(
                lambda: (
                    len(everything.received) >= 3 and len(slack.received) >= 2 and pager.received
                )
            )
            assert stays(
                lambda: (
                    (len(everything.received), len(slack.received), len(pager.received))
                    == (3, 2, 1)
                ),
                2,
            )
        assert {one["channel"] for one in slack.received} == {"#gpu"}
        (critical,) = [
            one["attachments"][0]
            for one in slack.received
            if "n1" in one["attachments"][0]["title"]
        ]
        assert (
            critical["title"] == "FIRING: a n1 (1 firing, 0 resolved)"
            and "Next: r" in critical["text"]
        )
