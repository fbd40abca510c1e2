# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Whether Prometheus scrapes the targets of ServiceMonitors, and why not: from Prometheus' own list of
targets, and from the objects of the Prometheus operator.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..lenient import mapping, mappings_in, sequence, text
from ..text import plain, some_of
from .client import ApiObject, NotFound, Procedure, Request, items, metadata_of, path_of

GROUP_PATH = "apis/monitoring.coreos.com/v1"
#: States of a ServiceMonitor: all targets answer; some do not; there is no target; none was scraped
#: yet.
UP, DOWN, MISSING, UNKNOWN = "up", "down", "missing", "unknown"
#: The query of the API of Prometheus; dropped targets would be most of the answer.
TARGETS, TARGETS_QUERY = "api/v1/targets", {"state": "active"}
#: Maximum characters of what Prometheus says about a target, and targets named for a ServiceMonitor.
_MOST_WORDS, _MOST_NAMED = 300, 3


class ScrapeTarget(NamedTuple):
    """A target as Prometheus has it. ``pool`` is the name of its scrape job."""

    pool: str
    health: str
    url: str
    error: str


class Scraper(NamedTuple):
    """A Prometheus of the operator: which ServiceMonitors it selects, and its path in the proxy of the
    API server. A selector is None if it is not set.
    """

    namespace: str
    name: str
    monitors: Optional[ApiObject]
    namespaces: Optional[ApiObject]
    path: str

    def __str__(self) -> str:
        return f"Prometheus {self.namespace}/{self.name}"


class MonitorState(NamedTuple):
    """A ServiceMonitor as Prometheus sees it. ``reason`` says why it is not up."""

    monitor: str
    namespace: str
    state: str
    up: int
    total: int
    reason: str


def read_scrapers() -> Procedure[List[Scraper]]:
    """The Prometheus objects of the cluster; none without the operator's API."""
    try:
        found = yield from items(path_of(GROUP_PATH, "prometheuses"))
    except NotFound:
        return []
    return [_scraper(one) for one in found]


def _scraper(one: ApiObject) -> Scraper:
    metadata, spec = metadata_of(one), mapping(one.get("spec"))
    namespace, name = metadata.get("namespace") or "", metadata["name"]
    scheme = "https:" if mapping(spec.get("web")).get("tlsConfig") else ""
    # The operator makes this Service for each namespace with a Prometheus.
    service = f"{scheme}prometheus-operated:9090"
    base = path_of("api/v1/namespaces", namespace, "services", service, "proxy")
    prefix = text(spec.get("routePrefix")).strip("/")
    return Scraper(
        namespace,
        name,
        _selector(spec, "serviceMonitorSelector"),
        _selector(spec, "serviceMonitorNamespaceSelector"),
        "/".join([base, *([prefix] if prefix else []), TARGETS]),
    )


def _selector(spec: Mapping[str, Any], name: str) -> Optional[ApiObject]:
    return mapping(spec[name]) if spec.get(name) is not None else None


def read_monitors() -> Procedure[List[ApiObject]]:
    """The ServiceMonitors of the cluster; none without the operator's API."""
    try:
        found: List[ApiObject] = yield from items(path_of(GROUP_PATH, "servicemonitors"))
    except NotFound:
        return []
    return found


def targets_of(answer: Any) -> List[ScrapeTarget]:
    """The targets in an answer of Prometheus. Raises ValueError if it is none."""
    data = mapping(answer).get("data")
    if mapping(answer).get("status") != "success" or "activeTargets" not in mapping(data):
        raise ValueError("the answer has no targets; expected the API of Prometheus")
    return [
        ScrapeTarget(
            text(one.get("scrapePool")),
            text(one.get("health")),
            plain(text(one.get("scrapeUrl")), _MOST_WORDS),
            plain(text(one.get("lastError")), _MOST_WORDS),
        )
        for one in mappings_in(mapping(data).get("activeTargets"))
    ]


def monitor_states(
    expected: Sequence[str], monitors: Sequence[ApiObject], targets: Sequence[ScrapeTarget]
) -> List[MonitorState]:
    """The state of each expected ServiceMonitor, a name or ``namespace/name``. Those that are missing
    have no reason yet, unless there is no such ServiceMonitor: see `why_missing`.
    """
    found = []
    for name in expected:
        own = [one for one in monitors if name in (metadata_of(one)["name"], full_name(one))]
        if not own:
            where, _slash, short = name.rpartition("/")
            reason = "there is no such ServiceMonitor" + ("" if where else " in any namespace")
            found.append(MonitorState(short, where, MISSING, 0, 0, reason))
        found += [_state(one, targets) for one in own]
    return found


def full_name(one: ApiObject) -> str:
    """``namespace/name``."""
    metadata = metadata_of(one)
    return f"{metadata.get('namespace') or ''}/{metadata['name']}"


def _state(monitor: ApiObject, targets: Sequence[ScrapeTarget]) -> MonitorState:
    metadata = metadata_of(monitor)
    # How the operator names the scrape job of each endpoint.
    pool = re.compile(rf"serviceMonitor/{re.escape(full_name(monitor))}/[0-9]+")
    own = [one for one in targets if pool.fullmatch(one.pool)]
    up = sum(one.health == "up" for one in own)
    down = [one for one in own if one.health == "down"]
    state, reason = UP, ""
    if not own:
        state = MISSING
    elif down:
        state = DOWN
        named = [f"{one.url}: {one.error or 'no error given'}" for one in down]
        told = some_of(named, _MOST_NAMED, "; ")
        reason = f"{up} of {len(own)} targets are up: {told}"
    elif up < len(own):
        state, reason = UNKNOWN, f"{len(own) - up} of {len(own)} targets were not scraped yet"
    return MonitorState(
        metadata["name"], metadata.get("namespace") or "", state, up, len(own), reason
    )


