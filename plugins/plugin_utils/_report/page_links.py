# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The PCIe bandwidth of each GPU and its expectation, one row per GPU, or as a distribution on
large fleets. Pure.
"""

from __future__ import annotations

import statistics
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    NodeReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.links import (
    expected_bandwidth,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mapping,
    mappings_in,
    number,
    whole_number,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import short_pci
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.pcie_bandwidth import (
    DIRECTIONS,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import (
    name_of,
    plural,
    quantity,
    source_words,
)

CHECK = "pcie_bandwidth"
#: GPUs of one model that have a row each; more GPUs are shown as a distribution.
MOST_GPUS = 16
#: Columns of a distribution, and low GPUs listed below it.
_BINS = 60
_MOST_NAMED = 32
_HEIGHT = 96.0
_WORDS = {"host_to_device": "host to device", "device_to_host": "device to host"}


class Floor(t.NamedTuple):
    """The expected bandwidth of a link, in bytes/s: below ``fail`` the check fails, below ``warn``
    it warns. Either may be unknown.
    """

    fail: float | None = None
    warn: float | None = None
    words: str = ""


class Bar(t.NamedTuple):
    direction: str
    #: Percent of the width.
    width: float
    text: str
    is_low: bool


class Gpu(t.NamedTuple):
    node: str
    #: Anchor of the node's details; "" without details.
    anchor: str
    label: str
    bars: list[Bar]
    #: Place of the thresholds, in percent of the width.
    fail: float | None
    warn: float | None
    #: The finding about this GPU; "" without one.
    said: str


class Bin(t.NamedTuple):
    """One column of a distribution; ``left`` and ``width`` in percent, ``height`` in pixels."""

    left: float
    width: float
    height: float
    title: str
    is_low: bool


class Line(t.NamedTuple):
    place: float
    words: str
    #: ``end`` if the text is left of the line.
    anchor: str


class Distribution(t.NamedTuple):
    direction: str
    gpus: int
    summary: str
    bins: list[Bin]
    lines: list[Line]
    ticks: list[Line]


class Chart(t.NamedTuple):
    """The GPUs of one model and link: a row each, or ``distributions`` and rows for low GPUs only."""

    title: str
    expected: str
    rows: list[Gpu]
    distributions: list[Distribution]
    #: Low GPUs that are not shown.
    more: int


class _Link(t.NamedTuple):
    node: str
    anchor: str
    label: str
    rates: dict[str, float]
    said: str


def charts_of(nodes: t.Sequence[NodeReport], anchors: t.Mapping[str, str]) -> list[Chart]:
    """A chart for each model and expected bandwidth. ``anchors``: anchors of the nodes' details by
    name.
    """
    kinds: dict[tuple[str, Floor], list[_Link]] = {}
    for node in nodes:
        for kind, link in _links(node, anchors):
            kinds.setdefault(kind, []).append(link)
    return [_chart(model, floor, links) for (model, floor), links in kinds.items()]


def _links(
    node: NodeReport, anchors: t.Mapping[str, str]
) -> t.Iterator[tuple[tuple[str, Floor], _Link]]:
    rates = _rates(node)
    if not rates:
        return
    taken = mapping(node.readings.get(CHECK))
    readings = {
        str(gpu.get("index")): gpu
        for gpu in mappings_in(mapping(taken.get("readings")).get("gpus"))
    }
    minimum = number(mapping(taken.get("options")).get("minimum"))
    known = {str(gpu.get("index")): gpu for gpu in node.gpus}
    said = _said(node)
    name = name_of(node.name)
    for index, own in rates.items():
        gpu = readings.get(index) or known.get(index) or {}
        model = (
            name_of(gpu.get("name") or mapping(known.get(index)).get("name"))
            or "GPUs of unknown model"
        )
        address = short_pci(gpu["pci"]) if isinstance(gpu.get("pci"), str) else ""
        label = f"GPU {index}" + (f" ({name_of(address)})" if address else "")
        yield (
            (model, _floor(gpu, model, minimum)),
            _Link(name, anchors.get(name, ""), label, own, said.get(index, "")),
        )


def _rates(node: NodeReport) -> dict[str, dict[str, float]]:
    """Rates of the copy engine in bytes/s: {GPU: {direction: rate}}."""
    found: dict[str, dict[str, float]] = {}
    for result in node.results:
        for measured in result.measurements if result.check == CHECK else []:
            labels, value = measured.labels, number(measured.value)
            known = (
                measured.name == CHECK
                and labels.get("method") == "copy_engine"
                and labels.get("direction") in DIRECTIONS
            )
            if known and value is not None and value >= 0:
                found.setdefault(name_of(labels.get("gpu")), {})[labels["direction"]] = value
    return found


def _said(node: NodeReport) -> dict[str, str]:
    """The worst finding of each GPU's link, as ``status: message``."""
    found: dict[str, str] = {}
    for check, finding in node.verdict.findings:
        index = whole_number(finding.subject.index)
        if check == CHECK and index is not None:
            found.setdefault(str(index), f"{finding.status}: {finding.message}")
    return found


