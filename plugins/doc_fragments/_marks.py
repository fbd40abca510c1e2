# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    # The rules by which nodes are marked, the same for all who mark in a cluster.
    DOCUMENTATION = r"""
options:
  label_key:
    description: Key of the label. The key of the annotation with the record begins with it.
    type: str
    default: autopilot.ibm.com/gpuhealth
  taint:
    description:
      - Effect of a taint on nodes that are V(EVICT), with O(label_key) as its key and V(EVICT) as
        its value.
      - When not given, no taint is set, and a taint of another writer stays as long as the mark.
    type: str
    choices: [NoSchedule, PreferNoSchedule, NoExecute]
  taint_unfit:
    description:
      - Whether a node that was judged unfit gets the taint C(autopilot.gpu/fitness=unfit:NoSchedule),
        below V(EVICT) too. A node about which the checks could not tell gets none.
      - Such nodes count in O(max_bad_share). Beyond the share a node gets no taint and an event.
      - The taint goes when the node is no longer unfit. While it is, a writer without this option
        leaves the taint of another writer.
    type: bool
    default: false
  cordon:
    description: Whether nodes that are V(EVICT) are cordoned. Only such a cordon is undone again.
    type: bool
    default: false
  condition:
    description: Whether the node condition C(GPUHealthy) is written.
    type: bool
    default: true
  max_bad_share:
    description: Share of the GPU nodes that may be V(EVICT) or tainted as unfit at once, from 0 to
      1. One node always may be.
    type: float
    default: 0.1
  namespace:
    description: Namespace of the agents, with the Lease that enforces the share.
    type: str
    default: autopilot
  slack_queue:
    description:
      - Name of the slack ClusterQueue of Kueue. When a mark takes the GPUs of a node out of service
        (V(TESTING), V(EVICT)), or puts them back, its lending limits follow, as with
        M(autopilot.gpu.slack_quota). What cannot be written is a warning, and the mark stays.
      - When empty, no ClusterQueue is changed. Leave it empty where AppWrapper up to version 1.0 has
        the same C(slackQueueName).
    type: str
    default: ""
"""
