# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""API objects as types: each class declares the fields that this collection reads."""

from __future__ import annotations

from typing import Dict, List, TypedDict

from .client import ApiObject, ObjectMetadata, metadata_of


class ContainerEnd(TypedDict, total=False):
    exitCode: int
    reason: str
    message: str


class ContainerWait(TypedDict, total=False):
    reason: str
    message: str


class ContainerState(TypedDict, total=False):
    running: ApiObject
    waiting: ContainerWait
    terminated: ContainerEnd


class ContainerStatus(TypedDict, total=False):
    name: str
    state: ContainerState


class StatusCondition(TypedDict, total=False):
    type: str
    status: str
    message: str


class PodStatus(TypedDict, total=False):
    phase: str
    podIP: str
    reason: str
    message: str
    conditions: List[StatusCondition]
    containerStatuses: List[ContainerStatus]
    initContainerStatuses: List[ContainerStatus]


class EnvironmentVariable(TypedDict, total=False):
    name: str
    value: str


class VolumeMount(TypedDict, total=False):
    mountPath: str


class PodContainer(TypedDict, total=False):
    name: str
    image: str
    env: List[EnvironmentVariable]
    volumeMounts: List[VolumeMount]
    resources: ApiObject
    securityContext: ApiObject


class PodSpec(TypedDict, total=False):
    nodeName: str
    containers: List[PodContainer]
    initContainers: List[PodContainer]
    runtimeClassName: str
    imagePullSecrets: List[ApiObject]
    tolerations: List[ApiObject]
    securityContext: ApiObject


class PodObject(TypedDict, total=False):
    metadata: ObjectMetadata
    spec: PodSpec
    status: PodStatus


class ClaimSpec(TypedDict, total=False):
    volumeName: str


class ClaimStatus(TypedDict, total=False):
    phase: str


class ClaimObject(TypedDict, total=False):
    """A PersistentVolumeClaim."""

    spec: ClaimSpec
    status: ClaimStatus


class StorageClassObject(TypedDict, total=False):
    metadata: ObjectMetadata
    provisioner: str
    volumeBindingMode: str
    reclaimPolicy: str


class EventObject(TypedDict, total=False):
    type: str
    reason: str
    message: str
    count: int
    lastTimestamp: str
    eventTime: str


class QuotaObject(TypedDict, total=False):
    """A ResourceQuota: ``status`` has ``hard`` and ``used``, amounts by resource."""

    metadata: ObjectMetadata
    status: Dict[str, Dict[str, str]]


class LabelSelector(TypedDict, total=False):
    matchLabels: Dict[str, str]
    matchExpressions: List[ApiObject]


class JobSpec(TypedDict, total=False):
    suspend: bool
    selector: LabelSelector


class JobStatus(TypedDict, total=False):
    phase: str
    conditions: List[StatusCondition]


class JobObject(TypedDict, total=False):
    """A Job, JobSet or AppWrapper."""

    metadata: ObjectMetadata
    spec: JobSpec
    status: JobStatus


def owned_by_node(node: ApiObject) -> ApiObject:
    """An ownerReference to a node: the garbage collector removes the object with its node."""
    meta = metadata_of(node)
    return {"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}
