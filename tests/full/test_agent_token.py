# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody can do who steals an agent's token, asked of a real API server; and that the agent
itself works under the same rules.
"""

from __future__ import annotations

import asyncio
import copy
import re
import time

import pytest
from lab import wait_until

from _health.cluster import claim_objects, claim_procedures, mark_states
from _health.cluster.client import MERGE, STRATEGIC, ApiError, Forbidden, Request, path_of
from _health.cluster.mark_on_node import written_keys
from _health.cluster.mark_writer import mark
from _health.cluster.queue import nudge, slack
from _health.knowledge.marks import FITNESS_LABEL
from agent_role import agent_playbook, crd, load_crds
from autopilot_agent.cluster import gpu_reservation
from autopilot_agent.cluster.kube import Kube

SPACE, WORK = "autopilot", "autopilot-work"
MINE, OTHER, CONTROL = "token-mine", "token-other", "token-control"
SLACK = "slack-cluster-queue"
RULES = mark_states.Rules(taint="NoSchedule", cordon=False, taint_unfit=True, slack_queue=SLACK)
KEY = RULES.label_key
STAND_INS = {
    "agent_volumes": [{"name": "hardware", "hostPath": {"path": "/opt/hardware"}}],
    "agent_volume_mounts": [{"name": "hardware", "mountPath": "/opt/hardware"}],
}
#: As much of an AppWrapper's definition as a nudge takes.
APPWRAPPERS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "appwrappers.workload.codeflare.dev"},
    "spec": {
        "group": "workload.codeflare.dev",
        "scope": "Namespaced",
        "names": {"kind": "AppWrapper", "plural": "appwrappers", "singular": "appwrapper"},
        "versions": [
            {
                "name": "v1beta2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
TRAIN = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"components": []},
    "status": {"phase": "Running"},
}
KUEUE = "kueue.x-k8s.io"
#: As much of Kueue's definitions as the lending limits take.
QUEUES = [
    crd(KUEUE, "clusterqueues", "ClusterQueue", "Cluster", "v1beta2"),
    crd(KUEUE, "resourceflavors", "ResourceFlavor", "Cluster", "v1beta2"),
]
HOST = [{"name": "h", "hostPath": {"path": "/"}}]


class World:
    """The role's objects in a cluster, an agent's pod on a node, and the token of that pod."""

    def __init__(self, lab, directory):
        self.lab, self.directory = lab, directory
        self.agent = self._agent_pod("agent-mine", MINE)
        self.token = self._token(self.agent)
        self.node, self.other = lab.get("node", MINE), lab.get("node", OTHER)

    def _agent_pod(self, name, node):
        user = {"runAsNonRoot": True, "runAsUser": 10001}
        spec = {
            "nodeName": node,
            "serviceAccountName": "autopilot",
            "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "agent",
                    "image": "localhost/autopilot-agent:0.1.0",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        }
        meta = {"name": name, "namespace": SPACE}
        return self.lab.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def _token(self, pod):
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}"]
        bound.append(f"--bound-object-uid={pod['metadata']['uid']}")
        return self.lab.kubectl("-n", SPACE, "create", "token", "autopilot", *bound).stdout.strip()

    def kube(self, token=None):
        path = self.directory / f"token-{abs(hash(token))}"
        path.write_text(token or self.token, encoding="ascii")
        return Kube(self.lab.server, str(self.lab.ca), str(path))

    def hold(self, node=None):
        return gpu_reservation.pod_of(node or self.node, WORK, 8, self.agent, 600, ("KEY", "k1"))

    def plan(self):
        options = {
            "namespace": WORK,
            "storage_class": "token-class",
            "size": "1Gi",
            "access_mode": "ReadWriteOnce",
            "node": MINE,
        }
        return claim_procedures.plan_of(options, 2.0, "agent-mine", SPACE)


def answers(world, requests, token=None):
    """Name -> what the API server answers: the refusal, or "allowed"."""

    async def ask():
        told = {}
        async with world.kube(token) as kube:
            for name, request in requests.items():
                try:
                    await kube.request(request)
                    told[name] = "allowed"
                except Forbidden as error:
                    told[name] = f"refused: {error}"
                except ApiError as error:
                    told[name] = f"invalid: {error}"
        return told

    return asyncio.run(ask())


def make_appwrapper(lab):
    """An AppWrapper with a pod on the agent's node."""
    lab.create(APPWRAPPERS)
    wait_until(
        lambda: lab.kubectl("get", "appwrappers", check=False).returncode == 0,
        "the API server knows AppWrappers",
    )
    lab.create(TRAIN)
    lab.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "train-0",
                "namespace": "default",
                "labels": {nudge.POD_LABEL: "train"},
            },
            "spec": {"nodeName": MINE, "containers": [{"name": "c", "image": "none"}]},
        }
    )


