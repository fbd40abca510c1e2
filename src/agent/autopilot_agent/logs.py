# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The log: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Callable, Dict, Tuple

from _health.times import stamp_of

#: Maximum characters of one value; results of checks are in answers and metrics.
_MOST = 1000
#: Maximum warnings and errors a minute with the same text before its values are filled in. Anybody
#: who reaches the port can cause them by malformed requests.
LINES_A_MINUTE = 30
_MINUTE = 60.0


class RepeatedLines(logging.Filter):
    """Drops warnings and errors beyond `LINES_A_MINUTE` of the same text; the next line of that
    text after the minute has the number of dropped lines as ``dropped``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: Text -> start of its minute, and its lines in this minute.
        self._counts: Dict[str, Tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text, now = str(record.msg), self._clock()
        since, lines = self._counts.get(text, (now, 0))
        if now - since >= _MINUTE:
            if lines > LINES_A_MINUTE:
                fields = getattr(record, "fields", {})
                record.fields = {**fields, "dropped": lines - LINES_A_MINUTE}
            since, lines = now, 0
        # Texts are literals of the code; a library that fills in values first must not grow this.
        if len(self._counts) >= _MOST:
            self._counts.clear()
        self._counts[text] = (since, lines + 1)
        return lines < LINES_A_MINUTE


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": stamp_of(record.created),
            "level": record.levelname.lower(),
            "message": record.getMessage()[:_MOST],
            **{
                name: value
                for name, value in getattr(record, "fields", {}).items()
                if value is not None
            },
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)[-4 * _MOST :]
        return json.dumps(line, default=str)


def start(level: str) -> None:
    """Configure logging. ``level`` is debug, info, warning or error; of libraries, only warnings
    are logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    handler.addFilter(RepeatedLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("autopilot").setLevel(level.upper())
