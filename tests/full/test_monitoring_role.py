# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role monitoring on this machine: what it writes, what it leaves alone, and that nothing of it
stays.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from servers import missing

from controller import ROOT
from stack import PROGRAMS, Stack

RULES = ROOT / "roles/monitoring/files/rules/autopilot-gpu.rules.yml"

needs_programs = pytest.mark.skipif(bool(missing(*PROGRAMS)), reason=missing(*PROGRAMS))

#: prometheus.yml as operators have it, and how an item of each list is written in it; None for a
#: list that is not there.
OPERATORS = {
    "as Debian has it": """\
global:
  scrape_interval: 15s # seconds
alerting:
  alertmanagers:
  - static_configs:
    - targets: ['localhost:9093']
rule_files:
  # - "first_rules.yml"

scrape_configs:
  # Here it's Prometheus itself.
  - job_name: 'prometheus'
    static_configs:
      - targets: ['localhost:9090']
""",
    "with an indentation of its own": """\
alerting:
    alertmanagers:
        # the old one
        - static_configs: [{targets: ["old:9093"]}]
scrape_configs:
- job_name: node
  static_configs:
  - targets: [localhost:9100]
rule_files:
- /etc/prometheus/mine/*.yml
""",
    "nothing": "",
}


def files(directory):
    return {
        str(path.relative_to(directory)): (
            path.read_bytes(),
            oct(path.stat().st_mode),
            path.stat().st_gid,
        )
        if path.is_file()
        else None
        for path in sorted(directory.rglob("*"))
    }


