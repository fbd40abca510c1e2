# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders one node of stand-in hardware, described by a scenario, into a directory.

    lib/libnvidia-ml.so.1  lib/libcuda.so.1  bin/dcgmi  bin/python  root/{sys,proc,dev}  node.table  scenario.json

A scenario is a mapping (see ``scenarios/*.yml``); every key but ``model`` may be left out:

    description  one line
    model        a profile below
    gpus         how many GPUs are in the machine (8)
    driver       {version: "580.95.05", loaded: true, library: true | false | container, skips: [slots the driver does not list]}
    rules        [{gpu: index | "*" | system, call: function | "*" | field.<id>, and one of
                   values: [...] (returned with 0), returns: code, hang: mode, missing: true; times: n, for the first n calls only}]
    cuda         {index | "*": {key: value}}, rows ``cuda.<key>`` for the CUDA stand-in
    pci          {missing: [slots], drivers: {slot: name}, link: {slot | "*": {sysfs attribute: value | null}}}
    processes    [{gpu, pid, name, memory: bytes, kind: compute | graphics | mps}], in NVML, in proc and holding dev/nvidiaN open
    dcgmi        anything the dcgmi stand-in understands; false: not installed

GPUs count in bus order. ``pci`` and ``driver.skips`` count slots, everything else NVML indexes; they differ only where the driver does not list
every GPU: those in ``skips`` and those held by another kernel driver. ``missing: true`` takes the function out of the library, as in an old driver.
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
from dataclasses import dataclass
from pathlib import Path

import yaml

SANDBOX = Path(__file__).resolve().parent
BUILD = SANDBOX.parent.parent / ".build" / "sandbox"
HANGS = ("ignore_term", "stop", "uninterruptible")
MIB = 1024 * 1024

#: Bus numbers of the GPU slots, in order, as on a common 8-GPU board.
_BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}

#: What each GPU model answers. remap: row remapping; retire: page retirement; zeros: no ECC, yet zeros instead of "not supported".
PROFILES = {
    "H100-80GB": dict(
        name="NVIDIA H100 80GB HBM3", device=0x2330, memory=81559 * MIB, generation=5, power=(700, 200, 700), clocks=(1980, 2619),
        errors="remap", banks=2560, mig=True, fabric=True),
    "A100-SXM4-80GB": dict(
        name="NVIDIA A100-SXM4-80GB", device=0x20B2, memory=81920 * MIB, generation=4, power=(400, 100, 400), clocks=(1410, 1593),
        errors="remap", banks=640, mig=True, fabric=True),
    "H200": dict(
        name="NVIDIA H200", device=0x2335, memory=143771 * MIB, generation=5, power=(700, 200, 700), clocks=(1980, 3201),
        errors="remap", banks=3072, mig=True, fabric=True),
    "V100-32GB": dict(
        name="Tesla V100-SXM2-32GB", device=0x1DB5, memory=32768 * MIB, generation=3, power=(300, 150, 300), clocks=(1530, 877), errors="retire"),
    "L40S": dict(
        name="NVIDIA L40S", device=0x26B9, memory=46068 * MIB, generation=4, power=(350, 100, 350), clocks=(2520, 9001), errors="remap", banks=192),
    "RTX-4090": dict(
        name="NVIDIA GeForce RTX 4090", device=0x2684, memory=24564 * MIB, generation=4, power=(450, 150, 600), clocks=(3105, 10501), errors="zeros"),
    "GB10": dict(name="NVIDIA GB10", device=0x2E12, memory=None, generation=5, width=1, power=None, clocks=(3003, None), errors="zeros"),
}

_KEYS = ("description", "model", "gpus", "driver", "rules", "cuda", "pci", "processes", "dcgmi")
_DRIVER = {"version": "580.95.05", "loaded": True, "library": True, "skips": []}
_PCI = {"missing": [], "drivers": {}, "link": {}}
_PROCESS_CALLS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses", "graphics": "nvmlDeviceGetGraphicsRunningProcesses", "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}
#: Functions by the major version of the driver that brought them.
_SINCE = {
    "nvmlDeviceGetCurrentClocksEventReasons": 535, "nvmlDeviceGetSupportedClocksEventReasons": 535, "nvmlDeviceGetSramEccErrorStatus": 550,
    "nvmlDeviceGetRepairStatus": 575, "nvmlDeviceGetMemoryInfo_v2": 510, "nvmlDeviceGetGpuFabricInfoV": 545,
}


class ScenarioError(ValueError):
    """A scenario that does not mean anything; says what is wrong and what is accepted."""


@dataclass(frozen=True)
class Node:
    """A rendered node. ``gpus`` are those that NVML lists, as ``{"index", "slot", "uuid", "pci", "name"}``."""

    directory: Path
    scenario: dict
    gpus: list

    @property
    def root(self) -> str:
        return str(self.directory / "root")

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    @property
    def library(self) -> str | None:
        """Path of the stand-in for libnvidia-ml.so.1, None where the scenario has none on the loader's path."""
        path = self.directory / "lib" / "libnvidia-ml.so.1"
        return str(path) if path.exists() else None

    @property
    def environment(self) -> dict:
        return {
            "LD_LIBRARY_PATH": str(self.directory / "lib"),
            "PATH": f"{self.directory / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "SANDBOX_NODE": str(self.directory),
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


def build(scenario: dict | str | Path, directory: Path, python: str = sys.executable) -> Node:
    """Render a scenario (a mapping, a file, or the name of a file in ``scenarios/``) into ``directory``."""
    scenario = checked(scenario if isinstance(scenario, dict) else _load(scenario))
    directory = Path(directory).resolve()
    for name in ("lib", "bin", "root/sys/bus/pci/devices", "root/proc/sys/kernel/random", "root/dev", "root/run/lock"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    slots = _slots(scenario)
    listed = [slot for slot in slots if slot["driver"] == "nvidia" and slot["slot"] not in scenario["driver"]["skips"]]
    gpus = [
        {"index": index, "slot": slot["slot"], "uuid": _uuid(slot["pci"], scenario["model"]), "pci": slot["pci"], "name": slot["name"]}
        for index, slot in enumerate(listed)
    ]
    _render_sysfs(scenario, slots, directory / "root")
    _render_proc_and_dev(scenario, gpus, directory / "root")
    (directory / "node.table").write_text("".join(f"{row}\n" for row in _table(scenario, gpus)))
    (directory / "scenario.json").write_text(json.dumps(dict(scenario, gpu_list=gpus), indent=1))
    node = Node(directory, scenario, gpus)
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
    if not isinstance(gpus, int) or not 0 <= gpus <= len(_BUSES):
        raise ScenarioError(f"gpus: {gpus!r} is not accepted, give a number from 0 to {len(_BUSES)}")
    if model not in PROFILES:
        raise ScenarioError(f"model: {model!r} has no profile; there are {', '.join(PROFILES)}")
    driver = _with_defaults("driver", scenario.get("driver"), _DRIVER)
    if driver["library"] not in (True, False, "container"):
        raise ScenarioError(f"driver.library: {driver['library']!r} is not accepted, give true, false or container")
    pci = _with_defaults("pci", scenario.get("pci"), _PCI)
    rules = [_checked_rule(rule) for rule in scenario.get("rules") or []]
    processes = scenario.get("processes") or []
    for process in processes:
        _only("a process", process, ("gpu", "pid", "name", "memory", "kind"))
        if process.get("kind", "compute") not in _PROCESS_CALLS:
            raise ScenarioError(f"kind: {process['kind']!r} is not accepted; a process is one of {', '.join(_PROCESS_CALLS)}")
    for gpu, keys in (scenario.get("cuda") or {}).items():
        if not (isinstance(gpu, int) or gpu == "*") or not isinstance(keys, dict):
            raise ScenarioError(f'cuda: {gpu!r}: {keys!r} is not accepted, give a GPU index or "*" and a mapping')
    return {
        "description": scenario.get("description", ""), "model": model, "gpus": gpus, "driver": driver, "rules": rules,
        "cuda": scenario.get("cuda") or {}, "pci": pci, "processes": processes, "dcgmi": scenario.get("dcgmi", {}),
    }


def _only(what: str, mapping: dict, accepted) -> None:
    if not isinstance(mapping, dict):
        raise ScenarioError(f"{what} is a mapping, not {mapping!r}")
    strange = [key for key in mapping if key not in accepted]
    if strange:
        raise ScenarioError(f"{what} has no key {', '.join(map(repr, strange))}; accepted are {', '.join(accepted)}")


def _with_defaults(what: str, given: dict | None, defaults: dict) -> dict:
    _only(what, given or {}, tuple(defaults))
    return {**defaults, **(given or {})}


def _checked_rule(rule: dict) -> dict:
    _only("a rule", rule, ("gpu", "call", "values", "returns", "times", "hang", "missing"))
    gpu, call = rule.get("gpu", "*"), rule.get("call")
    if not (isinstance(gpu, int) or gpu in ("*", "system")):
        raise ScenarioError(f'a rule\'s gpu is an index, "*" or system, not {gpu!r}')
    if not isinstance(call, str) or not re.fullmatch(r"\*|field\.\d+(\.\d+)?|(nvml|cu)\w+(\.\d+){0,2}", call):
        raise ScenarioError(f'a rule\'s call is an NVML or CUDA function, field.<id> or "*", not {call!r}')
    if sum(key in rule for key in ("values", "hang", "missing")) > 1 or not set(rule) & {"values", "returns", "hang", "missing"}:
        raise ScenarioError(f"a rule has one of values, returns, hang, missing: {rule!r}")
    if "hang" in rule and rule["hang"] not in HANGS:
        raise ScenarioError(f"hang: {rule['hang']!r} is not accepted; there are {', '.join(HANGS)}")
    return dict(rule, gpu=gpu, call=call)


def _slots(scenario: dict) -> list:
    """Every GPU in the machine, whether the driver lists it or not."""
    loaded = "nvidia" if scenario["driver"]["loaded"] else None
    drivers = {int(slot): name for slot, name in scenario["pci"]["drivers"].items()}
    return [
        {"slot": slot, "bus": bus, "pci": f"00000000:{bus:02X}:00.0", "sysfs": f"0000:{bus:02x}:00.0", "driver": drivers.get(slot, loaded),
         "name": PROFILES[scenario["model"]]["name"]}
        for slot, bus in enumerate(_BUSES[:scenario["gpus"]])
    ]


# ---- node.table ----

def _table(scenario: dict, gpus: list) -> list:
    """Rows of the profile, without those that a rule of the scenario covers, and then the rules."""
    rules = [dict(rule, call=_canonical(rule["call"])) for rule in scenario["rules"] if not rule.get("missing")]
    rows = [row for row in _profile_rows(scenario, gpus) if not any(_covers(rule, row) for rule in rules if "times" not in rule)]
    table = [_row(gpu, call, f"{code} {_words(values)}") for gpu, call, code, values in rows]
    for rule in rules:
        times = f"x{rule['times']}" if "times" in rule else ""
        outcome = f"hang {rule['hang']}" if "hang" in rule else f"{rule.get('returns', 0)}{times} {_words(rule.get('values', []))}"
        table.append(_row(rule["gpu"], rule["call"], outcome))
    for gpu, keys in scenario["cuda"].items():
        table += [_row(gpu, f"cuda.{key}", f"0 {_word(_number(value))}") for key, value in keys.items()]
    return table


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
    name = re.sub(r"_v\d+$", "", name).replace("ClocksThrottleReasons", "ClocksEventReasons").replace("nvmlInitWithFlags", "nvmlInit")
    return name + dot + selector


def _covers(rule: dict, row: tuple) -> bool:
    gpu, call = row[:2]
    same_gpu = rule["gpu"] == gpu or (rule["gpu"] == "*" and gpu != "system")
    return same_gpu and (rule["call"] == "*" or rule["call"] == call or call.startswith(rule["call"] + "."))


def _profile_rows(scenario: dict, gpus: list) -> list:
    profile = PROFILES[scenario["model"]]
    version = scenario["driver"]["version"]
    major = int(version.split(".")[0])
    slots = {slot["slot"]: slot for slot in _slots(scenario)}
    rows = [
        ("system", "nvmlInit", 0 if scenario["driver"]["loaded"] else 9, []),
        ("system", "nvmlSystemGetDriverVersion", 0, [version]),
        ("system", "nvmlSystemGetNVMLVersion", 0, [f"{'13' if major >= 580 else '12'}.{version}"]),
        ("system", "nvmlSystemGetCudaDriverVersion", 0, [13000 if major >= 580 else 12080 if major >= 570 else 12020 if major >= 535 else 11040]),
        ("system", "nvmlDeviceGetCount", 0, [len(gpus)]),
    ]
    rows += [("*", call, 0, values) for call, values in _model_rows(profile, major).items()]
    for gpu in gpus:
        index, slot = gpu["index"], slots[gpu["slot"]]
        link = _link(scenario, slot)
        rows += [
            (index, "nvmlDeviceGetUUID", 0, [gpu["uuid"]]),
            (index, "nvmlDeviceGetSerial", 0, [str(1650000000000 + gpu["slot"])]),
            (index, "nvmlDeviceGetPciInfo", 0, [gpu["pci"], (profile["device"] << 16) | 0x10DE]),
            (index, "nvmlDeviceGetCurrPcieLinkGeneration", 0, [_generation(link["current_link_speed"])]),
            (index, "nvmlDeviceGetCurrPcieLinkWidth", 0, [link["current_link_width"]]),
            (index, "nvmlDeviceGetCpuAffinity", 0, _affinity(link["local_cpulist"])),
        ]
        used = 0
        for kind, call in _PROCESS_CALLS.items():
            running = [process for process in scenario["processes"] if process["gpu"] == index and process.get("kind", "compute") == kind]
            rows.append((index, call, 0, [value for process in running for value in (process["pid"], process.get("memory", 0))]))
            used += sum(int(process.get("memory", 0)) for process in running)
        if profile["memory"]:
            rows.append((index, "nvmlDeviceGetMemoryInfo", 0, [profile["memory"], 550 * MIB, used]))
    return rows


def _model_rows(profile: dict, major: int) -> dict:
    graphics, memory = profile["clocks"]
    width = profile.get("width", 16)
    rows = {
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
        "nvmlDeviceGetCurrentClocksEventReasons": [0x1],
        "nvmlDeviceGetSupportedClocksEventReasons": [0x1FF],
        "nvmlDeviceGetViolationStatus": ["1000000+100000", 0],
        "field.269": [0], "field.270": [0], "field.271": [0],
    }
    for call in ("ClockInfo", "MaxClockInfo", "ApplicationsClock", "DefaultApplicationsClock", "MaxCustomerBoostClock"):
        rows[f"nvmlDeviceGet{call}.0"] = rows[f"nvmlDeviceGet{call}.1"] = [graphics]
        if memory:
            rows[f"nvmlDeviceGet{call}.2"] = [memory]
    if profile["power"]:
        limit, lowest, highest = (watts * 1000 for watts in profile["power"])
        for call in ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"):
            rows[f"nvmlDeviceGet{call}"] = [limit]
        rows["nvmlDeviceGetPowerManagementLimitConstraints"] = [lowest, highest]
        rows["nvmlDeviceGetPowerUsage"] = [limit // 10]
    errors = profile["errors"]
    if errors != "zeros":
        rows.update({"nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetTotalEccErrors": [0], "nvmlDeviceGetSramEccErrorStatus": [0, 0]})
    if errors in ("remap", "zeros"):
        rows.update({"nvmlDeviceGetRemappedRows": [0, 0, 0, 0], "nvmlDeviceGetRowRemapperHistogram": [profile.get("banks", 0), 0, 0, 0, 0]})
        rows.update({f"field.{identifier}": [0] for identifier in (142, 143, 144, 145)})
    if errors == "retire":
        rows.update({"nvmlDeviceGetRetiredPages": [], "nvmlDeviceGetRetiredPagesPendingStatus": [0]})
    if errors == "remap" and major >= 570:
        rows["field.230"] = [0]
    if profile.get("mig"):
        rows["nvmlDeviceGetMigMode"] = [0, 0]
    if profile.get("fabric"):
        rows["nvmlDeviceGetGpuFabricInfoV"] = [3, 0, 0, 1]
    return rows


# ---- sysfs, proc, dev ----

def _link(scenario: dict, slot: dict) -> dict:
    """The attributes of a GPU's PCI device in sysfs; those that are None are left out."""
    profile = PROFILES[scenario["model"]]
    second_socket = slot["bus"] >= 0x80
    attributes = {
        "vendor": "0x10de", "device": f"0x{profile['device']:04x}", "class": "0x030200" if profile["errors"] != "zeros" else "0x030000",
        "current_link_speed": _SPEEDS[profile["generation"]], "max_link_speed": _SPEEDS[profile["generation"]],
        "current_link_width": profile.get("width", 16), "max_link_width": profile.get("width", 16),
        "numa_node": int(second_socket), "local_cpulist": "56-111,168-223" if second_socket else "0-55,112-167",
    }
    changes = {str(key): value for key, value in scenario["pci"]["link"].items()}
    return {**attributes, **changes.get("*", {}), **changes.get(str(slot["slot"]), {})}


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
        bridge = {key: link[key] for key in link if "_link_" in key}
        _pci_device(root, port, {"vendor": "0x8086", "device": "0x352a", "class": "0x060400", **bridge, "numa_node": link["numa_node"]}, "pcieport")
        _pci_device(root, f"{port}/{slot['sysfs']}", link, slot["driver"])
    if slots and PROFILES[scenario["model"]].get("fabric"):
        _pci_device(root, "pci0000:04/0000:05:00.0", {"vendor": "0x10de", "device": "0x22a3", "class": "0x068000"}, "nvidia-nvswitch")
    _pci_device(root, "pci0000:0e/0000:0f:00.0", {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", "numa_node": 0}, "mlx5_core")
    for node, cpulist in enumerate(("0-55,112-167", "56-111,168-223")):
        _write(root / f"sys/devices/system/node/node{node}/cpulist", cpulist)


def _pci_device(root: Path, path: str, attributes: dict, driver: str | None) -> None:
    """A PCI device below sys/devices, its place in the tree being its bridges, with a link to it in sys/bus/pci/devices."""
    device = root / "sys/devices" / path
    for name, value in attributes.items():
        if value is not None:
            _write(device / name, str(value))
    devices = root / "sys/bus/pci/devices"
    (devices / device.name).symlink_to(os.path.relpath(device, devices))
    if driver:
        home = root / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(os.path.relpath(home, device))


def _render_proc_and_dev(scenario: dict, gpus: list, root: Path) -> None:
    _write(root / "proc/sys/kernel/random/boot_id", str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(scenario))))
    for process in scenario["processes"]:
        home = root / "proc" / str(process["pid"])
        name = process.get("name", "python3")
        _write(home / "comm", name)
        _write(home / "cmdline", f"{name}\0")
        _write(home / "stat", f"{process['pid']} ({name}) S 1 {process['pid']} {process['pid']} 0 -1 4194304" + " 0" * 43)
        (home / "fd").mkdir()
        (home / "fd" / "7").symlink_to(f"/dev/nvidia{process['gpu']}")
    if not scenario["driver"]["loaded"] or not scenario["gpus"]:
        return
    version = scenario["driver"]["version"]
    _write(root / "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build")
    (root / "proc/driver/nvidia/gpus").mkdir(parents=True)
    for gpu in gpus:
        text = f"Model: \t\t {gpu['name']}\nGPU UUID: \t {gpu['uuid']}\nBus Type: \t PCIe\nDevice Minor: \t {gpu['index']}\n"
        _write(root / f"proc/driver/nvidia/gpus/{gpu['pci'][4:].lower()}/information", text)
    for name in [f"nvidia{gpu['index']}" for gpu in gpus] + ["nvidiactl", "nvidia-uvm"]:
        (root / "dev" / name).touch()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.endswith("\n") else text + "\n")


# ---- programs and libraries ----

def _render_programs(node: Node, python: str) -> None:
    exports = "".join(f"export {name}='{value}'\n" for name, value in node.environment.items() if name != "PATH")
    wrapper = node.directory / "bin" / "python"
    wrapper.write_text(f"#!/bin/sh\n{exports}export PATH='{node.directory / 'bin'}':\"$PATH\"\nexec '{python}' \"$@\"\n")
    wrapper.chmod(0o755)
    dcgmi = SANDBOX / "dcgmi"
    if dcgmi.exists() and node.scenario["dcgmi"] is not False:
        (node.directory / "bin" / "dcgmi").symlink_to(dcgmi)


def _render_libraries(node: Node) -> None:
    driver = node.scenario["driver"]
    if not driver["library"]:
        return
    home = node.directory / "lib"
    if driver["library"] == "container":
        home = node.directory / "root/run/nvidia/driver/usr/lib/x86_64-linux-gnu"
        home.mkdir(parents=True)
    missing = {rule["call"] for rule in node.scenario["rules"] if rule.get("missing")}
    missing |= {name for name, since in _SINCE.items() if int(driver["version"].split(".")[0]) < since}
    (home / "libnvidia-ml.so.1").symlink_to(library("libnvidia-ml.c", missing))
    if (SANDBOX / "libcuda.c").exists():
        (home / "libcuda.so.1").symlink_to(library("libcuda.c"))


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def library(source: str, missing: set | frozenset = frozenset()) -> Path:
    """The shared library built from a source of this directory, without the functions in ``missing``; built when older than its source."""
    stem = source.rpartition(".")[0]
    suffix = "-" + hashlib.sha256(" ".join(sorted(missing)).encode()).hexdigest()[:12] if missing else ""
    built = BUILD / f"{stem}{suffix}.so.1"
    if built.exists() and built.stat().st_mtime > max(file.stat().st_mtime for file in (SANDBOX / source, *SANDBOX.glob("*.h"))):
        return built
    found = compiler()
    if not found:
        raise RuntimeError("the stand-in libraries need a C compiler: cc was not found")
    BUILD.mkdir(parents=True, exist_ok=True)
    script = BUILD / f"{stem}{suffix}.{os.getpid()}.map"
    fresh = BUILD / f"{stem}{suffix}.{os.getpid()}.so"
    hidden = "".join(f" {name};" for name in sorted(missing))
    script.write_text("{ global: *;" + (f" local:{hidden}" if hidden else "") + " };\n")
    options = ["-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-Wall", "-Wextra", f"-Wl,-soname,{stem}.so.1", f"-Wl,--version-script={script}"]
    subprocess.run([found, *options, "-o", str(fresh), str(SANDBOX / source), "-lpthread", "-ldl", "-lm"], check=True)
    script.unlink()
    os.replace(fresh, built)
    return built
