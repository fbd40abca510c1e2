# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's metrics: what passes found, in a format that Prometheus takes."""

from __future__ import annotations

import shutil
import subprocess
import time
from types import SimpleNamespace

import agent_world
import pytest
from _health.fleet.output import metrics
from _health.knowledge import agent as table
from _health.model import CheckResult, Finding, Measurement, Subject, concluded
from _health.fleet.judging.policy import Policy
from _health.fleet.judging.verdict import judge_node
from autopilot_agent.passes.deep import DeepDiagnostics
from autopilot_agent.passes.engine import Engine, Pass
from autopilot_agent.http.exposition import Exposition
from autopilot_agent.cluster.kube import Kube
from autopilot_agent.passes.history import History
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

GPUS = [
    {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index + 16:02X}:00.0",
        "name": "NVIDIA H100",
    }
    for index in range(2)
]
GPU1 = Subject("gpu", 1, "GPU-1", "00000000:11:00.0")
BANDWIDTH = [
    Measurement(
        "pcie_bandwidth",
        55e9 - index,
        "bytes/s",
        {"gpu": str(index), "direction": "host_to_device", "method": "copy_engine"},
    )
    for index in range(2)
]


class Agent:
    """What an exposition looks at, and passes that it hears of."""

    def __init__(self, marks=True, **variables):
        settings = agent_world.settings(**variables)
        self.kube, self.engine = Kube(settings.api_server), Engine(settings)
        self.history = History(settings.periodic_checks, settings.repeat_seconds)
        self.deep = DeepDiagnostics(settings, self.engine, self.kube, None)
        self.marker = SimpleNamespace(current="WARN", refused=0, waiting=1) if marks else None
        tls = SimpleNamespace(ends=lambda: 2e9)
        self.exposition = Exposition(
            self.engine, self.history, self.kube, self.deep, self.marker, tls
        )
        self.engine.node = {
            "gpus": GPUS,
            "cpu_model": "Xeon",
            "driver_version": "580",
            "boot_id": "",
        }

    def hears(self, *results, finished=None):
        finished = finished or time.time()
        verdict = judge_node(results, Policy())
        self.history.note(results, {}, finished, time.monotonic())
        self.exposition.heard(
            Pass(
                list(results),
                self.engine.node,
                verdict,
                finished - 3,
                finished,
                "run",
                ("timer",),
                {},
            )
        )

    def values(self, name):
        """Values of a metric by its labels without node and phase."""
        text, _type = self.exposition.render("")
        return {
            tuple(
                sorted(item for item in sample.labels.items() if item[0] not in ("node", "phase"))
            ): sample.value
            for family in plain(text.decode())
            for sample in family.samples
            if sample.name == name
        }


def good():
    return [
        CheckResult("gpu_count", "pass", "2 GPUs"),
        CheckResult("remapped_rows", "pass", ""),
        CheckResult("pcie_bandwidth", "pass", "", [], BANDWIDTH),
    ]


def pending(gpu=GPU1):
    return concluded(
        "remapped_rows", [Finding("row_remap_pending", "warn", "a row waits", "reset_gpu", gpu)], ""
    )


def test_an_agent_that_has_not_looked_yet_says_nothing_of_the_node():
    agent = Agent()
    assert (
        agent.values("autopilot_node_status") == {} and agent.values("autopilot_check_status") == {}
    )
    assert agent.values("autopilot_agent_checks_missing") == {(): 2.0} and agent.values(
        "autopilot_agent_passes_waiting"
    ) == {(): 0.0}


def test_a_pass_is_what_a_run_would_push():
    agent = Agent()
    agent.hears(*good(), finished=1000.0)
    assert agent.values("autopilot_node_status") == {(): 0.0} and agent.values(
        "autopilot_node_fit"
    ) == {(): 1.0}
    assert agent.values("autopilot_last_success_timestamp_seconds") == {(): 1000.0}
    assert (
        agent.values("autopilot_pcie_bandwidth_bytes_per_second")[
            (("direction", "host_to_device"), ("gpu", "1"), ("method", "copy_engine"))
        ]
        == 55e9 - 1
    )
    assert len(agent.values("autopilot_gpu_info")) == 2
    text = agent.exposition.render("")[0].decode()
    assert 'autopilot_check_status{check="gpu_count",node="gpu01",phase="agent"} 0.0' in text


