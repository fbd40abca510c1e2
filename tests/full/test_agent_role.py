# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role agent against a real API server: what it makes, who may do what, what it says when it
does not work, and that nothing stays.
"""

from __future__ import annotations

import base64
import json
import re

import pytest
from lab import wait_until

from agent_role import (
    agent_playbook,
    changed,
    cleaned,
    crd,
    everything,
    load_crds,
    nodes,
    removed_crds,
)

LABEL = "autopilot.ibm.com/gpuhealth"
RESULT = "autopilot.ibm.com/dcgm.level.3=PASS_2026-11-21_20.00.00UTC"
SECRET = base64.b64encode(
    json.dumps({"auths": {"registry.example": {"auth": "c3VwZXI6aGlkZGVuLXNlY3JldA=="}}}).encode()
).decode()
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def play(lab, tmp_path):
    """``play(*arguments, **variables)``: the playbook against the lab; the finished process."""
    return agent_playbook(lab, tmp_path)


@pytest.fixture
def clean(lab):
    """The cluster as it was, once the test is over."""
    with cleaned(lab) as before:
        yield before


CRDS = (
    crd("monitoring.coreos.com", "servicemonitors", "ServiceMonitor"),
    crd(
        "security.openshift.io",
        "securitycontextconstraints",
        "SecurityContextConstraints",
        "Cluster",
    ),
    crd("k8s.cni.cncf.io", "network-attachment-definitions", "NetworkAttachmentDefinition"),
)
ROUTES = (crd("route.openshift.io", "routes", "Route"),)


@pytest.fixture
def apis(lab):
    """The APIs of the Prometheus operator, OpenShift and Multus, from when this is called until the
    test is over.
    """

    with removed_crds(lab, CRDS):
        yield lambda: load_crds(lab, CRDS)


def test_what_cannot_work_is_said_before_anything_is_made(lab, clean, play):
    for variables, words in (
        (
            {"agent_runtime_class": "nvidia"},
            "There is no RuntimeClass nvidia, so no agent would start",
        ),
        (
            {"agent_annotations": {"k8s.v1.cni.cncf.io/networks": "fast"}},
            "the cluster has no API k8s.cni.cncf.io/v1 (Multus)",
        ),
    ):
        done = play(**variables)
        assert done.returncode == 2 and words in done.stdout, done.stdout
    assert everything(lab) == clean


def test_a_route_needs_openshift_and_goes_with_its_option(lab, clean, play):
    refused = play(agent_route=True)
    told = " ".join(refused.stdout.split())
    assert refused.returncode == 2 and "agent_route: true is refused" in told, refused.stdout
    assert everything(lab) == clean
    with removed_crds(lab, ROUTES):
        load_crds(lab, ROUTES)
        assert changed(play(agent_route=True)) > 0
        made = lab.get("route", "autopilot-healthchecks", "-n", "autopilot")
        assert made["spec"]["to"] == {"kind": "Service", "name": "autopilot-healthchecks"}
        assert changed(play(agent_route=True)) == 0
        assert changed(play()) == 1
        assert not lab.get("routes", "-n", "autopilot")["items"]
        assert changed(play(agent_route=True)) > 0
        assert changed(play(agent_state="absent")) > 0
        assert not lab.get("routes", "-A")["items"]
        assert everything(lab).keys() == clean.keys()


def test_a_foreign_namespace_for_pods_and_claims_is_refused_and_not_touched(lab, clean, play):
    lab.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "autopilot-work"}})
    before = lab.get("namespace", "autopilot-work")["metadata"]["resourceVersion"]
    done = play()
    told = done.stdout.replace('\\"', '"')
    assert done.returncode == 2, done.stdout
    assert (
        'agent_namespace: "autopilot" is refused, since the namespace autopilot-work exists and was '
        "not made by this role; expected that namespace to be missing"
        in told
        and "app.kubernetes.io/managed-by=autopilot-gpu" in told
    ), done.stdout
    assert lab.get("namespace", "autopilot-work")["metadata"]["resourceVersion"] == before


def test_a_viewer_is_told_all_rights_that_are_missing_at_once(lab, clean, play):
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "views"}
    of = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "views"}}
    lab.apply({**of, "kind": "ClusterRole", "rules": rules})
    lab.apply({**of, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})
    before = everything(lab)
    done = play(agent_kubeconfig=str(lab.kubeconfig_for("viewer")))
    told = re.search(r'"Your account lacks these rights, nothing was changed: (.*?)"', done.stdout)
    assert done.returncode == 2 and told, done.stdout
    rights = told[1].split("; ")
    assert set(rights) >= {
        "patch namespaces in namespace autopilot",
        "patch namespaces in namespace autopilot-work",
        "patch clusterroles in the cluster",
        "patch rolebindings in namespace autopilot",
        "patch services in namespace autopilot",
        "patch daemonsets in namespace autopilot",
    }, rights
    assert len(rights) == len(set(rights)) and max(map(len, rights)) < 80
    assert everything(lab) == before


def test_from_nothing_to_nothing(lab, clean, play, apis):
    """Check mode, deploy, again, less, remove: at each step what is there is what was promised."""
    with nodes(lab, "role-a", "role-b"):
        check_mode_changes_nothing(lab, clean, play)
        apis()
        full = {
            "agent_pull_secret_name": "pull",
            "agent_pull_secret_data": SECRET,
            "agent_network_attachments": [{"name": "fast", "config": {"type": "macvlan"}}],
            "agent_env": [{"name": "PERIODIC_CHECKS", "value": "gpu_count"}],
            "agent_taint": "NoSchedule",
            "agent_mark_nodes": "false",
        }
        deploy_twice(lab, play, full)
        less = {
            **full,
            "agent_service_monitor": False,
            "agent_network_policy": "false",
            "agent_network_attachments": [],
            "agent_log_level": "debug",
        }
        deploy_less(lab, play, less)
        theirs_and_ours(lab)
        remove_ours(lab, clean, play)
        lab.kubectl("delete", "configmap", "notes", "-n", "autopilot")
        assert changed(play(agent_state="absent")) == 1
        assert everything(lab).keys() == clean.keys()
        assert changed(play(agent_state="absent")) == 0


def check_mode_changes_nothing(lab, clean, play):
    dry = play("--check")
    assert (
        changed(dry) > 0
        and "DaemonSet autopilot" in dry.stdout
        and "ClusterRole autopilot-agent" in dry.stdout
    )
    assert everything(lab) == clean


def deploy_twice(lab, play, full):
    """Deploy; a second run changes nothing."""
    made = play("-vvv", **full)
    assert changed(made) > 0 and SECRET not in made.stdout
    look_at_what_is_there(lab)
    what_the_agents_may_do(lab)
    again = play(**full)
    assert changed(again) == 0, again.stdout


def deploy_less(lab, play, less):
    """Deploy with fewer objects and another log level; objects no longer wanted are removed."""
    before = everything(lab)
    dry = play("--check", "--diff", **less)
    assert (
        changed(dry) == 2
        and re.search(r'\+ +"value": "debug"', dry.stdout)
        and SECRET not in dry.stdout
    ), dry.stdout
    assert everything(lab).keys() == before.keys()
    assert changed(play(**less)) == 2
    gone = before.keys() - everything(lab).keys()
    assert {name for name in gone if not name.startswith("Pod/")} == {
        "NetworkPolicy/autopilot/autopilot",
        "NetworkPolicy/autopilot-work/autopilot-hold",
    }
    assert not lab.get("servicemonitors,network-attachment-definitions", "-A")["items"]


def remove_ours(lab, clean, play):
    """Remove; what others put into the namespace or onto the nodes stays."""
    stays = play(agent_state="absent")
    assert "stays, since others have something in it: ConfigMap notes" in stays.stdout, stays.stdout
    left = {
        "Namespace//autopilot",
        "ConfigMap/autopilot/notes",
        "ConfigMap/autopilot/kube-root-ca.crt",
        "ServiceAccount/autopilot/default",
    }
    wait_until(
        lambda: everything(lab).keys() - clean.keys() == left, "what is not ours is what is left"
    )
    node = lab.get("node", "role-a")
    assert (node["metadata"]["labels"].get(LABEL), node["spec"].get("taints")) == (
        None,
        [{"key": "mine", "effect": "NoSchedule"}],
    )
    assert RESULT.partition("=")[0] not in lab.get("node", "role-b")["metadata"]["labels"]
    assert not lab.get("securitycontextconstraints")["items"]


def look_at_what_is_there(lab):
    pods = wait_until(
        lambda: lab.get("pods", "-n", "autopilot")["items"],
        "the namespace takes the pods, restricted as it is",
    )
    assert len(pods) == 2
    assert (
        lab.get("namespace", "autopilot")["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        == "restricted"
    )
    spec = pods[0]["spec"]
    (agent,) = spec["containers"]
    assert {key: spec["securityContext"][key] for key in RESTRICTED} == RESTRICTED
    assert (
        agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        and agent["securityContext"]["readOnlyRootFilesystem"] is True
    )
    assert "nvidia.com/gpu" not in json.dumps(agent["resources"])
    values = {one["name"]: one.get("value") for one in agent["env"]}
    assert (
        values["PERIODIC_CHECKS"],
        values["AUTOPILOT_TAINT"],
        values["AUTOPILOT_MARK_NODES"],
    ) == ("gpu_count", "NoSchedule", "false")
    assert [one["name"] for one in agent["env"]].count("PERIODIC_CHECKS") == 1
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert lab.get("secret", "pull", "-n", "autopilot")["data"][".dockerconfigjson"] == SECRET
    assert lab.get("securitycontextconstraints", "autopilot-agent")["users"] == [
        "system:serviceaccount:autopilot:autopilot"
    ]
    assert (
        lab.get("servicemonitor", "autopilot-metrics-monitor", "-n", "autopilot")["spec"][
            "endpoints"
        ][0]["port"]
        == "http"
    )
    assert json.loads(
        lab.get("network-attachment-definitions", "fast", "-n", "autopilot")["spec"]["config"]
    ) == {"type": "macvlan"}
    # One owner of what the role wrote, and only the role.
    managers = {
        one["manager"]
        for one in lab.get("daemonset", "autopilot", "-n", "autopilot", "--show-managed-fields")[
            "metadata"
        ]["managedFields"]
    }
    assert managers <= {"autopilot.gpu", "kube-controller-manager"}


#: What the agents' account may do: verb, resource, namespace ("" = all of them, or none).
#: Everything else it may not.
MAY = {
    "get nodes",
    "list nodes",
    "list pods",
    "create tokenreviews.authentication.k8s.io",
    "create subjectaccessreviews.authorization.k8s.io",
    "get pods autopilot",
    "get endpointslices.discovery.k8s.io autopilot",
    "list endpointslices.discovery.k8s.io autopilot",
    "get pods autopilot-work",
    "create pods autopilot-work",
    "delete pods autopilot-work",
}
#: What one would do with a stolen token.
MAY_NOT = (
    # Of features that are off.
    "patch nodes",
    "patch nodes/status",
    "list storageclasses.storage.k8s.io",
    "create persistentvolumeclaims autopilot-work",
    "create leases.coordination.k8s.io autopilot",
    "create events default",
    "create pods autopilot",
    "delete pods autopilot",
    "get secrets",
    "list secrets",
    "get secrets autopilot",
    "list secrets autopilot",
    "create secrets autopilot",
    "get configmaps autopilot",
    "delete nodes",
    "create nodes",
    "update nodes",
    "delete pods",
    "create pods",
    "create pods default",
    "delete pods kube-system",
    "get pods/log",
    "create pods/exec",
    "create pods/exec autopilot",
    "create pods/eviction",
    "create serviceaccounts/token",
    "create serviceaccounts/token autopilot",
    "patch daemonsets.apps autopilot",
    "update daemonsets.apps",
    "create deployments.apps",
    "create clusterroles.rbac.authorization.k8s.io",
    "bind clusterroles.rbac.authorization.k8s.io",
    "impersonate users",
    "create persistentvolumeclaims default",
    "create roles.rbac.authorization.k8s.io autopilot",
    "watch pods",
    "list leases.coordination.k8s.io kube-system",
    "update leases.coordination.k8s.io kube-node-lease",
    "approve certificatesigningrequests.certificates.k8s.io",
    "proxy nodes",
    "get nodes/proxy",
)


def what_the_agents_may_do(lab):
    """Asked of the authoriser itself, and held against all that the rules review names."""
    account = "system:serviceaccount:autopilot:autopilot"
    groups = ["system:serviceaccounts", "system:serviceaccounts:autopilot", "system:authenticated"]

    def allowed(what):
        verb, resource, *namespace = what.split()
        kind, _slash, sub = resource.partition("/")
        name, _dot, group = kind.partition(".")
        asked = {
            "verb": verb,
            "resource": name,
            "group": group,
            "subresource": sub,
            "namespace": namespace[0] if namespace else "",
        }
        review = {"user": account, "groups": groups, "resourceAttributes": asked}
        return lab.create(
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": review}
        )["status"]

    assert {what for what in (*MAY, *MAY_NOT) if allowed(what).get("allowed")} == MAY
    mine = lab.token("autopilot", "autopilot")
    rules = lab.kubectl(
        "auth", "can-i", "--list", "-n", "autopilot", f"--token={mine}", kubeconfig=anonymous(lab)
    ).stdout
    told = {
        f"{verb} {line.split()[0]}"
        for line in rules.splitlines()[1:]
        if not line.startswith(" ")
        for verb in re.findall(r"\w+", line.rpartition("[")[2])
    }
    common = {
        "create selfsubjectreviews.authentication.k8s.io",
        "create selfsubjectaccessreviews.authorization.k8s.io",
        "create selfsubjectrulesreviews.authorization.k8s.io",
    }
    assert told - common == {
        " ".join(what.split()[:2]) for what in MAY if not what.endswith(" autopilot-work")
    }


def anonymous(lab):
    """A kubeconfig without a person."""
    path = lab.directory / "anonymous.kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": lab.server, "certificate-authority": str(lab.ca)},
                    }
                ],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
            }
        ),
        encoding="utf-8",
    )
    return path


def theirs_and_ours(lab):
    """What agents leave when they die, and what people have beside it."""
    pause = {**RESTRICTED}
    container = {
        "name": "c",
        "image": "none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    labels = {"app.kubernetes.io/name": "autopilot-gpu", "app.kubernetes.io/component": "hold"}
    claim = {
        "app.kubernetes.io/managed-by": "autopilot-gpu",
        "app.kubernetes.io/component": "volume-claim",
    }
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "autopilot-hold-1",
                "namespace": "autopilot-work",
                "labels": labels,
            },
            "spec": {"containers": [container], "securityContext": pause},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "claim-1", "namespace": "autopilot-work", "labels": claim},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "autopilot-marks", "namespace": "autopilot"},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "notes", "namespace": "autopilot"},
        },
    )
    lab.kubectl("label", "node", "role-a", f"{LABEL}=EVICT")
    # Somebody took off the mark, and left the result.
    lab.kubectl("label", "node", "role-b", RESULT)
    taints = [
        {"key": LABEL, "value": "EVICT", "effect": "NoSchedule"},
        {"key": "mine", "effect": "NoSchedule"},
    ]
    lab.kubectl(
        "patch",
        "node",
        "role-a",
        "--type=merge",
        "--patch",
        json.dumps({"spec": {"taints": taints}}),
    )


POD_RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def set_pod_status(lab, pod, **status):
    """Write a pod's status as a kubelet does."""
    lab.kubectl(
        "patch",
        "pod",
        pod,
        "-n",
        "autopilot",
        "--subresource=status",
        "--type=merge",
        "--patch",
        json.dumps({"status": status}),
    )


