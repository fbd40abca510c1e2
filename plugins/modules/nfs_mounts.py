#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mounts
short_description: Check that NFS servers and their mounts answer
version_added: 0.1.0
description:
  - Tests each NFS server from the host, with its DNS name, a TCP connection, and a NULL call (NFS
    version 4, or 3).
  - Reads each mount point in a process of its own. A mount point that does not answer within 10 s
    hangs.
  - Checks the servers and mount points of O(mounts), and every NFS mount of the host.
  - V(fail) for a server whose name does not resolve, that refuses the connection, has no route or
    does not answer two tries; a mount that hangs or returns an error; and a mount point without the
    expected mount. For servers and mounts that O(mounts) does not name, all of these are V(warn).
  - V(unknown) for a server that accepts the connection and does not answer the call. V(warn) for a
    server that cannot be reached while its mounts answer, or V(pass) when O(mounts) does not name
    it.
  - V(skip) without O(mounts) and without NFS.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  mounts:
    description: Mounts that jobs need.
    type: list
    elements: dict
    default: []
    suboptions:
      server:
        description: Name or address of the server.
        type: str
        required: true
      path:
        description: Exported path, as in C(/etc/fstab) after the colon.
        type: str
        required: true
      mount_point:
        description: Mount point on the host. When not given, only the server is tested.
        type: str
      port:
        description: TCP port of the server.
        type: int
        default: 2049
"""

EXAMPLES = r"""
- name: Check the servers of all NFS mounts
  autopilot.gpu.nfs_mounts:

- name: Require the data set of the jobs
  autopilot.gpu.nfs_mounts:
    mounts:
      - server: nas1.example.com
        path: /export/datasets
        mount_point: /data
    fail_on: fail
"""

RETURN = r"""
brief:
  description: The check's status and summary in one line.
  type: str
  returned: always
status:
  description: The worst status of the check, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: The check's result, with its findings, and C(nfs_answer), the seconds until each
    server answered.
  type: list
  elements: dict
  returned: always
  contains:
    check: {description: Name of the check., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the check found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the check took., type: float, returned: always}
    findings:
      description: What the check judged.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(watch) or V(drain_node).', type: str, returned: always}
        subject: {description: 'The part: kind, index, uuid, pci, name.', type: dict, returned: always}
        message: {description: The fact with its figures., type: str, returned: always}
        evidence: {description: The figures by name., type: dict, returned: always}
    measurements:
      description: Figures worth keeping.
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: 'The part, such as the GPU.', type: dict, returned: always}
node:
  description: The GPUs of the node (index, uuid, pci, name), the driver's version and the boot id.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.nfs_mounts import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
