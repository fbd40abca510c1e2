# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Runs on disk: a directory with two files for each host, samples and run record."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from typing import Any, List

from .reading import Capture, read

SAMPLES, RECORD = ".jsonl.gz", ".record.json"
#: Maximum characters of a line: a sample of sixteen GPUs has less than a tenth.
_LONGEST_LINE = 1 << 20


def load(directory: str) -> List[Capture]:
    """The captures in a directory by host; raises ValueError with the reason if it is invalid."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise ValueError(
            f"cannot be read ({error.strerror}); expected the directory of a collected capture"
        ) from None
    hosts = [name[: -len(SAMPLES)] for name in names if name.endswith(SAMPLES)]
    if not hosts:
        raise ValueError(
            f"has no capture (<host>{SAMPLES} and <host>{RECORD}); expected the directory of a "
            "collected capture"
        )
    return [load_host(directory, host) for host in hosts]


def load_host(directory: str, host: str) -> Capture:
    """The capture of one host; raises ValueError with the reason if its files are invalid."""
    record, samples = (
        os.path.join(directory, host + RECORD),
        os.path.join(directory, host + SAMPLES),
    )
    try:
        with open(record, encoding="utf-8") as stream:
            told: Any = json.load(stream, parse_constant=lambda word: None)
    except OSError as error:
        raise ValueError(
            f"{record} cannot be read ({error.strerror}), so the run is unknown"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{record} is not a JSON document: {error}") from None
    try:
        with gzip.open(samples, "rt", encoding="utf-8", errors="replace") as stream:
            return read(iter(lambda: stream.readline(_LONGEST_LINE), ""), told, host)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{samples} cannot be unpacked: {error}; collect it again") from None
    except ValueError as error:
        raise ValueError(f"{samples} is not a capture: {error}") from None
