# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Grafana dashboards: they are what src/grafana makes, and each of their queries finds
something in a real Prometheus that real runs have filled.

Grafana itself is in no distribution and is not run here: the files are held against the types of
its own library.
"""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import agent_world
import node as sandbox
import pytest
from rdma_world import PERFTEST, RDMA, hca, readings
import run_world  # noqa: E402
import servers
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Measurement,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import volume_claim
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import Gateway
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import settings_of
from controller import ROOT, linked

# agent_world makes these findable.
from _health.knowledge import agent as agent_table
from _health.model import Finding, Subject, concluded
from autopilot_agent.cluster.kube import Kube
from autopilot_agent.http.exposition import Exposition
from autopilot_agent.passes.deep import DeepDiagnostics
from autopilot_agent.passes.engine import Engine
from autopilot_agent.passes.history import History

# One worker runs all of it: what fills the Prometheus takes a minute.
pytestmark = pytest.mark.xdist_group("dashboards")

PAGES = ("agents", "fleet", "network", "node", "queue")
#: The job of the results of runs; agents have another.
JOB, AGENTS_JOB = "autopilot_gpu", "autopilot-metrics-service"
FILES = ROOT / "roles/monitoring/files/dashboards"


def page(name):
    return json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))


def panels(name):
    """The panels with queries; rows have none."""
    return [panel for panel in page(name)["panels"] if panel["type"] != "row"]


def queries():
    """(page, title of the panel, target) of every query."""
    return [
        (name, panel["title"], target)
        for name in PAGES
        for panel in panels(name)
        for target in panel["targets"]
    ]


def variables(name):
    return {one["name"]: one for one in page(name)["templating"]["list"]}


# ---- the files ----


def test_the_files_are_what_the_source_makes():
    pytest.importorskip(
        "grafana_foundation_sdk", reason="needs grafana-foundation-sdk to make the dashboards"
    )
    done = subprocess.run(
        [sys.executable, ROOT / "src/grafana/dashboards.py", "--check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    assert sorted(path.stem for path in FILES.iterdir()) == list(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_the_library_reads_them_back_as_they_are(name):
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard",
        reason="needs grafana-foundation-sdk to read the dashboards",
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    expected = page(name)
    del expected["_generated"]
    assert (
        json.loads(json.dumps(models.Dashboard.from_json(page(name)), cls=JSONEncoder)) == expected
    )


def test_they_can_stand_beside_each_other():
    uids = {name: page(name)["uid"] for name in PAGES}
    assert uids == {name: f"autopilot-gpu-{name}" for name in PAGES}
    for name in PAGES:
        text = json.dumps(page(name))
        assert set(re.findall(r"/d/([a-z-]+)\?", text)) <= set(uids.values())
        assert {
            json.dumps(one["datasource"])
            for one in [
                *panels(name),
                *(each for panel in panels(name) for each in panel["targets"]),
            ]
        } == {'{"type": "prometheus", "uid": "${datasource}"}'}
        used = set(re.findall(r"\$\{?(\w+)", text)) - {
            "__all",
            "__range",
            "__interval",
            "__value",
            "__url_time_range",
            # A group of a regular expression.
            "1",
        }
        if name == "agents":
            # The link to a node's page hands on what that page chooses by.
            used -= {"job"}
        assert used == set(variables(name)), "every variable is used, and no other"


@pytest.mark.parametrize("name", PAGES)
def test_no_panel_lies_upon_another(name):
    taken = {}
    for panel in page(name)["panels"]:
        place = panel["gridPos"]
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert cell[0] < 24 and taken.setdefault(cell, panel["title"]) == panel["title"]


def test_metrics_are_those_that_there_are_and_each_is_shown():
    texts = [target["expr"] for _page, _title, target in queries()] + [
        one["query"]["query"]
        for name in PAGES
        for one in variables(name).values()
        if one["type"] == "query"
    ]
    named = {name for text in texts for name in re.findall(r"autopilot_\w+", text)}
    known = {metric.name for metric in metrics.METRICS}
    of_agents = {metric.name for metric in agent_table.METRICS}
    assert named - known - of_agents == set() and known - named == {"autopilot_run_info"}
    assert {"autopilot_node_mark", "autopilot_agent_info"} <= named


def test_labels_are_those_that_the_metrics_have():
    of = {
        metric.name: {*metric.labels, "job", "cluster", "phase", "node"}
        for metric in (*metrics.METRICS, *agent_table.METRICS)
    }
    for _page, _title, target in queries():
        for metric, matchers in re.findall(r"(autopilot_\w+)\{([^}]*)\}", target["expr"]):
            assert set(re.findall(r"(\w+)=", matchers)) <= of[metric], target["expr"]


# ---- with what real runs say ----

FAULT = {
    "test": "software",
    "gpu": 0,
    "id": 999,
    "severity": 2,
    "category": 13,
    "text": "Something is wrong.",
}


def rules(name, of, gpu=0):
    """The rules that a scenario has for a GPU, for another GPU."""
    return [dict(rule, gpu=gpu) for rule in sandbox._load(name)["rules"] if rule["gpu"] == of]


def one(rate=55.2e9, **more):
    return {"model": "H100-80GB", "gpus": 1, "cuda": {"*": {"h2d": rate, "d2h": rate}}, **more}


STAND_INS = {
    "well": one(
        gpus=2, rules=rules("throttled", 1, gpu=1)
    ),  # power capped, as is normal under load
    "calm": one(),
    "slow": one(3.3e9),
    "pending": one(rules=rules("remap_pending", 2)),
    "hot": one(rules=rules("throttled", 5)),
    "old": one(
        12.4e9,
        model="V100-32GB",
        driver={"version": "535.183.01"},
        rules=rules("v100_retired_pages", 1),
    ),
    "faulty": one(dcgmi={"faults": [FAULT]}),
    "hung": one(rules=[{"gpu": 0, "call": "nvmlDeviceGetRemappedRows", "hang": "ignore_term"}]),
}


def stand_ins(base):
    """Inventory entries of the stand-in nodes, and of one that is away."""
    hosts = {
        "away": {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": servers.free_port(),
        }
    }
    for name, scenario in STAND_INS.items():
        built = sandbox.build(scenario, base / name)
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": built.python,
            "checks_host_root": built.root,
        }
    hosts["hung"].update(checks_timeout=3, checks_list=["remapped_rows"])
    return hosts


def run_on(hosts, base, url):
    """A preflight on them, pushed by the playbook's own callback; returns the path of its document."""
    controller = linked(base, Path(sys.executable).parent)
    inventory = base / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    given = {
        "pushgateway_url": url,
        "pushgateway_compatibility": True,
        "pushgateway_labels": {"cluster": "a"},
        "pushgateway_spool_dir": str(base / "spool"),
        "checks_options": {"pcie_bandwidth": {"concurrent": True}},
    }
    done, document = controller.preflight(
        "autopilot.gpu.preflight",
        inventory,
        base,
        "--skip-tags",
        "mesh",
        "--forks",
        "4",
        "-e",
        json.dumps(given),
    )
    assert document and {node["name"] for node in document["nodes"]} == set(hosts), done.stdout
    return next(base.glob("reports/*/run.json"))


