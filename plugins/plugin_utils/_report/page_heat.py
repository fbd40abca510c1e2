# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The matrices of a mesh as heat maps. The cells are pairs of hosts, or pairs of groups on large
fleets, or the worst figures of each host. Pure.
"""

from __future__ import annotations

import statistics
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.network import (
    LATENCY_FACTOR,
    LATENCY_LEAST_MS,
    LEAST_LOST,
    MAXIMUM_LOSS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    Matrix,
    MeshExpectation,
    MeshReport,
    Plan,
    PlaneMember,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    BY_CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    number,
    whole_number,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import (
    bare,
    name_of,
    plural,
    quantity,
    source_words,
    unit_of,
)

#: Rows of a heat map, and rows up to which its cells have room for a figure.
MOST_HOSTS = 64
_MOST_WIDE = 16
#: Worst pairs listed below a heat map.
_MOST_NAMED = 8
#: Rows of a heat map with the worst figures of hosts.
_MOST_WORST = 40

#: CSS classes of cells, best first. Cells of the last two miss what is expected.
GOOD, FAIR, POOR, BAD, WORST, NONE = "k0", "k1", "k2", "k3", "k4", "kn"
_RANKS = {GOOD: 0, FAIR: 1, POOR: 2, NONE: 3, BAD: 4, WORST: 5}
_MARKS = {BAD: "!", WORST: "\u2715", NONE: "?"}

_TITLES = {
    "bandwidth": "bandwidth",
    "loss": "loss",
    "round_trip_p50": "round trip (median)",
    "latency": "latency",
}


class Cell(t.NamedTuple):
    kind: str
    text: str
    title: str


class Legend(t.NamedTuple):
    kind: str
    mark: str
    words: str
    pairs: int


class Heat(t.NamedTuple):
    """One matrix. ``rows``: names with their cells, None where no measurement was planned.
    ``worst``: the worst pairs as sentences.
    """

    plane: str
    title: str
    unit: str
    #: Meaning of rows and columns: ``host``, ``group``, or ``worst`` (a row is a host with its
    #: worst figures).
    shape: str
    #: How figures are aggregated, as a sentence; "" if they are not.
    reduced: str
    summary: str
    expected: list[str]
    legend: list[Legend]
    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    worst: list[str]
    dense: bool
    is_bad: bool


class _Pair(t.NamedTuple):
    source: int
    target: int
    value: float | None
    kind: str


def heats_of(mesh: MeshReport) -> list[Heat]:
    """The heat maps of a mesh, in the order of its matrices; an unknown matrix is left out."""
    hosts = [name_of(host) for host in mesh.hosts]
    found = []
    for matrix in mesh.matrices:
        if matrix.get("measure") not in _TITLES:
            continue
        cells = _missed(mesh, matrix, hosts)
        cells.update({(source, target): value for source, target, value in mesh.cells_of(matrix)})
        if cells:
            pairs = [(source, target, value) for (source, target), value in cells.items()]
            found.append(_heat(matrix, pairs, hosts, mesh.first_plan, mesh.expected))
    return found


def _program(check: t.Any) -> str:
    """The name of what a check runs; the check itself if this version does not know it."""
    probe = BY_CHECK.get(name_of(check))
    return str(probe.title) if probe else name_of(check)


def _missed(
    mesh: MeshReport, matrix: Matrix, hosts: list[str]
) -> dict[tuple[int, int], float | None]:
    """Planned pairs of a matrix without a measurement; a pair has one for each direction."""
    places = {host: place for place, host in enumerate(hosts)}
    found: dict[tuple[int, int], float | None] = {}
    for one in mesh.missed:
        source, target = (places.get(name_of(one.get(end))) for end in ("host", "partner"))
        if (
            one.get("check") == matrix.get("check")
            and one.get("plane") == matrix.get("plane")
            and source is not None
            and target is not None
        ):
            found[source, target] = None
    return found


def _heat(
    matrix: Matrix,
    cells: list[tuple[int, int, float | None]],
    hosts: list[str],
    plan: Plan,
    expected: list[MeshExpectation],
) -> Heat:
    measure, plane, unit = (
        name_of(matrix["measure"]),
        name_of(matrix.get("plane")),
        name_of(matrix.get("unit")),
    )
    values = sorted(value for _source, _target, value in cells if value is not None)
    if measure == "bandwidth":
        judge, steps, words = _bandwidth(plane, plan, expected, values)
    elif measure == "loss":
        judge, steps, words = _loss(plan)
    elif measure == "latency":
        judge, steps, words = _latency(plan, name_of(matrix.get("check")), values)
    else:
        judge, steps, words = _round_trip(plan, values)
    pairs = [
        _Pair(source, target, value, NONE if value is None else judge(source, target, value))
        for source, target, value in cells
    ]
    low = measure == "bandwidth"
    order = _order(low)
    bad = [pair for pair in pairs if pair.kind in (BAD, WORST)]
    kinds = [pair.kind for pair in pairs]
    legend = [
        Legend(kind, _MARKS.get(kind, ""), steps[kind], kinds.count(kind))
        for kind in (GOOD, FAIR, POOR, BAD, WORST, NONE)
        if kind in steps
    ]
    largest = values[-1] if values else 0.0
    shape, reduced, columns, rows = _shaped(pairs, hosts, plan, low, unit, largest)
    size = max(len(columns), len(rows))
    return Heat(
        plane,
        f"{_program(matrix.get('check'))} {_TITLES[measure]}",
        unit_of(unit, largest),
        shape,
        reduced,
        _summary(values, kinds, unit, BAD in steps),
        words,
        legend,
        columns,
        rows,
        [
            f"{hosts[pair.source]} to {hosts[pair.target]}: {quantity(pair.value, unit)}"
            for pair in sorted(bad, key=order)[:_MOST_NAMED]
        ],
        size > _MOST_WIDE and shape != "worst",
        bool(bad) or NONE in kinds,
    )


def _summary(
    values: t.Sequence[float], kinds: t.Sequence[str], unit: str, has_expectation: bool
) -> str:
    """The number of measured pairs, their range, and the number of bad pairs; ``values`` are
    sorted.
    """
    message = f"{plural(len(values), 'direction')} measured"
    if values:
        first, last = quantity(values[0], unit), quantity(values[-1], unit)
        message += (
            f", all {first}"
            if first == last
            else f", {first} to {last}, median {quantity(statistics.median(values), unit)}"
        )
    bad, missing = sum(kind in (BAD, WORST) for kind in kinds), kinds.count(NONE)
    if bad:
        message += f"; {bad} worse than expected"
    elif values and has_expectation:
        message += "; none worse than expected"
    return message + (f"; {missing} without a figure" if missing else "")


def _order(low: bool) -> t.Callable[[_Pair], t.Any]:
    """Sort key that puts the worst pair first."""
    return lambda pair: (
        -_RANKS[pair.kind],
        0.0 if pair.value is None else pair.value if low else -pair.value,
    )


# ---- what a figure is held against ----

_Judge = t.Callable[[int, int, float], str]


def _bandwidth(
    plane: str, plan: Plan, expected: list[MeshExpectation], values: list[float]
) -> tuple[_Judge, dict[str, str], list[str]]:
    """Compare with the expectation of the pair's class, the link speed of its slower end."""
    own = {one.get("link_speed"): one for one in expected if one.get("plane") == plane}
    members: list[PlaneMember | None] = next(
        (one["members"] for one in plan.get("planes", []) if one["name"] == plane), []
    )
    speeds = [member.get("speed") if member else None for member in members]
    median = statistics.median(values) if values else 0.0

    def judge(source: int, target: int, value: float) -> str:
        ends = [speeds[place] if place < len(speeds) else None for place in (source, target)]
        speed = None if None in ends else min(end for end in ends if end is not None)
        among: MeshExpectation = own.get(speed, {})
        floor, usual = among.get("floor"), among.get("usual") or median
        if floor is not None and value < floor:
            return WORST if value < floor / 2 else BAD
        share = value / usual if usual else 1.0
        return GOOD if share >= 0.95 else FAIR if share >= 0.9 else POOR

    steps = {GOOD: "at least 95 % of the usual figure", FAIR: "90 to 95 %", POOR: "less"}
    words = []
    for one in own.values():
        floor, link_speed = one.get("floor"), one.get("link_speed")
        if floor is not None:
            speed = (
                f" on links of {quantity(link_speed, 'bits/s')}" if link_speed is not None else ""
            )
            words.append(
                f"at least {quantity(floor, 'bits/s')}{speed} "
                f"({source_words(one.get('source'), one.get('detail'))})"
            )
    if words:
        steps.update(
            {
                POOR: "less, but not below the expected figure",
                BAD: "less than expected",
                WORST: "less than half of the expected figure",
            }
        )
    else:
        words.append("unknown for these links; the colours compare each pair with the median")
    return judge, dict(steps, **{NONE: "no figure"}), words


