# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module scrape_targets with a real Prometheus and a real API server: targets that are up, down
and late, and the reason of each ServiceMonitor without one. The operator is there as APIs only.
"""

from __future__ import annotations

import http.server
import json
import shutil
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import yaml
from servers import Prometheus, eventually, free_port, get, missing

from agent_role import crd, load_crds, removed_crds
from controller import cluster_playbook
from lab.control_plane import ADDRESS
from lab.world import kill
from module_call import call

pytestmark = pytest.mark.skipif(bool(missing("prometheus")), reason=missing("prometheus"))

GROUP, RELEASE = "monitoring.coreos.com", {"release": "kps"}
OPERATOR = (
    crd(GROUP, "servicemonitors", "ServiceMonitor"),
    crd(GROUP, "prometheuses", "Prometheus"),
)
EXPORTER = {"app": "exporter"}


def made(kind, namespace, name, labels=None, spec=None, api="v1", **rest):
    metadata = {"name": name, "labels": labels or {}}
    if namespace:
        metadata["namespace"] = namespace
    found = {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}
    return {**found, "spec": spec} if spec else found


def monitor(name, labels=None, namespace="gpus", selector=None, port="metrics", **spec):
    labels, selector = RELEASE if labels is None else labels, selector or EXPORTER
    spec = {"selector": {"matchLabels": selector}, "endpoints": [{"port": port}], **spec}
    return made("ServiceMonitor", namespace, name, labels, spec, f"{GROUP}/v1")


def service(name, labels, namespace="gpus", port=9400):
    ports = [{"name": "metrics", "port": port}]
    return made("Service", namespace, name, labels, {"clusterIP": "None", "ports": ports})


def endpoints(name, address, port, namespace="gpus", pod=""):
    """The addresses behind a Service without a selector; the slices follow them."""
    behind = {"targetRef": {"kind": "Pod", "name": pod, "namespace": namespace}} if pod else {}
    ports = [{"name": "metrics", "port": port}]
    subset = {"addresses": [{"ip": address, **behind}], "ports": ports}
    return made("Endpoints", namespace, name, subsets=[subset])


def prometheus_object(name="k8s", **spec):
    return made("Prometheus", "watching", name, spec=spec, api=f"{GROUP}/v1")


#: What the Prometheus object of the tests selects.
SELECTS = {
    "serviceMonitorSelector": {"matchLabels": RELEASE},
    "serviceMonitorNamespaceSelector": {
        "matchExpressions": [{"key": "watched", "operator": "In", "values": ["yes"]}]
    },
}


SPACES = ("gpus", "others", "watching")


@pytest.fixture(scope="module")
def spaces(lab):
    """Namespaces gpus (watched), others and watching, and the APIs of the operator."""
    lab.apply(*(made("Namespace", "", name, {"watched": "yes"}) for name in SPACES[:1]))
    lab.apply(*(made("Namespace", "", name) for name in SPACES[1:]))
    try:
        with removed_crds(lab, OPERATOR):
            load_crds(lab, OPERATOR)
            yield lab
    finally:
        lab.kubectl("delete", "namespace", *SPACES, timeout=90)


@pytest.fixture
def cluster(spaces):
    """With one Prometheus object; what a test adds is gone after it."""
    spaces.apply(prometheus_object(**SELECTS))
    yield spaces
    for name in SPACES:
        kinds = "servicemonitors,prometheuses,services,endpoints,pods"
        spaces.kubectl("delete", "-n", name, kinds, "--all")


def job(name, *ports):
    targets = [f"127.0.0.1:{port}" for port in ports]
    return {"job_name": f"serviceMonitor/{name}/0", "static_configs": [{"targets": targets}]}


def asked(lab, **options):
    return call(sys.executable, "scrape_targets", kubeconfig=str(lab.kubeconfig), **options)


WHO = "Prometheus watching/k8s"
#: By the expected ServiceMonitor: its state, targets that are up, all its targets, and the reason.
EXPECTED = {
    "nvidia-dcgm-exporter": ("up", 1, 1, ""),
    "gpus/gpu-operator": ("down", 1, 2, "1 of 2 targets are up: http://127.0.0.1:"),
    **{
        name: ("missing", 0, 0, reason)
        for name, reason in (
            (
                "no-label",
                f"label release is 'other', expected 'kps' (serviceMonitorSelector of {WHO})",
            ),
            ("unlabelled", "label release is missing, expected 'kps'"),
            (
                "elsewhere",
                "namespace others is not selected: label watched is missing, expected In yes",
            ),
            ("no-service", "no Service in namespace gpus has the labels app=none"),
            ("no-service-there", "no Service in namespace others has the labels"),
            ("no-port", "Service gpus/exporter has no port web; it has metrics"),
            ("no-endpoint", "Service gpus/idle has no endpoint"),
            ("rejected", "see the log of the Prometheus operator"),
            ("anywhere", "see the log of the Prometheus operator"),
            ("absent", "there is no such ServiceMonitor in any namespace"),
        )
    },
}


def make_monitors(lab):
    """ServiceMonitors for each of these."""
    lab.apply(
        service("exporter", EXPORTER),
        endpoints("exporter", "10.1.2.3", 9400),
        service("idle", {"app": "idle"}),
        *(monitor(name) for name in ("nvidia-dcgm-exporter", "gpu-operator", "rejected")),
        monitor("no-label", {"release": "other"}),
        monitor("unlabelled", {}),
        monitor("elsewhere", namespace="others"),
        monitor("no-service", selector={"app": "none"}),
        monitor("no-service-there", namespaceSelector={"matchNames": ["others"]}),
        monitor("no-port", port="web"),
        monitor("no-endpoint", selector={"app": "idle"}),
        monitor("anywhere", namespaceSelector={"any": True}),
    )


def test_each_expected_monitor_is_up_down_or_missing_with_its_reason(cluster, tmp_path):
    make_monitors(cluster)
    closed, own = free_port(), free_port()
    jobs = [
        job("gpus/nvidia-dcgm-exporter", own),
        job("gpus/gpu-operator", own, closed),
        # Of another ServiceMonitor, whose name only begins alike.
        job("gpus/no-label-of-another", own),
    ]
    with Prometheus(tmp_path, SimpleNamespace(port=own), port=own, scrapes=jobs) as running:
        wait_for_scrapes(running, 5)
        answer = asked(cluster, monitors=list(EXPECTED), url=running.url, timeout=1)
        looked = asked(
            cluster, monitors=["absent"], url=running.url, timeout=9, _ansible_check_mode=True
        )
    rows = dict(zip(EXPECTED, answer["targets"]))
    for name, (state, up, total, reason) in EXPECTED.items():
        row = rows[name]
        assert (row["state"], row["up"], row["total"]) == (state, up, total), row
        assert reason in row["reason"] and bool(reason) == bool(row["reason"]), row
    assert f":{closed}/metrics: " in rows["gpus/gpu-operator"]["reason"]
    assert "connect: connection refused" in rows["gpus/gpu-operator"]["reason"]
    assert answer["failed"] and f"11 of 12 ServiceMonitors are not up in {WHO}" in answer["msg"]
    assert "ServiceMonitor gpus/no-label: missing: label release" in answer["msg"]
    assert not looked.get("failed") and looked["targets"][0]["state"] == "missing"


def wait_for_scrapes(running, number):
    """Wait until so many targets were scraped once."""

    def are_scraped():
        found = json.loads(get(f"{running.url}/api/v1/targets?state=active"))["data"]
        return number == sum(one["health"] != "unknown" for one in found["activeTargets"])

    eventually(are_scraped)


class Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"up_at_last 1\n")

    def log_message(self, *_words):
        pass


def test_it_waits_for_a_target_that_comes_late(cluster, tmp_path):
    late = free_port()
    cluster.apply(monitor("nvidia-dcgm-exporter"))
    jobs = [job("gpus/nvidia-dcgm-exporter", late)]
    server = []

    def serve():
        time.sleep(4)
        server.append(http.server.ThreadingHTTPServer(("127.0.0.1", late), Exporter))
        server[0].serve_forever()

    with Prometheus(tmp_path, SimpleNamespace(port=late), scrapes=jobs) as running:
        wait_for_scrapes(running, 2)
        options = {"monitors": ["nvidia-dcgm-exporter"], "url": running.url}
        assert asked(cluster, **options, timeout=0)["targets"][0]["state"] == "down"
        threading.Thread(target=serve, daemon=True).start()
        answer = asked(cluster, **options, timeout=60)
    server[0].shutdown()
    server[0].server_close()
    assert not answer.get("failed"), answer
    assert [one["state"] for one in answer["targets"]] == ["up"]


def behind_service(lab, name, port):
    """Put the lab's own address behind a Service. The API server asks for the pod with the address."""
    containers = [{"name": "main", "image": "localhost/none:1"}]
    lab.apply(made("Pod", "watching", "prometheus-k8s-0", spec={"containers": containers}))
    status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
    lab.kubectl(
        *("patch", "-n", "watching", "pod", "prometheus-k8s-0", "--subresource=status"),
        *("--type=merge", "-p", json.dumps({"status": status})),
    )
    lab.apply(endpoints(name, ADDRESS, port, "watching", "prometheus-k8s-0"))


