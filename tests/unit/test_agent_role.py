# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The role agent, as far as no cluster is needed: its words agree with the agent's, and it tells
from objects why an agent does not run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from _health.agent.settings import AgentSettings

from ansible_collections.autopilot.gpu.plugins.module_utils._agent_objects import CREATED_KINDS
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_on_node import (
    written_keys,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import Rules
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    agents_without_dcgm,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._rollout import (
    headline,
    judge,
    reasons_of,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents.agents import trouble_of

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/agent"

#: Every value of IBM Autopilot's chart v2.1.3, and of that of 2023.
CHART = (
    "image.repository",
    "image.tag",
    "image.pullPolicy",
    "PCIeBW",
    "repeat",
    "invasive",
    "pullSecrets.create",
    "pullSecrets.name",
    "pullSecrets.imagePullSecretData",
    "env",
    "env.PERIODIC_CHECKS",
    "env.PVC_TEST_STORAGE_CLASS",
    "env.DCGM_FATAL_ERRORS",
    "env.INVASIVE_JOB_TTLSEC",
    "service.port",
    "serviceAnnotations",
    "annotations",
    "nodeSelector",
    "affinity",
    "onlyOnGPUNodes",
    "resources",
    "loglevel",
    "additionalVolumeClaimTemplates",
    "additionalVolumeMounts",
    "namespace.create",
    "namespace.name",
)


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def render():
    """``render(**variables)``: every object but the Secrets, by ``kind name``. The cluster has all
    APIs but those that make certificates, which ``tls_apis`` names.
    """
    kinds = [kind for api, _resource, kind in CREATED_KINDS if "cert-manager" not in api]

    def run(tls_apis=(), **variables):
        loader = DataLoader()
        loader.set_basedir(str(ROLE))
        found = {
            "namespace": {"name": "autopilot", "exists": False, "ours": False},
            "work_namespace": {"name": "autopilot-work", "exists": False, "ours": False},
            "apis": [*kinds, *tls_apis],
            "written_keys": written_keys(Rules()),
            "tls_ca": "",
        }
        known = {"ansible_search_path": [str(ROLE)], "agent_found": found}
        for file in ("defaults/main.yml", "vars/main.yml"):
            known.update(loader.load_from_file(str(ROLE / file), trusted_as_template=True))
        known.update(loader.load(trust_as_template(json.dumps(variables))))
        text = trust_as_template("{{ agent_objects | to_json }}")
        objects = json.loads(Templar(loader=loader, variables=known).template(text))
        assert len(
            {
                (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace"))
                for one in objects
            }
        ) == len(objects)
        return {f"{one['kind']} {one['metadata']['name']}": one for one in objects}

    return run


def test_every_value_of_the_chart_has_its_variable():
    text = (ROLE / "README.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| `([A-Za-z_.]+)` \| (?:`(agent_[a-z_]+)`|none) \|",
        text[text.index("| value of the chart |") :],
        re.M,
    )
    assert [value for value, _variable in table] == list(CHART)
    assert {variable for _value, variable in table if variable} <= set(
        load("roles/agent/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    )


def test_defaults_are_those_that_are_told():
    told = {
        name: one.get("default")
        for name, one in load("roles/agent/meta/argument_specs.yml")["argument_specs"]["main"][
            "options"
        ].items()
    }
    assert load("roles/agent/defaults/main.yml") == {
        name: default for name, default in told.items() if default is not None
    }
    assert told["agent_image_tag"] == load("galaxy.yml")["version"]


def environment(objects):
    (agent,) = objects["DaemonSet autopilot"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "10.0.0.1") for one in agent["env"]}


def test_the_agent_understands_what_the_role_tells_it(render):
    """Without a word of the operator, the agent does what it would do without a word of the role;
    each variable is one that it reads.
    """
    given = environment(render())
    settings = (ROOT / "plugins/module_utils/_health/agent/settings.py").read_text(encoding="utf-8")
    assert [
        name for name in given if f'"{name}"' not in settings and not name.startswith("NVIDIA_")
    ] == []
    least = {
        name: given[name]
        for name in ("NODE_NAME", "NAMESPACE", "POD_NAME", "POD_IP", "AUTOPILOT_PEER_TOKEN_FILE")
    }
    server = {"AUTOPILOT_API_SERVER": "https://10.0.0.1"}
    assert AgentSettings.from_environment({**given, **server}) == AgentSettings.from_environment(
        {**least, **server}
    )


def test_an_empty_audience_is_the_api_servers_in_the_agent_too(render):
    server = {"AUTOPILOT_API_SERVER": "https://10.0.0.1"}
    given = environment(render(agent_audience=""))
    assert AgentSettings.from_environment({**given, **server}).audience == ""


CERT_MANAGER = ("Certificate", "Issuer")
SERVICE_CA = ("ServiceCA",)
PROJECTED = {
    "sources": [
        {"secret": {"name": "autopilot-tls"}},
        {
            "configMap": {
                "name": "autopilot-ca",
                "items": [{"key": "service-ca.crt", "path": "ca.crt"}],
            }
        },
    ]
}


@pytest.mark.parametrize(
    "tls_apis, variables, volume",
    [
        ((), {}, None),
        (CERT_MANAGER + SERVICE_CA, {"agent_tls": "off", "agent_tls_secret": "mine"}, None),
        (
            CERT_MANAGER + SERVICE_CA,
            {"agent_tls_secret": "mine"},
            {"secret": {"secretName": "mine"}},
        ),
        (CERT_MANAGER + SERVICE_CA, {}, {"projected": PROJECTED}),
        (CERT_MANAGER, {}, {"secret": {"secretName": "autopilot-tls"}}),
        (SERVICE_CA, {"agent_tls": "create"}, {"secret": {"secretName": "autopilot-tls"}}),
    ],
    ids=["no API", "off", "a Secret", "OpenShift", "cert-manager", "the role"],
)
def test_where_the_certificate_comes_from(render, tls_apis, variables, volume):
    """With TLS, the agents, the probes and Prometheus all use the certificate, or none of them."""
    objects = render(tls_apis, agent_service_annotations={"prometheus.io/scrape": "1"}, **variables)
    spec = objects["DaemonSet autopilot"]["spec"]["template"]["spec"]
    agent = spec["containers"][0]
    mounted = [one["mountPath"] for one in agent["volumeMounts"] if one["name"] == "tls"]
    volumes = [one for one in spec["volumes"] if one["name"] == "tls"]
    probes = {
        agent[f"{name}Probe"]["httpGet"].get("scheme")
        for name in ("startup", "liveness", "readiness")
    }
    (endpoint,) = objects["ServiceMonitor autopilot-metrics-monitor"]["spec"]["endpoints"]
    scheme = objects["Service autopilot-metrics-service"]["metadata"]["annotations"].get(
        "prometheus.io/scheme"
    )
    if volume is None:
        assert "AUTOPILOT_TLS_DIR" not in environment(objects)
        assert (mounted, volumes, probes, scheme) == ([], [], {None}, None)
        assert not ask.serves_tls({"spec": spec})
        assert "scheme" not in endpoint and "tlsConfig" not in endpoint
        return
    assert mounted == [environment(objects)["AUTOPILOT_TLS_DIR"]] and ask.serves_tls({"spec": spec})
    assert (volumes, probes, scheme) == ([{"name": "tls", **volume}], {"HTTPS"}, "https")
    secret = volume.get("secret", {}).get("secretName")
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"] == {
        "serverName": "autopilot-healthchecks.autopilot.svc",
        "ca": {"secret": {"name": secret, "key": "ca.crt"}}
        if secret
        else {"configMap": {"name": "autopilot-ca", "key": "service-ca.crt"}},
    }


@pytest.mark.parametrize(
    "tls_apis, variables, termination",
    [
        ((), {}, "edge"),
        (SERVICE_CA, {}, "reencrypt"),
        (CERT_MANAGER, {}, "passthrough"),
        (SERVICE_CA, {"agent_tls": "create"}, "passthrough"),
        (SERVICE_CA, {"agent_tls_secret": "mine"}, "passthrough"),
    ],
    ids=["plain", "OpenShift", "cert-manager", "the role", "a Secret"],
)
def test_a_route_leads_to_the_requests_and_follows_tls(render, tls_apis, variables, termination):
    assert "Route autopilot-healthchecks" not in render(tls_apis, **variables)
    objects = render(tls_apis, agent_route=True, **variables)
    spec = objects["Route autopilot-healthchecks"]["spec"]
    (port,) = objects[f"Service {spec['to']['name']}"]["spec"]["ports"]
    assert (spec["port"]["targetPort"], spec["to"]["kind"]) == (port["name"], "Service")
    assert spec["tls"] == {"termination": termination}


def test_openshift_makes_the_certificate_for_the_service_of_requests(render):
    objects = render(SERVICE_CA)
    key = "service.beta.openshift.io/serving-cert-secret-name"
    annotated = {
        name: one["metadata"]["annotations"][key]
        for name, one in objects.items()
        if key in one["metadata"].get("annotations", {})
    }
    assert annotated == {"Service autopilot-healthchecks": "autopilot-tls"}
    published = objects["ConfigMap autopilot-ca"]
    assert published["metadata"]["annotations"] == {
        "service.beta.openshift.io/inject-cabundle": "true"
    }
    # OpenShift writes the data.
    assert "data" not in published


def test_cert_manager_makes_the_certificate_with_issuers_of_the_namespace(render):
    objects = render(CERT_MANAGER)
    made = {name: one for name, one in objects.items() if "cert-manager.io" in one["apiVersion"]}
    assert sorted(made) == [
        "Certificate autopilot-ca",
        "Certificate autopilot-tls",
        "Issuer autopilot-ca",
        "Issuer autopilot-self-signed",
    ]
    assert {one["metadata"]["namespace"] for one in made.values()} == {"autopilot"}
    assert made["Issuer autopilot-ca"]["spec"] == {"ca": {"secretName": "autopilot-ca"}}
    ca, serving = (made[f"Certificate autopilot-{name}"]["spec"] for name in ("ca", "tls"))
    assert ca["isCA"] is True and ca["issuerRef"]["name"] == "autopilot-self-signed"
    assert serving["issuerRef"]["name"] == "autopilot-ca"
    assert "autopilot-healthchecks.autopilot.svc" in serving["dnsNames"]
    for spec in (ca, serving):
        # By these labels the role finds and removes the Secrets.
        assert spec["secretTemplate"]["labels"]["app.kubernetes.io/managed-by"] == "autopilot-gpu"
        assert spec["issuerRef"]["kind"] == "Issuer"


def test_no_certificate_is_made_where_the_user_has_one_or_wants_none(render):
    for variables in ({"agent_tls_secret": "mine"}, {"agent_tls": "off"}, {"agent_tls": "create"}):
        objects = render(CERT_MANAGER + SERVICE_CA, **variables)
        assert not [name for name in objects if "autopilot-ca" in name or "Issuer" in name]


def test_the_role_sets_checks_and_deep_period_only_where_the_operator_does(render):
    names = {"PERIODIC_CHECKS", "AUTOPILOT_INVASIVE_SECONDS"}
    assert not names & set(environment(render()))
    given = environment(
        render(agent_periodic_checks=["gpu_count", "dcgm"], agent_invasive_seconds=0)
    )
    assert {name: given[name] for name in names} == {
        "PERIODIC_CHECKS": "gpu_count,dcgm",
        "AUTOPILOT_INVASIVE_SECONDS": "0",
    }


def test_the_init_container_has_the_image_environment_and_volumes_of_the_agent(render):
    """Each of the three decides whether dcgmi is found."""
    spec = render(
        agent_env=[{"name": "PATH", "value": "/v/bin"}],
        agent_volumes=[{"name": "v", "emptyDir": {}}],
        agent_volume_mounts=[{"name": "v", "mountPath": "/v"}],
    )["DaemonSet autopilot"]["spec"]["template"]["spec"]
    (report,), (agent,) = spec["initContainers"], spec["containers"]
    assert report["name"] == agents_without_dcgm.CONTAINER and report["command"] == [
        "python",
        "-m",
        "autopilot_agent.report",
    ]
    same = ("image", "imagePullPolicy", "env", "resources", "securityContext")
    assert [report[name] for name in same] == [agent[name] for name in same]
    assert [one for one in agent["volumeMounts"] if one not in report["volumeMounts"]] == [
        {"name": "peers", "mountPath": "/var/run/secrets/autopilot", "readOnly": True}
    ]


def test_words_of_the_command_line_are_understood(render):
    """What comes from `-e` or a form is text: false is not true, and names with commas are names."""
    objects = render(
        agent_mark_nodes="false",
        agent_open_metrics="no",
        agent_network_policy="false",
        agent_service_monitor="false",
        agent_only_on_gpu_nodes="false",
        agent_periodic_checks="pciebw,remapped",
        agent_dcgm_fatal_errors="PCIe,ECC",
        agent_max_unavailable="3",
        agent_repeat_seconds="60",
        agent_expected_gpus="8",
        agent_runtime_class="",
        agent_priority_class="",
        agent_image_tag="sha256:" + "0" * 64,
    )
    given = environment(objects)
    names = (
        "AUTOPILOT_MARK_NODES",
        "AUTOPILOT_OPEN_METRICS",
        "PERIODIC_CHECKS",
        "DCGM_FATAL_ERRORS",
        "AUTOPILOT_EXPECTED_GPUS",
        "AUTOPILOT_REPEAT_SECONDS",
    )
    assert [given[name] for name in names] == [
        "false",
        "false",
        "pciebw,remapped",
        "PCIe,ECC",
        "8",
        "60",
    ]
    spec = objects["DaemonSet autopilot"]["spec"]
    assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 3
    assert not {"nodeSelector", "runtimeClassName", "priorityClassName"} & set(
        spec["template"]["spec"]
    )
    assert (
        spec["template"]["spec"]["containers"][0]["image"]
        == "localhost/autopilot-agent@sha256:" + "0" * 64
    )
    assert not {
        "NetworkPolicy autopilot",
        "ServiceMonitor autopilot-metrics-monitor",
        "PriorityClass autopilot-agent",
    } & set(objects)


def test_what_the_operator_adds_is_in_the_pod(render):
    objects = render(
        agent_node_selector={"pool": "h100"},
        agent_affinity={"nodeAffinity": {}},
        agent_tolerations=[{"operator": "Exists"}],
        agent_annotations={"a": "b"},
        agent_service_annotations={"c": "d"},
        agent_volumes=[{"name": "v", "emptyDir": {}}],
        agent_volume_mounts=[{"name": "v", "mountPath": "/v"}],
        agent_network_attachments=[{"name": "fast", "config": '{"type": "macvlan"}'}],
        agent_open_metrics=False,
        agent_env=[{"name": "DCGM_FATAL_ERRORS", "value": ""}],
    )
    template = objects["DaemonSet autopilot"]["spec"]["template"]
    spec = template["spec"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true", "pool": "h100"} and spec[
        "affinity"
    ] == {"nodeAffinity": {}}
    assert spec["tolerations"] == [
        {"operator": "Exists"},
        {"key": "autopilot.ibm.com/gpuhealth", "operator": "Exists"},
        {"key": "autopilot.gpu/fitness", "operator": "Exists"},
    ]
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert {one["name"] for one in spec["volumes"]} == {"tmp", "peers", "v"} and spec["containers"][
        0
    ]["volumeMounts"][-1]["mountPath"] == "/v"
    assert [one for one in spec["containers"][0]["env"] if one["name"] == "DCGM_FATAL_ERRORS"] == [
        {"name": "DCGM_FATAL_ERRORS", "value": ""}
    ]
    assert objects["Service autopilot-healthchecks"]["metadata"]["annotations"] == {"c": "d"}
    assert objects["NetworkAttachmentDefinition fast"]["spec"]["config"] == '{"type": "macvlan"}'
    assert (
        "bearerTokenFile"
        in objects["ServiceMonitor autopilot-metrics-monitor"]["spec"]["endpoints"][0]
    )


@pytest.mark.parametrize(
    "volume, level",
    [({"emptyDir": {}}, "restricted"), ({"hostPath": {"path": "/run"}}, "privileged")],
)
def test_volumes_of_the_nodes_own_files_are_let_in_only_where_there_are_some(render, volume, level):
    objects = render(agent_volumes=[{"name": "v", **volume}])
    wanted, constraints = (
        "hostPath" in volume,
        objects["SecurityContextConstraints autopilot-agent"],
    )
    assert (
        objects["Namespace autopilot"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == level
    )
    assert (constraints["allowHostDirVolumePlugin"], "hostPath" in constraints["volumes"]) == (
        wanted,
        wanted,
    )


# ---- what the agents may do ----

ALWAYS = {
    "autopilot-agent": {"get nodes", "list nodes", "list pods"},
    "autopilot": {
        "get pods",
        "list pods",
        "get endpointslices.discovery.k8s.io",
        "list endpointslices.discovery.k8s.io",
    },
}
PODS = {f"{verb} pods" for verb in ("get", "list", "create", "delete")}
#: Variables that switch a feature on -> the rights that it adds, by role.
FEATURES = {
    "marks": (
        {"agent_mark_nodes": True},
        {
            "autopilot-agent": {
                "patch nodes",
                "get appwrappers.workload.codeflare.dev",
                "patch appwrappers.workload.codeflare.dev",
            },
            "autopilot": {
                "create leases.coordination.k8s.io",
                "get leases.coordination.k8s.io autopilot-marks",
                "update leases.coordination.k8s.io autopilot-marks",
            },
            "autopilot-node-events": {"create events"},
        },
    ),
    "condition": (
        {"agent_mark_nodes": True, "agent_condition": True},
        {"autopilot-agent": {"patch nodes/status"}},
    ),
    "slack": (
        {"agent_mark_nodes": True, "agent_slack_queue": "slack"},
        {
            "autopilot-agent": {
                "get clusterqueues.kueue.x-k8s.io slack",
                "patch clusterqueues.kueue.x-k8s.io slack",
                "list resourceflavors.kueue.x-k8s.io",
            }
        },
    ),
    "hold pods": ({"agent_reserve_gpus": True}, {"autopilot-work": PODS}),
    "claims": (
        {"agent_pvc_storage_class": "fast"},
        {
            "autopilot-agent": {"list storageclasses.storage.k8s.io"},
            "autopilot-work": PODS
            | {pod.replace("pods", "persistentvolumeclaims") for pod in PODS}
            | {"list resourcequotas", "list events"},
        },
    ),
    "access": (
        {"agent_auth": "required"},
        {
            "autopilot-agent": {
                "create tokenreviews.authentication.k8s.io",
                "create subjectaccessreviews.authorization.k8s.io",
            }
        },
    ),
}
OFF = {
    "agent_mark_nodes": False,
    "agent_condition": False,
    "agent_reserve_gpus": False,
    "agent_pvc_storage_class": "",
    "agent_auth": "off",
}


def rights(objects):
    """``verb resource`` (with a name, where the rule has one) of each role of the agents."""
    return {
        name.partition(" ")[2]: {
            " ".join(
                [verb, ".".join(filter(None, (resource, group))), *rule.get("resourceNames", [])]
            )
            for rule in made["rules"]
            for verb in rule["verbs"]
            for resource in rule.get("resources", [])
            for group in rule["apiGroups"]
        }
        for name, made in objects.items()
        if made["kind"] in ("Role", "ClusterRole") and "nonResourceURLs" not in made["rules"][0]
    }


@pytest.mark.parametrize(
    "features",
    [[], *([name] for name in FEATURES), ["marks", "condition"], list(FEATURES)],
    ids=" and ".join,
)
def test_the_agents_have_the_rights_of_the_features_that_are_on_and_no_others(render, features):
    variables, wanted = dict(OFF), {role: set(may) for role, may in ALWAYS.items()}
    if {"condition", "slack"} & set(features):
        features = [*features, "marks"]
    for name in features:
        variables.update(FEATURES[name][0])
        for role, may in FEATURES[name][1].items():
            wanted.setdefault(role, set()).update(may)
    objects = render(**variables)
    assert rights(objects) == wanted
    bound = {name for name in objects if re.match("(Cluster)?RoleBinding ", name)}
    assert {name.partition(" ")[2] for name in bound if "client" not in name} == wanted.keys()
    for name in bound:
        assert [one["name"] for one in objects[name]["subjects"]] == [
            "autopilot-client" if "client" in name else "autopilot"
        ]


def test_pods_and_claims_are_in_a_namespace_that_is_always_restricted(render):
    for volume in ({"emptyDir": {}}, {"hostPath": {"path": "/run"}}):
        objects = render(agent_volumes=[{"name": "v", **volume}])
        labels = objects["Namespace autopilot-work"]["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        assert objects["Role autopilot-work"]["metadata"]["namespace"] == "autopilot-work"
        assert not any(
            rule["resources"] == ["pods"] and "create" in rule["verbs"]
            for rule in objects["Role autopilot"]["rules"]
        )


def test_every_key_that_a_mark_writes_is_in_the_policy_and_a_taint_only_where_it_is_on(render):
    mark, unfit = f"{Rules().label_key}:NoExecute", "autopilot.gpu/fitness:NoSchedule"
    for variables, taints in (
        ({}, []),
        ({"agent_taint": "NoExecute"}, [mark]),
        ({"agent_taint_unfit": True}, [unfit]),
        ({"agent_taint": "NoExecute", "agent_taint_unfit": True}, [mark, unfit]),
    ):
        objects = render(**variables)
        policy = objects["ValidatingAdmissionPolicy autopilot-agent-nodes"]["spec"]
        text = " ".join(one["expression"] for one in policy["validations"])
        for keys in written_keys(Rules()).values():
            assert json.dumps(keys) in text
        assert f"t.key + ':' + t.effect in {json.dumps(taints)})" in text
        assert policy["failurePolicy"] == "Fail"
        for name in objects:
            kind, _space, own = name.partition(" ")
            if kind == "ValidatingAdmissionPolicy":
                binding = objects[f"ValidatingAdmissionPolicyBinding {own}"]["spec"]
                assert binding == {"policyName": own, "validationActions": ["Deny"]}


# ---- why an agent does not run ----

DAEMONSET = {
    "metadata": {
        "name": "autopilot",
        "namespace": "n",
        "uid": "u",
        "generation": 2,
        "annotations": {"deprecated.daemonset.template.generation": "2"},
    },
    "status": {"desiredNumberScheduled": 1, "observedGeneration": 2},
}


def seen(status, labels=None, events=(), ready_node="True", **meta):
    meta.update(
        name="p",
        labels=labels or {"pod-template-generation": "2"},
        ownerReferences=[{"uid": "u", "kind": "DaemonSet"}],
    )
    pod = {"metadata": meta, "spec": {"nodeName": "a"}, "status": status}
    node = {
        "metadata": {"name": "a"},
        "status": {"conditions": [{"type": "Ready", "status": ready_node}]},
    }
    told = {"involvedObject": {"kind": "Pod", "name": "p"}, "reason": "R"}
    return judge(
        DAEMONSET,
        [pod],
        [node],
        [{**told, "message": words, "lastTimestamp": str(at)} for at, words in enumerate(events)],
    )


READY = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"ready": True, "state": {"running": {}}}],
}


def waiting(reason, message="", **more):
    return {
        "containerStatuses": [
            {"ready": False, "state": {"waiting": {"reason": reason, "message": message}}, **more}
        ]
    }


def initialising(state):
    """The status of a pod whose init container has not succeeded."""
    return {
        **waiting("PodInitializing"),
        "initContainerStatuses": [{"name": "report", "ready": False, "state": state}],
    }


def initialised():
    return {
        "initContainerStatuses": [
            {
                "name": "report",
                "ready": True,
                "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
            }
        ]
    }


@pytest.mark.parametrize(
    ("status", "more", "why"),
    [
        (READY, {}, ""),
        (READY, {"labels": {"pod-template-generation": "1"}}, "still runs the previous version"),
        (READY, {"deletionTimestamp": "now"}, "has not ended yet"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, {}, "Evicted: disk"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "no memory",
                    }
                ]
            },
            {},
            "Unschedulable: no memory",
        ),
        (
            waiting("ErrImagePull", "short"),
            {"events": ["Failed to pull image x: unauthorized", "Error: ErrImagePull"]},
            "unauthorized",
        ),
        (
            waiting("InvalidImageName", "bad"),
            {"events": ["longer words about something else"]},
            "InvalidImageName: bad",
        ),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), {}, 'secret "x" not found'),
        (
            waiting("ContainerCreating"),
            {"events": ["MountVolume.SetUp failed"]},
            "ContainerCreating: MountVolume.SetUp failed",
        ),
        (
            waiting(
                "CrashLoopBackOff",
                lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            ),
            {},
            "exit code 137 (OOMKilled)",
        ),
        (
            {"containerStatuses": [{"ready": False, "state": {"running": {}}}]},
            {"events": ["Readiness probe failed"]},
            "not ready: R: Readiness probe failed",
        ),
        (
            {},
            {"events": ["Failed to create pod sandbox"]},
            "starting: R: Failed to create pod sandbox",
        ),
        (
            initialising({"waiting": {"reason": "ImagePullBackOff"}}),
            {"events": ["Failed to pull image x: not found"]},
            "ImagePullBackOff: Failed to pull image x",
        ),
        (
            initialising({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            {},
            "exit code 137 (OOMKilled)",
        ),
        ({**READY, **initialised()}, {}, ""),
        (
            {**waiting("CreateContainerConfigError", 'secret "x" not found'), **initialised()},
            {},
            'secret "x" not found',
        ),
    ],
)
def test_the_reason_of_a_pod(status, more, why):
    found = seen(status, **more)
    assert found.complete is (why == "")
    assert why in found.missing.get("a", "")


