# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Print lines: on standard output, or on standard error if ANSIBLE_STDOUT_CALLBACK writes JSON."""

from __future__ import annotations

from ansible import constants as C
from ansible.utils.display import Display

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import printable


def is_for_programs() -> bool:
    """Whether the callback that has standard output writes JSON there (json, jsonl, ndjson)."""
    return "json" in str(C.DEFAULT_STDOUT_CALLBACK).rpartition(".")[2]


def show(text: str, colour: str | None = None) -> None:
    """Show a line, on standard error where standard output is for programs."""
    Display().display(printable(text), color=colour, stderr=is_for_programs())