def queue(name):
    """A ClusterQueue with 16 GPUs."""
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]
    flavors = [{"name": "default-flavor", "resources": resources}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    return {
        "apiVersion": f"{KUEUE}/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"cohortName": "default-cohort", "resourceGroups": groups},
    }


def make_queues(lab):
    """The slack queue and that of a team."""
    load_crds(lab, QUEUES)
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "default-flavor"}, "spec": {}}
    lab.apply({"apiVersion": f"{KUEUE}/v1beta2", **flavor}, queue(SLACK), queue("blue"))


@pytest.fixture(
    scope="module", params=[{}, STAND_INS], ids=["without host paths", "with host paths"]
)
def world(request, lab, tmp_path_factory):
    directory = tmp_path_factory.mktemp("token")
    play = agent_playbook(lab, directory)
    for name in (MINE, OTHER, CONTROL):
        lab.make_node(name)
    make_appwrapper(lab)
    make_queues(lab)
    lab.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "token-class"},
            "provisioner": "example.com/away",
        }
    )
    done = play(
        agent_taint="NoSchedule",
        agent_taint_unfit=True,
        agent_slack_queue=SLACK,
        agent_pvc_storage_class="token-class",
        agent_node_selector={"no": "node"},
        **request.param,
    )
    assert done.returncode == 0, done.stdout
    made = World(lab, directory)
    # The API server learns of a policy within seconds.
    wait_until(
        lambda: "refused" in answers(made, {"x": patched(OTHER, label("example.org/x"))})["x"],
        "the policy is in force",
    )
    # The controllers make the default account of a new namespace, without which no pod is admitted.
    wait_until(
        lambda: (
            lab.kubectl("get", "serviceaccount", "default", "-n", WORK, check=False).returncode == 0
        ),
        "pods are admitted",
    )
    yield made
    # No kubelet lets go of them.
    for space in (SPACE, WORK):
        lab.kubectl("-n", space, "delete", "pods", "--all", "--force", "--grace-period=0")
    gone = play(agent_state="absent")
    lab.kubectl("delete", "storageclass", "token-class")
    lab.kubectl("-n", "default", "delete", "pod", "train-0", "--force", "--grace-period=0")
    names = [one["metadata"]["name"] for one in (APPWRAPPERS, *QUEUES)]
    lab.kubectl("delete", "crd", *names)
    lab.kubectl("delete", "node", MINE, OTHER, CONTROL)
    assert gone.returncode == 0, gone.stdout
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces"
    left = [one["metadata"]["name"] for one in lab.get(kinds)["items"]]
    assert not [name for name in left if name.startswith("autopilot")]


def label(key, value="x"):
    return {"metadata": {"labels": {key: value}}}


def patched(node, body, *part):
    kind = STRATEGIC if part else MERGE
    return Request("PATCH", path_of("api/v1/nodes", node, *part), body, content_type=kind)


def condition(kind, status="False"):
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "AutopilotX"}]}}


def taint(key, effect):
    return {"spec": {"taints": [{"key": key, "value": "EVICT", "effect": effect}]}}


def made(kind, namespace, body):
    return Request("POST", path_of("api/v1/namespaces", namespace, kind), body, {"dryRun": "All"})


def attempts_on_nodes():
    """Changes of nodes that no agent needs."""
    other = {
        f"the {part} of another node": patched(OTHER, body, *path)
        for part, body, path in (
            ("label", label(KEY, "EVICT"), ()),
            ("taint", taint(KEY, "NoSchedule"), ()),
            ("condition", condition("GPUHealthy"), ("status",)),
            ("label by its status", label(KEY, "EVICT"), ("status",)),
        )
    }
    return {
        **other,
        "another label": patched(MINE, label("node-role.kubernetes.io/control-plane", "")),
        "another label by the status": patched(MINE, label("example.org/pool"), "status"),
        "removing a label": patched(MINE, label("kubernetes.io/hostname", None)),
        "another annotation": patched(MINE, {"metadata": {"annotations": {"a": "b"}}}),
        "a finalizer": patched(MINE, {"metadata": {"finalizers": ["example.org/x"]}}),
        "an owner": patched(
            MINE,
            {
                "metadata": {
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "u"}
                    ]
                }
            },
        ),
        "another taint": patched(MINE, taint("example.org/x", "NoSchedule")),
        "another effect": patched(MINE, taint(KEY, "NoExecute")),
        "another effect of unfit nodes": patched(MINE, taint(FITNESS_LABEL, "NoExecute")),
        "a cordon": patched(MINE, {"spec": {"unschedulable": True}}),
        "a provider": patched(MINE, {"spec": {"providerID": "aws://x"}}),
        "another condition": patched(MINE, condition("Ready", "True"), "status"),
        "the capacity": patched(MINE, {"status": {"capacity": {"cpu": "9000"}}}, "status"),
        "an address": patched(
            MINE, {"status": {"addresses": [{"type": "Hostname", "address": "x"}]}}, "status"
        ),
        "deleting its node": Request("DELETE", path_of("api/v1/nodes", MINE)),
        "deleting another node": Request("DELETE", path_of("api/v1/nodes", OTHER)),
        "creating a node": Request(
            "POST",
            "/api/v1/nodes",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "token-new"}},
        ),
    }


