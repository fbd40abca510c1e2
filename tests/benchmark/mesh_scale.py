# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a whole mesh takes, launch and collection included: real Ansible over a connection whose
hosts do not exist (`connections/stand_in.py`) and take their time without CPU.

Compared in one run with what Ansible itself needs for three empty tasks (``ping``) on the same
hosts, plus the seconds of the plan. The aim is at most 1.3.

    .venv/bin/python tests/benchmark/mesh_scale.py [--hosts 64 256] [--forks 10 50]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
#: Exit status of ansible-playbook when some hosts cannot be reached.
UNREACHABLE = 4


def write_play(directory: Path, name: str, play: dict) -> Path:
    path = directory / f"{name}.yml"
    path.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, **play}]))
    return path


def write_inventory(directory: Path, hosts: int, unreachable: float) -> Path:
    """Every tenth host, for a share of 0.1, cannot be reached; racks of 32 hosts."""
    every = round(1 / unreachable) if unreachable else 0
    names = {
        ("down" if every and number % every == every - 1 else "gpu") + f"{number:04}": {
            "rack": f"r{number // 32}"
        }
        for number in range(hosts)
    }
    shared = {"ansible_connection": "stand_in", "ansible_python_interpreter": "/usr/bin/python3"}
    path = directory / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"vars": shared, "hosts": names}}))
    return path


def environment(directory: Path, given: argparse.Namespace) -> dict[str, str]:
    found = dict(
        os.environ,
        ANSIBLE_CONFIG=str(REPOSITORY / "tests/benchmark/ansible.cfg"),
        ANSIBLE_CONNECTION_PLUGINS=str(REPOSITORY / "tests/benchmark/connections"),
        # The readings leave the results, as in the playbooks of the collection.
        ANSIBLE_CALLBACKS_ENABLED="autopilot.gpu.summary",
        ANSIBLE_HOST_PATTERN_MISMATCH="error",
        STAND_IN_DIRECTORY=str(directory),
        STAND_IN_MODULE_SECONDS=str(given.module_seconds),
        STAND_IN_EXCHANGE_SECONDS=str(given.exchange_seconds),
        STAND_IN_UNREACHABLE_SECONDS=str(given.unreachable_seconds),
    )
    found.pop("PYTHONUNBUFFERED", None)
    return found


def cost(command: list[str], environ: dict[str, str]) -> tuple[float, float, float]:
    """When a command began, its wall seconds and its CPU seconds; raises when it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    wall, after = time.time() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, UNREACHABLE):
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return began, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(
    directory: Path, hosts: int, forks: int, given: argparse.Namespace
) -> dict[str, float]:
    """Seconds of both plays, and of the parts of the mesh."""
    inventory = write_inventory(directory, hosts, given.unreachable)
    empty = write_play(directory, "empty", {"tasks": [{"ansible.builtin.ping": {}}] * 3})
    variables = {"mesh_rounds": given.rounds, "mesh_seed": 7}
    # As in the preflight, whose verdict takes the readings.
    tasks = [
        {
            "ansible.builtin.import_role": {
                "name": "autopilot.gpu.mesh",
                "tasks_from": part,
                "rolespec_validate": False,
            }
        }
        for part in ("options", "planned")
    ]
    mesh = write_play(directory, "mesh", {"vars": variables, "tasks": tasks})
    command = [str(ANSIBLE_PLAYBOOK), "-i", str(inventory), "-f", str(forks)]
    environ = environment(directory, given)
    _began, base, base_cpu = cost([*command, str(empty)], environ)
    began, whole, cpu = cost([*command, str(mesh)], environ)
    told = [json.loads(path.read_text()) for path in directory.glob("gpu*.json")]
    start = told[0]["share"]["start"]
    windows = [window for one in told for window in one["share"]["windows"]]
    end = max(window["offset"] + window["seconds"] for window in windows)
    started = [one["started"] for one in told]
    collected = [one["collected"] for one in told if "collected" in one]
    return {
        "hosts": hosts,
        "forks": forks,
        "base": base,
        "plan": end,
        "whole": whole,
        "ratio": whole / (base + end),
        "facts": min(started) - began,
        "start": max(started) - min(started),
        "idle": start - max(started),
        "late": sum(1 for one in told if one["started"] > start),
        "collect": max(collected) - min(collected),
        "lost": len(told) - len(collected),
        "base_cpu": base_cpu,
        "cpu": cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--forks", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unreachable", type=float, default=0.1, help="share of the hosts")
    parser.add_argument("--unreachable-seconds", type=float, default=10.0)
    parser.add_argument("--module-seconds", type=float, default=0.6)
    parser.add_argument("--exchange-seconds", type=float, default=0.1)
    given = parser.parse_args()
    print(
        "| hosts | forks | three empty tasks, s | plan, s | whole mesh, s | ratio | facts | start | "
        "idle before the plan | late hosts | collect | CPU s, empty and mesh | load |\n"
        + "| --- " * 13
        + "|"
    )
    for hosts in given.hosts:
        for forks in given.forks:
            load = os.getloadavg()[0]
            with tempfile.TemporaryDirectory() as name:
                found = measured(Path(name), hosts, forks, given)
            print(
                "| {hosts} | {forks} | {base:.0f} | {plan:.0f} | {whole:.0f} | {ratio:.2f} | "
                "{facts:.0f} | {start:.0f} | {idle:.0f} | {late} | {collect:.0f} | "
                "{base_cpu:.0f}, {cpu:.0f} | ".format(**found)
                + f"{load:.1f} |",
                flush=True,
            )
            if found["lost"]:
                print(f"{found['lost']} hosts were not collected", file=sys.stderr)


if __name__ == "__main__":
    main()
