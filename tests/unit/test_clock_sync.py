# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of clock_sync: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.clock_sync import (
    CHECK,
    _timespan,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


YES, NO = (
    {"synchronised": True, "maximum_error_seconds": 0.02},
    {"synchronised": False, "maximum_error_seconds": 16.0},
)
BROKEN = {"error": "Operation not permitted"}
HOUR = 3600.0


def said(source="chrony", kernel=None, **parts):
    """A clock that a daemon keeps well, the ``parts`` of its answer changed."""
    base = {
        "kernel": YES if kernel is None else kernel,
        "daemons": ["chronyd"] if source else [],
        "source": source,
        "synchronised": True if source else None,
        "offset_seconds": 1.2e-5 if source else None,
        "stratum": 4 if source else None,
        "last_update_seconds": 31.0 if source else None,
    }
    return {**base, **parts}


def unheard(kernel, reason="chronyc is not installed"):
    nothing = dict.fromkeys(("synchronised", "offset_seconds", "stratum", "last_update_seconds"))
    return said(kernel=kernel, unheard={"reason": "missing", "message": reason}, **nothing)


#: Readings, options -> status of the check, then (code, status, action) of every finding.
TABLE = {
    "chrony": (said(), {}, "pass", []),
    "chrony that does not tell the kernel": (said(kernel=NO), {}, "pass", []),
    "chrony, the kernel could not be asked": (said(kernel=BROKEN), {}, "pass", []),
    "timesyncd without an offset": (said("timesyncd", offset_seconds=None), {}, "pass", []),
    "ntpd": (said("ntpd"), {}, "pass", []),
    "no daemon, the kernel vouches": (said(None), {}, "pass", []),
    "a daemon that was not heard, the kernel vouches": (unheard(YES), {}, "pass", []),
    "chrony without a server": (
        said(synchronised=False, offset_seconds=None),
        {},
        "warn",
        [("clock_not_synchronised", "warn", "fix_configuration")],
    ),
    "chrony without a server, the kernel vouches": (
        said(synchronised=False, offset_seconds=None, kernel=YES),
        {},
        "warn",
        [("clock_not_synchronised", "warn", "fix_configuration")],
    ),
    "nobody keeps it": (
        said(None, kernel=NO),
        {},
        "warn",
        [("clock_not_synchronised", "warn", "fix_configuration")],
    ),
    "a daemon that was not heard, the kernel does not vouch": (
        unheard(NO),
        {},
        "unknown",
        [("clock_not_told", "unknown", "fix_configuration")],
    ),
    "a daemon that was not heard, nor the kernel": (
        unheard(BROKEN),
        {},
        "unknown",
        [("clock_not_told", "unknown", "fix_configuration")],
    ),
    "the kernel could not be asked": (
        said(None, kernel=BROKEN),
        {},
        "unknown",
        [("clock_not_told", "unknown", "watch")],
    ),
    # how far
    "a tenth of a second off": (said(offset_seconds=-0.1), {}, "pass", []),
    "more than that": (
        said(offset_seconds=-0.1001),
        {},
        "warn",
        [("clock_is_off", "warn", "fix_configuration")],
    ),
    "minutes, without a limit": (
        said(offset_seconds=300.0),
        {},
        "warn",
        [("clock_is_off", "warn", "fix_configuration")],
    ),
    "more than the option allows": (
        said(offset_seconds=0.02),
        {"maximum_offset": 0.01},
        "warn",
        [("clock_is_off", "warn", "fix_configuration")],
    ),
    "less than the option allows": (said(offset_seconds=0.9), {"maximum_offset": 1.0}, "pass", []),
    "nothing allowed": (
        said(),
        {"maximum_offset": 0},
        "warn",
        [("clock_is_off", "warn", "fix_configuration")],
    ),
    "less than what fails": (
        said(offset_seconds=4.9),
        {"fail_offset": 5},
        "warn",
        [("clock_is_off", "warn", "fix_configuration")],
    ),
    "more than what fails": (
        said(offset_seconds=-5.1),
        {"fail_offset": 5},
        "fail",
        [("clock_is_off", "fail", "fix_configuration")],
    ),
    "more than what fails, the other way round": (
        said(offset_seconds=0.06),
        {"fail_offset": 0.05},
        "fail",
        [("clock_is_off", "fail", "fix_configuration")],
    ),
    # how long ago
    "a day ago": (said(last_update_seconds=24 * HOUR), {}, "pass", []),
    "more than a day ago": (
        said(last_update_seconds=25 * HOUR),
        {},
        "warn",
        [("clock_not_updated", "warn", "fix_configuration")],
    ),
    "in the time to come": (said(last_update_seconds=-5.0), {}, "pass", []),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said(case):
    readings, options, status, findings = TABLE[case]
    result = judge(readings, options)
    assert (result.status, [(one.code, one.status, one.action) for one in result.findings]) == (
        status,
        findings,
    )


@pytest.mark.parametrize(
    "case, words",
    [
        ("chrony", "synchronised (chrony, stratum 4), 0.012 ms off"),
        ("no daemon, the kernel vouches", "synchronised (the kernel), offset unknown"),
        (
            "more than that",
            "the clock is 0.100 s off (chrony), expected at most 0.1 s (maximum_offset)",
        ),
        (
            "more than what fails",
            "the clock is 5.100 s off (chrony), expected at most 5 s (fail_offset)",
        ),
        (
            "nobody keeps it",
            "the clock is not synchronised (the kernel); no time daemon is running (checked: "
            "chrony, timesyncd, ntpd)",
        ),
        (
            "chrony without a server",
            "the clock is not synchronised (chrony); chrony is running but has no usable time "
            "server",
        ),
        (
            "a daemon that was not heard, the kernel does not vouch",
            "the clock's synchronisation is unknown: chronyc is not installed",
        ),
        (
            "more than a day ago",
            "the last update from a time server was 25 hours ago (chrony), expected at most 24 hours ago",
        ),
        (
            "more than a day ago",
            "the last update from a time server was 25 hours ago (chrony), expected at most 24 hours ago",
        ),
    ],
)
def test_the_words(case, words):
    readings, options = TABLE[case][:2]
    assert judge(readings, options).summary == words


def test_clocks_that_a_network_card_keeps_are_named():
    assert (
        judge(said(None, daemons=["phc2sys", "ptp4l"]), {}).summary
        == "synchronised (the kernel, running: phc2sys, ptp4l), offset unknown"
    )


def test_the_offset_is_measured():
    assert [one.to_dict() for one in judge(said(offset_seconds=-0.25), {}).measurements] == [
        {"name": "clock_offset", "value": -0.25, "unit": "seconds", "labels": {}}
    ]
    assert judge(said(None), {}).measurements == []


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("-1.306ms", -1.306e-3),
        ("+123us", 1.23e-4),
        ("0", None),
        ("2.5s", 2.5),
        ("+1min 2.5s", 62.5),
        ("-2h 3min", -7380.0),
        ("n/a", None),
        ("", None),
    ],
)
def test_spans_of_time_as_systemd_prints_them(text, seconds):
    assert _timespan(text) == (None if seconds is None else pytest.approx(seconds))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["synchronised", "error", "message", "x"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(said()) + ["unheard"]), JSON, max_size=5),
    st.dictionaries(st.sampled_from([*CHECK.options]), JSON, max_size=2),
)
def test_no_garbage_makes_it_raise_or_pass(readings, options):
    told = isinstance(readings.get("source"), str) and isinstance(
        readings.get("synchronised"), bool
    )
    kernel = readings.get("kernel")
    vouched = isinstance(kernel, dict) and isinstance(kernel.get("synchronised"), bool)
    assert told or vouched or judge(readings, options).status == "unknown"
    judge(readings, options)


def test_nothing_read_is_unknown():
    assert [judge(readings, {}).status for readings in ({}, {"kernel": None}, [], None)] == [
        "unknown"
    ] * 4