def _loss(plan: Plan) -> tuple[_Judge, dict[str, str], list[str]]:
    options = plan.get("options", {}).get("ping_mesh", {})
    given = number(options.get("maximum_loss"))
    most = MAXIMUM_LOSS if given is None else given
    sent = whole_number(options.get("count")) or 20

    def judge(_source: int, _target: int, value: float) -> str:
        if value * 100 > most and round(value * sent) >= LEAST_LOST:
            return WORST if value >= 0.5 else BAD
        return GOOD if value <= 0 else POOR

    steps = {
        GOOD: "none lost",
        POOR: "some, within the limit",
        BAD: "above the limit",
        WORST: "half or more",
        NONE: "no figure",
    }
    return (
        judge,
        steps,
        [f"at most {most:g}% lost; a single lost ping is always tolerated (option maximum_loss)"],
    )


def _round_trip(plan: Plan, values: list[float]) -> tuple[_Judge, dict[str, str], list[str]]:
    median = statistics.median(values) if values else 0.0
    given = number(plan.get("options", {}).get("ping_mesh", {}).get("maximum_latency"))
    most = (given or max(LATENCY_FACTOR * median * 1000, LATENCY_LEAST_MS)) / 1000

    def judge(_source: int, _target: int, value: float) -> str:
        if value > most:
            return WORST if value > 2 * most else BAD
        return GOOD if value <= 2 * median else FAIR if value <= 5 * median else POOR

    steps = {
        GOOD: "up to twice the median",
        FAIR: "up to five times",
        POOR: "more, but accepted",
        BAD: "longer than accepted",
        WORST: "more than twice that",
        NONE: "no ping came back",
    }
    who = (
        "option maximum_latency"
        if given
        else f"{LATENCY_FACTOR:g} times the median, and {LATENCY_LEAST_MS:g} ms at least"
    )
    return judge, steps, [f"at most {quantity(most, 'seconds')} ({who})"]


