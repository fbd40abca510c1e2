# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node pings many: one fping process for all targets, as ping_mesh does it, against one ping
process for each target, in the same run.

    .venv/bin/python tests/benchmark/pinging.py --targets 1000 --count 10

Needs root, fping and iputils-ping: the targets are addresses at the far end of a veth pair in
network namespaces of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import fping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import run

#: Milliseconds between any two pings of the node: 1,000 targets times 10 pings take 2 s at least.
INTERVAL_MS = 0.2
#: Seconds after which the slower one is given up.
PATIENCE = 300.0


def build(near: str, far: str) -> None:
    """Two namespaces; the far end answers for all of 10.80.0.0/16, behind one address, so that the
    kernel's table of neighbours does not matter.
    """
    commands = [
        ["ip", "netns", "add", near],
        ["ip", "netns", "add", far],
        [
            "ip",
            "link",
            "add",
            "eth1",
            "netns",
            near,
            "type",
            "veth",
            "peer",
            "name",
            "eth1",
            "netns",
            far,
        ],
        ["ip", "-n", near, "address", "add", "10.79.0.1/24", "dev", "eth1"],
        ["ip", "-n", far, "address", "add", "10.79.0.2/24", "dev", "eth1"],
        ["ip", "-n", near, "link", "set", "eth1", "up"],
        ["ip", "-n", far, "link", "set", "eth1", "up"],
        ["ip", "-n", far, "link", "set", "lo", "up"],
        ["ip", "-n", near, "route", "add", "10.80.0.0/16", "via", "10.79.0.2"],
        ["ip", "-n", far, "route", "add", "local", "10.80.0.0/16", "dev", "lo"],
    ]
    for command in commands:
        subprocess.run(command, check=True)


def by_fping(prefix: list[str], targets: list[str], count: int) -> tuple[float, int, int]:
    """Seconds, packets sent and replies."""
    period = max(100.0, len(targets) * INTERVAL_MS)
    done = run(prefix + fping.argv(fping.find(), targets, count, period, INTERVAL_MS), PATIENCE)
    told = fping.parse(done, targets, count)
    if told["error"]:
        raise SystemExit(f"fping: {told['error']['message']}")
    return (
        done.seconds,
        sum(one["sent"] for one in told["targets"].values()),
        sum(one["received"] for one in told["targets"].values()),
    )


def by_ping(prefix: list[str], targets: list[str], count: int) -> tuple[float, int, int]:
    """The same with all processes at once, as one would write it first; the pace to each target is
    that of fping.
    """
    period = max(0.1, len(targets) * INTERVAL_MS / 1000)
    began = time.monotonic()
    # One shell inside the namespace, so that entering it is not what is measured.
    script = 'for t in $TARGETS; do ping -q -n -c "$COUNT" -i "$PERIOD" -W 1 "$t" & done; wait'
    environment = dict(
        os.environ, TARGETS=" ".join(targets), COUNT=str(count), PERIOD=str(period), LC_ALL="C"
    )
    text = subprocess.run(
        [*prefix, "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    ).stdout
    seconds = time.monotonic() - began
    counted = re.findall(r"(\d+) packets transmitted, (\d+) received", text)
    return (
        seconds,
        sum(int(sent) for sent, _received in counted),
        sum(int(received) for _sent, received in counted),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid():
        raise SystemExit("needs root, for network namespaces")
    targets = [
        f"10.80.{1 + number // 250}.{1 + number % 250}" for number in range(arguments.targets)
    ]
    near, far = f"apn{os.getpid()}", f"apf{os.getpid()}"
    try:
        build(near, far)
        prefix = ["ip", "netns", "exec", near]
        print(
            f"{arguments.targets} targets, {arguments.count} pings each, {os.cpu_count()} "
            f"CPUs, Python {sys.version.split()[0]}\n"
        )
        print("| how | seconds | sent | received | times fping |\n| --- | --- | --- | --- | --- |")
        for _round in range(arguments.rounds):
            first = by_fping(prefix, targets, arguments.count)
            second = by_ping(prefix, targets, arguments.count)
            print(f"| one fping | {first[0]:.2f} | {first[1]} | {first[2]} | 1.00 |")
            print(
                f"| a ping for each | {second[0]:.2f} | {second[1]} | {second[2]} | "
                f"{second[0] / first[0]:.2f} |",
                flush=True,
            )
    finally:
        for namespace in (near, far):
            subprocess.run(
                ["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL, check=False
            )


if __name__ == "__main__":
    main()
