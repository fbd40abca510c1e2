# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Floors from fleets on paper: what is proposed, what is refused and why, and what the file says."""

from __future__ import annotations

import random
import statistics

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from run_world import MODEL, node

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import (
    calibration,
    verdict,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.calibration import (
    GatheredRates,
    propose,
    two_kinds,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import Measurement


def document(nodes, run_id="20261101T000000-preflight", **more):
    policy = Policy()
    run = identify_run(run_id, "preflight", 0.0, 1.0, False)
    return {**judge_run(run, nodes, policy).to_dict(), **more}


def fleet(shares, gpus=8, **more):
    """Nodes whose links carry these shares of what is usual."""
    return [
        node(f"gpu{number:02d}", gpus=gpus, share=share, **more)
        for number, share in enumerate(shares)
    ]


def proposed(*documents, newest=3):
    gathered = GatheredRates(newest)
    for one in documents:
        gathered.add(RunReport.from_dict(one))
    return propose(gathered), gathered


def with_values(values, check="pcie_bandwidth"):
    """A document of nodes with four GPUs each that pass, and measured these values (GB/s) in both
    directions.
    """
    nodes = []
    for number in range(0, len(values), 4):
        own = node(f"gpu{number // 4:02d}", gpus=min(4, len(values) - number))
        measured = [
            Measurement(
                "pcie_bandwidth",
                value * 1e9,
                "bytes/s",
                {"gpu": str(index), "direction": direction, "method": method},
            )
            for index, value in enumerate(values[number : number + 4])
            for direction in ("device_to_host", "host_to_device")
            for method in ("copy_engine", "kernel")
        ]
        results = [
            result if result.check != check else type(result)(check, "pass", "", [], measured)
            for result in own.results
        ]
        nodes.append(own._replace(results=results))
    return document(nodes)


def test_a_healthy_fleet():
    (one,), gathered = proposed(document(fleet([1.0] * 6)))
    assert (one.model, one.target.check, one.target.option, one.trouble) == (
        MODEL,
        "pcie_bandwidth",
        "minimum",
        "",
    )
    medians = [spread.p50 for spread in one.spreads]
    assert (
        0.89 * min(medians) < one.floor <= 0.9 * min(medians)
        and one.table == 46.0
        and not one.below_table
    )
    assert [
        (spread.labels, spread.values, spread.nodes, spread.outliers) for spread in one.spreads
    ] == [("PCIe 5.0 x16, device_to_host", 48, 6, []), ("PCIe 5.0 x16, host_to_device", 48, 6, [])]
    assert (
        one.runs == gathered.documents == ["20261101T000000-preflight"] and gathered.left_out == {}
    )


def test_percentiles_are_those_of_the_values():
    values = [random.Random(1).gauss(55, 0.3) for _each in range(40)]
    spread = proposed(with_values(values))[0][0].spreads[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert (spread.p1, spread.p5, spread.p50, spread.p99) == tuple(
        pytest.approx(cuts[place - 1], abs=1e-3) for place in (1, 5, 50, 99)
    )
    assert spread.lowest == pytest.approx(min(values), abs=1e-3)


TIGHT = [55 + 0.1 * (number % 5) for number in range(40)]

#: Values in GB/s -> words of the reason, or none and the floor.
SHAPES = {
    "healthy": (TIGHT, "", 49.6),
    "one value far below": ([35.0] + TIGHT[1:], "", 49.6),
    "two of forty far below": (
        [35.0, 36.0] + TIGHT[2:],
        "2 of 40 values lie far below the others (on gpu00)",
        None,
    ),
    "two of two hundred": ([35.0] + TIGHT * 2 + [36.0] + TIGHT * 2 + TIGHT[2:], "", 49.6),
    "two kinds": (
        [share + 0.1 * (number % 3) for share in (52.0, 56.0) for number in range(20)],
        "two kinds, around 52.1 and 56.1",
        None,
    ),
    "a few of another kind": ([27.5] * 5 + TIGHT[5:], "two kinds, around 27.5 and 55.2", None),
    "two kinds that hardly differ": ([55.0] * 20 + [56.0] * 20, "", 49.9),
    "scattered": ([40 + 0.7 * number for number in range(40)], "vary too much", None),
    "all the same": ([55.0] * 40, "", 49.5),
    "too few values": (
        TIGHT[:19],
        "19 values of 5 nodes are too few, expected at least 20 of 5",
        None,
    ),
    "too few nodes": (TIGHT[:16], "16 values of 4 nodes are too few", None),
    "just enough": (TIGHT[:20], "", 49.6),
}


@pytest.mark.parametrize("case", SHAPES)
def test_the_shape_of_the_values_decides(case):
    values, words, floor = SHAPES[case]
    (one,), _gathered = proposed(with_values(values))
    assert words in one.trouble and bool(words) == bool(one.trouble), one.trouble
    assert one.floor == floor


def test_a_floor_below_the_built_in_one_is_said_loudly_and_not_set():
    """A whole fleet that is slow, and passes since its operator had lowered the limit."""
    (one,), gathered = proposed(with_values([48 + 0.1 * (number % 5) for number in range(40)]))
    assert (one.floor, one.below_table) == (43.3, True)
    text = calibration.variables_of(MODEL, [one], gathered, "2026-11-22")
    assert (
        yaml.safe_load(text) == {"checks_options": {}} and "WARNING" in text and "NOT SET" in text
    )
    assert yaml.safe_load(
        text.replace("checks_options: {}", "checks_options:").replace(
            "  # pcie_bandwidth:\n  #   min", "  pcie_bandwidth:\n    min"
        )
    ) == {"checks_options": {"pcie_bandwidth": {"minimum": 43.3}}}
    assert (
        "WARNING, 43.3 GB/s is below the built-in floor of 46"
        in calibration.lines_of([one], gathered)[1]
    )


def test_only_healthy_results_count_and_what_was_left_out_is_said():
    nodes = fleet([1.0] * 6) + [node("slow", slow=3)]
    nodes.append(
        node("hot")._replace(
            results=[
                *node("hot").results[:2],
                verdict.CheckResult("gpu_power", "fail", "hot", []),
                node("hot").results[3],
            ]
        )
    )
    judged = document(nodes)
    assert [one["fit"] for one in judged["nodes"][-2:]] == ["unfit", "unfit"]
    (one,), gathered = proposed(judged)
    assert one.spreads[0].nodes == 6 and gathered.left_out == {"results of unfit nodes": 2}


def test_the_newest_of_each_node():
    documents = [document(fleet([1.0 - number / 100] * 6), f"run{number}") for number in range(5)]
    (one,), gathered = proposed(*documents, newest=2)
    assert one.runs == ["run0", "run1"] and one.spreads[0].values == 2 * 48
    assert gathered.left_out == {"results older than the newest 2 of a node": 18}


def test_documents_that_are_no_measurement():
    healthy = document(fleet([1.0] * 6))
    _found, gathered = proposed(
        healthy,
        healthy,
        {**healthy, "run_id": "b", "check_mode": True},
        {**healthy, "run_id": "c", "replay": {"of": "a"}},
    )
    assert gathered.documents == ["20261101T000000-preflight"]
    assert gathered.left_out == {
        "duplicate documents of a run": 1,
        "documents of check mode or replays": 2,
    }


def test_nodes_of_one_model_with_links_of_two_kinds():
    nodes = fleet([1.0] * 12)
    for one in nodes[:6]:
        for gpu in one.readings["pcie_bandwidth"]["readings"]["gpus"]:
            gpu["link"] = {**gpu["link"], "max_width": 8}
    (one,), _gathered = proposed(document(nodes))
    assert one.floor is None and one.trouble.startswith(
        "nodes with this model are of several kinds (PCIe 5.0 x16, PCIe 5.0 x8)"
    )


def test_models_have_files_of_their_own():
    others = fleet([1.0] * 6)
    for number, one in enumerate(others):
        for gpu in one.facts["gpus"]:
            gpu["name"] = "NVIDIA L40S\n- name: evil"
        others[number] = one._replace(name=f"l40s{number}")
    found, gathered = proposed(document(fleet([1.0] * 6) + others))
    assert [one.model for one in found] == [MODEL, "NVIDIA L40S\n- name: evil"]
    assert calibration.file_name(found[0].model) == "nvidia_h100_80gb_hbm3.yml"
    assert set(
        yaml.safe_load(calibration.variables_of(found[1].model, found[1:], gathered, "2026-11-22"))
    ) == {"checks_options"}


def test_the_file_says_what_a_floor_is_made_of():
    (one,), gathered = proposed(with_values([35.0] + TIGHT[1:]))
    text = calibration.variables_of(MODEL, [one], gathered, "2026-11-22")
    assert yaml.safe_load(text) == {"checks_options": {"pcie_bandwidth": {"minimum": 49.6}}}
    for words in (
        "2026-11-22",
        MODEL,
        "20261101T000000-preflight",
        "40 values of 10 nodes",
        "median 55.2",
        "p1 ",
        "gpu00 GPU 0 (35)",
        "is 49.6 GB/s",
        "replaces the built-in floor of 46 GB/s",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    "check, measurement, labels, value, gpu, floor, table, kind",
    [
        (
            "gpu_link",
            "gpu_link_bandwidth",
            {"kind": "nvlink"},
            380e9,
            {"links": [{"active": True}] * 18 + [{"active": False}]},
            342.0,
            335.0,
            "18 NVLinks",
        ),
        ("gpu_memory", "gpu_memory_bandwidth", {}, 2900e9, {}, 2610.0, 1905.0, "memory"),
    ],
)
def test_other_checks_have_their_floors(check, measurement, labels, value, gpu, floor, table, kind):
    nodes = []
    for number in range(6):
        own = node(f"gpu{number:02d}", gpus=4)
        measured = [
            Measurement(measurement, value, "bytes/s", {"gpu": str(index), **labels})
            for index in range(4)
        ]
        measured += [Measurement(measurement, 1e9, "FLOP/s", {"gpu": "0"})]
        measured += (
            [Measurement(measurement, 1e9, "bytes/s", {"gpu": "0", "kind": "pcie"})]
            if labels
            else []
        )
        readings = {"readings": {"gpus": [{"index": index, **gpu} for index in range(4)]}}
        nodes.append(
            own._replace(
                results=[verdict.CheckResult(check, "pass", "", [], measured)],
                readings={check: readings},
            )
        )
    (one,), _gathered = proposed(document(nodes))
    assert (
        (one.target.check, one.floor, one.table, one.trouble) == (check, floor, table, "")
        and one.spreads[0].labels == kind
        and one.spreads[0].values == 24
    )


def test_every_target_is_an_option_of_its_check():
    assert [
        target
        for target in calibration.TARGETS
        if target.option not in registry.load(target.check).options
    ] == []


@given(st.lists(st.floats(1, 100), min_size=2, max_size=40))
def test_two_kinds_are_what_the_best_cut_leaves(values):
    ranked = sorted(values)
    found = two_kinds(ranked)
    if found:
        low, high = found
        assert ranked[0] - 1e-9 <= low < high <= ranked[-1] + 1e-9 and high - low >= 0.05 * high


@given(st.integers(1, 10**6))
def test_one_kind_that_scatters_as_measurements_do_is_not_taken_for_two(seed):
    dice = random.Random(seed)
    assert two_kinds(sorted(dice.gauss(55, 2) for _each in range(80))) is None


@given(
    st.dictionaries(
        st.sampled_from(["nodes", "run_id", "check_mode", "replay"]),
        st.none()
        | st.integers()
        | st.lists(
            st.none()
            | st.dictionaries(
                st.sampled_from(["name", "fit", "health", "facts", "readings"]),
                st.none() | st.lists(st.integers()) | st.text(max_size=3),
            )
        ),
    )
)
def test_any_document_is_read(garbled):
    gathered = GatheredRates(3)
    gathered.add(RunReport.from_dict(garbled))
    assert propose(gathered) == []
