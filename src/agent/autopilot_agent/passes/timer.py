# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The schedule of this node. Nodes are spread by a hash of their names, so that agents that start
together never check together.

Only the monotonic clock is used: a clock change moves no pass.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Awaitable, Callable, Optional

log = logging.getLogger("autopilot")

#: Maximum delay of the first periodic pass, as a share of the period and in seconds.
_FIRST_SHARE = 0.1
_FIRST_MOST = 60.0
#: Random variation of each period, as a share.
JITTER = 0.1
#: A turn that failed because the GPUs were in use is retried after this share of the period.
AGAIN_SHARE = 0.25


def share(node: str, salt: str) -> float:
    """A number from 0 to 1 (exclusive), constant for a node and salt, and evenly spread over nodes."""
    return int.from_bytes(hashlib.sha256(f"{salt}/{node}".encode()).digest()[:8], "big") / 2.0**64


def periodic_delay(node: str, turn: int, period: float) -> float:
    """Seconds before periodic pass number ``turn`` (0 is the first), counted from the previous pass
    or the start.

    The first comes soon; the second aligns with the node's own place in the period, which the
    others keep apart from the jitter.
    """
    if turn == 0:
        return share(node, "first") * min(_FIRST_SHARE * period, _FIRST_MOST)
    if turn == 1:
        return period * (0.5 + share(node, "place"))
    return _jittered(node, turn, period)


def deep_delay(node: str, turn: int, period: float) -> float:
    """Seconds before deep diagnostic number ``turn``: the first at the node's own place in the
    period, since it takes the GPUs.
    """
    return period * share(node, "deep") if turn == 0 else _jittered(node, turn, period)


def _jittered(node: str, turn: int, period: float) -> float:
    return period * (1 + JITTER * (2 * share(node, f"turn {turn}") - 1))


class Timer:
    """Calls ``action`` at its turns until closed; a failed call is logged and the next turn comes
    as usual.
    """

    def __init__(
        self,
        name: str,
        delay: Callable[[int], float],
        action: Callable[[], Awaitable[Optional[float]]],
    ) -> None:
        """``delay(turn)`` is in seconds; ``action`` may return seconds after which to retry
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
        """Why the agent should be restarted, or None."""
        return f"the timer of {self._name} has ended" if self._task and self._task.done() else None

    async def _serve(self) -> None:
        turn, again = 0, None
        while True:
            # The event loop sleeps by its own clock, the monotonic one.
            await asyncio.sleep(self._delay(turn) if again is None else again)
            turn += again is None
            try:
                again = await self._action()
            except Exception:
                log.exception("%s failed", self._name)
                again = None
