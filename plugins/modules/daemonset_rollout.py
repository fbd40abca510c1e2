#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: daemonset_rollout
short_description: Wait until a DaemonSet runs on every node, and report why it does not
version_added: 0.1.0
description:
  - Waits until every node selected by the DaemonSet has a ready pod of its newest version.
  - Fails on timeout, with the reason for each node, from the scheduler, the image pull, the probes
    or the last output of the container.
  - Does not wait for nodes that are not ready themselves. A warning names them.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  name:
    description: Name of the DaemonSet.
    type: str
    required: true
  namespace:
    description: Namespace of the DaemonSet.
    type: str
    required: true
  timeout:
    description: Seconds until the timeout.
    type: int
    default: 600
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Only reads the current state; does not wait in check mode.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing is changed.
"""

EXAMPLES = r"""
- name: Wait for the rollout of the agents
  autopilot.gpu.daemonset_rollout:
    name: autopilot
    namespace: autopilot
    timeout: 300
"""

RETURN = r"""
wanted:
  description: Number of nodes that need a pod.
  type: int
  returned: always
ready:
  description: Number of nodes with a ready pod of the newest version.
  type: int
  returned: always
missing:
  description: The reason for each node without such a pod.
  type: dict
  returned: always
  sample:
    gpu07: 'ImagePullBackOff: Failed to pull image "registry.example/agent:1": not found'
away:
  description: The nodes without such a pod that are not ready themselves.
  type: list
  elements: str
  returned: always
previous:
  description: The nodes on which a pod of the previous version still works.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._rollout import (
    follow,
    headline,
    reasons_of,
)


def main() -> None:
    options = {
        "name": {"type": "str", "required": True},
        "namespace": {"type": "str", "required": True},
        "timeout": {"type": "int", "default": 600},
    }
    module = AnsibleModule(
        argument_spec={**options, **CONNECTION_OPTIONS}, supports_check_mode=True
    )
    name, namespace, timeout = (module.params[option] for option in options)
    if timeout < 0:
        module.fail_json(msg=f"timeout: {timeout} is invalid; expected seconds, 0 or more")
    cluster = connected(module)
    try:
        # After the deadline, a few requests report the remaining pods.
        seen = cluster.run(
            follow(namespace, name, 0 if module.check_mode else timeout), timeout + 60
        )
    except ApiError as error:
        module.fail_json(msg=f"DaemonSet {namespace}/{name}: {error}")
    result = {
        "wanted": seen.wanted,
        "ready": seen.ready,
        "missing": seen.missing,
        "away": seen.away,
        "previous": seen.previous,
    }
    if seen.away:
        module.warn(
            f"{len(seen.away)} nodes are not ready themselves and were not waited for: "
            f"{', '.join(seen.away[:20])}"
        )
    if not seen.wanted:
        module.warn(
            f"DaemonSet {namespace}/{name} is meant for no node at all: no node has the labels "
            "that it selects"
        )
    if not seen.complete and not module.check_mode:
        lines = "\n".join("  " + line for line in reasons_of(seen))
        module.fail_json(
            msg=f"DaemonSet {namespace}/{name} {headline(seen)} after {timeout} s:\n{lines}",
            **result,
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
