# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the sampler of a capture costs the node whose job it watches: share of a core, and memory.

    .venv/bin/python tests/benchmark/sampling.py --seconds 120

The real sampler, started as a capture starts it, on a node of stand-in hardware (8 GPUs with a
process each, 18 NVLinks a GPU, an InfiniBand port), every 10 s as the limits of issue 6 have it.
Both its processes count. Time on the processor is the kernel's (schedstat), memory is the part of
each page that is its own (Pss), so that what both share counts once; the stand-in library answers
from memory, as the driver does, but without the driver's own work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))

import node as sandbox  # noqa: E402

#: What issue 6 allows at INTERVAL seconds: percent of a core, and MB.
SHARE, MEMORY, INTERVAL = 0.1, 25.0, 10.0
_START = """
import json, sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import daemon
directory, settings = sys.argv[1], json.loads(sys.argv[2])
print(daemon.start(directory, settings, dict)["pid"])
"""
_STOP = """
import sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import daemon
daemon.stop(sys.argv[1])
"""


def family(pid: int) -> list:
    """The process and its children."""
    return [
        pid,
        *(
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ),
    ]


def on_processor(pids: list) -> float:
    """Seconds of all threads."""
    return (
        sum(
            int((thread / "schedstat").read_text().split()[0])
            for pid in pids
            for thread in Path(f"/proc/{pid}/task").iterdir()
        )
        / 1e9
    )


def memory(pids: list, kind: str) -> float:
    """MB, as ``Pss`` or ``Rss``."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8") for pid in pids)
    return sum(int(rollup.partition(f"\n{kind}:")[2].split()[0]) for rollup in rollups) * 1024 / 1e6


def samples(directory: Path) -> list:
    lines = [
        json.loads(line)
        for line in (directory / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [line for line in lines if "event" not in line]


def start(node: sandbox.Node, directory: Path, interval: float, duration: float) -> int:
    """The number of the sampler's process."""
    settings = {
        "name": "bench",
        "interval": interval,
        "duration": duration,
        "max_bytes": 64 * 1024 * 1024,
        "host_root": node.root,
        "nvml_library": node.library,
        "job": None,
    }
    begun = subprocess.run(
        [node.python, "-c", _START, str(directory), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if begun.returncode:
        raise RuntimeError(begun.stderr)
    return int(begun.stdout)


def stop(node: sandbox.Node, directory: Path) -> None:
    subprocess.run([node.python, "-c", _STOP, str(directory)], check=True)


def measured(seconds: float, interval: float) -> dict:
    """``{"share": percent of a core, "memory": MB, "resident": MB of the larger process, "samples":
    how many, "bytes": of one}``.
    """
    processes = [
        {"gpu": gpu, "pid": 4240 + gpu, "name": "python3", "memory": 17179869184}
        for gpu in range(8)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        node = sandbox.build({"processes": processes}, Path(temporary) / "node")
        directory = Path(temporary) / "capture"
        pid = start(node, directory, interval, seconds + 10 * interval)
        try:
            # The first sample costs what every first time does: imports, the driver's session.
            while not samples(directory):
                time.sleep(0.2)
            pids = family(pid)
            before, began, taken = on_processor(pids), time.monotonic(), len(samples(directory))
            time.sleep(seconds)
            spent, lasted = on_processor(pids) - before, time.monotonic() - began
            assert family(pid) == pids, "the sampler's processes changed meanwhile"
            lines = samples(directory)
            assert all(
                len(line["gpus"]) == 8 and not any(gpu["error"] for gpu in line["gpus"])
                for line in lines
            ), lines[-1]
            return {
                "share": 100 * spent / lasted,
                "memory": memory(pids, "Pss"),
                "resident": max(memory([one], "Rss") for one in pids),
                "samples": len(lines) - taken,
                "bytes": (directory / "samples.jsonl").stat().st_size / len(lines),
                "seconds": lasted,
                "spent": spent,
            }
        finally:
            stop(node, directory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--interval", type=float, default=INTERVAL)
    given = parser.parse_args()
    found = measured(given.seconds, given.interval)
    each = 1000 * found["spent"] / max(1, found["samples"])
    print(
        f"{found['seconds']:.0f} s, {found['samples']} samples every {given.interval:g} s of 8 "
        f"GPUs, {found['bytes']:.0f} bytes each"
    )
    print(
        f"{found['share']:.3f} % of a core ({each:.1f} ms a sample; allowed {SHARE} % at "
        f"{INTERVAL:g} s), "
        f"{found['memory']:.1f} MB ({found['resident']:.1f} MB resident in the larger process; "
        f"allowed {MEMORY:g} MB)"
    )
    if given.interval >= INTERVAL and (found["share"] > SHARE or found["memory"] > MEMORY):
        sys.exit("more than issue 6 allows")


if __name__ == "__main__":
    main()
