# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Generate the Grafana dashboards of the role `monitoring` with Grafana's builder library (pinned
in tests/requirements.txt).

    dashboards.py            write them
    dashboards.py --check    fail (exit 1) if the files of the role differ

The dashboards show the fleet (bad nodes, findings, since when), one node (each GPU and check over
time), the network between nodes, the agents of a cluster (marks, fitness, which node has no agent),
and the queue (quota, capacity, workloads). Metrics and labels come from the core's tables,
`metrics.METRICS` and `agent.METRICS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from _health.fleet.output.metrics import CLUSTER_PHASES  # noqa: E402
from _health.knowledge.agent import NODE_MARK  # noqa: E402
from _health.knowledge.agent import PHASE as AGENT_PHASE  # noqa: E402
from _health.knowledge.marks import MARKS  # noqa: E402
from _health.node.devices.gpu_holders import IDLE_MEMORY  # noqa: E402

DASHBOARDS = ROOT / "roles" / "monitoring" / "files" / "dashboards"

TAG = "autopilot-gpu"
SOURCE = model.DataSourceRef("prometheus", "${datasource}")

#: Label selector of all queries. ``cluster`` is a label that the user may have added; without it,
#: all series match.
RUNS = 'job="$job", cluster=~"$cluster", phase=~"$phase"'
NODE = f'{RUNS}, node="$node"'
PLANE = f'{RUNS}, plane="$plane"'
#: Without the results of the cluster, which say nothing about the host that asked for them.
NOT_CLUSTER = f'phase!~"{"|".join(CLUSTER_PHASES.values())}"'
OF_NODES = f"{RUNS}, {NOT_CLUSTER}"
#: Labels that identify a node within a phase, and across all phases.
BY_NODE, ANY_PHASE = "cluster, node, phase", "cluster, node"

#: Nodes with GPUs in a cluster, by kube-state-metrics.
IN_CLUSTER, GPU_RESOURCE = 'cluster=~"$cluster"', "nvidia_com_(gpu|mig).*"
WITH_GPUS = (
    f"(max by ({ANY_PHASE}) "
    f'(kube_node_status_capacity{{{IN_CLUSTER}, resource=~"{GPU_RESOURCE}"}}) > 0)'
)

#: Statuses with their colours, by their number in the metrics.
STATUSES = (
    ("pass", "green"),
    ("skip", "#8e8e8e"),
    ("warn", "yellow"),
    ("unknown", "purple"),
    ("fail", "red"),
)
#: Hours without a run after which a node is listed as not checked; the first is the alert's
#: threshold.
HOURS_UNCHECKED = (26, 6, 72, 168)

LAST_RUN = "autopilot_last_run_timestamp_seconds"

#: A builder of panels; the library has one class per kind of panel.
Panel = Any


# ---- parts ----


def mapped(values: Dict[str, Any]) -> List[model.ValueMapping]:
    """Value mappings: {value: (text, colour)}."""
    results = {
        value: model.ValueMappingResult(text, colour, index=place)
        for place, (value, (text, colour)) in enumerate(values.items())
    }
    return [model.ValueMap(results)]


BY_NUMBER = mapped({str(number): (word, colour) for number, (word, colour) in enumerate(STATUSES)})
BY_WORD = mapped({word: (word, colour) for word, colour in STATUSES})
FIT = mapped({"0": ("unfit", "red"), "1": ("fit", "green")})
PASSED = mapped({"0": ("FAILED", "red"), "1": ("passed", "green")})
COMPLETE = mapped({"0": ("broken off", "orange"), "1": ("complete", "green")})


def query(expression: str, legend: str = "", instant: bool = False) -> prometheus.Dataquery:
    """A query for a time series panel; with `rows`, for a table."""
    made = (
        prometheus.Dataquery()
        .expr(expression)
        .datasource(SOURCE)
        .format(PromQueryFormat.TIME_SERIES)
    )
    made = made.instant() if instant else made.range()
    return made.legend_format(legend) if legend else made


def queried(
    panel: Panel,
    queries: Sequence[prometheus.Dataquery],
    title: str,
    description: str,
    span: int,
    height: int,
) -> Panel:
    panel = panel.title(title).description(description).datasource(SOURCE).span(span).height(height)
    for place, one in enumerate(queries):
        panel = panel.with_target(one.ref_id("ABCDEF"[place]))
    return panel


def number(
    title: str, description: str, expression: str, colour: str, span: int = 4, absent: str = "0"
) -> Panel:
    """A panel with a number of nodes, coloured from 1 up. ``absent`` is shown if the expression has
    no series: "0", or "" where the source of the metric may be missing, which is not 0.
    """
    steps = [model.Threshold(None, "#8e8e8e"), model.Threshold(1, colour)]
    panel = (
        stat.Panel()
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .thresholds(dashboard.ThresholdsConfig().steps(steps))
    )
    return queried(
        panel,
        [
            query(
                f"count(count by (cluster, node) ({expression}))"
                + (f" or vector({absent})" if absent else "")
            )
        ],
        title,
        description,
        span,
        4,
    )


def words(
    title: str,
    description: str,
    expression: str,
    legend: str,
    span: int,
    mappings: Sequence[model.ValueMapping] = (),
    unit: str = "",
) -> Panel:
    """A panel of values as texts or ages, each with its legend."""
    panel = (
        stat.Panel()
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)
    )
    panel = panel.color_mode(common_model.BigValueColorMode.VALUE).mappings(list(mappings))
    panel = panel.thresholds(dashboard.ThresholdsConfig().steps([model.Threshold(None, "text")]))
    return queried(
        panel.unit(unit) if unit else panel,
        [query(expression, legend, instant=True)],
        title,
        description,
        span,
        4,
    )


def lines(
    title: str,
    description: str,
    queries: Sequence[prometheus.Dataquery],
    unit: str = "short",
    span: int = 12,
    stacked: bool = False,
) -> Panel:
    # A value is valid until the next run, so lines have steps.
    panel = (
        timeseries.Panel()
        .unit(unit)
        .line_interpolation(common_model.LineInterpolation.STEP_AFTER)
        .fill_opacity(30 if stacked else 0)
        .axis_soft_min(0)
    )
    panel = panel.tooltip(
        common.VizTooltipOptions()
        .mode(common_model.TooltipDisplayMode.MULTI)
        .sort(common_model.SortOrder.DESCENDING)
    )
    panel = panel.legend(
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
    return queried(panel, queries, title, description, span, 9)


def coloured(panel: Panel, series: Dict[str, str]) -> Panel:
    """Colours of series by name."""
    for name, colour in series.items():
        panel = panel.override_by_name(
            name, [model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})]
        )
    return panel


def bars(title: str, description: str, expression: str, legend: str, unit: str, span: int) -> Panel:
    panel = (
        bargauge.Panel()
        .unit(unit)
        .orientation(common_model.VizOrientation.HORIZONTAL)
        .display_mode(common_model.BarGaugeDisplayMode.BASIC)
        .min(0)
    )
    panel = panel.thresholds(dashboard.ThresholdsConfig().steps([model.Threshold(None, "blue")]))
    return queried(panel, [query(expression, legend, instant=True)], title, description, span, 9)


def timeline(title: str, description: str, expression: str, legend: str, span: int) -> Panel:
    """A panel of statuses over time."""
    panel = (
        statetimeline.Panel()
        .mappings(BY_NUMBER)
        .row_height(0.8)
        .show_value(common_model.VisibilityMode.NEVER)
        .fill_opacity(70)
        .line_width(0)
    )
    panel = panel.color_scheme(
        dashboard.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color("#8e8e8e")
    )
    return queried(panel, [query(expression, legend)], title, description, span, 9)


def rows(
    title: str,
    description: str,
    expressions: Sequence[str],
    columns: Dict[str, str],
    sort: str,
    span: int = 24,
    height: int = 10,
    falling: bool = False,
) -> Panel:
    """A table of the results of instant queries, joined on their common labels. ``columns`` maps
    Grafana's field names (a label, ``Value``, ``Value #B``) to column titles in order; "" hides a
    column.
    """
    panel = table.Panel().sort_by([common.TableSortByFieldState().display_name(sort).desc(falling)])
    panel = panel.footer(common.TableFooterOptions().enable_pagination(True)).no_value("none")
    if len(expressions) > 1:
        panel = panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            "organize",
            options={
                "excludeByName": dict.fromkeys(
                    ["Time", *(field for field, shown in columns.items() if not shown)], True
                ),
                "indexByName": {field: place for place, field in enumerate(columns)},
                "renameByName": {
                    field: shown for field, shown in columns.items() if shown not in ("", field)
                },
            },
        )
    )
    queries = [
        prometheus.Dataquery().expr(one).datasource(SOURCE).format(PromQueryFormat.TABLE).instant()
        for one in expressions
    ]
    return queried(panel, queries, title, description, span, height)


def named(*labels: str) -> Dict[str, str]:
    """Columns titled by their labels."""
    return {label: label for label in labels}


def column(panel: Panel, name: str, **properties: Any) -> Panel:
    """The display options of a column: ``unit``, ``links``, ``width``, ``mappings`` (which colour
    its text).
    """
    found = [
        model.DynamicConfigValue({"width": "custom.width"}.get(key, key), value)
        for key, value in properties.items()
    ]
    if "mappings" in properties:
        found.append(model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return panel.override_by_name(name, found)


def linked(panel: Panel) -> Panel:
    """The node column, which links to the dashboard of the node."""
    kept = "".join(f"&${{{name}:queryparam}}" for name in ("datasource", "job", "cluster"))
    url = f"/d/autopilot-gpu-node?var-node=${{__value.text}}{kept}&${{__url_time_range}}"
    return column(panel, "node", links=[{"title": "Open ${__value.text}", "url": url}])


def variable(name: str, label: str, series: str, several: bool = True) -> dashboard.QueryVariable:
    """A dashboard variable with the values of a label; multi-value or single-value."""
    made = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    made = made.query(
        {"query": f"label_values({series}, {name})", "refId": f"variable-{name}"}
    ).sort(model.VariableSort.ALPHABETICAL_ASC)
    if not several:
        return made
    # The only pattern that also matches series without the label.
    return (
        made.multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(True, "All", "$__all"))
    )


def _of_runs() -> List[Any]:
    """The variables of the dashboards about results: job, cluster, phase."""
    return [
        variable("job", "Job", LAST_RUN, several=False),
        variable("cluster", "Cluster", f'{LAST_RUN}{{job="$job"}}'),
        variable("phase", "Phase", f'{LAST_RUN}{{job="$job", cluster=~"$cluster"}}'),
    ]


def page(
    uid: str, title: str, description: str, variables: Sequence[Any], contents: Sequence[Any]
) -> dashboard.Dashboard:
    """A dashboard: rows, each followed by its panels, and the settings shared by all dashboards."""
    made = (
        dashboard.Dashboard(title)
        .uid(f"autopilot-gpu-{uid}")
        .description(description)
        .tags([TAG])
        .refresh("1m")
        .time("now-7d", "now")
    )
    made = made.tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
    others = (
        dashboard.DashboardLink("GPU health")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
    )
    made = made.link(others.include_vars(True).keep_time(True))
    made = made.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    for one in variables:
        made = made.with_variable(one)
    for place, one in enumerate(contents, 1):
        made = (
            made.with_row(dashboard.Row(one).id(place))
            if isinstance(one, str)
            else made.with_panel(one.id(place))
        )
    return made


def findings(title: str, selected: str, with_node: bool = True) -> Panel:
    """The findings and since when, worst first: fail, unknown and warn are also in alphabetical
    order.
    """
    found = f"autopilot_finding{{{selected}}}"
    # As many steps as points (below), whatever the range.
    first_seen = (
        f"(min_over_time(timestamp({found})[$__range:$__interval]) or "
        f"timestamp({found})) and {found}"
    )
    where = ["cluster", "node", "phase"] if with_node else ["phase"]
    panel = (
        rows(
            title,
            "Findings from warn up, by the policy. Since: when it was first seen within the "
            "time range of this page.",
            [
                f"min by ({', '.join(where)}, status, action, check, code, subject) "
                f"({first_seen}) * 1000"
            ],
            {
                **named("status", *where, "subject", "check"),
                "code": "finding",
                "action": "next step",
                "Value": "since",
            },
            "status",
        )
        .no_value("nothing is bad")
        .max_data_points(200)
    )
    panel = column(
        column(panel, "status", mappings=BY_WORD, width=100), "since", unit="dateTimeFromNow"
    )
    return linked(panel) if with_node else panel


# ---- the fleet ----


# A node counts once, by the worst verdict of its phases: unfit, then undecided, then fit.
UNFIT = f"min by ({ANY_PHASE}) (autopilot_node_fit{{{OF_NODES}}}) == 0"
UNDECIDED = (
    f"max by ({ANY_PHASE}) ({LAST_RUN}{{{OF_NODES}}} unless on (job, {BY_NODE}) "
    f"autopilot_node_fit{{{OF_NODES}}}) unless ({UNFIT})"
)
FIT_ALONE = f"min by ({ANY_PHASE}) (autopilot_node_fit{{{OF_NODES}}}) == 1 unless ({UNDECIDED})"
NOT_LATELY = f"time() - {LAST_RUN}{{{OF_NODES}}} > $unchecked"


def _nodes_table() -> Panel:
    """A table of all nodes, worst first."""
    nodes = rows(
        "Nodes",
        "All nodes, the worst first. Changes: how often the status became another one within "
        "the time range of this page.",
        [
            f"max by ({BY_NODE}) (autopilot_node_status{{{OF_NODES}}})",
            f"max by ({BY_NODE}) (autopilot_node_fit{{{OF_NODES}}})",
            f"count by ({BY_NODE}) (autopilot_finding{{{OF_NODES}}})",
            f"max by ({BY_NODE}) (changes(autopilot_node_status{{{OF_NODES}}}[$__range]))",
            f"max by ({BY_NODE}) ({LAST_RUN}{{{OF_NODES}}}) * 1000",
            f"max by ({BY_NODE}) (autopilot_last_success_timestamp_seconds{{{OF_NODES}}}) * 1000",
        ],
        {
            **named("cluster", "node", "phase"),
            "Value #A": "status",
            "Value #B": "fit",
            "Value #C": "findings",
            "Value #D": "changes",
            "Value #E": "last checked",
            "Value #F": "last found fit",
        },
        "status",
        height=12,
        falling=True,
    )
    nodes = column(column(nodes, "status", mappings=BY_NUMBER), "fit", mappings=FIT)
    return linked(
        column(
            column(nodes, "last checked", unit="dateTimeFromNow"),
            "last found fit",
            unit="dateTimeFromNow",
        )
    )


def _unchecked_table() -> Panel:
    """A table of nodes without a run within the chosen time."""
    return rows(
        "Not checked lately",
        "Nodes without a run for as long as chosen above; what is known of them is that old.",
        [f"max by ({BY_NODE}) ({NOT_LATELY})"],
        {**named("cluster", "node", "phase"), "Value": "for"},
        "for",
        12,
        9,
        falling=True,
    )


def _fleet_now() -> List[Any]:
    """The numbers of fit, unfit and undecided nodes."""
    return [
        number("Unfit", "Nodes that are not fit to run, by any phase chosen above.", UNFIT, "red"),
        number(
            "No verdict",
            "Nodes that could not be reached or not be judged, and those with nothing to "
            "check: neither healthy nor bad.",
            UNDECIDED,
            "purple",
        ),
        number(
            "Warnings",
            "Nodes that are worth a look.",
            f"max by ({ANY_PHASE}) (autopilot_node_status{{{OF_NODES}}}) == 2",
            "yellow",
        ),
        number(
            "Fit", "Nodes that are fit to run, by every phase chosen above.", FIT_ALONE, "green"
        ),
        number(
            "Not checked lately",
            "Nodes without a run for as long as chosen above.",
            NOT_LATELY,
            "orange",
        ),
        words(
            "Last run ended",
            "How long ago, by phase.",
            f"time() - max by (cluster, phase) (autopilot_run_timestamp_seconds{{{RUNS}}})",
            "{{cluster}} {{phase}}",
            4,
            unit="s",
        ),
        words(
            "Last run",
            "Whether it met its policy, by phase.",
            f"min by (cluster, phase) (autopilot_run_passed{{{RUNS}}})",
            "{{cluster}} {{phase}}",
            12,
            PASSED,
        ),
        words(
            "Last run came to its end",
            "One that was broken off has not seen all nodes.",
            f"min by (cluster, phase) (autopilot_run_complete{{{RUNS}}})",
            "{{cluster}} {{phase}}",
            12,
            COMPLETE,
        ),
    ]


def _idle_pending() -> Panel:
    """A table of GPUs that a reset would repair and that nothing uses."""
    waiting = (
        f"max by ({BY_NODE}, gpu, code) (label_replace(autopilot_finding{{{RUNS}, "
        'code=~"row_remap_pending|page_retirement_pending|repair_pending"}, '
        '"gpu", "$1", "subject", "GPU ([0-9]+).*"))'
    )
    memory = f"max by ({ANY_PHASE}, gpu) (autopilot_gpu_memory_used_bytes{{{RUNS}}})"
    requests = f'kube_pod_container_resource_requests{{{IN_CLUSTER}, resource=~"{GPU_RESOURCE}"}}'
    panel = rows(
        "Idle GPUs with a pending repair of memory",
        f"A reset would repair them and nothing uses them: at most {IDLE_MEMORY >> 20} MiB of "
        "their memory were in use at the last check gpu_processes, or, without such a check, no "
        "pod of the node requests GPUs (kube-state-metrics).",
        [
            f"{waiting} and on ({ANY_PHASE}, gpu) {memory} <= {IDLE_MEMORY} or "
            f"({waiting} unless on ({ANY_PHASE}, gpu) {memory}) "
            f"and on ({ANY_PHASE}) {WITH_GPUS} unless on ({ANY_PHASE}) {requests} > 0"
        ],
        {**named("cluster", "node", "phase", "gpu"), "code": "finding", "Value": ""},
        "node",
        12,
        9,
    )
    return linked(panel)


def _fleet_findings() -> List[Any]:
    """The panels of current findings."""
    return [
        findings("Findings", RUNS),
        _nodes_table(),
        linked(column(_unchecked_table(), "for", unit="s")),
        bars(
            "Slowest GPUs",
            "The ten with the least bandwidth between host and GPU, the slower direction.",
            f"bottomk(10, min by ({BY_NODE}, gpu) "
            f'(autopilot_pcie_bandwidth_bytes_per_second{{{RUNS}, method="copy_engine"}}))',
            "{{node}} GPU {{gpu}} {{phase}}",
            "Bps",
            12,
        ),
        _idle_pending(),
    ]


def _fleet_history() -> List[Any]:
    """The panels of the fleet over time."""
    return [
        coloured(
            lines(
                "Nodes",
                "All nodes by what the last run said of each.",
                [
                    query(f"count({UNFIT})", "unfit"),
                    query(f"count({UNDECIDED})", "no verdict"),
                    query(f"count({FIT_ALONE})", "fit"),
                ],
                stacked=True,
            ),
            {"unfit": "red", "no verdict": "purple", "fit": "green"},
        ),
        lines(
            "Nodes of the last run",
            "As the last run of each phase counted them.",
            [query(f"sum by (phase, fit) (autopilot_run_nodes{{{RUNS}}})", "{{fit}} {{phase}}")],
        ),
        lines(
            "Findings",
            "From warn up, by code.",
            [query(f"count by (code) (autopilot_finding{{{RUNS}}})", "{{code}}")],
            stacked=True,
        ),
        lines(
            "Checks that fail or cannot tell",
            "Nodes by check.",
            [
                query(
                    f"count by (check) (autopilot_check_status{{{RUNS}}} == 4)", "{{check}} fail"
                ),
                query(
                    f"count by (check) (autopilot_check_status{{{RUNS}}} == 3)", "{{check}} unknown"
                ),
            ],
        ),
        lines(
            "How long a run takes",
            "By phase.",
            [
                query(
                    f"max by (cluster, phase) (autopilot_run_duration_seconds{{{RUNS}}})",
                    "{{cluster}} {{phase}}",
                )
            ],
            unit="s",
        ),
    ]


def _run_history() -> List[Any]:
    """The panels of runs."""
    return [
        timeline(
            "Runs",
            "The worst that the runs of each phase found, of nodes and of what lies between them.",
            f"max by (cluster, phase) (autopilot_run_status{{{RUNS}}})",
            "{{cluster}} {{phase}}",
            12,
        )
    ]


def fleet() -> dashboard.Dashboard:
    hours = HOURS_UNCHECKED[0]
    unchecked = (
        dashboard.CustomVariable("unchecked")
        .label("Not checked for")
        .values(",".join(f"{one} h : {one * 3600}" for one in HOURS_UNCHECKED))
    )
    unchecked = unchecked.current(model.VariableOption(True, f"{hours} h", str(hours * 3600)))
    return page(
        "fleet",
        "GPU health: fleet",
        "Which nodes are bad, what is wrong with them and since when, and which were not "
        "checked lately.",
        [*_of_runs(), unchecked],
        [
            "Now",
            *_fleet_now(),
            "Who is bad, what, since when",
            *_fleet_findings(),
            "History",
            *_fleet_history(),
            *_run_history(),
        ],
    )


# ---- one node ----


COPIED = f'autopilot_pcie_bandwidth_bytes_per_second{{{NODE}, method="copy_engine"}}'
GPU_LEGEND = "GPU {{gpu}}"


def _checks_table() -> Panel:
    """A table of the status of each check."""
    return rows(
        "Checks",
        "Each check's status, and the run that it is of.",
        [
            f"max by (check, phase) (autopilot_check_status{{{NODE}}})",
            f"max by (check, phase) (autopilot_check_timestamp_seconds{{{NODE}}}) * 1000",
        ],
        {**named("check", "phase"), "Value #A": "status", "Value #B": "as of"},
        "status",
        8,
        9,
        falling=True,
    )


def _gpus_table() -> Panel:
    """A table of each GPU with its model and latest measurements."""
    return rows(
        "Each GPU",
        "What it is, and what was measured last; of the bandwidths the lowest.",
        [
            f"max by (phase, gpu, uuid, pci, model) (autopilot_gpu_info{{{NODE}}})",
            f"min by (phase, gpu) ({COPIED})",
            f"max by (phase, gpu) (autopilot_power_limit_watts{{{NODE}}})",
            f"sum by (phase, gpu) (autopilot_remapped_rows{{{NODE}}})",
        ],
        {
            **named("gpu", "phase", "model", "pci", "uuid"),
            "Value #A": "",
            "Value #B": "bandwidth",
            "Value #C": "power limit",
            "Value #D": "remapped rows",
        },
        "gpu",
        20,
        10,
    )


def _node_now() -> List[Any]:
    """The panels of the node's verdict."""
    return [
        words(
            "Status",
            "The worst of its checks, by the policy.",
            f"max by (phase) (autopilot_node_status{{{NODE}}})",
            "{{phase}}",
            6,
            BY_NUMBER,
        ),
        words(
            "Fit to run",
            "Of each phase by the last run that could tell.",
            f"min by (phase) (autopilot_node_fit{{{NODE}}})",
            "{{phase}}",
            6,
            FIT,
        ).no_value("could not tell"),
        words(
            "Last checked",
            "How long ago the last run ended that had the node.",
            f"time() - max by (phase) ({LAST_RUN}{{{NODE}}})",
            "{{phase}}",
            6,
            unit="s",
        ),
        words(
            "Last found fit",
            "How long ago the last run ended that found it fit.",
            f"time() - max by (phase) (autopilot_last_success_timestamp_seconds{{{NODE}}})",
            "{{phase}}",
            6,
            unit="s",
        ).no_value("never"),
        findings("Findings", NODE, with_node=False),
    ]


def _node_checks() -> List[Any]:
    """The panels of the check statuses."""
    return [
        timeline(
            "Status of each check",
            "As of the last run that had it.",
            f"max by (check, phase) (autopilot_check_status{{{NODE}}})",
            "{{check}} {{phase}}",
            16,
        ),
        column(
            column(_checks_table(), "status", mappings=BY_NUMBER), "as of", unit="dateTimeFromNow"
        ),
    ]


def _gpu_overview() -> List[Any]:
    """The panels of the GPU models and their PCIe links."""
    return [
        words(
            "GPUs",
            "How many the driver shows.",
            f"max by (phase) (autopilot_gpus{{{NODE}}})",
            "{{phase}}",
            4,
        ),
        column(column(_gpus_table(), "bandwidth", unit="Bps"), "power limit", unit="watt"),
        lines(
            "Bandwidth between host and GPU",
            "By the copy engines, one GPU at a time. It should not fall from run to run.",
            [
                query(
                    f"max by (phase, gpu, direction) ({COPIED})",
                    GPU_LEGEND + " {{direction}} {{phase}}",
                )
            ],
            "Bps",
        ),
        lines(
            "Bandwidth, all GPUs at once",
            "Only where the option concurrent of pcie_bandwidth is on.",
            [
                query(
                    "max by (phase, gpu, direction) "
                    f"(autopilot_pcie_bandwidth_concurrent_bytes_per_second{{{NODE}}})",
                    GPU_LEGEND + " {{direction}} {{phase}}",
                )
            ],
            "Bps",
        ),
    ]


def _gpu_power() -> List[Any]:
    """The panels of power, clocks and spare memory of the GPUs."""
    return [
        lines(
            "Power limit",
            "The limit that is enforced; a lowered one is a finding.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_power_limit_watts{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "watt",
        ),
        lines(
            "Clocks held back",
            "Time since the driver was loaded for which clocks were held back, by cause.",
            [
                query(
                    f"max by (phase, gpu, cause) (autopilot_clocks_held_back_seconds{{{NODE}}})",
                    GPU_LEGEND + " {{cause}} {{phase}}",
                )
            ],
            "s",
        ),
        lines(
            "Remapped rows and retired pages",
            "In the life of each GPU, by cause; older GPUs retire pages.",
            [
                query(
                    f"max by (phase, gpu, cause) (autopilot_remapped_rows{{{NODE}}})",
                    GPU_LEGEND + " {{cause}} rows {{phase}}",
                ),
                query(
                    f"max by (phase, gpu, cause) (autopilot_retired_pages{{{NODE}}})",
                    GPU_LEGEND + " {{cause}} pages {{phase}}",
                ),
            ],
        ),
        timeline(
            "Status of the node",
            "The worst of its checks, by phase.",
            f"max by (phase) (autopilot_node_status{{{NODE}}})",
            "{{phase}}",
            12,
        ),
    ]


def _gpu_errors() -> List[Any]:
    """The panels of the GPUs' error counters."""
    return [
        lines(
            "Memory errors of GPUs",
            "Volatile since the GPU's last reset, aggregate in its lifetime.",
            [
                query(
                    f"max by (phase, gpu, counter, kind) (autopilot_ecc_errors{{{NODE}}})",
                    GPU_LEGEND + " {{counter}} {{kind}} {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "Xids",
            "Errors that the driver logged since boot, also those that are over.",
            [
                query(
                    f"max by (phase, gpu, xid) (autopilot_xid_errors{{{NODE}}})",
                    GPU_LEGEND + " Xid {{xid}} {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "Memory in use",
            "Beyond the driver's reserve.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_gpu_memory_used_bytes{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "bytes",
            8,
        ),
    ]


def _gpu_links() -> List[Any]:
    """The panels of NVLink and PCIe."""
    return [
        lines(
            "NVLinks up",
            "They should not become fewer.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_nvlinks_active{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "Errors of NVLinks",
            "Since the driver was loaded.",
            [
                query(
                    f"max by (phase, gpu, kind) (autopilot_nvlink_errors{{{NODE}}})",
                    GPU_LEGEND + " {{kind}} {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "PCIe replays",
            "Packets that were sent again since the driver was loaded.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_pcie_replays{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            span=8,
        ),
    ]


def _gpu_rates() -> List[Any]:
    """The panels of memory, compute and link performance."""
    return [
        lines(
            "Memory bandwidth",
            "By our triad kernel.",
            [
                query(
                    "max by (phase, gpu) "
                    f"(autopilot_gpu_memory_bandwidth_bytes_per_second{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "Bps",
            8,
        ),
        lines(
            "Arithmetic",
            "By our kernels: it compares GPUs of a model, and one with itself.",
            [
                query(
                    "max by (phase, gpu, kind) "
                    f"(autopilot_gpu_compute_operations_per_second{{{NODE}}})",
                    GPU_LEGEND + " {{kind}} {{phase}}",
                )
            ],
            "flops",
            8,
        ),
        lines(
            "Bandwidth between GPUs",
            "The slowest direction of each GPU's copies to the others.",
            [
                query(
                    "max by (phase, gpu, kind) "
                    f"(autopilot_gpu_link_bandwidth_bytes_per_second{{{NODE}}})",
                    GPU_LEGEND + " {{kind}} {{phase}}",
                )
            ],
            "Bps",
            8,
        ),
    ]


def _job_activity() -> List[Any]:
    """The panels of GPU activity, measured beside a running job."""
    return [
        lines(
            "Utilization while watched",
            "Over each pass over a running job.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_activity_utilization_ratio{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "percentunit",
            8,
        ),
        lines(
            "Power while watched",
            "Over each pass over a running job.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_activity_power_watts{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "watt",
            8,
        ),
        lines(
            "Clocks while watched",
            "Of the multiprocessors, over each look at a running job.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_activity_sm_clock_hertz{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            "hertz",
            8,
        ),
    ]


def _job_usage() -> List[Any]:
    """The panels of job captures, and of the cost of sampling."""
    return [
        lines(
            "Captured usage",
            "Share of the time in which a kernel ran, and in which none did.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_gpu_usage_mean_ratio{{{NODE}}})",
                    GPU_LEGEND + " mean {{phase}}",
                ),
                query(
                    f"max by (phase, gpu) (autopilot_gpu_usage_median_ratio{{{NODE}}})",
                    GPU_LEGEND + " median {{phase}}",
                ),
                query(
                    f"max by (phase, gpu) (autopilot_gpu_usage_idle_ratio{{{NODE}}})",
                    GPU_LEGEND + " idle {{phase}}",
                ),
                query(
                    f"max by (phase, gpu) (autopilot_gpu_usage_memory_occupied_ratio{{{NODE}}})",
                    GPU_LEGEND + " memory {{phase}}",
                ),
            ],
            "percentunit",
            8,
        ),
        lines(
            "Idle episodes",
            "Times in a capture in which a GPU waited.",
            [
                query(
                    f"max by (phase, gpu) (autopilot_gpu_usage_idle_episodes{{{NODE}}})",
                    GPU_LEGEND + " {{phase}}",
                )
            ],
            span=8,
        ),
    ]


def _watching_cost() -> List[Any]:
    """The panels of the cost of sampling a job."""
    return [
        lines(
            "What watching costs",
            "Of one core, over each look at a running job.",
            [
                query(
                    f"max by (phase) (autopilot_activity_sampling_cpu_ratio{{{NODE}}})",
                    "core {{phase}}",
                )
            ],
            "percentunit",
            4,
        ),
        lines(
            "Memory that watching takes",
            "Of the process that looks.",
            [
                query(
                    f"max by (phase) (autopilot_activity_sampling_memory_bytes{{{NODE}}})",
                    "{{phase}}",
                )
            ],
            "bytes",
            4,
        ),
    ]


def _host_panels() -> List[Any]:
    """The panels of the host apart from its GPUs."""
    return [
        lines(
            "Memory errors of the host",
            "Since boot.",
            [
                query(
                    f"max by (phase, kind) (autopilot_memory_errors{{{NODE}}})",
                    "{{kind}} {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "Memory bandwidth of the host",
            "Only where the option stream of memory_and_cpu is on.",
            [
                query(
                    "max by (phase, numa) "
                    f"(autopilot_host_memory_bandwidth_bytes_per_second{{{NODE}}})",
                    "NUMA node {{numa}} {{phase}}",
                )
            ],
            "Bps",
            8,
        ),
        lines(
            "Clock offset",
            "By the daemon that keeps the clock.",
            [query(f"max by (phase) (autopilot_clock_offset_seconds{{{NODE}}})", "{{phase}}")],
            "s",
            8,
        ),
        words(
            "GPUs that a container was given",
            "Only of checks in containers.",
            f"max by (phase) (autopilot_gpus_visible{{{NODE}}})",
            "{{phase}}",
            4,
        ),
    ]


def _network_services() -> List[Any]:
    """The panels of network ports and of servers that jobs need."""
    return [
        lines(
            "Ports of InfiniBand and RoCE",
            "1 up, 0 down.",
            [
                query(
                    f"max by (phase, port) (autopilot_infiniband_port_active{{{NODE}}})",
                    "{{port}} {{phase}}",
                )
            ],
            span=8,
        ),
        lines(
            "Image registries",
            "Time until the registry told of the slowest of its images.",
            [
                query(
                    f"max by (phase, registry) (autopilot_image_lookup_seconds{{{NODE}}})",
                    "{{registry}} {{phase}}",
                )
            ],
            "s",
            8,
        ),
        lines(
            "NFS servers",
            "Time until the server answered a call that does nothing.",
            [
                query(
                    f"max by (phase, server) (autopilot_nfs_answer_seconds{{{NODE}}})",
                    "{{server}} {{phase}}",
                )
            ],
            "s",
            8,
        ),
    ]


def _network_mesh() -> List[Any]:
    """The panels of the mesh results of the node."""
    return [
        lines(
            "TCP bandwidth",
            "The median over the node's partners, each way.",
            [
                query(
                    "max by (phase, plane, direction) "
                    f"(autopilot_pair_bandwidth_bytes_per_second{{{NODE}}})",
                    "{{plane}} {{direction}} {{phase}}",
                )
            ],
            "Bps",
            8,
        ),
        lines(
            "Pings lost",
            "The share of the node's pings that were lost, over all peers.",
            [
                query(
                    f"max by (phase, plane) (autopilot_ping_loss_ratio{{{NODE}}})",
                    "{{plane}} {{phase}}",
                )
            ],
            "percentunit",
            8,
        ),
        lines(
            "Round trips",
            "The median of the node's pings, over all peers.",
            [
                query(
                    f"max by (phase, plane) (autopilot_ping_round_trip_seconds{{{NODE}}})",
                    "{{plane}} {{phase}}",
                )
            ],
            "s",
            8,
        ),
    ]


def _storage_panels() -> List[Any]:
    """The panels of file systems and volume claims."""
    return [
        lines(
            "Free space",
            "Part of each file system that users can still fill.",
            [
                query(
                    f"min by (phase, path) (autopilot_filesystem_free_ratio{{{NODE}}})",
                    "{{path}} {{phase}}",
                )
            ],
            "percentunit",
        ),
        lines(
            "Volume claim",
            "Until a new claim was bound, and until its volume was mounted and could be "
            "written to.",
            [
                query(
                    f"max by (phase) (autopilot_volume_bound_seconds{{{NODE}}})", "bound {{phase}}"
                ),
                query(
                    f"max by (phase) (autopilot_volume_ready_seconds{{{NODE}}})", "ready {{phase}}"
                ),
            ],
            "s",
        ),
    ]


def node() -> dashboard.Dashboard:
    which = variable(
        "node",
        "Node",
        f'{LAST_RUN}{{job="$job", cluster=~"$cluster", {NOT_CLUSTER}}}',
        several=False,
    )
    return page(
        "node",
        "GPU health: node",
        "One node: what is wrong with it, each check and each GPU, and their history.",
        [*_of_runs(), which],
        [
            "$node now",
            *_node_now(),
            "Checks",
            *_node_checks(),
            "GPUs",
            *_gpu_overview(),
            *_gpu_power(),
            *_gpu_errors(),
            *_gpu_links(),
            *_gpu_rates(),
            "Jobs",
            *_job_activity(),
            *_job_usage(),
            *_watching_cost(),
            "Host",
            *_host_panels(),
            "Network",
            *_network_services(),
            *_network_mesh(),
            "Storage",
            *_storage_panels(),
        ],
    )


# ---- the network ----


def matrix(
    title: str, description: str, expression: str, unit: str, scheme: model.FieldColorModeId
) -> Panel:
    """A table of node pairs for each network: rows are the measuring nodes, columns the peers."""
    panel = (
        table.Panel()
        .unit(unit)
        .color_scheme(dashboard.FieldColor().mode(scheme))
        .repeat("plane")
        .repeat_direction("h")
        .no_value("none")
        .min(0)
    )
    options = {
        "rowField": "node",
        "columnField": "peer",
        "valueField": "Value",
        "emptyValue": "null",
    }
    panel = panel.with_transformation(
        model.DataTransformerConfig("groupingToMatrix", options=options)
    ).cell_height(common_model.TableCellHeight.SM)
    panel = panel.override_by_field_type(
        "number",
        [
            model.DynamicConfigValue(
                "custom.cellOptions", {"type": "color-background", "mode": "basic"}
            )
        ],
    )
    made = (
        prometheus.Dataquery()
        .expr(expression)
        .datasource(SOURCE)
        .format(PromQueryFormat.TABLE)
        .instant()
    )
    return queried(panel, [made], f"{title} on $plane", description, 24, 12)


RATES = f'autopilot_pair_bandwidth_bytes_per_second{{{RUNS}, plane=~"$plane"}}'
LOST = f'autopilot_ping_loss_ratio{{{RUNS}, plane=~"$plane"}}'
DELAYS = f'autopilot_ping_round_trip_seconds{{{RUNS}, plane=~"$plane"}}'
RDMA_RATES = f'autopilot_rdma_bandwidth_bytes_per_second{{{RUNS}, plane=~"$plane"}}'
RDMA_DELAYS = f'autopilot_rdma_latency_seconds{{{RUNS}, plane=~"$plane"}}'
AT_PLANE = "{{node}} {{plane}} {{phase}}"
LOW_IS_BAD, HIGH_IS_BAD = (
    model.FieldColorModeId.CONTINUOUS_RD_YL_GR,
    model.FieldColorModeId.CONTINUOUS_GR_YL_RD,
)


def _network_now() -> List[Any]:
    """The panels of current outliers."""
    return [
        findings(
            "What is bad on the network", f'{RUNS}, check=~"ping_mesh|iperf3_pairs|rdma_pairs"'
        ),
        bars(
            "Slowest nodes",
            "The twenty lowest medians over a node's partners, each way.",
            f"bottomk(20, min by ({BY_NODE}, plane, direction) ({RATES}))",
            "{{node}} {{plane}} {{direction}} {{phase}}",
            "Bps",
            8,
        ),
        bars(
            "Most pings lost",
            "The twenty highest shares over all peers.",
            f"topk(20, max by ({BY_NODE}, plane) ({LOST}))",
            AT_PLANE,
            "percentunit",
            8,
        ),
        bars(
            "Longest round trips",
            "The twenty highest medians over all peers.",
            f"topk(20, max by ({BY_NODE}, plane) ({DELAYS}))",
            AT_PLANE,
            "s",
            8,
        ),
    ]


def _network_pairs() -> List[Any]:
    """The panels of all pairs of a small mesh."""
    return [
        matrix(
            "TCP bandwidth",
            "From the row's node to the column's.",
            f"min by (node, peer) (autopilot_mesh_bandwidth_bytes_per_second{{{PLANE}}})",
            "Bps",
            LOW_IS_BAD,
        ),
        matrix(
            "Pings lost",
            "From the row's node to the column's and back.",
            f"max by (node, peer) (autopilot_mesh_ping_loss_ratio{{{PLANE}}})",
            "percentunit",
            HIGH_IS_BAD,
        ).max(1),
        matrix(
            "Round trips",
            "The median from the row's node to the column's and back.",
            f"max by (node, peer) (autopilot_mesh_ping_round_trip_seconds{{{PLANE}}})",
            "s",
            HIGH_IS_BAD,
        ),
        matrix(
            "RDMA bandwidth",
            "From the row's node to the column's.",
            f"min by (node, peer) (autopilot_mesh_rdma_bandwidth_bytes_per_second{{{PLANE}}})",
            "Bps",
            LOW_IS_BAD,
        ),
        matrix(
            "RDMA latency",
            "Of a write from the row's node to the column's.",
            f"max by (node, peer) (autopilot_mesh_rdma_latency_seconds{{{PLANE}}})",
            "s",
            HIGH_IS_BAD,
        ),
    ]


def _rates_over_time(title: str, rates: str, span: int) -> Any:
    """The panel of a rate of the nodes in both directions."""
    by = "by (plane, direction)"
    return lines(
        title,
        "Of the nodes' medians the median and the lowest, each way.",
        [
            query(f"quantile {by} (0.5, {rates})", "{{plane}} {{direction}} median"),
            query(f"min {by} ({rates})", "{{plane}} {{direction}} lowest"),
        ],
        "Bps",
        span,
    )


def _delays_over_time(title: str, delays: str, span: int) -> Any:
    """The panel of a latency of the nodes."""
    return lines(
        title,
        "Of the nodes' medians the median and the highest.",
        [
            query(f"quantile by (plane) (0.5, {delays})", "{{plane}} median"),
            query(f"max by (plane) ({delays})", "{{plane}} highest"),
        ],
        "s",
        span,
    )


def _network_history() -> List[Any]:
    """The panels of rates, loss and latencies over time."""
    return [
        _rates_over_time("TCP bandwidth", RATES, 8),
        lines(
            "Pings lost",
            "Of the nodes' shares the mean and the highest.",
            [
                query(f"avg by (plane) ({LOST})", "{{plane}} mean"),
                query(f"max by (plane) ({LOST})", "{{plane}} highest"),
            ],
            "percentunit",
            8,
        ),
        _delays_over_time("Round trips", DELAYS, 8),
        _rates_over_time("RDMA bandwidth", RDMA_RATES, 12),
        _delays_over_time("RDMA latency", RDMA_DELAYS, 12),
    ]


def network() -> dashboard.Dashboard:
    # Pings, iperf3 and RDMA may use different networks.
    which = (
        '{__name__=~"autopilot_ping_loss_ratio|autopilot_pair_bandwidth_bytes_per_second'
        f'|autopilot_rdma_bandwidth_bytes_per_second", {RUNS}}}'
    )
    return page(
        "network",
        "GPU health: network",
        "What pairs of nodes carry and lose on each network, and which nodes and paths stand out.",
        [*_of_runs(), variable("plane", "Network", which)],
        [
            "Now",
            *_network_now(),
            "Pairs, in meshes of at most 64 hosts",
            *_network_pairs(),
            "History",
            *_network_history(),
        ],
    )


# ---- the agents of a cluster ----

# The labels of an agent's pod change with each restart, so only cluster and node remain.
AGENTS = f"max by ({ANY_PHASE}) (autopilot_agent_info{{{IN_CLUSTER}}})"
MARKED = f"max by ({ANY_PHASE}, mark) ({NODE_MARK}{{{IN_CLUSTER}}}) == 1"
AGENT_FIT = f'max by ({ANY_PHASE}) (autopilot_node_fit{{{IN_CLUSTER}, phase="{AGENT_PHASE}"}})'
#: Nodes by fitness; unknown is a node whose agent has no verdict.
FITNESS = {
    "fit": (f"{AGENT_FIT} == 1", "green"),
    "unfit": (f"{AGENT_FIT} == 0", "red"),
    "unknown": (f"{AGENTS} unless on ({ANY_PHASE}) {AGENT_FIT}", "purple"),
}
GONE = (
    f"max by ({ANY_PHASE}) (last_over_time(autopilot_agent_info{{{IN_CLUSTER}}}[1d])) "
    f"unless {AGENTS}"
)
MARK_COLOURS = {"PASS": "green", "WARN": "yellow", "TESTING": "blue", "EVICT": "red"}


def _agents_now() -> List[Any]:
    """The numbers of nodes by mark, by fitness and with an agent."""
    marks = [
        number(
            f"Marked {mark}",
            MARKS[mark].meaning,
            f'max by ({ANY_PHASE}) ({NODE_MARK}{{{IN_CLUSTER}, mark="{mark}"}}) == 1',
            colour,
            6,
        )
        for mark, colour in MARK_COLOURS.items()
    ]
    meanings = {
        "fit": "Nodes that the agent finds fit to run.",
        "unfit": "Nodes that the agent finds unfit, whatever their mark.",
        "unknown": "Nodes whose agent has no verdict: checks have not run yet or could not tell.",
    }
    fitness = [
        number(fit.capitalize(), meanings[fit], expression, colour, 4)
        for fit, (expression, colour) in FITNESS.items()
    ]
    agents = [
        number(
            "Agents expected",
            "Nodes with GPUs, by kube-state-metrics; no data without it.",
            WITH_GPUS,
            "#8e8e8e",
            4,
            absent="",
        ),
        number("Agents answering", "Nodes whose agent Prometheus can read.", AGENTS, "green", 4),
        number(
            "Agents missing",
            "Nodes with GPUs whose agent does not answer; no data without kube-state-metrics.",
            f"{WITH_GPUS} unless {AGENTS}",
            "red",
            4,
        ),
    ]
    return [*marks, *fitness, *agents]


def _agents_tables() -> List[Any]:
    """The tables of nodes with their agents, and of nodes without."""
    fitness = " or ".join(
        f"({expression}) * 0 + {place}" for place, (expression, _c) in enumerate(FITNESS.values())
    )
    nodes = rows(
        "Nodes",
        "Each node with an agent: its mark, its fitness, the version of the agent, and how many "
        "periodic checks have no fresh result.",
        [
            f"max by ({ANY_PHASE}, version) (autopilot_agent_info{{{IN_CLUSTER}}})",
            MARKED,
            fitness,
            f"max by ({ANY_PHASE}) (autopilot_agent_checks_missing{{{IN_CLUSTER}}})",
        ],
        {
            **named("cluster", "node", "mark"),
            "Value #C": "fitness",
            "version": "version",
            "Value #D": "checks missing",
            "Value #A": "",
            "Value #B": "",
        },
        "fitness",
        height=12,
        falling=True,
    )
    by_fitness = {str(place): (fit, row[1]) for place, (fit, row) in enumerate(FITNESS.items())}
    nodes = column(nodes, "fitness", mappings=mapped(by_fitness))
    by_mark = {mark: (mark, colour) for mark, colour in MARK_COLOURS.items()}
    away = rows(
        "Nodes without an answering agent",
        "1: a node with GPUs (by kube-state-metrics) that has no agent. 2: an agent that answered "
        "within the last day and does not now.",
        [f"({GONE}) * 0 + 2 or {WITH_GPUS} * 0 + 1 unless {AGENTS}"],
        {**named("cluster", "node"), "Value": "agent"},
        "node",
        12,
        9,
    )
    reasons = mapped({"1": ("never seen", "red"), "2": ("gone", "orange")})
    return [
        column(nodes, "mark", mappings=mapped(by_mark)),
        column(away, "agent", mappings=reasons),
        bars(
            "Versions",
            "Agents by version; more than one while a rollout runs.",
            f"count by (version) (max by ({ANY_PHASE}, version) "
            f"(autopilot_agent_info{{{IN_CLUSTER}}}))",
            "{{version}}",
            "short",
            12,
        ),
    ]


def _agents_history() -> List[Any]:
    """The nodes by mark and by fitness over time."""
    marks = lines(
        "Marks", "Nodes by mark.", [query(f"count by (mark) ({MARKED})", "{{mark}}")], stacked=True
    )
    fitness = lines(
        "Fitness",
        "Nodes by fitness, as their agents find it.",
        [query(f"count({expression})", fit) for fit, (expression, _colour) in FITNESS.items()],
        stacked=True,
    )
    return [
        coloured(marks, MARK_COLOURS),
        coloured(fitness, {fit: colour for fit, (_expression, colour) in FITNESS.items()}),
    ]


def agents() -> dashboard.Dashboard:
    return page(
        "agents",
        "GPU health: agents",
        "The agents of a cluster: marks and fitness of their nodes, versions, and the nodes "
        "without an agent.",
        [variable("cluster", "Cluster", "autopilot_agent_info")],
        ["Now", *_agents_now(), "Nodes", *_agents_tables(), "History", *_agents_history()],
    )


# ---- the queue ----

#: Resources that are GPUs or parts of them, by the names of their device plugins.
OF_GPUS = f'{IN_CLUSTER}, resource=~".+/(gpu|mig-.+)"'
BY_FLAVOR, BY_QUEUE = "cluster, flavor, resource", "cluster, queue, flavor, resource"


def flavor_figure(name: str, selected: str) -> str:
    """A figure of each flavor, whichever host audited it."""
    return f"max by ({BY_FLAVOR}) (autopilot_flavor_{name}{{{selected}}})"


def quota_figure(name: str, selected: str) -> str:
    """A figure of each ClusterQueue, whichever host audited it."""
    return f"max by ({BY_QUEUE}) (autopilot_quota_{name}{{{selected}}})"


def workloads(state: str) -> str:
    """The workloads of each ClusterQueue in a state."""
    return f'max by (cluster, queue) (autopilot_queue_workloads{{{IN_CLUSTER}, state="{state}"}})'


GPUS_LOST = f"{flavor_figure('capacity', OF_GPUS)} - {flavor_figure('schedulable', OF_GPUS)}"
FLAVOR_LEGEND = "{{cluster}} {{flavor}} {{resource}}"


def _queue_now() -> List[Any]:
    """The sums of GPUs, and the pending workloads."""

    def total(title: str, description: str, expression: str) -> Panel:
        summed = f"sum by (cluster, resource) ({expression})"
        return words(title, description, summed, "{{cluster}} {{resource}}", 4)

    return [
        total("GPUs", "GPUs of the nodes of all flavors.", flavor_figure("capacity", OF_GPUS)),
        total("Out of service", "GPUs that new pods cannot use.", GPUS_LOST),
        total(
            "Quota",
            "Quota of all ClusterQueues, with the lending limit of the slack queue.",
            flavor_figure("quota", OF_GPUS),
        ),
        total("Used", "Quota that admitted workloads use.", quota_figure("used", OF_GPUS)),
        total("Borrowed", "The part of it that is borrowed.", quota_figure("borrowed", OF_GPUS)),
        words(
            "Pending workloads",
            "Workloads of all ClusterQueues that wait for quota.",
            f"sum by (cluster) ({workloads('pending')})",
            "{{cluster}}",
            4,
        ),
    ]


def _queue_tables() -> List[Any]:
    """The tables of flavors, quotas and workloads."""
    every = IN_CLUSTER
    return [
        rows(
            "Flavors",
            "What the nodes of each flavor have, what new pods can use, and what the quotas add up "
            "to. A quota above schedulable admits jobs whose pods find no node.",
            [flavor_figure(name, every) for name in ("capacity", "schedulable", "quota")],
            {
                **named("cluster", "flavor", "resource"),
                "Value #A": "capacity",
                "Value #B": "schedulable",
                "Value #C": "quota",
            },
            "flavor",
            12,
            9,
        ),
        rows(
            "Workloads",
            "Workloads of each ClusterQueue.",
            [workloads("admitted"), workloads("pending")],
            {**named("cluster", "queue"), "Value #A": "admitted", "Value #B": "pending"},
            "pending",
            12,
            9,
            falling=True,
        ),
        rows(
            "Quotas",
            "The quota of each ClusterQueue.",
            [quota_figure(name, every) for name in ("nominal", "used", "borrowed")],
            {
                **named("cluster", "queue", "flavor", "resource"),
                "Value #A": "nominal",
                "Value #B": "used",
                "Value #C": "borrowed",
            },
            "queue",
        ),
    ]


def _queue_history() -> List[Any]:
    """Capacity, quota and workloads over time."""
    return [
        lines("Lost GPUs", "GPUs that new pods cannot use.", [query(GPUS_LOST, FLAVOR_LEGEND)]),
        lines(
            "Quota and schedulable GPUs",
            "By flavor.",
            [
                query(flavor_figure("quota", OF_GPUS), f"quota {FLAVOR_LEGEND}"),
                query(flavor_figure("schedulable", OF_GPUS), f"schedulable {FLAVOR_LEGEND}"),
            ],
        ),
        lines(
            "Used GPUs",
            "Quota that admitted workloads use, by ClusterQueue.",
            [query(quota_figure("used", OF_GPUS), "{{queue}} {{flavor}} {{resource}}")],
            stacked=True,
        ),
        lines(
            "Pending workloads over time",
            "By ClusterQueue.",
            [query(workloads("pending"), "{{queue}}")],
        ),
    ]


def queue() -> dashboard.Dashboard:
    return page(
        "queue",
        "GPU health: queue",
        "The quota of Kueue as the playbook quota audits it: what is lost to nodes out of service, "
        "who uses what, and what is pending.",
        [variable("cluster", "Cluster", "autopilot_flavor_capacity")],
        ["Now", *_queue_now(), "Queues", *_queue_tables(), "History", *_queue_history()],
    )


PAGES = {"agents": agents, "fleet": fleet, "node": node, "network": network, "queue": queue}


def files() -> Dict[str, str]:
    """The content of each dashboard file, by name."""
    head = '{\n  "_generated": "Generated by `make generated` (src/grafana); do not edit.",'
    return {
        f"{name}.json": json.dumps(
            make().build(), cls=JSONEncoder, indent=2, sort_keys=True
        ).replace("{", head, 1)
        + "\n"
        for name, make in PAGES.items()
    }


def main() -> int:
    check = "--check" in sys.argv[1:]
    different = [
        name
        for name, text in files().items()
        if not (DASHBOARDS / name).is_file()
        or (DASHBOARDS / name).read_text(encoding="utf-8") != text
    ]
    for name in different:
        if check:
            print(
                f"{DASHBOARDS / name} is not what src/grafana/dashboards.py makes; run make -C "
                "src/grafana",
                file=sys.stderr,
            )
        else:
            DASHBOARDS.mkdir(exist_ok=True)
            (DASHBOARDS / name).write_text(files()[name], encoding="utf-8")
    return int(check and bool(different))


if __name__ == "__main__":
    sys.exit(main())
