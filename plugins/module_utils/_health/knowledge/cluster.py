# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the agent is called in a cluster, as far as those who look for it must know."""

from __future__ import annotations

#: Where the role puts the agent when nobody says otherwise: IBM Autopilot's namespace.
NAMESPACE = "autopilot"
#: Labels of the agent's pods, as a selector.
SELECTOR = "app.kubernetes.io/name=autopilot-gpu,app.kubernetes.io/component=agent"
CONTAINER = "agent"
PORT = 3333
#: The service account by which playbooks ask the agents.
CLIENT = "autopilot-client"

#: What NVIDIA's device plugin and GPU feature discovery call things (docs of k8s-device-plugin
#: v0.17).
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
PRESENT, PRODUCT, REPLICAS = "nvidia.com/gpu.present", "nvidia.com/gpu.product", "nvidia.com/gpu.replicas"
