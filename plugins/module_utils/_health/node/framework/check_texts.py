# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Types of the texts in a check's record: metrics, findings and the text of ``/status``."""

from __future__ import annotations

from typing import NamedTuple, Tuple


class CheckMetric(NamedTuple):
    """The gauge of a measurement: the measurement's name and unit, the metric's name, help text and
    labels. A measurement with other labels is not exported.
    """

    measurement: str
    unit: str
    metric: str
    help: str
    labels: Tuple[str, ...] = ()


class PairMetric(NamedTuple):
    """The gauge of a measurement between two nodes of a mesh, with the labels ``plane`` and
    ``peer``. Its value is the measurement divided by ``divisor``.
    """

    measure: str
    unit: str
    metric: str
    #: Without the final full stop: the maximum mesh size of the metric is appended.
    help: str
    divisor: float = 1.0


class Headline(NamedTuple):
    """A measurement that represents the check in the line of healthy nodes: its name, its label
    there, and its unit there (the value times ``scale``).
    """

    measurement: str
    title: str
    unit: str
    scale: float = 1.0


class StatusText(NamedTuple):
    """The check's texts in the agent's ``/status``: the tag before its lines, its name in a node's
    status, and the first line of an answer about this check alone.
    """

    tag: str
    name: str
    introduction: str
