# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Two snapshots side by side: the GPUs in both, the time between them, and the counters that
continued.

A counter difference is valid only without a reset in between. Driver counters (volatile ECC,
violation time, replays, NVLink errors) restart with every load of the driver and every GPU reset,
kernel counters with every boot; InfoROM counters (remapped rows, aggregate ECC) last for the GPU's
life.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ....model import Subject, gpu_subject
from ....lenient import Unsigned, decode
from ....times import parse_stamp
from ..snapshot import CheckSnapshot, GpuSnapshot, LogRecordSnapshot, LogSnapshot, Snapshot

#: Prefix of findings about changes since the snapshot; their summary joins the texts after it.
JOB = "this job"
#: A counter that decreased has wrapped if it was in the last sixteenth of its range and is in the
#: first, else it was reset. A judgement: no working device counts a sixteenth of 2^32 errors
#: between two readings.
_NEAR_THE_END = 16


class Count(NamedTuple):
    """Growth of a counter: the difference, or after a reset the current value, which is a lower
    bound.
    """

    value: int
    least: bool = False

    def __str__(self) -> str:
        return f"{'at least ' if self.least else ''}{self.value}"


class Pair(NamedTuple):
    """A GPU before and after, as a check read it."""

    subject: Subject
    before: GpuSnapshot
    after: GpuSnapshot
    #: True if the driver stayed loaded. A GPU reset does not count: which counters it resets
    #: differs, and a counter that did not decrease has grown by at least the difference.
    ran_on: bool
    #: True if both snapshots could see the same GPUs and processes.
    same_scope: bool


def counted(
    before: Optional[int], after: Optional[int], ran_on: bool = True, bits: int = 0
) -> Optional[Count]:
    """Growth of a counter; None if one of the numbers is missing. ``bits`` is the counter's width
    if known.
    """
    if after is None:
        return None
    if not ran_on:
        return Count(after, True)
    if before is None:
        return None
    if after >= before:
        return Count(after - before)
    return (
        Count(after - before + (1 << bits)) if wrapped(before, after, bits) else Count(after, True)
    )


def wrapped(before: int, after: int, bits: int) -> bool:
    """True if a decreased counter has wrapped."""
    part = (1 << bits) // _NEAR_THE_END if bits else 0
    return bool(bits) and before >= (1 << bits) - part and after < part


def decreased(before: Optional[int], after: Optional[int], bits: int = 0) -> bool:
    """True if a counter is lower than before and has not wrapped."""
    return (
        before is not None
        and after is not None
        and after < before
        and not wrapped(before, after, bits)
    )


def key_of(part: Mapping[str, Any], *names: str) -> str:
    """The key that identifies a part, as text for any type of value."""
    return " ".join(str(part.get(name)) for name in names)


def format_bytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 2**20:.0f} MiB"


