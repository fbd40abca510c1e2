# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the queue of a cluster: quota, ClusterQueues, workloads."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "queue_not_read": FindingText(
        "The objects of the queue could not be read.",
        "Resolve the error in the message: install Kueue, grant the missing rights, or run the "
        "audit again.",
    ),
    "quota_over_capacity": FindingText(
        "The quota of a flavor is more than its nodes have. Kueue admits workloads for which there "
        "is no room; their pods stay pending.",
        "Lower `nominalQuota` of the teams or of the slack ClusterQueue, or add nodes with the "
        "labels of the flavor.",
    ),
    "quota_under_capacity": FindingText(
        "GPUs of a flavor are in no quota, so that no workload can use them.",
        "Raise `nominalQuota` of the slack ClusterQueue to the rest of the capacity.",
    ),
    "gpus_without_quota": FindingText(
        "Nodes have GPUs that belong to no flavor with quota for them, so that no workload of the "
        "queue can use them.",
        "Give the nodes the labels of a flavor, or add their flavor to a ClusterQueue.",
    ),
    "gpus_out_of_service": FindingText(
        "GPUs of a flavor cannot be used by new pods: their nodes are cordoned, not ready, marked or "
        "tainted, or the kubelet reports the GPUs as unhealthy.",
        "Return the nodes in the message to service, or remove what keeps pods away from them.",
    ),
    "quota_without_system_share": FindingText(
        "The quota leaves too little for pods of the system, which run on the same nodes.",
        "Lower `nominalQuota` by what the pods of the system request.",
    ),
    "quota_over_schedulable": FindingText(
        "Nodes are out of service, and the teams' own quota is more than what is left. Kueue may "
        "admit workloads whose pods stay pending.",
        "Return the nodes in the message to service. Until then keep teams from using their whole "
        "quota, or lower it.",
    ),
    "slack_over_schedulable": FindingText(
        "The slack ClusterQueue lends quota of nodes that are out of service.",
        "Run the module `slack_quota`, which lowers `lendingLimit` and restores it later.",
    ),
    "unknown_resource_in_quota": FindingText(
        "A ClusterQueue has quota for a resource that no node has. A different case is enough: "
        "`nvidia.com/GPU` is not `nvidia.com/gpu`, and Kueue accepts it without an error.",
        "Correct the name in `coveredResources` and `resources` of the ClusterQueue; "
        "`kubectl describe node` lists the resources of a node.",
    ),
    "resource_without_quota": FindingText(
        "A workload requests a resource for which its ClusterQueue has no quota. Kueue never "
        "admits the workload, unless its configuration ignores the resource.",
        "Add the resource to the ClusterQueue, if need be with quota 0, or remove the request.",
    ),
    "queue_flavor_missing": FindingText(
        "A ClusterQueue refers to a ResourceFlavor that does not exist.",
        "Create the ResourceFlavor, or correct the name in the ClusterQueue.",
    ),
    "queue_inactive": FindingText(
        "Kueue admits nothing from the ClusterQueue.", "Resolve the reason in the message."
    ),
    "queue_state_unknown": FindingText(
        "Kueue did not write whether a ClusterQueue is active, so that its figures are missing or old.",
        "Check that the controller of Kueue is running, and read its log.",
    ),
    "local_queue_without_queue": FindingText(
        "A LocalQueue refers to a ClusterQueue that does not exist.",
        "Create the ClusterQueue, or correct `clusterQueue` of the LocalQueue.",
    ),
    "local_queues_share_queue": FindingText(
        "Several LocalQueues use one ClusterQueue. MLBatch gives each team a ClusterQueue of its "
        "own.",
        "Give each LocalQueue a ClusterQueue of its own, or remove the LocalQueue that is not "
        "used.",
    ),
    "workload_without_queue": FindingText(
        "A workload names no LocalQueue, so that Kueue never admits it.",
        "Set the label `kueue.x-k8s.io/queue-name` of the job.",
    ),
    "workload_queue_unknown": FindingText(
        "A workload names a LocalQueue that does not exist in its namespace.",
        "Correct the label `kueue.x-k8s.io/queue-name` of the job, or create the LocalQueue.",
    ),
    "workload_high_priority": FindingText(
        "A workload has more than the default priority and may preempt workloads of its team.",
        "Check with its owner that the priority is intended.",
    ),
    "workload_pods_not_ready": FindingText(
        "A workload was admitted and holds quota, but its pods are not ready.",
        "Check the events of its pods: images, volumes, or no node with room.",
    ),
    "workload_evicted": FindingText(
        "Kueue took the quota of a workload back, or AppWrapper started it anew elsewhere.",
        "Read the reason in the message. After a preemption the workload waits for quota again; "
        "after a timeout check its pods.",
    ),
    "workload_exceeds_nodes": FindingText(
        "A pod of a workload requests more than any node has. The pod is never scheduled.",
        "Request less for each pod, or spread the work over more pods.",
    ),
    "workload_ratio_off": FindingText(
        "A pod requests a larger share of a node's other resources than of its GPUs. GPUs of the "
        "node stay idle.",
        "Lower the request, or request more GPUs.",
    ),
    "workload_rdma_alone": FindingText(
        "A workload of a single pod requests RDMA devices, which connect pods of several nodes.",
        "Remove the request, so that the devices stay free for workloads of several pods.",
    ),
    "gpu_pod_not_running": FindingText(
        "A GPU pod of a team does not run: no node fits, or a container cannot start. Its job holds "
        "quota meanwhile.",
        "Resolve the reason in the message; `kubectl describe pod` has the events of the pod.",
    ),
    "gpu_pod_on_default_scheduler": FindingText(
        "A GPU pod is placed by the default scheduler, which spreads pods over nodes and knows no "
        "gangs.",
        "Set `schedulerName` of the pod. AppWrapper does this for its pods.",
    ),
    "system_pod_holds_gpus": FindingText(
        "A pod outside the queue holds GPUs. Kueue does not count them and admits workloads for "
        "which there is no room.",
        "End the pod, move it into the namespace of a team, or lower the quota by its GPUs.",
    ),
    "workload_pending": FindingText(
        "A sample workload got no quota within its time.",
        "Resolve Kueue's reason in the message: free quota, raise it, or request less.",
    ),
    "workload_image_not_pulled": FindingText(
        "A node cannot pull the image of a sample workload.",
        "Correct the name of the image, or give the node access to its registry.",
    ),
    "workload_not_started": FindingText(
        "A container of a sample workload cannot start.",
        "Resolve the reason in the message, such as a missing ConfigMap or Secret.",
    ),
    "workload_pod_failed": FindingText(
        "A pod of a sample workload failed, which ended the whole workload.",
        "Read the last lines of its log in the message. Check the node if it fails there again.",
    ),
    "workload_failed": FindingText(
        "A sample workload failed as a whole.",
        "Resolve the reason in the message. Run it again with `workload_keep` to look at its "
        "objects.",
    ),
    "workload_timed_out": FindingText(
        "A sample workload did not end in time.",
        "Read in the message what its pods wait for. Raise `workload_timeout` if the workload "
        "needs longer.",
    ),
    "workload_deleted": FindingText(
        "Another client deleted a sample workload while it ran.",
        "Run it again, and find out who deletes workloads in the namespace.",
    ),
    "workload_without_result": FindingText(
        "A sample workload succeeded, but its pods reported no figures.",
        "Run it again with `workload_keep` and read the logs of its pods.",
    ),
    "workload_log_unread": FindingText(
        "Logs of a sample workload could not be read, so that figures of its pods are missing.",
        "Grant `get` on `pods/log` in the namespace, and run it again.",
    ),
    "workload_not_finite": FindingText(
        "A sample workload reported infinity or not a number, as after a numerical error.",
        "Run it on other nodes. If it recurs on one node only, check the GPUs of that node.",
    ),
    "workload_loss_not_falling": FindingText(
        "The loss of a sample training did not fall.",
        "Raise the number of steps. If it recurs on one node only, check the GPUs of that node.",
    ),
    "workload_requests_failed": FindingText(
        "Requests of a sample workload to its server failed.",
        "Run it again with `workload_keep` and read the log of the server.",
    ),
    "workload_below_peers": FindingText(
        "A pod of a sample workload is slower than the other pods.",
        "Check the node of the pod: run a preflight on it.",
    ),
    "workload_worse_than_before": FindingText(
        "A sample workload is slower than the run before it with the same settings.",
        "Compare the nodes of both runs. Run a preflight on the nodes of the slower one.",
    ),
}
