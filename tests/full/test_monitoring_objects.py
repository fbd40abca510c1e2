# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook monitoring with monitoring_target=kubernetes, on a real API server. The Prometheus
operator is there as APIs only.
"""

from __future__ import annotations

import base64

import pytest

from agent_role import changed, crd, load_crds, removed_crds
from monitoring_role import monitoring_playbook

GROUP = "monitoring.coreos.com"
OPERATOR = (
    crd(GROUP, "prometheusrules", "PrometheusRule"),
    crd(GROUP, "servicemonitors", "ServiceMonitor"),
    crd(GROUP, "alertmanagerconfigs", "AlertmanagerConfig", version="v1alpha1"),
)
SPACE = ("-n", "watching")
URL = "http://slack.example/K3Y"
KINDS = "deployments,services,configmaps,secrets,persistentvolumeclaims"
OPERATORS_KINDS = "prometheusrules,servicemonitors,alertmanagerconfigs"


@pytest.fixture
def play(lab, tmp_path):
    return monitoring_playbook(lab, tmp_path)


@pytest.fixture
def space(lab):
    """A namespace that is gone after the test, and no API of the Prometheus operator."""
    lab.kubectl("create", "namespace", "watching")
    try:
        with removed_crds(lab, OPERATOR):
            yield
    finally:
        lab.kubectl("delete", "namespace", "watching", "--wait=false")


def names(lab, kinds):
    """Kind/name of the role's objects in the namespace."""
    chosen = ("-l", "app.kubernetes.io/part-of=autopilot-gpu", "-o", "name")
    return set(lab.kubectl("get", kinds, *SPACE, *chosen).stdout.split())


def test_objects_are_applied_followed_and_removed(lab, space, play, tmp_path):
    refused = play()
    told = " ".join(refused.stdout.split())
    assert refused.returncode == 2 and "no PrometheusRule" in told, refused.stdout
    assert not names(lab, KINDS)
    load_crds(lab, OPERATOR)
    (tmp_path / "url").write_text(URL)
    hook = {"monitoring_slack": [{"channel": "#gpu", "api_url_file": str(tmp_path / "url")}]}
    made = play("-vvv", "--diff", **hook)
    assert changed(made) == 1, made.stdout
    for text in (URL, base64.b64encode(URL.encode()).decode()):
        assert text not in made.stdout
    found = names(lab, f"{KINDS},{OPERATORS_KINDS}")
    assert {
        "alertmanagerconfig.monitoring.coreos.com/autopilot-gpu",
        "prometheusrule.monitoring.coreos.com/autopilot-gpu",
        "servicemonitor.monitoring.coreos.com/autopilot-pushgateway",
        "secret/autopilot-gpu-receivers",
        "deployment.apps/autopilot-pushgateway",
        *(
            f"configmap/autopilot-gpu-dashboard-{name}"
            for name in ("agents", "fleet", "network", "node")
        ),
    } <= found
    kept = lab.get("secret", "autopilot-gpu-receivers", *SPACE)["data"]
    assert base64.b64decode(kept["slack-1-url"]).decode() == URL
    assert changed(play(**hook)) == 0
    # Without receivers their objects go, and nothing else.
    assert changed(play()) > 0
    gone = found - names(lab, f"{KINDS},{OPERATORS_KINDS}")
    assert {name.split("/")[0].split(".")[0] for name in gone} == {"alertmanagerconfig", "secret"}
    assert changed(play("-e", "monitoring_state=absent", **hook)) > 0
    # What was pushed stays.
    assert names(lab, f"{KINDS},{OPERATORS_KINDS}") == {
        "persistentvolumeclaim/autopilot-pushgateway"
    }
    assert changed(play("-e", "monitoring_state=absent")) == 0
