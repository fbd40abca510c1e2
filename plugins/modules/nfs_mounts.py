#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mounts
short_description: Check that NFS servers and what is mounted of them answer
version_added: 0.1.0
description:
  - "Asks each NFS server from the host: its name, a connection over TCP, and a call that does
    nothing (NFS version 4, or 3)."
  - Looks at each mount point of theirs in a process of its own. One that does not answer within 10
    s hangs.
  - Looked at are the servers and mount points of O(mounts), and whatever NFS is mounted on the host
    already.
  - A server without a name, that refuses, has no route or is silent to two tries to connect is
    V(fail), and so are a mount that hangs or answers with an
    error, and a mount point where what is wanted is not mounted. Of what O(mounts) does not name
    all that is V(warn).
  - A server that takes the connection and does not answer the call is V(unknown). One that cannot
    be reached while what is mounted of it answers is V(warn),
    or nothing to speak of where O(mounts) does not name it.
  - Without O(mounts) and without NFS it is V(skip).
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  mounts:
    description: What jobs need.
    type: list
    elements: dict
    default: []
    suboptions:
      server:
        description: Name or address of the server.
        type: str
        required: true
      path:
        description: What it exports, as the first part of C(/etc/fstab) has it after the colon.
        type: str
        required: true
      mount_point:
        description: Where it is to be mounted on the host. When not given, only the server is
          asked.
        type: str
      port:
        description: TCP port of the server.
        type: int
        default: 2049
"""

EXAMPLES = r"""
- name: Do the servers of all that is mounted answer?
  autopilot.gpu.nfs_mounts:

- name: Is the data there that jobs read?
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
