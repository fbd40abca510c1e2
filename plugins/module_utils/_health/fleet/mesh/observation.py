# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""One measurement between two nodes, as localisation reads it."""

from __future__ import annotations

from typing import NamedTuple


class Observation(NamedTuple):
    """One measurement between two nodes: a rate from source to target (directed), or a ping (not
    directed).
    """

    plane: str
    source: str
    target: str
    directed: bool
    bad: bool
    #: Of a bad one: blocked, mtu, loss, slow, latency.
    kind: str = ""
    #: What is left of what is expected, 0 to 1.
    value: float = 1.0
