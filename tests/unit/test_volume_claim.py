# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a tried volume claim says: whose fault it is by what was seen, and the objects that are made
for it.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    claim_procedures,
    claim_objects,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import BY_HAND
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import volume_claim
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES

FAST = {
    "name": "fast",
    "provisioner": "example.com/fast",
    "binding_mode": "Immediate",
    "reclaim_policy": "Delete",
    "default": True,
}
KEEPS = dict(FAST, name="keeps", reclaim_policy="Retain", default=False)
CLASSES = [FAST, KEEPS, dict(KEEPS, name="by-hand", provisioner=BY_HAND)]
OPTIONS = dict(volume_claim.CHECK.defaults(), storage_class="fast")
PLAN = claim_procedures.plan_of(OPTIONS, 120)
LIKE = {
    "image": "agent:1",
    "pull_secrets": [{"name": "pull"}],
    "tolerations": [{"key": "gpu"}],
    "security_context": {"runAsUser": 10001},
    "owner": None,
}


def event(reason, message, on="pod", kind="Warning"):
    return {"on": on, "type": kind, "reason": reason, "message": message, "count": 1}


def readings(claim_seen=None, pod=None, **more):
    """A claim that was bound and a pod that is done, unless said otherwise."""
    return dict(
        {
            "storage_class": "fast",
            "storage_classes": CLASSES,
            "dry_run": {"uid": "0"},
            "began": True,
            "claim": dict(
                {"uid": "1", "phase": "Bound", "volume": "pv1", "seconds": 1.5}, **claim_seen or {}
            ),
            "pod": dict(
                {
                    "uid": "2",
                    "phase": "Succeeded",
                    "node": "gpu07",
                    "seconds": 3.0,
                    "watched": 5.0,
                    "said": {"step": "done"},
                },
                **pod or {},
            ),
        },
        **more,
    )


def late(claim_seen=None, pod=None, events=(), **more):
    pending = dict({"phase": "Pending", "seconds": None, "watched": 120.0}, **pod or {})
    if pending["seconds"] is None:
        pending.pop("seconds")
    found = readings(claim_seen, None, late=True, events=list(events), **more)
    found["pod"] = {"uid": "2", "node": "gpu07", **pending}
    return found


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return volume_claim.CHECK.judge(decode(volume_claim.CHECK.readings, readings), options)


def judged(seen, **options):
    result = judge(seen, dict(OPTIONS, **options))
    return result, [(finding.code, finding.status) for finding in result.findings]


def test_a_volume_that_can_be_used():
    result, found = judged(readings())
    assert (result.status, found) == ("pass", [])
    assert (
        result.summary
        == "100Mi of fast: bound after 1.5 s, in use on gpu07 after 3.0 s, 4 MiB written, "
        "synced and read back"
    )
    assert [(one.name, one.value, one.unit, one.labels) for one in result.measurements] == [
        ("volume_bound", 1.5, "seconds", {"storage_class": "fast"}),
        ("volume_ready", 3.0, "seconds", {"storage_class": "fast"}),
    ]


@pytest.mark.parametrize(
    "given, code, words",
    [
        ("", "storage_class_missing", "fast (default), keeps, by-hand"),
        ("slow", "storage_class_not_found", "fast (default), keeps, by-hand"),
        ("keeps", "storage_class_retains", "Retain"),
    ],
)
def test_a_class_that_is_no_use_is_said(given, code, words):
    result, found = judged({"storage_class": given, "storage_classes": CLASSES})
    assert found == [(code, "unknown")] and words in result.summary


def test_classes_that_may_not_be_listed_are_no_reason_not_to_try():
    assert judged(dict(readings(), storage_classes=None))[1] == []
    assert judged(dict(readings(), storage_class="by-hand"))[1] == [], (
        "volumes made by hand are kept by whoever made them"
    )
    assert judged({"storage_class": "", "storage_classes": None})[1] == [
        ("storage_class_missing", "unknown")
    ]


QUOTA = (
    "POST /x: 403, claim a is forbidden: exceeded quota: q, requested: "
    "requests.storage=100Mi, used: requests.storage=0, limited: requests.storage=50Mi"
)
TOLD = (
    "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match "
    "Pod's node affinity/selector."
)
NO_VOLUME = (
    "0/2 nodes are available: 1 node(s) didn't find available persistent volumes to "
    "bind, 1 node(s) didn't match Pod's node affinity/selector."
)


