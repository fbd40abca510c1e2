# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The components of the queue in the order of their installation, and the objects of each."""

from __future__ import annotations

import copy
import hashlib
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Sequence

from ....knowledge.queue_releases import RELEASES, Image, Release
from ...client import ApiObject
from ..teams.access import TEAM_NAMESPACE, edit_role
from . import edits, managers, own_objects

#: In the order of installation; removed in the reverse order.
COMPONENTS = (
    "priorities",
    "scheduler",
    "namespace",
    "training_operator",
    "kuberay",
    "kueue",
    "appwrapper",
    "queues",
)
#: Components whose manifests come from a release.
RELEASED = ("scheduler", "training_operator", "kuberay", "kueue", "appwrapper")

_OPERATOR = ({"cpu": "100m", "memory": "100Mi"}, {"cpu": "500m", "memory": "1000Mi"})
#: Container, requests and limits: MLBatch's patches (facts of its setup.k8s).
RESOURCES = {
    "training_operator": ("training-operator", *_OPERATOR),
    "kuberay": ("kuberay-operator", *_OPERATOR),
    "appwrapper": (
        "manager",
        {"cpu": "250m", "memory": "250Mi"},
        {"cpu": "1000m", "memory": "1000Mi"},
    ),
}
_APPWRAPPERS = {
    "apiGroups": ["workload.codeflare.dev"],
    "resources": ["appwrappers"],
    "verbs": ["get", "list", "watch"],
}


class QueueSettings(NamedTuple):
    """What an operator chose. ``versions`` has the version of each released component."""

    versions: Mapping[str, str]
    namespace: str
    registry: str
    digests: Mapping[str, str]
    label_key: str
    gpu_resources: Sequence[str]
    scheduler: str
    sakkara_image: str
    sakkara_topology: Mapping[str, Any]
    topologies: Sequence[Mapping[str, Any]]
    flavors: Sequence[Mapping[str, Any]]
    slack: Mapping[str, Mapping[str, str]]
    fault_tolerance: Dict[str, int]
    #: API groups that the server serves.
    api_groups: Collection[str] = ()

    @property
    def choice(self) -> managers.SchedulerChoice:
        return managers.SCHEDULERS[self.scheduler]

    def release(self, component: str) -> Release:
        return RELEASES[component, self.versions[component]]


class Codec(NamedTuple):
    """How a configuration is read from and written to text."""

    load: Callable[[str], Any]
    dump: Callable[[Any], str]


def images_of(component: str, settings: QueueSettings) -> List[Image]:
    """The images of a component."""
    if component not in RELEASED or (component == "scheduler" and not settings.choice.name):
        return []
    if component == "scheduler" and settings.scheduler == "sakkara":
        repository, _colon, tag = settings.sakkara_image.partition("@")[0].rpartition(":")
        digest = settings.sakkara_image.partition("@")[2]
        return [Image(own_objects.SCHEDULER_CONTAINER, repository, tag, digest)]
    return list(settings.release(component).images)


def objects_of(
    component: str, settings: QueueSettings, rendered: List[ApiObject], codec: Codec
) -> List[ApiObject]:
    """The objects of a component, labelled. ``rendered`` are those of its release."""
    make: Dict[str, Callable[[], List[ApiObject]]] = {
        "priorities": own_objects.priority_classes,
        "scheduler": lambda: _scheduler(settings, rendered, codec),
        "namespace": lambda: [own_objects.namespace(settings.namespace)],
        "training_operator": lambda: _training_operator(settings, rendered),
        "kuberay": lambda: edits.move(rendered, settings.namespace),
        "kueue": lambda: _kueue(settings, rendered, codec),
        "appwrapper": lambda: _appwrapper(settings, rendered, codec),
        "queues": lambda: _queues(settings),
    }
    objects = copy.deepcopy(make[component]())
    if component in RELEASED:
        references = {
            image.container: edits.image_reference(image, settings.registry, settings.digests)
            for image in images_of(component, settings)
        }
        edits.set_images(objects, references)
    if component in RESOURCES:
        container, requests, limits = RESOURCES[component]
        edits.set_resources(objects, container, requests, limits)
    edits.label(objects, component)
    return objects


def _queues(settings: QueueSettings) -> List[ApiObject]:
    return [
        edit_role(settings.api_groups),
        *own_objects.queue_objects(
            settings.versions["kueue"], settings.topologies, settings.flavors, settings.slack
        ),
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _scheduler(settings: QueueSettings, rendered: List[ApiObject], codec: Codec) -> List[ApiObject]:
    choice = settings.choice
    if not choice.name:
        return []
    config = codec.dump(managers.scheduler_config(choice, settings.gpu_resources))
    objects = own_objects.scheduler_objects(choice, config, settings.sakkara_topology)
    edits.restart_on(objects, _hash(config))
    # The training operator and AppWrapper make PodGroups for either scheduler.
    return [*edits.of_kind(rendered, "CustomResourceDefinition"), *objects]


def _training_operator(settings: QueueSettings, rendered: List[ApiObject]) -> List[ApiObject]:
    objects = edits.move(rendered, settings.namespace)
    if settings.choice.name:
        argument = f"--gang-scheduler-name={settings.choice.name}"
        edits.add_argument(objects, "training-operator", argument)
    return objects


def _kueue(settings: QueueSettings, rendered: List[ApiObject], codec: Codec) -> List[ApiObject]:
    version = settings.versions["kueue"]
    objects = edits.move(rendered, settings.namespace)
    edits.select_by(objects, "kueue")
    name, key = "kueue-manager-config", "controller_manager_config.yaml"
    shipped = codec.load(edits.data_of(objects, name, key))
    config = codec.dump(managers.kueue_config(version, shipped, settings.namespace))
    edits.set_data(objects, name, key, config)
    edits.restart_on(objects, _hash(config))
    edits.grant(objects, "kueue-manager-role", copy.deepcopy(_APPWRAPPERS))
    managed = {one.rpartition("/")[2] for one in managers.frameworks(version)}
    own = {"clusterqueue", "cohort", "resourceflavor", "workload"}
    edits.drop_webhooks(
        objects, [kind for kind in edits.webhook_kinds(objects) if kind not in managed | own]
    )
    # Jobs are made by many programs: only those of teams wait for Kueue's word.
    edits.limit_webhooks(objects, ["job"], (TEAM_NAMESPACE, "true"))
    return objects


def _appwrapper(
    settings: QueueSettings, rendered: List[ApiObject], codec: Codec
) -> List[ApiObject]:
    version = settings.versions["appwrapper"]
    objects = edits.move(rendered, settings.namespace)
    edits.select_by(objects, "appwrapper")
    name, key = "appwrapper-operator-config", "config.yaml"
    taints = managers.resource_taints(version, settings.label_key, settings.gpu_resources)
    config = codec.dump(
        managers.appwrapper_config(
            version,
            codec.load(edits.data_of(objects, name, key)),
            settings.choice.name,
            taints,
            settings.fault_tolerance,
        )
    )
    edits.set_data(objects, name, key, config)
    edits.restart_on(objects, _hash(config))
    return objects
