# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Run what waits for the network in daemon threads.

They are left behind when the time is up, so that a server that sends a byte a second, or nothing,
delays nobody.
"""

from __future__ import annotations

import queue
import threading
import time
import typing as t

#: Connections at once: with more, a Pushgateway on the same machine gets no faster.
CONNECTIONS = 8


class WorkerThreads:
    """Daemon threads that work off tasks. One is started at once, since none can be any more when
    the interpreter shuts down.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[t.Callable[[], None]] = queue.SimpleQueue()
        self._size = 0
        self._grow(1)

    def run(self, tasks: t.Sequence[t.Callable[[], None]], until: float) -> bool:
        """Whether all tasks were done before ``until``; those that are not begun by then are not
        begun. Tasks raise nothing.
        """
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def timed(task: t.Callable[[], None]) -> t.Callable[[], None]:
            def work() -> None:
                try:
                    if time.monotonic() < until:
                        task()
                finally:
                    done.put(None)

            return work

        self._grow(min(CONNECTIONS, len(tasks)))
        for task in tasks:
            self._tasks.put(timed(task))
        try:
            for _task in tasks:
                done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        return time.monotonic() < until

    def _grow(self, size: int) -> None:
        while self._size < size:
            try:
                threading.Thread(target=self._serve, daemon=True, name="autopilot-push").start()
            except RuntimeError:
                # The interpreter shuts down: those that there are do it.
                return
            self._size += 1

    def _serve(self) -> None:
        while True:
            self._tasks.get()()
