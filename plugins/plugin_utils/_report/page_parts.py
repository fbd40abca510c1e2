# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Parts that all pages share: the files of this folder, hashes for the policy (CSP), the tab's icon,
and texts with code as HTML. Pure.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import pathlib

from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    PASS,
    SKIP,
    UNKNOWN,
    WARN,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import seen
from markupsafe import Markup, escape

_HERE = pathlib.Path(__file__).parent

SYMBOLS = {FAIL: "\u2715", UNKNOWN: "?", WARN: "!", SKIP: "\u2013", PASS: "\u2713"}
#: Colour and path of the tab's icon, by the state of the run.
_ICONS = {
    FAIL: ("b3320b", "M5 5l6 6M11 5l-6 6"),
    PASS: ("0b6b8a", "M4 8l3 3 5-6"),
    SKIP: ("515c6b", "M4 8h8"),
}


@functools.lru_cache(maxsize=None)
def read_file(name: str) -> str:
    """The text of a file in this folder."""
    return (_HERE / name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def icon_of(state: str) -> str:
    """The tab's icon as a URL, by which the page of a failed run is found among many tabs."""
    colour, shape = _ICONS[state]
    picture = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><rect width='16' "
        f"height='16' rx='3' fill='#{colour}'/>"
        f"<path d='{shape}' stroke='#fff' stroke-width='2' fill='none'/></svg>"
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"


def html_with_code(words: str) -> Markup:
    """A text of the code's registry as HTML; commands and options between backticks become code."""
    parts = seen(words).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
