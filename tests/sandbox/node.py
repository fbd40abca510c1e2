# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders one node of stand-in hardware, described by a scenario, into a directory.

    lib/libnvidia-ml.so.1  lib/libcuda.so.1  bin/{dcgmi,python,...}  root/{sys,proc,dev}  node.table  scenario.json

A scenario is a mapping (see ``scenarios/*.yml``); every key but ``model`` may be left out:

    description  one line
    model        a profile below
    gpus         how many GPUs are in the machine (8)
    driver       {version: "580.95.05", loaded: true, library: true | false | container,
                 skips: [slots the driver does not list]}
    rules        [{gpu: index | "*" | system, call: function | "*" | field.<id>, and one of
                   values: [...] (returned with 0), returns: code, hang: mode, missing: true;
                   times: n, for the first n calls only}]
    cuda         {index | "*": {key: value}}, rows ``cuda.<key>`` for the CUDA stand-in
    pci          {missing: [slots], drivers: {slot: name},
                 link: {slot | "*": {sysfs attribute: value | null}},
                 uplink: {slot | "*": {sysfs attribute: value}}}; a GPU with an uplink sits below a
                 switch, whose link to the host's port that is
    processes    [{gpu, pid, name, memory: bytes, kind: compute | graphics | mps}], in NVML, in
                 proc and holding dev/nvidiaN open
    files        {path below root: text | null | {link: target}}, written last: what else sysfs,
                 proc or etc show; null takes a file or directory away
    kmsg         ["boot" | {text, seq, usec, level, continued: [lines]}], the kernel's log in
                 dev/kmsg as records; seq counts from 0 and usec by a second where not given;
                 "boot" stands for the lines of a healthy boot, which is all there is where the
                 scenario has no kmsg; null: no such file
    dcgmi        anything the dcgmi stand-in understands; false: not installed
    programs     {name: script | null}, further programs of the host as shell scripts, in place of
                 those of a healthy one (host_files.PROGRAMS); null takes one away, as far as this
                 machine has none
    clock        synchronised | unsynchronised | refused, what the kernel says of its clock;
                 without it this machine's kernel is asked

GPUs count in bus order. ``pci`` and ``driver.skips`` count slots, everything else NVML indexes;
they differ only where the driver does not list every GPU: those in ``skips`` and those held by
another kernel driver. ``missing: true`` takes the function out of the library, as in an old driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from host_files import PROGRAMS, aer_files, render_host, write  # beside this file

SANDBOX = Path(__file__).resolve().parent
BUILD = SANDBOX.parent.parent / ".build" / "sandbox"
HANGS = ("ignore_term", "stop", "uninterruptible")
MIB = 1024 * 1024

#: Bus numbers of the GPU slots, in order, as on a common 8-GPU board.
BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}

#: What each GPU model answers. remap: row remapping; retire: page retirement; zeros: no ECC, yet
#: zeros instead of "not supported". nvlink: links, NVML's version number, MB/s of a link, and who
#: is at the other end (switch, mesh, pairs, four; None: nobody, as on a card without a bridge).
PROFILES = {
    "H100-80GB": dict(
        name="NVIDIA H100 80GB HBM3",
        device=0x2330,
        memory=81559 * MIB,
        generation=5,
        power=(700, 200, 700),
        clocks=(1980, 2619),
        cores=16896,
        errors="remap",
        banks=2560,
        mig=True,
        fabric=True,
        nvlink=(18, 6, 26562, "switch"),
    ),
    "H100-PCIe": dict(
        name="NVIDIA H100 PCIe",
        device=0x2331,
        memory=81559 * MIB,
        generation=5,
        power=(350, 200, 350),
        clocks=(1755, 1593),
        cores=14592,
        errors="remap",
        banks=2560,
        mig=True,
        nvlink=(12, 6, 26562, None),
    ),
    "H100-NVL": dict(
        name="NVIDIA H100 NVL",
        device=0x2321,
        memory=95830 * MIB,
        generation=5,
        power=(400, 200, 400),
        clocks=(1785, 2619),
        cores=16896,
        errors="remap",
        banks=3072,
        mig=True,
        nvlink=(12, 6, 26562, "pairs"),
    ),
    "H200": dict(
        name="NVIDIA H200",
        device=0x2335,
        memory=143771 * MIB,
        generation=5,
        power=(700, 200, 700),
        clocks=(1980, 3201),
        cores=16896,
        errors="remap",
        banks=3072,
        mig=True,
        fabric=True,
        nvlink=(18, 6, 26562, "switch"),
    ),
    "H20": dict(
        name="NVIDIA H20",
        device=0x2329,
        memory=97871 * MIB,
        generation=5,
        power=(500, 200, 500),
        clocks=(1980, 2619),
        cores=9984,
        errors="remap",
        banks=3072,
        mig=True,
        fabric=True,
        nvlink=(18, 6, 26562, "switch"),
    ),
    "A100-SXM4-80GB": dict(
        name="NVIDIA A100-SXM4-80GB",
        device=0x20B2,
        memory=81920 * MIB,
        generation=4,
        power=(400, 100, 400),
        clocks=(1410, 1593),
        cores=6912,
        errors="remap",
        banks=640,
        mig=True,
        fabric=True,
        nvlink=(12, 4, 25781, "switch"),
    ),
    "A100-PCIe-80GB": dict(
        name="NVIDIA A100 80GB PCIe",
        device=0x20B5,
        memory=81920 * MIB,
        generation=4,
        power=(300, 150, 300),
        clocks=(1410, 1512),
        cores=6912,
        errors="remap",
        banks=640,
        mig=True,
        nvlink=(12, 4, 25781, None),
    ),
    "A30": dict(
        name="NVIDIA A30",
        device=0x20B7,
        memory=24576 * MIB,
        generation=4,
        power=(165, 100, 165),
        clocks=(1440, 1215),
        cores=3584,
        errors="remap",
        banks=384,
        mig=True,
        nvlink=(4, 4, 25781, None),
    ),
    "A10": dict(
        name="NVIDIA A10",
        device=0x2236,
        memory=23028 * MIB,
        generation=4,
        power=(150, 100, 150),
        clocks=(1695, 6251),
        cores=9216,
        errors="remap",
        banks=192,
    ),
    "L4": dict(
        name="NVIDIA L4",
        device=0x27B8,
        memory=23034 * MIB,
        generation=4,
        power=(72, 40, 72),
        clocks=(2040, 6251),
        cores=7424,
        errors="remap",
        banks=96,
    ),
    "L40S": dict(
        name="NVIDIA L40S",
        device=0x26B9,
        memory=46068 * MIB,
        generation=4,
        power=(350, 100, 350),
        clocks=(2520, 9001),
        cores=18176,
        errors="remap",
        banks=192,
    ),
    "T4": dict(
        name="Tesla T4",
        device=0x1EB8,
        memory=15360 * MIB,
        generation=3,
        power=(70, 60, 70),
        clocks=(1590, 5001),
        cores=2560,
        errors="retire",
    ),
    "P100": dict(
        name="Tesla P100-PCIE-16GB",
        device=0x15F8,
        memory=16384 * MIB,
        generation=3,
        power=(250, 125, 250),
        clocks=(1328, 715),
        cores=3584,
        errors="retire",
        gsp=False,
    ),
    "V100-16GB": dict(
        name="Tesla V100-SXM2-16GB",
        device=0x1DB1,
        memory=16384 * MIB,
        generation=3,
        power=(300, 150, 300),
        clocks=(1530, 877),
        cores=5120,
        errors="retire",
        gsp=False,
        nvlink=(6, 2, 25781, "mesh"),
    ),
    "V100-32GB": dict(
        name="Tesla V100-SXM2-32GB",
        device=0x1DB5,
        memory=32768 * MIB,
        generation=3,
        power=(300, 150, 300),
        clocks=(1530, 877),
        cores=5120,
        errors="retire",
        gsp=False,
        nvlink=(6, 2, 25781, "mesh"),
    ),
    "B200": dict(
        name="NVIDIA B200",
        device=0x2901,
        memory=183359 * MIB,
        generation=5,
        power=(1000, 200, 1000),
        clocks=(1965, 3996),
        cores=18944,
        errors="remap",
        banks=4096,
        mig=True,
        fabric=True,
        nvlink=(18, 7, 53125, "switch"),
    ),
    "GB200": dict(
        name="NVIDIA GB200",
        device=0x2941,
        memory=189471 * MIB,
        generation=5,
        width=1,
        power=(1200, 200, 1200),
        clocks=(2062, 3996),
        cores=18944,
        errors="remap",
        banks=4096,
        mig=True,
        fabric="rack",
        nvlink=(18, 7, 53125, "switch"),
    ),
    "GH200": dict(
        name="NVIDIA GH200 480GB",
        device=0x2342,
        memory=97871 * MIB,
        generation=5,
        width=1,
        power=(900, 100, 900),
        clocks=(1980, 2619),
        cores=16896,
        errors="remap",
        banks=3072,
        mig=True,
        nvlink=(18, 6, 26562, None),
    ),
    "RTX-4090": dict(
        name="NVIDIA GeForce RTX 4090",
        device=0x2684,
        memory=24564 * MIB,
        generation=4,
        power=(450, 150, 600),
        clocks=(3105, 10501),
        cores=16384,
        errors="zeros",
    ),
    "GB10": dict(
        name="NVIDIA GB10",
        device=0x2E12,
        memory=None,
        generation=5,
        width=1,
        power=None,
        clocks=(3003, None),
        cores=6144,
        errors="zeros",
    ),
}
# Models that differ from another by name, memory and device.
for _name, _like, _called, _memory, _device in (
    ("H100-64GB", "H100-80GB", "NVIDIA H100", 65536, 0x2337),  # as on MareNostrum 5
    ("A100-64GB", "A100-SXM4-80GB", "NVIDIA A100-SXM-64GB", 65536, 0x20B3),
    ("GH200-144G", "GH200", "NVIDIA GH200 144G HBM3e", 147456, 0x2348),
    ("X9000", "L40S", "NVIDIA X9000", 49152, 0x9000),  # a model that nobody knows yet
    ("RTX-PRO-6000", "L40S", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 0x2BB5),
):
    PROFILES[_name] = dict(PROFILES[_like], name=_called, memory=_memory * MIB, device=_device)
# Boards of four, whose links go in equal parts to the three other GPUs.
for _name in ("A100-SXM4-80GB", "A100-64GB", "H100-80GB", "H100-64GB", "H200"):
    PROFILES[f"{_name} of four"] = dict(
        PROFILES[_name], fabric=False, nvlink=(*PROFILES[_name]["nvlink"][:3], "four")
    )

#: GB/s that a healthy GPU's memory does by the triad, about 0.9 of the data sheet for HBM and 0.8
#: for GDDR with ECC.
_TRIAD = {
    "H100-80GB": 3020,
    "H100-PCIe": 1840,
    "H100-NVL": 3550,
    "H200": 4310,
    "H20": 2010,
    "A100-SXM4-80GB": 1800,
    "A100-PCIe-80GB": 1740,
    "A30": 830,
    "A10": 470,
    "L4": 240,
    "L40S": 690,
    "T4": 245,
    "V100-16GB": 810,
    "V100-32GB": 810,
    "B200": 7050,
    "GB200": 7100,
    "GH200": 3600,
    "RTX-4090": 930,
    "GB10": 240,
    "H100-64GB": 1850,
    "A100-64GB": 1470,
    "GH200-144G": 4400,
    "RTX-PRO-6000": 1300,
}
#: The GPU at the other end of each link of a GPU on a board of eight V100 (nvidia-smi topo -m of a
#: DGX-1): a hybrid cube mesh.
_MESH = (
    (1, 2, 3, 3, 4, 4),
    (0, 2, 2, 3, 5, 5),
    (0, 1, 1, 3, 3, 6),
    (0, 0, 1, 2, 2, 7),
    (0, 0, 5, 6, 7, 7),
    (1, 1, 4, 6, 6, 7),
    (2, 4, 5, 5, 7, 7),
    (3, 4, 4, 5, 6, 6),
)
#: The NVSwitch that a node shows on its bus.
_SWITCH = "00000000:05:00.0"

#: What the host's first CPU calls itself.
CPU_MODEL = "Intel(R) Xeon(R) Platinum 8480C"

#: Checks that have nothing to look at on a stand-in node, and skip: it is no container, needs no
#: image, has no NFS.
NOTHING_HERE = {"gpu_visibility": "skip", "image_registry": "skip", "nfs_mounts": "skip"}

_KEYS = (
    "description",
    "model",
    "gpus",
    "driver",
    "rules",
    "cuda",
    "pci",
    "processes",
    "files",
    "kmsg",
    "dcgmi",
    "programs",
    "clock",
)
_DRIVER = {"version": "580.95.05", "loaded": True, "library": True, "skips": []}
_PCI = {"missing": [], "drivers": {}, "link": {}, "uplink": {}}
_PROCESS_CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
#: Functions by the major version of the driver that brought them.
_SINCE = {
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetSupportedClocksEventReasons": 535,
    "nvmlDeviceGetSramEccErrorStatus": 550,
    "nvmlDeviceGetRepairStatus": 575,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetGpuFabricInfoV": 545,
}


class ScenarioError(ValueError):
    """A scenario that does not mean anything; says what is wrong and what is accepted."""


@dataclass(frozen=True)
class Node:
    """A rendered node. ``gpus`` are those that NVML lists, as ``{"index", "slot", "uuid", "pci",
    "name"}``.
    """

    directory: Path
    scenario: dict
    gpus: list
    settings: dict = field(default_factory=dict)

    @property
    def root(self) -> str:
        return str(self.directory / "root")

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    @property
    def library(self) -> str | None:
        """Path of the stand-in for libnvidia-ml.so.1, None where the scenario has none on the
        loader's path.
        """
        path = self.directory / "lib" / "libnvidia-ml.so.1"
        return str(path) if path.exists() else None

    @property
    def environment(self) -> dict:
        return {
            "LD_LIBRARY_PATH": str(self.directory / "lib"),
            "PATH": f"{self.directory / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "SANDBOX_NODE": str(self.directory),
            **(
                {
                    "LD_PRELOAD": str(library("adjtimex.c")),
                    "SANDBOX_KERNEL_CLOCK": self.scenario["clock"],
                }
                if self.scenario["clock"]
                else {}
            ),
            **self.settings,
        }


def processes_of(node: Node) -> list:
    """Numbers of the processes that were started on a node and have not ended."""
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"SANDBOX_NODE={node.directory}\0".encode() in (home / "environ").read_bytes()
            if ours and (home / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(home.name))
        except OSError:
            continue
    return found


def build(
    scenario: dict | str | Path,
    directory: Path,
    python: str = sys.executable,
    settings: dict | None = None,
) -> Node:
    """Render a scenario (a mapping, a file, or the name of a file in ``scenarios/``) into
    ``directory``; ``settings`` are further environment variables.
    """
    scenario = checked(scenario if isinstance(scenario, dict) else _load(scenario))
    directory = Path(directory).resolve()
    for name in (
        "lib",
        "bin",
        "root/sys/bus/pci/devices",
        "root/proc/sys/kernel/random",
        "root/dev",
        "root/run",
    ):
        (directory / name).mkdir(parents=True, exist_ok=True)
    slots = _slots(scenario)
    listed = [
        slot
        for slot in slots
        if slot["driver"] == "nvidia" and slot["slot"] not in scenario["driver"]["skips"]
    ]
    gpus = [
        {
            "index": index,
            "slot": slot["slot"],
            "uuid": _uuid(slot["pci"], scenario["model"]),
            "pci": slot["pci"],
            "name": slot["name"],
        }
        for index, slot in enumerate(listed)
    ]
    _render_sysfs(scenario, slots, directory / "root")
    _render_proc_and_dev(scenario, gpus, directory / "root")
    render_host(scenario, PROFILES[scenario["model"]], gpus, directory / "root")
    _render_files(scenario["files"], directory / "root")
    (directory / "node.table").write_text("".join(f"{row}\n" for row in _table(scenario, gpus)))
    (directory / "scenario.json").write_text(json.dumps(dict(scenario, gpu_list=gpus), indent=1))
    node = Node(directory, scenario, gpus, settings or {})
    _render_programs(node, python)
    _render_libraries(node)
    return node


def _uuid(*words: str) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(words))}"


# ---- scenarios ----


def _load(scenario: str | Path) -> dict:
    path = Path(scenario)
    if not path.suffix:
        path = SANDBOX / "scenarios" / f"{scenario}.yml"
    if not path.exists():
        names = sorted(file.stem for file in (SANDBOX / "scenarios").glob("*.yml"))
        raise ScenarioError(f"{scenario}: no such scenario; there are {', '.join(names)}")
    return yaml.safe_load(path.read_text())


def checked(scenario: dict) -> dict:
    """The scenario with its defaults; raises ScenarioError for what is not understood."""
    _only("the scenario", scenario, _KEYS)
    gpus = scenario.get("gpus", 8)
    model = scenario.get("model", "H100-80GB")
    if not isinstance(gpus, int) or not 0 <= gpus <= len(BUSES):
        raise ScenarioError(f"gpus: {gpus!r} is invalid; expected a number from 0 to {len(BUSES)}")
    if model not in PROFILES:
        raise ScenarioError(f"model: {model!r} has no profile; there are {', '.join(PROFILES)}")
    driver = _with_defaults("driver", scenario.get("driver"), _DRIVER)
    if driver["library"] not in (True, False, "container"):
        raise ScenarioError(
            f"driver.library: {driver['library']!r} is invalid; expected true, false or container"
        )
    pci = _with_defaults("pci", scenario.get("pci"), _PCI)
    rules = [_checked_rule(rule) for rule in scenario.get("rules") or []]
    processes = scenario.get("processes") or []
    files, kmsg = scenario.get("files") or {}, scenario.get("kmsg", ["boot"])
    _check_processes(processes)
    _check_cuda(scenario.get("cuda") or {})
    if scenario.get("clock") not in (None, "synchronised", "unsynchronised", "refused"):
        raise ScenarioError(
            f"clock: {scenario['clock']!r} is invalid; expected synchronised, unsynchronised "
            "or refused"
        )
    _check_files(files)
    for record in kmsg or []:
        if record != "boot":
            _only("a kmsg record", record, ("text", "seq", "usec", "level", "continued"))
    return {
        "description": scenario.get("description", ""),
        "model": model,
        "gpus": gpus,
        "driver": driver,
        "rules": rules,
        "cuda": scenario.get("cuda") or {},
        "pci": pci,
        "processes": processes,
        "files": files,
        "kmsg": kmsg,
        "dcgmi": scenario.get("dcgmi", {}),
        "programs": {**PROGRAMS, **(scenario.get("programs") or {})},
        "clock": scenario.get("clock"),
    }


def _check_processes(processes: list) -> None:
    for process in processes:
        _only("a process", process, ("gpu", "pid", "name", "memory", "kind"))
        if process.get("kind", "compute") not in _PROCESS_CALLS:
            raise ScenarioError(
                f"kind: {process['kind']!r} is invalid; a process is one of "
                f"{', '.join(_PROCESS_CALLS)}"
            )


def _check_cuda(cuda: dict) -> None:
    for gpu, keys in cuda.items():
        if not (isinstance(gpu, int) or gpu == "*") or not isinstance(keys, dict):
            raise ScenarioError(
                f'cuda: {gpu!r}: {keys!r} is invalid; expected a GPU index or "*" and a mapping'
            )


def _check_files(files: dict) -> None:
    for path, content in files.items():
        if (
            path.startswith("/")
            or ".." in path.split("/")
            or not (content is None or isinstance(content, str) or list(content) == ["link"])
        ):
            raise ScenarioError(
                f"files: {path!r}: {content!r} is invalid; expected a path below root and "
                f"text, null or {{link: target}}"
            )


def _only(what: str, mapping: dict, accepted) -> None:
    if not isinstance(mapping, dict):
        raise ScenarioError(f"{what} is a mapping, not {mapping!r}")
    strange = [key for key in mapping if key not in accepted]
    if strange:
        raise ScenarioError(
            f"{what} has no key {', '.join(map(repr, strange))}; accepted are {', '.join(accepted)}"
        )


def _with_defaults(what: str, given: dict | None, defaults: dict) -> dict:
    _only(what, given or {}, tuple(defaults))
    return {**defaults, **(given or {})}


def _checked_rule(rule: dict) -> dict:
    _only("a rule", rule, ("gpu", "call", "values", "returns", "times", "hang", "missing"))
    gpu, call = rule.get("gpu", "*"), rule.get("call")
    if not (isinstance(gpu, int) or gpu in ("*", "system")):
        raise ScenarioError(f'a rule\'s gpu is an index, "*" or system, not {gpu!r}')
    if not isinstance(call, str) or not re.fullmatch(
        r"\*|field\.\d+(\.\d+)?|(nvml|cu)\w+(\.\d+){0,3}", call
    ):
        raise ScenarioError(
            f'a rule\'s call is an NVML or CUDA function, field.<id> or "*", not {call!r}'
        )
    if sum(key in rule for key in ("values", "hang", "missing")) > 1 or not set(rule) & {
        "values",
        "returns",
        "hang",
        "missing",
    }:
        raise ScenarioError(f"a rule has one of values, returns, hang, missing: {rule!r}")
    if "hang" in rule and rule["hang"] not in HANGS:
        raise ScenarioError(f"hang: {rule['hang']!r} is invalid; there are {', '.join(HANGS)}")
    return dict(rule, gpu=gpu, call=call)


def _slots(scenario: dict) -> list:
    """Every GPU in the machine, whether the driver lists it or not."""
    loaded = "nvidia" if scenario["driver"]["loaded"] else None
    drivers = {int(slot): name for slot, name in scenario["pci"]["drivers"].items()}
    return [
        {
            "slot": slot,
            "bus": bus,
            "pci": f"00000000:{bus:02X}:00.0",
            "sysfs": f"0000:{bus:02x}:00.0",
            "driver": drivers.get(slot, loaded),
            "name": PROFILES[scenario["model"]]["name"],
        }
        for slot, bus in enumerate(BUSES[: scenario["gpus"]])
    ]


# ---- node.table ----


def _table(scenario: dict, gpus: list) -> list:
    """Rows of the profile, without those that a rule of the scenario covers, and then the rules."""
    rules = [
        dict(rule, call=_canonical(rule["call"]))
        for rule in scenario["rules"]
        if not rule.get("missing")
    ]
    rows = [
        row
        for row in _profile_rows(scenario, gpus)
        if not any(_covers(rule, row) for rule in rules if "times" not in rule)
    ]
    table = [_row(gpu, call, f"{code} {_words(values)}") for gpu, call, code, values in rows]
    for rule in rules:
        times = f"x{rule['times']}" if "times" in rule else ""
        outcome = (
            f"hang {rule['hang']}"
            if "hang" in rule
            else f"{rule.get('returns', 0)}{times} {_words(rule.get('values', []))}"
        )
        table.append(_row(rule["gpu"], rule["call"], outcome))
    table += [
        _row("*", f"cuda.{key}", f"0 {value}")
        for key, value in _cuda_rows(scenario["model"]).items()
    ]
    for gpu, keys in scenario["cuda"].items():
        table += [
            _row(gpu, f"cuda.{key}", f"0 {_word(_number(value))}") for key, value in keys.items()
        ]
    return table


def _cuda_rows(model: str) -> dict:
    """What our kernels do on a healthy GPU of a model."""
    rows = {"triad": _TRIAD[model] * 10**9} if model in _TRIAD else {}
    return {**rows, **({"capability": 6} if model == "P100" else {})}


def _row(gpu, call: str, outcome: str) -> str:
    return f"{gpu} {call} {outcome}".rstrip()


def _words(values: list) -> str:
    return " ".join(_word(value) for value in values)


def _word(value) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and not re.fullmatch(r"-?\w+\+\w+", value):
        return f'"{value}"'
    return str(value)


def _number(value):
    """YAML reads 55.2e9 as text, since its exponent has no sign."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e\d+", value) else value


def _canonical(call: str) -> str:
    """The name under which the NVML stand-in looks a function up."""
    if not call.startswith("nvml"):
        return call
    name, dot, selector = call.partition(".")
    name = (
        re.sub(r"_v\d+$", "", name)
        .replace("ClocksThrottleReasons", "ClocksEventReasons")
        .replace("nvmlInitWithFlags", "nvmlInit")
    )
    return name + dot + selector


def _covers(rule: dict, row: tuple) -> bool:
    gpu, call = row[:2]
    same_gpu = rule["gpu"] == gpu or (rule["gpu"] == "*" and gpu != "system")
    return same_gpu and (
        rule["call"] == "*" or rule["call"] == call or call.startswith(rule["call"] + ".")
    )


def _profile_rows(scenario: dict, gpus: list) -> list:
    profile = PROFILES[scenario["model"]]
    version = scenario["driver"]["version"]
    major = int(version.split(".")[0])
    rows = _driver_rows(scenario["driver"]["loaded"], version, major, len(gpus))
    rows += [("*", call, 0, values) for call, values in _model_rows(profile, major).items()]
    if profile.get("gsp", True):
        rows += [
            ("*", "nvmlDeviceGetGspFirmwareVersion", 0, [version]),
            ("*", "nvmlDeviceGetGspFirmwareMode", 0, [1, 1]),
        ]
    slots = {slot["slot"]: slot for slot in _slots(scenario)}
    for gpu in gpus:
        rows += _identity_rows(profile, gpu)
        rows += _bus_rows(gpu, gpus, slots, _link(scenario, slots[gpu["slot"]]))
        rows += _nvlink_peers(profile, gpus, gpu["index"])
        rows += _process_rows(profile, scenario["processes"], gpu["index"])
    return rows


def _driver_rows(loaded: bool, version: str, major: int, count: int) -> list:
    """What NVML answers for the system: the versions and the number of GPUs."""
    if major >= 580:
        cuda = 13000
    elif major >= 570:
        cuda = 12080
    elif major >= 535:
        cuda = 12020
    else:
        cuda = 11040
    return [
        ("system", "nvmlInit", 0 if loaded else 9, []),
        ("system", "nvmlSystemGetDriverVersion", 0, [version]),
        ("system", "nvmlSystemGetNVMLVersion", 0, [f"{'13' if major >= 580 else '12'}.{version}"]),
        ("system", "nvmlSystemGetCudaDriverVersion", 0, [cuda]),
        ("system", "nvmlDeviceGetCount", 0, [count]),
    ]


def _identity_rows(profile: dict, gpu: dict) -> list:
    index = gpu["index"]
    return [
        (index, "nvmlDeviceGetUUID", 0, [gpu["uuid"]]),
        (index, "nvmlDeviceGetSerial", 0, [str(1650000000000 + gpu["slot"])]),
        (index, "nvmlDeviceGetPciInfo", 0, [gpu["pci"], (profile["device"] << 16) | 0x10DE]),
    ]


def _bus_rows(gpu: dict, gpus: list, slots: dict, link: dict) -> list:
    """The PCIe link of a GPU, its CPUs, and how far the other GPUs are."""
    index = gpu["index"]
    on_upper_socket = slots[gpu["slot"]]["bus"] >= 0x80

    def distance(peer: dict) -> int:
        if peer is gpu:
            return 0
        return 40 if on_upper_socket == (slots[peer["slot"]]["bus"] >= 0x80) else 50

    generation = _generation(link["current_link_speed"])
    return [
        (index, "nvmlDeviceGetCurrPcieLinkGeneration", 0, [generation]),
        (index, "nvmlDeviceGetCurrPcieLinkWidth", 0, [link["current_link_width"]]),
        (index, "nvmlDeviceGetCpuAffinity", 0, _affinity(link["local_cpulist"])),
        (index, "nvmlDeviceGetTopologyCommonAncestor", 0, [distance(peer) for peer in gpus]),
    ]


def _process_rows(profile: dict, processes: list, index: int) -> list:
    """The processes on a GPU by kind, and the memory they use."""
    rows = []
    used = 0
    for kind, call in _PROCESS_CALLS.items():
        running = [
            process
            for process in processes
            if process["gpu"] == index and process.get("kind", "compute") == kind
        ]
        values = [
            value for process in running for value in (process["pid"], process.get("memory", 0))
        ]
        rows.append((index, call, 0, values))
        used += sum(int(process.get("memory", 0)) for process in running)
    if profile["memory"]:
        rows.append((index, "nvmlDeviceGetMemoryInfo", 0, [profile["memory"], 550 * MIB, used]))
    return rows


def _model_rows(profile: dict, major: int) -> dict:
    rows = {
        **_basic_rows(profile),
        **_clock_rows(*profile["clocks"]),
        **_power_rows(profile["power"]),
        **_error_rows(profile, major),
    }
    if profile.get("mig"):
        rows["nvmlDeviceGetMigMode"] = [0, 0]
    # NVML tells of a fabric from Hopper on; where there is none it says "not supported" as a state.
    if profile["generation"] >= 5 and profile["errors"] == "remap":
        rows["nvmlDeviceGetGpuFabricInfoV"] = (
            [3, 0, 0, 1, *([7, 1] if profile["fabric"] == "rack" else [0, 0])]
            if profile.get("fabric")
            else [0, 0, 0, 0, 0, 0]
        )
    if "nvlink" in profile:
        rows.update(_nvlink_rows(*profile["nvlink"]))
    return rows


def _basic_rows(profile: dict) -> dict:
    width = profile.get("width", 16)
    return {
        "nvmlDeviceGetName": [profile["name"]],
        "nvmlDeviceGetPersistenceMode": [1],
        "nvmlDeviceGetComputeMode": [0],
        "nvmlDeviceGetPerformanceState": [0],
        "nvmlDeviceGetTemperature": [34],
        "nvmlDeviceGetUtilizationRates": [0, 0],
        "nvmlDeviceGetMaxPcieLinkGeneration": [profile["generation"]],
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": [profile["generation"]],
        "nvmlDeviceGetMaxPcieLinkWidth": [width],
        "nvmlDeviceGetPcieReplayCounter": [0],
        "nvmlDeviceGetPcieThroughput": [0],
        "nvmlDeviceGetNumGpuCores": [profile["cores"]],
        "nvmlDeviceGetVbiosVersion": [
            f"96.00.{profile['device'] >> 8:02X}.{profile['device'] & 0xFF:02X}.01"
        ],
        "nvmlDeviceGetBoardPartNumber": [f"692-{profile['device']:04X}-0200-000"],
        "nvmlDeviceGetInforomImageVersion": [f"{profile['device']:04X}.0200.00.05"],
        "nvmlDeviceGetInforomVersion.0": ["2.1"],
        "nvmlDeviceGetBrand": [
            5 if "GeForce" in profile["name"] else 2 if "Tesla" in profile["name"] else 14
        ],
        "nvmlDeviceGetP2PStatus": [0, 0, 0 if profile.get("nvlink", (None,))[-1] else 5, 0, 0]
        if profile["errors"] != "zeros"
        else [1, 1, 5, 1, 1],
        "nvmlDeviceGetCurrentClocksEventReasons": [0x1],
        "nvmlDeviceGetSupportedClocksEventReasons": [0x1FF],
        "nvmlDeviceGetViolationStatus": ["1000000+100000", 0],
        "field.269": [0],
        "field.270": [0],
        "field.271": [0],
    }


def _clock_rows(graphics: int, memory: int) -> dict:
    rows = {}
    for call in (
        "ClockInfo",
        "MaxClockInfo",
        "ApplicationsClock",
        "DefaultApplicationsClock",
        "MaxCustomerBoostClock",
    ):
        rows[f"nvmlDeviceGet{call}.0"] = rows[f"nvmlDeviceGet{call}.1"] = [graphics]
        if memory:
            rows[f"nvmlDeviceGet{call}.2"] = [memory]
    return rows


def _power_rows(power) -> dict:
    """The limits and the draw; `power` is (limit, lowest, highest) in watts, or empty."""
    if not power:
        return {}
    limit, lowest, highest = (watts * 1000 for watts in power)
    rows = {
        f"nvmlDeviceGet{call}": [limit]
        for call in ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit")
    }
    rows["nvmlDeviceGetPowerManagementLimitConstraints"] = [lowest, highest]
    rows["nvmlDeviceGetPowerUsage"] = [limit // 10]
    rows["nvmlDeviceGetTotalEnergyConsumption"] = ["86400000+70"]
    return rows


def _error_rows(profile: dict, major: int) -> dict:
    """What counts memory errors: nothing, retired pages or remapped rows, by generation."""
    rows = {}
    errors = profile["errors"]
    if errors != "zeros":
        rows.update(
            {
                "nvmlDeviceGetEccMode": [1, 1],
                "nvmlDeviceGetTotalEccErrors": [0],
                "nvmlDeviceGetMemoryErrorCounter": [0],
            }
        )
        rows["nvmlDeviceGetInforomVersion.1"] = ["7.16"]
    # The SRAM's own counters and its threshold came with the Ampere generation.
    if errors == "remap":
        rows["nvmlDeviceGetSramEccErrorStatus"] = [0] * 7
    if errors in ("remap", "zeros"):
        rows.update(
            {
                "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
                "nvmlDeviceGetRowRemapperHistogram": [profile.get("banks", 0), 0, 0, 0, 0],
            }
        )
        rows.update({f"field.{identifier}": [0] for identifier in (142, 143, 144, 145)})
    if errors == "retire":
        rows.update(
            {"nvmlDeviceGetRetiredPages": [], "nvmlDeviceGetRetiredPagesPendingStatus": [0]}
        )
    if errors == "remap" and major >= 570:
        rows["field.230"] = [0]
    return rows


def _nvlink_rows(links: int, version: int, speed: int, peer: str | None) -> dict:
    """What NVML says of the links; at whose other end there is nobody, they are inactive. The
    counters of NVLink 5 are others than those before.
    """
    rows = {
        "nvlink.links": [links],
        "field.91": [links],
        "nvmlDeviceGetNvLinkState": [int(peer is not None)],
        "nvmlDeviceGetNvLinkVersion": [version],
        "nvmlDeviceGetNvLinkCapability": [1],
        "field.165": [int(peer is not None)],
        "field.166": [version],
    }
    if peer is None:
        return rows
    rows.update(
        {
            "field.90": [speed],
            "field.164": [speed],
            "nvmlDeviceGetNvLinkRemoteDeviceType": [2 if peer == "switch" else 0],
        }
    )
    if peer == "switch" and version < 7:
        rows["nvmlDeviceGetNvLinkRemotePciInfo"] = [_SWITCH, 0x22A310DE]
    if version < 7:
        rows["nvmlDeviceGetNvLinkErrorCounter"] = [0]
    rows.update(
        {
            f"field.{field}": [0]
            for field in (
                (161, 162, 163) if version < 7 else (*range(206, 216), 219, 220, 221, 222)
            )
        }
    )
    return rows


def _nvlink_peers(profile: dict, gpus: list, index: int) -> list:
    """Rows of the links of one GPU to others; one whose other end is not in the machine is
    inactive.
    """
    links, _version, _speed, kind = profile.get("nvlink", (0, 0, 0, None))
    if kind not in ("mesh", "pairs", "four"):
        return []
    rows = []
    for link in range(links):
        if kind == "four":
            peer = [other for other in range(4) if other != index][link * 3 // links]
        else:
            peer = index ^ 1 if kind == "pairs" else _MESH[index][link]
        if peer < len(gpus):
            rows.append(
                (
                    index,
                    f"nvmlDeviceGetNvLinkRemotePciInfo.{link}",
                    0,
                    [gpus[peer]["pci"], (profile["device"] << 16) | 0x10DE],
                )
            )
        else:
            rows += [
                (index, f"nvmlDeviceGetNvLinkState.{link}", 0, [0]),
                (index, f"field.165.{link}", 0, [0]),
            ]
    return rows


# ---- sysfs, proc, dev ----


def _link(scenario: dict, slot: dict) -> dict:
    """The attributes of a GPU's PCI device in sysfs; those that are None are left out."""
    profile = PROFILES[scenario["model"]]
    second_socket = slot["bus"] >= 0x80
    attributes = {
        "vendor": "0x10de",
        "device": f"0x{profile['device']:04x}",
        "class": "0x030200" if profile["errors"] != "zeros" else "0x030000",
        "current_link_speed": _SPEEDS[profile["generation"]],
        "max_link_speed": _SPEEDS[profile["generation"]],
        "current_link_width": profile.get("width", 16),
        "max_link_width": profile.get("width", 16),
        "numa_node": int(second_socket),
        "local_cpulist": "56-111,168-223" if second_socket else "0-55,112-167",
    }
    return {**attributes, **_of_slot(scenario["pci"]["link"], slot)}


def _of_slot(changes: dict, slot: dict) -> dict:
    """What a scenario says of all slots, and of this one."""
    named = {str(key): value for key, value in changes.items()}
    return {**named.get("*", {}), **named.get(str(slot["slot"]), {})}


def _generation(speed: str | None) -> int:
    gigatransfers = float((speed or "0").split(" ")[0])
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}.get(gigatransfers, 0)


def _affinity(cpulist: str | None) -> list:
    mask = 0
    for part in (cpulist or "").split(","):
        first, _dash, last = part.partition("-")
        for cpu in range(int(first or 0), int(last or first or -1) + 1):
            mask |= 1 << cpu
    return [hex(mask >> shift & (1 << 64) - 1) for shift in range(0, 256, 64)]


def _render_sysfs(scenario: dict, slots: list, root: Path) -> None:
    for slot in slots:
        if slot["slot"] in scenario["pci"]["missing"]:
            continue
        link = _link(scenario, slot)
        port = f"pci0000:{slot['bus'] - 1:02x}/0000:{slot['bus'] - 1:02x}:01.0"
        bridge = {
            "class": "0x060400",
            "numa_node": link["numa_node"],
            **{key: link[key] for key in link if "_link_" in key},
        }
        uplink = _of_slot(scenario["pci"]["uplink"], slot)
        _pci_device(
            root, port, {"vendor": "0x8086", "device": "0x352a", **bridge, **uplink}, "pcieport"
        )
        if uplink:
            name = os.path.basename(port)[:-1]
            upper, lower = f"{port}/{name}1", f"{port}/{name}1/{name}2"
            _pci_device(
                root,
                upper,
                {"vendor": "0x1000", "device": "0xc030", **bridge, **uplink},
                "pcieport",
            )
            _pci_device(root, lower, {"vendor": "0x1000", "device": "0xc030", **bridge}, "pcieport")
            port = lower
        _pci_device(root, f"{port}/{slot['sysfs']}", link, slot["driver"])
    profile = PROFILES[scenario["model"]]
    if slots and profile.get("fabric") is True and profile["nvlink"][1] < 7:
        _pci_device(
            root,
            "pci0000:04/0000:05:00.0",
            {"vendor": "0x10de", "device": "0x22a3", "class": "0x068000"},
            "nvidia-nvswitch",
        )
    network = {
        "numa_node": 0,
        "current_link_speed": _SPEEDS[5],
        "max_link_speed": _SPEEDS[5],
        "current_link_width": 16,
        "max_link_width": 16,
    }
    _pci_device(
        root,
        "pci0000:0e/0000:0f:00.0",
        {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", **network},
        "mlx5_core",
    )
    _pci_device(
        root,
        "pci0000:10/0000:11:00.0",
        {"vendor": "0x8086", "device": "0x1593", "class": "0x020000", **network},
        "ice",
    )
    for node, cpulist in enumerate(("0-55,112-167", "56-111,168-223")):
        write(root / f"sys/devices/system/node/node{node}/cpulist", cpulist)


def _pci_device(root: Path, path: str, attributes: dict, driver: str | None) -> None:
    """A PCI device below sys/devices, its place in the tree being its bridges, with a link to it in
    sys/bus/pci/devices.
    """
    device = root / "sys/devices" / path
    errors = (
        {}
        if device.name.startswith("0000:05")
        else aer_files(root_port=attributes.get("class") == "0x060400")
    )
    for name, value in {**errors, **attributes}.items():
        if value is not None:
            write(device / name, str(value))
    devices = root / "sys/bus/pci/devices"
    (devices / device.name).symlink_to(os.path.relpath(device, devices))
    if driver:
        home = root / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(os.path.relpath(home, device))


def _render_proc_and_dev(scenario: dict, gpus: list, root: Path) -> None:
    write(
        root / "proc/cpuinfo",
        "".join(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: {CPU_MODEL}\n\n"
            for cpu in range(4)
        ),
    )
    write(
        root / "proc/sys/kernel/random/boot_id",
        str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(scenario))),
    )
    # The kernel's own, by which a host's processes are told from those of a container.
    write(root / "proc/2/comm", "kthreadd")
    write(root / "proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984" + " 0" * 43)
    for process in scenario["processes"]:
        home = root / "proc" / str(process["pid"])
        name = process.get("name", "python3")
        write(home / "comm", name)
        write(home / "cmdline", f"{name}\0")
        write(
            home / "stat",
            f"{process['pid']} ({name}) S 1 {process['pid']} {process['pid']} 0 -1 4194304"
            + " 0" * 43,
        )
        (home / "fd").mkdir()
        (home / "fd" / "7").symlink_to(f"/dev/nvidia{process['gpu']}")
    if not scenario["driver"]["loaded"] or not scenario["gpus"]:
        return
    version = scenario["driver"]["version"]
    write(
        root / "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build",
    )
    (root / "proc/driver/nvidia/gpus").mkdir(parents=True)
    for gpu in gpus:
        text = (
            f"Model: \t\t {gpu['name']}\nGPU UUID: \t {gpu['uuid']}\nBus Type: \t "
            f"PCIe\nDevice Minor: \t {gpu['index']}\n"
        )
        write(root / f"proc/driver/nvidia/gpus/{gpu['pci'][4:].lower()}/information", text)
    for name in [f"nvidia{gpu['index']}" for gpu in gpus] + ["nvidiactl", "nvidia-uvm"]:
        (root / "dev" / name).touch()


def _render_files(files: dict, root: Path) -> None:
    for name, content in files.items():
        path = root / name
        if content is None:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        elif isinstance(content, dict):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(content["link"])
        else:
            write(path, content)


# ---- programs and libraries ----


def _render_programs(node: Node, python: str) -> None:
    exports = "".join(
        f"export {name}='{value}'\n" for name, value in node.environment.items() if name != "PATH"
    )
    wrapper = node.directory / "bin" / "python"
    wrapper.write_text(
        f"#!/bin/sh\n{exports}export PATH='{node.directory / 'bin'}':\"$PATH\"\nexec "
        f"'{python}' \"$@\"\n"
    )
    wrapper.chmod(0o755)
    dcgmi = SANDBOX / "dcgmi"
    if dcgmi.exists() and node.scenario["dcgmi"] is not False:
        (node.directory / "bin" / "dcgmi").symlink_to(dcgmi)
    for name, script in node.scenario["programs"].items():
        if script is not None:
            program = node.directory / "bin" / name
            program.write_text(f"#!/bin/sh\n{script.rstrip()}\n")
            program.chmod(0o755)


def _render_libraries(node: Node) -> None:
    driver = node.scenario["driver"]
    if not driver["library"]:
        return
    home = node.directory / "lib"
    if driver["library"] == "container":
        home = node.directory / "root/run/nvidia/driver/usr/lib/x86_64-linux-gnu"
        home.mkdir(parents=True)
    missing = {rule["call"] for rule in node.scenario["rules"] if rule.get("missing")}
    missing |= {
        name for name, since in _SINCE.items() if int(driver["version"].split(".")[0]) < since
    }
    (home / "libnvidia-ml.so.1").symlink_to(library("libnvidia-ml.c", missing))
    if (SANDBOX / "libcuda.c").exists():
        (home / "libcuda.so.1").symlink_to(library("libcuda.c"))


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def library(source: str, missing: set | frozenset = frozenset()) -> Path:
    """The shared library built from a source of this directory, without the functions in
    ``missing``; built when older than its source.
    """
    stem = source.rpartition(".")[0]
    suffix = (
        "-" + hashlib.sha256(" ".join(sorted(missing)).encode()).hexdigest()[:12] if missing else ""
    )
    built = BUILD / f"{stem}{suffix}.so.1"
    if built.exists() and built.stat().st_mtime > max(
        file.stat().st_mtime for file in (SANDBOX / source, *SANDBOX.glob("*.h"))
    ):
        return built
    found = compiler()
    if not found:
        raise RuntimeError("the stand-in libraries need a C compiler: cc was not found")
    BUILD.mkdir(parents=True, exist_ok=True)
    script = BUILD / f"{stem}{suffix}.{os.getpid()}.map"
    fresh = BUILD / f"{stem}{suffix}.{os.getpid()}.so"
    hidden = "".join(f" {name};" for name in sorted(missing))
    script.write_text("{ global: *;" + (f" local:{hidden}" if hidden else "") + " };\n")
    options = [
        "-std=gnu11",
        "-O2",
        "-g0",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
        f"-Wl,-soname,{stem}.so.1",
        f"-Wl,--version-script={script}",
    ]
    subprocess.run(
        [found, *options, "-o", str(fresh), str(SANDBOX / source), "-lpthread", "-ldl", "-lm"],
        check=True,
    )
    script.unlink()
    os.replace(fresh, built)
    return built
