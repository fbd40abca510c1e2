#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_run
short_description: Start a host's share of the mesh, or collect its readings
version_added: 0.1.0
description:
  - Starts a process on the host that follows its share of a mesh run by the clock. The process
    pings its peers and measures with them by iperf3 and perftest. The task returns at once.
  - Collects the readings later. The process then ends. It also ends when its lifetime is over, and
    when another run replaces it.
  - The process keeps its readings in memory and passes them through a socket to the user that
    started it. The socket is in C(/run/autopilot-gpu) of O(host_root) for root, and in
    C(autopilot-gpu-<uid>) of the temporary directory for other users.
  - A part of the role that runs the mesh checks. The shares come from the plan for all hosts.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  state:
    description:
      - V(started) stops the process of an earlier run and starts a process for O(share). A share
        without measurements starts no process.
      - V(collected) collects the readings of O(run), or of O(share), and stops the process, also
        when the run is not over after O(wait_seconds).
      - V(absent) stops the process of O(run), or of any run when O(run) is not given.
    type: str
    required: true
    choices: [started, collected, absent]
  share:
    description:
      - What this host measures and when, a dictionary that M(autopilot.gpu.mesh_plan) returns by
        host. Required for O(state=started).
      - Or the name under which the result of that module is registered. The share of this host and
        its O(run) are then read there; a host without a share is skipped.
      - For O(state=collected), C(run), C(pass) and C(host) of the share are enough. Readings of
        another pass, or of another name of this machine, are then refused.
    type: raw
  run:
    description: Run to collect or to stop. Required for O(state=collected) without O(share).
    type: str
  wait_seconds:
    description: Maximum seconds to wait for the end of a run before it is collected.
    type: float
    default: 0
  host_root:
    description: Where the host's root file system is mounted. The socket and the lock against GPU
      checks are below it.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Starts and stops nothing, and returns what would happen.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: No lasting state of the host is changed.
  platform:
    support: full
    description: The systems it runs on.
    platforms: linux
notes:
  - Becoming root is not needed where fping may send pings as the user. Start and collect as the
    same user and with the same O(host_root).
  - Where systemd ends what a user leaves behind at logout (C(KillUserProcesses)), become root or
    enable lingering for the user.
"""

EXAMPLES = r"""
- name: Start the share of every host
  autopilot.gpu.mesh_run:
    state: started
    share: autopilot_mesh_plan

- name: Collect the readings
  autopilot.gpu.mesh_run:
    state: collected
    share: autopilot_mesh_plan
    wait_seconds: 5
  register: mesh_readings

- name: Stop any run of the mesh
  autopilot.gpu.mesh_run:
    state: absent
"""

RETURN = r"""
mesh:
  description:
    - For O(state=started) its C(state) (V(started), V(nothing_to_do), in check mode
      V(would_start)), the C(pid), and the run that was C(replaced).
    - For O(state=collected) the readings with their C(state), V(done), V(running), V(none) or
      V(replaced), and the C(reason) when there are no readings.
    - For O(state=absent) the run that was C(ended), or would be in check mode.
    - When the process could not be started, queried or stopped, the C(state) V(none) and the
      C(reason).
  type: dict
  returned: when the options are accepted, without the readings of an O(share) that is given by name
    where the callback P(autopilot.gpu.summary#callback) keeps them for the verdict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import fail_on_negative
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import (
    node_daemon,
    node_process,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "required": True,
                "choices": ["started", "collected", "absent"],
            },
            "share": {"type": "raw"},
            "run": {"type": "str"},
            "wait_seconds": {"type": "float", "default": 0},
            "host_root": {"type": "path", "default": "/"},
        },
        required_if=[
            ("state", "started", ("share",)),
            ("state", "collected", ("run", "share"), True),
        ],
        supports_check_mode=True,
    )
    options = module.params
    fail_on_negative(module)
    if not os.path.isdir(options["host_root"]):
        module.fail_json(
            msg=f"host_root: {options['host_root']} is not a directory on this host; expected the "
            "one where its root file system is mounted"
        )
    try:
        mesh = {"started": _start, "collected": _collect, "absent": _end}[options["state"]](
            options, module.check_mode
        )
    except ValueError as error:
        module.fail_json(msg=str(error))
    except node_process.MeshError as error:
        # So that the verdict can say why there are no readings.
        module.fail_json(
            msg=str(error), mesh=node_process.nothing(options["run"] or "", "none", str(error))
        )
    changed = mesh["state"] in ("started", "would_start") or bool(
        mesh.get("replaced") or mesh.get("ended")
    )
    module.exit_json(changed=changed, mesh=mesh)


def _start(options: dict, check_mode: bool) -> dict:
    return (
        node_daemon.would_start(options["share"], options["host_root"])
        if check_mode
        else node_daemon.start(options["share"], options["host_root"])
    )


def _collect(options: dict, check_mode: bool) -> dict:
    wait_seconds, share, root = (
        0.0 if check_mode else options["wait_seconds"],
        options["share"],
        options["host_root"],
    )
    if share is None:
        return node_process.collect(
            options["run"], wait_seconds, take=not check_mode, host_root=root
        )
    if not isinstance(share, dict) or not isinstance(share.get("run"), str):
        raise ValueError(
            f"share: {share!r} is invalid; expected a dictionary with run, pass and host"
        )
    return node_process.collect(
        share["run"],
        wait_seconds,
        take=not check_mode,
        turn=share.get("pass"),
        known_as=share.get("host"),
        host_root=root,
    )


def _end(options: dict, check_mode: bool) -> dict:
    if not check_mode:
        return {"state": "none", "ended": node_process.stop(options["run"], options["host_root"])}
    found = node_process.state(options["host_root"])
    return {
        "state": found["state"],
        "ended": found.get("run") if options["run"] in (None, found.get("run")) else None,
    }


if __name__ == "__main__":
    main()
