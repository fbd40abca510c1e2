# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what the checks said with what the independent tools say: agree, differs or not compared."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from tools import Machine, Missing, Tools, Unusable

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import dcgm_diag

AGREE, DIFFERS, NOT_COMPARED = "agree", "differs", "not compared"

#: Share by which two measurements of one bandwidth may differ: both take medians of idle links.
TOLERANCE = 0.10
#: The triad over twice the rate of a local copy, which reads and writes each byte. The copy engines
#: may leave part of the memory's rate unused; they cannot exceed it.
LOCAL_COPY = (0.9, 1.6)

#: Check -> its figures as `tools.FIGURES` names them, each with its path in the readings of a GPU.
READ = {
    "gpu_count": {"name": ("name",)},
    "remapped_rows": {
        "rows remapped, correctable": ("rows", "correctable"),
        "rows remapped, uncorrectable": ("rows", "uncorrectable"),
        "row remapping pending": ("rows", "pending"),
        "row remapping failed": ("rows", "failure"),
    },
    "ecc_errors": {
        "ECC mode": ("ecc_mode", "current"),
        **{
            f"ECC {counter} {kind}": (counter, kind)
            for counter in ("volatile", "aggregate")
            for kind in ("corrected", "uncorrected")
        },
    },
    "gpu_power": {
        "power limit, W": ("power_limit", "enforced"),
        "graphics clock, MHz": ("graphics_clock", "application"),
    },
    "pcie_link": {
        "PCIe generation, maximum": ("link", "max_generation"),
        "PCIe lanes, maximum": ("link", "max_width"),
        "PCIe replays": ("replays",),
    },
}
_SCALE = {"power limit, W": 1e-3}


class Comparison(NamedTuple):
    """One figure of a check and of a tool. ``why`` says how they differ, or why they were not
    compared.
    """

    check: str
    figure: str
    gpu: Optional[int]
    tool: str
    ours: Any
    theirs: Any
    result: str
    why: str = ""


class Ran(NamedTuple):
    """A check's result as a mapping and its readings."""

    result: Dict[str, Any]
    readings: Dict[str, Any]

    @property
    def gpus(self) -> List[Dict[str, Any]]:
        return [gpu for gpu in self.readings.get("gpus") or () if gpu]

    def measured(self, name: str, **labels: str) -> Dict[int, float]:
        """The measurements of this name and labels by GPU."""
        return {
            int(one["labels"]["gpu"]): one["value"]
            for one in self.result["measurements"]
            if one["name"] == name and labels.items() <= one["labels"].items()
        }


def with_nvidia_smi(ran: Dict[str, Ran], looks: List[Machine], reason: str) -> Iterator[Comparison]:
    """Compare what the driver says with nvidia-smi's looks before and after the checks; ``reason``
    says why one of them is missing.
    """
    tool = "nvidia-smi"
    if reason:
        for check in READ:
            yield Comparison(check, "all figures", None, tool, None, None, NOT_COMPARED, reason)
        return
    count = ran["gpu_count"]
    ours = sorted(str(gpu.get("uuid")) for gpu in count.gpus)
    yield _same("gpu_count", "UUIDs", None, tool, ours, [sorted(look.gpus) for look in looks])
    version = count.readings.get("driver_version")
    yield _same("driver", "version", None, tool, version, [look.driver for look in looks])
    for check, figures in READ.items():
        for gpu in ran[check].gpus:
            theirs = [look.gpus.get(str(gpu.get("uuid"))) for look in looks]
            if None in theirs:
                continue  # the list of UUIDs differs already
            for figure, path in figures.items():
                value = _at(gpu, path)
                if isinstance(value, (int, float)):
                    value *= _SCALE.get(figure, 1)
                seen = [one[figure] for one in theirs if one]
                if value is not None or any(one is not None for one in seen):
                    yield _same(check, figure, gpu.get("index"), tool, value, seen)


def with_nvlinks(links: Ran, tools: Tools) -> Iterator[Comparison]:
    if not any(gpu.get("links") for gpu in links.gpus):
        return
    try:
        active = tools.nvlinks()
    except Unusable as error:
        why = str(error)
        yield Comparison("nvlink", "links up", None, "nvidia-smi", None, None, NOT_COMPARED, why)
        return
    for gpu in links.gpus:
        ours = sum(bool(link.get("active")) for link in gpu.get("links") or ())
        theirs = [active.get(str(gpu.get("uuid")))]
        yield _same("nvlink", "links up", gpu.get("index"), "nvidia-smi", ours, theirs)


def with_copies(ran: Dict[str, Ran], tools: Tools, gpus: int) -> Iterator[Comparison]:
    """Compare rates in GB/s (decimal) with nvbandwidth's; without nvbandwidth, with PyTorch's where
    PyTorch can copy the same way.
    """
    near = (1 - TOLERANCE, 1 + TOLERANCE)
    for way in ("host_to_device", "device_to_host"):
        ours = ran["pcie_bandwidth"].measured("pcie_bandwidth", direction=way, method="copy_engine")
        yield from _rates("pcie_bandwidth", way.replace("_", " "), ours, tools, way, gpus, near)
    triad = ran["gpu_memory"].measured("gpu_memory_bandwidth")
    yield from _rates("gpu_memory", "memory", triad, tools, "local", gpus, LOCAL_COPY)
    link = ran["gpu_link"]
    kinds = [link.measured("gpu_link_bandwidth", kind=kind) for kind in ("nvlink", "pcie")]
    slowest = {
        gpu: min(rates[gpu] for rates in kinds if gpu in rates)
        for gpu in {gpu for rates in kinds for gpu in rates}
    }
    if slowest:
        yield from _rates("gpu_link", "slowest peer", slowest, tools, "peers", gpus, near)


