# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Two snapshots side by side: which GPUs are in both, how long it was between them, and which
counters ran on.

What counters say is only a difference where nobody set them back in between. Those of the driver
(volatile ECC, violation time, replays, NVLink errors) start at zero with every loading of the
driver and every reset of the GPU, those of the kernel with every boot, and those in the InfoROM
(remapped rows, aggregate ECC) stay for the GPU's life.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ....model import Subject, gpu_subject
from ....lenient import mapping, mappings_in
from ....times import parse_stamp

Readings = Dict[str, Any]

#: What findings about what came in between begin with; their summary joins them after it.
JOB = "this job "
#: A counter that is smaller than before has gone past the end of its range if it was in the last
#: sixteenth of it and is in the first again, and was set back if not. A judgement: nothing counts a
#: sixteenth of 32 bits of errors between two looks and lives.
_NEAR_THE_END = 16


class Count(NamedTuple):
    """How far a counter got: by how much it grew, or what it shows where it was set back in
    between, so that it is the least that it can be.
    """

    value: int
    least: bool = False

    def __str__(self) -> str:
        return f"{'at least ' if self.least else ''}{self.value}"


class Pair(NamedTuple):
    """A GPU before and after, as a check read it."""

    subject: Subject
    before: Readings
    after: Readings
    #: Whether the driver ran on in between. A GPU that was reset does not count here: which of its
    #: counters that sets back differs, and a counter that did not go back has grown by the
    #: difference at least.
    ran_on: bool


def counted(before: Any, after: Any, ran_on: bool = True, bits: int = 0) -> Optional[Count]:
    """How far a counter got. None where one of the numbers is missing; ``bits`` is the counter's
    width where that is known.
    """
    if not is_whole(after):
        return None
    if not ran_on:
        return Count(after, True)
    if not is_whole(before):
        return None
    if after >= before:
        return Count(after - before)
    return (
        Count(after - before + (1 << bits)) if wrapped(before, after, bits) else Count(after, True)
    )


def wrapped(before: int, after: int, bits: int) -> bool:
    """Whether a counter that is smaller than before has gone past the end of its range."""
    part = (1 << bits) // _NEAR_THE_END if bits else 0
    return bool(bits) and before >= (1 << bits) - part and after < part


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def whole(value: Any) -> Optional[int]:
    """A whole number as counters have them, else None."""
    return int(value) if is_whole(value) else None


def number(value: Any) -> Optional[float]:
    """A finite number that is not negative, else None."""
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e300
        else None
    )


def key_of(part: Mapping[str, Any], *names: str) -> str:
    """What tells a part from its like, as text: whatever stands there can be a key."""
    return " ".join(str(part.get(name)) for name in names)


def bytes_words(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 2**20:.0f} MiB"


