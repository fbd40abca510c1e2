# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Changed settings: modes, limits, clocks, firmware versions. A job that changes them without
restoring them affects the next job.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Tuple

from ....model import WARN, Finding, NODE
from ..snapshot import GpuSnapshot, Settings
from .between import Between, Pair, named

_ON_OFF = {0: "off", 1: "on"}
#: nvmlComputeMode_t (nvml.h).
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def _word(names: Dict[int, str]) -> Callable[[int], str]:
    return lambda value: names.get(int(value), str(value))


def _watts(value: int) -> str:
    return f"{value / 1000:g} W"


def _megahertz(value: int) -> str:
    return f"{value} MHz"


def _mig(gpu: GpuSnapshot) -> Settings:
    mode = gpu.get("mig")
    return mode if isinstance(mode, dict) else {}


#: Check, part and key, name of the setting, and format of its values.
_SETTINGS: Tuple[
    Tuple[str, Callable[[GpuSnapshot], Optional[Settings]], str, str, Callable[[int], str]], ...
] = (
    (
        "driver",
        lambda gpu: {"on": gpu.get("persistence")},
        "on",
        "persistence mode",
        _word(_ON_OFF),
    ),
    (
        "driver",
        lambda gpu: {"mode": gpu.get("compute_mode")},
        "mode",
        "compute mode",
        _word(_COMPUTE_MODES),
    ),
    ("driver", _mig, "current", "MIG", _word(_ON_OFF)),
    ("driver", _mig, "pending", "MIG after the next reset", _word(_ON_OFF)),
    ("ecc_errors", lambda gpu: gpu.get("ecc_mode"), "current", "ECC", _word(_ON_OFF)),
    (
        "ecc_errors",
        lambda gpu: gpu.get("ecc_mode"),
        "pending",
        "ECC after the next reset",
        _word(_ON_OFF),
    ),
    ("gpu_power", lambda gpu: gpu.get("power_limit"), "configured", "power limit", _watts),
    (
        "gpu_power",
        lambda gpu: gpu.get("graphics_clock"),
        "application",
        "graphics application clock",
        _megahertz,
    ),
    (
        "gpu_power",
        lambda gpu: gpu.get("memory_clock"),
        "application",
        "memory application clock",
        _megahertz,
    ),
)


def settings(between: Between) -> List[Finding]:
    """Changed GPU settings; equal changes on several GPUs are one finding."""
    changed: Dict[str, List[str]] = {}
    pairs: Dict[str, Pair] = {}
    for check, part, key, name, words in _SETTINGS:
        for pair in between.pairs(check):
            before, after = part(pair.before) or {}, part(pair.after) or {}
            old, new = before.get(key), after.get(key)
            # A pending mode equal to the current mode is reported once.
            told = (
                [f"{name} {words(new)} instead of {words(old)}"]
                if old is not None and new is not None and old != new
                else []
            )
            uuid = str(pair.subject.uuid)
            pairs[uuid] = pair
            if told and not (key == "pending" and after.get("current") == new):
                changed.setdefault(uuid, []).extend(told)
    code = "settings_changed"
    return _collected(code, "changed since the snapshot: ", "fix_configuration", changed, pairs)


def firmware(between: Between) -> List[Finding]:
    """Changed firmware versions of the GPUs, which only an update changes."""
    changed: Dict[str, List[str]] = {}
    pairs: Dict[str, Pair] = {}
    for pair in between.pairs("driver"):
        uuid = str(pair.subject.uuid)
        pairs[uuid] = pair
        for name, old, new in (
            ("VBIOS", pair.before.get("vbios"), pair.after.get("vbios")),
            ("InfoROM", pair.before.get("inforom"), pair.after.get("inforom")),
        ):
            # Without the GSP firmware, which is part of the driver and has the driver's version.
            if old and new and old != new:
                changed.setdefault(uuid, []).append(f"{name} {new} instead of {old}")
    code = "firmware_changed"
    return _collected(code, "another version than in the snapshot: ", "watch", changed, pairs)


def _collected(
    code: str, before: str, action: str, changed: Dict[str, List[str]], pairs: Dict[str, Pair]
) -> List[Finding]:
    alike: Dict[Tuple[str, ...], List[str]] = {}
    for uuid, words in changed.items():
        alike.setdefault(tuple(words), []).append(uuid)
    found = []
    for same, uuids in alike.items():
        evidence = {
            "gpus": [pairs[uuid].subject.to_dict() for uuid in uuids],
            "changed": list(same),
        }
        if len(uuids) == 1:
            found.append(
                Finding(
                    code,
                    WARN,
                    f"{before}{named(list(same))}",
                    action,
                    pairs[uuids[0]].subject,
                    evidence,
                )
            )
        else:
            message = f"{len(uuids)} GPUs {before}{named(list(same))}"
            found.append(Finding(code, WARN, message, action, NODE, evidence))
    return found