def run_on_a_network(base, url):
    """A mesh on paper, of which one sender is slow: what a network does under load is for its own tests."""
    names = run_world.names(4)
    push_nodes(
        run_world.document(
            [NodeAnswer(name, []) for name in names],
            run_world.planned(names, rounds="all"),
            slow={("gpu02", "eth1", "transmit"): 0.2},
        ),
        base,
        url,
    )
    names = [f"ib{number}" for number in range(1, 5)]
    ports = {"perftest": PERFTEST, "hcas": [hca("mlx5_0"), hca("mlx5_1")]}
    push_nodes(
        run_world.document(
            [NodeAnswer(name, []) for name in names],
            run_world.planned(names, checks=[RDMA], more_facts=ports),
            readings=readings,
        ),
        base,
        url,
    )


def run_on_a_volume(base, url):
    """A volume claim, judged by what a node's kubelet would have said, since no Kubernetes is
    there.
    """
    seen = {
        "storage_class": "fast",
        "storage_classes": [{"name": "fast"}],
        "began": True,
        "claim": {"uid": "1", "phase": "Bound", "volume": "pv1", "seconds": 1.5},
        "pod": {
            "uid": "2",
            "phase": "Succeeded",
            "node": "claimed",
            "seconds": 3.0,
            "watched": 5.0,
            "said": {"step": "done"},
        },
    }
    result = volume_claim.judge(seen, volume_claim.CHECK.defaults())
    document = run_world.document([NodeAnswer("claimed", [result])])
    push_nodes(document, base, url)


