# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fault to a person and back: preflight, callback, Pushgateway, Prometheus, Alertmanager,
webhook, all of them real.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from datetime import datetime, timedelta, timezone

import pytest
from servers import Alertmanager, Webhook, eventually, missing

from controller import ROOT, write_inventory
from stack import PROGRAMS, Stack, stays

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
    assert eventually(lambda: stack.of_node("gpu07", "firing"), 40) == {"AutopilotNodeFailed"}
    (message,) = stack.webhook.received
    assert message["groupLabels"] == {"cluster": "a", "node": "gpu07"}
    told = message["alerts"][0]
    assert told["labels"]["severity"] == "critical" and told["labels"]["phase"] == "preflight"
    assert told["labels"]["code"] == "gpu_lost" and told["labels"]["check"] == "gpu_count"
    assert told["annotations"]["runbook_url"].endswith("/docs/findings.md#gpu_lost")
    assert told["annotations"]["summary"].startswith("gpu07 GPU 3 (5D:00.0): gpu lost")

    before = stack.gateway.groups()
    stack.gateway.stop()
    eventually(lambda: stack.prometheus.query('up{job="autopilot-pushgateway"} == 0'))
    assert stays(
        lambda: (
            "AutopilotNodeFailed" in {alert["alertname"] for alert in stack.prometheus.alerts()}
        ),
        4,
    )
    stack.gateway.start()
    eventually(lambda: stack.prometheus.query('autopilot_finding{node="gpu07"}'))
    assert stack.gateway.groups() == before
    assert {status for status, _labels in stack.received} == {"firing"}

    # A run elsewhere says nothing of gpu07.
    assert preflight(stack, tmp_path / "elsewhere", {"gpu08": well}).returncode == 0
    assert stays(lambda: stack.prometheus.query('autopilot_finding{node="gpu07"}'), 3)
    assert preflight(stack, tmp_path / "good", {"gpu07": well}).returncode == 0
    assert eventually(lambda: stack.of_node("gpu07", "resolved"), 40) == {"AutopilotNodeFailed"}
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
            "annotations": {"summary": "s", "runbook_url": "https://wiki.example/#c"},
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
        alert("AutopilotNodeFailed", "critical", "dead"),
        alert("AutopilotNodeUnknown", "warning", "dead"),
    ]
    alive = [
        alert("AutopilotNodeWarning", "info", "alive"),
        alert("AutopilotNodeUnknown", "warning", "alive"),
        alert("AutopilotNodeUnknown", "warning", "dead", cluster="b"),
    ]
    # No node: what lies between nodes, and what is not of this collection.
    others = [
        {"alertname": "AutopilotMeshDegraded", "severity": "critical", "cluster": "a"},
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
        ("a", "alive"): ["AutopilotNodeUnknown", "AutopilotNodeWarning"],
        ("b", "dead"): ["AutopilotNodeUnknown"],
        ("a", None): ["AutopilotMeshDegraded", "AutopilotRunIncomplete"],
    }
    post(stack, *dead, *alive, *others, ended=True)


def routes(stack, **labels):
    """The receivers of an alert with these labels, by amtool."""
    done = subprocess.run(
        ["amtool", "config", "routes", "test", f"--config.file={stack.etc / 'alertmanager.yml'}"]
        + [f"{name}={value}" for name, value in labels.items()],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().split(",")


def test_silences_select_by_code(stack):
    del stack.webhook.received[:]
    done = subprocess.run(
        ["amtool", "silence", "add", f"--alertmanager.url={stack.alertmanager.url}"]
        + ["--comment=known", "--author=test", "code=~gpu_lost|ecc_off", "node=n7"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = [
        alert("AutopilotNodeFailed", "critical", node, code=code, check="gpu_count")
        for node, code in (("n7", "gpu_lost"), ("n7", "hung"), ("n8", "gpu_lost"))
    ]
    post(stack, *alerts)

    def told():
        firing = [labels for status, labels in stack.received if status == "firing"]
        return {(labels.get("node"), labels.get("code")) for labels in firing}

    assert eventually(lambda: len(told()) >= 2 and told()) == {("n7", "hung"), ("n8", "gpu_lost")}
    post(stack, *alerts, ended=True)


def check_routes(stack):
    """By severity, and by the matchers of the third webhook."""
    labels = {"severity": "warning", "node": "n1", "check": "iperf3_pairs"}
    assert routes(stack, **labels, code="slow_pair") == ["slack-1", "webhook-2", "webhook-3"]
    assert routes(stack, **labels, code="below_fleet") == ["slack-1", "webhook-2"]
    assert routes(stack, severity="critical", code="unreachable") == [
        "slack-1",
        "webhook-1",
        "webhook-2",
        "email-1",
    ]


def test_who_is_told_what_goes_by_severity_and_matchers(controller, tmp_path):
    with Webhook() as slack, Webhook() as pager, Webhook() as everything:
        stack = Stack(
            controller,
            tmp_path,
            monitoring_components=["alertmanager"],
            monitoring_slack=[{"channel": "#gpu", "api_url": slack.url}],
            monitoring_webhook=[
                {"url": pager.url, "severities": ["critical"]},
                {"url": everything.url},
                {"url": pager.url, "matchers": ['code=~"gpu_lost|slow_pair"', 'check!=""']},
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
        check_routes(stack)
        with Alertmanager(
            tmp_path / "alertmanager", stack.etc / "alertmanager.yml", stack.alertmanager.port
        ):
            post(
                stack,
                alert("AutopilotNodeFailed", "critical", "n1"),
                alert("AutopilotNodeUnknown", "warning", "n2"),
                alert("AutopilotNodeWarning", "info", "n3"),
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
            and "Runbook: https://wiki.example/#c" in critical["text"]
        )
