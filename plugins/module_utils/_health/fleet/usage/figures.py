# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Statistics of sampled series: weighted by time, with the missing share, and with an interval for
the difference of two. Pure and deterministic.

Consecutive samples of a GPU are correlated, so a thousand samples are not a thousand independent
observations: the interval comes from a bootstrap on blocks of one minute (Efron & Tibshirani, An
Introduction to the Bootstrap, chapter 8).
"""

from __future__ import annotations

import math
import random
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, TypedDict

#: Percent below which a GPU is idle, and from which it is busy.
IDLE, BUSY = 5.0, 90.0
BLOCK_SECONDS = 60.0
_DRAWS = 1000
#: Minimum blocks of each side for an interval; fewer do not show the spread.
_FEWEST_BLOCKS = 5
#: Maximum episodes listed with their position, longest first.
_MOST_EPISODES = 200

#: Minimum warm-up in seconds; window of the rolling median; tolerance to the later median that ends
#: the warm-up. Judgements.
WARM_UP = 300.0
_WINDOW, _SETTLED = 60.0, 10.0


class UsageSeries(NamedTuple):
    """One metric of one subject: times and weights in seconds, NaN for missing values."""

    times: Sequence[float]
    weights: Sequence[float]
    values: Sequence[float]

    def after(self, start: float) -> "UsageSeries":
        first = next((place for place, at in enumerate(self.times) if at >= start), len(self.times))
        return UsageSeries(self.times[first:], self.weights[first:], self.values[first:])

    @property
    def span(self) -> float:
        return self.times[-1] - self.times[0] + self.weights[0] if len(self.times) else 0.0


class _Quantiles(TypedDict):
    """Statistics of ``n`` values; ``missing`` in percent of the time."""

    n: int
    missing: float
    mean: float
    p5: float
    p50: float
    p95: float
    max: float


class UsageFigures(_Quantiles, total=False):
    """With the shares of idle and busy time of a GPU, in percent."""

    idle: float
    busy: float


class MeanDifference(TypedDict):
    """The difference of two means with its interval; None if the runs are too short."""

    mean: float
    low: Optional[float]
    high: Optional[float]


class EpisodeFigures(TypedDict):
    """Episodes; ``at`` holds start and length of the longest, in seconds."""

    count: int
    mean_seconds: float
    longest_seconds: float
    at: List[List[float]]


def figures(series: Sequence[UsageSeries], shares: bool = False) -> Optional[UsageFigures]:
    """Statistics of the series of one metric; with ``shares`` also idle and busy time.

    All samples of all subjects count equally. None without any value.
    """
    pairs = sorted(
        (value, weight)
        for one in series
        for value, weight in zip(one.values, one.weights)
        if not math.isnan(value)
    )
    total = math.fsum(weight for _value, weight in pairs)
    span = math.fsum(one.span for one in series)
    if not pairs or total <= 0:
        return None
    found: UsageFigures = {
        "n": len(pairs),
        "missing": rounded(max(0.0, 100.0 * (1.0 - total / span))),
        "mean": rounded(_mean(pairs, total)),
        "p5": rounded(_quantile(pairs, total * 5 / 100)),
        "p50": rounded(_quantile(pairs, total * 50 / 100)),
        "p95": rounded(_quantile(pairs, total * 95 / 100)),
        "max": rounded(pairs[-1][0]),
    }
    if shares:
        found["idle"] = rounded(
            100.0 * math.fsum(weight for value, weight in pairs if value < IDLE) / total
        )
        found["busy"] = rounded(
            100.0 * math.fsum(weight for value, weight in pairs if value >= BUSY) / total
        )
    return found


def _mean(pairs: Sequence[Tuple[float, float]], total: float) -> float:
    return math.fsum(value * weight for value, weight in pairs) / total


def _quantile(pairs: Sequence[Tuple[float, float]], wanted: float) -> float:
    """The time-weighted quantile."""
    seen = 0.0
    for value, weight in pairs:
        seen += weight
        if seen >= wanted * (1 - 1e-12):
            return value
    return pairs[-1][0]


def rounded(value: float) -> float:
    """Round to six digits: more are noise, and people read the document too."""
    return float(f"{value:.6g}")


class Episode(NamedTuple):
    """An idle period of a GPU, in seconds after the start."""

    start: float
    seconds: float


def episodes(series: UsageSeries, below: float = IDLE) -> List[Episode]:
    """The periods below a value; a missing value ends a period, since it is unknown."""
    found: List[Episode] = []
    start = length = 0.0
    for at, weight, value in zip(series.times, series.weights, series.values):
        if value < below:
            if not length:
                start = at - weight
            length += weight
        elif length:
            found.append(Episode(start, length))
            length = 0.0
    return found + ([Episode(start, length)] if length else [])


def of_episodes(found: Sequence[Episode]) -> EpisodeFigures:
    """Number, mean and maximum length of the periods, and positions of the longest."""
    longest = sorted(sorted(found, key=lambda one: -one.seconds)[:_MOST_EPISODES])
    return {
        "count": len(found),
        "mean_seconds": rounded(sum(one.seconds for one in found) / len(found)) if found else 0.0,
        "longest_seconds": rounded(max((one.seconds for one in found), default=0.0)),
        "at": [[rounded(one.start), rounded(one.seconds)] for one in longest],
    }


def warm_up(series: Sequence[UsageSeries], least: float = WARM_UP) -> float:
    """Seconds until the steady state: at least ``least``, until the median of a minute is near that
    of the run's second half.

    At most half of the run. A run shorter than twice ``least`` has no steady state: 0, all of it
    counts.
    """
    span = max((one.span for one in series), default=0.0)
    if span < 2 * least:
        return 0.0
    later = _median(series, span / 2, math.inf)
    at = least
    while not math.isnan(later) and at < span / 2:
        here = _median(series, at, at + _WINDOW)
        if math.isnan(here) or abs(here - later) <= _SETTLED:
            break
        at += _WINDOW
    return min(at, span / 2)


def _median(series: Sequence[UsageSeries], start: float, end: float) -> float:
    values = sorted(
        value
        for one in series
        for at, value in zip(one.times, one.values)
        if start <= at < end and not math.isnan(value)
    )
    return values[len(values) // 2] if values else math.nan


def block_means(series: Sequence[UsageSeries], seconds: float = BLOCK_SECONDS) -> List[float]:
    """The mean of all subjects in each block of time that has values."""
    sums: Dict[int, List[float]] = {}
    for one in series:
        for at, weight, value in zip(one.times, one.weights, one.values):
            if not math.isnan(value):
                block = sums.setdefault(int(at // seconds), [0.0, 0.0])
                block[0] += value * weight
                block[1] += weight
    return [total / weight for _block, (total, weight) in sorted(sums.items()) if weight > 0]


def difference(
    a: Sequence[UsageSeries], b: Sequence[UsageSeries], seed: str
) -> Optional[MeanDifference]:
    """The mean of ``b`` minus the mean of ``a``, with the 95 % interval of a block bootstrap.

    The interval is None for runs of less than five minutes. The same ``seed`` gives the same
    interval. None if either has no values.
    """
    first, second = figures(a), figures(b)
    if first is None or second is None:
        return None
    found: MeanDifference = {
        "mean": rounded(second["mean"] - first["mean"]),
        "low": None,
        "high": None,
    }
    blocks_a, blocks_b = block_means(a), block_means(b)
    if min(len(blocks_a), len(blocks_b)) >= _FEWEST_BLOCKS:
        draw = random.Random(seed)
        drawn = sorted(
            _resampled_means(draw, blocks_b) - _resampled_means(draw, blocks_a)
            for _draw in range(_DRAWS)
        )
        found["low"] = rounded(drawn[int(_DRAWS * 0.025)])
        found["high"] = rounded(drawn[int(_DRAWS * 0.975)])
    return found


def _resampled_means(draw: random.Random, blocks: Sequence[float]) -> float:
    return sum(draw.choices(blocks, k=len(blocks))) / len(blocks)


def buckets(series: Sequence[UsageSeries], seconds: float) -> List[Optional[List[float]]]:
    """For a plot: p5, mean and p95 over all subjects in each time interval, None without values."""
    length = max((one.times[-1] for one in series if len(one.times)), default=0.0)
    found: List[List[Tuple[float, float]]] = [[] for _block in range(int(length // seconds) + 1)]
    for one in series:
        for at, weight, value in zip(one.times, one.weights, one.values):
            if not math.isnan(value):
                found[max(0, int((at - 1e-9) // seconds))].append((value, weight))
    return [_band(sorted(pairs)) if pairs else None for pairs in found]


def _band(pairs: Sequence[Tuple[float, float]]) -> List[float]:
    total = math.fsum(weight for _value, weight in pairs)
    return [
        rounded(one)
        for one in (
            _quantile(pairs, total * 0.05),
            _mean(pairs, total),
            _quantile(pairs, total * 0.95),
        )
    ]