def attempts_with_shapes(world):
    """Pods on the own node that are no hold pods."""

    def hold(volumes=(), **spec):
        pod = world.hold()
        pod["spec"]["volumes"] += volumes
        pod["spec"].update(spec)
        return made("pods", WORK, pod)

    def container(**more):
        pod = world.hold()
        pod["spec"]["containers"][0].update(copy.deepcopy(more))
        return made("pods", WORK, pod)

    secret = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "pull", "key": "x"}}}
    privileged = {"securityContext": {"privileged": True}}
    return {
        "a hostPath": hold(volumes=HOST),
        "a Secret as a volume": hold(volumes=[{"name": "s", "secret": {"secretName": "pull"}}]),
        "a Secret in the environment": container(env=[secret]),
        "all of a Secret in the environment": container(envFrom=[{"secretRef": {"name": "pull"}}]),
        "the host's network": hold(hostNetwork=True),
        "a privileged container": container(**privileged),
        "an init container": hold(
            initContainers=[{**world.hold()["spec"]["containers"][0], "name": "init"}]
        ),
        "a token": hold(automountServiceAccountToken=True),
        "a projected token": hold(
            volumes=[
                {
                    "name": "t",
                    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
                }
            ]
        ),
        "the claim of another pod": hold(
            volumes=[{"name": "c", "persistentVolumeClaim": {"claimName": "another"}}]
        ),
        "a second container": hold(
            containers=[{**world.hold()["spec"]["containers"][0], "name": name} for name in "ab"]
        ),
        "restarts": hold(restartPolicy="Always"),
        "no deadline": hold(activeDeadlineSeconds=None),
        "the priority of the system": hold(priorityClassName="system-node-critical"),
    }


def attempts_with_pods(world):
    """Pods elsewhere, and what else is done to pods."""
    elsewhere = world.hold()
    del elsewhere["metadata"]["namespace"]
    unowned = world.hold()
    del unowned["metadata"]["ownerReferences"]
    moved = world.hold()
    moved["spec"]["nodeName"] = OTHER
    no_node = world.hold()
    del no_node["spec"]["nodeName"]
    control = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "thief"},
        "spec": {
            "nodeName": CONTROL,
            "hostPID": True,
            "containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}],
            "volumes": HOST,
        },
    }
    return {
        **{
            f"a privileged pod on the control plane in {space}": made("pods", space, control)
            for space in (SPACE, WORK, "default", "kube-system")
        },
        **{
            f"a hold pod in {space}": made("pods", space, elsewhere)
            for space in (SPACE, "default", "kube-system")
        },
        "a hold pod of another node": made("pods", WORK, world.hold(world.other)),
        "a hold pod on another node": made("pods", WORK, moved),
        "a hold pod on any node": made("pods", WORK, no_node),
        "a hold pod without its node as owner": made("pods", WORK, unowned),
        "exec in its own pod": Request(
            "POST",
            path_of("api/v1/namespaces", SPACE, "pods", "agent-mine", "exec"),
            query={"command": "id"},
        ),
        "deleting its own pod": Request(
            "DELETE", path_of("api/v1/namespaces", SPACE, "pods", "agent-mine")
        ),
        "deleting the hold pod of another node": Request(
            "DELETE", path_of("api/v1/namespaces", WORK, "pods", gpu_reservation.name_of(OTHER))
        ),
    }


