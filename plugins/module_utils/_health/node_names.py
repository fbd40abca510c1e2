# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Host names: natural sorting, and folding into ranges. Pure."""

from __future__ import annotations

import re
from typing import Any, Iterable, List, Optional, Tuple

#: Names that differ only in one number: the index of that part (None for a single name), the first
#: name and the last.
_Run = Tuple[Optional[int], str, str]


def natural(name: str) -> List[Any]:
    """Sort key under which gpu9 comes before gpu10."""
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _split(name) if part
    ]


def fold(names: Iterable[str]) -> List[str]:
    """Names in natural order with consecutive numbers folded: ``["gpu[0001-0003].rack7",
    "login1"]``.
    """
    return [_bracket(*run) for run in _runs(names)]


def fold_within(names: Iterable[str], most: int) -> str:
    """Folded names as one text of some ``most`` characters, and how many names are left out."""
    shown: List[str] = []
    length, left_out = 0, 0
    for run in _runs(names):
        name = _bracket(*run)
        length += len(name) + 2
        if shown and length > most:
            left_out += _count(*run)
        else:
            shown.append(name)
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")


def fold_few(names: Iterable[str], most: int = 10) -> List[str]:
    """Folded names for a sentence: the first few, and the total number of nodes."""
    known = list(names)
    folded = fold(known)
    return (
        folded if len(folded) <= most else folded[:most] + [f"and more, {len(known)} nodes in all"]
    )


def _counting_part(name: str, following: str) -> Optional[int]:
    """Index of the number that grows by one from ``name`` to ``following``; None if anything else
    differs.
    """
    parts, others = _split(name), _split(following)
    different = [place for place, (part, other) in enumerate(zip(parts, others)) if part != other]
    if len(parts) != len(others) or len(different) != 1 or different[0] % 2 == 0:
        return None
    digits = parts[different[0]]
    return different[0] if others[different[0]] == f"{int(digits) + 1:0{len(digits)}d}" else None


def _runs(names: Iterable[str]) -> List[_Run]:
    runs: List[_Run] = []
    for name in sorted(names, key=natural):
        place = _counting_part(runs[-1][2], name) if runs else None
        if place is not None and runs[-1][0] in (None, place):
            runs[-1] = (place, runs[-1][1], name)
        else:
            runs.append((None, name, name))
    return runs


def _split(name: str) -> List[str]:
    """Split a name into alternating text and numbers; the first and last parts are text."""
    return re.split(r"([0-9]+)", name)


def _bracket(place: Optional[int], first: str, last: str) -> str:
    if place is None:
        return first
    parts = _split(first)
    parts[place] = f"[{parts[place]}-{_split(last)[place]}]"
    return "".join(parts)


def _count(place: Optional[int], first: str, last: str) -> int:
    """The number of names in a bracket."""
    return 1 if place is None else int(_split(last)[place]) - int(_split(first)[place]) + 1