def run_on_a_job(base, url):
    """What checks say that need a running job, a container or servers; that they say it is for
    their own tests.
    """
    asked = (
        "xid_errors",
        "memory_and_cpu",
        "gpu_visibility",
        "image_registry",
        "nfs_mounts",
        "gpu_activity",
        "gpu_usage",
    )
    labels = {metric.name: {name: "0" for name in metric.labels} for metric in metrics.METRICS}
    results = [
        CheckResult(
            check,
            "pass",
            "",
            [],
            [
                Measurement(name, 1.0, unit, labels[metric])
                for (owner, name, unit), metric in metrics.MEASURED.items()
                if owner == check
            ],
        )
        for check in asked
    ]
    document = run_world.document([NodeAnswer("busy", results)])
    push_nodes(document, base, url)


#: Figures of an audit: by measurement and the labels of its part, the value.
QUOTA = {
    ("quota_nominal", "blue"): 8,
    ("quota_nominal", "red"): 8,
    ("quota_used", "blue"): 12,
    ("quota_used", "red"): 0,
    ("quota_borrowed", "blue"): 4,
    ("quota_borrowed", "red"): 0,
    ("flavor_capacity", ""): 24,
    ("flavor_schedulable", ""): 16,
    ("flavor_quota", ""): 20,
}
WORKLOADS = {("blue", "admitted"): 3, ("blue", "pending"): 0, ("red", "pending"): 2}


def run_on_a_queue(base, url):
    """What an audit says of a cluster with three nodes, of which one is out of service."""
    of_flavor = {"flavor": "default-flavor", "resource": "nvidia.com/gpu"}
    measured = [
        Measurement(name, value, "quantity", {**of_flavor, **({"queue": queue} if queue else {})})
        for (name, queue), value in QUOTA.items()
    ]
    measured += [
        Measurement("queue_workloads", value, "workloads", {"queue": queue, "state": state})
        for (queue, state), value in WORKLOADS.items()
    ]
    result = CheckResult("quota_audit", "pass", "", [], measured)
    document = run_world.document([NodeAnswer("auditor", [result])])
    document["phase"] = metrics.cluster_phase([result])
    push_nodes(document, base, url, labels={"cluster": "a"})


#: Marks and results of nodes that agents check; gpu-new has no agent.
AGENTS = {
    "gpu-pass": ("PASS", "pass"),
    "gpu-warn": ("WARN", "unknown"),
    "gpu-testing": ("TESTING", None),
    "gpu-evict": ("EVICT", "fail"),
    "gpu-late": ("PASS", "pass"),
}


class Expositions:
    """What agents and kube-state-metrics offer to a Prometheus, each at a path of its own."""

    def __init__(self):
        self.texts = {name: exposition(name, *given) for name, given in AGENTS.items()}
        self.texts["kube-state-metrics"] = kube_state_metrics()
        texts = self.texts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = texts.get(self.path.strip("/"))
                self.send_response(200 if text else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def scrapes(self):
        target = {"targets": [f"127.0.0.1:{self.server.server_port}"], "labels": {"cluster": "a"}}
        return [
            {
                "job_name": name,
                "metrics_path": f"/{name}",
                "static_configs": [target],
                "relabel_configs": [
                    {"target_label": "job", "replacement": AGENTS_JOB if name in AGENTS else name},
                    {"target_label": "instance", "replacement": name},
                ],
            }
            for name in self.texts
        ]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_how):
        self.server.shutdown()
        self.server.server_close()


def exposition(name, mark, status):
    """What the agent of a node exposes after a pass with this result; None: no pass has ended."""
    settings = agent_world.settings(NODE_NAME=name, PERIODIC_CHECKS="remapped_rows")
    engine, history = Engine(settings), History(settings.periodic_checks, settings.repeat_seconds)
    kube = Kube(settings.api_server)
    marker = SimpleNamespace(current=mark, refused=0, waiting=0)
    exposed = Exposition(
        engine, history, kube, DeepDiagnostics(settings, engine, kube, None), marker
    )
    if status:
        finding = Finding(
            "row_remap_pending",
            status,
            "a row waits",
            "reset_gpu",
            Subject("gpu", 1, "GPU-1", "00000000:11:00.0"),
        )
        found = [] if status == "pass" else [finding]
        history.note([concluded("remapped_rows", found, "")], {}, time.time(), time.monotonic())
    return exposed.render("")[0].decode()