def container_status(ready=False, **state):
    return [
        {"name": "agent", "image": "x", "imageID": "", "ready": ready, "restartCount": 4, **state}
    ]


def report_running(lab, pod, **state):
    set_pod_status(
        lab,
        pod,
        conditions=[{"type": "Ready", "status": "True"}],
        containerStatuses=container_status(True, state=POD_RUNNING, **state),
        phase="Running",
    )


def report_failed_pull(lab, pod):
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    set_pod_status(lab, pod, containerStatuses=container_status(state={"waiting": waiting}))
    lab.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "pull-", "namespace": "autopilot"},
            "type": "Warning",
            "reason": "Failed",
            "message": 'Failed to pull image "localhost/autopilot-agent:0.1.0": not found '
            "in the registry",
            "involvedObject": {"kind": "Pod", "name": pod, "namespace": "autopilot"},
        }
    )


def report_crash(lab, pod):
    ended = {
        "exitCode": 2,
        "reason": "Error",
        "message": "AUTOPILOT_PORT: 'x' is invalid",
        "startedAt": None,
        "finishedAt": None,
    }
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    set_pod_status(
        lab, pod, containerStatuses=container_status(state=state, lastState={"terminated": ended})
    )


def report_unschedulable(lab, pod):
    set_pod_status(
        lab,
        pod,
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/5 nodes: 1 Insufficient memory",
            }
        ],
    )


