#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_run
short_description: Start a host's share of the mesh, or take its readings
version_added: 0.1.0
description:
  - Starts a process on the host that follows its share of a mesh run by the clock, pinging its
    peers and measuring with them by iperf3, and returns at once.
  - Takes the readings from it later. That process then ends; it also does so when its lifetime is
    over, and when another run takes its place.
  - The process keeps its readings in memory and hands them over a socket to the user that started
    it.
    The socket is in C(/run/autopilot-gpu) of O(host_root) for root, in C(autopilot-gpu-<uid>) of
    the temporary directory for other users.
  - A part of the role that runs the mesh checks; the shares come from the plan for all hosts.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  state:
    description:
      - V(started) ends the process of an earlier run and starts one for O(share); a share without
        windows starts none.
      - V(collected) takes the readings of O(run), or of O(share), and ends the process, also when
        the run is not over after O(wait_seconds).
      - V(absent) ends the process of O(run), or of whichever run when that is not given.
    type: str
    required: true
    choices: [started, collected, absent]
  share:
    description:
      - What this host does in the run and when, a dictionary as M(autopilot.gpu.mesh_plan) returns
        it by host. Required for O(state=started).
      - Or the name under which that module's result is registered. This host's share is then looked
        up there, and its O(run) too; without one it is skipped.
      - For O(state=collected), C(run), C(pass) and C(host) of it are enough. Readings of another
        pass, or of another name of this machine, are not taken then.
    type: raw
  run:
    description: The run that is collected or ended. Required for O(state=collected) without
      O(share).
    type: str
  wait_seconds:
    description: Seconds to wait at most for a run that is not over yet, when it is collected.
    type: float
    default: 0
  host_root:
    description: Where the host's root file system is mounted; the socket, and the lock that keeps
      checks of GPUs away, are below it.
    type: path
    default: /
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Starts and ends nothing, and says what would be.
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
- name: Start every host's share
  autopilot.gpu.mesh_run:
    state: started
    share: autopilot_mesh_plan

- name: Take the readings
  autopilot.gpu.mesh_run:
    state: collected
    share: autopilot_mesh_plan
    wait_seconds: 5
  register: mesh_readings

- name: End whatever run goes on
  autopilot.gpu.mesh_run:
    state: absent
"""

RETURN = r"""
mesh:
  description:
    - For O(state=started) its C(state) (V(started), V(nothing_to_do), in check mode
      V(would_start)), the C(pid), and the run that was C(replaced).
    - For O(state=collected) the readings with their C(state), V(done), V(running), V(none) or
      V(replaced), and the C(reason) when there are none.
    - For O(state=absent) the run that was C(ended), in check mode that would be.
    - Where the process could not be started, asked or ended, the C(state) V(none) and the
      C(reason).
  type: dict
  returned: when the options are accepted
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import fail_on_negative
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import node_daemon


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
    except node_daemon.MeshError as error:
        # So that the verdict can say why there are no readings.
        module.fail_json(
            msg=str(error), mesh=node_daemon.nothing(options["run"] or "", "none", str(error))
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
        return node_daemon.collect(
            options["run"], wait_seconds, take=not check_mode, host_root=root
        )
    if not isinstance(share, dict) or not isinstance(share.get("run"), str):
        raise ValueError(
            f"share: {share!r} is invalid; expected a dictionary with run, pass and host"
        )
    return node_daemon.collect(
        share["run"],
        wait_seconds,
        take=not check_mode,
        turn=share.get("pass"),
        known_as=share.get("host"),
        host_root=root,
    )


def _end(options: dict, check_mode: bool) -> dict:
    if not check_mode:
        return {"state": "none", "ended": node_daemon.stop(options["run"], options["host_root"])}
    found = node_daemon.state(options["host_root"])
    return {
        "state": found["state"],
        "ended": found.get("run") if options["run"] in (None, found.get("run")) else None,
    }


if __name__ == "__main__":
    main()
