# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible as a controller runs it: an ansible-core, one place to look for collections, and nothing
from this checkout's surroundings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"^(\S+) \| [A-Z!]+ => (?=\{)", re.M)


@dataclass(frozen=True)
class Controller:
    """``programs`` is the directory of ``ansible`` and its companions, ``collections`` the only
    place that is searched.
    """

    programs: Path
    collections: Path
    home: Path

    def environment(self, settings):
        """Environment variables of its programs, ``settings`` among them."""
        self.home.mkdir(exist_ok=True)
        return {
            # The link that `make setup` puts into its virtualenv must not help.
            "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "true",
            "HOME": str(self.home),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            **settings,
        }

    def run(self, program, *arguments, cwd, **settings):
        """The finished program; ``settings`` are environment variables. It has no configuration but
        what ``cwd`` holds.
        """
        return subprocess.run(
            [str(self.programs / program), *map(str, arguments)],
            cwd=cwd,
            env=self.environment(settings),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            universal_newlines=True,
        )

    @contextlib.contextmanager
    def started(self, program, *arguments, cwd, **settings):
        """The program while it runs, in a process group of its own; what it prints is in ``cwd /
        "printed"``.
        """
        with (cwd / "printed").open("w") as printed:
            process = subprocess.Popen(
                [str(self.programs / program), *map(str, arguments)],
                cwd=cwd,
                env=self.environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def ad_hoc(self, inventory, module, options, cwd, *arguments, **settings):
        """What the module returned, by host."""
        done = self.run(
            "ansible",
            "-i",
            inventory,
            "all",
            "-m",
            module,
            "-a",
            json.dumps(options),
            *arguments,
            cwd=cwd,
            **settings,
        )
        decode = json.JSONDecoder().raw_decode
        results = {
            found.group(1): decode(done.stdout, found.end())[0]
            for found in _RESULT.finditer(done.stdout)
        }
        assert results, done.stdout
        return results

    def preflight(self, playbook, inventory, cwd, *arguments, **settings):
        """The finished playbook and its run document (None when it wrote none)."""
        reports = cwd / "reports"
        done = self.run(
            "ansible-playbook",
            "-i",
            inventory,
            playbook,
            "-e",
            f"preflight_report_dir={reports}",
            *arguments,
            cwd=cwd,
            **settings,
        )
        documents = list(reports.glob("*/run.json"))
        assert len(documents) <= 1, documents
        return done, json.loads(documents[0].read_text(encoding="utf-8")) if documents else None


def linked(base, programs):
    """A controller that lives in ``base`` and finds this checkout as the collection."""
    (base / "collections/ansible_collections/autopilot").mkdir(parents=True)
    (base / "collections/ansible_collections/autopilot/gpu").symlink_to(ROOT)
    return Controller(programs, base / "collections", base / "home")


def with_kubernetes_core(controller):
    """The controller, which finds kubernetes.core too: `make setup` has put it into the virtualenv."""
    installed = Path(sysconfig.get_path("purelib")) / "ansible_collections/kubernetes"
    if not (installed / "core").is_dir():
        pytest.skip("needs the collection kubernetes.core, which `make setup` gets")
    (controller.collections / "ansible_collections").mkdir(parents=True, exist_ok=True)
    (controller.collections / "ansible_collections/kubernetes").symlink_to(installed)
    return controller


def cluster_playbook(playbook, directory, **defaults):
    """``run(*arguments, **variables)``: run a playbook that speaks to a cluster, on this machine;
    the finished process.
    """
    controller = with_kubernetes_core(linked(directory / "controller", Path(sys.executable).parent))

    def run(*arguments, **variables):
        return controller.run(
            "ansible-playbook",
            "-i",
            "localhost,",
            "-c",
            "local",
            playbook,
            "-e",
            json.dumps({**defaults, **variables}),
            *arguments,
            cwd=directory,
            # kubernetes.core keeps what APIs there are in a file of its temporary directory.
            TMPDIR=str(directory),
            ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        )

    return run


def suspend_by_verdict(controller, directory, kubeconfig, job, dry_run=False, timeout=60):
    """What the module job_action answers about a job of Kubernetes (kind, namespace, name), one of
    whose nodes has lost a GPU.
    """
    finding = {
        "code": "gpu_lost",
        "status": "fail",
        "action": "reboot_node",
        "subject": {"kind": "gpu", "index": 3},
        "message": "fell off the bus",
        "evidence": {},
        "check": "gpu_count",
    }
    report = {
        "run_id": "r",
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "findings": [],
        "nodes": [{"name": "gpu07", "findings": [finding]}],
    }
    (directory / "run.json").write_text(json.dumps(report), encoding="utf-8")
    inventory = directory / "here.json"
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": {"here": host}}}), encoding="utf-8")
    options = {
        "report": str(directory / "run.json"),
        "dry_run": dry_run,
        "timeout": timeout,
        "policy": {"on_fail": "suspend", "passes": 1},
        "kubeconfig": str(kubeconfig),
        "act": {"kubernetes": dict(zip(("kind", "namespace", "name"), job))},
    }
    return controller.ad_hoc(inventory, "autopilot.gpu.job_action", options, directory)["here"]


def statuses(document):
    """The status of each node in a run document."""
    return {node["name"]: node["status"] for node in document["nodes"]}


def write_inventory(path, nodes, **variables):
    """An inventory of stand-in nodes by host name, each with the interpreter that makes a process
    see that node.
    """
    hosts = {
        name: {"ansible_python_interpreter": node.python, "checks_host_root": node.root}
        for name, node in nodes.items()
    }
    path.write_text(
        json.dumps({"all": {"hosts": hosts, "vars": {"ansible_connection": "local", **variables}}}),
        encoding="utf-8",
    )
    return path
