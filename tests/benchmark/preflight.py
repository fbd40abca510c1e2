# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight of nine passive checks costs, as a multiple of `ansible.builtin.ping` on the
same hosts in the same run.

Each local host is the same stand-in node with eight healthy GPUs. The two plays take turns, so
that a machine whose speed drifts slows both alike.

    .venv/bin/python tests/benchmark/preflight.py [--hosts 200] [--forks 50] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import passive

CHECKS = passive.PASSIVE_CHECKS[:9]


def preflight_command(inventory: Path, directory: Path, forks: int) -> list[str]:
    """The preflight of the nine checks without the mesh; its reports go to ``directory``."""
    variables = {
        "checks_list": CHECKS,
        "checks_host_root": str(directory / "node" / "root"),
        "preflight_report_dir": str(directory / "reports"),
    }
    return [
        str(passive.ANSIBLE_PLAYBOOK),
        "-i",
        str(inventory),
        "-f",
        str(forks),
        "-e",
        json.dumps(variables),
        str(passive.REPOSITORY / "playbooks/preflight.yml"),
    ]


def cost(command: list[str], output: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a command, which prints into ``output``; raises when it fails."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with output.open("w", encoding="utf-8") as printed:
        subprocess.run(command, check=True, stdout=printed, env=passive.environment())
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def event_bytes(command: list[str]) -> dict[str, float]:
    """Mean bytes of a host's result as a callback gets it, by task."""
    callbacks = str(passive.REPOSITORY / "tests/worlds/callbacks")
    settings = {"ANSIBLE_CALLBACK_PLUGINS": callbacks, "ANSIBLE_STDOUT_CALLBACK": "events_json"}
    printed = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**passive.environment(), **settings},
    ).stdout
    return {
        task: statistics.mean(len(json.dumps(result)) for result in hosts.values())
        for task, hosts in json.loads(printed).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--forks", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        inventory = passive.write_inventory(directory, options.hosts)
        play = passive.write_play(directory, "ping", [{"ansible.builtin.ping": {}}])
        forks = ["-f", str(options.forks)]
        ping = [str(passive.ANSIBLE_PLAYBOOK), "-i", str(inventory), *forks, str(play)]
        preflight = preflight_command(inventory, directory, options.forks)
        print(f"{len(CHECKS)} checks: {', '.join(CHECKS)}")
        print(f"{options.hosts} local hosts x 8 GPUs, forks {options.forks}\n")
        print("| round | ping, wall and CPU s | preflight | ratio of wall | of CPU | load |")
        print("| --- | --- | --- | --- | --- | --- |")
        for turn in range(1, options.rounds + 1):
            load = os.getloadavg()[0]
            wall, cpu = cost(ping, directory / "ping.txt")
            our_wall, our_cpu = cost(preflight, directory / "preflight.txt")
            print(
                f"| {turn} | {wall:.1f}, {cpu:.1f} | {our_wall:.1f}, {our_cpu:.1f} | "
                f"{our_wall / wall:.2f} | {our_cpu / cpu:.2f} | {load:.1f} |",
                flush=True,
            )
        lines = len((directory / "preflight.txt").read_text(encoding="utf-8").splitlines())
        print(f"\n{lines} lines on the screen; bytes of a host's result by task:")
        for task, size in event_bytes(preflight).items():
            print(f"- {task}: {size:.0f}")


if __name__ == "__main__":
    main()
