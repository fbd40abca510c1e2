# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The base of this host's system clock, which tells whether somebody set the clock."""

from __future__ import annotations

import time

#: Largest change of the base, in seconds, that a share is corrected for. A larger one is a clock
#: that was wrong by hours, or a reboot, after which the boot clock starts again.
MOST_CORRECTED = 3600.0
_READS = 3


def clock_base() -> float:
    """The system time, in seconds since the epoch, at which the boot clock was zero.

    The boot clock runs at the rate of the system clock, also while NTP adjusts that rate, and is
    never set (clock_gettime(2)): a change of the base is the distance by which the system clock was
    set.
    """
    reads = []
    for _turn in range(_READS):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        now = time.time()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        reads.append((after - before, now - (before + after) / 2))
    return min(reads)[1]