def queue_spec(**quota):
    """The quotas of a ClusterQueue with something else for its GPUs."""
    groups = queue("x")["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][0].update(quota)
    return {"resourceGroups": groups}


QUEUES_PATH = path_of(f"apis/{KUEUE}/v1beta2", "clusterqueues")
TRAIN_PATH = path_of(
    "apis/workload.codeflare.dev/v1beta2/namespaces", "default", "appwrappers", "train"
)


def attempts_with_objects(world):
    """Everything else of the cluster."""
    owned = claim_objects.claim_of(world.plan())
    theirs = {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "u"}
    owned["metadata"].pop("namespace")
    other = copy.deepcopy(owned)
    other["metadata"]["ownerReferences"] = [theirs]

    def event(node):
        about = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
        meta = {"generateName": "x-"}
        return {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": about}

    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "mine"}}
    leases = path_of("apis/coordination.k8s.io/v1/namespaces", SPACE, "leases")
    account = path_of("api/v1/namespaces", SPACE, "serviceaccounts", "autopilot-client", "token")
    return {
        **{
            f"the secrets of {space}": Request(
                "GET", path_of("api/v1/namespaces", space, "secrets")
            )
            for space in (SPACE, WORK, "default", "kube-system")
        },
        **{
            f"a claim in {space}": made("persistentvolumeclaims", space, owned)
            for space in (SPACE, "default", "kube-system")
        },
        "a claim without an owner": made("persistentvolumeclaims", WORK, owned),
        "a claim of another node": made("persistentvolumeclaims", WORK, other),
        "an event about another node": made("events", "default", event(OTHER)),
        "another Lease": Request("POST", leases, lease),
        "the token of another account": Request("POST", account, {}),
        "the label of its namespace": Request(
            "PATCH",
            path_of("api/v1/namespaces", WORK),
            label("pod-security.kubernetes.io/enforce", "privileged"),
            content_type=MERGE,
        ),
        **{
            f"the {part} of an AppWrapper": Request("PATCH", TRAIN_PATH, body, content_type=MERGE)
            for part, body in (
                ("components", {"spec": {"components": [{"template": {}}]}}),
                ("label", label("kueue.x-k8s.io/queue-name", "mine")),
                ("annotation", {"metadata": {"annotations": {"a": "b"}}}),
                ("owner", {"metadata": {"ownerReferences": [dict(theirs, uid="u")]}}),
            )
        },
        "deleting an AppWrapper": Request("DELETE", TRAIN_PATH),
        "an AppWrapper": Request("POST", TRAIN_PATH.rpartition("/")[0], TRAIN),
        "removing the policy": Request(
            "DELETE",
            path_of(
                "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
                "autopilot-agent-nodes",
            ),
        ),
    }


def attempts_with_queues():
    """The queues that the agents' marks concern."""
    return {
        **{
            f"the {part} of a ClusterQueue": Request(
                "PATCH", QUEUES_PATH + f"/{name}", body, content_type=MERGE
            )
            for part, name, body in (
                ("quota", SLACK, {"spec": queue_spec(nominalQuota="17")}),
                ("borrowing limit", SLACK, {"spec": queue_spec(borrowingLimit="17")}),
                ("flavors", SLACK, {"spec": {"resourceGroups": []}}),
                ("cohort", SLACK, {"spec": {"cohortName": "mine"}}),
                ("label", SLACK, label("a")),
                ("annotation", SLACK, {"metadata": {"annotations": {"a": "b"}}}),
                ("lending limit of a team", "blue", {"spec": queue_spec(lendingLimit="0")}),
            )
        },
        "deleting a ClusterQueue": Request("DELETE", f"{QUEUES_PATH}/{SLACK}"),
        "a ClusterQueue": Request("POST", QUEUES_PATH, queue("mine")),
    }


def test_nothing_that_a_thief_tries_is_allowed(world):
    world.lab.apply(world.hold(world.other))
    attempts = {
        **attempts_on_nodes(),
        **attempts_with_shapes(world),
        **attempts_with_pods(world),
        **attempts_with_objects(world),
        **attempts_with_queues(),
    }
    told = answers(world, attempts)
    assert {name: answer for name, answer in told.items() if not answer.startswith("refused")} == {}
    # Where the access rules allow the verb, the policy is what refuses the fields.
    by_policy = [name for name, answer in told.items() if "ValidatingAdmissionPolicy" in answer]
    assert set(by_policy) >= {
        name for name in attempts_on_nodes() if not re.match("(deleting|creating) ", name)
    }


