# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of volume claims."""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, Entry

FINDINGS: Dict[str, Entry] = {
    "claim_not_tried": Entry(
        "No volume claim was tried, or the try was broken off.",
        f"{AGAIN}; it is asked of the cluster, by the agent or the module.",
    ),
    "storage_class_missing": Entry(
        "No storage class was named, so that there was nothing to claim.",
        "Name one that jobs use (`storage_class`; for the agent PVC_TEST_STORAGE_CLASS), or "
        "leave `volume_claim` out.",
    ),
    "storage_class_not_found": Entry(
        "The cluster has no storage class of that name.",
        "Correct the name; `kubectl get storageclasses` lists them.",
    ),
    "storage_class_retains": Entry(
        "Volumes of the storage class outlive their claims, so that every try would leave one "
        "behind.",
        "Name a class of the same storage with `reclaimPolicy: Delete`.",
    ),
    "claim_without_image": Entry(
        "There is no image for the pod that uses the claim.",
        "Install the agent in the namespace, or name an image with Python (`image`).",
    ),
    "volume_quota_exceeded": Entry(
        "The quota of the namespace leaves no room for the claim.",
        "Delete claims that nobody needs, or raise the quota; the finding has what was asked "
        "for, used and allowed.",
    ),
    "claim_forbidden": Entry(
        "Whoever tried the claim may not make it.",
        "Grant `create` on what the finding names in that namespace; the role agent does it.",
    ),
    "claim_refused": Entry(
        "The API server did not take the claim or its pod.",
        "The finding has its words: a policy, a quota for pods, or an option.",
    ),
    "api_not_answering": Entry(
        "The API server did not answer, or refused to say what was needed.",
        f"{AGAIN}; the finding has the error.",
    ),
    "claim_removed": Entry(
        "Claim or pod vanished while they were watched.",
        f"{AGAIN}; somebody, or a policy, deletes them in this namespace.",
    ),
    "claim_not_bound": Entry(
        "The claim got no volume in time.",
        "Look at the provisioner of the storage class: its pods, their logs, and the space it "
        "has; the finding has the last event.",
    ),
    "claim_pod_not_scheduled": Entry(
        "No node was found for the pod that uses the claim, and not for want of a volume.",
        "The finding has the scheduler's words: taints, resources, or a node that is not ready.",
    ),
    "claim_pod_not_started": Entry(
        "The node did not start the pod that uses the claim, and not for want of the volume.",
        "The finding has the kubelet's words: the image, the pod network, or nothing at all "
        "where the kubelet is away.",
    ),
    "claim_pod_died": Entry(
        "The pod ended before it could say anything of the volume.",
        "The finding has how it ended; its image needs `python3`.",
    ),
    "claim_too_late": Entry(
        "The volume came so late that there was no time to use it.",
        "Give it more time (`timeout`).",
    ),
    "volume_mount_timeout": Entry(
        "The volume could not be attached or mounted on the node in time.",
        "The finding has the kubelet's words. Look whether other nodes mount it: if so at this "
        "node's driver pod, else at the storage itself.",
    ),
    "nfs_unreachable": Entry(
        "The NFS server of the volume could not be reached from the node.",
        "Look at the route and the firewall from this node to the server, TCP port 2049, and "
        "whether the server is up.",
    ),
    "volume_not_writable": Entry(
        "The user of the pod may not write to a new volume.",
        "Let the pod have the user or group that jobs have (the agent's security context), or "
        "correct the rights the storage gives.",
    ),
    "volume_io_failed": Entry(
        "Writing to the volume or reading from it failed.",
        "The finding has the step and the error; look at the storage and its space.",
    ),
    "volume_io_hung": Entry(
        "A few megabytes could not be written and read back in time.",
        "Look at the storage, and at `dmesg` on the node for hung tasks.",
    ),
    "volume_data_differs": Entry(
        "What was read back is not what was written.",
        "Let nobody use the storage until it is understood.",
    ),
    "claim_left_behind": Entry(
        "The claim or its pod could not be removed in time.",
        "It goes with a later run; if not, delete it and look what holds it.",
    ),
}
