# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The readers of untrusted values: a wrong type reads as empty, and nothing raises."""

from __future__ import annotations

import ast
import builtins
import importlib
import pkgutil
from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils import _health
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    _TYPE_NAMES,
    LARGEST,
    MOST_CHARACTERS,
    MOST_DEPTH,
    MOST_ITEMS,
    Unsigned,
    decode,
    flag,
    mapping,
    mappings_in,
    number,
    positive,
    sequence,
    text,
    whole_number,
    parse_json,
)


class Totals(TypedDict):
    corrected: Unsigned
    uncorrected: Unsigned


class Gpu(TypedDict, total=False):
    index: int
    name: str
    mode: Literal["on", "off", 1]
    watts: Optional[float]
    totals: Optional[Totals]
    lost: bool
    label: Union[int, List[str]]


class Everything(TypedDict, total=False):
    counters: Dict[str, Optional[Unsigned]]
    gpus: List[Optional[Gpu]]
    totals: List[Totals]
    by_name: Dict[str, Gpu]
    free: Any
    evidence: Dict[str, Any]
    within: Everything


KEYS = sorted({*Everything.__annotations__, *Gpu.__annotations__, *Totals.__annotations__})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=40,
)


def of_gpu(**fields):
    return decode(Gpu, fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"index": 1, "name": "x", "lost": False}, {"index": 1, "name": "x", "lost": False}),
        ({"index": True}, {}),
        ({"index": 1.0}, {}),
        ({"index": 1 << 64}, {}),
        ({"index": -1}, {"index": -1}),
        ({"index": None}, {}),
        ({"name": b"x"}, {}),
        ({"lost": 0}, {}),
        ({"watts": 5}, {"watts": 5}),
        ({"watts": None}, {"watts": None}),
        ({"watts": float("nan")}, {}),
        ({"watts": 10**400}, {}),
        ({"watts": "5"}, {}),
        ({"mode": "on"}, {"mode": "on"}),
        ({"mode": True}, {}),
        ({"mode": []}, {}),
        ({"label": 3}, {"label": 3}),
        ({"label": ["a", 3]}, {"label": ["a"]}),
        ({"unknown": 3}, {}),
    ],
)
def test_a_field_of_the_wrong_type_is_left_out(fields, expected):
    assert decode(Gpu, fields) == expected


def test_a_total_part_is_whole_or_left_out():
    whole = {"corrected": 1, "uncorrected": 0}
    assert of_gpu(totals=whole) == {"totals": whole}
    assert of_gpu(totals={**whole, "corrected": -1}) == {}
    assert of_gpu(totals={"corrected": 1}) == {}
    assert decode(Everything, {"totals": [whole, {"corrected": 1}]}) == {"totals": [whole]}


def test_a_list_of_optional_items_keeps_their_places():
    assert decode(Everything, {"gpus": [{"index": 0}, "gpu", {}]}) == {
        "gpus": [{"index": 0}, None, {}]
    }


def test_a_mapping_of_optional_items_keeps_their_keys():
    assert decode(Everything, {"counters": {"heat": 1, "power": "much", "none": None}}) == {
        "counters": {"heat": 1, "power": None, "none": None}
    }


def test_keys_that_are_no_text_are_dropped():
    assert decode(Everything, {"by_name": {1: {}, "a": {"index": 2}, "b": 3}}) == {
        "by_name": {"a": {"index": 2}}
    }


def test_sizes_are_bounded():
    assert len(of_gpu(name="x" * (MOST_CHARACTERS + 1))["name"]) == MOST_CHARACTERS
    assert len(decode(Everything, {"gpus": [{}] * (MOST_ITEMS + 1)})["gpus"]) == MOST_ITEMS
    nested: Dict[str, Any] = {}
    for _level in range(10_000):
        nested = {"within": nested}
    found, depth = decode(Everything, nested), 0
    while "within" in found:
        found, depth = found["within"], depth + 1
    assert depth == MOST_DEPTH


def test_plain_mappings_pass():
    assert decode(dict, {"a": 1}) == {"a": 1}
    assert decode(dict, []) == {}


def test_a_type_that_json_has_not_is_a_mistake_of_the_declaration():
    class Wrong(TypedDict):
        when: set

    # The annotation is text that is looked up in the module.
    with pytest.raises(TypeError, match="cannot be declared"):
        decode(Wrong, {"when": 1})


#: Types of what is only written.
NEVER_DECODED = {"MeshFacts"}


def test_types_of_inherited_fields_are_known_where_they_are_inherited():
    """Python 3.8, which a host may have, looks for them in the module of the heir."""
    for part in pkgutil.walk_packages(_health.__path__, _health.__name__ + "."):
        known = vars(importlib.import_module(part.name))
        for name, kind in known.items():
            if not hasattr(kind, "__total__") or kind.__module__ != part.name:
                continue
            hints = [
                hint.__forward_arg__
                for hint in kind.__annotations__.values()
                if hasattr(hint, "__forward_arg__")
            ]
            used = {
                node.id
                for hint in hints
                for node in ast.walk(ast.parse(hint))
                if isinstance(node, ast.Name)
            }
            missing = used - {*known, *_TYPE_NAMES, *dir(builtins)}
            assert name in NEVER_DECODED or not missing, f"{part.name}.{name}"


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_any_value_is_decoded_and_decoding_again_changes_nothing(value):
    found = decode(Everything, value)
    assert set(found) <= set(Everything.__annotations__)
    for gpu in found.get("gpus", []):
        assert gpu is None or isinstance(gpu.get("index", 0), int)
    again = decode(Everything, found)
    assert repr(again) == repr(found)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_the_small_readers_never_raise(value):
    assert isinstance(mapping(value), dict)
    assert isinstance(sequence(value), list)
    assert all(isinstance(item, dict) for item in mappings_in(value))
    assert isinstance(text(value), str)
    assert number(value) is None or abs(number(value)) <= LARGEST
    assert whole_number(value) is None or 0 <= whole_number(value) < 1 << 64
    assert positive(value) is None or positive(value) > 0
    assert flag(value) is (value is True)


def test_numbers_are_no_booleans():
    assert [number(value) for value in (True, "1", None, float("inf"), 10**400, 2)] == [
        None,
        None,
        None,
        None,
        None,
        2.0,
    ]
    assert [whole_number(value) for value in (True, 1.0, -1, 3)] == [None, None, None, 3]
    assert [positive(value) for value in (0, -1, 0.5)] == [None, None, 0.5]
    assert number(5, 6) is None and whole_number(5, 0, 4) is None


def test_json_that_is_nested_too_deep_is_invalid_json():
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for broken in ("[" * 100_000, '{"a":' * 100_000, "nonsense"):
        with pytest.raises(ValueError):
            parse_json(broken)