def _floor(gpu: dict[str, t.Any], model: str, minimum: float | None) -> Floor:
    """The thresholds of the check: the operator's minimum (GB/s), or the built-in table by the
    link's highest speed and width.
    """
    if minimum:
        return Floor(
            minimum * 1e9,
            None,
            f"at least {minimum:.3g} GB/s each way ({source_words('override', 'minimum')})",
        )
    link = mapping(gpu.get("link"))
    row = (
        expected_bandwidth(
            whole_number(link.get("max_generation")), whole_number(link.get("max_width")), model
        )
        if link
        else None
    )
    if row is None:
        return Floor(words="no expected figure is known for these links")
    words = (
        f"at least {quantity(row.warn, 'bytes/s')} each way, below "
        f"{quantity(row.fail, 'bytes/s')} the link is broken"
    )
    return Floor(
        row.fail, row.warn, f"{words} ({source_words('table', f'{row.detail}; {row.source}')})"
    )


def _chart(model: str, floor: Floor, links: list[_Link]) -> Chart:
    top = 1.06 * max(
        [rate for link in links for rate in link.rates.values()]
        + [floor.fail or 0.0, floor.warn or 0.0, 1.0]
    )
    title = f"{plural(len(links), 'GPU')}, {model}"
    if len(links) <= MOST_GPUS:
        return Chart(title, floor.words, [_row(link, floor, top) for link in links], [], 0)
    odd = sorted(
        (link for link in links if link.said or _is_low(min(link.rates.values()), floor)),
        key=lambda link: min(link.rates.values()),
    )
    distributions = [_distribution(direction, links, floor, top) for direction in DIRECTIONS]
    first = {link.node: place for place, link in reversed(list(enumerate(odd)))}
    rows = [
        _row(link, floor, top)
        for link in sorted(odd[:_MOST_NAMED], key=lambda link: first[link.node])
    ]
    return Chart(
        title, floor.words, rows, [one for one in distributions if one.gpus], len(odd) - len(rows)
    )


def _is_low(rate: float, floor: Floor) -> bool:
    return rate < max(floor.warn or 0.0, floor.fail or 0.0)


def _row(link: _Link, floor: Floor, top: float) -> Gpu:
    bars = [
        Bar(
            direction,
            _percent(link.rates[direction], top),
            f"{link.rates[direction] / 1e9:.1f}",
            _is_low(link.rates[direction], floor),
        )
        for direction in DIRECTIONS
        if direction in link.rates
    ]
    places = [_percent(rate, top) if rate else None for rate in (floor.fail, floor.warn)]
    return Gpu(link.node, link.anchor, link.label, bars, places[0], places[1], link.said)


def _percent(rate: float, top: float) -> float:
    return round(100 * rate / top, 2)


def _distribution(direction: str, links: list[_Link], floor: Floor, top: float) -> Distribution:
    rates = sorted(link.rates[direction] for link in links if direction in link.rates)
    if not rates:
        return Distribution(direction, 0, "", [], [], [])
    step = top / _BINS
    counts: dict[int, int] = {}
    for rate in rates:
        place = min(int(rate / step), _BINS - 1)
        counts[place] = counts.get(place, 0) + 1
    most = max(counts.values())
    bins = [
        Bin(
            round(100 * place / _BINS, 2),
            round(100 / _BINS - 0.15, 2),
            round(max(4.0, _HEIGHT * amount / most), 1),
            f"{plural(amount, 'GPU')} from {place * step / 1e9:.1f} to "
            f"{(place + 1) * step / 1e9:.1f} GB/s",
            _is_low((place + 0.5) * step, floor),
        )
        for place, amount in sorted(counts.items())
    ]
    low = sum(_is_low(rate, floor) for rate in rates)
    summary = (
        f"{_WORDS[direction]}: {plural(len(rates), 'GPU')}, {rates[0] / 1e9:.1f} to "
        f"{rates[-1] / 1e9:.1f} GB/s, median {statistics.median(rates) / 1e9:.1f}"
        + (
            f"; {low} lower than expected"
            if low
            else "; none lower than expected"
            if floor.fail
            else ""
        )
    )
    floors = (
        (floor.fail, "minimum" if floor.warn is None else "fail below"),
        (floor.warn, "warn below"),
    )
    lines = [
        Line(_percent(rate, top), f"{words} {rate / 1e9:.3g}", "end" if 2 * rate > top else "start")
        for rate, words in floors
        if rate
    ]
    # About four ticks, at multiples of ten.
    stride = max(1, round(top / 1e9 / 5 / 10) * 10 or round(top / 1e9 / 5))
    ticks = [
        Line(_percent(gigabytes * 1e9, top), str(gigabytes), "middle")
        for gigabytes in range(0, int(top / 1e9) + 1, stride)
    ]
    return Distribution(direction, len(rates), summary, bins, lines, ticks)
