# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""How likely bad measurements are by chance alone. Pure."""

from __future__ import annotations

from math import exp, lgamma, log, sqrt

#: Healthy pairs that are slow for no reason although nothing else loads the network: our own
#: figure, above what repeated TCP measurements between idle hosts show. Pings of an idle network
#: arrive.
AMBIENT_RATE, AMBIENT_PING = 0.01, 0.003
#: Weight of the assumption that a network is healthy, in measurements: rates may share uplinks,
#: whereas a path that carries pings at all loses none of dozens.
PRIOR_RATES, PRIOR_PINGS = 10, 100

#: Expected number of healthy parts of a run that look as bad, above which a cause is unsure.
UNSURE = 0.01
#: Number of bad measurements from which the network is not assumed to be healthy.
_SEVERAL = 3


def tail(bad: int, times: int, share: float) -> float:
    """Probability of at least ``bad`` bad ones of ``times`` measurements that are each bad with
    probability ``share``.

    For measurements with different probabilities, their mean as ``share`` gives an upper bound
    where ``bad`` exceeds the expectation (Hoeffding 1956).
    """
    if bad <= 0 or share >= 1 or bad <= times * share:
        return 1.0
    if share <= 0:
        return 0.0
    term = exp(
        lgamma(times + 1)
        - lgamma(bad + 1)
        - lgamma(times - bad + 1)
        + bad * log(share)
        + (times - bad) * log(1 - share)
    )
    odds, total = share / (1 - share), 0.0
    for number in range(bad, times + 1):
        total += term
        if term < 1e-12 * total:
            break
        term *= odds * (times - number) / (number + 1)
    return min(1.0, total)


def background(bad: int, times: int, ambient: float, prior: int) -> float:
    """Probability that a measurement is bad without a fault of its two ends, as ``bad`` of ``times``
    others suggest, at the upper end of what they leave open. A few others prove little, so the
    estimate stays above zero: ``prior`` good ones are assumed, unless several are bad.
    """
    if bad < _SEVERAL:
        return max(ambient, (bad + 0.5) / (times + prior))
    share = min(1.0, (bad + 0.5) / (times + 1))
    return max(ambient, min(1.0, share + 2 * sqrt(share * (1 - share) / (times + 1))))
