# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The figures of the audit: the quota of each ClusterQueue, and the totals of each flavor. Pure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ...knowledge.cluster import GPU
from .capacity import FlavorCapacity, ResourceTaints, belongs, flavor_capacity, slack_losses, sum_of
from .objects import NodeToleration, ResourceUsage, add
from .state import QueueState

#: Resources that people read in GiB.
_BYTES = ("memory", "ephemeral-storage")
_NOTHING = ResourceUsage(Fraction(0), Fraction(0))
#: A message lists at most so many resources or reasons; nodes and pods may have any number of them.
_MOST_PARTS = 5


class AuditSettings(NamedTuple):
    #: Name of the ClusterQueue from which teams borrow; it belongs to no team.
    slack_queue: str
    marks: ResourceTaints
    #: Tolerations that pods of teams have besides those of their flavor.
    tolerations: Tuple[NodeToleration, ...] = ()
    #: The scheduler that places GPU pods; "" where no scheduler is demanded.
    scheduler: str = ""


class QuotaRow(NamedTuple):
    """The quota of a ClusterQueue for one resource of one flavor."""

    queue: str
    flavor: str
    resource: str
    nominal: Fraction
    borrowing_limit: Optional[Fraction]
    lending_limit: Optional[Fraction]
    used: Fraction
    borrowed: Fraction


class FlavorTotals(NamedTuple):
    """The totals of one resource of one flavor, over all ClusterQueues."""

    flavor: str
    resource: str
    nodes: int
    #: What the kubelets reserve for the system, which is not in ``total``.
    reserved: Fraction
    #: Capacity of the nodes for pods, and its parts.
    total: Fraction
    unschedulable: Fraction
    schedulable: Fraction
    #: What pods outside the namespaces of teams request.
    system: Fraction
    #: Quota of the teams, of the slack queue, and by what its lending limit lowers this.
    nominal: Fraction
    slack: Fraction
    adjustment: Fraction
    #: Quota of teams and slack queue, adjusted.
    current: Fraction
    used: Fraction
    borrowed: Fraction
    #: Lost capacity as the slack quota counts.
    slack_lost: Fraction


class QuotaFigures(NamedTuple):
    rows: List[QuotaRow]
    totals: List[FlavorTotals]
    capacities: Dict[str, FlavorCapacity]


def figures_of(state: QueueState, settings: AuditSettings) -> QuotaFigures:
    """The figures of the queue."""
    rows = _rows(state)
    capacities = {
        name: flavor_capacity(flavor, state.nodes, settings.marks, settings.tolerations)
        for name, flavor in state.flavors.items()
    }
    lost = {
        name: sum_of(slack_losses(flavor, state.nodes, settings.marks))
        for name, flavor in state.flavors.items()
    }
    system = {name: _system_on(state, name) for name in state.flavors}
    totals = []
    for flavor, resource in sorted({(row.flavor, row.resource) for row in rows}):
        same = [row for row in rows if (row.flavor, row.resource) == (flavor, resource)]
        totals.append(
            _totals(
                same,
                capacities.get(flavor, FlavorCapacity(0, {}, {}, {}, {}, ())),
                system.get(flavor, {}).get(resource, Fraction(0)),
                lost.get(flavor, {}).get(resource, Fraction(0)),
                settings.slack_queue,
            )
        )
    return QuotaFigures(rows, totals, capacities)


def _rows(state: QueueState) -> List[QuotaRow]:
    rows = []
    for queue in sorted(state.cluster_queues, key=lambda one: one.name):
        for quota in queue.quotas:
            usage = queue.usage.get((quota.flavor, quota.resource), _NOTHING)
            rows.append(QuotaRow(queue.name, *quota, usage.total, usage.borrowed))
    return rows


def _system_on(state: QueueState, flavor: str) -> Dict[str, Fraction]:
    """What pods outside the namespaces of teams request on the nodes of a flavor."""
    total: Dict[str, Fraction] = {}
    for node in state.nodes:
        if belongs(node, state.flavors[flavor]):
            add(total, state.system.get(node.name, {}))
    return total


def _totals(
    rows: Sequence[QuotaRow],
    capacity: FlavorCapacity,
    system: Fraction,
    lost: Fraction,
    slack_queue: str,
) -> FlavorTotals:
    first, zero = rows[0], Fraction(0)
    teams = [row for row in rows if row.queue != slack_queue]
    slack = [row for row in rows if row.queue == slack_queue]
    nominal, in_slack = (sum((row.nominal for row in part), zero) for part in (teams, slack))
    lent = sum(
        (row.nominal if row.lending_limit is None else min(row.lending_limit, row.nominal))
        for row in slack
    )
    adjustment = lent - in_slack
    return FlavorTotals(
        first.flavor,
        first.resource,
        capacity.nodes,
        capacity.reserved.get(first.resource, zero),
        capacity.total.get(first.resource, zero),
        capacity.lost.get(first.resource, zero),
        capacity.schedulable.get(first.resource, zero),
        system,
        nominal,
        in_slack,
        adjustment,
        nominal + in_slack + adjustment,
        sum((row.used for row in rows), zero),
        sum((row.borrowed for row in rows), zero),
        lost,
    )


def plain_number(amount: Fraction) -> Union[int, float]:
    """The amount as a JSON number."""
    return amount.numerator if amount.denominator == 1 else float(amount)


def as_json(record: NamedTuple) -> Dict[str, Any]:
    """A row or totals as plain JSON values."""
    return {
        name: plain_number(value) if isinstance(value, Fraction) else value
        for name, value in record._asdict().items()
    }


def amount_text(resource: str, amount: Fraction) -> str:
    """An amount for people: ``8``, ``7.5``, ``512 GiB``."""
    unit = 1 << 30 if resource in _BYTES else 1
    shown = f"{float(amount / unit):.3f}".rstrip("0").rstrip(".")
    return f"{shown} GiB" if resource in _BYTES else shown


def first_few(parts: Sequence[str], separator: str = ", ") -> str:
    """The first parts of a message, and how many there are more."""
    more = [f"{len(parts) - _MOST_PARTS} more"] * (len(parts) > _MOST_PARTS)
    return separator.join([*parts[:_MOST_PARTS], *more])


def resource_text(resource: str) -> str:
    """The name of a resource in a sentence."""
    return "GPUs" if resource == GPU else resource
