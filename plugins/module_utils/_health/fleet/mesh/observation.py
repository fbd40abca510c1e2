# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""One measurement between two nodes: the input of fault localisation."""

from __future__ import annotations

from typing import NamedTuple


class Observation(NamedTuple):
    """One measurement between two nodes: a rate from source to target (directed), or a ping
    (undirected).
    """

    plane: str
    source: str
    target: str
    directed: bool
    bad: bool
    #: Kind of a bad observation: ``blocked``, ``mtu``, ``loss``, ``slow`` or ``latency``.
    kind: str = ""
    #: Measured divided by expected, 0 to 1.
    value: float = 1.0
