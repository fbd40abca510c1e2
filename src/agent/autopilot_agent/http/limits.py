# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Limits on concurrent requests and on requests per minute, so that a flood costs little and others
are served.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from typing import Callable, Generic, Hashable, Iterator, Optional, Tuple, TypeVar

#: Maximum concurrent requests.
SLOTS = 16
#: Maximum concurrent requests of one caller; the agents together count as one.
SHARE = 12
#: Requests that start checks, for one identity: per minute, and burst. An agent asks for all its
#: callers.
A_MINUTE, AT_ONCE = 30.0, 10.0
PEER_A_MINUTE, PEER_AT_ONCE = 300.0, 32.0
#: Unknown tokens from one address: reviews by the API server per minute, and burst.
REVIEWS_A_MINUTE, REVIEWS_AT_ONCE = 120.0, 40.0

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TooMany(Exception):
    """Too many requests; ``retry_after`` in whole seconds."""

    def __init__(self, words: str, retry_after: float) -> None:
        super().__init__(words)
        self.retry_after = max(1, int(retry_after + 0.999))


class Bounded(Generic[Key, Value]):
    """A dictionary that drops the least recently used items."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: "OrderedDict[Key, Value]" = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def get(self, key: Key) -> Optional[Value]:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def drop(self, key: Key) -> None:
        self._items.pop(key, None)

    def put(self, key: Key, value: Value) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > self._most:
            self._items.popitem(last=False)


class Buckets:
    """A token bucket for each caller: a burst, and a rate per minute."""

    def __init__(
        self,
        a_minute: float,
        at_once: float,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = a_minute / 60
        self._at_once = at_once
        self._what = what
        self._clock = clock
        self._levels: Bounded[str, Tuple[float, float]] = Bounded(1024)

    def take(self, who: str) -> None:
        """Take a token; raises `TooMany` with the seconds until the next one."""
        now = self._clock()
        level, at = self._levels.get(who) or (self._at_once, now)
        level = min(self._at_once, level + (now - at) * self._rate)
        if level < 1:
            raise TooMany(
                f"{self._what}: {60 * self._rate:.0f} a minute and {self._at_once:.0f} at once "
                "are served",
                (1 - level) / self._rate,
            )
        self._levels.put(who, (level - 1, now))


class Slots:
    """``with slots.of(caller):`` takes one of a few slots; `TooMany` if all are taken, or all that
    one caller may have.
    """

    def __init__(self, most: int = SLOTS, share: int = SHARE) -> None:
        self.most = most
        self.share = share
        self.by_caller: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, caller: str) -> Iterator[None]:
        if self.by_caller.total() >= self.most:
            raise TooMany(f"{self.most} requests are served at once, all slots are taken", 5)
        if self.by_caller[caller] >= self.share:
            raise TooMany(f"{self.share} requests of one caller are served at once", 5)
        self.by_caller[caller] += 1
        try:
            yield
        finally:
            self.by_caller[caller] -= 1
            if not self.by_caller[caller]:
                del self.by_caller[caller]