# ---- why there is no target ----


def mismatch(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """The first requirement of a label selector that the labels do not meet; "" if they meet all."""
    for key, value in mapping(selector.get("matchLabels")).items():
        if labels.get(key) != value:
            return f"label {key} is {_shown(labels, key)}, expected {value!r}"
    for one in mappings_in(selector.get("matchExpressions")):
        key, operator = text(one.get("key")), text(one.get("operator"))
        values = [text(value) for value in sequence(one.get("values"))]
        is_met = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(operator, False)
        if not is_met:
            wanted = f"{operator} {', '.join(values)}".strip()
            return f"label {key} is {_shown(labels, key)}, expected {wanted}"
    return ""


def _shown(labels: Mapping[str, Any], key: str) -> str:
    return repr(labels[key]) if key in labels else "missing"


def why_missing(monitor: ApiObject, scraper: Optional[Scraper]) -> Procedure[str]:
    """Why Prometheus has no target of the ServiceMonitor. Without ``scraper`` it is unknown what
    Prometheus selects.
    """
    if scraper:
        reason = yield from _why_not_selected(monitor, scraper)
        if reason:
            return reason
    reason = yield from _why_no_endpoint(monitor)
    if reason:
        return reason
    who = str(scraper) if scraper else "Prometheus"
    return (
        f"its Services have endpoints, and {who} has no target of them: see the log of the Prometheus "
        "operator, which rejects a ServiceMonitor whose Secret or ConfigMap is missing"
    )


def _why_not_selected(monitor: ApiObject, scraper: Scraper) -> Procedure[str]:
    if scraper.monitors is None:
        return f"{scraper} selects no ServiceMonitor: its serviceMonitorSelector is not set"
    differs = mismatch(scraper.monitors, _labels(monitor))
    if differs:
        return f"{differs} (serviceMonitorSelector of {scraper})"
    namespace = metadata_of(monitor).get("namespace") or ""
    if scraper.namespaces is None:
        if namespace != scraper.namespace:
            return (
                f"{scraper} selects only its own namespace: its serviceMonitorNamespaceSelector is "
                "not set"
            )
        return ""
    found = yield Request("GET", path_of("api/v1/namespaces", namespace))
    differs = mismatch(scraper.namespaces, _labels(found))
    if differs:
        return (
            f"namespace {namespace} is not selected: {differs} (serviceMonitorNamespaceSelector of "
            f"{scraper})"
        )
    return ""


def _labels(one: ApiObject) -> Dict[str, Any]:
    return mapping(mapping(one.get("metadata")).get("labels"))


def _why_no_endpoint(monitor: ApiObject) -> Procedure[str]:
    """Why no endpoint of a Service belongs to the ServiceMonitor; "" if one does."""
    spec = mapping(monitor.get("spec"))
    where = mapping(spec.get("namespaceSelector"))
    own = metadata_of(monitor).get("namespace") or ""
    names = [text(one) for one in sequence(where.get("matchNames"))] or [own]
    services = yield from items(path_of("api/v1", "services"))
    if where.get("any") is not True:
        services = [one for one in services if metadata_of(one).get("namespace") in names]
    selector = mapping(spec.get("selector"))
    matching = [one for one in services if not mismatch(selector, _labels(one))]
    if not matching:
        place = "any namespace" if where.get("any") is True else f"namespace {', '.join(names)}"
        return f"no Service in {place} has the labels {_selector_text(selector)}"
    wanted = {text(one.get("port")) for one in mappings_in(spec.get("endpoints"))} - {""}
    ports = {
        text(port.get("name"))
        for one in matching
        for port in mappings_in(mapping(one.get("spec")).get("ports"))
    }
    if wanted and not wanted & ports:
        return (
            f"Service {full_name(matching[0])} has no port {', '.join(sorted(wanted))}; it has "
            f"{', '.join(sorted(ports - {''})) or 'no port with a name'}"
        )
    for one in matching:
        if (yield from _has_endpoint(one)):
            return ""
    return (
        f"Service {full_name(matching[0])} has no endpoint: no pod has the labels that it selects"
    )


def _selector_text(selector: Mapping[str, Any]) -> str:
    words = [f"{key}={value}" for key, value in mapping(selector.get("matchLabels")).items()]
    words += [
        f"{one.get('key')} {one.get('operator')} {', '.join(map(str, sequence(one.get('values'))))}"
        for one in mappings_in(selector.get("matchExpressions"))
    ]
    return plain(", ".join(words), _MOST_WORDS)


def _has_endpoint(service: ApiObject) -> Procedure[bool]:
    metadata = metadata_of(service)
    slices = yield from items(
        path_of(
            "apis/discovery.k8s.io/v1/namespaces", metadata.get("namespace") or "", "endpointslices"
        ),
        {"labelSelector": f"kubernetes.io/service-name={metadata['name']}"},
    )
    return any(mappings_in(one.get("endpoints")) for one in slices)