def test_a_token_that_is_bound_to_no_pod_changes_nothing(world):
    loose = world.lab.token(SPACE, "autopilot")
    told = answers(
        world,
        {
            "label": patched(MINE, label(KEY, "WARN")),
            "pod": made("pods", WORK, world.hold()),
            "condition": patched(MINE, condition("GPUHealthy"), "status"),
        },
        loose,
    )
    assert {answer.partition(":")[0] for answer in told.values()} == {"refused"}, told


def test_the_agent_marks_its_node(world):
    async def run():
        async with world.kube() as kube:
            for event in (
                mark_states.TestingBegan("t", 60.0, "test"),
                mark_states.TestingEnded("t", "fatal", 3, ("memory.0",), "bad"),
            ):
                marked = await kube.run(mark(MINE, event, RULES, time.time, f"agent/{MINE}"))
                assert not marked.refused
                assert not marked.slack_problem
        found = world.lab.get("node", MINE)
        lent.append(world.lab.get("clusterqueue", SLACK))
        async with world.kube() as kube:
            passed = mark_states.TestingBegan("u", 60.0, "test")
            await kube.run(mark(MINE, passed, RULES, time.time, f"agent/{MINE}"))
            passed = mark_states.TestingEnded("u", "pass", 3)
            await kube.run(mark(MINE, passed, RULES, time.time, f"agent/{MINE}"))
        lent.append(world.lab.get("clusterqueue", SLACK))
        return found, world.lab.get("node", MINE)

    lent = [world.lab.get("clusterqueue", SLACK)]
    before = world.lab.get("appwrapper", "train", "-n", "default")
    bad, good = asyncio.run(run())
    # The AppWrapper with a pod on the node was written to; nothing else of it changed.
    after = world.lab.get("appwrapper", "train", "-n", "default")
    assert set(after["metadata"]["annotations"]) == {nudge.ANNOTATION}
    assert after["spec"] == before["spec"]
    # The slack queue lends 8 GPUs less while the node is EVICT, and is then as it was.
    assert [one["spec"] for one in lent] == [
        queue(SLACK)["spec"],
        queue_spec(lendingLimit="8") | {"cohortName": "default-cohort"},
        queue(SLACK)["spec"],
    ]
    assert slack.ANNOTATION not in lent[2]["metadata"].get("annotations", {})
    keys = written_keys(RULES)
    assert (bad["metadata"]["labels"][KEY], good["metadata"]["labels"][KEY]) == ("EVICT", "PASS")
    assert bad["metadata"]["annotations"].keys() & set(keys["annotations"])
    assert {"key": KEY, "value": "EVICT", "effect": "NoSchedule"} in bad["spec"]["taints"]
    assert KEY not in [one["key"] for one in good["spec"].get("taints", [])]
    conditions = {one["type"]: one["status"] for one in bad["status"]["conditions"]}
    assert (conditions["GPUHealthy"], conditions["Ready"]) == ("False", "True")


def test_the_agent_taints_its_unfit_node_and_removes_the_taint_when_the_node_is_fit(world):
    async def run():
        found = []
        async with world.kube() as kube:
            for status in ("pass", "unknown", "fail", "unknown", "pass"):
                event = mark_states.Checked(status, "x", code="row_remap_failure")
                await kube.run(mark(MINE, event, RULES, time.time, f"agent/{MINE}"))
                taints = world.lab.get("node", MINE)["spec"].get("taints", [])
                found.append([one for one in taints if one["key"] == FITNESS_LABEL])
        return found

    unfit = {"key": FITNESS_LABEL, "value": "unfit", "effect": "NoSchedule"}
    assert asyncio.run(run()) == [[], [], [unfit], [unfit], []]


def test_the_agent_reserves_its_gpus_and_releases_them(world):
    async def run():
        pods = path_of("api/v1/namespaces", WORK, "pods")
        hold = f"{pods}/{gpu_reservation.name_of(MINE)}"
        async with world.kube() as kube:
            await kube.create(pods, world.hold())
            found = await kube.get(hold)
            await kube.delete(hold, {"gracePeriodSeconds": 0})
        return found

    assert asyncio.run(run())["spec"]["nodeName"] == MINE


def test_the_agent_makes_its_claim_and_removes_it(world):
    plan, readings = world.plan(), {}

    async def run():
        async with world.kube() as kube:
            attempt = claim_procedures.attempt(plan, readings, time.monotonic, time.time())
            await kube.run(attempt)
            until = time.monotonic() + 30
            return await kube.run(claim_procedures.removal(plan, time.monotonic, until))

    assert asyncio.run(run()) == []
    assert {"claim", "pod", "late"} <= readings.keys() and "refused" not in readings, readings
    assert not world.lab.get("persistentvolumeclaims", "-n", WORK)["items"]