@pytest.mark.parametrize(
    "seen, expected",
    [
        ({}, ("claim_not_tried", "unknown")),
        (dict(readings(), no_image=True), ("claim_without_image", "unknown")),
        (
            {
                "storage_class": "fast",
                "refused": {"step": "dry_run", "status": 403, "message": QUOTA},
            },
            ("volume_quota_exceeded", "fail"),
        ),
        (
            {
                "storage_class": "fast",
                "refused": {"step": "claim", "status": 403, "message": "forbidden: User x"},
            },
            ("claim_forbidden", "unknown"),
        ),
        (
            {
                "storage_class": "fast",
                "refused": {"step": "claim", "status": 422, "message": "invalid"},
            },
            ("claim_refused", "unknown"),
        ),
        # A quota of pods says nothing of volumes.
        (
            dict(
                readings(),
                refused={
                    "step": "pod",
                    "status": 403,
                    "message": "exceeded quota: q, requested: pods=1",
                },
            ),
            ("claim_forbidden", "unknown"),
        ),
        ({"storage_class": "fast", "api": "no answer"}, ("api_not_answering", "unknown")),
        (late(api="no answer"), ("api_not_answering", "unknown")),
        (dict(late(), gone=True), ("claim_removed", "unknown")),
        (dict(late(), late=False), ("claim_not_tried", "unknown")),
        (readings({"phase": "Lost"}, {"phase": "Running"}), ("claim_not_bound", "fail")),
        # The pod's own words.
        (
            readings(pod={"phase": "Failed", "said": {"step": "compare", "same": False}}),
            ("volume_data_differs", "fail"),
        ),
        (
            readings(
                pod={
                    "phase": "Failed",
                    "said": {"step": "write", "errno": errno.ENOSPC, "error": "No space left"},
                }
            ),
            ("volume_io_failed", "fail"),
        ),
        (
            readings(
                pod={
                    "phase": "Failed",
                    "said": {"step": "create", "errno": errno.EACCES, "error": "Permission denied"},
                }
            ),
            ("volume_not_writable", "unknown"),
        ),
        (
            readings(
                pod={
                    "phase": "Failed",
                    "said": None,
                    "ended": "StartError: exec: python3: not found",
                }
            ),
            ("claim_pod_died", "unknown"),
        ),
        (
            readings(pod={"phase": "Failed", "said": None, "reason": "DeadlineExceeded"}),
            ("volume_io_hung", "fail"),
        ),
        (
            readings(
                pod={
                    "phase": "Failed",
                    "said": None,
                    "reason": "Evicted",
                    "message": "low on memory",
                }
            ),
            ("claim_pod_died", "unknown"),
        ),
        # The time was up.
        (late(pod={"phase": "Running", "seconds": 20.0}), ("volume_io_hung", "fail")),
        (late(pod={"phase": "Running", "seconds": 110.0}), ("claim_too_late", "unknown")),
        (
            late(events=[event("FailedMount", "MountVolume.SetUp failed")]),
            ("volume_mount_timeout", "fail"),
        ),
        (
            late(events=[event("FailedAttachVolume", "AttachVolume.Attach failed")]),
            ("volume_mount_timeout", "fail"),
        ),
        (
            late(
                events=[event("FailedMount", "exit status 32 Output: mount.nfs: No route to host")]
            ),
            ("nfs_unreachable", "fail"),
        ),
        (
            late(
                events=[
                    event("FailedMount", "at first"),
                    event("Pulling", "Pulling image", kind="Normal"),
                ]
            ),
            ("claim_pod_not_started", "unknown"),
        ),
        (
            late(
                pod={"waiting": "ImagePullBackOff: no such image"},
                events=[event("BackOff", "Back-off")],
            ),
            ("claim_pod_not_started", "unknown"),
        ),
        (
            late(events=[event("FailedCreatePodSandBox", "network plugin")]),
            ("claim_pod_not_started", "unknown"),
        ),
        (late(), ("claim_pod_not_started", "unknown")),
        (
            late({"phase": "Pending"}, {"node": None, "scheduling": TOLD}),
            ("claim_pod_not_scheduled", "unknown"),
        ),
        (
            late({"phase": "Pending"}, {"node": None, "scheduling": NO_VOLUME}),
            ("claim_not_bound", "fail"),
        ),
        (
            late(
                {"phase": "Pending"},
                {"node": None, "scheduling": "pod has unbound immediate PersistentVolumeClaims"},
            ),
            ("claim_not_bound", "fail"),
        ),
        (
            late(
                {"phase": "Pending"},
                {"node": None},
                [event("ProvisioningFailed", "no space", "claim")],
            ),
            ("claim_not_bound", "fail"),
        ),
        (late({"phase": "Pending"}, {"node": None}), ("claim_pod_not_scheduled", "unknown")),
    ],
)
def test_whose_fault_it_is(seen, expected):
    assert judged(seen)[1] == [expected]


def test_what_is_left_behind_is_a_warning_beside_the_rest():
    assert judged(readings(left=["pods/x (held by its node)"]))[1] == [
        ("claim_left_behind", "warn")
    ]
    assert judged(dict(late(), left=["pods/x"]))[0].status == "unknown"