def with_dcgmi(diagnostic: Ran, tools: Tools) -> Iterator[Comparison]:
    """Compare DCGM's own results as the check read them: DCGM also prints ``Fail`` for what the
    check only warns of, such as persistence mode.
    """
    results = dcgm_diag.first_run_statuses(diagnostic.readings)
    ours = next((one for one in ("fail", "pass") if one in results), None)
    try:
        theirs = tools.dcgm()
    except Unusable as error:
        yield Comparison("dcgm_diag", "result", None, "dcgmi", ours, None, NOT_COMPARED, str(error))
        return
    yield _same("dcgm_diag", "result", None, "dcgmi", ours, [theirs])


def with_nccl(link: Ran, tools: Tools, gpus: int) -> Iterator[Comparison]:
    """Compare the data of copies between GPUs with an all-reduce; its rate has no counterpart."""
    if gpus < 2:
        return
    tool = "all_reduce_perf"
    status = link.result["status"]
    ours = {"pass": "right", "warn": "right"}.get(status)
    if any(one["code"] == "peer_data_corrupted" for one in link.result["findings"]):
        ours = "wrong"
    try:
        said = tools.all_reduce(gpus)
    except Unusable as error:
        yield Comparison("gpu_link", "data", None, tool, ours, None, NOT_COMPARED, str(error))
        return
    found = _same("gpu_link", "data", None, tool, ours, ["wrong" if said["wrong"] else "right"])
    rate = f"bus bandwidth {said['rate']:.4g} GB/s"
    yield found._replace(why="; ".join(filter(None, (found.why, rate))))


def _at(value: Any, path: Tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _same(
    check: str, figure: str, gpu: Optional[int], tool: str, ours: Any, theirs: List[Any]
) -> Comparison:
    """Equal, or between the tool's two looks for a number that may grow meanwhile."""
    last = theirs[-1]
    if ours is None or last is None:
        side = "the check" if ours is None else tool
        why = f"{side} has no such figure"
        return Comparison(check, figure, gpu, tool, ours, last, NOT_COMPARED, why)
    numbers = all(isinstance(value, (int, float)) for value in [ours, *theirs])
    if ours in theirs or (numbers and min(theirs) <= ours <= max(theirs)):
        return Comparison(check, figure, gpu, tool, ours, last, AGREE)
    why = f"by {_percent(ours, last)}" if numbers and last else ""
    return Comparison(check, figure, gpu, tool, ours, last, DIFFERS, why)


def _rates(
    check: str,
    figure: str,
    ours: Dict[int, float],
    tools: Tools,
    copies: str,
    gpus: int,
    accepted: Tuple[float, float],
) -> Iterator[Comparison]:
    """Compare bytes/s by GPU with the tool's figures, the slowest of each GPU's."""
    try:
        tool, rows = _measured_copies(tools, copies)
        theirs = _by_gpu(rows, gpus)
    except Unusable as error:
        tool = "nvbandwidth"
        yield Comparison(check, figure, None, tool, None, None, NOT_COMPARED, str(error))
        return
    for gpu in range(gpus):
        mine, other = ours.get(gpu), theirs.get(gpu)
        value = None if mine is None else mine / 1e9
        if value is None or not other:
            side = "the check" if value is None else tool
            why = f"{side} has no such figure"
            yield Comparison(check, figure, gpu, tool, value, other, NOT_COMPARED, why)
            continue
        other *= 2 if copies == "local" else 1
        result = AGREE if accepted[0] <= value / other <= accepted[1] else DIFFERS
        yield Comparison(
            check, figure, gpu, tool, value, other, result, f"by {_percent(value, other)}"
        )


def _measured_copies(tools: Tools, copies: str) -> Tuple[str, List[List[Optional[float]]]]:
    """The tool that measured, and its rows; PyTorch copies not between GPUs."""
    try:
        return "nvbandwidth", tools.nvbandwidth(copies)
    except Missing as missing:
        if copies == "peers":
            raise
        try:
            return "PyTorch", tools.torch(copies)
        except Unusable as error:
            raise Unusable(f"{missing}; PyTorch: {error}") from error


def _by_gpu(rows: List[List[Optional[float]]], gpus: int) -> Dict[int, float]:
    """The slowest figure of each GPU: its column, and its row where rows are GPUs too."""
    if not rows or any(len(row) != gpus for row in rows):
        raise Unusable(f"the tool did not measure {gpus} GPUs")
    found: Dict[int, float] = {}
    for number, row in enumerate(rows):
        for gpu, value in enumerate(row):
            for one in {gpu, number if len(rows) > 1 else gpu} if value else ():
                found[one] = min(value or 0.0, found.get(one, value or 0.0))
    return found


def _percent(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %"