def report_node_down(lab, node):
    down = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    lab.kubectl(
        "patch",
        "node",
        node,
        "--subresource=status",
        "--type=merge",
        "--patch",
        json.dumps({"status": {"conditions": down}}),
    )


def check_reasons(failed):
    """Each reason is told with its node, and the node that is down is not waited for."""
    told = failed.stdout.replace("\\n", "\n").replace('\\"', '"')
    assert failed.returncode == 2 and "has a ready pod on 1 of 5 nodes" in told, failed.stdout
    assert (
        "why-a: ImagePullBackOff: Failed to pull image" in told
        and "not found in the registry" in told
    )
    assert (
        "why-b: CrashLoopBackOff: ended with exit code 2 (Error): AUTOPILOT_PORT: 'x' is "
        "invalid" in told
    )
    assert "why-c: Unschedulable: 0/5 nodes: 1 Insufficient memory" in told
    assert "why-e:" not in told and "not waited for: why-e" in told


def test_why_the_agents_do_not_run(lab, clean, play):
    """What kubelets would report of five nodes is written by hand; each reason is told with its
    node, and a node that is down is not waited for.
    """
    with nodes(lab, "why-a", "why-b", "why-c", "why-d", "why-e"):
        assert changed(play()) > 0
        pods = wait_until(
            lambda: by_node(lab) if len(by_node(lab)) == 5 else None, "a pod for each node"
        )
        report_failed_pull(lab, pods["why-a"])
        report_crash(lab, pods["why-b"])
        report_unschedulable(lab, pods["why-c"])
        report_running(lab, pods["why-d"])
        report_node_down(lab, "why-e")
        check_reasons(play(agent_rollout_timeout=1))
        for node in ("why-a", "why-b", "why-c"):
            report_running(lab, pods[node], lastState={})
        assert changed(play(agent_rollout_timeout=60)) == 0