def test_a_dry_run_is_no_result():
    result, found = judged(
        {"storage_class": "fast", "storage_classes": CLASSES, "dry_run": {"uid": None}}
    )
    assert found == [("would_run", "skip")] and result.findings[0].evidence["seconds"] == 120


@pytest.mark.parametrize("size", ["8Mi", "100Mi", "1Gi", "1.5Gi", "10M", "20000000"])
def test_sizes_that_can_be_claimed(size):
    volume_claim.validate_options(dict(OPTIONS, size=size))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"size": "1Mi"}, "size: '1Mi' is invalid; expected 8Mi or more"),
        ({"size": "lots"}, "size: 'lots'"),
        ({"size": ""}, "size: ''"),
        ({"access_mode": "RWO"}, "access_mode: 'RWO' is invalid; expected one of ReadWriteOnce"),
        ({"node": "a/b"}, "node: 'a/b'"),
        ({"namespace": "../kube-system"}, "namespace: "),
        ({"storage_class": "a b"}, "storage_class: 'a b'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError) as refused:
        volume_claim.validate_options(dict(OPTIONS, **options))
    assert words in str(refused.value)


# ---- whatever comes ----

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "late": st.booleans(),
            "gone": st.booleans(),
            "began": st.booleans(),
            "api": st.text(),
            "no_image": st.booleans(),
            "left": st.lists(st.text(), max_size=2),
            "claim": st.fixed_dictionaries(
                {}, optional={"phase": st.sampled_from([None, "Bound", "Pending", "Lost"])}
            ),
            "pod": st.fixed_dictionaries(
                {},
                optional={
                    "phase": st.sampled_from([None, "Pending", "Running", "Failed"]),
                    "node": st.none() | st.text(),
                    "said": anything,
                    "waiting": st.none() | st.text(),
                },
            ),
            "events": st.lists(
                st.fixed_dictionaries(
                    {
                        "on": st.just("pod"),
                        "type": st.just("Warning"),
                        "reason": st.text(),
                        "message": st.text(),
                    }
                ),
                max_size=3,
            ),
        },
    )
)
def test_only_a_pod_that_is_done_passes(seen):
    result = judge(dict(seen, storage_class="fast"), OPTIONS)
    assert result.status in STATUSES and result.status != "pass"
    assert all(finding.action in ACTIONS for finding in result.findings)


@pytest.mark.parametrize("junk", [True, 5, "x", [1], {"cause": "new"}])
@pytest.mark.parametrize("part", ["refused", "claim"])
def test_a_refusal_or_a_claim_that_is_not_understood_is_neither_a_pass_nor_a_dry_run(part, junk):
    assert judge({**readings(), "dry_run": {"uid": "0"}, part: junk}, OPTIONS).status == "unknown"
    made = {"storage_class": "fast", "dry_run": {"uid": "0"}, part: junk}
    assert judge(made, OPTIONS).status == "unknown"


# ---- objects ----


def test_the_pod_is_one_that_a_restricted_namespace_takes():
    """As the agent's own: no rights, no privileges, no GPU, an end of its own; and a group that may
    write to a new volume.
    """
    spec = claim_objects.pod_of(PLAN, LIKE)["spec"]
    assert (
        spec["automountServiceAccountToken"] is False
        and spec["restartPolicy"] == "Never"
        and spec["activeDeadlineSeconds"] == 165
    )
    assert spec["securityContext"] == {
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 10001,
    }
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (
        container["image"] == "agent:1"
        and spec["imagePullSecrets"] == [{"name": "pull"}]
        and "nvidia.com/gpu" not in str(container["resources"])
    )
    assert (
        "nodeName" not in spec
        and "affinity" not in spec
        and spec["tolerations"] == [{"key": "gpu"}]
    )


def test_a_node_is_given_to_the_scheduler_and_not_past_it():
    spec = claim_objects.pod_of(PLAN._replace(node="gpu07"), LIKE)["spec"]
    assert "nodeName" not in spec and '"values": ["gpu07"]' in json.dumps(spec["affinity"])
    assert [one["key"] for one in spec["tolerations"]] == [
        "gpu",
        "node.kubernetes.io/unschedulable",
        "nvidia.com/gpu",
    ]


def test_a_name_is_used_once():
    assert claim_procedures.plan_of(OPTIONS, 1).name != claim_procedures.plan_of(OPTIONS, 1).name


def test_the_script_writes_and_reads_back_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", claim_objects.SCRIPT, str(tmp_path), "x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = json.loads(done.stdout)
    assert (said["step"], said["bytes"], said["same"]) == (
        "done",
        claim_objects.WRITTEN,
        True,
    ) and list(tmp_path.iterdir()) == []


def test_the_script_says_which_step_failed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", claim_objects.SCRIPT, str(tmp_path / "no"), "x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = json.loads(done.stdout)
    assert done.returncode == 1 and (said["step"], said["errno"]) == ("create", errno.ENOENT)
