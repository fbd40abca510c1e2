# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The quota of the queue on the report page, of a run with the module quota_audit. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    NodeReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import Measurement
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import name_of

CHECK = "quota_audit"
_MOST_ROWS = 500
_GIB = 1 << 30
_BYTES = ("memory", "ephemeral-storage")


class QuotaTable(t.NamedTuple):
    title: str
    heads: tuple[str, ...]
    #: Names, then figures as text.
    rows: list[tuple[list[str], list[str]]]
    #: Rows that are not shown.
    more: int


class Column(t.NamedTuple):
    title: str
    measurement: str
    #: Labels that the measurement has beside those of the row.
    labels: dict[str, str] = {}


#: Title, labels of a row, columns.
_TABLES: tuple[tuple[str, tuple[str, ...], tuple[Column, ...]], ...] = (
    (
        "Quota by flavor",
        ("flavor", "resource"),
        (
            Column("capacity", "flavor_capacity"),
            Column("schedulable", "flavor_schedulable"),
            Column("quota", "flavor_quota"),
        ),
    ),
    (
        "Quota by ClusterQueue",
        ("queue", "flavor", "resource"),
        (
            Column("quota", "quota_nominal"),
            Column("used", "quota_used"),
            Column("borrowed", "quota_borrowed"),
        ),
    ),
    (
        "Workloads by ClusterQueue",
        ("queue",),
        tuple(
            Column(state, "queue_workloads", {"state": state}) for state in ("admitted", "pending")
        ),
    ),
)


def quota_of(nodes: t.Sequence[NodeReport]) -> list[QuotaTable]:
    """The tables of the first audit among the results of the nodes; empty without an audit."""
    audit = next(
        (one for node in nodes for one in node.results if one.check == CHECK and one.measurements),
        None,
    )
    return [_table(*table, audit.measurements) for table in _TABLES] if audit else []


def _table(
    title: str,
    labels: tuple[str, ...],
    columns: tuple[Column, ...],
    measurements: t.Sequence[Measurement],
) -> QuotaTable:
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in measurements:
        key = tuple(one.labels.get(label, "") for label in labels)
        of_row = dict(zip(labels, key))
        for place, column in enumerate(columns):
            if one.name == column.measurement and one.labels == {**of_row, **column.labels}:
                row = rows.setdefault(key, [""] * len(columns))
                row[place] = _shown(one.labels.get("resource", ""), one.value)
    shown = [([name_of(name) for name in key], row) for key, row in sorted(rows.items())]
    return QuotaTable(
        title,
        (
            *(label.replace("queue", "ClusterQueue") for label in labels),
            *(column.title for column in columns),
        ),
        shown[:_MOST_ROWS],
        max(len(shown) - _MOST_ROWS, 0),
    )


def _shown(resource: str, value: float) -> str:
    if resource in _BYTES:
        return f"{value / _GIB:,.0f} GiB"
    return f"{value:,.3f}".rstrip("0").rstrip(".")