def kube_state_metrics():
    """The capacities of all nodes, and a pod that requests the GPUs of gpu-warn."""
    capacity = "".join(
        f'kube_node_status_capacity{{node="{name}",resource="nvidia_com_gpu",unit="integer"}} 8\n'
        for name in [*AGENTS, "gpu-new"]
    )
    return capacity + (
        'kube_pod_container_resource_requests{namespace="team",pod="train-0",node="gpu-warn",'
        'resource="nvidia_com_gpu",unit="integer"} 8\n'
    )


def push_nodes(document, base, url, **options):
    settings = settings_of({"url": url, "compatibility": True, **options}, str(base))
    gateway = Gateway(settings)
    for group in metrics.groups_of(RunReport.from_dict(document), compatibility=True):
        if "node" in group.labels:
            gateway.put(settings.key(group.labels), group.samples, time.monotonic() + 30)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A Prometheus that has seen both; its ``document`` is the path of that of the stand-ins."""
    reason = servers.missing("prometheus", "prometheus-pushgateway")
    if reason or not sandbox.compiler():
        pytest.skip(reason or "needs a C compiler for the stand-in libraries: cc was not found")
    base = tmp_path_factory.mktemp("filled")
    hosts = stand_ins(_made(base / "stand-ins"))
    gateway = servers.Pushgateway(base / "gateway", arguments=["--push.disable-consistency-check"])
    with gateway, Expositions() as agents, servers.Prometheus(
        base / "prometheus", gateway, scrapes=agents.scrapes()
    ) as prometheus:
        prometheus.document = run_on(hosts, base / "stand-ins", gateway.url)
        run_on_a_network(_made(base / "network"), gateway.url)
        run_on_a_volume(_made(base / "volume"), gateway.url)
        run_on_a_job(_made(base / "job"), gateway.url)
        run_on_a_queue(_made(base / "queue"), gateway.url)
        pushed = {dict(group).get("node") for group in gateway.groups()}
        servers.eventually(
            lambda: (
                {
                    one["metric"].get("node")
                    for one in prometheus.query(f'autopilot_node_status{{job="{JOB}"}}')
                }
                | {None}
                == pushed
            ),
            # A scrape that takes more than a second on a busy machine fails, and its series go.
            seconds=120,
        )
        servers.eventually(
            lambda: (
                len(prometheus.query("autopilot_agent_info")) == len(AGENTS)
                and prometheus.query("kube_node_status_capacity")
            )
        )
        # The agent of gpu-late ends.
        agents.texts["gpu-late"] = ""
        servers.eventually(lambda: len(prometheus.query("autopilot_agent_info")) == len(AGENTS) - 1)
        yield prometheus


def _made(directory):
    directory.mkdir()
    return directory


#: What Grafana puts in place of its own variables; an age of zero, since these runs are seconds
#: old.
FIXED = {"__range": "5m", "__interval": "1s", "cluster": ".*", "phase": ".*", "unchecked": "0"}


def resolved(text, values):
    for name in sorted(values, key=len, reverse=True):
        text = text.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    # "$1" is a group of a regular expression.
    assert not re.search(r"\$(?!1\b)", text), text
    return text


def values_of(prometheus, variable, chosen):
    """What a variable offers, by its own query."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
    series = prometheus.query(resolved(found.group(1), chosen))
    return sorted(
        {one["metric"][found.group(2)] for one in series if found.group(2) in one["metric"]}
    )


@pytest.fixture(scope="module")
def offered(filled):
    """By page the values of its variables."""
    return {
        name: {
            key: values_of(filled, one, {**FIXED, "job": JOB})
            for key, one in variables(name).items()
            if one["type"] == "query"
        }
        for name in PAGES
    }


def test_variables_offer_what_there_is(offered):
    assert offered["agents"] == offered["queue"] == {"cluster": ["a"]}
    for name in ("fleet", "network", "node"):
        assert (offered[name]["job"], offered[name]["cluster"], offered[name]["phase"]) == (
            [AGENTS_JOB, JOB],
            ["a"],
            ["preflight", "quota"],
        )
    assert offered["node"]["node"] == sorted(
        [
            *STAND_INS,
            *("away", "busy", "claimed"),
            *("gpu01", "gpu02", "gpu03", "gpu04"),
            *("ib1", "ib2", "ib3", "ib4"),
        ]
    )
    assert offered["network"]["plane"] == ["eth1", "eth2", "mlx5_0:1", "mlx5_1:1"]


