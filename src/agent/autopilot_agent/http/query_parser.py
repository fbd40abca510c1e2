# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Parse the path and the parameters of a request; an invalid one is refused with what is accepted.
Pure.

The parameters are those of all versions of IBM Autopilot, with its defaults. The nodes of ``host``,
``job`` and ``nodelabel`` are merged.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import parse_qsl

from _health.node import registry

from ..fleet.query import Job, Query, Refused

#: Maximum parameters of a request, and maximum host names in a list.
MOST_PARAMETERS = 64
MOST_HOSTS = 4096
#: dcgm's levels; level 2 and higher take the GPUs.
LEVELS = (1, 2, 3, 4)

_SELECT = ("host", "job", "nodelabel")
_IPERF = (
    "workload",
    "pclients",
    "startport",
    "cleanup",
    "clientsperiface",
    "serverspernode",
    "plane",
    "minimum",
)
_FORMATS = ("text", "json")
#: IBM Autopilot's values for "not selected".
_NOTHING = ("", "None")

_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(
    r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62}"
    r"==?(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
)


class Endpoint(NamedTuple):
    """A path: the check that it runs on the own node ("" if parameters name the checks), and its
    parameters.
    """

    check: str = ""
    parameters: Tuple[str, ...] = ()


#: Paths that run checks.
ENDPOINTS: Dict[str, Endpoint] = {
    "/status": Endpoint("", _SELECT + ("check", "batch", "r", "pingnodes") + _IPERF),
    "/pciebw": Endpoint("pcie_bandwidth"),
    "/gpumem": Endpoint("gpu_memory"),
    "/remapped": Endpoint("remapped_rows"),
    "/gpupower": Endpoint("gpu_power"),
    "/dcgm": Endpoint("dcgm_diag", ("r",)),
    "/ping": Endpoint("ping_mesh", _SELECT),
    "/iperf": Endpoint("iperf3_pairs", _SELECT + _IPERF),
    "/pvc": Endpoint("volume_claim"),
    "/invasive": Endpoint(),
}
_BY_ITSELF = (
    "iperf3 servers are started for each measurement and end by themselves; ask "
    "/iperf?host=... for a measurement"
)
#: IBM Autopilot's removed paths: HTTP status, and what to use instead.
GONE: Dict[str, Tuple[int, str]] = {
    "/iperfservers": (410, _BY_ITSELF),
    "/iperfstopservers": (410, _BY_ITSELF),
    "/iperfclients": (410, _BY_ITSELF),
}


def parse(
    path: str,
    given: str,
    periodic: Sequence[str],
    accept: str = "",
    names: Optional[Mapping[str, Sequence[str]]] = None,
) -> Query:
    """Parse a path and its parameters (a query string, or a form). ``periodic`` are the checks that
    ``all`` stands for, ``names`` the available checks with their short names (default: all of the
    registry). Raises `Refused`.
    """
    if path in GONE:
        raise Refused(GONE[path][1], GONE[path][0])
    names = registry.short_names() if names is None else names
    endpoint = ENDPOINTS.get(path)
    if endpoint is None:
        raise Refused(f"{path[:80]} is not a path here; accepted are {', '.join(ENDPOINTS)}", 404)
    values = _values(path, given, endpoint.parameters + ("format",))
    query = Query(json=_json(values.get("format", ""), accept))
    if path == "/invasive":
        return query
    if endpoint.check and endpoint.check not in names:
        raise Refused(f"this agent has no {endpoint.check}", 501)
    wanted = (
        (endpoint.check,) if endpoint.check else _checks(values.get("check", ""), periodic, names)
    )
    hosts = _hosts("host", values.get("host", ""))
    pingnodes = _hosts("pingnodes", values.get("pingnodes", ""))
    options: Dict[str, Dict[str, Any]] = {}
    level = _whole("r", values.get("r", ""), LEVELS[0], LEVELS[-1])
    iperf = _iperf(values)
    if level is not None and "dcgm_diag" in wanted:
        options["dcgm_diag"] = {"level": level}
    if iperf and "iperf3_pairs" not in wanted:
        raise Refused(f"{next(iter(iperf))}: it has no effect without check=iperf")
    if iperf:
        options["iperf3_pairs"] = iperf
    return query._replace(
        checks=wanted,
        options=options,
        hosts=hosts,
        job=_job(values.get("job", "")),
        nodelabel=_nodelabel(values.get("nodelabel", "")),
        batch=_whole("batch", values.get("batch", ""), 0, 1000000) or 0,
        pingnodes=pingnodes,
    )


