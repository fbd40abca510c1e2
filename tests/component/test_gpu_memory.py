# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_memory through the real CUDA path on nodes of stand-in hardware, whose kernels compute what
ours do, on a virtual clock.
"""

from __future__ import annotations

import pytest
from node import processes_of

CHECK = "gpu_memory"


def on(gpu, call, **outcome):
    return dict(gpu=gpu, call=call, **outcome)


def said(outcome):
    return [
        (one.code, one.status, one.action, one.subject.index) for one in outcome.result.findings
    ]


def rates(outcome):
    return {
        (one.labels["gpu"], one.labels.get("kind", "triad")): one.value
        for one in outcome.result.measurements
    }


def test_every_configured_rate_is_reported(node, measure):
    outcome = measure(
        node(
            {
                "gpus": 2,
                "cuda": {
                    0: {"triad": 2.95e12, "fp64": 33.1e12, "tensor": 611e12},
                    1: {"triad": 3.01e12, "fp64": 33.4e12},
                },
            }
        ),
        CHECK,
    )
    assert (outcome.result.status, said(outcome)) == ("pass", [])
    assert rates(outcome) == {
        ("0", "triad"): pytest.approx(2.95e12, rel=0.005),
        ("0", "fp64"): pytest.approx(33.1e12, rel=0.005),
        ("0", "tensor"): pytest.approx(611e12, rel=0.005),
        ("1", "triad"): pytest.approx(3.01e12, rel=0.005),
        ("1", "fp64"): pytest.approx(33.4e12, rel=0.005),
        ("1", "tensor"): pytest.approx(500e12, rel=0.005),
    }
    gpu = outcome.readings["gpus"][0]
    assert {
        name: (one["wrong"], one["first_wrong"]) for name, one in gpu["verified"].items()
    } == dict.fromkeys(("triad", "fp64", "tensor"), (0, None))
    assert (
        gpu["verified"]["triad"]["size"] == 8 << 18
        and gpu["capability"] == 9
        and gpu["phase"] == ""
    )


def test_each_gpu_has_a_trouble_of_its_own_and_costs_no_other_its_figures(node, measure):
    outcome = measure(
        node(
            {
                "gpus": 8,
                "cuda": {
                    0: {"triad": 1.5e12},
                    1: {"wrong": "triad"},
                    2: {"wrong": "fp64"},
                    3: {"wrong": "tensor"},
                    4: {"fp64": 20e12},
                    5: {"crash": "cuLaunchKernel"},
                },
                "rules": [
                    on(6, "cuMemAlloc_v2", returns=2),
                    on(7, "cuEventSynchronize", returns=214),
                ],
            }
        ),
        CHECK,
    )
    assert sorted(said(outcome), key=lambda one: one[3]) == [
        ("low_memory_bandwidth", "fail", "drain_node", 0),
        ("compute_wrong", "fail", "drain_node", 1),
        ("compute_wrong", "fail", "drain_node", 2),
        ("compute_wrong", "fail", "drain_node", 3),
        ("low_compute_rate", "warn", "watch", 4),
        ("crashed", "unknown", "watch", 5),
        ("out_of_memory", "unknown", "watch", 6),
        ("ecc_uncorrectable", "fail", "reset_gpu", 7),
    ]
    assert {gpu for gpu, _kind in rates(outcome)} == {"0", "1", "2", "3", "4"}
    messages = {one.subject.index: one.message for one in outcome.result.findings}
    assert (
        "wrong results (tensor core products, first wrong byte" in messages[3]
        and "wrong results (memory bandwidth" in messages[1]
    )
    assert messages[5] == "the measurement was ended by signal 11 in cuLaunchKernel"


#: Scenario -> status of the check, (code, status, action, GPU) of every finding, GPUs measured.
SCENARIOS = {
    "gpu_busy": ("skip", [("gpu_in_use", "skip", "none", 2)], 7),
    "no_gpu": ("skip", [], 0),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios(node, measure, scenario):
    status, findings, measured = SCENARIOS[scenario]
    outcome = measure(node(scenario), CHECK)
    assert (outcome.result.status, said(outcome)) == (status, findings)
    assert len({gpu for gpu, _kind in rates(outcome)}) == measured


#: Model of a healthy node that is not simply well -> status of the check, (code, status, action,
#: GPU) of every finding.
MODELS = {
    "P100": ("skip", [("kernels_not_for_gpu", "skip", "none", 0)]),
    "X9000": ("unknown", [("no_expectation", "unknown", "fix_configuration", 0)]),
}


@pytest.mark.parametrize("model", MODELS)
def test_models_that_are_not_measured_or_not_known(model, node, measure):
    outcome = measure(node({"model": model, "gpus": 1}), CHECK)
    assert (outcome.result.status, said(outcome)) == MODELS[model]


def test_a_gpu_that_hangs_is_named_and_the_others_are_measured(node, measure):
    hanging = node({"gpus": 3, "rules": [on(1, "cuModuleLoadData", hang="ignore_term")]})
    outcome = measure(hanging, CHECK, timeout=18)
    assert (
        said(outcome) == [("hung", "unknown", "watch", 1)]
        and "cuModuleLoadData did not return" in outcome.result.findings[0].message
    )
    assert {gpu for gpu, _kind in rates(outcome)} == {"0", "2"}
    assert not processes_of(hanging)


def test_the_fabric_is_said_once(node, measure):
    outcome = measure(node({"gpus": 2, "rules": [on("*", "cuInit", returns=802)]}), CHECK)
    assert said(outcome) == [("fabric_not_ready", "fail", "fix_configuration", None)]
