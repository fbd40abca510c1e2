# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: printable, wrapped to its width. Pure."""

from __future__ import annotations

import re
import textwrap
from typing import Iterable, List, NamedTuple, Optional, Sequence

#: Columns of a line where the terminal's are not known, and the least that wrapped text gets
#: whatever stands left of it.
WIDTH = 120
_LEAST_WIDTH = 40
#: Characters of one message.
MOST_TEXT = 400


class Line(NamedTuple):
    """A line for the terminal, and the status that it is about (for its colour); "" for none."""

    text: str
    status: str = ""


def texts_of(lines: Iterable[Line]) -> List[str]:
    """The lines without their statuses."""
    return [line.text for line in lines]


def some_of(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first ``most`` names as one text, and how many there are more."""
    rest = len(names) - most
    return between.join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def plain(text: str, most: Optional[int] = MOST_TEXT) -> str:
    """The text as one line of printable ASCII of at most ``most`` characters."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = " ".join(text.split()).encode("ascii", "replace").decode("ascii")
    text = re.sub(r"[\x00-\x1f\x7f]", "?", text)
    return text if most is None or len(text) <= most else f"{text[: most - 4]} ..."


def printable(text: str) -> str:
    """The text with a question mark for each character that moves a terminal's cursor, reverses its
    text or has no encoding: for every sink that people read.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def wrapped(left: str, text: str, indent: int, width: int = WIDTH) -> List[str]:
    """Lines of the text after ``left``, further lines indented by ``indent`` columns. A number
    stays on the line of its unit.
    """
    columns = max(width, indent + _LEAST_WIDTH, len(left) + _LEAST_WIDTH)
    lines = textwrap.wrap(
        re.sub(r"(?<=[0-9]) (?=[A-Za-z%])", "\xa0", text),
        columns,
        initial_indent=left,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines] or [left.rstrip()]
