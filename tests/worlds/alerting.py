# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of metrics as promtool takes them, and which alerts must fire by what they say."""

from __future__ import annotations

import functools
import json
import re
import subprocess

import yaml

from controller import ROOT

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.findings import (
    FINDINGS,
)

RULES = ROOT / "roles/monitoring/files/rules/autopilot-gpu.rules.yml"
#: What every group that is pushed has beside its own labels.
PUSHED = {"job": "autopilot_gpu", "cluster": "a"}


def name_of(code):
    return (
        "AutopilotNodeUnreachable"
        if code == "unreachable"
        else "Autopilot" + "".join(word.capitalize() for word in code.split("_"))
    )


def severity_of(code, status, action):
    """What an operator is promised, in other words than the rules."""
    if code == "unreachable":
        return "critical"
    if status == "warn":
        return "info"
    return (
        "critical"
        if status == "fail" and action in ("drain_node", "reboot_node", "replace_part")
        else "warning"
    )


def selector(metric, labels):
    return (
        metric
        + "{"
        + ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()) if value)
        + "}"
    )


def series_of(timeline, pushed=None):
    """Input series of promtool, a sample a minute, from what is seen for how long: [(minutes,
    groups)]; a series that is gone is stale.
    """
    values, minutes = {}, 0
    for lasts, groups in timeline:
        for group in groups:
            for sample in group.samples:
                key = selector(
                    sample.metric,
                    {**(PUSHED if pushed is None else pushed), **group.labels, **sample.labels},
                )
                known = values.setdefault(key, ["_"] * minutes)
                known += (
                    ["stale"] * (minutes - len(known))
                    if known and known[-1] != "_"
                    else ["_"] * (minutes - len(known))
                )
                known += [
                    f"{sample.value:g}" if abs(sample.value) < 1e5 else f"{sample.value:.0f}"
                ] * lasts
        minutes += lasts
        for known in values.values():
            known += ["stale"] * (minutes - len(known))
    return [{"series": key, "values": " ".join(known)} for key, known in values.items()]


def alert_of(group, sample, node=True):
    """The alert that a finding must give, as promtool expects it; without the node for what lies
    between nodes.
    """
    labels = {
        name: value
        for name, value in {**PUSHED, **group.labels, **sample.labels}.items()
        if value and (node or name != "node")
    }
    entry, code = FINDINGS[labels["code"]], labels["code"]
    where = f"{labels['node']} {labels['subject']}" if node else labels["subject"]
    return {
        "exp_labels": {**labels, "severity": severity_of(code, labels["status"], labels["action"])},
        "exp_annotations": {
            "summary": f"{where}: {code.replace('_', ' ')} ({labels['status']}, {labels['phase']})",
            "description": entry.meaning,
            "runbook": entry.next,
        },
    }


@functools.cache
def groups_of_rules():
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]


def rules_about(alerts, expressions):
    """The rules as a document, without the alerts that no test asks for: no rule builds on an
    alert, and a thousand of them take promtool minutes.
    """
    asked = ["|".join(sorted({name for _minute, name, _expected in alerts}))]
    for _minute, expression, _samples in expressions:
        # One that names no alert is about all of them.
        asked += re.findall(r'alertname=~?"([^"]*)"', expression) or [".*"]
    wanted = re.compile("|".join(filter(None, asked)))
    return {
        "groups": [
            dict(
                group,
                rules=[
                    rule
                    for rule in group["rules"]
                    if "alert" not in rule or wanted.fullmatch(rule["alert"])
                ],
            )
            for group in groups_of_rules()
        ]
    }


def promtool(directory, series, alerts=(), expressions=(), interval="1m"):
    """What promtool says of tests: [(minute, alert name, expected alerts)] and [(minute,
    expression, expected samples)]; empty when all hold.
    """
    test = {
        "interval": interval,
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": list(expected)}
            for minute, name, expected in alerts
        ],
        "promql_expr_test": [
            {"eval_time": f"{minute}m", "expr": expression, "exp_samples": samples}
            for minute, expression, samples in expressions
        ],
    }
    rules, path = directory / "rules.yml", directory / "test.yml"
    rules.write_text(json.dumps(rules_about(alerts, expressions)), encoding="utf-8")
    path.write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": [test]}),
        encoding="utf-8",
    )
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    return "" if done.returncode == 0 and "SUCCESS" in said else said[-6000:]
