# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much the agent takes on: buckets by the clock, places, and memories that have an end."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
from _health.cluster.client import Unavailable
from autopilot_agent.http.access import Remembered
from autopilot_agent.http.limits import Bounded, Buckets, Slots, TooMany
from autopilot_agent import logs
from autopilot_agent.logs import LINES_A_MINUTE, RepeatedLines


def taken(buckets, who, most=1000):
    """How many there are at once."""
    for number in range(most):
        try:
            buckets.take(who)
        except TooMany:
            return number
    return most


def test_a_bucket_fills_by_the_minute_and_is_ones_own():
    now = [0.0]
    buckets = Buckets(30, 10, "requests", lambda: now[0])
    assert (taken(buckets, "a"), taken(buckets, "a"), taken(buckets, "b")) == (10, 0, 10)
    with pytest.raises(TooMany) as caught:
        buckets.take("a")
    assert (caught.value.retry_after, str(caught.value)) == (
        2,
        "requests: 30 a minute and 10 at once are served",
    )
    now[0] = 6.0
    assert taken(buckets, "a") == 3
    now[0] = 3600.0
    assert taken(buckets, "a") == 10


def test_who_asks_in_vain_does_not_wait_longer_for_it():
    now = [0.0]
    buckets = Buckets(60, 1, "requests", lambda: now[0])
    buckets.take("a")
    for number in range(9):
        now[0] = number / 10
        assert taken(buckets, "a") == 0
    now[0] = 1.0
    assert taken(buckets, "a") == 1


def test_places_are_given_back_whatever_happens():
    slots = Slots(2, 2)
    with slots.of("a"), slots.of("b"), pytest.raises(TooMany), slots.of("c"):
        pass
    with pytest.raises(ZeroDivisionError), slots.of("a"):
        raise ZeroDivisionError
    assert not slots.by_caller


def test_one_caller_leaves_slots_to_the_others():
    slots = Slots()
    with contextlib.ExitStack() as held:
        with pytest.raises(TooMany, match="of one caller"):
            while True:
                held.enter_context(slots.of("loud"))
        for caller in ("a", "b", "c", "d"):
            held.enter_context(slots.of(caller))


def test_a_flood_of_malformed_requests_writes_few_lines():
    now = [0.0]
    repeated = RepeatedLines(lambda: now[0])

    def line(text, level=logging.ERROR):
        return logging.LogRecord("aiohttp.server", level, "", 0, text, ("10.0.0.1",), None)

    flood = "Error handling request from %s"
    assert sum(repeated.filter(line(flood)) for _request in range(1000)) == LINES_A_MINUTE
    assert repeated.filter(line("another error %s"))
    assert all(repeated.filter(line("%s asks", logging.INFO)) for _request in range(1000))
    now[0] = 61.0
    later = line(flood)
    assert repeated.filter(later)
    assert later.fields == {"dropped": 1000 - LINES_A_MINUTE}


def test_the_log_of_the_agent_drops_repeated_lines(capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.start("info")
        for number in range(1000):
            logging.getLogger("aiohttp.server").error("Error from %s", f"10.0.0.{number}")
        assert len(capsys.readouterr().err.splitlines()) == LINES_A_MINUTE
    finally:
        root.handlers[:], _level = before
        root.setLevel(before[1])


def test_a_flood_of_tokens_that_do_not_count_displaces_none_that_does():
    """While the API server is away, who was let in before still is."""
    now = [0.0]
    memory = Remembered(lambda: now[0])

    async def says(what):
        if isinstance(what, Exception):
            raise what
        return what

    async def ask():
        await memory.answer("good", lambda: says("alice"))
        for number in range(3000):
            assert await memory.answer(number, lambda: says(None)) is None
        now[0] += 100
        return await memory.answer("good", lambda: says(Unavailable("gone")))

    assert asyncio.run(ask()) == "alice"


def test_what_was_not_used_for_longest_is_forgotten():
    memory = Bounded(3)
    for number in range(3):
        memory.put(number, str(number))
    memory.get(0)
    memory.put(3, "3")
    assert (list(memory), memory.get(1), len(memory)) == ([2, 0, 3], None, 3)