def named(values: List[str], most: int = 4) -> str:
    """``a, b and c``, and how many more."""
    shown = values[:most] + ([f"{len(values) - most} more"] if len(values) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


class Between:
    """Two snapshots (see `snapshot`) and what they have in common. Never raises, whatever they
    hold.
    """

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self.before, self.after = before, after
        boots = (before.get("boot_id"), after.get("boot_id"))
        #: Whether the node was not booted in between; None where that cannot be told.
        self.same_boot = (
            boots[0] == boots[1] if all(isinstance(boot, str) and boot for boot in boots) else None
        )
        #: Whether the driver was loaded anew for sure.
        self.reloaded = self.same_boot is not False and (
            any(self._differs(key) for key in ("driver_version", "driver_loaded")) or self._loaded()
        )
        #: GPUs whose driver counters went back though neither the node nor the driver was started,
        #: by UUID.
        self.set_back: List[str] = []
        self._by_uuid = {
            check: (_by_uuid(self.node(check)[0]), _by_uuid(self.node(check)[1]))
            for check in self.checks()
        }
        if self.same_boot is not False and not self.reloaded:
            uuids = sorted(
                {uuid for olds, news in self._by_uuid.values() for uuid in olds if uuid in news}
            )
            self.set_back = [uuid for uuid in uuids if self._went_back(uuid)]
        #: Seconds between the two; None where the clocks do not tell.
        self.seconds = self._seconds()

    def came_since(self, record: Mapping[str, Any]) -> bool:
        """Whether a record of the kernel's log came after the snapshot. After a reboot all did."""
        if self.same_boot is False:
            return True
        old = self.node("xid_errors")[0]
        last, seq = whole(mapping(old.get("log")).get("last_seq")), whole(record.get("seq"))
        if last is not None and seq is not None:
            return seq > last
        then, when = number(old.get("uptime_seconds")), number(record.get("usec"))
        return then is not None and when is not None and when / 1e6 > then

    def _loaded(self) -> bool:
        """Whether the kernel logged a loading of the driver since the snapshot, in the same boot."""
        return self.same_boot is True and any(
            self.came_since(load) for load in mappings_in(self.node("xid_errors")[1].get("loads"))
        )

    def _differs(self, key: str) -> bool:
        old, new = self.before.get(key), self.after.get(key)
        return isinstance(old, str) and isinstance(new, str) and bool(old and new) and old != new

    def checks(self) -> List[str]:
        """Those that both have read."""
        old, new = mapping(self.before.get("readings")), mapping(self.after.get("readings"))
        return [
            check
            for check in old
            if check in new and isinstance(old[check], dict) and isinstance(new[check], dict)
        ]

    def node(self, check: str) -> Tuple[Readings, Readings]:
        """The check's readings before and after, empty ones where it was not read both times."""
        old, new = (
            mapping(mapping(one.get("readings")).get(check)) for one in (self.before, self.after)
        )
        return (old, new) if old and new else ({}, {})

    def pairs(self, check: str) -> List[Pair]:
        """The GPUs that the check read both times, in the order in which they are now."""
        old, new = self._by_uuid.get(check, ({}, {}))
        return [
            Pair(
                gpu_subject(new[uuid]),
                old[uuid],
                new[uuid],
                self.same_boot is not False and not self.reloaded,
            )
            for uuid in new
            if uuid in old
        ]

    def gpus(self) -> Tuple[Dict[str, Readings], Dict[str, Readings]]:
        """All GPUs by UUID, before and after."""
        return _by_uuid(self.before), _by_uuid(self.after)

    def _seconds(self) -> Optional[float]:
        old, new = (
            number(self.before.get("uptime_seconds")),
            number(self.after.get("uptime_seconds")),
        )
        if self.same_boot and old is not None and new is not None and new >= old:
            return new - old
        taken = [parse_stamp(one.get("taken")) for one in (self.before, self.after)]
        if taken[0] is None or taken[1] is None or taken[1] < taken[0]:
            return None
        return taken[1] - taken[0]

    def _went_back(self, uuid: str) -> bool:
        """Whether a driver's counter of a GPU is smaller than it was."""
        for check, counters in _DRIVER_COUNTERS:
            old, new = self._by_uuid.get(check, ({}, {}))
            for before, after, bits in counters(old.get(uuid, {}), new.get(uuid, {})):
                if (
                    is_whole(before)
                    and is_whole(after)
                    and after < before
                    and not wrapped(before, after, bits)
                ):
                    return True
        return False


def _by_uuid(found: Mapping[str, Any]) -> Dict[str, Readings]:
    """GPUs that were read, by their UUID; one that did not answer has nothing to compare."""
    return {
        gpu["uuid"]: gpu
        for gpu in mappings_in(found.get("gpus"))
        if isinstance(gpu.get("uuid"), str) and not gpu.get("error")
    }


Counter = Tuple[Any, Any, int]


def _ecc(before: Readings, after: Readings) -> List[Counter]:
    old, new = mapping(before.get("volatile")), mapping(after.get("volatile"))
    return [(old.get(kind), new.get(kind), 0) for kind in ("corrected", "uncorrected")]


def _violations(before: Readings, after: Readings) -> List[Counter]:
    old, new = mapping(before.get("violations")), mapping(after.get("violations"))
    return [(old[cause], new.get(cause), 0) for cause in old]


def _replays(before: Readings, after: Readings) -> List[Counter]:
    return [(before.get("replays"), after.get("replays"), REPLAY_BITS)]


def _nvlink(before: Readings, after: Readings) -> List[Counter]:
    # Of a link that is down nothing is counted.
    new = {
        key_of(link, "link"): mapping(link.get("errors"))
        for link in mappings_in(after.get("links"))
        if link.get("active") is not False
    }
    return [
        (value, new[key_of(link, "link")].get(kind, 0), 0)
        for link in mappings_in(before.get("links"))
        for kind, value in mapping(link.get("errors")).items()
        if key_of(link, "link") in new
    ]


#: nvmlDeviceGetPcieReplayCounter gives an unsigned int (NVML API reference).
REPLAY_BITS = 32
_DRIVER_COUNTERS = (
    ("ecc_errors", _ecc),
    ("gpu_power", _violations),
    ("pcie_link", _replays),
    ("nvlink", _nvlink),
)
