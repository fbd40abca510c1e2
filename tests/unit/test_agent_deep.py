# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the GPUs of a node are, the pod that holds them, and what a result of DCGM means for the
mark.
"""

from __future__ import annotations

import pytest
from _health.model import CheckResult, Finding, Subject
from autopilot_agent.cluster import gpu_reservation
from autopilot_agent.passes.deep import outcome_of
from _health.agent.settings import AgentSettings

FATAL = AgentSettings.from_environment(
    {"NODE_NAME": "n", "NAMESPACE": "a", "AUTOPILOT_API_SERVER": "http://127.0.0.1:9"}
).fatal_errors


def pod(name="job", phase="Running", kind="containers", **resources):
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {kind: [{"resources": resources}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    "held, given",
    [
        (True, pod(limits={"nvidia.com/gpu": "8"})),
        (True, pod(requests={"nvidia.com/gpu": "1"})),
        (True, pod(limits={"nvidia.com/gpu": 2})),
        (True, pod(phase="Pending", limits={"nvidia.com/gpu": "1"})),
        (True, pod(phase="Unknown", limits={"nvidia.com/gpu": "1"})),
        (True, pod(kind="initContainers", limits={"nvidia.com/gpu": "1"})),
        (True, pod(limits={"nvidia.com/mig-1g.10gb": "1"})),
        (
            True,
            {
                "metadata": {"namespace": "team", "name": "job"},
                "spec": {"resourceClaims": [{"name": "gpu"}]},
                "status": {"phase": "Running"},
            },
        ),
        (True, {**pod(), "spec": "x"}),
        (True, {**pod(), "spec": {"containers": "x"}}),
        (True, {**pod(), "spec": {"containers": [None]}}),
        (True, {**pod(), "spec": {"containers": [{"resources": ["nvidia.com/gpu"]}]}}),
        (True, pod(limits=["nvidia.com/gpu"])),
        (False, {**pod(), "spec": None}),
        (False, {**pod(), "spec": {"containers": None, "initContainers": None}}),
        (False, {**pod(), "spec": {"containers": [{"resources": None}]}}),
        (False, pod(limits=None, requests=None)),
        (False, pod(limits={"nvidia.com/gpu": "0"})),
        (False, pod(limits={"cpu": "8"})),
        (False, pod(phase="Succeeded", limits={"nvidia.com/gpu": "8"})),
        (False, {"metadata": {"namespace": "team", "name": "job"}}),
    ],
)
def test_who_has_gpus_of_the_node(held, given):
    assert gpu_reservation.holders([given]) == (["team/job"] if held else [])


def test_a_failed_pod_does_not_keep_the_node_from_being_tested():
    """The predecessor counted it (functions.go, GPUsAvailability)."""
    assert gpu_reservation.holders([pod(phase="Failed", limits={"nvidia.com/gpu": "8"})]) == []


@pytest.mark.parametrize(
    "amount, gpus", [("8", 8), (8, 8), ("0", 0), ("1k", 0), (None, 0), (-1, 0), ([8], 0)]
)
def test_how_many_gpus_the_node_offers(amount, gpus):
    assert gpu_reservation.offered({"status": {"allocatable": {"nvidia.com/gpu": amount}}}) == gpus


def test_our_own_pod_is_nobody_else():
    assert gpu_reservation.holders(
        [pod("ours", limits={"nvidia.com/gpu": "8"}), pod("b", limits={"nvidia.com/gpu": "8"})],
        ["team/ours"],
    ) == ["team/b"]


def test_n14_the_hold_pod_is_made_of_the_agents_own_and_of_what_the_node_offers():
    own = {
        "metadata": {"name": "agent-x", "namespace": "health", "uid": "u-1"},
        "spec": {
            "containers": [{"image": "registry/agent:7"}],
            "imagePullSecrets": [{"name": "pull"}],
            "serviceAccountName": "agent",
            "securityContext": {"runAsUser": 20002},
        },
    }
    node = {"metadata": {"name": "gpu07", "uid": "u-7"}}
    made = gpu_reservation.pod_of(node, "health-work", 4, own, 600)
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert (
        made["metadata"]["namespace"] == "health-work"
        and made["metadata"]["ownerReferences"][0]["uid"] == "u-7"
    )
    assert (
        spec["nodeName"] == "gpu07"
        and spec["activeDeadlineSeconds"] == 600
        and spec["imagePullSecrets"] == [{"name": "pull"}]
    )
    assert spec["securityContext"]["runAsUser"] == 20002
    assert (
        container["image"] == "registry/agent:7"
        and container["resources"]["limits"]
        == {"nvidia.com/gpu": "4"}
        == container["resources"]["requests"]
    )
    assert "serviceAccountName" not in spec and spec["automountServiceAccountToken"] is False, (
        "it needs nothing of the API server"
    )


def test_the_pod_that_runs_dcgm_has_the_memory_for_it_and_the_agents_variables():
    env = [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    own = {"spec": {"containers": [{"image": "registry/agent:7", "env": env}]}}
    node = {"metadata": {"name": "gpu07", "uid": "u-7"}}
    spec = gpu_reservation.pod_of(node, "health-work", 8, own, 600, ("KEY", "k1"))["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "8"},
        "requests": {"nvidia.com/gpu": "8", "cpu": "1", "memory": "4Gi"},
    }
    assert container["env"] == [env[0], {"name": "KEY", "value": "k1"}], (
        "the device plugin says which GPUs, and the admission policy refuses valueFrom"
    )
    assert spec["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    "path, mounted",
    [
        ("/usr/bin/dcgmi", False),
        ("/opt/dcgm/bin/dcgmi", True),
        ("/opt/dcgm-4/bin/dcgmi", False),
        ("/host", True),
        ("/", False),
        ("", False),
    ],
)
def test_what_is_on_a_volume_of_the_agent(path, mounted):
    mounts = [{"mountPath": "/opt/dcgm/"}, {"mountPath": "/host"}, {"mountPath": 7}, {}]
    own = {"spec": {"containers": [{"image": "a", "volumeMounts": mounts}]}}
    assert gpu_reservation.is_mounted(path, own) is mounted


@pytest.mark.parametrize(
    "why, status, meta",
    [
        ("", {"phase": "Running"}, {}),
        ("", {"containerStatuses": [{"state": {"running": {}}}, 7]}, {}),
        (
            "OOMKilled, exit status 137",
            {
                "containerStatuses": [
                    {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ]
            },
            {},
        ),
        (gpu_reservation.DELETED, {}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    ],
)
def test_why_the_pod_ended(why, status, meta):
    assert gpu_reservation.ending({"metadata": meta, "status": status}) == why


def test_the_name_of_a_hold_pod_is_a_name_whatever_the_nodes_is():
    names = {gpu_reservation.name_of(node) for node in ("a", "b", "x" * 253, "gpu07.rack1.example")}
    assert len(names) == 4 and all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    "allocatable, gpus",
    [({"nvidia.com/gpu": "8"}, 8), ({"nvidia.com/gpu": "0"}, 0), ({"cpu": "8"}, 0), ({}, 0)],
)
def test_how_many_gpus_a_node_offers(allocatable, gpus):
    assert gpu_reservation.offered({"status": {"allocatable": allocatable}}) == gpus


@pytest.mark.parametrize(
    "expected, status, meta",
    [
        (None, {"phase": "Pending"}, {}),
        (None, {}, {}),
        (True, {"phase": "Running"}, {}),
        (False, {"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, {}),
        (False, {"phase": "Running"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        (False, {"phase": "Succeeded"}, {}),
    ],
)
def test_only_a_running_pod_holds(expected, status, meta):
    assert gpu_reservation.admitted({"metadata": meta, "status": status}) is expected


# ---- outcomes ----


def found(test, status="fail", gpu=3, categories=(), said="failed"):
    subject = Subject("gpu", gpu) if gpu is not None else Subject("node")
    return Finding(
        "dcgm_isolate",
        status,
        f"DCGM {test}: {said}",
        "drain_node",
        subject,
        {"test": test, "categories": list(categories)},
    )


def diagnosed(*findings, status=None):
    worst = status or (
        "fail"
        if any(one.status == "fail" for one in findings)
        else findings[0].status
        if findings
        else "pass"
    )
    return CheckResult("dcgm_diag", worst, "", list(findings))


@pytest.mark.parametrize(
    "outcome, tests, result",
    [
        ("pass", [], diagnosed()),
        ("fatal", ["pcie.3"], diagnosed(found("pcie"))),
        ("fatal", ["nvlink"], diagnosed(found("nvlink", gpu=None))),
        ("failed", ["targeted_power.3"], diagnosed(found("targeted_power"))),
        ("fatal", ["diagnostic.0"], diagnosed(found("diagnostic", gpu=0, categories=["NVLink"]))),
        ("failed", ["pcie.3"], diagnosed(found("pcie", "warn"))),
        (
            "failed",
            ["memtest.1", "pcie.2"],
            diagnosed(found("memtest", gpu=1), found("pcie", "warn", gpu=2)),
        ),
        ("fatal", ["memory.3"], diagnosed(found("memory"))),
        (
            "failed",
            ["memory_bandwidth.3"],
            diagnosed(found("memory_bandwidth", said="GPU memory bandwidth is low")),
        ),
        (
            "fatal",
            ["diagnostic.3"],
            diagnosed(found("diagnostic", said="2 volatile double-bit ECC errors")),
        ),
        (
            "failed",
            ["diagnostic.3"],
            diagnosed(found("diagnostic", "warn", said="2 volatile single-bit ECC errors")),
        ),
        ("failed", ["diagnostic.3"], diagnosed(found("diagnostic", said="eccentric"))),
        ("unknown", [], diagnosed(found("pcie", "unknown"))),
        ("unknown", [], diagnosed(status="unknown")),
        ("unknown", [], diagnosed(status="skip")),
    ],
)
def test_outcome_of_a_diagnostic(outcome, tests, result):
    assert outcome_of(result, FATAL) == (outcome, tests)


def test_tests_are_named_once():
    assert outcome_of(diagnosed(found("memory"), found("memory"), found("memory", gpu=4)), FATAL)[
        1
    ] == ["memory.3", "memory.4"]


def test_field_3_a_fatal_word_is_a_word_and_not_its_characters():
    assert outcome_of(diagnosed(found("targeted_power")), FATAL)[0] == "failed"
    assert outcome_of(diagnosed(found("memtest")), ("", ","))[0] == "failed"
    assert outcome_of(diagnosed(found("memtest")), ("memtest",))[0] == "fatal"
