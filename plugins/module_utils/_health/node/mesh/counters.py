# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The growth of counters during a window, as evidence. Counters are read in children of their own:
a card whose firmware hangs must not cost the measurement.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional

from ..system.bounded import Child, ReportPipe, wait

#: Seconds for one reading of the counters.
SECONDS = 1.0
_GRACE = 0.1


class Growth:
    """Reads the counters at its creation, without waiting, and again in `finish`."""

    def __init__(self, look: Callable[[], Dict[str, int]]) -> None:
        self._look = look
        self._first: Optional[Child] = _started(look)

    def children(self) -> List[Child]:
        return [self._first] if self._first and not self._first.ended else []

    def finish(self, until: float) -> Optional[Dict[str, int]]:
        """By how much each counter grew; None if the counters could not be read twice by ``until``
        (monotonic clock). A counter that was reset is left out.
        """
        second = _started(self._look)
        both = [child for child in (self._first, second) if child]
        wait(both, min(until, time.monotonic() + SECONDS))
        self.close()
        for child in both:
            child.stop(_GRACE)
        before, after = (
            child.values.get("counters") if child else None for child in (self._first, second)
        )
        if before is None or after is None:
            return None
        return {
            name: after[name] - before[name]
            for name in sorted(after)
            if after[name] >= before.get(name, after[name] + 1)
        }

    def close(self) -> None:
        if self._first:
            self._first.stop(_GRACE)


def _started(look: Callable[[], Dict[str, int]]) -> Optional[Child]:
    def read(report: ReportPipe) -> None:
        report.send("counters", look())

    try:
        return Child(read, SECONDS + 2 * _GRACE)
    except OSError:
        return None
