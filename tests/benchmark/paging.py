# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report page of a large run costs: CPU seconds to make it, and its size.

    .venv/bin/python tests/benchmark/paging.py [--nodes 1000] [--gpus 8]

The runs are on paper, judged by the real judges. Elements and seconds in a browser are printed by
tests/full/test_page.py (pytest -s).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import page as _page

sys.path.insert(0, str(Path(__file__).parents[1] / "worlds"))
import run_world  # noqa: E402


def html_of(document):
    return _page.html_of(RunReport.from_dict(document))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    chosen = parser.parse_args()
    names, few = run_world.names(chosen.nodes), run_world.names(64)
    runs = {
        "one node in a hundred is bad, all in a mesh on two networks": lambda: run_world.document(
            run_world.large(chosen.nodes), run_world.planned(names, racks=40, peers=8)
        ),
        "every link is slow": lambda: run_world.document(
            [run_world.node(name, chosen.gpus, share=0.5) for name in names]
        ),
        "no node was reached": lambda: run_world.document([run_world.away(name) for name in names]),
        "64 nodes, every pair measured on two networks": lambda: run_world.document(
            [run_world.node(name, chosen.gpus) for name in few],
            run_world.planned(few, racks=4, rounds="all"),
        ),
    }
    print(f"{chosen.nodes} nodes x {chosen.gpus} GPUs\n\n| run | CPU s | kB |\n| --- | --- | --- |")
    for words, make in runs.items():
        document = make()
        began = time.process_time()
        page = html_of(document)
        print(
            f"| {words} | {time.process_time() - began:.2f} | {len(page.encode()) / 1000:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
