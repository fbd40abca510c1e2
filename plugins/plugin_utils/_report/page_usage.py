# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Two runs side by side as one HTML page: whether they are comparable, then figures, then plots.
Pure.

The page loads nothing and has no script. The template escapes all texts of the document.
"""

from __future__ import annotations

import functools
import typing as t

import jinja2
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    runbook,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mapping,
    mappings_in,
    number,
    whole_number,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    PASS,
    STATUSES,
    Subject,
    read_status,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import plot
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_parts import (
    SYMBOLS,
    hash_of,
    html_with_code,
    icon_of,
    read_file,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import (
    as_json,
    duration,
    name_of,
    plural,
    seen,
    text_of,
    time_of,
)
from markupsafe import Markup

_COLUMNS = ("mean", "p5", "p50", "p95", "max")


class _Row(t.NamedTuple):
    """A metric of one run."""

    name: str
    words: str
    unit: str
    run: str
    cells: list[str]
    differs: str


class _Finding(t.NamedTuple):
    status: str
    run: str
    host: str
    code: str
    message: str
    next: Markup


def html_of(document: dict[str, t.Any]) -> str:
    """The page of a comparison's document. A part that the document lacks is left out."""
    document = mapping(document)
    found, runs = mapping(document.get("comparability")), mapping(document.get("runs"))
    style = read_file("page.css") + read_file("page_usage.css")
    text = _template().render(
        verdict=text_of(found.get("verdict")) or "could not tell",
        attributable=found.get("attributable") is True,
        reason=text_of(found.get("reason")),
        differs=[
            (title, _differing(found.get(key)))
            for key, title in _DIFFERS.items()
            if mappings_in(found.get(key))
        ],
        runs=[_run(name, mapping(runs.get(name))) for name in plot.RUNS],
        rows=[row for one in mappings_in(document.get("metrics")) for row in _rows(one)],
        gpus=[_gpu(one) for one in mappings_in(document.get("gpus"))],
        findings=_findings(runs),
        plots=plot.plots_of(document.get("metrics")),
        compared=time_of(document.get("compared")),
        icon=icon_of(PASS if found.get("attributable") is True else FAIL),
        style=Markup(style),
        hashes={"style": hash_of(style)},
        symbols=SYMBOLS,
        columns=_COLUMNS,
        plural=plural,
        width=plot.WIDTH,
    )
    return text.lstrip().encode("utf-8", "replace").decode("utf-8")


_DIFFERS = {
    "parameters": "The job",
    "hardware": "The hardware",
    "software": "The software and its limits",
}


@functools.lru_cache(maxsize=None)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        finalize=seen,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.from_string(read_file("page_usage.html.j2"))


def _differing(rows: t.Any) -> list[tuple[str, str, str]]:
    return [
        (name_of(row.get("name")), _value(row.get("a")), _value(row.get("b")))
        for row in mappings_in(rows)
    ]


def _value(value: t.Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(one) for one in value)
    return "not told" if value is None else value if isinstance(value, str) else as_json(value)


def _run(name: str, run: dict[t.Any, t.Any]) -> dict[str, t.Any]:
    hosts = mappings_in(run.get("hosts"))
    kinds = sorted(
        {
            text_of(mapping(mapping(host.get("record")).get("platform")).get("kind"))
            for host in hosts
        }
        - {""}
    )
    return {
        "name": name,
        "directory": text_of(run.get("directory")),
        "platform": ", ".join(kinds) or "not told",
        "nodes": plural(len(hosts), "node"),
        "gpus": plural(sum(whole_number(host.get("gpus")) or 0 for host in hosts), "GPU"),
        "warm_up": duration(run.get("warm_up_seconds")),
        "took": duration(max((number(host.get("seconds")) or 0.0 for host in hosts), default=None)),
        "throughput": [
            _throughput(host)
            for host in hosts
            if mapping(mapping(host.get("record")).get("throughput"))
        ],
    }


def _throughput(host: dict[t.Any, t.Any]) -> str:
    told = mapping(mapping(host.get("record")).get("throughput"))
    if told.get("error"):
        return f"{name_of(host.get('host'))}: {text_of(told['error'])}"
    mean, median, values = (
        number(told.get("mean")),
        number(told.get("median")),
        whole_number(told.get("values")),
    )
    return (
        f"{name_of(host.get('host'))}: mean {mean:.6g}, median {median:.6g} of {values}"
        if mean is not None and median is not None
        else ""
    )


def _rows(row: dict[t.Any, t.Any]) -> t.Iterator[_Row]:
    unit = text_of(row.get("unit"))
    wholes = {run: mapping(mapping(row.get(run)).get("whole")) for run in plot.RUNS}
    size, shown = plot._scaled(
        unit, max((number(one.get("max")) or 0.0 for one in wholes.values()), default=0.0)
    )
    differs = mapping(
        mapping(row.get("difference")).get("steady") or mapping(row.get("difference")).get("whole")
    )
    for run in plot.RUNS:
        own, steady = wholes[run], mapping(mapping(row.get(run)).get("steady"))
        cells = [
            text_of(own.get("n")),
            _figure(own.get("missing"), 1.0),
            *(_figure(own.get(key), size) for key in _COLUMNS),
            _figure(steady.get("mean"), size),
        ]
        said = _difference(differs, size) if run == "b" else ""
        yield _Row(
            name_of(row.get("name")) if run == "a" else "",
            text_of(row.get("words")),
            shown if run == "a" else "",
            run,
            cells if own else [],
            said,
        )


def _difference(differs: dict[t.Any, t.Any], size: float) -> str:
    mean, low, high = (number(differs.get(key)) for key in ("mean", "low", "high"))
    if mean is None:
        return ""
    if low is None or high is None:
        return f"{mean / size:+.1f} (too short for an interval)"
    return f"{mean / size:+.1f} ({low / size:+.1f} to {high / size:+.1f})"


def _figure(value: t.Any, size: float) -> str:
    read = number(value)
    return "" if read is None else f"{read / size:.1f}"


def _gpu(gpu: dict[t.Any, t.Any]) -> list[str]:
    whole, idle = mapping(gpu.get("whole")), mapping(gpu.get("episodes"))
    return [
        f"{text_of(gpu.get('run'))} {name_of(gpu.get('host'))}",
        f"GPU {text_of(gpu.get('index'))}",
        *(_figure(whole.get(key), 1.0) for key in ("mean", "p50", "p95", "max", "idle", "busy")),
        text_of(idle.get("count")),
        duration(idle.get("mean_seconds")),
        duration(idle.get("longest_seconds")),
    ]


def _findings(runs: dict[t.Any, t.Any]) -> list[_Finding]:
    found = []
    for name in plot.RUNS:
        for host in mappings_in(mapping(runs.get(name)).get("hosts")):
            for one in mappings_in(mapping(host.get("result")).get("findings")):
                subject = Subject.from_dict(one.get("subject"))
                where = "" if subject.kind == "node" else f"{subject}: "
                code = name_of(one.get("code"))
                found.append(
                    _Finding(
                        read_status(one.get("status")),
                        name,
                        name_of(host.get("host")),
                        code,
                        where + text_of(one.get("message")),
                        html_with_code(runbook(code).next),
                    )
                )
    return sorted(found, key=lambda one: -STATUSES.index(one.status))
