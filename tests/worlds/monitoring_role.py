# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role monitoring with monitoring_target=kubernetes, against a real API server."""

from __future__ import annotations

from controller import cluster_playbook


def monitoring_playbook(lab, directory):
    """``play(*arguments, **variables)``: the playbook against the lab; the finished process."""
    return cluster_playbook(
        "autopilot.gpu.monitoring",
        directory,
        monitoring_target="kubernetes",
        monitoring_kubeconfig=str(lab.kubeconfig),
        monitoring_namespace="watching",
    )
