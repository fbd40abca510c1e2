# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make hardware: run every GPU check on this machine's real GPUs and compare the figures with
independent tools.

Writes ``hardware-report.md`` and ``hardware-report.json``. Exit status 0: this release is right on
this GPU; 1: it is wrong; 2: it could not be shown, or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import yaml

import compare  # beside this file
import page
from compare import DIFFERS, NOT_COMPARED, Comparison, Ran
from tools import Machine, Tools, Unusable

from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    PASSIVE,
    SKIP,
    UNKNOWN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import runner
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    Check,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)

ROOT = Path(__file__).resolve().parents[2]
#: Seconds for everything together.
LIMIT = 570.0
#: Options other than the defaults: what keeps the run short.
OPTIONS: Dict[str, Dict[str, Any]] = {
    "dcgm_diag": {"level": 1},
    "gpu_activity": {"window": 2.0, "interval": 1.0},
}
RIGHT, WRONG, NOT_SHOWN = 0, 1, 2


class Verdict(NamedTuple):
    status: int
    text: str
    reasons: List[str]


def run_checks(settings: HostSettings, until: float) -> Dict[str, Ran]:
    """Run every GPU check, the passive ones together and the others in turn, as the modules do."""
    checks = [check for check in registry.of_node() if check.gpu]
    passive = [check for check in checks if check.intrusion == PASSIVE]
    others = [check for check in checks if check.intrusion != PASSIVE]
    ran: Dict[str, Ran] = {}
    for group in [passive, *([check] for check in others)]:
        left = until - time.monotonic()
        requests = [(check, _options(check)) for check in group]
        longest = max(runner.deadline(*request, settings) for request in requests)
        bounded = settings._replace(timeout=max(min(longest, left), 1.0))
        for outcome in runner.run(requests, bounded, stop_on_fail=False):
            ran[outcome.result.check] = Ran(outcome.result.to_dict(), dict(outcome.readings))
    return ran


def _options(check: Check) -> Dict[str, Any]:
    return dict(check.defaults(), **OPTIONS.get(check.name, {}))


def compare_all(
    ran: Dict[str, Ran], looks: List[Machine], reason: str, tools: Tools
) -> List[Comparison]:
    gpus = len(ran["gpu_count"].gpus)
    return [
        *compare.with_nvidia_smi(ran, looks, reason),
        *compare.with_nvlinks(ran["nvlink"], tools),
        *compare.with_copies(ran, tools, gpus),
        *compare.with_nccl(ran["gpu_link"], tools, gpus),
        *compare.with_dcgmi(ran["dcgm_diag"], tools),
    ]


def judge(ran: Dict[str, Ran], comparisons: List[Comparison]) -> Verdict:
    """Wrong if a figure differs or a check crashed; not shown if a figure was not compared, a check
    could not tell, or fails without a tool that agrees.
    """
    wrong = [page.sentence(one) for one in comparisons if one.result == DIFFERS]
    missing = [page.sentence(one) for one in comparisons if one.result == NOT_COMPARED]
    for name, one in ran.items():
        codes = {finding["code"] for finding in one.result["findings"]}
        status = one.result["status"]
        agreed = any(other.check == name and other.result == compare.AGREE for other in comparisons)
        said = f"{name}: {status}, {one.result['summary']}"
        if "crashed" in codes:
            wrong.append(said)
        elif status == UNKNOWN or (status == FAIL and not agreed):
            missing.append(said)
        elif status == SKIP and name in ("pcie_bandwidth", "gpu_memory", "dcgm_diag"):
            missing.append(said)
    if wrong:
        return Verdict(WRONG, "this release is wrong on this GPU", wrong + missing)
    if missing:
        text = "it could not be shown that this release is right on this GPU"
        return Verdict(NOT_SHOWN, text, missing)
    return Verdict(RIGHT, "this release is right on this GPU", [])


def look(tools: Tools, looks: List[Machine]) -> str:
    """Add a look of nvidia-smi; returns why there is none."""
    try:
        looks.append(tools.nvidia_smi())
    except Unusable as error:
        return str(error)
    return ""


def describe(ran: Dict[str, Ran], looks: List[Machine]) -> Dict[str, Any]:
    """The names and versions of this machine."""
    count = ran["gpu_count"]
    numbers = ran["dcgm_diag"].readings.get("version") or ()
    release = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    return {
        "release": release,
        "gpus": [gpu.get("name") for gpu in count.gpus],
        "driver": count.readings.get("driver_version"),
        "cuda": looks[0].cuda if looks else None,
        "dcgm": ".".join(map(str, numbers)) or None,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=ROOT / "reports", help="directory")
    parser.add_argument("--host-root", default="/", help="where the host's files are (default: /)")
    chosen = parser.parse_args()
    began = time.monotonic()
    settings = HostSettings(host_root=chosen.host_root)
    [first] = runner.run([(registry.load("gpu_count"), {})], settings)
    if not first.readings.get("gpus"):
        why = first.result.summary
        print(f"hardware: this machine has no usable NVIDIA GPU ({why}); nothing was run")
        return NOT_SHOWN
    tools = Tools(began + LIMIT)
    looks: List[Machine] = []
    reason = look(tools, looks)
    ran = run_checks(settings, began + LIMIT / 2)
    reason = reason or look(tools, looks)
    comparisons = compare_all(ran, looks, reason, tools)
    verdict = judge(ran, comparisons)
    about = dict(describe(ran, looks), seconds=round(time.monotonic() - began))
    document = {
        "verdict": verdict._asdict(),
        "about": about,
        "checks": [one.result for one in ran.values()],
        "comparisons": [one._asdict() for one in comparisons],
    }
    chosen.output.mkdir(parents=True, exist_ok=True)
    report = chosen.output / "hardware-report.md"
    report.write_text(page.render(document), encoding="utf-8")
    report.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(*(f"  {reason}\n" for reason in verdict.reasons), sep="", end="")
    print(f"hardware: {verdict.text}; the page is {report}")
    return verdict.status


if __name__ == "__main__":
    sys.exit(main())
