# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups of metrics as promtool takes them, and which alerts must fire by what they say."""

from __future__ import annotations

import functools
import json
import subprocess

import yaml

from controller import ROOT

RULES = ROOT / "roles/monitoring/files/rules/autopilot-gpu.rules.yml"
#: What every group that is pushed has beside its own labels.
PUSHED = {"job": "autopilot_gpu", "cluster": "a"}


#: The page that alerts link to by default.
RUNBOOK = "https://github.com/autopilot-gpu/autopilot.gpu/blob/main/docs/findings.md"


def kind_of(subject):
    """``mesh`` for what lies between nodes, ``node`` for the rest."""
    return "mesh" if subject.split()[0] in ("link", "path", "undecided", "plane") else "node"


def promised(labels):
    """Name and severity of the alert about a finding, as the README promises them."""
    if labels["code"] == "unreachable":
        return "AutopilotNodeUnreachable", "critical"
    prefix = f"Autopilot{kind_of(labels['subject']).capitalize()}"
    if labels["status"] == "warn":
        return f"{prefix}Warning", "info"
    if labels["status"] != "fail":
        return f"{prefix}Unknown", "warning"
    if labels["action"] in ("drain_node", "reboot_node", "replace_part"):
        return f"{prefix}Failed", "critical"
    return f"{prefix}Degraded", "warning"


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
    code, where = labels["code"], labels["subject"]
    where = f"{labels['node']} {where}" if node else where
    source = f"The check {labels['check']}" if labels.get("check") else "The run"
    return {
        "exp_labels": {
            **labels,
            "severity": promised(labels)[1],
            "kind": kind_of(labels["subject"]),
        },
        "exp_annotations": {
            "summary": f"{where}: {code.replace('_', ' ')} ({labels['status']}, {labels['phase']})",
            "description": f"{source} reports {code}. Next step: "
            f"{labels['action'].replace('_', ' ')}.",
            "runbook_url": f"{RUNBOOK}#{code}",
        },
    }


@functools.cache
def groups_of_rules():
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]


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
    path = directory / "test.yml"
    path.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}),
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