def test_the_predecessors_gauge_has_its_labels_and_values():
    """And the metric's label is ``health``, as its code and not its documentation had it."""
    agent = Agent()
    agent.hears(*good(), pending())
    by = {dict(labels)["health"]: {} for labels in agent.values("autopilot_health_checks")}
    for labels, value in agent.values("autopilot_health_checks").items():
        by[dict(labels)["health"]][dict(labels)["deviceid"]] = value
        assert set(dict(labels)) == {"health", "deviceid", "cpumodel", "gpumodel"}
    assert by["remapped"] == {"0": 0.0, "1": 1.0} and by["pciebw"] == {
        "0": 55.0,
        "1": (55e9 - 1) / 1e9,
    }


def test_a_finding_that_is_gone_disappears():
    agent = Agent()
    agent.hears(*good(), pending())
    assert [dict(labels)["code"] for labels in agent.values("autopilot_finding")] == [
        "row_remap_pending"
    ]
    agent.hears(*good())
    assert agent.values("autopilot_finding") == {} and agent.values("autopilot_node_status") == {
        (): 0.0
    }


@pytest.mark.parametrize("later", [1000.0, 10.0], ids=["later", "clock jumped back"])
def test_n6_n16_what_was_found_stays_until_the_check_itself_finds_otherwise(later):
    """No event, no other check and no clock resets it; of a check that was put off the earlier news
    stay, with their time.
    """
    agent = Agent()
    bad = concluded(
        "dcgm_diag", [Finding("dcgm_isolate", "fail", "failed", "drain_node", GPU1)], ""
    )
    agent.hears(*good(), bad, finished=500.0)
    agent.hears(
        CheckResult("gpu_count", "pass", ""),
        CheckResult("dcgm_diag", "skip", "", [Finding("gpu_in_use", "skip", "")]),
        finished=later,
    )
    assert agent.values("autopilot_check_status")[(("check", "dcgm_diag"),)] == 4.0
    assert agent.values("autopilot_check_timestamp_seconds") == {
        (("check", "dcgm_diag"),): 500.0,
        (("check", "gpu_count"),): later,
        (("check", "remapped_rows"),): 500.0,
        (("check", "pcie_bandwidth"),): 500.0,
    }
    assert [
        value
        for labels, value in agent.values("autopilot_health_checks").items()
        if ("health", "dcgm") in labels
    ] == [1.0]
    assert agent.values("autopilot_node_fit") == {(): 0.0}
    agent.hears(CheckResult("dcgm_diag", "pass", ""), finished=later)
    assert agent.values("autopilot_check_status")[(("check", "dcgm_diag"),)] == 0.0


def test_what_could_not_be_told_has_no_value_and_is_neither_fit_nor_unfit():
    agent = Agent(PERIODIC_CHECKS="gpu_count,pcie_bandwidth")
    agent.hears(
        *good()[:2],
        concluded("pcie_bandwidth", [Finding("hung", "unknown", "hung")], "", BANDWIDTH),
    )
    assert (
        agent.values("autopilot_node_fit") == {}
        and agent.values("autopilot_pcie_bandwidth_bytes_per_second") == {}
    )
    assert not any(
        ("health", "pciebw") in labels for labels in agent.values("autopilot_health_checks")
    )


def test_an_unknown_result_of_a_check_that_is_not_periodic_leaves_the_metrics_as_they_are():
    """For instance /status?check=dcgm on an agent without DCGM."""
    agent = Agent()
    agent.hears(*good())
    before = agent.values("autopilot_check_status")
    missing = Finding("dcgmi_missing", "unknown", "dcgmi is not installed", "fix_configuration")
    agent.hears(concluded("dcgm_diag", [missing], ""))
    assert agent.values("autopilot_node_fit") == {(): 1.0}
    assert agent.values("autopilot_check_status") == before
    assert agent.values("autopilot_finding") == {}


