# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Label selectors as Prometheus' operator applies them, and targets as Prometheus lists them."""

from __future__ import annotations

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    scrape_targets as core,
)

LABELS = {"release": "kps", "tier": "gpu"}
MONITOR = {"metadata": {"namespace": "gpus", "name": "dcgm"}}


def requirement(operator, *values, key="release"):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"matchLabels": {"release": "kps", "tier": "gpu"}},
        requirement("In", "kps", "other"),
        requirement("NotIn", "other"),
        requirement("NotIn", "other", key="absent"),
        requirement("Exists"),
        requirement("DoesNotExist", key="absent"),
    ],
)
def test_labels_that_meet_a_selector(selector):
    assert core.mismatch(selector, LABELS) == ""


@pytest.mark.parametrize(
    "selector, words",
    [
        ({"matchLabels": {"release": "x"}}, "label release is 'kps', expected 'x'"),
        ({"matchLabels": {"absent": "x"}}, "label absent is missing, expected 'x'"),
        (requirement("In", "a", "b"), "label release is 'kps', expected In a, b"),
        (requirement("In", "a", key="absent"), "label absent is missing, expected In a"),
        (requirement("NotIn", "kps"), "label release is 'kps', expected NotIn kps"),
        (requirement("Exists", key="absent"), "label absent is missing, expected Exists"),
        (requirement("DoesNotExist"), "label release is 'kps', expected DoesNotExist"),
        (requirement("Resembles", "kps"), "label release is 'kps', expected Resembles kps"),
    ],
)
def test_the_first_label_that_does_not_meet_a_selector(selector, words):
    assert core.mismatch(selector, LABELS) == words


def answer(*targets):
    return {"status": "success", "data": {"activeTargets": list(targets)}}


def target(health, pool="serviceMonitor/gpus/dcgm/0", error=""):
    return {"scrapePool": pool, "health": health, "scrapeUrl": "http://a:1/", "lastError": error}


def state(*targets):
    (found,) = core.monitor_states(["dcgm"], [MONITOR], core.targets_of(answer(*targets)))
    return found.state, found.up, found.total, found.reason


def test_a_monitor_is_up_when_all_its_targets_are():
    assert state(target("up"), target("up", "serviceMonitor/gpus/dcgm/1")) == ("up", 2, 2, "")
    # Others: a name that begins alike, another namespace, a PodMonitor, a job of the configuration.
    for pool in (
        "serviceMonitor/gpus/dcgm-2/0",
        "serviceMonitor/x/dcgm/0",
        "podMonitor/gpus/dcgm/0",
    ):
        assert state(target("up", pool)) == ("missing", 0, 0, "")


def test_what_was_not_scraped_yet_is_unknown_and_what_is_down_is_named():
    told = "1 of 2 targets were not scraped yet"
    assert state(target("up"), target("unknown")) == ("unknown", 1, 2, told)
    told = "0 of 2 targets are up: http://a:1/: refused"
    assert state(target("unknown"), target("down", error="refused")) == ("down", 0, 2, told)
    *_figures, reason = state(*[target("down")] * 5)
    assert reason.endswith("http://a:1/: no error given and 2 more")


def test_targets_of_a_hostile_answer_are_read_as_text_of_limited_length():
    (found,) = core.targets_of(answer(target(["up"], error="\x1b[31m" + "x" * 10_000), "no target"))
    assert found.health == "" and len(found.error) <= 300 and "\x1b" not in found.error
    for wrong in (None, [], {}, {"status": "error"}, {"status": "success", "data": []}):
        with pytest.raises(ValueError, match="expected the API of Prometheus"):
            core.targets_of(wrong)


def test_a_monitor_may_be_named_with_its_namespace():
    other = {"metadata": {"namespace": "other", "name": "dcgm"}}
    names = [
        [(one.namespace, one.monitor, one.reason) for one in core.monitor_states([name], both, [])]
        for name, both in (("dcgm", [MONITOR, other]), ("other/dcgm", [MONITOR, other]))
    ]
    assert names == [[("gpus", "dcgm", ""), ("other", "dcgm", "")], [("other", "dcgm", "")]]
    (absent,) = core.monitor_states(["x/y"], [MONITOR], [])
    assert (absent.namespace, absent.monitor, absent.state) == ("x", "y", "missing")
    assert absent.reason == "there is no such ServiceMonitor"