def named(values: List[str], most: int = 4) -> str:
    """``a, b and c``, and the number of further items."""
    shown = values[:most] + ([f"{len(values) - most} more"] if len(values) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


class Between:
    """Two snapshots (see `snapshot`) and what they have in common. Never raises, whatever their
    contents.
    """

    def __init__(self, before: Any, after: Any) -> None:
        self.before, self.after = decode(Snapshot, before), decode(Snapshot, after)
        boots = (self.before.get("boot_id"), self.after.get("boot_id"))
        #: True if the node was not rebooted in between; None if unknown.
        self.same_boot = boots[0] == boots[1] if all(boots) else None
        #: True if the driver was certainly reloaded.
        self.reloaded = self.same_boot is not False and (
            _differ(self.before.get("driver_version"), self.after.get("driver_version"))
            or _differ(self.before.get("driver_loaded"), self.after.get("driver_loaded"))
            or self._loaded()
        )
        #: True if one was taken on the host and the other in a container, or in two containers.
        self.other_scope = _differ(self.before.get("scope"), self.after.get("scope"))
        #: GPUs whose driver counters decreased without a reboot or a reload of the driver, by UUID.
        self.set_back: List[str] = []
        self._by_uuid = {
            check: (_by_uuid(old.get("gpus", [])), _by_uuid(new.get("gpus", [])))
            for check, (old, new) in ((check, self.node(check)) for check in self.checks())
        }
        if self.same_boot is not False and not self.reloaded:
            uuids = sorted(
                {uuid for olds, news in self._by_uuid.values() for uuid in olds if uuid in news}
            )
            self.set_back = [uuid for uuid in uuids if self._went_back(uuid)]
        #: Counters of a boot or of a part's life that are lower than before: by part, the values.
        self.lower: Dict[Subject, Dict[str, Dict[str, Optional[int]]]] = {}
        #: Seconds between the two; None if the clocks do not tell.
        self.seconds = self._seconds()

    def came_since(self, record: LogRecordSnapshot) -> bool:
        """True if a kernel log record is newer than the snapshot; after a reboot all are."""
        if self.same_boot is False:
            return True
        old = self.node("xid_errors")[0]
        last, seq = old.get("log", LogSnapshot()).get("last_seq"), record.get("seq")
        if last is not None and seq is not None:
            return seq > last
        then, when = old.get("uptime_seconds"), record.get("usec")
        return then is not None and when is not None and when / 1e6 > then

    def _loaded(self) -> bool:
        """True if the kernel logged a load of the driver since the snapshot, in the same boot."""
        return self.same_boot is True and any(
            self.came_since(load) for load in self.node("xid_errors")[1].get("loads", [])
        )

    def grown(
        self,
        subject: Subject,
        name: str,
        before: Optional[int],
        after: Optional[int],
        bits: int = 0,
        of_life: bool = False,
    ) -> Optional[Count]:
        """Growth of a counter of the boot or (``of_life``) of the part's life, see `counted`. A
        decrease within a boot is kept in `lower`.
        """
        if self.same_boot is not False and decreased(before, after, bits):
            self.lower.setdefault(subject, {})[name] = {"before": before, "after": after}
        return counted(before, after, of_life or self.same_boot is not False, bits)

    def checks(self) -> List[str]:
        """The checks with readings in both snapshots."""
        new = self.after.get("readings", {})
        return [check for check in self.before.get("readings", {}) if check in new]

    def node(self, check: str) -> Tuple[CheckSnapshot, CheckSnapshot]:
        """The check's readings before and after; both empty unless it was read both times."""
        old = self.before.get("readings", {}).get(check)
        new = self.after.get("readings", {}).get(check)
        return (old, new) if old and new else ({}, {})

    def pairs(self, check: str) -> List[Pair]:
        """The GPUs that the check read both times, in their current order."""
        old, new = self._by_uuid.get(check, ({}, {}))
        return [
            Pair(
                gpu_subject(new[uuid]),
                old[uuid],
                new[uuid],
                self.same_boot is not False and not self.reloaded,
                not self.other_scope,
            )
            for uuid in new
            if uuid in old
        ]

    def gpus(self) -> Tuple[Dict[str, GpuSnapshot], Dict[str, GpuSnapshot]]:
        """All GPUs by UUID, before and after."""
        return _by_uuid(self.before.get("gpus", [])), _by_uuid(self.after.get("gpus", []))

    def _seconds(self) -> Optional[float]:
        old, new = self.before.get("uptime_seconds"), self.after.get("uptime_seconds")
        if self.same_boot and old is not None and new is not None and new >= old:
            return new - old
        taken = [parse_stamp(one.get("taken")) for one in (self.before, self.after)]
        if taken[0] is None or taken[1] is None or taken[1] < taken[0]:
            return None
        return taken[1] - taken[0]

    def _went_back(self, uuid: str) -> bool:
        """True if a driver counter of a GPU decreased."""
        for check, counters in _DRIVER_COUNTERS:
            old, new = self._by_uuid.get(check, ({}, {}))
            if any(
                decreased(*counter) for counter in counters(old.get(uuid, {}), new.get(uuid, {}))
            ):
                return True
        return False


def _differ(old: Optional[str], new: Optional[str]) -> bool:
    return bool(old and new) and old != new


def _by_uuid(gpus: List[GpuSnapshot]) -> Dict[str, GpuSnapshot]:
    """Readable GPUs by UUID; a GPU that did not answer has nothing to compare."""
    found = [(gpu.get("uuid"), gpu) for gpu in gpus if not gpu.get("error")]
    return {uuid: gpu for uuid, gpu in found if uuid is not None}


Counter = Tuple[Optional[int], Optional[int], int]


def _ecc(before: GpuSnapshot, after: GpuSnapshot) -> List[Counter]:
    old, new = before.get("volatile") or {}, after.get("volatile") or {}
    return [(old.get(kind), new.get(kind), 0) for kind in ("corrected", "uncorrected")]


def _violations(before: GpuSnapshot, after: GpuSnapshot) -> List[Counter]:
    old, new = before.get("violations") or {}, after.get("violations") or {}
    return [(old[cause], new.get(cause), 0) for cause in old]


def _replays(before: GpuSnapshot, after: GpuSnapshot) -> List[Counter]:
    return [(before.get("replays"), after.get("replays"), REPLAY_BITS)]


def _nvlink(before: GpuSnapshot, after: GpuSnapshot) -> List[Counter]:
    # A link that is down has no counters.
    new = {
        link.get("link"): link.get("errors") or {}
        for link in after.get("links") or []
        if link.get("active") is not False
    }
    return [
        (value, new[link.get("link")].get(kind, Unsigned(0)), 0)
        for link in before.get("links") or []
        for kind, value in (link.get("errors") or {}).items()
        if link.get("link") in new
    ]


#: nvmlDeviceGetPcieReplayCounter returns an unsigned int (NVML API reference).
REPLAY_BITS = 32
_DRIVER_COUNTERS = (
    ("ecc_errors", _ecc),
    ("gpu_power", _violations),
    ("pcie_link", _replays),
    ("nvlink", _nvlink),
)
