# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""When this node's turn is. Nodes are spread by a hash of their names, so that a fleet whose agents
start together never checks together.

Only the monotonic clock is used: a clock that jumps moves no pass.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Awaitable, Callable, Optional

log = logging.getLogger("autopilot")

#: The first periodic pass comes within this share of the period, and these seconds.
_FIRST_SHARE = 0.1
_FIRST_MOST = 300.0
#: A period is longer or shorter by this share, anew each time.
JITTER = 0.1
#: A turn that did not come about, for the GPUs were in use, is tried again after this share of the
#: period.
AGAIN_SHARE = 0.25


def share(node: str, salt: str) -> float:
    """A number from 0 to 1 (exclusive) that is always the same for a node and salt, and evenly
    spread over nodes.
    """
    return int.from_bytes(hashlib.sha256(f"{salt}/{node}".encode()).digest()[:8], "big") / 2.0**64


def periodic_delay(node: str, turn: int, period: float) -> float:
    """Seconds before the periodic pass number ``turn`` (0 is the first), counted from the pass
    before or the start.

    The first comes soon, the second leads to the node's own place in the period, which the others
    keep but for the jitter.
    """
    if turn == 0:
        return share(node, "first") * min(_FIRST_SHARE * period, _FIRST_MOST)
    if turn == 1:
        return period * (0.5 + share(node, "place"))
    return _jittered(node, turn, period)


def deep_delay(node: str, turn: int, period: float) -> float:
    """Seconds before the deep diagnostic number ``turn``: the first at the node's own place in the
    period, since it takes the GPUs.
    """
    return period * share(node, "deep") if turn == 0 else _jittered(node, turn, period)


def _jittered(node: str, turn: int, period: float) -> float:
    return period * (1 + JITTER * (2 * share(node, f"turn {turn}") - 1))


class Timer:
    """Calls ``action`` in its turns until it is closed; one that fails is logged and has its next
    turn like any other.
    """

    def __init__(
        self,
        name: str,
        delay: Callable[[int], float],
        action: Callable[[], Awaitable[Optional[float]]],
    ) -> None:
        """``delay(turn)`` is in seconds; ``action`` may return the seconds after which to try again
        instead.
        """
        self._name = name
        self._delay = delay
        self._action = action
        self._task: Optional["asyncio.Task[None]"] = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait({task})

    def trouble(self) -> Optional[str]:
        """Why the agent should be restarted; None while all is well."""
        return f"the timer of {self._name} has ended" if self._task and self._task.done() else None

    async def _serve(self) -> None:
        turn, again = 0, None
        while True:
            # Sleeping goes by the event loop's clock, which is the monotonic one.
            await asyncio.sleep(self._delay(turn) if again is None else again)
            turn += again is None
            try:
                again = await self._action()
            except Exception:
                log.exception("%s failed", self._name)
                again = None
