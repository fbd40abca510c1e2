# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The independent tools: nvidia-smi, nvbandwidth, PyTorch, dcgmi and nccl-tests, each run within a
deadline and parsed here, without the collection's own parsers.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional
from xml.etree import ElementTree

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.programs import (
    path_of,
)

#: Seconds for one call of each tool.
SECONDS = {
    "nvidia-smi": 30.0,
    "nvbandwidth": 120.0,
    "python3": 120.0,
    "dcgmi": 120.0,
    "all_reduce_perf": 90.0,
}
COPIES = {
    "host_to_device": "host_to_device_memcpy_ce",
    "device_to_host": "device_to_host_memcpy_ce",
    "local": "device_local_copy",
    "peers": "device_to_device_memcpy_write_ce",
}
#: Names in the output of ``nvidia-smi -q -x``, below a GPU, of which the first that exists counts.
FIGURES = {
    "name": ("product_name",),
    "ECC mode": ("ecc_mode/current_ecc",),
    "rows remapped, correctable": ("remapped_rows/remapped_row_corr",),
    "rows remapped, uncorrectable": ("remapped_rows/remapped_row_unc",),
    "row remapping pending": ("remapped_rows/remapped_row_pending",),
    "row remapping failed": ("remapped_rows/remapped_row_failure",),
    "power limit, W": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/enforced_power_limit",
        "power_readings/enforced_power_limit",
    ),
    "graphics clock, MHz": ("applications_clocks/graphics_clock",),
    "PCIe generation, maximum": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "PCIe lanes, maximum": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "PCIe replays": ("pci/replay_counter",),
}
_WORDS = {"yes": 1, "no": 0, "enabled": 1, "disabled": 0}


class Unusable(Exception):
    """Why a tool has no figures."""


class Missing(Unusable):
    """The tool is not installed."""


class Machine(NamedTuple):
    """What nvidia-smi says: driver, CUDA, and the figures of each GPU by its UUID."""

    driver: str
    cuda: str
    gpus: Dict[str, Dict[str, Any]]


class Tools:
    """Runs the tools until a point in time, ``until`` (monotonic)."""

    def __init__(self, until: float) -> None:
        self._until = until

    def run(self, name: str, *arguments: str) -> str:
        """Standard output of the tool; raises `Unusable`."""
        path = path_of(name)
        if path is None:
            raise Missing(f"{name} is not installed")
        seconds = min(SECONDS[name], self._until - time.monotonic())
        if seconds < 1:
            raise Unusable(f"{name} was not started: no time was left")
        environment = dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID", LC_ALL="C")
        try:
            done = bounded.run([path, *arguments], seconds, environment=environment)
        except OSError as error:
            raise Unusable(f"{name} could not be started: {error}") from error
        if done.timed_out:
            raise Unusable(f"{name} did not answer within {seconds:.0f} s and was ended")
        if done.returncode and not done.stdout.strip():
            said = " ".join((done.stderr.split("\n") or [""])[0].split())[:200]
            raise Unusable(f"{name} ended with status {done.returncode}: {said}")
        return done.stdout

    def nvidia_smi(self) -> Machine:
        try:
            log = ElementTree.fromstring(self.run("nvidia-smi", "-q", "-x"))
        except ElementTree.ParseError as error:
            raise Unusable(f"nvidia-smi printed no XML: {error}") from error
        gpus = {gpu.findtext("uuid", ""): _figures(gpu) for gpu in log.iter("gpu")}
        return Machine(log.findtext("driver_version", ""), log.findtext("cuda_version", ""), gpus)

    def nvlinks(self) -> Dict[str, int]:
        """Active NVLinks of each GPU by its UUID."""
        active: Dict[str, int] = {}
        uuid = None
        for line in self.run("nvidia-smi", "nvlink", "-s").splitlines():
            head = re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line)
            uuid = head.group(1) if head else uuid
            if uuid:
                rate = re.match(r"\s*Link \d+: [\d.]+ GB/s", line)
                active[uuid] = active.get(uuid, 0) + bool(rate)
        if not active:
            raise Unusable("nvidia-smi nvlink -s named no GPU")
        return active

    def nvbandwidth(self, copies: str) -> List[List[Optional[float]]]:
        """Rows of figures in GB/s (decimal) of one test, None where there is none."""
        test = COPIES[copies]
        printed = self.run("nvbandwidth", "-j", "-t", test)
        try:
            document = json.loads(printed[printed.index("{") :])["nvbandwidth"]
            [case] = [one for one in document["testcases"] if one["name"] == test]
            rows = case["bandwidth_matrix"]
            return [[None if cell == "N/A" else float(cell) for cell in row] for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise Unusable(f"nvbandwidth printed no figures of {test}") from error

    def torch(self, copies: str) -> List[List[Optional[float]]]:
        """One row of figures in GB/s (decimal) of PyTorch, which the `python3` of PATH may have."""
        printed = self.run("python3", str(Path(__file__).with_name("torch_copies.py")), copies)
        try:
            rates = json.loads(printed)
            return [[float(rate) for rate in rates]]
        except (ValueError, TypeError) as error:
            raise Unusable(f"PyTorch printed no figures of {copies}") from error

    def dcgm(self) -> str:
        """``fail`` or ``pass``: the worst result of the quick diagnostic."""
        printed = self.run("dcgmi", "diag", "-j", "-r", "1")
        try:
            document = json.loads(printed[printed.index("{") :])
        except ValueError as error:
            raise Unusable("dcgmi printed no results") from error
        results = set(_statuses(document))
        if "fail" in results:
            return "fail"
        if "pass" not in results:
            raise Unusable("dcgmi printed no results")
        return "pass"

    def all_reduce(self, gpus: int) -> Dict[str, float]:
        """Wrong values and the average bus bandwidth in GB/s of an all-reduce of 256 MiB."""
        arguments = ("-b", "256M", "-e", "256M", "-g", str(gpus), "-c", "1")
        printed = self.run("all_reduce_perf", *arguments)
        wrong = re.search(r"Out of bounds values\s*:\s*(\d+)", printed)
        rate = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", printed)
        if not (wrong and rate):
            raise Unusable("all_reduce_perf printed no result")
        return {"wrong": float(wrong.group(1)), "rate": float(rate.group(1))}


def _figures(gpu: ElementTree.Element) -> Dict[str, Any]:
    found = {}
    for name, places in FIGURES.items():
        texts = [text for text in map(gpu.findtext, places) if text is not None]
        found[name] = _value(texts[0]) if texts else None
    for counter in ("volatile", "aggregate"):
        counts = gpu.find(f"ecc_errors/{counter}")
        for kind, ending in (("corrected", "_correctable"), ("uncorrected", "_uncorrectable")):
            values = [
                _value(one.text or "") for one in counts or () if one.tag[4:].startswith(ending)
            ]
            numbers = [value for value in values if isinstance(value, (int, float))]
            found[f"ECC {counter} {kind}"] = sum(numbers) if numbers else None
    return found


def _value(text: str) -> Any:
    """A number without its unit, 1 or 0 for words of that meaning, None for ``N/A`` and what the
    driver no longer says, else text.
    """
    text = text.strip()
    if text in ("", "N/A", "[N/A]") or "deprecated" in text:
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(?:x| W| MHz)?", text)
    return float(number.group(1)) if number else text


def _statuses(value: Any) -> Iterator[str]:
    """All results in a document of any DCGM, in lower case."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "status" and isinstance(item, str):
                yield item.lower()
            else:
                yield from _statuses(item)
    elif isinstance(value, list):
        for item in value:
            yield from _statuses(item)
