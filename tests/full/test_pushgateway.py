# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs find reaches a real Pushgateway, and what a bad one does to a playbook: nothing, for no
longer than it may.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gateways
import node as sandbox
import pytest
from ansible_collections.autopilot.gpu.plugins.callback import pushgateway
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import (
    delivery as _delivery,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import push as _push
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import Gateway
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.push import write_to_spool
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import settings_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)
from controller import ROOT, linked, write_inventory
from interpreters import CORES, core
from servers import Pushgateway, free_port, get, missing

SECRET = "hunter2-very-secret"
FAST = ["--push.disable-consistency-check"]
#: The oldest of what the callback needs, as meta/ee-requirements.txt has it, for the oldest
#: ansible-core.
OLDEST = [
    line.replace(">=", "==")
    for line in (ROOT / "meta/ee-requirements.txt").read_text().splitlines()
    if line.startswith(("prometheus", "urllib3"))
]
LIBRARIES = {"2.18": OLDEST, "newest": ["prometheus_client", "urllib3"]}

needs_pushgateway = pytest.mark.skipif(
    bool(missing("prometheus-pushgateway")), reason=missing("prometheus-pushgateway") or "-"
)

#: Returns the result of a check, as the modules of the collection do, without a host.
ACTION = """
import time
from pathlib import Path
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        given = self._task.args
        if "sleep" in given:
            Path(task_vars["playbook_dir"], "asleep-" + task_vars["inventory_hostname"]).touch()
            time.sleep(given["sleep"])
        status, check = str(given.get("status", "pass")), str(given.get("check", "remapped_rows"))
        subject = {"kind": "gpu", "index": int(given.get("gpu", 3))}
        bad = {
            "code": check + "_bad",
            "status": status,
            "action": "replace_part",
            "subject": subject,
            "message": "spare rows are used up",
        }
        labels = {"gpu": str(given.get("gpu", 3)), "cause": "correctable"}
        rows = {"name": "remapped_rows", "value": 8, "unit": "rows", "labels": labels}
        health = {
            "check": check,
            "status": status,
            "summary": "-",
            "findings": [] if status == "pass" else [bad],
            "measurements": [rows],
        }
        gpu = {"index": 3, "uuid": "GPU-1", "pci": "00000000:9A:00.0", "name": "NVIDIA H100"}
        return {
            "changed": False,
            "failed": bool(given.get("fail")),
            "msg": "-",
            "status": status,
            "health": [health],
            "node": {"gpus": [gpu]},
        }
"""

