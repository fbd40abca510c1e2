# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The grid of nodes and checks on the report page, in which nodes that are alike share a row. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    NodeReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    STATUSES,
    UNKNOWN,
    WARN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.healthy_groups import (
    in_order,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import folded, name_of

BAD = (FAIL, UNKNOWN, WARN)
#: Nodes that need attention and have a row each; more of them share rows, as other nodes do.
_MOST_SINGLE = 40
_MOST_ROWS = 100
_MOST_CHECKS = 40


class GridRow(t.NamedTuple):
    """Nodes with the same status in every check."""

    names: str
    nodes: int
    #: Anchor of the node's details; "" for several nodes.
    anchor: str
    status: str
    #: By column; "" where the check has no result.
    cells: list[str]


class Grid(t.NamedTuple):
    checks: list[str]
    rows: list[GridRow]
    #: Nodes that are in no row.
    more: int


def grid_of(nodes: t.Sequence[NodeReport], anchors: t.Mapping[str, str]) -> Grid | None:
    """The grid of the nodes in the given order; None if no check has a result. ``anchors``: anchors
    of the nodes' details by name.
    """
    statuses = [_by_check(node) for node in nodes]
    found = {check for by_check in statuses for check in by_check}
    checks = list(in_order(found))[:_MOST_CHECKS]
    if not checks:
        return None
    bad = sum(node.status in BAD for node in nodes)
    alike: dict[tuple[t.Any, ...], list[NodeReport]] = {}
    for place, (node, by_check) in enumerate(zip(nodes, statuses)):
        cells = tuple(by_check.get(check, "") for check in checks)
        single = place if node.status in BAD and bad <= _MOST_SINGLE else None
        alike.setdefault((single, node.status, cells), []).append(node)
    rows = [
        GridRow(
            folded((name_of(node.name) for node in members), 4),
            len(members),
            anchors.get(name_of(members[0].name), "") if len(members) == 1 else "",
            status,
            list(cells),
        )
        for (_single, status, cells), members in alike.items()
    ]
    shown = rows[:_MOST_ROWS]
    return Grid(checks, shown, sum(row.nodes for row in rows) - sum(row.nodes for row in shown))


def _by_check(node: NodeReport) -> dict[str, str]:
    """The worst status of each check on the node."""
    found: dict[str, str] = {}
    for result in node.verdict.results:
        name = name_of(result.check)
        if STATUSES.index(result.status) >= STATUSES.index(found.get(name, STATUSES[0])):
            found[name] = result.status
    return found
