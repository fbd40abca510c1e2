# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks that end early (Ctrl-C, errors), runs that fail without a host that failed, and plays
with `serial` or another strategy: what is on the screen, in the document and in the exit status.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import node as sandbox
import pytest
from servers import eventually

from controller import ROOT

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

CHECKS = """
    - autopilot.gpu.node_checks: {checks: [gpu_count], host_root: "{{ checks_host_root }}"}
      register: autopilot_checks
"""
AFTER = """
- hosts: localhost
  gather_facts: false
  tasks: [{ansible.builtin.debug: {msg: the next play}}]
"""
FAIL_HOSTS = f"- import_playbook: {ROOT}/playbooks/plays/fail_hosts.yml\n"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Interpreter and root of stand-in nodes by name. ``slow`` answers after a minute."""
    base = tmp_path_factory.mktemp("nodes")
    scenarios = {"well": "healthy_8xh100", "fine": "healthy_8xh100", "lost": "gpu_lost"}
    built = {name: sandbox.build(scenario, base / name) for name, scenario in scenarios.items()}
    places = {name: (node.python, node.root) for name, node in built.items()}
    slow = base / "slow_python"
    slow.write_text(f"#!/bin/sh\necho $$ >{base}/slow_pid\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    return {**places, "slow": (str(slow), str(base))}


@pytest.fixture
def play(controller, nodes, tmp_path):
    """``play(names, playbook, *arguments)``: a finished playbook, given as text or by its name."""

    def run(names, playbook, *arguments):
        if "\n" in playbook:
            (tmp_path / "own.yml").write_text(playbook, encoding="utf-8")
            playbook = "own.yml"
        inventory(tmp_path, nodes, names)
        return controller.run(
            "ansible-playbook",
            "-i",
            "hosts.json",
            playbook,
            *arguments,
            cwd=tmp_path,
            ANSIBLE_CALLBACKS_ENABLED="autopilot.gpu.summary",
        )

    return run


def inventory(directory, nodes, names):
    hosts = {
        name: {
            "ansible_connection": "local",
            "ansible_python_interpreter": nodes[name][0],
            "checks_host_root": nodes[name][1],
        }
        for name in names
    }
    common = {"checks_list": ["gpu_count", "remapped_rows"]}
    (directory / "hosts.json").write_text(
        json.dumps({"all": {"hosts": hosts, "vars": common}}), encoding="utf-8"
    )


@pytest.fixture(scope="module", autouse=True)
def collected(controller):
    """The callback ``collected`` in a collection, since only those keep the order of enabling."""
    place = controller.collections / "ansible_collections/tests/worlds/plugins/callback"
    place.mkdir(parents=True)
    (place / "collected.py").symlink_to(ROOT / "tests/worlds/callbacks/collected.py")


def pid_file(nodes):
    """Where the interpreter of ``slow`` leaves its process id as it starts."""
    return Path(nodes["slow"][1]) / "slow_pid"


def interrupted(controller, directory, playbook, is_ready, number=signal.SIGINT):
    """The exit status and output of a playbook whose main process gets Ctrl-C, or another signal,
    as soon as ``is_ready`` of what it has printed. While Ansible forks, Python can lose the signal.
    """
    printed = directory / "printed"
    command = ("-i", "hosts.json", playbook)
    callbacks = "autopilot.gpu.summary,tests.worlds.collected"
    settings = {"ANSIBLE_CALLBACKS_ENABLED": callbacks, "PYTHONUNBUFFERED": "1"}
    with controller.started("ansible-playbook", *command, cwd=directory, **settings) as process:
        eventually(lambda: is_ready(printed.read_text(encoding="utf-8")), 60)
        os.kill(process.pid, number)
        status = process.wait(60)
    return status, printed.read_text(encoding="utf-8")


def document_in(directory):
    [path] = (directory / "reports").glob("*/run.json")
    return json.loads(path.read_text(encoding="utf-8"))


def failed_hosts(text):
    """The number of failures of each host in the recap."""
    return dict(re.findall(r"^(\w+) +: ok=.* failed=(\d)", text, re.M))


@pytest.mark.parametrize(
    "number, expected",
    [pytest.param(signal.SIGINT, 99, marks=pytest.mark.smoke), (signal.SIGTERM, 143)],
)
def test_a_signal_during_the_checks_shows_what_is_known(
    controller, nodes, tmp_path, number, expected
):
    inventory(tmp_path, nodes, ["well", "lost", "slow"])
    pid_file(nodes).unlink(missing_ok=True)

    def is_ready(text):
        answered = all(f"Check the GPUs] [{name}]\n" in text for name in ("well", "lost"))
        return answered and pid_file(nodes).exists()

    status, text = interrupted(controller, tmp_path, "autopilot.gpu.preflight", is_ready, number)
    assert status == expected, text
    shown = text[text.index("autopilot preflight ") :]
    assert "3 nodes: 1 unfit, 1 undecided, 1 fit" in shown
    assert re.search(r"  slow +UNKNOWN +not_checked +.*before the node answered", shown)
    assert "preflight INCOMPLETE: the play ended in task 'Check the GPUs'; 1 of 3" in shown
    document = document_in(tmp_path)
    assert document["verdict"]["incomplete"] is True and document["verdict"]["passed"] is False
    assert {node["name"]: node["fit"] for node in document["nodes"]} == {
        "well": "fit",
        "lost": "unfit",
        "slow": "could_not_tell",
    }
    process = pid_file(nodes).read_text(encoding="utf-8").strip()
    eventually(lambda: not Path("/proc", process).exists(), 20)


def test_ctrl_c_before_any_node_answered_says_so_and_writes_nothing(controller, nodes, tmp_path):
    inventory(tmp_path, nodes, ["slow"])
    pid_file(nodes).unlink(missing_ok=True)
    status, text = interrupted(
        controller, tmp_path, "autopilot.gpu.preflight", lambda text: pid_file(nodes).exists()
    )
    assert status == 99
    assert text.rstrip().endswith(
        "autopilot preflight INCOMPLETE: the play ended in task 'Check the GPUs'; no node was checked"
    )
    assert not (tmp_path / "reports").exists()


def test_ctrl_c_after_the_verdict_keeps_the_verdict(controller, nodes, tmp_path):
    inventory(tmp_path, nodes, ["well"])
    own = f"- hosts: all\n  gather_facts: false\n  tasks:{CHECKS}    - autopilot.gpu.verdict:\n"
    own += "    - name: Mark\n      ansible.builtin.shell: touch marking; sleep 60\n"
    (tmp_path / "own.yml").write_text(own, encoding="utf-8")
    status, text = interrupted(
        controller, tmp_path, "own.yml", lambda text: (tmp_path / "marking").exists()
    )
    assert status == 99
    assert "preflight passed: 1 of 1 node is fit" in text
    assert text.rstrip().endswith(
        "autopilot: INCOMPLETE, the playbook ended in task 'Mark', after the verdict"
    )
    assert "incomplete" not in document_in(tmp_path)["verdict"]


def test_an_error_before_the_verdict_shows_what_is_known(play, tmp_path):
    done = play(
        ["well"],
        f"- hosts: all\n  gather_facts: false\n  tasks:{CHECKS}"
        "    - ansible.builtin.debug:\n      run_once: '{{ nosuchvariable }}'\n"
        "    - autopilot.gpu.verdict: {report_dir: reports, policy: {max_unfit: 1}}\n",
    )
    assert done.returncode not in (0, 2), done.stdout
    assert "preflight INCOMPLETE: the play ended in task " in done.stdout
    document = document_in(tmp_path)
    assert document["verdict"]["incomplete"] and document["policy"]["max_unfit"] == 1


def test_a_play_whose_hosts_all_fail_before_the_verdict_shows_what_is_known(play, tmp_path):
    done = play(
        ["well"],
        f"- hosts: all\n  gather_facts: false\n  tasks:{CHECKS}"
        "    - ansible.builtin.fail:\n    - autopilot.gpu.verdict:\n",
    )
    assert done.returncode == 2
    assert "preflight INCOMPLETE: the play ended in task 'ansible.builtin.fail'" in done.stdout
    assert document_in(tmp_path)["verdict"]["incomplete"]


@pytest.mark.parametrize(
    "names, policy, code, failed, next_play",
    [
        (["well", "lost"], {}, 2, {"well": "0", "lost": "1"}, False),
        (["well", "lost"], {"max_unfit": 1}, 0, {"well": "0", "lost": "0"}, True),
        (["well", "fine"], {"max_unfits": 1}, 2, {"well": "0", "fine": "0"}, False),
        (["well", "fine"], {}, 0, {"well": "0", "fine": "0"}, True),
    ],
    ids=["unfit", "tolerated", "of-the-run", "passed"],
)
def test_the_exit_status_is_the_runs_and_only_unfit_hosts_fail(
    play, names, policy, code, failed, next_play
):
    done = play(
        names,
        f"- hosts: all\n  gather_facts: false\n  tasks:{CHECKS}"
        f"    - autopilot.gpu.verdict: {json.dumps(dict(policy=policy, on_failure='hosts'))}\n"
        "      register: verdict\n"
        "    - ansible.builtin.set_fact:\n"
        "        autopilot_failing: '{{ verdict.failing }}'\n"
        "        autopilot_passed: '{{ verdict.passed }}'\n"
        "      delegate_to: localhost\n      delegate_facts: true\n      run_once: true\n"
        f"{FAIL_HOSTS}{AFTER}",
    )
    assert done.returncode == code, done.stdout
    assert ("the next play" in done.stdout) is next_play
    if code != 2 or "1" in failed.values():  # else the program ends before the recap
        found = failed_hosts(done.stdout)
        assert {name: found.get(name, "0") for name in names} == failed
    assert ("...ignoring" in done.stdout) is (policy == {"max_unfit": 1})
    assert "fatal: [well]" not in done.stdout
    assert done.stdout.count("autopilot preflight ") == 1


BATCHES = "- hosts: all\n  gather_facts: false\n  serial: 1\n  tasks:" + CHECKS


def test_each_batch_has_a_verdict_and_a_failed_one_ends_the_play(play, tmp_path):
    done = play(["well", "lost", "fine"], BATCHES + "    - autopilot.gpu.verdict:\n")
    assert done.returncode == 2
    assert done.stdout.count("autopilot preflight ") == 2, done.stdout
    assert "preflight passed: 1 of 1 node is fit" in done.stdout
    assert "(the verdict on the run" in done.stdout and "ok: [fine]" not in done.stdout
    assert len(list((tmp_path / "reports").iterdir())) == 2


def test_batches_cannot_fail_host_by_host(play):
    done = play(["well", "fine"], BATCHES + "    - autopilot.gpu.verdict: {on_failure: hosts}\n")
    assert done.returncode == 2
    assert "on_failure: 'hosts' is not supported in a play with serial" in done.stdout


def test_a_strategy_that_runs_host_by_host_is_refused_before_any_host_is_contacted(play):
    own = f"- hosts: all\n  strategy: free\n  gather_facts: false\n  tasks:{CHECKS}"
    done = play(["well", "fine"], own + "    - autopilot.gpu.verdict:\n")
    assert done.returncode == 2
    assert "TASK" not in done.stdout
    assert done.stdout.rstrip().endswith(
        "autopilot: strategy: free is not supported in a play with autopilot.gpu.verdict, which "
        "needs all hosts at once; use strategy: linear"
    )
