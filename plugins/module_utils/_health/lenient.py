# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Typed values from untrusted input: readings of a node, answers of an API, documents on disk.

The small readers give one value: a value of the wrong type reads as empty or as None. `decode` gives
a whole `TypedDict`. Apart from `parse_json` and `bounded`, nothing here raises for any JSON value.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Literal,
    NewType,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

#: A non-negative integer of at most 64 bits, such as a counter: a type for fields of a `TypedDict`.
Unsigned = NewType("Unsigned", int)

#: Limits for decoded values. Sums and products of numbers below `LARGEST` stay finite. Longer
#: texts, lists and mappings are truncated; a value that is nested deeper has the wrong type.
LARGEST = 1e30
LARGEST_WHOLE = 1 << 64
MOST_CHARACTERS = 1 << 16
MOST_ITEMS = 1 << 16
MOST_DEPTH = 32
#: Limits for one whole answer: values, and characters of all texts. A node with 8 GPUs has about
#: 9,000 and 100,000; one part of a capture has 6 million characters.
MOST_VALUES = 1 << 21
MOST_IN_ALL = 1 << 24

_TYPE_NAMES = {
    "Any": Any,
    "Dict": Dict,
    "List": List,
    "Literal": Literal,
    "Optional": Optional,
    "Union": Union,
    "Unsigned": Unsigned,
}

T = TypeVar("T")
#: Decodes a value at a nesting depth; returns `_WRONG` for a value of the wrong type.
Reader = Callable[[Any, int], Any]
_WRONG = object()


# ---- text ----


def parse_json(content: Union[str, bytes, bytearray]) -> Any:
    """The JSON value. Raises ValueError for invalid JSON, and for lists or mappings that are nested
    deeper than Python parses.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


# ---- single values ----


def mapping(value: Any) -> Dict[str, Any]:
    """The mapping; {} for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> List[Any]:
    """The list; [] for anything else."""
    return value if isinstance(value, list) else []


def mappings_in(value: Any) -> List[Dict[str, Any]]:
    """The mappings of a list, without its other items; [] for anything but a list."""
    return [item for item in sequence(value) if isinstance(item, dict)]


def text(value: Any) -> str:
    """The text; "" for anything else."""
    return value if isinstance(value, str) else ""


def number(value: Any, least: float = -LARGEST, most: float = LARGEST) -> Optional[float]:
    """A finite number from ``least`` to ``most``; None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if least <= value <= most else None


def whole_number(value: Any, least: int = 0, most: int = LARGEST_WHOLE - 1) -> Optional[int]:
    """An integer from ``least`` to ``most``; None for anything else, including 1.0 and booleans."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None


def positive(value: Any) -> Optional[float]:
    """A finite number greater than 0; None for anything else."""
    found = number(value)
    return found if found is not None and found > 0 else None


def flag(value: Any) -> bool:
    """True for true, False for anything else."""
    return value is True


# ---- whole answers ----


def bounded(value: Any) -> Any:
    """A copy of any JSON value in which a number out of range and what is nested too deep are None.
    Raises ValueError for more than `MOST_VALUES` values or `MOST_IN_ALL` characters.
    """
    return _bounded(value, 0, [MOST_VALUES, MOST_IN_ALL])


