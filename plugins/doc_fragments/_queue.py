# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  profile:
    description:
      - The versions that are installed together.
      - V(mlbatch) is what MLBatch pins, Kueue 0.10.2, with the last AppWrapper that has a slack
        queue.
      - V(current) is Kueue 0.19.2 with AppWrapper 1.2.2, which has no slack queue of its own.
    type: str
    choices: [current, mlbatch]
    default: mlbatch
  appwrapper_version:
    description: Another version of AppWrapper that the profile knows. V(mlbatch) has V(1.0.7), the
      default, and V(0.30.0), which MLBatch pins and which ignores the mark C(WARN).
    type: str
  scheduler:
    description:
      - The second scheduler, which places the pods of a job together and fills nodes one by one.
      - V(sakkara) also knows the topology of the cluster, and needs O(sakkara_image).
      - With V(none), jobs go to the default scheduler.
    type: str
    choices: [coscheduling, none, sakkara]
    default: coscheduling
  sakkara_image:
    description: Image of the scheduler with the plugin Sakkara, with its tag.
    type: str
    default: ''
  registry:
    description: Private registry that replaces the host of each image; its path stays.
    type: str
    default: ''
  image_digests:
    description: Digests by C(repository:tag), as the result RV(autopilot.gpu.queue_sources#module:images)
      lists them, for
        images whose digest this collection does not know. An empty digest uses the image by its tag.
    type: dict
    default: {}
  sources:
    description: Folder with the mirrored archives, C(COMPONENT-VERSION.tar.gz), or with their
      unpacked content. When given, nothing is downloaded.
    type: path
  cache:
    description: Folder in which downloaded archives are kept.
    type: path
    default: ~/.cache/autopilot-gpu/queue
"""
