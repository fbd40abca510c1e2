# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Can two snapshots be compared? Same boot, same load of the driver, same GPUs."""

from __future__ import annotations

from typing import Any, Dict, List

from ....model import FAIL, PASS, SKIP, UNKNOWN, WARN, Finding, NODE, gpu_subject, normalise_pci
from ..snapshot import GpuSnapshot
from .between import Between, key_of, named

_FROM_ZERO = "changes of counters that restarted at zero are minimum values"


def boot(between: Between) -> List[Finding]:
    """A reboot: the kernel makes a new random boot id each time (random(4))."""
    if between.same_boot is not False:
        return []
    before, after = between.before, between.after
    evidence = {
        "boot_id": [before.get("boot_id"), after.get("boot_id")],
        "uptime_seconds": [before.get("uptime_seconds"), after.get("uptime_seconds")],
        "driver_version": [before.get("driver_version"), after.get("driver_version")],
    }
    message = (
        f"the node was rebooted since the snapshot: its kernel log restarted, and {_FROM_ZERO}"
    )
    return [Finding("node_rebooted", WARN, message, "watch", NODE, evidence)]


def load(between: Between) -> List[Finding]:
    """A reloaded driver and reset GPUs: by driver version, kernel address, or decreased counters."""
    if between.reloaded:
        old, new = between.before.get("driver_version"), between.after.get("driver_version")
        how = f" in version {new} instead of {old}" if old != new else ""
        evidence = {
            "driver_version": [old, new],
            "driver_loaded": [
                between.before.get("driver_loaded"),
                between.after.get("driver_loaded"),
            ],
        }
        return [
            Finding(
                "driver_reloaded",
                WARN,
                f"the driver was reloaded since the snapshot{how}: {_FROM_ZERO}",
                "watch",
                NODE,
                evidence,
            )
        ]
    if not between.set_back:
        return []
    gpus = between.gpus()[1]
    if _without_persistence(between):
        message = (
            "counters of the driver went back, as they do without persistence mode "
            f"whenever no process uses a GPU: {_FROM_ZERO}"
        )
        return [
            Finding("counters_set_back", PASS, message, "none", NODE, {"gpus": between.set_back})
        ]
    if len(between.set_back) > 1 and len(between.set_back) == len(gpus):
        message = (
            f"the counters of all {len(gpus)} GPUs were reset since the snapshot: the driver "
            f"was reloaded, or all GPUs were reset; {_FROM_ZERO}"
        )
        return [
            Finding("driver_reloaded", WARN, message, "watch", NODE, {"gpus": between.set_back})
        ]
    message = f"counters were reset since the snapshot, so the GPU was reset; {_FROM_ZERO}"
    return [
        Finding(
            "counters_set_back",
            WARN,
            message,
            "watch",
            gpu_subject(gpus.get(uuid) or {"uuid": uuid}),
        )
        for uuid in between.set_back
    ]


def _without_persistence(between: Between) -> bool:
    """True if persistence mode was off before or after: the driver then forgets a GPU's counters
    when its last user ends (NVIDIA, Driver Persistence).
    """
    return any(
        gpu.get("persistence") in (0, False)
        for readings in between.node("driver")
        for gpu in readings.get("gpus", [])
    )


def lower(between: Between) -> List[Finding]:
    """Parts with lasting counters that decreased within a boot; comes after all that count."""
    return [
        Finding(
            "counters_decreased",
            UNKNOWN,
            named([f"{name} {one['after']}, was {one['before']}" for name, one in counts.items()])
            + ": errors since the snapshot may not have been counted",
            "watch",
            subject,
            counts,
        )
        for subject, counts in between.lower.items()
    ]


def gpus(between: Between) -> List[Finding]:
    """Missing, new and replaced GPUs, by UUID."""
    old, new = between.gpus()
    # A GPU that answers without a UUID may be any missing one; other checks report its fault.
    nameless = [gpu for gpu in between.after.get("gpus", []) if key_of(gpu, "uuid") not in new]
    gone = [gpu for uuid, gpu in old.items() if uuid not in new]
    fresh = {_address(gpu): gpu for uuid, gpu in new.items() if uuid not in old}
    if between.other_scope:
        return [_other_scope(between, gone)]
    if gone and len(gone) == len(old) and new and len(fresh) == len(new):
        message = (
            f"none of the {len(new)} GPUs is in the snapshot: it is of another machine, or "
            "all GPUs were replaced; not compared"
        )
        evidence: Dict[str, Any] = {"before": sorted(old), "after": sorted(new)}
        return [Finding("gpu_swapped", WARN, message, "watch", NODE, evidence)]
    found, missed = [], []
    for gpu in gone:
        other = fresh.pop(_address(gpu), None)
        if other:
            message = (
                f"another GPU than in the snapshot ({other['uuid']} instead of "
                f"{gpu['uuid']}): it was replaced; not compared"
            )
            found.append(
                Finding(
                    "gpu_swapped",
                    WARN,
                    message,
                    "watch",
                    gpu_subject(other),
                    {"before": gpu["uuid"], "after": other["uuid"]},
                )
            )
        else:
            missed.append(gpu)
    for gpu in fresh.values():
        message = f"not in the snapshot ({gpu['uuid']}); not compared"
        found.append(
            Finding("gpu_swapped", WARN, message, "watch", gpu_subject(gpu), {"after": gpu["uuid"]})
        )
    if new and not nameless:
        found += [
            Finding(
                "gpu_gone",
                FAIL,
                f"in the snapshot ({gpu['uuid']}) but missing now",
                "reboot_node",
                gpu_subject(gpu),
                {"before": gpu},
            )
            for gpu in missed
        ]
    return found


def _other_scope(between: Between, gone: List[GpuSnapshot]) -> Finding:
    """The snapshot was taken where other GPUs and processes can be seen: a GPU that is missing here
    may be there.
    """
    scopes = [between.before.get("scope"), between.after.get("scope")]
    message = (
        f"the snapshot was taken in another scope ({scopes[0]}; now {scopes[1]}): processes were "
        "not compared"
    )
    if gone:
        names = named([str(gpu.get("uuid")) for gpu in gone])
        message += f", and {names} of the snapshot cannot be seen from here"
    evidence = {"scope": scopes, "missing": [gpu.get("uuid") for gpu in gone]}
    action = "fix_configuration" if gone else "none"
    return Finding("not_compared", UNKNOWN if gone else SKIP, message, action, NODE, evidence)


def _address(gpu: GpuSnapshot) -> str:
    return normalise_pci(str(gpu.get("pci")))


def unread(between: Between) -> List[Finding]:
    """Checks of this pass that have readings in only one snapshot and cannot be compared. Checks
    that this pass did not include are ignored.
    """
    old, new = between.before.get("readings", {}), between.after.get("readings", {})
    only_now = sorted(check for check in new if new[check] and not old.get(check))
    only_then = sorted(check for check in new if old.get(check) and not new[check])
    parts = [
        f"{named(checks, 6)} {'was' if len(checks) == 1 else 'were'} read only {when}"
        for checks, when in ((only_then, "at the snapshot"), (only_now, "now"))
        if checks
    ]
    if not parts:
        return []
    return [
        Finding(
            "not_compared",
            SKIP,
            f"not compared: {'; '.join(parts)}",
            "none",
            NODE,
            {"only_before": only_then, "only_after": only_now},
        )
    ]