def _values(path: str, given: str, accepted: Sequence[str]) -> Dict[str, str]:
    """The parameters by name; ``host`` and ``check`` may be repeated."""
    try:
        pairs = parse_qsl(given, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise Refused(f"there are more than {MOST_PARAMETERS} parameters") from None
    values: Dict[str, str] = {}
    for name, value in pairs:
        if name not in accepted:
            raise Refused(
                f"{name[:80]!r} is not a parameter of {path}; accepted are {', '.join(accepted)}"
            )
        value = value.strip()
        if name in ("host", "check") and values.get(name):
            values[name] += "," + value
        elif name in values and values[name] != value:
            raise Refused(
                f"{name}: it is given twice, as {_short(values[name])} and {_short(value)}"
            )
        else:
            values[name] = value
    return values


def _short(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:77] + "...")


def _refused(name: str, value: str, accepted: str) -> Refused:
    return Refused(f"{name}: {_short(value)} is invalid; expected {accepted}")


def _json(form: str, accept: str) -> bool:
    if form not in ("",) + _FORMATS:
        raise _refused("format", form, " or ".join(_FORMATS))
    return form == "json" or (not form and "application/json" in accept)


def _words(value: str) -> List[str]:
    return [word for word in value.replace(" ", "").split(",") if word]


def _checks(
    value: str, periodic: Sequence[str], names: Mapping[str, Sequence[str]]
) -> Tuple[str, ...]:
    words = _words(value)
    wanted = set(periodic) if not words or "all" in words else set()
    for word in words:
        found = [name for name, short in names.items() if word == name or word in short]
        if not found and word != "all":
            raise _refused(
                "check",
                word,
                "all or any of "
                + ", ".join(
                    name + "".join(f" ({one})" for one in short) for name, short in names.items()
                ),
            )
        wanted.update(found)
    return tuple(name for name in names if name in wanted)


def _hosts(name: str, value: str) -> Tuple[str, ...]:
    """Names in their order, each once; ``all`` means no selection."""
    words = [] if value in _NOTHING else _words(value)
    if "all" in words:
        return ()
    for word in words:
        if not _HOST.fullmatch(word):
            raise _refused(name, word, "names of nodes, separated by commas, or all")
    if len(words) > MOST_HOSTS:
        raise Refused(
            f"{name}: {len(words)} names are too many, give {MOST_HOSTS} at most, or a nodelabel"
        )
    return tuple(dict.fromkeys(words))


def _labels(value: str) -> Optional[str]:
    words = _words(value)
    return ",".join(words) if words and all(_LABEL.fullmatch(word) for word in words) else None


def _job(value: str) -> Optional[Job]:
    if value in _NOTHING:
        return None
    namespace, _colon, selector = value.partition(":")
    labels = _labels(selector)
    if not _NAMESPACE.fullmatch(namespace) or labels is None:
        raise _refused("job", value, "namespace:key=value, the labels of a job's pods")
    return Job(namespace, labels)


def _nodelabel(value: str) -> str:
    if value in _NOTHING:
        return ""
    labels = _labels(value)
    if labels is None:
        raise _refused("nodelabel", value, "key=value, a label of nodes")
    return labels


def _whole(name: str, value: str, least: int, most: int) -> Optional[int]:
    if not value:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise _refused(name, value, f"a whole number from {least} to {most}")
    return int(value)


def _gigabits(name: str, value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", value) or not float(value):
        raise _refused(name, value, "Gbit/s, more than 0")
    return float(value)


def _iperf(values: Dict[str, str]) -> Dict[str, Any]:
    """Options of iperf3_pairs by its own rules. ``cleanup`` is always so: servers end with their
    measurement. ``serverspernode`` above 1 would have no effect and is refused.
    """
    found: Dict[str, Any] = {}
    for name in _IPERF:
        value = values.get(name, "")
        if value and name in ("workload", "plane"):
            found[name] = value
        elif value and name == "minimum":
            found[name] = _gigabits(name, value)
        elif value and name == "serverspernode":
            if value != "1":
                raise _refused(name, value, "1: a node has one partner at a time")
        elif value and name != "cleanup":
            found[name] = _whole(name, value, 1, 65535)
    try:
        registry.load("iperf3_pairs").validate_options(found)
    except ValueError as error:
        raise Refused(str(error)) from None
    return found