def _bounded(value: Any, depth: int, left: List[int]) -> Any:
    found = value
    left[0] -= 1
    if isinstance(value, str):
        left[1] -= len(value)
    elif isinstance(value, int):  # a boolean, too
        found = value if abs(value) < LARGEST_WHOLE else None
    elif isinstance(value, float):
        found = value if number(value) is not None else None
    elif isinstance(value, (dict, list, tuple)) and depth >= MOST_DEPTH:
        found = None
    elif isinstance(value, dict):
        left[1] -= sum(len(key) for key in value if isinstance(key, str))
        found = {key: _bounded(item, depth + 1, left) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        found = [_bounded(item, depth + 1, left) for item in value]
    if min(left) < 0:
        raise ValueError(f"more than {MOST_VALUES} values or {MOST_IN_ALL} characters")
    return found


# ---- whole readings ----


def decode(kind: Type[T], value: Any) -> T:
    """Decode any value as a `TypedDict` of class ``kind``; ``dict`` as ``kind`` accepts any
    mapping.

    Unknown keys and fields of the wrong type are dropped. A nested `TypedDict` that is declared
    total has the wrong type if one of its fields has. Lists and mappings lose items of the wrong
    type; where items are optional, None replaces them. ``int`` and ``float`` accept no booleans,
    ``int`` accepts no floats, `Unsigned` accepts no negative numbers, ``Any`` accepts everything.
    """
    if kind is dict:
        return cast(T, mapping(value))
    found: Any = {}
    for name, read in _fields(cast(Any, kind)).items():
        if name in mapping(value):
            field = read(value[name], 1)
            if field is not _WRONG:
                found[name] = field
    return cast(T, found)


@lru_cache(maxsize=None)
def _fields(kind: Any) -> Dict[str, Reader]:
    """The decoder of each field of a `TypedDict`."""
    # Python 3.8 resolves an inherited field's type in the module of the class that inherits it.
    hints = get_type_hints(kind, localns=_TYPE_NAMES)
    return {name: _reader(hint) for name, hint in hints.items()}


def _reader(hint: Any) -> Reader:
    """The decoder for the type ``hint``; raises TypeError for a type without a JSON value."""
    origin, parameters = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, type) and hasattr(hint, "__total__"):
        return lambda value, depth: _read_fields(hint, value, depth)
    if origin is Union or type(hint).__name__ == "UnionType":
        return _union_reader([_reader(parameter) for parameter in parameters])
    if origin is Literal:
        return lambda value, depth: _read_literal(parameters, value)
    if origin is list:
        missing = None if type(None) in get_args(parameters[0]) else _WRONG
        return _list_reader(_reader(parameters[0]), missing)
    if origin is dict and parameters[0] is str:
        missing = None if type(None) in get_args(parameters[1]) else _WRONG
        return _dict_reader(_reader(parameters[1]), missing)
    raise TypeError(f"a reading cannot be declared as {hint!r}")


def _read_fields(kind: Any, value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > MOST_DEPTH:
        return _WRONG
    found = {}
    for name, read in _fields(kind).items():
        field = read(value[name], depth + 1) if name in value else _WRONG
        if field is not _WRONG:
            found[name] = field
        elif kind.__total__:
            return _WRONG
    return found


def _union_reader(readers: List[Reader]) -> Reader:
    def read(value: Any, depth: int) -> Any:
        found = (reader(value, depth) for reader in readers)
        return next((item for item in found if item is not _WRONG), _WRONG)

    return read


def _list_reader(reader: Reader, missing: Any) -> Reader:
    def read(value: Any, depth: int) -> Any:
        if not isinstance(value, (list, tuple)) or depth > MOST_DEPTH:
            return _WRONG
        items = [reader(item, depth + 1) for item in value[:MOST_ITEMS]]
        items = [missing if item is _WRONG else item for item in items]
        return [item for item in items if item is not _WRONG]

    return read


def _dict_reader(reader: Reader, missing: Any) -> Reader:
    def read(value: Any, depth: int) -> Any:
        if not isinstance(value, dict) or depth > MOST_DEPTH:
            return _WRONG
        keys = [key for key in list(value)[:MOST_ITEMS] if isinstance(key, str)]
        items = {key: reader(value[key], depth + 1) for key in keys}
        items = {key: missing if item is _WRONG else item for key, item in items.items()}
        return {key: item for key, item in items.items() if item is not _WRONG}

    return read


def _read_literal(accepted: Tuple[Any, ...], value: Any) -> Any:
    # True == 1, so the type is compared too.
    if any(type(value) is type(word) and value == word for word in accepted):
        return value
    return _WRONG


def _read_none(value: Any, depth: int) -> Any:
    return None if value is None else _WRONG


def _read_text(value: Any, depth: int) -> Any:
    return value[:MOST_CHARACTERS] if isinstance(value, str) else _WRONG


def _read_flag(value: Any, depth: int) -> Any:
    return value if isinstance(value, bool) else _WRONG


def _read_whole(value: Any, depth: int) -> Any:
    return _WRONG if whole_number(value, -LARGEST_WHOLE) is None else value


def _read_count(value: Any, depth: int) -> Any:
    return _WRONG if whole_number(value) is None else value


def _read_number(value: Any, depth: int) -> Any:
    # Keep integers: evidence shows 5, not 5.0.
    return _WRONG if number(value) is None else value


def _read_mapping(value: Any, depth: int) -> Any:
    return value if isinstance(value, dict) else _WRONG


_SIMPLE: Dict[Any, Reader] = {
    Any: lambda value, depth: value,
    type(None): _read_none,
    str: _read_text,
    bool: _read_flag,
    int: _read_whole,
    Unsigned: _read_count,
    float: _read_number,
    dict: _read_mapping,
    Dict[str, Any]: _read_mapping,
}
