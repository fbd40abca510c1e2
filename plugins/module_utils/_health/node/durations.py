# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Parse durations such as ``30m``."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORM = re.compile(r"(?:\d+[dhms])+")
ACCEPTED = "a length of time such as 90s, 30m, 2h or 1h30m, or a number of seconds"


def seconds_of(value: Any, option: str) -> float:
    """Parse ``30m``, ``1h30m`` or a number greater than 0 as seconds; raises ValueError with the
    option, its value and what is accepted.
    """
    text = str(value).strip().lower()
    seconds = 0.0
    if not isinstance(value, bool):
        if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
            seconds = float(text)
        elif _FORM.fullmatch(text):
            parts = re.findall(r"(\d+)([dhms])", text)
            # Each unit once: 30m30m is a typing error.
            if len({unit for _number, unit in parts}) == len(parts):
                seconds = float(sum(int(number) * _UNITS[unit] for number, unit in parts))
    if not 0 < seconds < 366 * 86400:
        raise ValueError(f"{option}: {value!r} is invalid; expected {ACCEPTED}")
    return seconds