def _latency(
    plan: Plan, check: str, values: list[float]
) -> tuple[_Judge, dict[str, str], list[str]]:
    """Compared with the option maximum_latency (microseconds); without it the colours compare each
    pair with the median.
    """
    median = statistics.median(values) if values else 0.0
    most = (number(plan.get("options", {}).get(check, {}).get("maximum_latency")) or 0.0) / 1e6

    def judge(_source: int, _target: int, value: float) -> str:
        if most and value > most:
            return WORST if value > 2 * most else BAD
        return GOOD if value <= 1.5 * median else FAIR if value <= 2 * median else POOR

    steps = {GOOD: "up to 1.5 times the median", FAIR: "up to twice", POOR: "more"}
    if not most:
        return judge, {**steps, NONE: "no figure"}, ["no maximum is set (option maximum_latency)"]
    steps.update({BAD: "longer than accepted", WORST: "more than twice that", NONE: "no figure"})
    return judge, steps, [f"at most {quantity(most, 'seconds')} (option maximum_latency)"]


# ---- what there is room for ----

_Rows = t.List[t.Tuple[str, t.List[t.Optional[Cell]]]]


def _shaped(
    pairs: list[_Pair], hosts: list[str], plan: Plan, low: bool, unit: str, largest: float
) -> tuple[str, str, list[str], _Rows]:
    if len(hosts) <= MOST_HOSTS:
        by_ends = {
            (pair.source, pair.target): _cell(
                f"{hosts[pair.source]} \u2192 {hosts[pair.target]}", pair, unit, largest
            )
            for pair in pairs
        }
        return (
            "host",
            "",
            hosts,
            [
                (host, [by_ends.get((row, column)) for column in range(len(hosts))])
                for row, host in enumerate(hosts)
            ],
        )
    groups = [name_of(group) for group in plan.get("groups", [])]
    names = list(dict.fromkeys(groups))
    if len(groups) == len(hosts) and 1 < len(names) <= MOST_HOSTS and all(names):
        by = name_of(plan.get("group_by")) or "group"
        message = (
            f"{len(hosts):,} hosts are too many for a map, so this is by {by}: each cell "
            "is the worst pair between two of them, and its title says which"
        )
        return "group", message, names, _grouped(pairs, hosts, (groups, names), low, unit, largest)
    message = (
        f"{len(hosts):,} hosts are too many for a map, and they are in no groups, so this "
        "is the worst figure of each host"
    )
    rows = _worst_by_host(pairs, hosts, low, unit, largest)
    more = len({place for pair in pairs for place in (pair.source, pair.target)}) - len(rows)
    return (
        "worst",
        message
        + (f", of the {len(rows)} worst; {more:,} more are in run.json" if more > 0 else ""),
        ["as sender", "as receiver"],
        rows,
    )


