# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands in README.md and in the pages of docs, and what runs each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_MARKER = re.compile(r"<!-- (not run|run by): (.+) -->")


class Block(NamedTuple):
    """One fenced block. ``marker`` is the comment before it: ``("run by", path of a test)``,
    ``("not run", reason)``, or None for commands that tests/full/test_documented_commands.py runs.
    """

    page: str
    line: int
    language: str
    text: str
    marker: tuple[str, str] | None

    @property
    def commands(self):
        """Commands of a console block: the lines with a prompt."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(page):
    """The fenced blocks of a page, and its other lines."""
    found, rest, marker, lines = [], [], None, None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r" *```(\w*)$", line)
        if lines is None and fence:
            start, language, lines = number, fence[1], []
        elif fence:
            text = "\n".join(item.strip() if language == "console" else item for item in lines)
            found.append(Block(page.name, start, language, text, marker))
            lines = marker = None
        elif lines is not None:
            lines.append(line)
        else:
            rest.append(line)
            if line.strip():
                said = _MARKER.fullmatch(line.strip())
                marker = (said[1], said[2]) if said else None
    return found, rest


def consoles():
    """The console blocks of all pages."""
    return [block for page in PAGES for block in blocks(page)[0] if block.language == "console"]
