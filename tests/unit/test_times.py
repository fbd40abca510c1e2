# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Times are in UTC whatever the time zone of the machine."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health import times
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots.difference.between import (
    Between,
)


@pytest.fixture(params=["UTC", "Asia/Kolkata", "Europe/Berlin"])
def time_zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_a_stamp_is_utc_in_every_time_zone(time_zone):
    assert times.parse_stamp("2026-10-25T00:30:00Z") == 1792888200
    assert times.stamp_of(1792888200) == "2026-10-25T00:30:00Z"
    assert times.day_of(1792888200) == "2026-10-25"
    assert times.compact_stamp(1792888200) == "20261025T003000"


def test_the_time_between_snapshots_is_right_when_the_clocks_change(time_zone):
    # Europe/Berlin leaves summer time at 01:00 UTC.
    before = {"boot_id": "a", "taken": "2026-10-25T00:30:00Z"}
    after = {"boot_id": "b", "taken": "2026-10-25T03:30:00Z"}
    assert Between(before, after).seconds == 3 * 3600


@given(st.integers(-(10**10), 2 * 10**11))
def test_a_stamp_is_read_back(seconds):
    assert times.parse_stamp(times.stamp_of(seconds)) in (float(seconds), None)
    if 0 <= seconds < 253402300800:
        assert times.parse_stamp(times.stamp_of(seconds)) == seconds


@pytest.mark.parametrize(
    "stamp",
    [
        None,
        5,
        "",
        "2026-10-25",
        "2026-13-25T00:30:00Z",
        "2026-10-25T00:30:00",
        "2026-10-25T00:30:00Z\n",
    ],
)
def test_anything_else_is_no_time(stamp):
    assert times.parse_stamp(stamp) is None


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e30])
def test_a_time_that_no_calendar_has_is_empty(seconds):
    assert times.stamp_of(seconds) == ""