def test_the_mark_is_one_of_all_there_are():
    assert {
        dict(labels)["mark"]: value
        for labels, value in Agent().values("autopilot_node_mark").items()
    } == {"PASS": 0.0, "WARN": 1.0, "TESTING": 0.0, "EVICT": 0.0}
    assert Agent(marks=False).values("autopilot_node_mark") == {}


def test_further_samples_get_the_nodes_name_and_what_is_no_metric_is_left_out():
    agent = Agent()
    labels = {"health": "ping", "cpumodel": "", "gpumodel": "", "deviceid": "gpu02"}
    agent.engine.extra_samples.append(
        lambda: [
            metrics.Sample("autopilot_health_checks", labels, 1.0),
            metrics.Sample("odd", {}, 1.0),
        ]
    )
    assert (
        list(agent.values("autopilot_health_checks").values()) == [1.0]
        and b"odd" not in agent.exposition.render("")[0]
    )


def test_strangers_do_not_make_series_without_end():
    agent = Agent()
    for number in range(1000):
        agent.exposition.asked(f"someone{number}")
        agent.exposition.answered(f"/{number}", 404)
    assert (
        len(agent.values("autopilot_health_checks_req_total")) <= 65
        and len(agent.values("autopilot_agent_requests_total")) <= 65
    )
    assert sum(agent.values("autopilot_health_checks_req_total").values()) == 1000


def test_counters_count_and_the_table_names_all_that_is_exposed():
    agent = Agent()
    agent.hears(*good(), pending())
    agent.kube.errors[503] += 2
    agent.exposition.asked("alice")
    agent.exposition.answered("/status", 200)
    assert agent.values("autopilot_agent_passes_total")[(("status", "warn"),)] == 1.0
    assert agent.values("autopilot_agent_api_errors_total") == {(("code", "503"),): 2.0}
    named = {one.name for one in (*metrics.METRICS, metrics.COMPATIBILITY, *table.METRICS)}
    exposed = {
        sample.name
        for family in plain(agent.exposition.render("")[0].decode())
        for sample in family.samples
    }
    assert exposed <= named and {one.name for one in table.METRICS} <= exposed


def test_both_formats_are_what_they_say():
    agent = Agent()
    agent.hears(*good(), pending())
    agent.exposition.asked('al"ice\n\\')
    text, content_type = agent.exposition.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text") and text.endswith(b"# EOF\n")
    assert len(list(openmetrics(text.decode()))) > 10
    text, content_type = agent.exposition.render("*/*")
    assert content_type.startswith("text/plain")
    if not shutil.which("promtool"):
        pytest.skip("needs promtool: it is not on the path")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("given, shown", [((), "none"), (("4.2.3",), "4.2.3")])
def test_the_version_of_dcgm_in_the_image_is_a_label(given, shown):
    world = Agent()
    seen = (world.engine, world.history, world.kube, world.deep, None, None)
    text = Exposition(*seen, *given).render("")[0].decode()
    [line] = [one for one in text.splitlines() if one.startswith("autopilot_agent_info{")]
    assert f'dcgm="{shown}"' in line and line.endswith(" 1.0")


def test_a_claim_that_is_not_bound_is_1_for_the_predecessor_and_no_verdict_on_the_node():
    agent = Agent(PERIODIC_CHECKS="gpu_count,pvc", PVC_TEST_STORAGE_CLASS="fast")

    def seen(*findings):
        agent.hears(good()[0], concluded("volume_claim", list(findings), ""))
        flags = agent.values("autopilot_health_checks").items()
        [value] = [value for labels, value in flags if ("health", "pvc") in labels]
        return value, agent.values("autopilot_node_fit")

    assert seen(Finding("claim_not_bound", "fail", "no volume")) == (1.0, {})
    assert seen() == (0.0, {(): 1.0})
