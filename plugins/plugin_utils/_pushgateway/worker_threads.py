# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Run network requests in daemon threads.

Threads are abandoned at the deadline, so that a slow or silent server does not delay the end of the
playbook.
"""

from __future__ import annotations

import queue
import threading
import time
import typing as t

#: Number of connections at once; more do not make a Pushgateway on the same machine faster.
CONNECTIONS = 8


class WorkerThreads:
    """A pool of daemon threads. The first starts at once, since Python cannot start threads while
    the interpreter shuts down.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[t.Callable[[], None]] = queue.SimpleQueue()
        self._size = 0
        self._grow(1)

    def run(self, tasks: t.Sequence[t.Callable[[], None]], until: float) -> bool:
        """Run the tasks; True if all ended before ``until`` (monotonic seconds). No task starts
        after that. Tasks must not raise.
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
                # The interpreter shuts down: the threads that already run do the work.
                return
            self._size += 1

    def _serve(self) -> None:
        while True:
            self._tasks.get()()