def asked(prometheus, offered, name, expression):
    """The series of an expression of a page, for all values of its variables."""
    found = []
    for node in offered[name]["node"] if "$node" in expression else [""]:
        for plane in offered[name]["plane"] if "$plane" in expression else [""]:
            found += prometheus.query(
                resolved(expression, {**FIXED, "job": JOB, "node": node, "plane": plane})
            )
    return found


@pytest.mark.parametrize(
    "name, title, target",
    queries(),
    ids=lambda value: value if isinstance(value, str) else value["refId"],
)
def test_every_query_finds_something(filled, offered, name, title, target):
    # What counts nodes is 0 where there are none, and has to find some here.
    series = asked(filled, offered, name, target["expr"].replace(" or vector(0)", ""))
    assert series, target["expr"]
    labels = {label for each in series for label in each["metric"]} | {"cluster"}
    assert set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) <= labels
    assert all(each["value"][1] != "NaN" for each in series)


@pytest.mark.parametrize("name", PAGES)
def test_columns_of_tables_are_fields_that_there_are(filled, offered, name):
    for panel in (one for one in panels(name) if one["type"] == "table"):
        several = len(panel["targets"]) > 1
        fields = {
            f"Value #{target['refId']}" if several else "Value" for target in panel["targets"]
        } | {"Time", "cluster"}
        for target in panel["targets"]:
            fields |= {
                label
                for each in asked(filled, offered, name, target["expr"])
                for label in each["metric"]
            }
        by_id = {one["id"]: one["options"] for one in panel["transformations"]}
        assert ("merge" in by_id) == several
        if "groupingToMatrix" in by_id:
            assert {
                by_id["groupingToMatrix"][key] for key in ("rowField", "columnField", "valueField")
            } <= fields
            continue
        organised = by_id["organize"]
        assert (
            set(organised["indexByName"])
            | set(organised["renameByName"])
            | set(organised["excludeByName"])
            <= fields
        )
        assert fields <= set(organised["indexByName"]) | set(organised["excludeByName"]) | {
            "cluster"
        }
        shown = {organised["renameByName"].get(field, field) for field in organised["indexByName"]}
        assert {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]} <= shown
        assert {one["displayName"] for one in panel["options"]["sortBy"]} <= shown


def test_the_fleet_counts_as_the_run_did(filled, offered):
    document = json.loads(filled.document.read_text(encoding="utf-8"))
    fit = [node["fit"] for node in document["nodes"]]
    shown = {
        panel["title"]: asked(
            filled,
            offered,
            "fleet",
            panel["targets"][0]["expr"].replace('cluster=~"$cluster"', 'cluster="a"'),
        )
        for panel in panels("fleet")
        if panel["type"] == "stat"
    }
    assert [int(shown[title][0]["value"][1]) for title in ("Unfit", "Fit", "No verdict")] == [
        fit.count("unfit"),
        fit.count("fit"),
        fit.count("could_not_tell"),
    ]
    assert len({0, fit.count("unfit"), fit.count("fit"), fit.count("could_not_tell")}) == 4, (
        "or it shows nothing"
    )


def shown_nodes(filled, offered, name, title, **variables):
    """The nodes that a panel names."""
    expression = next(
        target["expr"]
        for page_of, heading, target in queries()
        if (page_of, heading) == (name, title)
    )
    for key, value in variables.items():
        expression = expression.replace(f"${key}", value)
    return {one["metric"]["node"] for one in asked(filled, offered, name, expression)}


def test_the_agents_page_counts_marks_fitness_and_agents(filled, offered):
    counts = {
        panel["title"]: int(
            asked(filled, offered, "agents", panel["targets"][0]["expr"])[0]["value"][1]
        )
        for panel in panels("agents")
        if panel["type"] == "stat"
    }
    assert counts == {
        "Marked PASS": 1,
        "Marked WARN": 1,
        "Marked TESTING": 1,
        "Marked EVICT": 1,
        "Fit": 1,
        "Unfit": 1,
        "Unknown": 2,
        # gpu-new has no agent, gpu-late's does not answer any more.
        "Agents expected": 6,
        "Agents answering": 4,
        "Agents missing": 2,
    }
    away = next(
        target["expr"]
        for name, title, target in queries()
        if title == "Nodes without an answering agent"
    )
    reasons = {
        one["metric"]["node"]: one["value"][1] for one in asked(filled, offered, "agents", away)
    }
    assert reasons == {"gpu-new": "1", "gpu-late": "2"}


