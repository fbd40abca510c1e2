# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A running job watched as an operator does it: the real playbook on stand-in nodes at work, up to
what becomes of the job.
"""

from __future__ import annotations

import http.server
import json
import re
import threading

import gateways
import node as sandbox
import pytest

from controller import ROOT

FQCN, PATH = "autopilot.gpu.inflight", ROOT / "playbooks/inflight.yml"
AT_WORK = [
    dict(gpu="*", call="nvmlDeviceGetUtilizationRates", values=[98, 40]),
    dict(gpu="*", call="nvmlDeviceGetPowerUsage", values=[600000]),
    dict(gpu="*", call="nvmlDeviceGetCurrentClocksEventReasons", values=[4]),
]
QUICK = {
    "inflight_checks": ["gpu_count", "gpu_activity"],
    "checks_options": {"gpu_activity": {"window": 1, "interval": 0.5}},
}

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Inventory entries of nodes at work, by name."""
    base = tmp_path_factory.mktemp("nodes")

    def stand_in(name, *rules, model="H100-80GB"):
        node = sandbox.build(dict(model=model, gpus=2, rules=[*AT_WORK, *rules]), base / name)
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": node.python,
            "checks_host_root": node.root,
        }

    return {
        "well": stand_in("well"),
        "lost": stand_in("lost", dict(gpu=1, call="*", returns=15)),
        "fine": stand_in("fine"),
    }


