# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When nodes have their turns: spread over a fleet of which all agents start at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import accumulate

import pytest
from autopilot_agent.passes import timer

NODES = [f"gpu-{number:04d}.rack{number // 32}" for number in range(1000)]
PERIOD = 3600.0


def turns(node, count, period=PERIOD, delay=timer.periodic_delay):
    return list(accumulate(delay(node, turn, period) for turn in range(count)))


def busiest(moments, width):
    """The most moments that lie within so many seconds, by windows that start at a moment."""
    ordered = sorted(moments)
    return max(sum(1 for other in ordered if start <= other < start + width) for start in ordered)


def test_the_first_passes_are_spread_over_a_minute():
    first = [turns(node, 1)[0] for node in NODES]
    assert 0 <= min(first) and 58 < max(first) < 60
    tenths = Counter(int(moment / 6) for moment in first)
    assert set(tenths) == set(range(10)) and max(tenths.values()) < 140


def test_the_first_pass_of_a_short_period_comes_within_a_tenth_of_it():
    assert max(timer.periodic_delay(node, 0, 60.0) for node in NODES) < 6


@pytest.mark.parametrize("turn", [1, 2, 10, 50])
def test_later_passes_are_spread_over_the_whole_period(turn):
    moments = [turns(node, turn + 1)[turn] % PERIOD for node in NODES]
    tenths = Counter(int(moment / (PERIOD / 10)) for moment in moments)
    assert (
        set(tenths) == set(range(10)) and min(tenths.values()) > 60 and max(tenths.values()) < 140
    )


def test_light_checks_never_run_on_all_nodes_at_once():
    """A pass with copies over the host link takes about 20 s; from the second on hardly a few of
    1,000 nodes are in one at the same time.
    """
    everything = [turns(node, 12) for node in NODES]
    assert busiest([one[0] for one in everything], 20.0) < 400
    assert all(busiest([one[turn] for one in everything], 20.0) < 30 for turn in range(1, 12))


def test_jitter_is_a_tenth_of_the_period_and_differs_from_turn_to_turn():
    delays = {timer.periodic_delay("gpu-1", turn, PERIOD) for turn in range(2, 200)}
    assert min(delays) >= 0.9 * PERIOD and max(delays) <= 1.1 * PERIOD and len(delays) == 198


def test_deep_diagnostics_do_not_take_the_fleet_when_it_starts():
    first = [turns(node, 1, 14400.0, timer.deep_delay)[0] for node in NODES]
    tenths = Counter(int(moment / 1440) for moment in first)
    assert set(tenths) == set(range(10)) and min(tenths.values()) > 60


def test_a_clock_that_jumps_moves_no_turn(monkeypatch):
    """Only the monotonic clock is asked: the wall clock may say what it likes."""
    turns_had = []

    async def act():
        turns_had.append(time.monotonic())
        monkeypatch.setattr(time, "time", lambda: 0.0 if len(turns_had) % 2 else 4e9)

    async def main():
        one = timer.Timer("a test", lambda turn: 0.02, act)
        one.start()
        while len(turns_had) < 5:
            await asyncio.sleep(0.01)
        await one.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert all(later - earlier >= 0.02 for earlier, later in zip(turns_had, turns_had[1:]))


def test_a_turn_that_fails_or_did_not_come_about_does_not_end_the_timer():
    asked, had = [], []

    def delay(turn):
        asked.append(turn)
        return 0.0

    async def act():
        had.append(len(had))
        if len(had) == 1:
            raise RuntimeError("no")
        return 0.0 if len(had) in (2, 3) else None

    async def main():
        one = timer.Timer("a test", delay, act)
        one.start()
        while len(had) < 6:
            assert one.trouble() is None
            await asyncio.sleep(0.01)
        await one.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    # The second turn was tried three times.
    assert asked[:4] == [0, 1, 2, 3] and len(had) >= 6
