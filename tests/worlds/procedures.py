# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Procedures for the API server (see _health/cluster/client.py), carried out without one."""

from __future__ import annotations

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    Pause,
)


def carried_out(procedure, answer):
    """The result of a procedure. ``answer(request)`` returns the answer to a request, or raises
    `ApiError`; a pause takes no time.
    """
    try:
        step = next(procedure)
        while True:
            try:
                given = None if isinstance(step, Pause) else answer(step)
            except ApiError as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(given)
    except StopIteration as end:
        return end.value