def test_the_queue_page_sums_up_the_audit(filled, offered):
    counts = {
        panel["title"]: int(
            asked(filled, offered, "queue", panel["targets"][0]["expr"])[0]["value"][1]
        )
        for panel in panels("queue")
        if panel["type"] == "stat"
    }
    assert counts == {
        "GPUs": 24,
        "Out of service": 8,
        "Quota": 20,
        "Used": 12,
        "Borrowed": 4,
        "Pending workloads": 2,
    }


def test_a_gpu_that_waits_for_a_reset_is_listed_while_nothing_uses_it(filled, offered):
    title = "Idle GPUs with a pending repair of memory"
    assert shown_nodes(filled, offered, "fleet", title) == {"pending", "old"}
    # Without gpu_processes the requests of pods tell: those of gpu-warn are in use.
    assert shown_nodes(filled, offered, "fleet", title, job=AGENTS_JOB) == {"gpu-evict"}


def test_since_is_when_it_was_first_seen_and_stays(filled, offered):
    expression = next(
        target["expr"]
        for name, title, target in queries()
        if (name, title) == ("fleet", "Findings")
    )

    def since():
        return {
            (one["metric"]["node"], one["metric"]["code"], one["metric"]["subject"]): float(
                one["value"][1]
            )
            / 1000
            for one in asked(filled, offered, "fleet", expression)
        }

    def scraped():
        return max(float(one["value"][1]) for one in filled.query("timestamp(up)"))

    first, before = since(), scraped()
    # A step of the subquery is a second here, and so is a scrape.
    servers.eventually(lambda: scraped() >= before + 3)
    later = since()
    assert first and set(first) == set(later)
    assert all(
        abs(later[key] - first[key]) <= 2 and before - 300 < first[key] <= before for key in first
    )
    assert {"slow", "gpu02", "away"} <= {node for node, _code, _subject in first}


#: Expressions of the predecessor's dashboard and alerts -> nodes that they must find, and no
#: others.
PREDECESSOR = {
    'sum(autopilot_health_checks{node=~".*", health=~"power-slowdown"} > 0) by (node, deviceid)': {
        "hot"
    },
    'sum(autopilot_health_checks{health=~"remapped", node=~".*"}) by (node) > 0': {"pending"},
    'avg(avg_over_time(autopilot_health_checks{health=~"pciebw"}[12h])) by (node, deviceid) < 3.4': {
        "slow"
    },
    'avg(avg_over_time(autopilot_health_checks{health=~"pciebw", node=~".*"}[12h])) by (node, '
    "deviceid) < 5": {"slow"},
    'sum by (node, deviceid) (autopilot_health_checks{health="pciebw"}) <= 4': {"slow"},
    'sum by (node) (autopilot_health_checks{health="dcgm"}) == 1': {"faulty"},
    'sum(label_replace(autopilot_health_checks{health="ping",node="gpu01"}, "targetNode", '
    '"$1", "deviceid", "(.*)"))by(node,targetNode)': {"gpu01"},
}


@pytest.mark.parametrize("expression", PREDECESSOR)
def test_the_predecessors_expressions_find_the_same(filled, expression):
    assert {one["metric"]["node"] for one in filled.query(expression)} == PREDECESSOR[expression]


def test_a_replay_pushes_nothing(filled, tmp_path):
    """What would have been is no metric, also where the callback is configured."""
    before = filled.pushgateway.groups()
    controller = linked(tmp_path, Path(sys.executable).parent)
    given = {
        "run": str(filled.document),
        "pushgateway_url": filled.pushgateway.url,
        "checks_options": {"pcie_bandwidth": {"minimum": 1}},
    }
    done = controller.run(
        "ansible-playbook", "autopilot.gpu.replay", "-e", json.dumps(given), cwd=tmp_path
    )
    assert done.returncode == 0 and "slow " in done.stdout, done.stdout
    assert filled.pushgateway.groups() == before