def test_the_playbook_asks_through_the_api_server(cluster, tmp_path):
    cluster.apply(
        monitor("nvidia-dcgm-exporter"), service("prometheus-operated", {}, "watching", 9090)
    )
    play = cluster_playbook(
        "autopilot.gpu.scrape_targets",
        tmp_path,
        scrape_targets_kubeconfig=str(cluster.kubeconfig),
        scrape_targets_monitors=["nvidia-dcgm-exporter"],
    )
    done = play(scrape_targets_timeout=1)
    told = done.stdout.replace("\\n", "\n")
    assert done.returncode == 2 and "unknown: Prometheus watching/k8s does not answer" in told
    config = tmp_path / "prometheus.yml"
    static = [{"targets": [f"{ADDRESS}:9090"]}]
    scrape = {"job_name": "serviceMonitor/gpus/nvidia-dcgm-exporter/0", "static_configs": static}
    config.write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    process = cluster._world.daemon(
        "prometheus",
        [
            shutil.which("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address={ADDRESS}:9090",
        ],
    )
    try:
        behind_service(cluster, "prometheus-operated", 9090)
        done = play(scrape_targets_timeout=60)
        assert done.returncode == 0, done.stdout
    finally:
        kill(process)


def test_a_prometheus_of_others_is_asked_at_its_address_without_its_object(cluster, tmp_path):
    cluster.kubectl("delete", "-n", "watching", "prometheus", "k8s")
    answer = asked(cluster, monitors=["x"])
    assert "the cluster has no Prometheus object" in answer["msg"] and "url" in answer["msg"]
    cluster.apply(monitor("unlabelled", {}))
    port = free_port()
    with Prometheus(tmp_path, SimpleNamespace(port=port), port=port) as running:
        answer = asked(cluster, monitors=["unlabelled"], url=running.url, timeout=0)
    # Nobody knows what it selects.
    assert "no Service in namespace gpus has the labels app=exporter" in answer["msg"]


def test_a_wrong_option_is_named(cluster):
    cluster.apply(prometheus_object("second"))
    for options, words in (
        ({"url": "prometheus:9090"}, "url: 'prometheus:9090' is invalid"),
        ({"timeout": -1}, "timeout: -1 is invalid"),
        ({"monitors": []}, "monitors: [] is invalid"),
        ({"prometheus": "watching/x"}, "expected a Prometheus object of the cluster: watching/k8s"),
        ({}, "expected one of the Prometheus objects of the cluster: watching/k8s, watching/sec"),
    ):
        answer = asked(cluster, **options)
        assert answer["failed"] and words in answer["msg"]


def test_what_is_not_prometheus_is_unknown(cluster):
    cluster.apply(monitor("nvidia-dcgm-exporter"))
    port = free_port()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"monitors": ["nvidia-dcgm-exporter"], "timeout": 0}
    answer = asked(cluster, **options, url=f"http://127.0.0.1:{port}")
    server.shutdown()
    server.server_close()
    assert answer["failed"] and answer["targets"][0]["state"] == "unknown"
    refused = asked(cluster, **options, url=f"http://127.0.0.1:{port}")
    assert "refused" in refused["targets"][0]["reason"]


def test_an_account_without_rights_is_refused(cluster):
    nobody = str(cluster.kubeconfig_for("nobody"))
    answer = call(sys.executable, "scrape_targets", kubeconfig=nobody)
    assert answer["failed"] and "forbidden" in answer["msg"]
