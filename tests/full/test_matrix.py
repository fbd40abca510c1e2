# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every ansible-core that is supported against every Python that it manages hosts with.

The virtualenvs are kept in .build/matrix. The interpreters are those on the path and those of
pyenv.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import node as sandbox
import pytest
from servers import eventually

from controller import ROOT, linked, statuses, write_inventory
from interpreters import CORES, core, interpreter, virtualenv

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry

#: Minor versions of Python 3 on the hosts: from the oldest that ansible-core 2.18 manages.
TARGETS = range(8, 15)

needs_compiler = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)


@pytest.fixture(scope="module", params=CORES)
def controller(request, tmp_path_factory):
    return linked(tmp_path_factory.mktemp("controller"), core(request.param, "core"))


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """Inventory variables that reach this host through an sshd of its own, on the loopback
    interface.
    """
    sshd = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's ssh and sshd: not found")
    base = tmp_path_factory.mktemp("sshd")
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", base / key], check=True
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": base / "host",
        "AuthorizedKeysFile": base / "user.pub",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "Subsystem": "sftp internal-sftp",
    }
    (base / "config").write_text(
        "".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8"
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-e", "-f", base / "config"], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if server.poll() is not None:
                pytest.skip(f"needs an sshd that starts: {server.stderr.read().decode().strip()}")
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_ssh_private_key_file": str(base / "user"),
            "ansible_ssh_args": "-o ControlMaster=no -o StrictHostKeyChecking=no -o "
            f"UserKnownHostsFile={base}/known -o LogLevel=ERROR",
        }
    finally:
        server.terminate()
        server.communicate(timeout=10)


def become():
    """Inventory variables that become root; skips where that needs a password."""
    if os.geteuid() == 0:
        return {"preflight_become": True, "ansible_become_method": "su"}
    if (
        shutil.which("sudo")
        and subprocess.run(
            ["sudo", "-n", "true"], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    ):
        return {"preflight_become": True}
    pytest.skip("needs root, or sudo without a password")


@functools.lru_cache(maxsize=None)
def oldest_host_python(controller):
    """The minor version of Python that this ansible-core asks of hosts."""
    done = controller.run(
        "python",
        "-c",
        "from ansible.module_utils.basic import _PY_MIN; print(_PY_MIN[1])",
        cwd=ROOT,
    )
    return int(done.stdout)


@pytest.fixture(scope="module")
def hosts(controller, tmp_path_factory):
    """What all checks return, in one play over a well and a sick node for each Python: results by
    host name, ``well_8`` for Python 3.8.
    """
    base = tmp_path_factory.mktemp("hosts")
    nodes = {}
    for minor in range(oldest_host_python(controller), TARGETS.stop):
        python = interpreter(minor)
        if python:
            python = str(virtualenv(f"host-3.{minor}", python, "nvidia-ml-py") / "python")
            nodes[f"well_{minor}"] = sandbox.build("healthy_8xh100", base / f"well_{minor}", python)
            nodes[f"sick_{minor}"] = sandbox.build("gpu_lost", base / f"sick_{minor}", python)
    inventory = write_inventory(base / "hosts.json", nodes)
    return controller.ad_hoc(
        inventory, "autopilot.gpu.node_checks", {"host_root": "{{ checks_host_root }}"}, base
    )


@needs_compiler
@pytest.mark.parametrize("minor", TARGETS, ids=lambda minor: f"python3.{minor}")
def test_hosts(controller, hosts, minor):
    if minor < oldest_host_python(controller):
        pytest.skip(
            f"this ansible-core manages hosts from Python 3.{oldest_host_python(controller)} on"
        )
    if interpreter(minor) is None:
        pytest.skip(f"needs Python 3.{minor}: neither on the path nor in pyenv")
    well, sick = hosts[f"well_{minor}"], hosts[f"sick_{minor}"]
    assert {check["check"]: check["status"] for check in well["health"]} == {
        **dict.fromkeys(registry.names_of_pass(), "pass"),
        **sandbox.NOTHING_HERE,
    }
    assert sick["status"] == "fail"


@needs_compiler
@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelining", "no-pipelining"])
@pytest.mark.parametrize("mode", ["plain", "become", "check"])
def test_preflight(controller, ssh, mode, pipelining, tmp_path):
    nodes = {
        name: sandbox.build(name, tmp_path / name)
        for name in ("healthy_8xh100", "gpu_lost", "no_gpu")
    }
    # What is not passive takes seconds; in check mode nothing is measured.
    checks = ["gpu_count", "remapped"] + (["pciebw"] if mode == "check" else [])
    variables = dict(
        ssh,
        ansible_pipelining=pipelining,
        checks_list=checks,
        **(become() if mode == "become" else {}),
    )
    inventory = write_inventory(tmp_path / "hosts.json", nodes, **variables)
    done, document = controller.preflight(
        "autopilot.gpu.preflight", inventory, tmp_path, *(["--check"] if mode == "check" else [])
    )
    assert done.returncode == (0 if mode == "check" else 2), done.stdout
    if mode == "check":
        assert document is None
        assert "FAIL" not in done.stdout
        assert "light, at most" in done.stdout and "nodes: pcie_bandwidth" in done.stdout
    else:
        assert statuses(document) == {
            "healthy_8xh100": "pass",
            "gpu_lost": "fail",
            "no_gpu": "skip",
        }
        assert done.stdout.rstrip().splitlines()[-1].startswith("run document: ")


@needs_compiler
def test_ctrl_c_ends_what_runs_on_the_node(controller, ssh, tmp_path):
    """With pipelining sshd sends no signal: the check notices that its caller has gone, and
    releases the lock.
    """
    node = sandbox.build({"gpus": 1, "dcgmi": {"sleep": 600}}, tmp_path / "node")
    variables = dict(
        ssh, ansible_pipelining=True, checks_list=["dcgm"], checks_options={"dcgm": {"level": 2}}
    )
    inventory = write_inventory(tmp_path / "hosts.json", {"gpu01": node}, **variables)
    with controller.started(
        "ansible-playbook", "-i", inventory, "autopilot.gpu.preflight", cwd=tmp_path
    ) as playbook:
        commands = eventually(
            lambda: [
                name for name in map(command_of, sandbox.processes_of(node)) if "dcgmi" in name
            ],
            60,
        )
        assert commands
        # As a terminal does: the whole process group.
        os.killpg(playbook.pid, signal.SIGINT)
        assert playbook.wait(60) == 99
    eventually(lambda: not sandbox.processes_of(node), 60)
    with open(Path(node.root) / "run/autopilot-gpu/checks.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_program_of_a_workload_gets_numbers(controller, tmp_path):
    role = ROOT / "roles/workload"
    chosen = {"workload_kind": "ray_lora", "workload_team": "blue", "workload_pods": "3"}
    found = controller.ad_hoc(
        "localhost,",
        "ansible.builtin.debug",
        {"msg": "{{ workload_arguments[workload_kind] | to_json }}"},
        tmp_path,
        *("-e", f"@{role}/defaults/main.yml"),
        *("-e", f"@{role}/vars/main.yml"),
        *("-e", json.dumps(chosen)),
    )
    assert json.loads(found["localhost"]["msg"]) == {
        "model": "meta-llama/Llama-3.1-8B",
        "processes": 3,
        "gpu": True,
        "steps": 100,
        "batch": 4,
        "tokens": 128,
    }


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""
