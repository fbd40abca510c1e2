# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The log: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
import sys

from _health.times import stamp_of

#: Maximum characters of one value; results of checks are in answers and metrics.
_MOST = 1000


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
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("autopilot").setLevel(level.upper())
