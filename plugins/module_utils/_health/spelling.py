# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Errors for names that do not exist, with the nearest names that do. Pure."""

from __future__ import annotations

from typing import Iterable, List

#: Similarity (`difflib`: 0 to 1) from which a name counts as a misspelling of another, and how far
#: below the nearest name another one is still worth mentioning.
SIMILAR, _AS_NEAR = 0.7, 0.05
#: Supported names that are listed although the nearest one is known.
_MOST_LISTED = 12


def nearest(given: str, supported: Iterable[str], similar: float = SIMILAR) -> List[str]:
    """The supported names that ``given`` may be a misspelling of, nearest first."""
    # Only an error needs it, and on a node every import is compiled anew.
    from difflib import SequenceMatcher

    scores = {name: SequenceMatcher(None, name, str(given)).ratio() for name in supported}
    least = max(similar, max(scores.values(), default=0.0) - _AS_NEAR)
    return sorted(
        (name for name in scores if scores[name] >= least), key=lambda name: -scores[name]
    )


def did_you_mean(names: Iterable[str]) -> str:
    """`` (did you mean 'a' or 'b'?)``; empty without names."""
    quoted = [repr(name) for name in names]
    return f" (did you mean {' or '.join(quoted)}?)" if quoted else ""


def unsupported(kind: str, given: str, supported: Iterable[str]) -> str:
    """``unsupported option 'lvl'; supported: level, timeout (did you mean 'level'?)``; of many
    supported names only the nearest.
    """
    names = [str(name) for name in supported]
    near = nearest(given, names)
    if near and len(names) > _MOST_LISTED:
        return f"unsupported {kind} {given!r}{did_you_mean(near)}"
    listed = ", ".join(names) or f"no {kind} at all"
    return f"unsupported {kind} {given!r}; supported: {listed}{did_you_mean(near)}"
