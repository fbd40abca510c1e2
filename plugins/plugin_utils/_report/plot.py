# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""A metric of two runs over time as SVG shapes: for each run a band from p5 to p95 and its mean, on
the same axes. Pure.
"""

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mapping,
    mappings_in,
    number,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import text_of
from markupsafe import Markup

WIDTH, HEIGHT = 960.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 8.0, 24.0
#: Height of the row that marks the idle episodes of a run.
_MARKS = 9.0
#: Seconds between ticks of the time axis. The smallest value with at most this many ticks is used.
_STEPS, _MOST_TICKS = (
    (10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800),
    10,
)
_MOST_BUCKETS = 2000
RUNS = ("a", "b")


class Tick(t.NamedTuple):
    place: float
    words: str


class Mark(t.NamedTuple):
    """An idle episode: its start and width, in pixels."""

    x: float
    width: float


class Band(t.NamedTuple):
    """A run: the SVG paths of its band and its mean, its idle episodes, and the place of their row."""

    run: str
    #: Path data is trusted (digits only) and longer than `MOST_TEXT`.
    ribbon: Markup
    mean: Markup
    marks: list[Mark]
    row: float


class Plot(t.NamedTuple):
    name: str
    words: str
    unit: str
    height: float
    bands: list[Band]
    across: list[Tick]
    up: list[Tick]
    #: The ends of the axes.
    left: float
    right: float
    top: float
    bottom: float
    #: Text for screen readers.
    summary: str


def plots_of(metrics: t.Any) -> list[Plot]:
    """A plot for each metric of a comparison's document that has values over time."""
    return [plot for plot in (_plot(row) for row in mappings_in(metrics)) if plot is not None]


def _plot(row: dict[t.Any, t.Any]) -> Plot | None:
    drawn = mapping(row.get("plot"))
    stretch = number(drawn.get("seconds"))
    runs = {
        name: [_bucket(one) for one in (drawn.get(name) or [])[:_MOST_BUCKETS]]
        for name in RUNS
        if isinstance(drawn.get(name), list)
    }
    most = max(
        (bucket[2] for buckets in runs.values() for bucket in buckets if bucket), default=None
    )
    if stretch is None or stretch <= 0 or most is None:
        return None
    length = stretch * max(len(buckets) for buckets in runs.values())
    unit = text_of(row.get("unit"))
    size, shown = _scaled(unit, most)
    top = 100.0 if unit == "%" and most > 25 else _nice(most)
    episodes = {
        name: _episodes(mapping(mapping(row.get(name)).get("episodes")).get("at")) for name in RUNS
    }
    rows = [name for name in RUNS if episodes[name]]
    bottom = HEIGHT - _BOTTOM

    def x(seconds: float) -> float:
        share = min(1.0, max(0.0, seconds / length))
        return float(round(_LEFT + (WIDTH - _LEFT - _RIGHT) * share, 1))

    def y(value: float) -> float:
        return round(bottom - (bottom - _TOP) * min(1.0, max(0.0, value / top)), 1)

    bands = []
    for name, buckets in runs.items():
        marks = [
            Mark(x(start), max(1.0, round(x(start + seconds) - x(start), 1)))
            for start, seconds in episodes[name]
        ]
        row_at = HEIGHT + _MARKS * rows.index(name) if name in rows else 0.0
        bands.append(Band(name, *_paths(buckets, stretch, x, y), marks, row_at))
    step = next((step for step in _STEPS if length / step <= _MOST_TICKS), _STEPS[-1])
    across = [
        Tick(x(place * step), _clock(place * step)) for place in range(int(length // step) + 1)
    ]
    up = [Tick(y(top * share), f"{top * share / size:.4g}") for share in (0.0, 0.5, 1.0)]
    summary = "; ".join(
        f"{name}: {_range(buckets, size)} {shown}" for name, buckets in runs.items() if any(buckets)
    )
    return Plot(
        text_of(row.get("name")),
        text_of(row.get("words")),
        shown,
        HEIGHT + _MARKS * len(rows),
        bands,
        across,
        up,
        _LEFT,
        WIDTH - _RIGHT,
        _TOP,
        bottom,
        summary,
    )


def _bucket(value: t.Any) -> tuple[float, float, float] | None:
    """p5, mean and p95 of a time bin; None for a bin without values."""
    read = [number(one) for one in value] if isinstance(value, list) and len(value) == 3 else []
    low, mean, high = read if len(read) == 3 else (None, None, None)
    return (low, mean, high) if low is not None and mean is not None and high is not None else None


def _episodes(value: t.Any) -> list[tuple[float, float]]:
    found = []
    for one in value if isinstance(value, list) else []:
        start, seconds = (
            (number(one[0]), number(one[1]))
            if isinstance(one, list) and len(one) == 2
            else (None, None)
        )
        if start is not None and seconds is not None and seconds > 0:
            found.append((start, seconds))
    return found


def _paths(
    buckets: list[tuple[float, float, float] | None],
    stretch: float,
    x: t.Callable[[float], float],
    y: t.Callable[[float], float],
) -> tuple[Markup, Markup]:
    """The paths of the band and of the mean, with gaps where values are missing."""
    ribbon, mean = [], []
    start = 0
    while start < len(buckets):
        end = start
        while end < len(buckets) and buckets[end]:
            end += 1
        piece = [
            (x((place + 0.5) * stretch), one)
            for place, one in enumerate(buckets[start:end], start)
            if one
        ]
        if len(piece) == 1:
            # A single point has no width of its own.
            piece = [(x(start * stretch), piece[0][1]), (x((start + 1) * stretch), piece[0][1])]
        if piece:
            above, below = (
                [f"{at} {y(one[2])}" for at, one in piece],
                [f"{at} {y(one[0])}" for at, one in reversed(piece)],
            )
            ribbon.append(f"M{' L'.join(above + below)}Z")
            mean.append("M" + " L".join(f"{at} {y(one[1])}" for at, one in piece))
        start = end + 1
    return Markup(" ".join(ribbon)), Markup(" ".join(mean))


def _nice(value: float) -> float:
    """The next value of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1e-6
    while power * 10 <= value:
        power *= 10
    return next((factor * power for factor in (1, 2, 5, 10) if factor * power >= value), 10 * power)


def _scaled(unit: str, most: float) -> tuple[float, str]:
    if unit not in ("bytes", "bytes/s"):
        return 1.0, unit
    size, letter = next(
        ((size, letter) for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if most >= size),
        (1.0, ""),
    )
    return size, unit.replace("bytes", f"{letter}B")


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}" if whole % 60 == 0 else f"{whole} s"


def _range(buckets: list[tuple[float, float, float] | None], size: float) -> str:
    means = [one[1] for one in buckets if one]
    return f"mean of {min(means) / size:.4g} to {max(means) / size:.4g}"
