# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may run beside a job changes no setting, opens no CUDA context and asks for nothing that
blocks the driver: by the calls that were made.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import PASSIVE

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmark"))
import sampling  # noqa: E402

#: Every check that reads only, also those that watch a job or compare with what was before it.
READING = [
    name
    for name in (*registry.names_of_pass(), "gpu_activity")
    if registry.load(name).intrusion == PASSIVE
]
MODELS = ("H100-80GB", "V100-32GB", "L40S", "B200")
#: A job on every GPU, so that whatever looks closer at a busy GPU does.
BUSY = {
    "rules": [
        {"gpu": "*", "call": "nvmlDeviceGetUtilizationRates", "values": [99, 61]},
        {"gpu": "*", "call": "nvmlDeviceGetCurrentClocksEventReasons", "values": [0x48]},
        {"gpu": "*", "call": "nvmlDeviceGetPcieReplayCounter", "values": ["10+1"]},
        {"gpu": "*", "call": "nvmlDeviceGetNvLinkErrorCounter", "values": ["10+1"]},
        {
            "gpu": "*",
            "call": "nvmlDeviceGetMemoryInfo",
            "values": [34359738368, 576716800, 21474836480],
        },
    ],
    "processes": [
        {"gpu": gpu, "pid": 4240 + gpu, "name": "python3", "memory": 2147483648} for gpu in range(8)
    ],
}


class Watched:
    """A node whose driver calls are written down."""

    def __init__(self, node, log):
        self.node, self._log = node, log

    @property
    def calls(self):
        return set(self._log.read_text().split()) if self._log.exists() else set()

    @property
    def changed(self):
        log = self.node.directory / "setters.log"
        return log.read_text().split() if log.exists() else []

    @property
    def intrusions(self):
        """What must not be called beside a job."""
        return (
            sorted(call for call in self.calls if call.startswith("cu") or "PcieThroughput" in call)
            + self.changed
        )


@pytest.fixture
def watched(node, tmp_path, monkeypatch):
    """``watched(scenario) -> Watched``."""
    monkeypatch.setenv("SANDBOX_CALLS", str(tmp_path / "calls"))
    return lambda scenario: Watched(node(scenario), tmp_path / "calls")


@pytest.mark.parametrize("model", MODELS)
def test_no_check_that_only_reads_intrudes(model, watched, measure):
    here = watched(dict(BUSY, model=model))
    outcomes = measure.several(
        here.node,
        READING,
        expected_gpus=8,
        options={"gpu_activity": {"window": 2.0, "interval": 1.0}},
    )
    assert [outcome.result.check for outcome in outcomes] == READING
    assert here.intrusions == []
    assert {
        "nvmlInit",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetMemoryInfo",
    } <= here.calls, "nothing was written down"


def of_gpus(directory):
    """What was read of the GPUs, each time; a sample for which the driver's answer came too late
    has none of them, and says so.
    """
    return [line["gpus"] for line in sampling.samples(directory) if "gpus" in line]


def test_the_sampler_does_not_intrude(watched, tmp_path):
    here = watched(BUSY)
    directory = tmp_path / "capture"
    sampling.start(here.node, directory, interval=0.2, duration=60)
    try:
        until = time.monotonic() + 60
        while len(of_gpus(directory)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        sampling.stop(here.node, directory)
    assert {len(gpus) for gpus in of_gpus(directory)[:3]} == {8} and len(of_gpus(directory)) >= 3
    assert here.intrusions == []
    assert {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"} <= here.calls, (
        "nothing was written down"
    )


#: What somebody might do, and what must be seen of it.
MISDEEDS = {
    "a setter": (
        "b.nvmlDeviceSetPowerManagementLimit(handle, 400000)",
        "nvmlDeviceSetPowerManagementLimit",
    ),
    "a counter cleared": (
        "b.nvmlDeviceClearEccErrorCounts(handle, 0)",
        "nvmlDeviceClearEccErrorCounts",
    ),
    "throughput": ("b.nvmlDeviceGetPcieThroughput(handle, 0)", "nvmlDeviceGetPcieThroughput"),
    "cuda": ("ctypes.CDLL('libcuda.so.1').cuInit(0)", "cuInit"),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_an_intrusion_would_be_seen(misdeed, watched):
    here = watched({"gpus": 1})
    what, seen = MISDEEDS[misdeed]
    program = (
        "import ctypes, pynvml as b; b.nvmlInit(); handle = "
        f"b.nvmlDeviceGetHandleByIndex(0); {what}"
    )
    subprocess.run([here.node.python, "-c", program], check=True)
    assert seen in here.intrusions


def test_a_measuring_check_is_told_from_a_reading_one(watched, measure):
    """The bandwidth test opens contexts: were it taken for a reading check, the tests above would
    fail.
    """
    here = watched({"gpus": 1})
    measure(here.node, "pcie_bandwidth")
    assert "cuInit" in here.intrusions
