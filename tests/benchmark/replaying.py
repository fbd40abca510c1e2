# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it takes to judge a saved run again: seconds of one core and peak memory, for 1,000 nodes of
eight GPUs, the readings of all checks on each.

The document is that of one stand-in node, its readings a thousand times, one GPU in a hundred slow.
The playbook is run on it as an operator does; the aim is a few seconds.

    .venv/bin/python tests/benchmark/replaying.py [--nodes 1000]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "sandbox"))

import node as sandbox  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document_diff,
    document as report,
)  # noqa: E402

PROGRAM = Path(sys.executable).parent / "ansible-playbook"


def one_node(directory: Path) -> dict:
    """The document of a run over a healthy node of eight GPUs."""
    node = sandbox.build("healthy_8xh100", directory / "node")
    inventory = directory / "hosts.json"
    own = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node.python,
        "checks_host_root": node.root,
    }
    inventory.write_text(json.dumps({"all": {"hosts": {"gpu": own}}}))
    subprocess.run(
        [
            PROGRAM,
            "-i",
            inventory,
            "autopilot.gpu.preflight",
            "-e",
            f"preflight_report_dir={directory}/reports",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(next(directory.glob("reports/*/run.json")).read_text())


def fleet(document: dict, count: int) -> dict:
    nodes = []
    for number in range(count):
        node = copy.deepcopy(document["nodes"][0])
        node["name"] = f"gpu{number:04d}"
        if number % 12 == 0:
            for copies in node["readings"]["pcie_bandwidth"]["readings"]["gpus"][number % 8][
                "transfers"
            ].values():
                copies["copy_engine"]["samples"] = [
                    sample * 0.9 for sample in copies["copy_engine"]["samples"]
                ]
        nodes.append(node)
    before = RunReport.from_dict(dict(document, nodes=nodes))
    return replay(before, before.policy).report.to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    with tempfile.TemporaryDirectory() as base:
        directory = Path(base)
        document = fleet(one_node(directory), parser.parse_args().nodes)
        path = directory / "run.json"
        path.write_text(report.to_json(document))
        options = {"pcie_bandwidth": {"minimum": 52.0}}
        began = time.process_time()
        read = report.read(path.read_text())
        before = RunReport.from_dict(read)
        readable = time.process_time()
        again = replay(before, before.policy, options)
        judged = time.process_time()
        changes = document_diff.differences(before, again.report)
        lines = document_diff.lines_of(before, read["policy"], again, changes, options)
        compared = time.process_time()
        began_all, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [
                PROGRAM,
                "autopilot.gpu.replay",
                "-e",
                json.dumps({"run": str(path), "checks_options": options}),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ, ANSIBLE_CONFIG=str(REPOSITORY / "tests/benchmark/ansible.cfg")),
        )
        wall, after = time.monotonic() - began_all, resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{len(read['nodes'])} nodes, {path.stat().st_size / 1e6:.0f} MB, {len(lines)} "
            "lines on the screen"
        )
        print(
            f"read {readable - began:.2f} s, judged {judged - readable:.2f} s, compared "
            f"{compared - judged:.2f} s of one core"
        )
        print(
            f"the whole playbook {wall:.1f} s of wall time, {spent:.1f} s of one core, "
            f"{after.ru_maxrss / 1024:.0f} MB"
        )


if __name__ == "__main__":
    main()
