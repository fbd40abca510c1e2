# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pass over the passive checks costs, as ratios taken in one run.

Twenty local hosts, each a sandbox node with eight healthy GPUs, the same forks for all cases:
`ansible.builtin.ping`, all passive checks in one `node_checks` task, and the same checks as one
task each. The cases take turns, so that a machine whose speed drifts slows all of them alike;
medians are compared.

    .venv/bin/python tests/benchmark/passive.py [--hosts 20] [--forks 5] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "sandbox"))

import node as sandbox  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.registry import chosen  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import PASSIVE  # noqa: E402

CHECKS = [check.name for check in chosen([])]
PASSIVE_CHECKS = [check.name for check in chosen([]) if check.intrusion == PASSIVE]
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"


def write_play(directory: Path, name: str, tasks: list[dict]) -> Path:
    path = directory / f"{name}.yml"
    path.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    return path


def write_inventory(directory: Path, hosts: int) -> Path:
    node = sandbox.build(
        REPOSITORY / "tests/sandbox/scenarios/healthy_8xh100.yml", directory / "node"
    )
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(node.python),
        "host_root": str(node.root),
    }
    path = directory / "hosts.yml"
    path.write_text(
        yaml.safe_dump(
            {"all": {"vars": shared, "hosts": {f"gpu{index:02}": {} for index in range(hosts)}}}
        )
    )
    return path


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command and all its children; raises when it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment() -> dict[str, str]:
    """Ansible's defaults and pipelining, whatever the user's or the repository's ansible.cfg says."""
    given = dict(os.environ, ANSIBLE_CONFIG=str(REPOSITORY / "tests/benchmark/ansible.cfg"))
    # With it Python reads a task from standard input byte by byte; over SSH no node gets it.
    given.pop("PYTHONUNBUFFERED", None)
    return given


def module_cost(inventory: Path, host_root: Path, module: str, arguments: dict) -> dict[str, float]:
    """Payload size, CPU seconds and peak memory of one module, run by hand from its kept AnsiballZ
    wrapper.
    """
    with tempfile.TemporaryDirectory() as keep:
        command = [
            str(ANSIBLE_PLAYBOOK.with_name("ansible")),
            "-i",
            str(inventory),
            "gpu00",
            "-m",
            module,
            "-a",
            json.dumps(arguments),
            "-vvv",
        ]
        kept = dict(
            environment(),
            ANSIBLE_KEEP_REMOTE_FILES="1",
            ANSIBLE_PIPELINING="false",
            ANSIBLE_REMOTE_TEMP=keep,
        )
        text = subprocess.run(command, check=True, capture_output=True, text=True, env=kept).stdout
        wrapper = re.search(r"PUT \S+ TO (\S+AnsiballZ_\w+\.py)", text)
        assert wrapper, text
        python = host_root.parent / "bin" / "python"
        measured = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(python), wrapper[1]],
            check=True,
            capture_output=True,
            text=True,
        )
        return dict(json.loads(measured.stdout), payload_kib=os.path.getsize(wrapper[1]) / 1024)


_MEASURE = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"cpu_seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--forks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        inventory = write_inventory(directory, options.hosts)
        walls, cpus = measure_plays(write_plays(directory), inventory, options)
        print_plays(walls, cpus, options)
        print_modules(inventory, directory / "node" / "root")


def write_plays(directory: Path) -> dict[str, Path]:
    """The playbook of each case."""
    root = {"host_root": "{{ host_root }}"}
    return {
        "ping": write_play(directory, "ping", [{"ansible.builtin.ping": {}}]),
        "passive, one task": write_play(
            directory,
            "passive-one",
            [{"autopilot.gpu.node_checks": dict(root, checks=PASSIVE_CHECKS)}],
        ),
        "passive, a task each": write_play(
            directory,
            "passive-each",
            [{f"autopilot.gpu.{check}": root} for check in PASSIVE_CHECKS],
        ),
    }


def measure_plays(
    plays: dict[str, Path], inventory: Path, options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and CPU seconds of each round, by case."""
    walls: dict[str, list[float]] = {case: [] for case in plays}
    cpus: dict[str, list[float]] = {case: [] for case in plays}
    command = [str(ANSIBLE_PLAYBOOK), "-i", str(inventory), "-f", str(options.forks)]
    for turn in range(options.rounds + 1):
        for case, play in plays.items():
            wall, cpu = timed([*command, str(play)])
            if turn:  # the first round warms caches
                walls[case].append(wall)
                cpus[case].append(cpu)
    return walls, cpus


def print_plays(
    walls: dict[str, list[float]], cpus: dict[str, list[float]], options: argparse.Namespace
) -> None:
    """Print the medians as a table, then how one task compares with a task for each check."""
    names = f"{len(PASSIVE_CHECKS)} passive checks of {len(CHECKS)} ({', '.join(PASSIVE_CHECKS)})"
    print(
        f"{names}, {options.hosts} local hosts x 8 GPUs, forks {options.forks}, medians of "
        f"{options.rounds} rounds\n"
    )
    print("| case | wall s | CPU s | wall / ping |\n| --- | --- | --- | --- |")
    median = {case: statistics.median(times) for case, times in walls.items()}
    for case, wall in median.items():
        print(
            f"| {case} | {wall:.2f} | {statistics.median(cpus[case]):.2f} | "
            f"{wall / median['ping']:.2f} |"
        )
    share = median["passive, one task"] / median["passive, a task each"]
    print(f"\npassive: one task / a task each = {share:.2f}\n")


def print_modules(inventory: Path, host_root: Path) -> None:
    """Print what one call of a module costs."""
    print("| module | payload KiB | CPU s | peak MiB |\n| --- | --- | --- | --- |")
    ours = {"checks": PASSIVE_CHECKS, "host_root": str(host_root)}
    for module, arguments in (
        ("ansible.builtin.ping", {"data": "pong"}),
        ("autopilot.gpu.node_checks", ours),
    ):
        cost = module_cost(inventory, host_root, module, arguments)
        print(
            f"| {module} | {cost['payload_kib']:.0f} | {cost['cpu_seconds']:.2f} | "
            f"{cost['peak_mib']:.0f} |"
        )


if __name__ == "__main__":
    main()
