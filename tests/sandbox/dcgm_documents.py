# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents as ``dcgmi diag -j`` prints them, in the shape of each DCGM from 2 to 4 (dcgmi/Diag.cpp
at v2.1.4, v3.1.8, v3.3.9, v4.6).
"""

from __future__ import annotations

import json

SHAPES = ("2", "3.0", "3.1", "3.2", "3.3", "4")
LEVELS = {
    "1": [],
    "2": ["memory", "pcie"],
    "3": ["memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress", "targeted_power"],
}
LEVELS["4"] = LEVELS["3"] + ["memtest", "pulse_test"]
TESTS = sorted(LEVELS["4"] + ["nvbandwidth", "eud", "sm_stress", "context_create"])
#: Names as DCGM 2 and 3 print them.
TITLES = {
    "memory": "GPU Memory",
    "pcie": "PCIe",
    "diagnostic": "Diagnostic",
    "memory_bandwidth": "Memory Bandwidth",
    "targeted_stress": "Targeted Stress",
    "targeted_power": "Targeted Power",
    "memtest": "Memtest",
    "pulse_test": "Pulse Test",
}
CATEGORIES = {
    "pcie": "Integration",
    "memory": "Hardware",
    "diagnostic": "Hardware",
    "pulse_test": "Hardware",
}
DEPLOYMENT = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Page Retirement/Row Remap",
    "Graphics Processes",
    "Inforom",
)


def shape_of(version: str) -> str:
    major, minor = (int(part) for part in version.split(".")[:2])
    return {2: "2", 4: "4"}.get(major) or f"3.{min(minor, 3)}"


def document(
    shape="4",
    tests=(),
    gpus=range(8),
    faults=(),
    missing=(),
    skipped=(),
    version=None,
    error=None,
    iterations=1,
):
    """The document as a mapping. A fault is ``{"test", "gpu" (None: the whole node), "text", "id",
    "category", "severity", "status", "title"}``, and ``title`` names the deployment test of DCGM 2
    and 3 that a fault of ``software`` is about.
    """
    version = (
        version
        or {
            "2": "2.4.8",
            "3.0": "3.0.4",
            "3.1": "3.1.8",
            "3.2": "3.2.6",
            "3.3": "3.3.9",
            "4": "4.6.0",
        }[shape]
    )
    root = "DCGM Diagnostic" if shape == "4" else "DCGM GPU Diagnostic"
    if error:
        return {root: {"runtime_error": error, "version": version}}
    build = _four if shape == "4" else _older
    built = build(shape, list(tests), list(gpus), list(faults), set(missing), set(skipped), version)
    if iterations > 1:
        return {"Overall Result": "Fail" if faults else "Pass", "iterations": [built] * iterations}
    return built


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def styled(built) -> str:
    """As jsoncpp prints it."""
    return json.dumps(built, indent="\t", sort_keys=True) + "\n"


def exit_code(faults) -> int:
    failed = [fault for fault in faults if fault.get("status", "Fail") == "Fail"]
    return 205 if any(fault.get("severity") == 2 for fault in failed) else 226 if failed else 0


def _about(faults, test, gpu):
    return [fault for fault in faults if fault["test"] == test and fault.get("gpu") == gpu]


def _status(faults, test, skipped):
    return faults[0].get("status", "Fail") if faults else "Skip" if test in skipped else "Pass"


def _object(fault, key="warning"):
    return {
        key: fault.get("text", "Something is wrong."),
        "error_id": fault.get("id", 1),
        "error_category": fault.get("category", 15),
        "error_severity": fault.get("severity", 3),
    }


def _four(_shape, tests, gpus, faults, missing, skipped, version):
    entries = {}
    for test in ["software"] + tests:
        results = []
        for gpu in gpus:
            if gpu in missing:
                continue
            own = _about(faults, test, gpu)
            result = {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entity_id": gpu,
                "status": _status(own, test, skipped),
            }
            if own:
                result["warnings"] = [_object(fault) for fault in own]
            if test == "memory":
                result["info"] = ["Allocated 80000000000 bytes (98.0%)"]
            results.append(result)
        everyone = _about(faults, test, None)
        worst = {result["status"] for result in results} | {
            fault.get("status", "Fail") for fault in everyone
        }
        summary = {
            "status": next((word for word in ("Fail", "Pass", "Skip") if word in worst), "Skip")
        }
        # From 4.5.0 on the summary repeats what the results say (HelperJsonAddTestSummary).
        repeated = [fault for gpu in gpus for fault in _about(faults, test, gpu)]
        told = everyone + (repeated if _numbers(version) >= [4, 5] else [])
        if told:
            summary["warnings"] = [_object(fault) for fault in told]
        category = "Deployment" if test == "software" else CATEGORIES.get(test, "Stress")
        entries.setdefault(category, []).append(
            {"name": test, "results": results, "test_summary": summary}
        )
    entities = [
        {"entity_id": gpu, "device_id": "2330", "serial_num": str(1650000000000 + gpu)}
        for gpu in gpus
        if gpu not in missing
    ]
    return {
        "DCGM Diagnostic": {
            "test_categories": [
                {"category": name, "tests": found} for name, found in entries.items()
            ]
        },
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}],
        "metadata": {"version": version, "Driver Version Detected": "580.95.05"},
    }


def _older(shape, tests, gpus, faults, missing, skipped, version):
    entries = {"Deployment": [_older_deployment(shape, faults, title) for title in DEPLOYMENT]}
    for test in tests:
        results = [
            None if gpu in missing else _older_result(shape, test, gpu, faults, skipped)
            for gpu in gpus
        ]
        entries.setdefault(CATEGORIES.get(test, "Stress"), []).append(
            {"name": TITLES.get(test, test), "results": results}
        )
    body = {
        "test_categories": [{"category": name, "tests": found} for name, found in entries.items()]
    }
    if shape not in ("2", "3.0"):
        body.update(
            {
                "version": version,
                "Driver Version Detected": "535.161.08",
                "GPU Device IDs": ["2330" for gpu in gpus if gpu not in missing],
            }
        )
    if shape == "3.3":
        body["GPU Device Serials"] = {
            str(gpu): str(1650000000000 + gpu) for gpu in gpus if gpu not in missing
        }
    return {"DCGM GPU Diagnostic": body}


def _older_deployment(shape, faults, title):
    """The entry of one software test."""
    own = [
        fault
        for fault in faults
        if fault["test"] == "software" and fault.get("title", "Inforom") == title
    ]
    result = {"status": own[0].get("status", "Fail") if own else "Pass"}
    if own and shape == "3.3":
        result.update(
            warnings=[_object(fault, "warnings") for fault in own], gpu_id=own[-1].get("gpu") or 0
        )
    elif own:
        result["warnings"] = own[0].get("text", "Something is wrong.")
        if shape == "3.2":
            result["error_id"] = own[0].get("id", 1)
    return {
        "name": "Blacklist" if (shape, title) == ("2", "Denylist") else title,
        "results": [result],
    }


def _older_result(shape, test, gpu, faults, skipped):
    """The result of one test on one GPU."""
    own = _about(faults, test, gpu)
    result = {
        "gpu_id" if shape == "3.3" else "gpu_ids": str(gpu),
        "status": _status(own, test, skipped),
    }
    if own and shape == "3.3":
        result["warnings"] = [_object(fault) for fault in own]
    elif own:
        result["warnings"] = own[0].get("text", "Something is wrong.")
        if shape == "3.2":
            result["error_id"] = own[0].get("id", 1)
    if test == "memory":
        result["info"] = "Allocated 80000000000 bytes (98.0%), all of it written and read"
    return result