#: The same as a module, which can run asynchronously.
MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"check": {"type": "str"}, "status": {"type": "str"}}, supports_check_mode=True)
result = {"check": module.params["check"], "status": module.params["status"]}
module.exit_json(health=[dict(result, summary="-", findings=[], measurements=[])])
"""


class Place:
    """A directory with playbooks and an inventory of nodes, and a controller."""

    def __init__(self, directory, controller, nodes=("gpu01", "gpu02", "gpu03")):
        self.directory, self.controller = directory, controller
        for name, text in (
            ("action_plugins/recorded.py", ACTION),
            ("library/recorded_module.py", MODULE),
        ):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        self.inventory(nodes)

    def inventory(self, nodes, **variables):
        hosts = {
            name: {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
            for name in nodes
        }
        (self.directory / "hosts.json").write_text(
            json.dumps({"all": {"hosts": hosts, "vars": variables}})
        )

    def play(self, *tasks, before=(), **keywords):
        """Write the playbook: a play of these tasks, and before it one of others, if any."""
        plays = [{"hosts": "all", "gather_facts": False, "tasks": list(before)}] if before else []
        (self.directory / "play.yml").write_text(
            json.dumps(
                [*plays, {"hosts": "all", "gather_facts": False, "tasks": list(tasks), **keywords}]
            )
        )

    def run(self, *arguments, url=None, playbook="play.yml", code=0, **settings):
        """What was printed."""
        given = {
            "ANSIBLE_CALLBACKS_ENABLED": "autopilot.gpu.pushgateway",
            **({"AUTOPILOT_PUSHGATEWAY_URL": url} if url else {}),
            **settings,
        }
        done = self.controller.run(
            "ansible-playbook",
            "-i",
            "hosts.json",
            playbook,
            *arguments,
            cwd=self.directory,
            **given,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def start(self, *arguments, url, **settings):
        """The running playbook, in a process group of its own."""
        environment = {
            "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
            "ANSIBLE_COLLECTIONS_PATH": str(self.controller.collections),
            "ANSIBLE_NOCOLOR": "1",
            "HOME": str(self.controller.home),
            "PATH": f"{self.controller.programs}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "ANSIBLE_CALLBACKS_ENABLED": "autopilot.gpu.pushgateway",
            "AUTOPILOT_PUSHGATEWAY_URL": url,
            **settings,
        }
        self.controller.home.mkdir(exist_ok=True)
        return subprocess.Popen(
            [
                str(self.controller.programs / "ansible-playbook"),
                "-i",
                "hosts.json",
                "play.yml",
                *arguments,
            ],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def break_off(self, number, url):
        """Run a check that fails, send the signal while another has all nodes asleep for 20 s;
        return the output and the exit status.
        """
        self.play(
            {"recorded": {"status": "fail"}}, {"recorded": {"check": "gpu_power", "sleep": 20}}
        )
        run = self.start(url=url)
        while len(list(self.directory.glob("asleep-*"))) < 3:
            assert run.poll() is None
            time.sleep(0.05)
        os.killpg(run.pid, number)
        printed = run.communicate(timeout=60)[0]
        return printed, run.returncode

    @property
    def spooled(self):
        return sorted(self.controller.home.glob(".ansible/autopilot_gpu/spool/*/*.json"))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, linked(tmp_path, Path(sys.executable).parent))


@pytest.fixture(params=["this", *CORES])
def any_place(request, tmp_path):
    """A place for each ansible-core that is supported."""
    if request.param == "this":
        return Place(tmp_path, linked(tmp_path, Path(sys.executable).parent))
    return Place(tmp_path, linked(tmp_path, core(request.param, "push", *LIBRARIES[request.param])))


@pytest.fixture
def gateway(tmp_path):
    with Pushgateway(tmp_path / "gateway", arguments=FAST) as running:
        yield running


def value(gateway, metric, **labels):
    """The value of a series, None where there is none."""
    wanted = {"job": "autopilot_gpu", "phase": "preflight", **labels}
    found = []
    for group in gateway.groups().values():
        for one in group.get(metric, {}).get("metrics", []):
            if {
                name: value for name, value in one["labels"].items() if name != "instance"
            } == wanted:
                found.append(float(one["value"]))
    assert len(found) < 2, found
    return found[0] if found else None


def nodes_of(gateway):
    return sorted(dict(key)["node"] for key in gateway.groups() if "node" in dict(key))


def checks_of(gateway, node):
    """By check its status as a number."""
    group = next(group for key, group in gateway.groups().items() if ("node", node) in key)
    return {
        one["labels"]["check"]: float(one["value"])
        for one in group["autopilot_check_status"]["metrics"]
    }


# ---- what is collected ----


@pytest.mark.smoke
@needs_pushgateway
@pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)
def test_a_preflight_pushes_its_verdict_with_no_configuration_at_all(place, gateway, tmp_path):
    nodes = {name: sandbox.build(name, tmp_path / name) for name in ("healthy_8xh100", "gpu_lost")}
    write_inventory(
        tmp_path / "hosts.json",
        nodes,
        expected_gpus=8,
        checks_list=["gpu_count", "remapped"],
        preflight_policy={"warn_only": ["gpu_lost"]},
    )
    # Also where the callback is enabled as well.
    for enabled in ("", "autopilot.gpu.pushgateway,autopilot.gpu.summary"):
        settings = {"ANSIBLE_CALLBACKS_ENABLED": enabled} if enabled else {}
        done = place.controller.run(
            "ansible-playbook",
            "-i",
            "hosts.json",
            "autopilot.gpu.preflight",
            "--skip-tags",
            "mesh",
            "-e",
            f"pushgateway_url={gateway.url}",
            cwd=tmp_path,
            **settings,
        )
        assert done.returncode in (0, 2), done.stdout
        assert done.stdout.count("autopilot: pushed 2 nodes to") == 1, done.stdout
        assert done.stdout.rindex("autopilot: pushed") < done.stdout.rindex("autopilot preflight")
    assert nodes_of(gateway) == ["gpu_lost", "healthy_8xh100"]
    assert value(gateway, "autopilot_node_fit", node="healthy_8xh100") == 1
    document = json.loads(next((tmp_path / "reports").glob("*/run.json")).read_text())
    status = {node["name"]: node["status"] for node in document["nodes"]}["gpu_lost"]
    assert value(gateway, "autopilot_node_status", node="gpu_lost") == [
        "pass",
        "skip",
        "warn",
        "unknown",
        "fail",
    ].index(status)
    assert value(gateway, "autopilot_run_complete") == 1
    assert "autopilot_health_checks" not in get(gateway.url + "/metrics") and place.spooled == []


ASYNC_RESULT = {"check": "async_check", "status": "pass"}
#: A task of every kind that records a result: its last result for a check counts.
EVERY_KIND_OF_TASK = (
    {"recorded": {"check": "plain"}},
    {"recorded": {"check": "failing", "status": "fail", "fail": True}, "ignore_errors": True},
    {
        "recorded": {
            "check": "looped",
            "status": "{{ item }}",
            "gpu": "{{ {'pass': 1, 'fail': 2, 'warn': 5}[item] }}",
        },
        "loop": ["pass", "fail", "warn"],
    },
    {
        "recorded": {"check": "delegated"},
        "delegate_to": "gpu03",
        "when": "inventory_hostname == 'gpu02'",
    },
    {
        "block": [{"recorded": {"check": "rescued", "status": "warn", "fail": True}}],
        "rescue": [{"ansible.builtin.meta": "noop"}],
    },
    {"recorded": {"check": "again", "status": "fail"}},
    {"recorded": {"check": "again", "status": "pass"}},
    {"recorded": {"check": "not_run"}, "check_mode": True},
    {
        "recorded_module": ASYNC_RESULT,
        "async": 20,
        "poll": 1,
        "when": "inventory_hostname == 'gpu02'",
    },
    {
        "recorded_module": dict(ASYNC_RESULT, check="fire"),
        "async": 20,
        "poll": 0,
        "register": "job",
        "when": "inventory_hostname == 'gpu01'",
    },
    {
        "ansible.builtin.async_status": {"jid": "{{ job.ansible_job_id }}"},
        "register": "ended",
        "until": "ended is finished",
        "retries": 40,
        "delay": 0.2,
        "when": "inventory_hostname == 'gpu01'",
    },
)


@needs_pushgateway
def test_every_kind_of_task_is_collected(any_place, gateway):
    any_place.inventory([f"gpu0{number}" for number in range(1, 5)])
    any_place.play(
        *EVERY_KIND_OF_TASK,
        before=[{"recorded": {"check": "once"}, "run_once": True}],
        strategy="ansible.builtin.free",
    )
    printed = any_place.run(
        "--forks", "50", url=gateway.url, ANSIBLE_ASYNC_DIR=str(any_place.directory / "async")
    )
    assert "autopilot: pushed 4 nodes to" in printed and "WARNING" not in printed, printed
    everyone = {"plain": 0, "failing": 4, "looped": 4, "rescued": 2, "again": 0}
    assert checks_of(gateway, "gpu04") == everyone
    assert [node for node in nodes_of(gateway) if "once" in checks_of(gateway, node)] == ["gpu01"]
    assert checks_of(gateway, "gpu01")["fire"] == checks_of(gateway, "gpu02")["async_check"] == 0
    assert "delegated" in checks_of(gateway, "gpu03") and "delegated" not in checks_of(
        gateway, "gpu02"
    )
    findings = next(group for key, group in gateway.groups().items() if ("node", "gpu04") in key)[
        "autopilot_finding"
    ]["metrics"]
    assert sorted(
        one["labels"]["subject"] for one in findings if one["labels"]["check"] == "looped"
    ) == ["GPU 2", "GPU 5"]
    any_place.inventory(["gpu01", "gpu02", "gpu04"])
    assert "forgot at" in any_place.run(
        url=gateway.url, playbook="autopilot.gpu.forget"
    ) and nodes_of(gateway) == ["gpu01", "gpu02", "gpu04"]


@needs_pushgateway
def test_hosts_that_no_check_reached_are_said_and_other_playbooks_are_nobodys_business(
    place, gateway
):
    hosts = {
        "gpu01": {"ansible_connection": "local"},
        "away": {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": free_port(),
        },
    }
    (place.directory / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    place.play({"ansible.builtin.ping": {}})
    assert "autopilot" not in place.run(url=gateway.url, code=4) and gateway.groups() == {}
    place.play(
        {"recorded": {}, "when": "inventory_hostname == 'gpu01'"},
        {"autopilot.gpu.gpu_count": {"host_root": "/nowhere"}, "ignore_errors": True},
    )
    place.run(url=gateway.url, code=4)
    assert nodes_of(gateway) == ["away", "gpu01"]
    assert (
        value(gateway, "autopilot_node_status", node="away"),
        value(gateway, "autopilot_node_fit", node="away"),
    ) == (3, None)


@needs_pushgateway
def test_a_run_over_a_part_replaces_its_nodes_and_no_others_also_after_a_restart(place, gateway):
    place.play(
        {"recorded": {"status": "{{ again | default('fail') }}"}},
        {"recorded": {"check": "gpu_power"}, "when": "again is not defined"},
    )
    place.run(url=gateway.url)
    before = gateway.groups()
    gateway.stop()
    gateway.start()
    assert gateway.groups() == before
    time.sleep(1)
    place.run("--limit", "gpu02", "-e", "again=pass", url=gateway.url)
    after = gateway.groups()
    changed = {dict(key).get("node") for key in after if after[key] != before.get(key)}
    assert changed == {"gpu02", None} and after.keys() == before.keys()
    # What was bad and is good is pushed as good, and a check that did not run again keeps what is
    # known.
    assert (
        checks_of(gateway, "gpu02") == {"remapped_rows": 0, "gpu_power": 0}
        and checks_of(gateway, "gpu01")["remapped_rows"] == 4
    )
    assert (
        value(gateway, "autopilot_node_fit", node="gpu02"),
        value(gateway, "autopilot_node_fit", node="gpu01"),
    ) == (1, 0)


@needs_pushgateway
def test_two_runs_at_once_lose_nothing(place, gateway):
    place.play({"recorded": {"check": "{{ own }}"}})
    runs = [
        place.start("-e", f"own={check}", url=gateway.url)
        for check in ("gpu_power", "remapped_rows", "gpu_count")
    ]
    for run in runs:
        printed = run.communicate(timeout=60)[0]
        assert run.returncode == 0 and "autopilot: pushed 3 nodes" in printed, printed
    for node in ("gpu01", "gpu02", "gpu03"):
        assert checks_of(gateway, node) == {"gpu_power": 0, "remapped_rows": 0, "gpu_count": 0}
    assert place.spooled == []


@needs_pushgateway
def test_check_mode_pushes_nothing_and_without_a_url_nothing_happens(place, gateway):
    place.play({"recorded": {}})
    assert "autopilot" not in place.run("--check", url=gateway.url)
    assert "autopilot" not in place.run()
    assert (
        gateway.groups() == {} and not (place.controller.home / ".ansible/autopilot_gpu").exists()
    )


@needs_pushgateway
def test_options_come_from_configuration_play_and_inventory(place, gateway):
    place.play({"recorded": {}}, vars={"pushgateway_labels": {"cluster": "{{ name_of_cluster }}"}})
    place.inventory(["gpu01"], pushgateway_job="{{ 'nightly' }}", name_of_cluster="a")
    (place.directory / "ansible.cfg").write_text(
        f"[callback_autopilot_gpu_pushgateway]\nurl = {gateway.url}\njob = other\n"
    )
    place.run()
    assert [dict(key) for key in gateway.groups() if "node" in dict(key)] == [
        {"job": "nightly", "cluster": "a", "node": "gpu01", "phase": "preflight"}
    ]


def test_what_is_wrong_is_said_once_and_the_playbook_goes_on(place):
    place.play({"recorded": {}})
    for given, words in (
        ({"pushgateway_url": f"ops:{SECRET}@push"}, "url: '***@push' is invalid"),
        ({"pushgateway_url": "http://push", "pushgateway_timeout": "soon"}, "soon"),
        (
            {"pushgateway_url": "http://push", "pushgateway_token": "{{ no_such_thing }}"},
            "pushgateway_token: the variable cannot be evaluated",
        ),
    ):
        printed = place.run("-e", json.dumps(given))
        assert printed.count("nothing will be pushed") == 1 and words in re.sub(
            r"\s+", " ", printed
        ), printed
        assert SECRET not in printed and "failed=0" in printed


def test_a_missing_library_is_named(place):
    (place.directory / "shadow").mkdir()
    (place.directory / "shadow/prometheus_client.py").write_text("raise ImportError('not here')\n")
    place.play({"recorded": {}})
    printed = place.run(url="http://127.0.0.1:9", PYTHONPATH=str(place.directory / "shadow"))
    assert printed.count("pip install prometheus_client") == 1 and "failed=0" in printed


# ---- runs that do not end ----


@needs_pushgateway
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 99), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_run_that_is_broken_off_pushes_what_it_knew(any_place, gateway, number, code):
    printed, status = any_place.break_off(number, gateway.url)
    assert status == code, printed
    assert printed.count("marked incomplete") == 1, printed
    assert value(gateway, "autopilot_run_complete") == 0
    assert checks_of(gateway, "gpu03") == {"remapped_rows": 4}


@needs_pushgateway
def test_a_run_that_ansible_gives_up_goes_by_the_policy_of_the_verdict_that_did_not_come(
    place, gateway
):
    judged = {
        "autopilot.gpu.verdict": {
            "phase": "postflight",
            "policy": {"warn_only": ["{{ lenient }}"]},
        },
        "when": False,
    }
    plays = [
        {
            "hosts": "all",
            "gather_facts": False,
            "vars": {"lenient": "remapped_rows_bad"},
            "tasks": [{"recorded": {"status": "fail"}}, judged],
        },
        {"hosts": "{{ no_such_thing }}", "tasks": []},
    ]
    (place.directory / "play.yml").write_text(json.dumps(plays))
    done = place.controller.run(
        "ansible-playbook",
        "-i",
        "hosts.json",
        "play.yml",
        cwd=place.directory,
        ANSIBLE_CALLBACKS_ENABLED="autopilot.gpu.pushgateway",
        AUTOPILOT_PUSHGATEWAY_URL=gateway.url,
    )
    assert (
        done.returncode not in (0, 2)
        and "RECAP" not in done.stdout
        and "marked incomplete" in done.stdout
    ), done.stdout
    assert value(gateway, "autopilot_run_complete", phase="postflight") == 0
    assert value(gateway, "autopilot_node_status", phase="postflight", node="gpu01") == 2


def test_a_run_that_is_broken_off_is_not_held_up_by_a_gateway_that_never_answers(place):
    with gateways.Raw(gateways.silent) as server:
        _printed, status = place.break_off(signal.SIGTERM, server.url)
        assert status == -signal.SIGTERM
    assert len(place.spooled) == 1


# ---- delivery ----


def run_of(finished, *nodes, check="remapped_rows", status="pass"):
    """A run as it is pushed."""
    samples = [
        metrics.Sample("autopilot_node_status", {}, 0.0 if status == "pass" else 4.0),
        metrics.Sample("autopilot_last_run_timestamp_seconds", {}, finished),
        metrics.Sample(
            "autopilot_check_status", {"check": check}, 0.0 if status == "pass" else 4.0
        ),
        metrics.Sample("autopilot_check_timestamp_seconds", {"check": check}, finished),
    ]
    groups = [metrics.Group({"node": node, "phase": "preflight"}, samples) for node in nodes]
    run = metrics.Group(
        {"phase": "preflight"}, [metrics.Sample("autopilot_run_timestamp_seconds", {}, finished)]
    )
    return metrics.Export(f"run{finished:.0f}", "preflight", finished, True, [*groups, run])


def settings_for(url, tmp_path, **options):
    return settings_of({"url": url, "spool_dir": str(tmp_path / "spool"), **options}, "/nowhere")


def push(settings, *exports):
    new, wrong = write_to_spool(settings, exports)
    report = _push.push(settings, Gateway(settings), WorkerThreads(), new, settings.timeout)
    return report._replace(wrong=wrong + report.wrong)


BAD = {
    "silent": (lambda port: gateways.Raw(gateways.silent, port), "the push took longer than 2 s"),
    "dripping": (lambda port: gateways.Raw(gateways.dripping, port), "took"),
    "dripping headers": (
        lambda port: gateways.Raw(gateways.dripping_headers, port),
        "the push took longer than 2 s",
    ),
    "hanging up": (
        lambda port: gateways.Raw(gateways.hanging_up, port),
        "Connection aborted|closed connection|reset",
    ),
    "nonsense": (
        lambda port: gateways.Raw(gateways.talking_nonsense, port),
        "SSH-2.0|BadStatusLine|Connection broken|Connection aborted",
    ),
    "refused": (
        lambda port: gateways.Answering(port, GET=(200, {}, "<html>hello</html>")),
        "not that of a Pushgateway",
    ),
    "401": (
        lambda port: gateways.Answering(port, GET=(401, {}, "Unauthorized")),
        r"the server answered 401 \(check user, password or token\): Unauthorized",
    ),
    "400": (
        lambda port: gateways.Answering(
            port, PUT=(400, {}, "pushed metrics are invalid or inconsistent")
        ),
        "the server answered 400: pushed metrics are invalid",
    ),
    "413": (
        lambda port: gateways.Answering(port, PUT=(413, {}, "too large")),
        r"the server answered 413 \(.*\): too large",
    ),
    "500": (
        lambda port: gateways.Answering(port, PUT=(500, {}, "on fire")),
        "the server answered 500: on fire",
    ),
    "302": (
        lambda port: gateways.Answering(
            port, GET=(302, {"Location": "http://elsewhere.example/"}, "")
        ),
        "a redirect to http://elsewhere.example/",
    ),
}


@needs_pushgateway
@pytest.mark.parametrize("how", sorted(BAD))
def test_what_a_bad_gateway_does_not_take_is_kept_and_arrives_later(tmp_path, how):
    make, words = BAD[how]
    port = free_port()
    settings = settings_for(f"http://127.0.0.1:{port}", tmp_path, timeout=2, token=SECRET)
    with make(port):
        report = push(settings, run_of(100.0, "gpu01", "gpu02"))
    assert report.pushed == [] and report.kept and report.wrong == []
    assert sorted(name for names in report.left.values() for name in names) == [
        "",
        "gpu01",
        "gpu02",
    ]
    assert all(re.search(words, why) for why in report.left) and SECRET not in str(report)
    (kept,) = (tmp_path / "spool").glob("*/*.json")
    assert SECRET not in kept.read_text()
    with Pushgateway(tmp_path / "gateway", port, FAST) as gateway:
        report = push(settings, run_of(200.0, "gpu02", check="gpu_power"))
        assert (report.pushed, report.earlier, report.left) == (["gpu01", "gpu02"], 1, {})
        assert checks_of(gateway, "gpu02") == {"remapped_rows": 0, "gpu_power": 0}
        assert list((tmp_path / "spool").glob("*/*.json")) == []


def test_a_handshake_that_has_no_end_has_one(tmp_path):
    with gateways.Raw(gateways.dripping_handshake) as server:
        report = push(
            settings_for(server.url.replace("http:", "https:"), tmp_path, timeout=2),
            run_of(100.0, "gpu01"),
        )
    assert report.kept and list(report.left) == ["the push took longer than 2 s"]


def test_a_group_that_is_refused_holds_up_no_other_and_is_tried_again(tmp_path):
    refused = []

    def answer(headers, path):
        return (400, {}, "inconsistent") if "bad" in path and not refused else (200, {}, "")

    with gateways.Answering(PUT=answer) as server:
        settings = settings_for(server.url, tmp_path)
        bad, good = [f"bad{number}" for number in range(9)], [f"gpu{number}" for number in range(9)]
        report = push(settings, run_of(100.0, *bad, *good))
        assert (report.pushed, report.left, report.kept) == (
            good,
            {"the server answered 400: inconsistent": bad},
            True,
        )
        refused.append("no more")
        assert push(settings, run_of(200.0, "late")).pushed == [*bad, "late"]


def test_credentials_go_to_the_gateway_and_nowhere_else(tmp_path):
    with gateways.Answering() as other:
        answer = (307, {"Location": other.url + "/api/v1/metrics"}, "")
        with gateways.Answering(GET=answer) as server:
            report = push(settings_for(server.url, tmp_path, token=SECRET), run_of(100.0, "gpu01"))
            assert [
                headers["Authorization"] for _method, _path, headers, _body in server.asked
            ] == [f"Bearer {SECRET}"]
    assert other.asked == [] and "which is not followed" in next(iter(report.left))


def test_a_path_before_the_gateway_and_odd_names_are_kept(tmp_path):
    with gateways.Answering() as server:
        push(
            settings_for(server.url + "/push", tmp_path, labels={"site": "north/2"}),
            run_of(100.0, "gpu 01/a"),
        )
        paths = sorted(path for method, path, _headers, _body in server.asked if method == "PUT")
    assert (
        paths[0]
        == "/push/metrics/job/autopilot_gpu/node@base64/Z3B1IDAxL2E=/phase/preflight/site@base64/bm9ydGgvMg=="
    )
    assert [path for method, path, *_rest in server.asked if method == "GET"] == [
        "/push/api/v1/metrics"
    ]


@needs_pushgateway
def test_tls_with_a_certificate_of_our_own_and_a_password(tmp_path):
    authority, stranger = (
        gateways.Authority(tmp_path / "ca"),
        gateways.Authority(tmp_path / "stranger"),
    )
    certificate, key = authority.issue("client")
    (tmp_path / "password").write_text("pass word\n")
    good = {
        "ca_file": str(authority.file),
        "client_cert": str(certificate),
        "client_key": str(key),
        "username": "ops",
        "password_file": str(tmp_path / "password"),
    }
    with gateways.SecurePushgateway(tmp_path / "gateway", authority) as gateway:
        for wrong, words in (
            ({"ca_file": str(stranger.file)}, "TLS: .*certificate verify failed"),
            ({"client_cert": None, "client_key": None}, "TLS|certificate required"),
            ({"password_file": None, "password": SECRET}, "the server answered 401"),
        ):
            report = push(
                settings_for(gateway.url, tmp_path, timeout=3, **{**good, **wrong}),
                run_of(100.0, "gpu01"),
            )
            assert report.pushed == [] and re.search(words, next(iter(report.left))), report
        assert push(settings_for(gateway.url, tmp_path, **good), run_of(200.0, "gpu02")).pushed == [
            "gpu01",
            "gpu02",
        ]
    assert SECRET not in "".join(path.read_text() for path in (tmp_path / "spool").glob("*/*"))


def test_a_certificate_for_another_host_is_not_accepted(tmp_path):
    authority = gateways.Authority(tmp_path / "ca")
    with gateways.Answering(context=authority.context(address="127.0.0.2")) as server:
        report = push(
            settings_for(server.url, tmp_path, ca_file=str(authority.file)), run_of(100.0, "gpu01")
        )
    assert re.search("TLS: .*(mismatch|match)", next(iter(report.left)))
    with pytest.raises(ValueError, match="^client_cert: "):
        Gateway(
            settings_for(
                server.url,
                tmp_path,
                client_cert=str(authority.file),
                client_key=str(authority.file),
            )
        )


def test_only_so_much_is_kept_and_what_is_dropped_is_said(tmp_path):
    settings = settings_for(f"http://127.0.0.1:{free_port()}", tmp_path, spool_limit=0.01)
    wrong = [
        words
        for number in range(8)
        for words in push(
            settings, run_of(100.0 + number, *(f"gpu{number}{place}" for place in range(9)))
        ).wrong
    ]
    assert (
        wrong[0] == "dropped, since the spool is larger than 0.01 MiB: run run100 (9 nodes)"
        and 2 < len(wrong) < 8
    )
    assert sum(path.stat().st_size for path in (tmp_path / "spool").glob("*/*.json")) <= 10486
    nothing = push(
        settings_for(settings.url, tmp_path / "none", spool_limit=0), run_of(1.0, "gpu01")
    )
    assert not nothing.kept and not (tmp_path / "none").exists()


def test_a_node_that_waits_several_times_takes_the_room_of_one(tmp_path):
    settings = settings_for(f"http://127.0.0.1:{free_port()}", tmp_path)
    for number in range(6):
        assert push(settings, run_of(100.0 + number, "gpu01")).kept
    (kept,) = (tmp_path / "spool").glob("*/*.json")
    assert metrics.from_json(kept.read_text()).finished == 105.0


@needs_pushgateway
def test_a_spool_that_cannot_be_written_is_said_and_the_push_goes_on(tmp_path, gateway):
    (tmp_path / "file").write_text("")
    settings = settings_of({"url": gateway.url, "spool_dir": str(tmp_path / "file")}, "/nowhere")
    report = push(settings, run_of(100.0, "gpu01"))
    assert (
        report.pushed == ["gpu01"]
        and len(report.wrong) == 1
        and "cannot be written" in report.wrong[0]
    )


@needs_pushgateway
def test_a_controller_whose_clock_is_ahead_has_not_the_last_word(tmp_path, gateway):
    settings, now = settings_for(gateway.url, tmp_path), time.time()
    push(settings, run_of(now + 365 * 24 * 3600, "gpu01"))
    push(settings, run_of(now + 5, "gpu01", status="fail"))
    assert checks_of(gateway, "gpu01") == {"remapped_rows": 4}
    assert value(
        gateway, "autopilot_check_timestamp_seconds", node="gpu01", check="remapped_rows"
    ) == pytest.approx(now + 5, abs=0.01)
    push(settings, run_of(now - 5, "gpu01"))
    assert checks_of(gateway, "gpu01") == {"remapped_rows": 4}, "a push that comes late"
    assert value(gateway, "autopilot_run_timestamp_seconds") == pytest.approx(now + 5, abs=0.01)


def test_a_run_that_is_interrupted_while_it_is_written_down_is_written_down(tmp_path, monkeypatch):
    callback = pushgateway.CallbackModule()
    callback._settings = settings_for(f"http://127.0.0.1:{free_port()}", tmp_path, timeout=1)
    callback._gateway, callback._workers = Gateway(callback._settings), WorkerThreads()
    callback._found = {
        "gpu01": [
            json.dumps(
                {"task": "-", "health": [{"check": "gpu_count", "status": "fail"}], "node": {}}
            )
        ]
    }

    def interrupt(_handle):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        callback.v2_playbook_on_stats(None)
    assert list(tmp_path.glob("spool/*/*.json")) == []
    callback._at_exit()
    (kept,) = tmp_path.glob("spool/*/*.json")
    assert {"node": "gpu01", "phase": "preflight"} in [
        group.labels for group in metrics.from_json(kept.read_text()).groups
    ]


@needs_pushgateway
def test_a_gateway_that_compares_everything_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(_delivery, "_SLOW", 0.0)
    for arguments, slow in (([], True), (FAST, False)):
        with Pushgateway(tmp_path / f"gateway{slow}", arguments=arguments) as gateway:
            assert (
                push(
                    settings_for(gateway.url, tmp_path),
                    run_of(100.0, *(f"gpu{number:03}" for number in range(201))),
                ).slow
                == slow
            )


@needs_pushgateway
def test_down_for_five_runs_then_up_and_all_five_nodes_arrive(place, tmp_path):
    place.inventory([f"gpu0{number}" for number in range(1, 7)])
    place.play(
        {"recorded": {"status": "{{ 'fail' if inventory_hostname == 'gpu03' else 'pass' }}"}}
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    for number in range(1, 6):
        printed = re.sub(r"\s+", " ", place.run("--limit", f"gpu0{number}", url=url))
        assert (
            f"(gpu{'01' if number == 1 else f'[01-0{number}]'})" in printed
            and "Connection refused" in printed
            and "are kept in" in printed
        ), printed
    assert len(place.spooled) == 5
    with Pushgateway(tmp_path / "gateway", port, FAST) as gateway:
        printed = place.run("--limit", "gpu06", url=url)
        assert (
            f"autopilot: pushed 6 nodes to {url} (" in printed
            and ", including 5 earlier runs" in printed
            and "WARNING" not in printed
        )
        assert nodes_of(gateway) == [f"gpu0{number}" for number in range(1, 7)]
        assert [value(gateway, "autopilot_node_fit", node=node) for node in nodes_of(gateway)] == [
            1,
            1,
            0,
            1,
            1,
            1,
        ]
        ends = [
            value(gateway, "autopilot_last_run_timestamp_seconds", node=node)
            for node in nodes_of(gateway)
        ]
        assert (
            ends == sorted(ends) and value(gateway, "autopilot_run_timestamp_seconds") == ends[-1]
        )
    assert place.spooled == []


# ---- secrets ----


def test_secrets_are_seen_by_the_gateway_alone(place):
    """At -vvvv, with every way to give one, where it goes well and where it does not."""
    (place.directory / "token").write_text(SECRET)
    place.play({"recorded": {}})
    refused = (401, {}, "no")
    for answer, given in (
        (refused, {"AUTOPILOT_PUSHGATEWAY_TOKEN": SECRET}),
        (gateways.EMPTY, {"AUTOPILOT_PUSHGATEWAY_TOKEN_FILE": "token"}),
        (
            gateways.EMPTY,
            {"AUTOPILOT_PUSHGATEWAY_USERNAME": "ops", "AUTOPILOT_PUSHGATEWAY_PASSWORD": SECRET},
        ),
        (refused, {}),
    ):
        with gateways.Answering(GET=answer) as server:
            url = server.url if given else server.url.replace("//", f"//ops:{SECRET}@")
            printed = place.run("-vvvv", url=url, **given)
            assert server.asked[0][2]["Authorization"].startswith(("Basic", "Bearer"))
        assert SECRET not in printed and "b3Bz" not in printed, [
            line for line in printed.splitlines() if SECRET in line
        ]
    kept = list(place.controller.home.rglob("*.json"))
    assert kept and all(SECRET not in path.read_text() for path in kept)


@needs_pushgateway
def test_under_ansible_runner(place, gateway):
    """The engine of AWX: its own screen, its own configuration; nothing secret in what it keeps."""
    data = place.directory / "runner"
    (data / "project").mkdir(parents=True)
    (data / "inventory").mkdir()
    (data / "env").mkdir()
    for name in ("action_plugins", "library"):
        (place.directory / name).rename(data / "project" / name)
    (place.directory / "hosts.json").rename(data / "inventory/hosts.json")
    (data / "token").write_text(SECRET)
    (data / "project/ansible.cfg").write_text(
        "[defaults]\ncallbacks_enabled = "
        "autopilot.gpu.pushgateway\n[callback_autopilot_gpu_pushgateway]\nurl = "
        f"{gateway.url}\ntoken_file = {data}/token\n"
    )
    (data / "project/play.yml").write_text(
        json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"recorded": {}}]}])
    )
    done = place.controller.run("ansible-runner", "run", data, "-p", "play.yml", "-vvvv", cwd=data)
    assert done.returncode == 0 and "autopilot: pushed 3 nodes" in done.stdout, done.stdout
    assert nodes_of(gateway) == ["gpu01", "gpu02", "gpu03"]
    artifacts = [path for path in (data / "artifacts").rglob("*") if path.is_file()]
    assert (
        artifacts
        and [path for path in artifacts if SECRET in path.read_text(errors="replace")] == []
    )


# ---- forgetting ----


@needs_pushgateway
def test_nodes_that_left_the_inventory_are_forgotten(place, gateway):
    place.play({"recorded": {}})
    place.run(url=gateway.url)
    place.run(url=gateway.url, AUTOPILOT_PUSHGATEWAY_LABELS="cluster=b")
    before = gateway.groups()
    place.inventory(["gpu01", "gpu03", "gpu04"])
    forget = {"url": gateway.url, "playbook": "autopilot.gpu.forget"}
    assert (
        f"would forget at {gateway.url}: gpu02" in place.run("--check", **forget)
        and gateway.groups() == before
    )
    # Also when only some of the inventory is asked for.
    assert f"autopilot: forgot at {gateway.url}: gpu02" in place.run(
        "--limit", "localhost,gpu01", **forget
    )
    gone = [dict(key) for key in before.keys() - gateway.groups().keys()]
    assert gone == [{"job": "autopilot_gpu", "node": "gpu02", "phase": "preflight"}]
    assert "changed=0" in place.run(**forget)
    place.run("-e", '{"forget_nodes": ["gpu01", "gpu09"]}', **forget)
    assert [
        dict(key)["node"]
        for key in gateway.groups()
        if "node" in dict(key) and "cluster" not in dict(key)
    ] == ["gpu03"]
    for nodes, words in (
        ((), "the inventory has no hosts"),
        (("other",), "seems to be the wrong one"),
    ):
        place.inventory(nodes)
        assert words in re.sub(r"\s+", " ", place.run(code=2, **forget))
    # Of another cluster that pushes with the same labels there are more nodes than of this one.
    place.inventory(["gpu11", "gpu12", "gpu13"])
    place.run(url=gateway.url)
    place.inventory(["gpu03"])
    before = gateway.groups()
    assert (
        "only 1 of the 4 nodes that were pushed are in the inventory"
        in re.sub(r"\s+", " ", place.run(code=2, **forget))
        and gateway.groups() == before
    )


@needs_pushgateway
def test_what_is_forgotten_does_not_come_back_with_the_next_run(place, tmp_path):
    place.play({"recorded": {}})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place.run(url=url)
    with Pushgateway(tmp_path / "gateway", port, FAST) as gateway:
        place.run("-e", "forget_nodes=gpu02", url=url, playbook="autopilot.gpu.forget")
        place.run("--limit", "gpu01", url=url)
        assert nodes_of(gateway) == ["gpu01", "gpu03"]
