# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Types of the texts in a check's record: metrics, findings and the text of ``/status``."""

from __future__ import annotations

from typing import NamedTuple, Tuple


class CheckMetric(NamedTuple):
    """The gauge that a measurement of the check becomes: the measurement's name and unit, the
    metric's name, help text and labels. A measurement with other labels is not exported.
    """

    measurement: str
    unit: str
    metric: str
    help: str
    labels: Tuple[str, ...] = ()


class PairMetric(NamedTuple):
    """The gauge that a measure between two nodes of a mesh becomes, with the labels ``plane`` and
    ``peer``. Its value is the measure divided by ``divisor``.
    """

    measure: str
    unit: str
    metric: str
    #: Without the final full stop: the size of mesh up to which the metric exists is appended.
    help: str
    divisor: float = 1.0


class Headline(NamedTuple):
    """A measurement that stands for the check where healthy nodes share one line: its name, what it
    is called there, and the unit it is shown in (its value times ``scale``).
    """

    measurement: str
    title: str
    unit: str
    scale: float = 1.0


class StatusText(NamedTuple):
    """How the agent's ``/status`` writes the check: the tag before its lines, its name in the
    status of a node, and the first line of the answer about this check alone.
    """

    tag: str
    name: str
    introduction: str
