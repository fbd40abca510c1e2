# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host registered, and what is only a fact that a node can set."""

from __future__ import annotations

import pytest

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts

PLAN = {"plan": {"run": "r1"}}

#: Variables of a host -> what counts as registered under the name ``plan``.
CASES = {
    "registered": ({"plan": PLAN}, PLAN),
    "registered, with other facts": (
        {"plan": PLAN, "ansible_facts": {"distribution": "Debian"}},
        PLAN,
    ),
    "registered, and a fact of that name": (
        {"plan": PLAN, "ansible_facts": {"plan": {"plan": 7}}},
        PLAN,
    ),
    "a fact only": ({"plan": {"plan": 7}, "ansible_facts": {"plan": {"plan": 7}}}, None),
    "facts of a wrong type": ({"plan": PLAN, "ansible_facts": [1]}, PLAN),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fact_is_not_taken_for_what_was_registered(case):
    own, expected = CASES[case]
    assert hosts.registered(own, "plan") == expected
    [(host, answer)] = hosts.answers({"gpu01": own}, "plan", ("plan",))
    assert (host, answer) == ("gpu01", expected)
