# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Ask Prometheus for its targets, through the API server or at an address, until those of all expected
ServiceMonitors are up.
"""

from __future__ import annotations

import time
import typing as t
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MOST_BYTES,
    ApiError,
    Forbidden,
    Request,
    Unavailable,
    answer_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.scrape_targets import (
    MISSING,
    TARGETS,
    TARGETS_QUERY,
    UNKNOWN,
    UP,
    MonitorState,
    Scraper,
    full_name,
    monitor_states,
    read_monitors,
    read_scrapers,
    targets_of,
    why_missing,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import DEADLINE, Cluster, within

#: Seconds between two looks.
PAUSE = 2.0


class Choice(t.NamedTuple):
    """Which Prometheus is asked: ``scraper`` is None if only its address is known."""

    url: str
    scraper: Scraper | None

    def __str__(self) -> str:
        return str(self.scraper) if self.scraper else f"Prometheus {self.url}"


def choose(cluster: Cluster, url: str, name: str) -> Choice:
    """The Prometheus to ask. Raises ValueError if it is not clear which."""
    scrapers = cluster.run(read_scrapers())
    names = [f"{one.namespace}/{one.name}" for one in scrapers]
    if name:
        if name not in names:
            raise ValueError(
                f"prometheus: {name!r} is invalid; expected a Prometheus object of the cluster: "
                f"{', '.join(names) or 'there is none'}"
            )
        return Choice(url, scrapers[names.index(name)])
    if len(scrapers) > 1:
        raise ValueError(
            f"prometheus: is missing; expected one of the Prometheus objects of the cluster: "
            f"{', '.join(names)}"
        )
    if not scrapers and not url:
        raise ValueError(
            "the cluster has no Prometheus object (monitoring.coreos.com/v1); expected one, or url "
            "with the address of Prometheus"
        )
    return Choice(url, scrapers[0] if scrapers else None)


def follow(
    cluster: Cluster, choice: Choice, expected: list[str], timeout: float
) -> list[MonitorState]:
    """The state of each expected ServiceMonitor as soon as all are up, at the latest after the
    timeout, with reasons. Raises `ApiError`.
    """
    until = time.monotonic() + timeout
    while True:
        is_over = time.monotonic() >= until
        monitors = cluster.run(read_monitors())
        trouble = ""
        try:
            targets = _ask(cluster, choice)
        except Forbidden:
            # No wait gives the account a right.
            raise
        except (ApiError, ValueError) as error:
            if is_over:
                trouble = " ".join(str(error).split())
            targets = []
        states = monitor_states(expected, monitors, targets)
        if trouble:
            return [
                one._replace(state=UNKNOWN, reason=f"{choice} does not answer: {trouble}")
                for one in states
            ]
        if is_over or all(one.state == UP for one in states):
            return [_explained(cluster, choice, one, monitors) for one in states]
        time.sleep(min(PAUSE, max(until - time.monotonic(), 0)))


def _ask(cluster: Cluster, choice: Choice) -> list[t.Any]:
    if not choice.url and choice.scraper:
        return targets_of(cluster.request(Request("GET", choice.scraper.path, query=TARGETS_QUERY)))
    url = f"{choice.url.rstrip('/')}/{TARGETS}?{urlencode(TARGETS_QUERY)}"

    def read() -> bytes:
        # open_url raises for an answer that is none.
        with open_url(url, timeout=DEADLINE, http_agent="autopilot.gpu") as answer:
            return t.cast(bytes, answer.read(MOST_BYTES + 1))

    try:
        content = within(DEADLINE, read)
    except Exception as error:  # urllib, http.client and ssl raise many kinds
        raise Unavailable(f"GET {url}: {error}") from None
    if len(content) > MOST_BYTES:
        raise Unavailable(f"{url}: the answer has more than {MOST_BYTES} bytes")
    return targets_of(answer_of(content))


def _explained(
    cluster: Cluster, choice: Choice, state: MonitorState, monitors: list[t.Any]
) -> MonitorState:
    """The state, with the reason of one that is missing."""
    if state.state != MISSING or state.reason:
        return state
    name = f"{state.namespace}/{state.monitor}"
    monitor = next(one for one in monitors if full_name(one) == name)
    return state._replace(reason=cluster.run(why_missing(monitor, choice.scraper)))
