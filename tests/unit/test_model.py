# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vocabulary: the order of statuses, JSON both ways, and what becomes of documents from newer
versions or of garbage.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health import model
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Measurement,
    Subject,
)

GPU = Subject("gpu", 3, "GPU-8f0c", "00000000:9A:00.0")
RESULT = CheckResult(
    "remapped_rows",
    "fail",
    "GPU 3 (9A:00.0): row remapping failed",
    [
        Finding(
            "row_remap_failure",
            "fail",
            "row remapping failed",
            "replace_part",
            GPU,
            {"remapped_failure": True, "remapped_uncorrectable": 8},
        )
    ],
    [Measurement("remapped_rows", 8, "rows", {"gpu": "3", "cause": "uncorrectable"})],
    0.21,
)

HUGE = 10**400  # more than a float can hold, and still JSON
KEYS = [
    "check",
    "status",
    "findings",
    "measurements",
    "subject",
    "code",
    "action",
    "evidence",
    "name",
    "value",
    "labels",
    "kind",
    "index",
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, -HUGE])
    | st.floats()
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=20,
)
words = st.sampled_from(model.STATUSES) | st.text() | anything
findings = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "status": words,
            "action": words,
            "code": anything,
            "subject": anything,
            "evidence": anything,
        },
    ),
    max_size=4,
)
documents = anything | st.fixed_dictionaries(
    {},
    optional={
        "check": anything,
        "status": words,
        "findings": findings | anything,
        "measurements": st.lists(anything, max_size=4) | anything,
        "duration_seconds": anything,
    },
)


# ---- the order ----


def test_the_worst_status_wins():
    assert model.worst(["pass", "warn", "skip"]) == "warn"
    assert model.worst(["warn", "unknown"]) == "unknown"
    assert model.worst(["unknown", "fail"]) == "fail"


def test_of_no_statuses_the_default_is_the_worst():
    assert model.worst([]) == "pass"
    assert model.worst([], default="unknown") == "unknown"


def test_a_word_that_is_no_status_counts_as_unknown():
    assert model.worst(["pass", "splendid"]) == "unknown"


@given(st.lists(st.sampled_from(model.STATUSES), min_size=1))
def test_the_worst_is_one_of_them_and_none_is_worse(statuses):
    worst = model.worst(statuses)
    assert worst in statuses
    assert all(model.STATUSES.index(status) <= model.STATUSES.index(worst) for status in statuses)


# ---- JSON both ways ----


def test_a_result_survives_json():
    assert CheckResult.from_dict(json.loads(json.dumps(RESULT.to_dict()))) == RESULT


def test_a_result_has_the_documented_shape():
    assert RESULT.to_dict() == {
        "check": "remapped_rows",
        "status": "fail",
        "summary": "GPU 3 (9A:00.0): row remapping failed",
        "findings": [
            {
                "code": "row_remap_failure",
                "status": "fail",
                "action": "replace_part",
                "message": "row remapping failed",
                "subject": {
                    "kind": "gpu",
                    "index": 3,
                    "uuid": "GPU-8f0c",
                    "pci": "00000000:9A:00.0",
                },
                "evidence": {"remapped_failure": True, "remapped_uncorrectable": 8},
            }
        ],
        "measurements": [
            {
                "name": "remapped_rows",
                "value": 8,
                "unit": "rows",
                "labels": {"gpu": "3", "cause": "uncorrectable"},
            }
        ],
        "duration_seconds": 0.21,
    }


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(min_size=1)
subjects = st.builds(
    Subject,
    kind=texts,
    index=st.none() | st.integers(),
    uuid=st.none() | st.text(),
    pci=st.none() | st.text(),
    name=st.none() | st.text(),
)
labels = st.dictionaries(st.text(), st.text(), max_size=3)
results = st.builds(
    CheckResult,
    check=texts,
    status=st.just("fail"),
    summary=st.text(),
    duration_seconds=st.floats(allow_nan=False, allow_infinity=False),
    findings=st.lists(
        st.builds(
            Finding,
            code=texts,
            status=st.sampled_from(model.STATUSES),
            message=st.text(),
            action=st.sampled_from(model.ACTIONS),
            subject=subjects,
            evidence=st.dictionaries(
                st.text(), st.none() | st.booleans() | numbers | st.text(), max_size=3
            ),
        ),
        max_size=3,
    ),
    measurements=st.lists(
        st.builds(Measurement, name=texts, value=numbers, unit=st.text(), labels=labels), max_size=3
    ),
)


@given(results)
def test_any_result_survives_json(result):
    assert CheckResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


# ---- documents from newer versions ----


