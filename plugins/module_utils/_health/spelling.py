# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Errors for names that do not exist, with the nearest names that do. Pure."""

from __future__ import annotations

from typing import Iterable, List

#: Similarity (`difflib`: 0 to 1) from which a name counts as a misspelling of another.
SIMILAR = 0.7


def nearest(given: str, supported: Iterable[str], similar: float = SIMILAR) -> List[str]:
    """At most three of the supported names that ``given`` may be a misspelling of, nearest first."""
    # Only an error needs it, and on a node every import is compiled anew.
    import difflib

    return difflib.get_close_matches(str(given), [str(name) for name in supported], 3, similar)


def did_you_mean(names: Iterable[str]) -> str:
    """`` (did you mean 'a' or 'b'?)``; empty without names."""
    quoted = [repr(name) for name in names]
    return f" (did you mean {' or '.join(quoted)}?)" if quoted else ""


def unsupported(kind: str, given: str, supported: Iterable[str]) -> str:
    """``unsupported option 'lvl'; supported: level, timeout (did you mean 'level'?)``."""
    names = list(supported)
    listed = ", ".join(names) or f"no {kind} at all"
    return f"unsupported {kind} {given!r}; supported: {listed}{did_you_mean(nearest(given, names))}"
