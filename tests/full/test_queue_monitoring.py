# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role monitoring beside NVIDIA's GPU operator and the chart kube-prometheus-stack, on a real API
server: ServiceMonitors where there are Services, labels on those of others, and values for helm.
"""

from __future__ import annotations

import pytest
import yaml

from agent_role import changed, crd, load_crds, removed_crds
from monitoring_role import monitoring_playbook

GROUP = "monitoring.coreos.com"
OPERATOR = (
    crd(GROUP, "prometheusrules", "PrometheusRule"),
    crd(GROUP, "servicemonitors", "ServiceMonitor"),
)
DCGM, STATUS, AGENTS = (
    "nvidia-dcgm-exporter",
    "nvidia-node-status-exporter",
    "autopilot-metrics-monitor",
)
LABELS = {"monitoring_kubernetes_labels": {"release": "kps"}}
THEIRS = {"part": "theirs"}


@pytest.fixture
def play(lab, tmp_path):
    return monitoring_playbook(lab, tmp_path)


@pytest.fixture
def space(lab):
    """Namespaces watching and gpus, with the APIs of the Prometheus operator."""
    lab.kubectl("create", "namespace", "watching")
    lab.kubectl("create", "namespace", "gpus")
    try:
        with removed_crds(lab, OPERATOR):
            load_crds(lab, OPERATOR)
            yield
    finally:
        lab.kubectl("delete", "namespace", "watching", "gpus", "--wait=false")


def of_gpus(kind, name, api="v1", **spec):
    metadata = {"name": name, "namespace": "gpus", "labels": {"app": name, **THEIRS}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def monitors(lab):
    """Name, labels and spec of each ServiceMonitor in gpus."""
    found = lab.get("servicemonitors", "-n", "gpus")["items"]
    return {one["metadata"]["name"]: (one["metadata"]["labels"], one.get("spec")) for one in found}


def test_gpu_metrics_are_scraped_where_there_are_some(lab, space, play):
    ports = [{"name": "gpu-metrics", "port": 9400}]
    theirs = [of_gpus("ServiceMonitor", name, f"{GROUP}/v1", own=1) for name in (STATUS, AGENTS)]
    lab.apply(*(of_gpus("Service", name, ports=ports) for name in (DCGM, STATUS)), *theirs)
    before = monitors(lab)
    assert changed(play(**LABELS)) > 0
    found = monitors(lab)
    assert set(found) == {DCGM, STATUS, AGENTS}, "no Service, no ServiceMonitor"
    labels, spec = found[DCGM]
    assert labels["release"] == "kps" and spec["selector"]["matchLabels"] == {"app": DCGM}
    assert spec["endpoints"][0]["port"] == "gpu-metrics"
    for name in (STATUS, AGENTS):
        assert found[name] == ({"app": name, **THEIRS, "release": "kps"}, {"own": 1})
    assert changed(play(**LABELS)) == 0
    lab.kubectl("delete", "service", "-n", "gpus", DCGM)
    assert changed(play(**LABELS)) == 1
    assert DCGM not in monitors(lab)
    lab.apply(of_gpus("Service", DCGM, ports=ports))
    assert changed(play(**LABELS)) == 1
    assert changed(play(**LABELS, monitoring_state="absent")) > 0
    assert monitors(lab) == before
    assert changed(play(**LABELS, monitoring_state="absent")) == 0


def storage_class(name, provisioner, is_default="false"):
    annotations = {"storageclass.kubernetes.io/is-default-class": is_default}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": provisioner,
    }


@pytest.fixture
def classes(lab):
    made = (
        storage_class("nfs-client", "k8s-sigs.io/nfs-subdir-external-provisioner", "true"),
        storage_class("block", "rbd.csi.ceph.com"),
        storage_class("elastic", "efs.csi.aws.com"),
    )
    lab.apply(*made)
    yield
    lab.kubectl("delete", "storageclass", *(one["metadata"]["name"] for one in made))


def test_values_of_the_chart_and_the_warning_about_nfs(lab, classes, play, tmp_path):
    values = tmp_path / "kube-prometheus-stack-values.yml"
    options = {"monitoring_target": "helm_values"}
    done = play(**options, **LABELS, monitoring_storage_class="block")
    assert changed(done) == 1 and "Warning:" not in done.stdout
    assert "helm upgrade --install kps " in done.stdout
    read = yaml.safe_load(values.read_text())
    assert read["crds"] == {"enabled": False}
    assert read["prometheus-node-exporter"]["service"] == {"port": 9110, "targetPort": 9110}
    prometheus, alertmanager = (
        read["prometheus"]["prometheusSpec"],
        read["alertmanager"]["alertmanagerSpec"],
    )
    for storage, spec in (
        (prometheus["storageSpec"], prometheus),
        (alertmanager["storage"], alertmanager),
    ):
        assert storage["volumeClaimTemplate"]["spec"] == {
            "storageClassName": "block",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "50Gi"}},
        }
        assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    assert prometheus["serviceMonitorSelector"] == {"matchLabels": {"release": "kps"}}
    assert (read["grafana"]["persistence"]["size"], read["grafana"]["persistence"]["type"]) == (
        "20Gi",
        "sts",
    )
    assert read["grafana"]["sidecar"]["dashboards"]["label"] == "grafana_dashboard"
    assert changed(play(**options, **LABELS, monitoring_storage_class="block")) == 0
    told = "which serves NFS. Prometheus does not support NFS"
    for chosen, words in (
        ({}, "The default storage class has the provisioner k8s-sigs.io/nfs-subdir-ext"),
        ({"monitoring_storage_class": "elastic"}, "The storage class elastic has the provisioner"),
    ):
        done = play(**options, **chosen)
        assert words in done.stdout and told in done.stdout, done.stdout
    read = yaml.safe_load(values.read_text())
    assert "storageClassName" in values.read_text()
    assert read["prometheus"]["prometheusSpec"]["serviceMonitorSelector"] == {
        "matchLabels": {"release": "kube-prometheus-stack"}
    }
    done = play(**options, monitoring_storage_class="absent")
    assert "The storage class absent does not exist in the cluster" in done.stdout
    done = play(**options, monitoring_kubeconfig=str(lab.kubeconfig_for("nobody")))
    assert "The default storage class could not be read from the cluster" in done.stdout
    assert changed(play(**options, monitoring_state="absent")) == 1 and not values.exists()
