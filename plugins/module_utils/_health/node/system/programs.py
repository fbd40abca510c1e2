# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Find the measuring programs: their paths and versions, as readings."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, List, Optional, Tuple, TypedDict

from .bounded import run

#: Program directories that are often missing in the PATH of a non-login SSH session.
_ALSO = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/sbin")
#: Deadline in seconds for a program's version.
_SECONDS = 5.0


class ErrorReading(TypedDict, total=False):
    """Why a measurement has no figure, as built by `error`; any value counts."""

    reason: Any
    message: Any


class ProgramReading(TypedDict, total=False):
    path: str
    version: str
    #: The full output of the version command.
    told: str
    #: Build features of iperf3, options of perftest.
    features: Optional[List[str]]
    #: The path of perftest's ib_write_lat.
    latency: str
    #: Why the program is unusable, and the same as one word; any value counts.
    error: Any
    reason: Any


def path_of(name: str) -> Optional[str]:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath),) + _ALSO))


def error(reason: str, message: str) -> ErrorReading:
    """Build an error: ``reason`` is one word for programs, ``message`` is for people."""
    return {"reason": reason, "message": message}


def numbers_of(version: str) -> Tuple[int, ...]:
    """``3.10.1`` as (3, 10, 1); compared as text, 3.9 would be newer than 3.10."""
    return tuple(int(part) for part in version.split("."))


def find(name: str, least: str) -> ProgramReading:
    """``{"path", "version", "told"}``, or ``{"error": text, "reason": word}`` if the program is
    missing, older than ``least``, or prints no version.

    ``told`` is the full output of the version command (``-v`` for all versions of iperf3 and
    fping).
    """
    path = path_of(name)
    if not path:
        return {"error": f"{name} is not installed", "reason": "missing"}
    try:
        done = run([path, "-v"], _SECONDS, grace=0.5)
    except OSError as problem:
        return {"error": f"{path} could not be started: {problem}", "reason": "not_started"}
    told = done.stdout + done.stderr
    found = re.search(r"\b(\d{1,4}(?:\.\d{1,4}){1,2})", told)
    if not found:
        waited = f" within {_SECONDS:.0f} s" if done.timed_out else ""
        return {"error": f"{path} did not print its version{waited}", "reason": "not_understood"}
    version = found.group(1)
    if numbers_of(version) < numbers_of(least):
        return {
            "error": f"{path} has version {version}, expected {least} or newer",
            "reason": "too_old",
        }
    return {"path": path, "version": version, "told": told}
