# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first hour of a new user: the artifact in a virtualenv with nothing but ansible-core, six
hosts of which two are dead and one is sick, a mistyped option, and an interrupted run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import node as sandbox
import pytest
from servers import eventually

from controller import ROOT, Controller
from interpreters import core

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

PREFLIGHT = ("ansible-playbook", "-i", "hosts.json", "autopilot.gpu.preflight")
HEALTHY = ("gpu01", "gpu02", "gpu03")
SICK = "gpu04"
DEAD = ("gpu05", "gpu06")
RED, GREEN, END = "\x1b[0;31m", "\x1b[0;32m", "\x1b[0m"


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A controller with ansible-core and the installed artifact, without a package beside them."""
    base = tmp_path_factory.mktemp("newcomer")
    made = Controller(core("newest", "core"), base / "collections", base / "home")
    for arguments in (
        ("build", "--output-path", base, ROOT),
        ("install", "--offline", "--no-deps", "-p", made.collections),
    ):
        artifact = base.glob("*.tar.gz") if arguments[0] == "install" else ()
        done = made.run("ansible-galaxy", "collection", *arguments, *artifact, cwd=base)
        assert done.returncode == 0, done.stdout
    return made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Inventory variables of the six hosts by name."""
    base = tmp_path_factory.mktemp("hosts")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = taken.getsockname()[1]
    found = {}
    for name, scenario in {"healthy": "healthy_8xh100", "sick": "gpu_lost"}.items():
        built = sandbox.build(scenario, base / name)
        found[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": built.python,
            "checks_host_root": built.root,
        }
    dead = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed}
    return {
        **dict.fromkeys(HEALTHY, found["healthy"]),
        SICK: found["sick"],
        **dict.fromkeys(DEAD, dead),
    }


def write_hosts(directory, hosts):
    common = {"expected_gpus": 8, "checks_list": ["gpu_count", "remapped_rows"]}
    (directory / "hosts.json").write_text(
        json.dumps({"all": {"hosts": hosts, "vars": common}}), encoding="utf-8"
    )


def document_in(directory):
    [path] = (directory / "reports").glob("*/run.json")
    return json.loads(path.read_text(encoding="utf-8"))


def fitness(document):
    return {node["name"]: node["fit"] for node in document["nodes"]}


def test_the_sick_host_is_red_and_the_dead_ones_are_undecided(newcomer, hosts, tmp_path):
    write_hosts(tmp_path, hosts)
    colours = {"ANSIBLE_NOCOLOR": "false", "ANSIBLE_FORCE_COLOR": "true"}
    done = newcomer.run(*PREFLIGHT, cwd=tmp_path, **colours)
    assert done.returncode == 2, done.stdout
    assert fitness(document_in(tmp_path)) == {
        **dict.fromkeys(HEALTHY, "fit"),
        SICK: "unfit",
        **dict.fromkeys(DEAD, "could_not_tell"),
    }
    recap = done.stdout[done.stdout.rindex("PLAY RECAP") :]
    for name in HEALTHY:
        assert re.search(rf"^{re.escape(GREEN + name + END)} .*failed=0", recap, re.M), recap
    sick = re.search(rf"^{re.escape(RED + SICK + END)} .*$", recap, re.M)
    assert sick and f"{RED}failed=1 " in sick.group(), recap
    # The default policy tolerates no undecided node.
    for name in DEAD:
        assert re.search(rf"{name}.*failed=1 .*ignored=1", recap), recap
    assert "6 nodes: 1 unfit, 2 undecided, 3 fit" in recap
    assert re.search(rf"{re.escape(RED)}  {SICK} +FAIL ", recap), recap
    assert re.search(r"gpu\[?05.* UNKNOWN +unreachable", recap), recap


def test_a_mistyped_option_is_answered_with_the_right_one_before_a_host_is_contacted(
    newcomer, hosts, tmp_path
):
    write_hosts(tmp_path, hosts)
    done = newcomer.run(*PREFLIGHT, "-e", "check_list=gpu_cuont", cwd=tmp_path)
    assert done.returncode == 2
    assert "unsupported variable 'check_list' (did you mean 'checks_list'?)" in done.stdout
    assert "no host was contacted" in done.stdout
    assert "fatal: " not in done.stdout and "UNREACHABLE" not in done.stdout
    assert not (tmp_path / "reports").exists()


def test_an_interrupted_run_shows_an_incomplete_summary_and_writes_a_document(
    newcomer, hosts, tmp_path
):
    waiting = tmp_path / "waiting"
    slow = tmp_path / "slow_python"
    slow.write_text(f"#!/bin/sh\ntouch {waiting}\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    write_hosts(
        tmp_path, {**hosts, "gpu03": dict(hosts["gpu03"], ansible_python_interpreter=str(slow))}
    )
    printed = tmp_path / "printed"

    def is_ready():
        checked = printed.read_text(encoding="utf-8").partition("Check the GPUs]")[2]
        return waiting.exists() and all(f"[{name}]" in checked for name in {*hosts} - {"gpu03"})

    with newcomer.started(
        *PREFLIGHT, "--forks", "10", cwd=tmp_path, PYTHONUNBUFFERED="1"
    ) as process:
        eventually(is_ready, 60)
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(60)
    text = printed.read_text(encoding="utf-8")
    assert status == 99, text
    assert "preflight INCOMPLETE: the play ended in task 'Check the GPUs'" in text
    document = document_in(tmp_path)
    assert document["verdict"]["incomplete"] is True and document["verdict"]["passed"] is False
    found = fitness(document)
    assert (found["gpu01"], found[SICK], found["gpu03"]) == ("fit", "unfit", "could_not_tell")