class Run:
    """A finished playbook, and what it left."""

    def __init__(self, controller, directory, hosts, *arguments, playbook=FQCN, **variables):
        directory.mkdir(exist_ok=True)
        (directory / "hosts.json").write_text(
            json.dumps({"all": {"hosts": hosts}}), encoding="utf-8"
        )
        done = controller.run(
            "ansible-playbook",
            "-i",
            "hosts.json",
            playbook,
            "-e",
            json.dumps({**QUICK, **variables}),
            *arguments,
            cwd=directory,
            ANSIBLE_DEPRECATION_WARNINGS="false",
        )
        self.code, self.text = done.returncode, done.stdout
        documents = sorted(
            (directory / "reports").glob("**/run.json"), key=lambda path: path.stat().st_mtime_ns
        )
        self.documents = [json.loads(path.read_text(encoding="utf-8")) for path in documents]
        self.after = self.text[self.text.rfind("PLAY RECAP") :].splitlines()

    def statuses(self):
        return [
            {row["name"]: row["status"] for row in document["nodes"]} for document in self.documents
        ]


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def collector():
    """A webhook: ``got`` has what was posted, ``url`` is where."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.got, server.url = [], f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.smoke
def test_one_look_finds_the_fault_and_would_warn_the_owner(controller, hosts, tmp_path):
    run = Run(controller, tmp_path, hosts, run="job42")
    assert run.code == 2, run.text
    assert run.statuses() == [{"well": "pass", "lost": "fail", "fine": "pass"}]
    (document,) = run.documents
    assert (document["phase"], document["verdict"]["passed"]) == ("inflight", False)
    checks = {result["check"]: result["status"] for result in document["nodes"][0]["health"]}
    assert (
        set(checks) == {"gpu_count", "gpu_activity", "node_changes"}
        and checks["gpu_activity"] == "pass"
    )
    assert checks["node_changes"] == "skip"  # the preflight has kept nothing under this name
    assert "warn_owner: lost: GPU 1 (2A:00.0): fell off the bus" in run.text
    assert any(
        line.startswith("inflight FAILED: 1 of 3 nodes is unfit: lost") for line in run.after
    )
    (history,) = json.loads((tmp_path / "reports/job42/decisions.json").read_text(encoding="utf-8"))
    assert (history["decision"], history["told"]) == ("warn_owner", False)


@pytest.mark.smoke
def test_a_watch_looks_again_pushes_each_time_and_suspends_what_keeps_failing(
    controller, hosts, tmp_path, collector
):
    stop = tmp_path / "stop-it"
    stop.write_text(f"#!/bin/sh\ncat >{tmp_path}/told\n", encoding="utf-8")
    stop.chmod(0o755)
    with gateways.Answering() as gateway:
        run = Run(
            controller,
            tmp_path / "run",
            {name: hosts[name] for name in ("well", "lost")},
            run="job42",
            watch="6s",
            inflight_every="6s",
            inflight_dry_run=False,
            inflight_decisions={"codes": {"gpu_lost": "suspend"}},
            inflight_notify={"webhook": collector.url},
            inflight_act={"command": [str(stop)]},
            pushgateway_url=f"http://127.0.0.1:{gateway.port}",
        )
    pushed = [
        path
        for method, path, _headers, _body in gateway.asked
        if method == "PUT" and path.endswith("phase/inflight") and "/node/" in path
    ]
    assert len(pushed) == 4 and all("inflight" in path for path in pushed), gateway.asked
    assert run.code == 2 and run.statuses() == [{"well": "pass", "lost": "fail"}] * 2
    assert [one["decision"] for one in collector.got] == ["warn_owner", "suspend"]
    assert (
        collector.got[1]["acted"] == f"ran {stop}"
        and json.loads((tmp_path / "told").read_text())["decision"] == "suspend"
    )
    assert collector.url not in run.text
    assert f"; ran {stop}; notified webhook at 127.0.0.1" in run.text, (
        "the screen shows that it was done"
    )
    # Of the looks the last is shown at the end.
    assert sum(line.startswith("autopilot inflight ") for line in run.after) == 1


def test_a_host_that_was_away_is_there_in_the_next_look(controller, hosts, tmp_path):
    """Its interpreter answers with the second call that needs it, as a host does that comes back."""
    flag = tmp_path / "back"
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\n[ -e {flag} ] || {{ touch {flag}; exit 1; }}\nexec "
        f'{hosts["well"]["ansible_python_interpreter"]} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    away = {**hosts["well"], "ansible_python_interpreter": str(python)}
    run = Run(
        controller,
        tmp_path / "run",
        {"away": away, "fine": hosts["fine"]},
        watch="5s",
        inflight_every="5s",
    )
    assert run.statuses() == [{"away": "unknown", "fine": "pass"}, {"away": "pass", "fine": "pass"}]
    # What could not be told decides nothing, and the last look is the one that counts.
    assert run.code == 0, run.text
    assert "warn_owner" not in run.text


@pytest.mark.smoke
def test_what_would_disturb_the_job_does_not_run(controller, hosts, tmp_path):
    run = Run(
        controller,
        tmp_path,
        {"fine": hosts["fine"]},
        playbook=PATH,
        inflight_checks=["gpu_count", "pciebw", "dcgm", "memory_and_cpu"],
        checks_options={"memory_and_cpu": {"stream": True}},
    )
    assert run.code == 0, run.text
    results = {result["check"]: result for result in run.documents[0]["nodes"][0]["health"]}
    assert (
        results["gpu_count"]["status"],
        results["pcie_bandwidth"]["status"],
        results["dcgm_diag"]["status"],
    ) == ("pass", "skip", "skip")
    assert run.documents[0]["nodes"][0]["readings"]["memory_and_cpu"]["options"]["stream"] is False
    assert (
        results["pcie_bandwidth"]["summary"] == "not run: it could disturb the job that runs here"
    )


def test_check_mode_measures_writes_and_tells_nothing(controller, hosts, tmp_path, collector):
    run = Run(
        controller,
        tmp_path,
        {"lost": hosts["lost"]},
        "--check",
        run="job42",
        watch="1h",
        inflight_dry_run=False,
        inflight_notify={"webhook": collector.url},
    )
    assert (
        run.code == 0
        and not run.documents
        and not (tmp_path / "reports").exists()
        and not collector.got
    ), run.text
    assert "fell off the bus" not in run.text
    assert "    passive, at most 0.5 min each, on 1 node: gpu_count, gpu_activity" in run.after, (
        run.text
    )


@pytest.mark.parametrize(
    "variables, named",
    [
        ({"watch": "soon"}, "watch: 'soon' is invalid; expected a length of time such as 90s, 30m"),
        (
            {"inflight_decisions": {"on_fail": "kill"}},
            "inflight_decisions.on_fail: 'kill' is invalid; expected one of continue, "
            "warn_owner, suspend, stop",
        ),
        (
            {"inflight_notify": {"slack": "hush-hush"}},
            "inflight_notify.slack: the given value is invalid",
        ),
        (
            {"watch": "30m", "run": "../job42"},
            "run: '../job42' is invalid; expected at most 100 letters",
        ),
    ],
)
def test_a_wrong_variable_is_refused_before_anything_is_done(
    controller, hosts, tmp_path, variables, named
):
    run = Run(controller, tmp_path, {"fine": hosts["fine"]}, **variables)
    assert (
        run.code != 0
        and named in " ".join(run.text.split())
        and not run.documents
        and sorted(tmp_path.glob("**/decisions.json")) == []
    )
    assert "hush-hush" not in run.text


def test_where_no_run_document_can_be_kept_it_says_that_nothing_was_decided(
    controller, hosts, tmp_path
):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/job42").write_text("a file", encoding="utf-8")
    run = Run(controller, tmp_path, {"lost": hosts["lost"]}, run="job42")
    assert run.code == 2 and re.search(
        r"job42.*; nothing was decided about the job", " ".join(run.text.split())
    ), run.text


def test_a_node_without_a_job_is_said_to_have_none(controller, hosts, tmp_path):
    idle = sandbox.build(dict(model="H100-80GB", gpus=2), tmp_path / "idle")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": idle.python,
        "checks_host_root": idle.root,
    }
    run = Run(controller, tmp_path / "run", {"idle": host})
    assert run.code == 0, run.text
    assert "1 of 1 node is fit; no job is running: on the node every GPU is idle" in run.after[-3]


def test_nobody_to_look_at_is_no_success(controller, hosts, tmp_path):
    run = Run(controller, tmp_path, {"fine": hosts["fine"]}, inflight_hosts="nosuch")
    assert run.code == 2 and re.search("no host matches 'nosuch'", run.text)
