# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Names of the agent's objects in a cluster, for programs that search for them."""

from __future__ import annotations

from typing import Any, Mapping

#: The label of every object of this collection, and its value.
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "autopilot-gpu"

#: Label of the objects of the queue: the component that they belong to.
QUEUE_COMPONENT = "autopilot.gpu/queue-component"

#: The default namespace of the agent: IBM Autopilot's namespace.
NAMESPACE = "autopilot"
#: Added to the agent's namespace: the name of the namespace of its pods that reserve GPUs and of its
#: volume claims.
WORK = "-work"
#: Labels of the agent's pods, as a selector.
SELECTOR = "app.kubernetes.io/name=autopilot-gpu,app.kubernetes.io/component=agent"
CONTAINER = "agent"
PORT = 3333
#: The Service of the agents, for whose DNS name their certificate is.
SERVICE = "autopilot-healthchecks"
#: The service account by which playbooks ask the agents.
CLIENT = "autopilot-client"
#: The audience of its token, which only the agents accept.
AUDIENCE = "autopilot"

#: Names of NVIDIA's device plugin and GPU feature discovery (docs of k8s-device-plugin v0.17).
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
PRESENT, PRODUCT, REPLICAS = (
    "nvidia.com/gpu.present",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.replicas",
)

#: Seconds for removing the pod and the claim of a volume claim.
REMOVAL = 45.0
#: Bytes that the pod of a volume claim writes.
WRITTEN = 4 << 20
#: A class without a provisioner has its volumes made by hand.
BY_HAND = "kubernetes.io/no-provisioner"


def keeps_volumes(chosen: Mapping[str, Any]) -> bool:
    """True if each claim of the class leaves a volume behind."""
    return chosen.get("reclaim_policy") == "Retain" and chosen.get("provisioner") != BY_HAND
