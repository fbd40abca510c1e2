#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_facts
short_description: Collect what the mesh needs to know about a host
version_added: 0.1.0
description:
  - Reads the network interfaces of a host, whether iperf3 and fping are installed, and whether its
    GPUs are in use.
  - Compares the host's clock with the controller's, because the hosts of a mesh follow a plan by
    the clock.
  - Stops the process of an earlier mesh run, which would measure at the same time. Changes nothing
    else.
  - M(autopilot.gpu.mesh_plan) makes a plan from these facts.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  interfaces:
    description: Names of the interfaces to measure on this host; chosen by
      M(autopilot.gpu.mesh_plan) when empty.
    type: list
    elements: str
    default: []
  gate:
    description:
      - Whether to check if the GPUs are in use, which takes two seconds; not done in check mode.
      - A host without the NVIDIA driver is idle. With the driver, the Python package
        C(nvidia-ml-py) is needed.
    type: bool
    default: false
  python:
    description: Path of the Python interpreter on the host to use, such as one that has
      C(nvidia-ml-py). Ansible's interpreter when not given.
    type: path
  nvml_library:
    description: Path of C(libnvidia-ml.so.1) on the host, when it is not in the usual directories.
    type: path
  host_root:
    description: Where the root file system of the host is mounted; other than V(/) only in a
      container.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Only reads, and stops no process.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing is changed.
  platform:
    support: full
    description: The systems it runs on.
    platforms: linux
seealso:
  - module: autopilot.gpu.mesh_plan
  - module: autopilot.gpu.mesh_run
"""

EXAMPLES = r"""
- name: Collect interfaces, tools and clock offsets
  autopilot.gpu.mesh_facts:
    interfaces: [eth1, eth2]
    gate: true
  register: autopilot_mesh_facts
  ignore_errors: true
  ignore_unreachable: true
"""

RETURN = r"""
mesh:
  description: The interfaces, iperf3 and fping, findings against using the host (busy), its switch
    or block of a cloud where it can tell (topology), and the seconds by which its clock is ahead of
    the controller's (clock; null with clock_error when it could not be read).
  type: dict
  returned: always
  sample:
    interfaces: [{name: eth1, kind: "", up: true, carrier: true, mtu: 1500, speed: 100000000000, default_route: false,
                  addresses: [{family: 4, address: 10.78.1.1, prefix: 24}]}]
    wanted: [eth1]
    iperf3: {path: /usr/bin/iperf3, version: "3.12"}
    fping: {path: /usr/bin/fping, version: "5.1"}
    busy: []
    topology: {source: lldp, group: "leaf01 (0c:42:a1:00:00:01)"}
    clock: {offset_seconds: 0.013, uncertainty_seconds: 0.03, base_seconds: 1731900000.2, asked: 1732145600.1,
            answered: 1732145600.9}
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import (
    node_daemon,
    facts,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "gate": {"type": "bool", "default": False},
            "python": {"type": "path"},
            "nvml_library": {"type": "path"},
            "host_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["host_root"]
    if not os.path.isdir(root):
        module.fail_json(
            msg=f"host_root: {root} is not a directory on this host; expected the one where its "
            "root file system is mounted"
        )
    bounded.end_with_reader(1)
    settings = HostSettings(nvml_library=module.params["nvml_library"], host_root=root)
    if not module.check_mode:
        # A run that was interrupted still has the lock that the gate asks for. What cannot be
        # ended, the start of the next run reports.
        with contextlib.suppress(node_daemon.MeshError):
            node_daemon.stop(host_root=root)
    # The gate takes the host's lock, which is a file.
    told = facts.look(settings, module.params["gate"] and not module.check_mode)
    module.exit_json(changed=False, mesh=dict(told, wanted=module.params["interfaces"]))


if __name__ == "__main__":
    main()