def changed(done):
    """How many tasks changed something; -1 when the playbook failed."""
    found = re.search(r"changed=(\d+) .*failed=0 ", done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else -1


def prepared(controller, directory, prometheus, **variables):
    stack = Stack(
        controller,
        directory,
        **{
            "monitoring_components": ["pushgateway", "prometheus", "alertmanager", "grafana"],
            "monitoring_grafana_dir": str(directory / "grafana"),
            "monitoring_grafana_dashboards_dir": str(directory / "dashboards"),
            **variables,
        },
    )
    for one in (stack.etc, stack.defaults, directory / "grafana/provisioning/dashboards"):
        one.mkdir(parents=True)
    if prometheus:
        (stack.etc / "prometheus.yml").write_text(prometheus, encoding="utf-8")
    (stack.etc / "alertmanager.yml").write_text(
        "route: {receiver: mine}\nreceivers: [{name: mine}]\n", encoding="utf-8"
    )
    (stack.defaults / "prometheus-pushgateway").write_text(
        'ARGS="--log.level=debug"\n', encoding="utf-8"
    )
    return stack


def look_at(stack, operator):
    """What holds of prometheus.yml once the role was there."""
    text = (stack.etc / "prometheus.yml").read_text(encoding="utf-8")
    kept = re.sub(r"(?ms)^# BEGIN autopilot[.]gpu .*?^# END autopilot[.]gpu [^\n]*\n", "", text)
    assert kept == OPERATORS[operator]
    config, theirs = yaml.safe_load(text), yaml.safe_load(OPERATORS[operator]) or {}
    assert [
        job for job in config["scrape_configs"] if job["job_name"] != "autopilot-pushgateway"
    ] == (theirs.get("scrape_configs") or [])
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "autopilot-pushgateway"]
    assert job["honor_labels"] is True and job["static_configs"] == [
        {"targets": ["localhost:9091"]}
    ]
    assert (
        set(theirs.get("rule_files") or []) < set(config["rule_files"])
        and f"{stack.etc}/autopilot-gpu/*.rules.yml" in config["rule_files"]
    )
    targets = [
        target
        for one in config["alerting"]["alertmanagers"]
        for part in one["static_configs"]
        for target in part["targets"]
    ]
    assert targets.count("localhost:9093") == 1 and len(targets) == 1 + ("old:9093" in text)
    loaded = subprocess.run(
        ["promtool", "check", "config", str(stack.etc / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0 and "1 rule files found" in loaded.stdout, (
        loaded.stdout + loaded.stderr
    )


USUAL = {
    "monitoring_pushgateway_address": "localhost:9091",
    "monitoring_alertmanager_address": "localhost:9093",
}


@needs_programs
@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "as Debian has it"])
def test_what_the_operator_has_stays(operator, controller, tmp_path):
    stack = prepared(
        controller, tmp_path, OPERATORS[operator], monitoring_components=["prometheus"], **USUAL
    )
    before = files(tmp_path)
    done = stack.converge()
    assert changed(done) > 0, done.stdout
    look_at(stack, operator)
    assert changed(stack.converge(monitoring_state="absent")) > 0
    assert files(tmp_path) == before


@needs_programs
def test_all_of_it_twice_and_gone_again(controller, tmp_path):
    stack = prepared(controller, tmp_path, OPERATORS["as Debian has it"], **USUAL)
    before = files(tmp_path)
    checked = stack.converge("--check", "--diff")
    assert changed(checked) > 0 and files(tmp_path) == before, checked.stdout
    done = stack.converge()
    assert changed(done) > 0, done.stdout
    assert "The host runs no systemd" in done.stdout or Path("/run/systemd/system").exists()
    look_at(stack, "as Debian has it")
    arguments = subprocess.run(
        ["sh", "-c", f". {stack.defaults}/prometheus-pushgateway; echo $ARGS"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (
        "--push.disable-consistency-check" in arguments
        and f"--persistence.file={tmp_path}/pushgateway.data" in arguments
    )
    assert (stack.etc / "alertmanager.yml").stat().st_mode & 0o777 == 0o640
    dashboards = sorted(
        path.name for path in (ROOT / "roles/monitoring/files/dashboards").glob("*.json")
    )
    assert sorted(path.name for path in (tmp_path / "dashboards").iterdir()) == dashboards
    again = stack.converge()
    assert changed(again) == 0, again.stdout

    other = tmp_path / "dashboards/mine.json"
    other.write_text("{}", encoding="utf-8")
    assert changed(stack.converge(monitoring_state="absent")) > 0
    assert list((tmp_path / "dashboards").iterdir()) == [other]
    other.unlink()
    other.parent.rmdir()
    assert files(tmp_path) == before


@needs_programs
def test_secrets_of_the_operators_files_are_not_shown(controller, tmp_path):
    secret = "s3cret-word"
    job = {
        "job_name": "push",
        "basic_auth": {"username": "x", "password": secret},
        "static_configs": [{"targets": ["push:9091"]}],
    }
    stack = prepared(
        controller,
        tmp_path,
        yaml.safe_dump({"scrape_configs": [job]}),
        monitoring_components=["prometheus", "alertmanager"],
    )
    theirs = {
        "global": {"slack_api_url": f"https://hooks.example/{secret}"},
        "route": {"receiver": "mine"},
        "receivers": [{"name": "mine"}],
    }
    (stack.etc / "alertmanager.yml").write_text(yaml.safe_dump(theirs), encoding="utf-8")
    before = files(stack.etc)
    encoded = base64.b64encode((stack.etc / "prometheus.yml").read_bytes()).decode()[:40]
    for code, given in (
        (2, {"monitoring_pushgateway_address": "push:9091"}),
        (0, {}),
        (0, {"monitoring_state": "absent"}),
    ):
        done = stack.converge("-vvvv", "--diff", **given)
        assert done.returncode == code and secret not in done.stdout and encoded not in done.stdout
    assert files(stack.etc) == before


@needs_programs
def test_variables_reach_the_rules_and_what_cannot_work_is_said(controller, tmp_path):
    stack = prepared(
        controller,
        tmp_path,
        'scrape_configs:\n  - job_name: push\n    static_configs: [{targets: ["push:9091"]}]\n',
    )
    given = {"monitoring_components": ["prometheus"], "monitoring_pushgateway_address": "push:9091"}
    done = stack.converge(**given)
    assert (
        changed(done) == -1
        and "The scrape job push in" in done.stdout
        and "honor_labels: true" in done.stdout
    )
    (stack.etc / "prometheus.yml").write_text(
        "scrape_configs:\n  - job_name: push\n    honor_labels: true\n    static_configs: "
        '[{targets: ["push:9091"]}]\n',
        encoding="utf-8",
    )
    # Each is the other's default, so that one put in for the other is seen.
    given |= {
        "monitoring_not_checked_hours": 72,
        "monitoring_no_success_hours": 26,
        "monitoring_runbook_url": "https://wiki.example/gpu",
    }
    done = stack.converge(**given)
    assert changed(done) > 0, done.stdout
    scrape = yaml.safe_load((stack.etc / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in scrape] == ["push"]
    check_rules(stack)
    done = stack.converge(
        monitoring_components=["alertmanager"],
        monitoring_slack=[{"channel": "#gpu"}],
        monitoring_webhook=[],
    )
    assert changed(done) == -1 and "monitoring_slack needs api_url_file or api_url" in done.stdout


def check_rules(stack):
    """The rules are ours with the runbook, the two ages swapped, and the operator's own job."""
    written = yaml.safe_load((stack.etc / "autopilot-gpu/autopilot-gpu.rules.yml").read_text())
    rules = [rule for group in written["groups"] for rule in group["rules"]]
    usual = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) == len(usual)
    for rule, known in zip(rules, usual):
        if "runbook_url" in known.get("annotations", {}):
            assert (
                rule["annotations"].pop("runbook_url")
                == "https://wiki.example/gpu#{{ $labels.code }}"
            )
            del known["annotations"]["runbook_url"]
        age = rule.get("alert") in (
            "AutopilotNotCheckedLately",
            "AutopilotNoSuccessLately",
            "AutopilotNeverFit",
        )
        swapped = re.sub(
            "93600|259200",
            lambda found: str(93600 + 259200 - int(found.group())),
            json.dumps(known),
        )
        assert json.dumps(rule) == (swapped if age else json.dumps(known)).replace(
            "autopilot-pushgateway", "push"
        ) and age == (swapped != json.dumps(known))
    assert any('up{job="push"}' in rule["expr"] for rule in rules), (
        "the operator's own job has another name"
    )


def test_manifests_for_a_cluster(controller, tmp_path):
    stack = Stack(
        controller,
        tmp_path,
        monitoring_target="kubernetes_manifests",
        monitoring_manifests_dir="manifests",
        monitoring_namespace="gpu",
        monitoring_kubernetes_labels={"release": "kps"},
        monitoring_storage_class="fast",
        **receivers(tmp_path),
    )
    assert changed(stack.converge()) > 0
    assert (tmp_path / "manifests/autopilot-gpu-alertmanagerconfig.yml").stat().st_mode & 0o77 == 0
    objects = [
        one
        for path in sorted((tmp_path / "manifests").iterdir())
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if one
    ]
    check_kinds(objects)
    of = {one["kind"]: one for one in objects}
    rules = of["PrometheusRule"]["spec"]
    for rule in (one for group in rules["groups"] for one in group["rules"] if "alert" in one):
        # By it the Prometheus operator routes an alert to the AlertmanagerConfig.
        assert rule["labels"].pop("namespace") == "gpu"
    assert rules == yaml.safe_load(RULES.read_text())
    assert of["ServiceMonitor"]["spec"]["endpoints"] == [
        {"port": "http", "interval": "1s", "honorLabels": True}
    ]
    check_references(of)
    check_dashboards(objects)
    hooks = [{"url": "http://pager.example", "matchers": ["ping_mesh"]}]
    refused = stack.converge(monitoring_webhook=hooks)
    assert changed(refused) == -1 and "matchers: ping_mesh is invalid" in refused.stdout
    without = stack.converge(monitoring_webhook=[], monitoring_slack=[], monitoring_email=[])
    assert changed(without) > 0
    assert not (tmp_path / "manifests/autopilot-gpu-alertmanagerconfig.yml").exists()
    written = (tmp_path / "manifests/autopilot-gpu-prometheusrule.yml").read_text()
    assert yaml.safe_load(written)["spec"] == yaml.safe_load(RULES.read_text())
    assert (
        changed(stack.converge(monitoring_state="absent")) > 0
        and not (tmp_path / "manifests").exists()
    )


@needs_programs
def test_alerts_go_to_the_same_receivers_in_a_cluster_and_on_a_host(controller, tmp_path):
    """amtool reads both; on a host the role wrote the one, here the test turns the other round."""
    manifests = {"monitoring_target": "kubernetes_manifests", "monitoring_manifests_dir": "made"}
    given = {**receivers(tmp_path), "monitoring_namespace": "gpu"}
    done = Stack(controller, tmp_path, **manifests, **given).converge("-vvv", "--diff")
    assert changed(done) > 0
    secret, config = yaml.safe_load_all(
        (tmp_path / "made/autopilot-gpu-alertmanagerconfig.yml").read_text()
    )
    kept = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert kept == {
        "slack-1-url": "http://slack.example/T0P",
        "webhook-1-url": "http://pager.example/K3Y",
        "webhook-1-token": "T0K",
        "email-1-password": "P4SS",
    }
    assert not [value for value in ("T0P", "K3Y", "T0K", "P4SS") if value in json.dumps(config)]
    assert not [value for value in ("T0K", "P4SS") if value in done.stdout]
    (tmp_path / "in-cluster.yml").write_text(yaml.safe_dump(as_alertmanager(config, kept)))
    on_host = {**receivers(tmp_path), "monitoring_components": ["alertmanager"]}
    stack = Stack(controller, tmp_path, **on_host)
    for directory in (stack.etc, stack.defaults):
        directory.mkdir()
    assert changed(stack.converge()) > 0
    for labels in (
        {"severity": "critical", "kind": "node"},
        {"severity": "critical", "kind": "mesh"},
        {"severity": "warning", "kind": "mesh", "check": "ping_mesh"},
        {"severity": "info", "kind": "node"},
        {"severity": "none"},
    ):
        told = [
            subprocess.run(
                ["amtool", "config", "routes", "test", f"--config.file={path}"]
                + [f"{name}={value}" for name, value in labels.items()],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split(",")
            for path in (tmp_path / "in-cluster.yml", stack.etc / "alertmanager.yml")
        ]
        assert told[0] == told[1], labels
    host = yaml.safe_load((stack.etc / "alertmanager.yml").read_text())
    cluster = as_alertmanager(config, kept)
    assert cluster["inhibit_rules"] == host["inhibit_rules"]
    assert [one["title"] for one in cluster["receivers"][1]["slack_configs"]] == [
        one["title"] for one in host["receivers"][1]["slack_configs"]
    ]


def receivers(directory):
    """One of each kind, with secrets in files and in variables."""
    for name, text in (("url", "http://slack.example/T0P\n"), ("token", "T0K\n")):
        (directory / name).write_text(text)
    mail = {"to": "a@example", "from": "b@example", "smarthost": "mail.example:587"}
    return {
        "monitoring_slack": [
            {
                "channel": "#gpu",
                "api_url_file": str(directory / "url"),
                "matchers": ['kind="mesh"', 'check=~"ping_mesh|iperf3_pairs|"'],
            }
        ],
        "monitoring_webhook": [
            {"url": "http://pager.example/K3Y", "bearer_token_file": str(directory / "token")}
        ],
        "monitoring_email": [{**mail, "username": "b", "password": "P4SS"}],
    }


def as_alertmanager(config, kept):
    """Alertmanager's own configuration of an AlertmanagerConfig, without the matcher of its
    namespace.
    """

    def matchers(found):
        return [f'{one["name"]}{one["matchType"]}"{one["value"]}"' for one in found]

    def turned(value):
        if isinstance(value, list):
            return [turned(one) for one in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"name", "key"} and value["name"] == "autopilot-gpu-receivers":
            return kept[value["key"]]
        return {
            names.get(key)
            or re.sub("(?<=[a-z])[A-Z]+", lambda found: f"_{found.group()}", key).lower(): matchers(
                one
            )
            if key in ("matchers", "sourceMatch", "targetMatch")
            else {each["key"]: each["value"] for each in one}
            if key == "headers"
            else turned(one)
            for key, one in value.items()
        }

    names = {"urlSecret": "url", "sourceMatch": "source_matchers", "targetMatch": "target_matchers"}
    return turned(config["spec"])


def check_kinds(objects):
    """Every object that is needed, each with the namespace, the label and a valid name."""
    kinds = {(one["apiVersion"], one["kind"]) for one in objects}
    assert kinds >= {
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        ("monitoring.coreos.com/v1", "PrometheusRule"),
    }
    for one in objects:
        assert (
            one["metadata"]["namespace"] == "gpu" and one["metadata"]["labels"]["release"] == "kps"
        )
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


def check_references(of):
    """What selects is what is selected, down to the port and the volume."""
    labels = of["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        of["Deployment"]["spec"]["selector"]["matchLabels"],
        of["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()
    assert (
        of["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        <= of["Service"]["metadata"]["labels"].items()
    )
    pod = of["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (
        of["Service"]["spec"]["ports"][0]["targetPort"]
        == container["ports"][0]["name"]
        == of["ServiceMonitor"]["spec"]["endpoints"][0]["port"]
    )
    assert (
        "--push.disable-consistency-check" in container["args"]
        and "--persistence.file=/data/pushgateway.data" in container["args"]
    )
    assert (
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
        == of["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert of["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"


def check_dashboards(objects):
    """Each dashboard is in a ConfigMap that Grafana's sidecar finds."""
    maps = {
        name: text
        for one in objects
        if one["kind"] == "ConfigMap"
        for name, text in one["data"].items()
    }
    assert all(
        one["metadata"]["labels"]["grafana_dashboard"] == "1"
        for one in objects
        if one["kind"] == "ConfigMap"
    )
    dashboards = {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "roles/monitoring/files/dashboards").glob("*.json")
    }
    assert {name: json.loads(text) for name, text in maps.items()} == dashboards


# Runs in a copy of this machine that ends with it: everything written goes to memory.
_COPY = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for special in dev proc sys; do mount --rbind "/$special" "$1/root/$special"; done
mount -t tmpfs none "$1/root/run"
chroot "$1/root" /bin/sh -e "$2"
"""


@needs_programs
def test_with_its_defaults_on_a_copy_of_this_machine(controller, tmp_path):
    """The real directories; nothing of the machine itself is touched."""
    play = (
        f"{controller.programs}/ansible-playbook -i localhost, -c local -e "
        f"ansible_python_interpreter={sys.executable} {ROOT}/playbooks/monitoring.yml"
    )
    script = tmp_path / "script"
    script.write_text(
        f"""
        cp -a /etc/prometheus /etc/default {tmp_path}
        {play}
        grep -q push.disable-consistency-check /etc/default/prometheus-pushgateway
        promtool check config /etc/prometheus/prometheus.yml
        {play} -e monitoring_state=absent
        diff -r {tmp_path}/prometheus /etc/prometheus
        diff -r {tmp_path}/default /etc/default
        sed -i 's/^ID=.*/ID=rocky/; s/^NAME=.*/NAME="Rocky Linux"/; /^ID_LIKE/d; /^PRETTY/d' /etc/os-release
        rm -f /etc/debian_version
        echo 'Rocky Linux release 9.4' > /etc/redhat-release
        echo 'Rocky Linux release 9.4' > /etc/rocky-release
        {play} || true
    """,
        encoding="utf-8",
    )
    mount = tmp_path / "copy"
    mount.mkdir()
    environment = {
        "ANSIBLE_COLLECTIONS_PATH": str(controller.collections),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "true",
        "HOME": "/tmp",
    }
    tried = subprocess.run(
        ["unshare", "--mount", "bash", "-c", _COPY, "copy", str(mount), str(script)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    if "mount:" in tried.stdout and "PLAY" not in tried.stdout or os.geteuid():
        pytest.skip(f"needs root and an overlay of /: {tried.stdout.strip()[-200:]}")
    assert tried.returncode == 0, tried.stdout[-4000:]
    assert "http://localhost:9093 lists the alerts, but no notification is sent" in tried.stdout
    assert re.search(
        r"works on Debian and Ubuntu,.*This is Rocky", tried.stdout.replace("\n", " ")
    ), tried.stdout[-2000:]