def report_init_ended(lab, pod, message):
    """The init container has ended with the message, and the agent runs."""
    ended = {
        "exitCode": 0,
        "reason": "Completed",
        "message": message,
        "startedAt": None,
        "finishedAt": None,
    }
    report = {
        "name": "report",
        "image": "x",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    agent = {
        "name": "agent",
        "image": "x",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": POD_RUNNING,
    }
    set_pod_status(
        lab,
        pod,
        phase="Running",
        conditions=[{"type": "Ready", "status": "True"}],
        initContainerStatuses=[report],
        containerStatuses=[agent],
    )


def bind_pod(lab, pod, node):
    binding = {
        "metadata": {"name": pod, "namespace": "autopilot"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    lab.create({"apiVersion": "v1", "kind": "Binding", **binding})


def test_agents_without_dcgm_are_reported_once_with_the_build_arguments(lab, clean, play):
    """The text of a report is never templated, and an invalid report is ignored."""
    reports = {
        "dcgm-a": '{"dcgmi": false, "left_out": ["dcgm_diag", "deep_diagnostic", "{{ 6 * 7 }}"]}',
        "dcgm-b": '{"dcgmi": true, "left_out": []}',
        "dcgm-c": "{{ lookup('pipe', 'id') }}",
    }
    with nodes(lab, *reports):
        assert changed(play()) > 0
        pods = wait_until(
            lambda: by_node(lab) if len(by_node(lab)) == len(reports) else None,
            "a pod for each node",
        )
        for node, message in reports.items():
            bind_pod(lab, pods[node], node)
            report_init_ended(lab, pods[node], message)
        done = play(agent_rollout_timeout=60)
        assert changed(done) == 0
        sentence = re.search(r'"msg": "(The agent\'s image has no DCGM.*?)"\n', done.stdout)[1]
        assert "(nodes: dcgm-a)" in sentence and "--build-arg DCGM_REPOSITORY=URL" in sentence
        assert (
            done.stdout.count("DCGM_REPOSITORY") == 1
            and "42" not in sentence
            and "uid=" not in done.stdout
        )
        report_init_ended(lab, pods["dcgm-a"], reports["dcgm-b"])
        quiet = play(agent_rollout_timeout=60)
        assert changed(quiet) == 0 and "DCGM_REPOSITORY" not in quiet.stdout


def by_node(lab):
    """Name of the pod of each node."""
    affinity = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        one["spec"]["affinity"]["nodeAffinity"][affinity]["nodeSelectorTerms"][0]["matchFields"][0][
            "values"
        ][0]: one["metadata"]["name"]
        for one in lab.get("pods", "-n", "autopilot")["items"]
    }