def test_the_inventory_names_the_reason_of_the_init_container():
    status = {
        "phase": "Pending",
        **initialising(
            {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
        ),
    }
    assert (
        trouble_of({"metadata": {"name": "p"}, "status": status})
        == "pod p is Pending and not ready: ImagePullBackOff: Back-off pulling image"
    )


def test_a_node_that_is_down_is_not_waited_for_and_named():
    found = seen({}, ready_node="Unknown")
    assert found.complete and found.away == ["a"] and reasons_of(found) == []


def test_pods_that_cannot_be_made_are_told_by_the_daemonset():
    refused = {
        "involvedObject": {"kind": "DaemonSet", "name": "autopilot"},
        "reason": "FailedCreate",
        "message": "violates PodSecurity",
    }
    found = judge(DAEMONSET, [], [], [refused])
    assert reasons_of(found) == ["1 of 1 nodes: no pod yet: FailedCreate: violates PodSecurity"]


def test_the_headline_names_the_nodes_that_still_run_the_previous_version():
    found = seen(READY, {"pod-template-generation": "1"})
    assert found.previous == ["a"]
    assert headline(found._replace(wanted=3, ready=1)) == (
        "has a ready pod of the new version on 1 of 3 nodes, of the previous version on 1 (a), "
        "and none on 1"
    )
    # A pod of the previous version that does not work runs nothing.
    found = seen({}, {"pod-template-generation": "1"})
    assert found.previous == [] and headline(found) == "has a ready pod on 0 of 1 nodes"


def test_nodes_with_the_same_reason_are_one_line():
    found = seen({})._replace(
        missing={f"node{number}": "same" for number in range(8)} | {"other": "different"}
    )
    assert reasons_of(found) == [
        "node0, node1, node2, node3, node4 and 3 more: same",
        "other: different",
    ]