def _cell(title: str, pair: _Pair, unit: str, largest: float, more: str = "") -> Cell:
    text = "?" if pair.value is None else bare(pair.value, unit, largest)
    return Cell(pair.kind, text, f"{title}: {quantity(pair.value, unit)}{more}")


def _grouped(
    pairs: list[_Pair],
    hosts: list[str],
    groups: tuple[list[str], list[str]],
    low: bool,
    unit: str,
    largest: float,
) -> _Rows:
    of_host, names = groups
    places = {name: place for place, name in enumerate(names)}
    several: dict[tuple[int, int], list[_Pair]] = {}
    for pair in pairs:
        several.setdefault((places[of_host[pair.source]], places[of_host[pair.target]]), []).append(
            pair
        )
    order = _order(low)
    cells: dict[tuple[int, int], Cell] = {}
    for (source, target), those in several.items():
        worst = min(those, key=order)
        missing = sum(pair.value is None for pair in those)
        more = (
            f" ({hosts[worst.source]} \u2192 {hosts[worst.target]}), {plural(len(those), 'pair')}"
            + (f", {missing} without a figure" if missing else "")
        )
        cells[source, target] = _cell(
            f"{names[source]} \u2192 {names[target]}", worst, unit, largest, more
        )
    return [
        (name, [cells.get((row, column)) for column in range(len(names))])
        for row, name in enumerate(names)
    ]


def _worst_by_host(
    pairs: list[_Pair], hosts: list[str], low: bool, unit: str, largest: float
) -> _Rows:
    order = _order(low)
    worst: dict[tuple[int, int], _Pair] = {}
    for pair in pairs:
        for end, place in enumerate((pair.source, pair.target)):
            worst[place, end] = min(worst.get((place, end), pair), pair, key=order)
    ranked = sorted(
        {place for place, _end in worst},
        key=lambda place: min(order(worst[place, end]) for end in (0, 1) if (place, end) in worst),
    )
    rows: _Rows = []
    for place in ranked[:_MOST_WORST]:
        own = [worst.get((place, end)) for end in (0, 1)]
        rows.append(
            (
                hosts[place],
                [
                    _cell(f"{hosts[one.source]} \u2192 {hosts[one.target]}", one, unit, largest)
                    if one
                    else None
                    for one in own
                ],
            )
        )
    return rows
