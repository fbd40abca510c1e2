# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Figures of series of samples: weighted by time, with what is missing said, and with an interval
for the difference of two. Pure and deterministic.

Samples of a GPU resemble those before them, so that a thousand of them are no thousand
observations: the interval is found by drawing whole blocks of a minute anew (a bootstrap on block
means, Efron & Tibshirani, An Introduction to the Bootstrap, chapter 8).
"""

from __future__ import annotations

import math
import random
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, TypedDict

#: Percent below which a GPU idles and from which on it is busy.
IDLE, BUSY = 5.0, 90.0
BLOCK_SECONDS = 60.0
_DRAWS = 1000
#: Blocks that either side needs for an interval: fewer say nothing of how far they scatter.
_FEWEST_BLOCKS = 5
#: Episodes that are listed with their place, the longest ones.
_MOST_EPISODES = 200

#: Seconds, after the start; a window of the rolling median, and how far from the later median it is
#: still warming up. Judgement calls.
WARM_UP = 300.0
_WINDOW, _SETTLED = 60.0, 10.0


class UsageSeries(NamedTuple):
    """One metric of one subject: times and weights in seconds, NaN for what is missing."""

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
    """``n`` values and what they show; ``missing`` in percent of the time."""

    n: int
    missing: float
    mean: float
    p5: float
    p50: float
    p95: float
    max: float


class UsageFigures(_Quantiles, total=False):
    """With the shares of time in which a GPU idled and was busy, in percent."""

    idle: float
    busy: float


class MeanDifference(TypedDict):
    """The difference of two means with its interval, None where the runs are too short."""

    mean: float
    low: Optional[float]
    high: Optional[float]


class EpisodeFigures(TypedDict):
    """Episodes; ``at`` has start and length of the longest, in seconds."""

    count: int
    mean_seconds: float
    longest_seconds: float
    at: List[List[float]]


def figures(series: Sequence[UsageSeries], shares: bool = False) -> Optional[UsageFigures]:
    """The figures of series of one metric, with ``shares`` those of idling and busy time too.

    Of several subjects all samples count alike. None where there is no value at all.
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
    """The smallest value that as much time is at or below."""
    seen = 0.0
    for value, weight in pairs:
        seen += weight
        if seen >= wanted * (1 - 1e-12):
            return value
    return pairs[-1][0]


def rounded(value: float) -> float:
    """Six digits: more are noise, and a document is read by people too."""
    return float(f"{value:.6g}")


class Episode(NamedTuple):
    """A time in which a GPU idled, in seconds after the start."""

    start: float
    seconds: float


def episodes(series: UsageSeries, below: float = IDLE) -> List[Episode]:
    """The times in which the value stayed below; one that is missing ends them, since what it was
    is not known.
    """
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
    """How many, how long on average and at most, and where the longest are."""
    longest = sorted(sorted(found, key=lambda one: -one.seconds)[:_MOST_EPISODES])
    return {
        "count": len(found),
        "mean_seconds": rounded(sum(one.seconds for one in found) / len(found)) if found else 0.0,
        "longest_seconds": rounded(max((one.seconds for one in found), default=0.0)),
        "at": [[rounded(one.start), rounded(one.seconds)] for one in longest],
    }


def warm_up(series: Sequence[UsageSeries], least: float = WARM_UP) -> float:
    """Seconds until the steady state: ``least``, and on from there until the median of a minute
    comes near that of the second half of the run.

    It takes no more than half of the run. A run that is shorter than twice ``least`` has no steady
    state of its own: 0, all of it counts.
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
    """The mean of ``b`` less that of ``a``, with the middle 95 % of what blocks drawn anew give.

    The interval is None for runs of fewer than five minutes. The same ``seed`` gives the same
    interval. None where either has no values.
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
        drawn = sorted(_drawn(draw, blocks_b) - _drawn(draw, blocks_a) for _draw in range(_DRAWS))
        found["low"] = rounded(drawn[int(_DRAWS * 0.025)])
        found["high"] = rounded(drawn[int(_DRAWS * 0.975)])
    return found


def _drawn(draw: random.Random, blocks: Sequence[float]) -> float:
    return sum(draw.choices(blocks, k=len(blocks))) / len(blocks)


def buckets(series: Sequence[UsageSeries], seconds: float) -> List[Optional[List[float]]]:
    """For a plot: by stretch of time its p5, mean and p95 over all subjects, None where there is no
    value.
    """
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