def test_fields_of_newer_versions_are_passed_over():
    document = RESULT.to_dict()
    document["severity_score"] = 9
    document["findings"][0]["subject"]["tray"] = "B"
    document["findings"][0]["links"] = ["https://example.org"]
    document["measurements"][0]["histogram"] = {"le": [1, 2]}
    assert CheckResult.from_dict(document) == RESULT


def test_a_status_of_a_newer_version_is_unknown():
    assert CheckResult.from_dict({"check": "x", "status": "excellent"}).status == "unknown"
    assert Finding.from_dict({"code": "x", "status": "excellent"}).status == "unknown"


def test_a_missing_status_is_unknown():
    assert CheckResult.from_dict({"check": "x"}).status == "unknown"
    assert Finding.from_dict({"code": "x"}).status == "unknown"


def test_an_action_of_a_newer_version_is_watch():
    assert (
        Finding.from_dict({"code": "x", "status": "fail", "action": "swap_tray"}).action == "watch"
    )


def test_a_result_is_never_better_than_its_worst_finding():
    document = dict(RESULT.to_dict(), status="pass")
    assert CheckResult.from_dict(document).status == "fail"


@pytest.mark.parametrize(
    "value", [None, "fast", True, [], {"n": 1}, float("nan"), float("inf"), HUGE]
)
def test_a_measurement_without_a_number_is_dropped(value):
    document = dict(RESULT.to_dict(), measurements=[{"name": "x", "value": value, "unit": "rows"}])
    assert CheckResult.from_dict(document).measurements == []


# ---- garbage ----


@given(documents)
def test_no_document_raises_and_what_is_read_can_be_written(document):
    result = CheckResult.from_dict(document)
    assert json.loads(json.dumps(result.to_dict()))["status"] in model.STATUSES
    assert CheckResult.from_dict(result.to_dict()).status == result.status


@given(documents)
def test_only_the_word_pass_reads_as_pass(document):
    if CheckResult.from_dict(document).status == "pass":
        assert document["status"] == "pass"
        listed = document.get("findings") if isinstance(document.get("findings"), list) else []
        assert all(
            isinstance(finding, dict) and finding.get("status") == "pass" for finding in listed
        )


@given(anything)
def test_no_part_of_a_document_raises(document):
    assert Finding.from_dict(document).status in model.STATUSES
    assert Finding.from_dict(document).action in model.ACTIONS
    assert Subject.from_dict(document).kind
    measurement = Measurement.from_dict(document)
    assert measurement is None or measurement.name


@given(anything)
def test_an_unknown_word_is_never_a_status_or_an_action(word):
    assert model.read_status(word) == (
        word if isinstance(word, str) and word in model.STATUSES else "unknown"
    )
    assert model.read_action(word) == (
        word if isinstance(word, str) and word in model.ACTIONS else "watch"
    )


# ---- names ----


@pytest.mark.parametrize(
    "spelling", ["0000:9a:00.0", "9A:00.0", "00000000:9A:00.0", "9a:00", " 0000:9A:00.0\n"]
)
def test_every_spelling_of_a_bus_id_is_the_same(spelling):
    assert model.normalise_pci(spelling) == "00000000:9A:00.0"
    assert model.short_pci(spelling) == "9A:00.0"


def test_a_domain_that_is_not_zero_is_kept():
    assert model.short_pci("0001:9a:00.0") == "00000001:9A:00.0"


def test_what_is_no_bus_id_is_left_as_it_is():
    assert model.normalise_pci("nowhere") == "NOWHERE"
    assert model.short_pci(None) == ""


@pytest.mark.parametrize(
    "subject, words",
    [
        (GPU, "GPU 3 (9A:00.0)"),
        (Subject("gpu", pci="00000000:9A:00.0"), "GPU (9A:00.0)"),
        (Subject("interface", name="ens1"), "interface ens1"),
        (model.NODE, "node"),
    ],
)
def test_a_subject_is_named_as_people_say_it(subject, words):
    assert str(subject) == words


# ---- concluding ----


def test_the_summary_is_the_worst_finding_with_its_subject():
    warning = Finding("a", "warn", "is warm")
    failure = Finding("b", "fail", "is lost", subject=GPU)
    result = model.concluded("x", [warning, failure], "all well")
    assert (result.status, result.summary) == ("fail", "GPU 3 (9A:00.0): is lost")


def test_the_summary_counts_what_it_does_not_tell():
    failures = [Finding("b", "fail", "is lost", subject=GPU)] * 3
    assert (
        model.concluded("x", failures, "all well").summary
        == "GPU 3 (9A:00.0): is lost (and 2 more)"
    )


def test_nothing_found_is_the_healthy_summary():
    assert model.concluded("x", [], "all well").summary == "all well"
    assert model.concluded("x", [], "all well").status == "pass"
