# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Show how many hosts have answered a long task."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import screen

#: Fewest hosts for which progress is shown, and the interval in seconds between two lines.
LEAST_HOSTS, INTERVAL = 50, 30.0


class Progress:
    """Counts the hosts that have answered one task. Lines are shown when an answer arrives; a
    thread could keep the program from ending.
    """

    def __init__(
        self, title: str, hosts: int, clock: t.Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._hosts, self._clock = title, hosts, clock
        self._started = self._shown = clock()
        self._answered = 0
        self._counts = {"failing": 0, "unreachable": 0, "without a result": 0}

    def count(self, result: t.Mapping[str, t.Any]) -> None:
        """Count the answer of a host, and show a line if the interval has passed."""
        self._answered += 1
        if result.get("unreachable"):
            self._counts["unreachable"] += 1
        elif result.get("status") == "fail":
            self._counts["failing"] += 1
        elif result.get("failed"):
            self._counts["without a result"] += 1
        now = self._clock()
        if self._hosts < LEAST_HOSTS or now - self._shown < INTERVAL:
            return
        self._shown = now
        if not screen.is_for_programs():
            screen.show(self.line(now))

    def line(self, now: float) -> str:
        """The line, at a time of the clock."""
        counts = ", ".join(f"{count} {what}" for what, count in self._counts.items() if count)
        return (
            f"{self._title}: {self._answered} of {self._hosts} hosts answered"
            f"{f' ({counts})' if counts else ''}, {now - self._started:.0f} s"
        )
