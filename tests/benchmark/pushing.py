# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the callback that pushes costs: the same play over a large fleet with and without it, in
turn, and the push at its end.

Each host returns what a stand-in node with 8 GPUs returned once, with GPUs of its own, after some
seconds (--seconds). With none of them the play is nothing but Ansible's own work, which is more
than any real play is short of.

    .venv/bin/python tests/benchmark/pushing.py --hosts 1000 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("sandbox", "worlds")]
import node as sandbox  # noqa: E402
from controller import linked, write_inventory  # noqa: E402
from servers import Pushgateway, missing  # noqa: E402

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - recorded: {seconds: SECONDS}
      register: autopilot_checks
    - autopilot.gpu.verdict:
"""

RECORDED = """
import json
import time
from pathlib import Path
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        time.sleep(self._task.args["seconds"])
        text = (Path(__file__).parent / "recorded.json").read_text()
        return dict(json.loads(text.replace("GPU-", "GPU-" + task_vars["inventory_hostname"] + "-")), changed=False)
"""


class Bench:
    """A directory with the play and a controller; ``run`` is one playbook."""

    def __init__(self, base: Path, hosts: int, forks: int, seconds: float) -> None:
        self.base, self.forks = base, forks
        self.controller = linked(base, Path(sys.executable).parent)
        self.play = base / "play"
        (self.play / "action_plugins").mkdir(parents=True)
        (self.play / "play.yml").write_text(PLAY.replace("SECONDS", str(seconds)))
        (self.play / "action_plugins/recorded.py").write_text(RECORDED)
        (self.play / "hosts").write_text(
            "".join(f"gpu{number:04d}\n" for number in range(1, hosts + 1))
        )
        self.record()

    def record(self) -> None:
        """What a node returns, once and for all."""
        inventory = write_inventory(
            self.base / "node.json", {"gpu": sandbox.build("healthy_8xh100", self.base / "node")}
        )
        options = {"host_root": "{{ checks_host_root }}", "readings": True}
        answer = self.controller.ad_hoc(inventory, "autopilot.gpu.node_checks", options, self.base)[
            "gpu"
        ]
        kept = {name: answer[name] for name in ("health", "node", "readings", "status")}
        (self.play / "action_plugins/recorded.json").write_text(json.dumps(kept))

    def run(self, url: str | None) -> dict:
        """Seconds until the recap and of the push, seconds of CPU until the recap and after it, and
        the peak of the main process in MiB.
        """
        environment = dict(
            os.environ,
            ANSIBLE_COLLECTIONS_PATH=str(self.controller.collections),
            ANSIBLE_COLLECTIONS_SCAN_SYS_PATH="false",
            HOME=str(self.base / "home"),
            ANSIBLE_FORKS=str(self.forks),
            ANSIBLE_NOCOLOR="1",
            PYTHONUNBUFFERED="1",
        )
        if url:
            environment.update(
                ANSIBLE_CALLBACKS_ENABLED="autopilot.gpu.pushgateway", AUTOPILOT_PUSHGATEWAY_URL=url
            )
        program = str(self.controller.programs / "ansible-playbook")
        began, recap, used, pushed = time.monotonic(), 0.0, 0.0, None
        process = subprocess.Popen(
            [program, "-i", "hosts", "play.yml"],
            cwd=self.play,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in process.stdout:
            if line.startswith("PLAY RECAP"):
                recap, used = time.monotonic() - began, cpu_of(process.pid)
            found = re.search(r"pushed (\d+) nodes to \S+ \((\S+) s\)", line)
            pushed = float(found.group(2)) if found else pushed
        _pid, status, usage = os.wait4(process.pid, 0)
        if status or bool(pushed) != bool(url):
            raise SystemExit(f"pushing.py: the play ended with {status}, pushed in {pushed} s")
        whole = usage.ru_utime + usage.ru_stime
        return {
            "play": recap,
            "cpu": used,
            "push cpu": whole - used,
            "peak": usage.ru_maxrss / 1024,
            "push": pushed,
        }


def cpu_of(process: int) -> float:
    """Seconds of CPU that a process and those of its children that have ended have used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--forks", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--check", action="store_true", help="leave the Pushgateway's consistency check on"
    )
    given = parser.parse_args()
    reason = missing("prometheus-pushgateway") or (
        "" if sandbox.compiler() else "needs a C compiler"
    )
    if reason:
        print(f"pushing.py: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), given.hosts, given.forks, given.seconds)
        with Pushgateway(
            Path(directory) / "gateway",
            arguments=[] if given.check else ["--push.disable-consistency-check"],
        ) as gateway:
            rounds = []
            for turn in range(given.rounds):
                # Which comes first alternates, so that a machine that gets busier does not count
                # for one of them.
                order = [None, gateway.url] if turn % 2 else [gateway.url, None]
                ran = {url: bench.run(url) for url in order}
                rounds.append((ran[None], ran[gateway.url]))
    print(
        f"{given.hosts} hosts, {given.seconds:g} s each, {given.forks} forks, {given.rounds} "
        "rounds\n"
    )
    print(
        "| round | play without, s | with, s | its CPU without, s | with, s | push, s | its "
        "CPU, s | peak without, MiB | with, MiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for number, (without, pushed) in enumerate(rounds, 1):
        print(
            f"| {number} | {without['play']:.1f} | {pushed['play']:.1f} | {without['cpu']:.1f} "
            f"| {pushed['cpu']:.1f} | {pushed['push']:.1f} |"
            f" {pushed['push cpu'] - without['push cpu']:.1f} | {without['peak']:.0f} | "
            f"{pushed['peak']:.0f} |"
        )
    play, cpu = (
        statistics.median(pushed[what] / without[what] - 1 for without, pushed in rounds)
        for what in ("play", "cpu")
    )
    peak = statistics.median(pushed["peak"] - without["peak"] for without, pushed in rounds)
    push = statistics.median(pushed["push"] for _without, pushed in rounds)
    print(
        f"\nmedians: the play takes {100 * play:+.1f} %, {100 * cpu:+.1f} % of CPU; the peak "
        f"is {peak:+.0f} MiB; the push takes {push:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
