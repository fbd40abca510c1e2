# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every shape of DCGM's document, every severity and exit status: what is read from it, and what
the check makes of it.
"""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings, strategies as st

import dcgm_documents as documents  # tests/sandbox, on the path by conftest.py
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    runbook,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import (
    dcgm_report,
    dcgm_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    Probe,
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import dcgm_diag
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge import (
    dcgm as knowledge,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES

GATE = {"locked_by": None, "looks": [{"gpus": [], "mps": [], "jobs": None}]}
CONFIG = {
    "test": "software",
    "gpu": 1,
    "title": "Persistence Mode",
    "text": "Persistence mode for GPU 1 is disabled.",
    "id": 29,
    "category": 3,
    "severity": 5,
}


def gpus(count=2):
    return [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "pci": f"00000000:{index + 1:02X}:00.0",
            "name": "NVIDIA H100 80GB HBM3",
            "serial": str(1650000000000 + index),
            "mig": [0, 0],
            "generation": 5,
            "width": 16,
        }
        for index in range(count)
    ]


def run(text, returncode=0, **more):
    one = {
        "argv": ["dcgmi"],
        "returncode": returncode,
        "timed_out": False,
        "seconds": 3.0,
        "left": [],
        "text": text,
        "stderr": "",
    }
    return dict(one, report=dcgm_report.normalise(text), **more)


def readings(*runs, count=2):
    return {
        "gpus": gpus(count),
        "dcgmi": "/usr/bin/dcgmi",
        "version": [4, 6, 0],
        "before": GATE,
        "after": GATE,
        "runs": list(runs),
    }


def printed(shape="4", tests=("memory", "pcie"), count=2, **more):
    return documents.styled(documents.document(shape, tests, range(count), **more))


def judged(readings, options):
    """The verdict on readings as a node sent them."""
    return dcgm_diag.CHECK.judge(decode(dcgm_diag.CHECK.readings, readings), options)


def judge(*runs, level=2, count=2, **options):
    return judged(readings(*runs, count=count), dict({"level": level}, **options))


def found(result):
    return [(one.code, one.status, one.subject.index, one.action) for one in result.findings]


# --- shapes ---


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_every_shape_gives_one_result_for_each_test_and_gpu(shape):
    report = dcgm_report.normalise(printed(shape))
    assert (report["problem"], report["errors"]) == (None, [])
    rows = [
        (row["test"], row["gpu"], row["status"])
        for row in report["results"]
        if row["test"] != "software"
    ]
    assert sorted(rows) == [
        ("memory", 0, "pass"),
        ("memory", 1, "pass"),
        ("pcie", 0, "pass"),
        ("pcie", 1, "pass"),
    ]
    software = [row for row in report["results"] if row["test"] == "software"]
    assert [row["gpu"] for row in software] == ([0, 1] if shape == "4" else [None] * 9)
    assert all(
        "Allocated" in row["info"][0] for row in report["results"] if row["test"] == "memory"
    )
    assert (
        report["version"]
        == {"2": None, "3.0": None, "3.1": "3.1.8", "3.2": "3.2.6", "3.3": "3.3.9", "4": "4.6.0"}[
            shape
        ]
    )
    assert report["gpus"] == (None if shape in ("2", "3.0") else [0, 1])
    assert report["serials"] == (
        {"0": "1650000000000", "1": "1650000000001"} if shape in ("3.3", "4") else {}
    )
    result = judge(run(printed(shape)))
    assert (result.status, result.findings, result.summary) == (
        "pass",
        [],
        "DCGM 4.6.0 level 2 clean",
    )


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_a_configuration_is_a_warning_in_every_shape(shape):
    result = judge(run(printed(shape, faults=[CONFIG]), 226))
    named = {"4": 1, "3.3": 1}.get(
        shape
    )  # older ones do not say which GPU a deployment test is about
    assert found(result) == [("dcgm_config", "warn", named, "fix_configuration")]


@pytest.mark.parametrize(
    "shape, expected",
    [
        ("2", ("dcgm_failure", "fail", 1, "drain_node")),
        ("3.0", ("dcgm_failure", "fail", 1, "drain_node")),
        ("3.1", ("dcgm_failure", "fail", 1, "drain_node")),
        ("3.2", ("dcgm_isolate", "fail", 1, "drain_node")),
        ("3.3", ("dcgm_isolate", "fail", 1, "drain_node")),
        ("4", ("dcgm_isolate", "fail", 1, "drain_node")),
    ],
)
def test_a_failure_is_rated_by_document_then_table_then_not_at_all(shape, expected):
    fault = {
        "test": "memory",
        "gpu": 1,
        "id": 52,
        "category": 10,
        "severity": 2,
        "text": "Memory error.",
    }
    result = judge(run(printed(shape, faults=[fault]), 205))
    assert found(result) == [expected]
    assert "Memory error." in result.summary


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_a_gpu_without_a_result_is_not_a_pass(shape):
    result = judge(run(printed(shape, missing=[1])))
    assert found(result) == [("gpu_without_result", "unknown", 1, "watch")]


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_a_gpu_without_a_result_of_one_of_the_tests_is_not_a_pass(shape):
    one = run(printed(shape))
    one["report"]["results"] = [
        row for row in one["report"]["results"] if (row["test"], row["gpu"]) != ("pcie", 1)
    ]
    result = judge(one)
    assert found(result) == [("gpu_without_result", "unknown", 1, "watch")]
    assert "pcie" in result.summary


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_a_runtime_error_is_unknown_with_its_words(shape):
    result = judge(run(printed(shape, error="Unable to complete: (-33) mixed."), 233))
    assert found(result) == [("dcgm_could_not_run", "unknown", None, "watch")]
    assert (
        "Unable to complete: (-33) mixed." in result.summary
        and knowledge.EXIT_CODES[233] in result.summary
    )


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_iterations_are_read_as_one(shape):
    fault = {"test": "pcie", "gpu": 0, "id": 79, "severity": 2}
    assert judge(run(printed(shape, iterations=2))).status == "pass"
    assert judge(run(printed(shape, iterations=2, faults=[fault]), 205)).status == "fail"


def test_noise_before_the_document_is_passed_over():
    noise = 'Warning: {not: JSON} [1, 2\n{"level": "info"}\n'
    assert judge(run(noise + printed())).status == "pass"


@pytest.mark.parametrize(
    "text, code",
    [
        ("", "no_result"),
        ("Error: unable to establish a connection to the specified host: localhost\n", "no_result"),
        ("{}", "no_result"),
        ("null", "no_result"),
        ('{"other": {"test_categories": []}}', "no_result"),
        ('{"DCGM Diagnostic": null}', "no_result"),
        ('{"DCGM Diagnostic": {"test_categories": null}}', "no_result"),
        (
            '{"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": null}]}}',
            "no_result",
        ),
        (
            '{"DCGM GPU Diagnostic": {"test_categories": [null, {"tests": [null, {"name": '
            'null}, {"name": "PCIe", "results": null}]}]}}',
            "no_result",
        ),
        ('{"DCGM Diagnostic": {"test_categories": [', "result_incomplete"),
        ('{"a": [' * 3000, "result_incomplete"),
        ('{"DCGM Diagnostic": ' + "[" * 100000, "result_incomplete"),
    ],
)
def test_what_is_no_result_is_unknown(text, code):
    assert [(one.code, one.status) for one in judge(run(text)).findings] == [(code, "unknown")]


def test_holes_leave_the_other_gpus_their_results():
    built = documents.document("2", ["memory", "pcie"], range(3), missing=[1])
    assert built["DCGM GPU Diagnostic"]["test_categories"][1]["tests"][0]["results"][1] is None
    assert found(judge(run(documents.styled(built)), count=3)) == [
        ("gpu_without_result", "unknown", 1, "watch")
    ]


def test_a_skip_does_not_explain_an_exit_status():
    assert judge(run(printed(skipped=["pcie"]), 226)).status == "unknown"


def test_an_error_of_no_gpu_in_particular_is_found():
    fault = {"test": "memory", "gpu": None, "id": 44, "severity": 2, "text": "the whole test broke"}
    result = judge(run(printed(faults=[fault]), 205))
    assert found(result) == [("dcgm_isolate", "fail", None, "drain_node")]


def test_a_document_broken_off_between_iterations_is_incomplete():
    whole = printed(iterations=3)
    assert found(judge(run(whole[: len(whole) * 2 // 3]))) == [
        ("result_incomplete", "unknown", None, "watch")
    ]


def test_what_follows_a_document_counts_too():
    assert (
        judge(
            run(
                printed()
                + printed("4", faults=[{"test": "pcie", "gpu": 0, "id": 79, "severity": 2}])
            )
        ).status
        == "fail"
    )
    assert judge(run(printed() + '{"DCGM Diagnostic": {')).status == "unknown"


def test_a_gpu_is_named_by_its_serial_number():
    built = documents.document(
        "4", ["memory"], range(2), faults=[{"test": "memory", "gpu": 0, "id": 52, "severity": 2}]
    )
    entities = built["entity_groups"][0]["entities"]
    entities[0]["serial_num"], entities[1]["serial_num"] = (
        entities[1]["serial_num"],
        entities[0]["serial_num"],
    )
    assert (
        judge(run(documents.styled(built), 205), level=None, tests=["memory"])
        .findings[0]
        .subject.uuid
        == "GPU-1"
    )


def test_other_entities_are_not_gpus():
    built = documents.document("4", ["memory", "pcie"], range(2))
    warning = {"warning": "sick", "error_id": 95, "error_severity": 2, "error_category": 7}
    row = {
        "entity_group": "CPU",
        "entity_group_id": 7,
        "entity_id": 0,
        "status": "Fail",
        "warnings": [warning],
    }
    test = {"name": "cpu_eud", "results": [row], "test_summary": {"status": "Fail"}}
    built["DCGM Diagnostic"]["test_categories"].append({"category": "Hardware", "tests": [test]})
    result = judge(run(documents.styled(built), 205))
    assert found(result) == [("dcgm_isolate", "fail", None, "drain_node")]
    assert "CPU 0" in result.summary


# --- severities ---

#: Severity in the document -> what one failing test of GPU 1 comes to, once and when its repetition
#: fails or passes.
RATED = {
    0: [("dcgm_unexplained", "unknown", "watch")] * 3,
    1: [("dcgm_monitor", "warn", "watch")] * 3,
    2: [("dcgm_isolate", "fail", "drain_node")] * 3,
    3: [("dcgm_unrecognised", "unknown", "watch")] * 3,
    4: [
        ("dcgm_triage", "unknown", "watch"),
        ("dcgm_triage", "fail", "drain_node"),
        ("dcgm_triage", "warn", "watch"),
    ],
    5: [("dcgm_config", "warn", "fix_configuration")] * 3,
    6: [("dcgm_reset", "fail", "reset_gpu")] * 3,
    7: [("dcgm_unrecognised", "unknown", "watch")] * 3,
}


@pytest.mark.parametrize("shape", ["3.3", "4"])
@pytest.mark.parametrize("severity", RATED)
def test_each_severity_has_its_verdict(shape, severity):
    fault = {"test": "pcie", "gpu": 1, "id": 999, "severity": severity, "category": 13}
    once = run(printed(shape, faults=[fault]), 226)
    again = run(printed(shape, tests=["pcie"], faults=[fault]), 226)
    passed = run(printed(shape, tests=["pcie"]))
    for runs, (code, status, action) in zip(
        ([once], [once, again], [once, passed]), RATED[severity]
    ):
        assert found(judge(*runs)) == [(code, status, 1, action)]


def test_a_repetition_that_tells_nothing_settles_nothing():
    fault = {"test": "pcie", "gpu": 1, "id": 30, "severity": 4}
    once = run(printed(faults=[fault]), 226)
    for second in (
        run("garbage"),
        run("", None, timed_out=True),
        run(printed(tests=["memory"])),
        run(printed(tests=["pcie"], skipped=["pcie"])),
    ):
        assert found(judge(once, second)) == [("dcgm_triage", "unknown", 1, "watch")]


def test_a_repetition_may_bring_something_worse():
    once = run(printed(faults=[{"test": "pcie", "gpu": 1, "id": 30, "severity": 4}]), 226)
    worse = run(
        printed(tests=["pcie"], faults=[{"test": "pcie", "gpu": 1, "id": 57, "severity": 2}]), 205
    )
    assert judge(once, worse).status == "fail"
    assert {one.code: one.status for one in judge(once, worse).findings} == {
        "dcgm_triage": "fail",
        "dcgm_isolate": "fail",
    }


@pytest.mark.parametrize(
    "code, severity, expected",
    [
        (46, 5, ("pcie_width", "fail", 1, "drain_node")),
        (80, 6, ("row_remap_failure", "fail", 1, "replace_part")),
        (25, 6, ("graphics_processes", "warn", 1, "fix_configuration")),
        (84, 6, ("row_remap_pending", "warn", 1, "reset_gpu")),
        (85, 6, ("row_remap_pending", "warn", 1, "reset_gpu")),
        (6, 6, ("page_retirement_pending", "warn", 1, "reset_gpu")),
        (83, 6, ("dcgm_reset", "fail", 1, "reset_gpu")),
    ],
)
@pytest.mark.parametrize("shape", ["3.2", "4"])
def test_severities_that_mislead_are_overridden(shape, code, severity, expected):
    result = judge(
        run(
            printed(shape, faults=[{"test": "pcie", "gpu": 1, "id": code, "severity": severity}]),
            226,
        )
    )
    assert found(result) == [expected]


@pytest.mark.parametrize("version", ["4.2.3", "4.4.1", "4.5.0", "4.6.0"])
@pytest.mark.parametrize("test", ["software", "pcie"])
def test_each_dcgm_4_gives_the_same_verdict(version, test):
    """From 4.5.0 on the summary of a test repeats the warnings of its GPUs."""
    faults = [
        {"test": test, "gpu": 1, "id": 83, "severity": 6, "text": "reset it"},
        {"test": test, "gpu": None, "id": 44, "severity": 2, "text": "the whole test broke"},
    ]
    result = judge(run(printed(faults=faults, version=version), 205))
    assert found(result) == [
        ("dcgm_reset", "fail", 1, "reset_gpu"),
        ("dcgm_isolate", "fail", None, "drain_node"),
    ]


def test_lanes_that_all_gpus_lack_may_be_the_boards_design():
    faults = [{"test": "pcie", "gpu": gpu, "id": 46, "severity": 5} for gpu in range(2)]
    result = judge(run(printed(faults=faults), 226))
    assert found(result) == [("pcie_width", "warn", gpu, "watch") for gpu in range(2)]
    assert "like all of its model" in result.findings[0].message


@pytest.mark.parametrize(
    ("narrow", "statuses"),
    [
        ([0, 1], ["warn", "warn"]),  # both of their model
        ([0], ["fail"]),
        ([2], ["fail"]),  # alone of its model, beside others
        ([0, 2], ["fail", "fail"]),
        ([0, 1, 2], ["warn", "warn", "fail"]),
        ([None], ["warn"]),
    ],
)
def test_lanes_are_compared_within_a_model(narrow, statuses):
    """A node of two H100 and one L40S."""
    faults = [{"test": "pcie", "gpu": gpu, "id": 46, "severity": 5} for gpu in narrow]
    told = readings(run(printed(faults=faults, count=3), 226), count=3)
    told["gpus"][2]["name"] = "NVIDIA L40S"
    result = judged(told, {"level": 2})
    assert [one.status for one in result.findings if one.code == "pcie_width"] == statuses


def test_a_gpu_that_dcgm_does_not_support():
    text = "Error: Unable to run diagnostic on unsupported GPU 0.\n" + '{"DCGM Diagnostic": {}}'
    (finding,) = judge(run(text, 234)).findings
    assert (finding.code, finding.status) == ("no_result", "unknown")
    assert "Error: Unable to run diagnostic on unsupported GPU 0." in finding.message
    assert "the GPU is not supported" in finding.message and "{" not in finding.message


@pytest.mark.parametrize(
    "model, status",
    [
        ("NVIDIA H100 80GB HBM3", "warn"),
        ("NVIDIA L40S", "fail"),
        ("NVIDIA A10", "fail"),
        ("NVIDIA X9000", "warn"),
    ],
)
@pytest.mark.parametrize("number", [1, None])
def test_a_row_that_waits_is_for_later_only_where_errors_are_contained(model, status, number):
    told = readings(
        run(printed(faults=[{"test": "software", "gpu": number, "id": 84, "severity": 6}]), 226)
    )
    told["gpus"] = [dict(gpu, name=model) for gpu in told["gpus"]]
    assert found(judged(told, {"level": 2})) == [("row_remap_pending", status, number, "reset_gpu")]


@pytest.mark.parametrize("code", sorted(set(knowledge.SEVERITY_OF) - set(knowledge.OVERRIDES)))
def test_the_table_rates_codes_that_the_document_does_not(code):
    severity = knowledge.SEVERITY_OF[code]
    result = judge(run(printed("3.2", faults=[{"test": "pcie", "gpu": 1, "id": code}]), 226))
    status = {"triage": "unknown", "none": "fail"}.get(severity) or knowledge.MEANINGS[
        severity
    ].status
    assert [(one.status, one.subject.index) for one in result.findings] == [(status, 1)]


def test_every_code_has_one_severity():
    assert sorted(knowledge.SEVERITY_OF) == list(range(133))
    assert [
        sum(severity == one for severity in knowledge.SEVERITY_OF.values())
        for one in knowledge.SEVERITIES
    ] == [1, 25, 42, 3, 35, 17, 10]
    assert all(
        row.status in STATUSES and row.action in ACTIONS
        for row in list(knowledge.MEANINGS.values()) + list(knowledge.OVERRIDES.values())
    )
    assert len(knowledge.CATEGORIES) == 17


def test_the_document_goes_before_the_table():
    assert (
        judge(
            run(printed(faults=[{"test": "pcie", "gpu": 1, "id": 57, "severity": 1}]), 205)
        ).status
        == "warn"
    )


def test_one_result_can_say_several_things():
    faults = [
        {"test": "pcie", "gpu": 1, "id": code, "severity": severity}
        for code, severity in ((29, 5), (57, 2), (3, 2))
    ]
    result = judge(run(printed(faults=faults), 205))
    assert [(one.code, one.evidence["error_ids"]) for one in result.findings] == [
        ("dcgm_config", [29]),
        ("dcgm_isolate", [3, 57]),
    ]


@pytest.mark.parametrize(
    "severity, status",
    [(1, "warn"), (5, "warn"), (4, "unknown"), (2, "unknown"), (6, "unknown"), (3, "unknown")],
)
def test_a_pass_with_an_error_is_not_a_pass(severity, status):
    fault = {"test": "memory", "gpu": 1, "id": 999, "severity": severity, "status": "Pass"}
    assert [one.status for one in judge(run(printed(faults=[fault]))).findings] == [status]


def test_a_word_for_a_status_that_is_not_known_is_unknown():
    result = judge(
        run(
            printed(
                faults=[{"test": "memory", "gpu": 1, "id": 0, "severity": 0, "status": "Aborted"}]
            )
        )
    )
    assert found(result) == [("status_unknown", "unknown", 1, "watch")]


def test_what_performs_badly_beside_someone_else_is_not_broken():
    taken = {
        "locked_by": None,
        "looks": [
            {
                "gpus": [
                    {"index": 1, "uuid": "GPU-1", "processes": [{"pid": 7, "name": "python3"}]}
                ],
                "mps": [],
                "jobs": None,
            }
        ],
    }
    slow = {"test": "pcie", "gpu": 1, "id": 30, "severity": 4}
    for fault, status in ((slow, "unknown"), (dict(slow, id=57, severity=2), "fail")):
        twice = [
            run(printed(faults=[fault]), 226),
            run(printed(tests=["pcie"], faults=[fault]), 226),
        ]
        result = judged(dict(readings(*twice), after=taken), {"level": 2})
        assert [one.status for one in result.findings if one.code.startswith("dcgm_")] == [status]
        assert [one.status for one in result.findings if one.code == "disturbed"] == ["unknown"]


# --- what was to run ---


def test_a_test_that_is_missing_or_skipped_did_not_pass():
    assert found(judge(run(printed(tests=["memory"])))) == [
        ("test_not_run", "unknown", None, "watch")
    ]
    assert found(judge(run(printed(skipped=["pcie"])))) == [("test_skipped", "skip", None, "none")]
    result = judge(run(printed(tests=documents.LEVELS["3"], skipped=["targeted_power"])), level=3)
    assert (result.status, result.summary) == (
        "pass",
        "DCGM 4.6.0 level 3 clean; skipped by DCGM: targeted_power",
    )
    assert found(
        judge(run(printed(tests=["eud"], skipped=["eud"])), level=None, tests=["eud"])
    ) == [("test_skipped", "skip", None, "none")]
    assert judge(run(printed(tests=[], skipped=["software"])), level=1).status == "unknown"


@pytest.mark.parametrize(
    "options, run_as, level",
    [
        ({}, "1", 1),
        ({"level": 3}, "3", 3),
        ({"tests": ["memory"]}, "memory", 2),
        ({"tests": ["GPU Memory", "pcie"]}, "memory,pcie", 2),
        ({"tests": ["software"]}, "1", 1),
        ({"tests": ["software", "memtest"]}, "memtest", 4),
        ({"tests": ["something_new"]}, "something_new", 3),
    ],
)
def test_what_to_run(options, run_as, level):
    what = dcgm_diag.wanted(options)
    assert (what.run, what.level) == (run_as, level)
    assert dcgm_diag.CHECK.deadline(options, 8) == knowledge.DEADLINES[level]


def test_parameters_in_both_forms():
    given = {"diagnostic.test_duration": 60, "pcie.is_allowed": True}
    assert dcgm_diag.wanted({"parameters": given}).parameters == {
        "diagnostic.test_duration": "60",
        "pcie.is_allowed": "True",
    }
    assert dcgm_diag.wanted({"parameters": ["a.b=1;c.d.e=2", "f.g=3"]}).parameters == {
        "a.b": "1",
        "c.d.e": "2",
        "f.g": "3",
    }
    assert (
        dcgm_diag.CHECK.deadline({"level": 3, "parameters": ["diagnostic.test_duration=600"]}, 8)
        == 3000
    )


@pytest.mark.parametrize(
    "options",
    [
        {"level": 1, "tests": ["memory"]},
        {"level": 5},
        {"level": "x"},
        {"tests": []},
        {"tests": ["--host"]},
        {"tests": "memory"},
        {"tests": [None, "a;b"]},
        {"parameters": ["memory"]},
        {"parameters": {"a.b": "1;c.d=2"}},
        {"parameters": {"a.b": None, "x": 1}},
        {"parameters": 5},
        {"host_engine": "--help"},
        {"host_engine": ""},
    ],
)
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match="is invalid; expected|exclude"):
        dcgm_diag.wanted(options)
    with pytest.raises(ValueError):
        dcgm_diag.CHECK.validate_options(options)
    assert dcgm_diag.CHECK.deadline(options, 8) == 120


def test_no_dcgmi_no_run_and_mig():
    assert found(judged({"gpus": gpus(), "dcgmi": None}, {})) == [
        ("dcgmi_missing", "unknown", None, "fix_configuration")
    ]
    on_host = judged({"gpus": gpus(), "dcgmi": None, "in_agent_image": False}, {}).summary
    in_image = judged({"gpus": gpus(), "dcgmi": None, "in_agent_image": True}, {})
    assert found(in_image) == [("dcgmi_missing", "unknown", None, "fix_configuration")]
    assert on_host == "dcgmi is not installed"
    assert in_image.summary == "the agent's image has no dcgmi"
    step = runbook("dcgmi_missing").next
    assert "datacenter-gpu-manager-4-core" in step and "`DCGM_REPOSITORY`" in step
    assert found(judged({"gpus": gpus()}, {})) == [("diagnostic_not_run", "unknown", None, "watch")]
    assert found(judged({"gpus": [dict(gpus()[0], mig=[0, 1])]}, {})) == [
        ("mig_enabled", "skip", 0, "none")
    ]


# --- how a run ended ---


@pytest.mark.parametrize("code", sorted(knowledge.EXIT_CODES))
def test_an_exit_status_is_a_hint(code):
    hint = knowledge.EXIT_CODES[code]
    alone = judge(run("some words", code))
    assert [one.status for one in alone.findings] == ["unknown"]
    assert hint in alone.summary and "some words" in alone.summary
    contradicting = judge(run(printed(), code))
    assert [(one.code, one.status) for one in contradicting.findings] == [
        ("exit_status_unexplained", "unknown")
    ]
    assert hint in contradicting.summary
    assert judge(run(printed(faults=[CONFIG]), code)).status == "warn"


def test_the_result_counts_whatever_the_exit_status():
    assert (
        judge(run(printed(faults=[{"test": "pcie", "gpu": 0, "id": 57, "severity": 2}]), 0)).status
        == "fail"
    )


@pytest.mark.parametrize(
    "one, code",
    [
        (run("", 217), "diagnostic_already_running"),
        (run(printed(error="A diag instance is already running"), 1), "diagnostic_already_running"),
        (run(printed(), timed_out=True), "dcgmi_timed_out"),
        (run(printed(), -9), "dcgmi_died"),
        (run(printed(), None), "dcgmi_died"),
        ({"argv": [], "error": "Permission denied"}, "dcgmi_not_started"),
        ({}, "no_result"),
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_unknown(one, code):
    assert (code, "unknown") in [(finding.code, finding.status) for finding in judge(one).findings]
    assert judge(one).status == "unknown"


def test_what_could_not_be_ended_is_said():
    result = judge(run("", None, timed_out=True, left=[4711]))
    assert found(result)[-1] == ("left_behind", "unknown", None, "reboot_node")
    assert "4711" in result.findings[-1].message


# --- the floor ---


def test_our_floor_for_the_link_is_the_lowest_of_the_node():
    slower = gpus()[:1] + [dict(gpus()[1], generation=4, width=8)]
    prefix = "pcie.h2d_d2h_single_pinned."
    assert dcgm_diag._floor(gpus()) == {
        prefix + "min_bandwidth": "32.2",
        prefix + "min_pci_generation": "5",
        prefix + "min_pci_width": "16",
    }
    assert dcgm_diag._floor(slower) == {
        prefix + "min_bandwidth": "7",
        prefix + "min_pci_generation": "4",
        prefix + "min_pci_width": "8",
    }
    assert dcgm_diag._floor(gpus() + [dict(gpus()[0], generation=None)]) == {}
    assert dcgm_diag._floor([dict(gpus()[0], name="NVIDIA GH200 480GB")]) == {}
    assert dcgm_diag._floor(gpus() + [{"index": 2, "error": {"kind": "lost"}}]) == dcgm_diag._floor(
        gpus()
    )


# --- nothing raises, nothing slips through ---


@pytest.mark.parametrize("shape", documents.SHAPES)
def test_no_truncation_passes(shape):
    whole = printed(shape).rstrip()
    assert judge(run(whole)).status == "pass"
    passed = [
        end for end in range(len(whole)) if judge(run(whole[:end])).status in ("pass", "skip")
    ]
    assert passed == []


KEYS = [
    "DCGM Diagnostic",
    "DCGM GPU Diagnostic",
    "iterations",
    "test_categories",
    "tests",
    "name",
    "results",
    "status",
    "warnings",
    "warning",
    "error_id",
    "error_severity",
    "gpu_id",
    "gpu_ids",
    "entity_id",
    "entity_group_id",
    "entity_group",
    "entity_groups",
    "entities",
    "serial_num",
    "test_summary",
    "info",
    "metadata",
    "version",
    "runtime_error",
    "GPU Device IDs",
    "GPU Device Serials",
]
WORDS = ["Pass", "Fail", "Skip", "pcie", "memory", "software", "0", "1", ""]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=25,
)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_text_passes(text):
    assert judge(run(text)).status == "unknown"


@settings(max_examples=200, deadline=None)
@given(JSON, st.sampled_from(["DCGM Diagnostic", "DCGM GPU Diagnostic"]))
def test_no_json_passes_that_lacks_a_gpu(value, root):
    text = json.dumps({root: value})
    assert judge(run(text), count=2).status not in ("pass", "skip")
    json.dumps(dcgm_report.normalise(text))


def _paths(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _paths(value[key], path + (key,))


def _replaced(value, path, new):
    value = copy.deepcopy(value)
    if not path:
        return new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(documents.SHAPES))
def test_no_change_of_a_failing_document_passes_unless_it_touches_the_failure(data, shape):
    built = documents.document(
        shape,
        ["memory", "pcie"],
        range(2),
        [{"test": "pcie", "gpu": 1, "id": 57, "severity": 2, "text": "broken"}],
    )
    path = data.draw(st.sampled_from(sorted(_paths(built), key=str)))
    status = judge(run(documents.styled(_replaced(built, path, data.draw(JSON))), 205)).status
    assert status in ("fail", "unknown", "warn")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_change_of_the_readings_raises(data):
    fault = {"test": "pcie", "gpu": 1, "id": 30, "severity": 4}
    good = readings(
        run(printed(faults=[fault], count=2), 226),
        run(printed(tests=["pcie"], faults=[fault]), 226),
    )
    path = data.draw(st.sampled_from(sorted((path for path in _paths(good) if path), key=str)))
    changed = _replaced(good, path, data.draw(JSON))
    assert judged(changed, {"level": data.draw(JSON)}).status in ("fail", "unknown", "warn")


@pytest.mark.parametrize("ids", [None, 1.5, {}, [None], [1.5], [{}]])
def test_a_failure_of_gpus_that_are_not_understood_is_the_nodes(ids):
    row = {"gpu_ids": ids, "status": "Fail", "warnings": "broken"}
    tests = [{"name": "GPU Memory", "results": [row]}]
    document = {"DCGM GPU Diagnostic": {"test_categories": [{"tests": tests}]}}
    (result,) = dcgm_report.results(dcgm_report.normalise(json.dumps(document)))
    assert (result.gpu, result.entity, result.status) == (None, None, "fail")


@pytest.mark.parametrize("junk", [None, 5, "Pass", [], {"status": 5}])
def test_a_result_that_is_not_understood_does_not_pass(junk):
    good = readings(run(printed()))
    good["runs"][0]["report"]["results"].append(junk)
    assert judged(good, {"level": 2}).status == "unknown"


@pytest.mark.parametrize(
    "key", ["gpus", "before", "after", "runs", "report", "returncode", "results", "problem"]
)
def test_readings_that_lack_a_part_do_not_pass(key):
    good = readings(run(printed()))
    assert judged(good, {"level": 2}).status == "pass"
    for place in (good, good["runs"][0], good["runs"][0]["report"]):
        if key in place:
            del place[key]
            break
    assert judged(good, {"level": 2}).status == "unknown"


def test_a_time_limit_of_dcgm_stays_above_the_durations_given(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    until = 1600.0
    assert dcgm_run._time_limit([4, 6, 0], {}, until)[1] == "590"
    assert dcgm_run._time_limit([4, 6, 0], {"memtest.test_duration": "600"}, until) == []
    assert dcgm_run._time_limit([3, 3, 9], {}, until) == dcgm_run._time_limit([], {}, until) == []


def test_the_check_has_half_a_minute_to_end_what_it_started():
    probe = Probe(HostSettings())
    probe.begin("dcgm_diag", {}, knowledge.DEADLINES[1], dcgm_diag.CHECK.grace)
    assert probe.grace == 30
