# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A witness of this machine: whether its processors were there for whoever measured something, from
evidence taken beside the measurement.

    with Witness() as witness:
        ...
    witness.seen.disturbed, str(witness.seen)

All hosts of a sandbox cluster share this machine: when its processors stand still, since a
hypervisor has given them to somebody else or something more urgent has them, each emulated host
stands still too, and its figures are no evidence of a network. Run as a program, it witnesses until
its standard input ends and prints what it saw.
"""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

#: Seconds of the stretches that are looked at: as long as the shortest measurement of a rate, which
#: one standstill changes the most.
STRETCH = 2.0
#: The shares of a stretch that a processor's timer may be late for, and that a hypervisor may take,
#: before what was measured is no measurement. Seen on two processors: busy with compilers beside
#: the tests, all of which passed, 1 % of the stretches had more than 8 % late and 11 % stolen; of
#: standstills of 0.3 to 2 s, those that made a test fail were 39 to 94 % late.
LATE, STOLEN = 0.1, 0.15
#: Seconds between two looks of a processor's timer at the clock.
_TICK = 0.01
#: Seconds by which a timer must be late to count. Less is what programs that share a processor do
#: to each other: with eight of them always busy, or with every second 50 ms taken by somebody else,
#: no test failed.
_LEAST = 0.06
#: Seconds between two looks at what the hypervisor took; the kernel counts in hundredths.
_LOOK = 0.1
#: Timers at most: enough to see a machine stand still, and few enough not to be what disturbs it.
_TIMERS = 8
#: Seconds that a witness has to say what it saw, on a machine that may stand still.
_PATIENCE = 30


@dataclass(frozen=True)
class Seen:
    """Of ``seconds`` the worst stretch: the share of it that a processor's timer was late for, and
    that was stolen from all processors.
    """

    seconds: float
    late: float
    stolen: float

    @property
    def disturbed(self) -> bool:
        return self.late >= LATE or self.stolen >= STOLEN

    def __str__(self) -> str:
        return (
            f"of {STRETCH:g} s a processor was away for {self.late:.0%}, {self.stolen:.0%} "
            f"stolen (in {self.seconds:.0f} s)"
        )


class Witness:
    """Looks on in a process of its own from entering to leaving, and then has `seen` it."""

    def __enter__(self):
        self.seen = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process.stdout.readline()
        return self

    def __exit__(self, *_exception):
        try:
            out, _none = self._process.communicate(timeout=_PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
        self.seen = Seen(**json.loads(out))


def wait_until_quiet(seconds: float = 2.0, at_most: float = 30.0) -> None:
    """Return once the machine was undisturbed for so many seconds, or when waiting took too long."""
    until = time.monotonic() + at_most
    while time.monotonic() < until:
        with Witness() as witness:
            time.sleep(seconds)
        if not witness.seen.disturbed:
            return


# ---- in the process of its own ----


class _Timer(threading.Thread):
    """Sleeps on one processor and keeps when it woke too late, and by how much."""

    def __init__(self, processor):
        super().__init__(daemon=True)
        self.processor = processor
        self.late = []
        self.over = False

    def run(self):
        os.sched_setaffinity(threading.get_native_id(), {self.processor})
        before = time.monotonic()
        while not self.over:
            time.sleep(_TICK)
            now = time.monotonic()
            if now - before > _TICK + _LEAST:
                self.late.append((now, now - before - _TICK))
            before = now


def worst(events) -> float:
    """The most of what ``events`` (moments with amounts that ended then, in seconds) say together
    of any stretch, as a share of it.
    """
    moments = [moment for moment, _amount in events]
    sums = [0.0]
    for _moment, amount in events:
        sums.append(sums[-1] + amount)
    most = max(
        (
            sums[place + 1] - sums[bisect.bisect_left(moments, moment - STRETCH)]
            for place, moment in enumerate(moments)
        ),
        default=0.0,
    )
    return min(1.0, most / STRETCH)


def _stolen() -> float:
    """Seconds that the hypervisor has given to others since the machine started, per processor."""
    with open("/proc/stat", encoding="ascii") as stat:
        return int(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK") / os.cpu_count()


def main() -> None:
    timers = [_Timer(processor) for processor in sorted(os.sched_getaffinity(0))[:_TIMERS]]
    for timer in timers:
        timer.start()
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), asked.set()), daemon=True).start()
    began, before, stolen = time.monotonic(), _stolen(), []
    print("ready", flush=True)
    while True:
        over = asked.wait(_LOOK)
        now = _stolen()
        stolen.append((time.monotonic(), now - before))
        before = now
        if over:
            break
    for timer in timers:
        timer.over = True
        timer.join()
    late = max(worst(timer.late) for timer in timers)
    print(json.dumps({"seconds": time.monotonic() - began, "late": late, "stolen": worst(stolen)}))


if __name__ == "__main__":
    main()
