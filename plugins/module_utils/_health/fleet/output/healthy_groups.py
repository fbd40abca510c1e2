# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Healthy nodes grouped by GPU models and by the checks that they passed, with the range of their
headline figures. Pure.
"""

from __future__ import annotations

import functools
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from ..judging.report import FIT, NodeReport
from ...model import PASS, SKIP, left_out
from ...node import registry
from ...node.framework.check_texts import Headline
from ...node_names import natural


def in_order(names: Iterable[str]) -> Tuple[str, ...]:
    """The names of checks, each once, in the order of a pass; those of another version at the end."""
    given = set(names)
    known = [name for name in registry.NAMES if name in given]
    return (*known, *sorted(given - set(known)))


class FigureRange(NamedTuple):
    """The smallest and the largest value of a headline figure over a group, in ``unit``."""

    check: str
    title: str
    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        decimals = sum(self.high < limit for limit in (100, 10, 1))
        low, high = f"{self.low:.{decimals}f}", f"{self.high:.{decimals}f}"
        return f"{self.title} {low if low == high else f'{low} to {high}'} {self.unit}"


class HealthyGroup(NamedTuple):
    """Fit nodes with the same GPUs that passed and skipped the same checks."""

    #: Names of the nodes, in natural order.
    nodes: Tuple[str, ...]
    #: For example ``8 x NVIDIA H100 80GB HBM3``; "" where the GPUs are not known.
    gpus: str
    #: Checks that passed, in the order of a pass.
    checks: Tuple[str, ...]
    figures: Tuple[FigureRange, ...]
    #: Checks that left something out on these nodes: fit, but not fully checked.
    skipped: Tuple[str, ...] = ()


def is_healthy(node: NodeReport) -> bool:
    """True if a node is fit and no check found anything; it may have skipped checks."""
    return node.verdict.fit == FIT and node.status in (PASS, SKIP)


def group_healthy(nodes: Iterable[NodeReport]) -> List[HealthyGroup]:
    """The healthy ones of the nodes in groups, the largest first."""
    alike: Dict[Tuple[str, Tuple[str, ...], Tuple[str, ...]], List[NodeReport]] = {}
    for node in nodes:
        if is_healthy(node):
            results = node.verdict.results
            passed = in_order(result.check for result in results if result.status == PASS)
            skipped = in_order(result.check for result in results if left_out(result))
            alike.setdefault((gpu_models(node), passed, skipped), []).append(node)
    groups = [
        HealthyGroup(
            tuple(sorted((node.name for node in members), key=natural)),
            gpus,
            checks,
            _figures(members),
            skipped,
        )
        for (gpus, checks, skipped), members in alike.items()
    ]
    return sorted(groups, key=lambda group: (-len(group.nodes), natural(group.nodes[0])))


def gpu_models(node: NodeReport) -> str:
    """The GPUs of a node in words: count and model of each kind."""
    names = [str(gpu.get("name")) for gpu in node.gpus]
    return " and ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))


def _figures(nodes: Sequence[NodeReport]) -> Tuple[FigureRange, ...]:
    values: Dict[Tuple[str, str], List[float]] = {}
    headlines = _headlines()
    for node in nodes:
        for result in node.verdict.results:
            for measured in result.measurements:
                key = (result.check, measured.name)
                if key in headlines:
                    values.setdefault(key, []).append(measured.value * headlines[key].scale)
    return tuple(
        FigureRange(key[0], headline.title, min(values[key]), max(values[key]), headline.unit)
        for key, headline in headlines.items()
        if key in values
    )


@functools.lru_cache(maxsize=None)
def _headlines() -> Dict[Tuple[str, str], Headline]:
    """Headlines by check and measurement, in the order of a pass."""
    return {
        (check.name, headline.measurement): headline
        for check in registry.every()
        for headline in check.headlines
    }
