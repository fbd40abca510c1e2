# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible does on a host of a mesh, without Ansible: ``on_node.py facts | start | collect``
with its arguments as JSON on standard input.
"""

from __future__ import annotations

import json
import sys
import time

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import (
    node_daemon,
    node_process,
    facts,
)


def main() -> None:
    given = json.load(sys.stdin)
    if sys.argv[1] == "facts":
        answer = facts.look(HostSettings(host_root=given["host_root"]), ask_gate=False)
        answer["clock"] = time.time()
    elif sys.argv[1] == "start":
        answer = node_daemon.start(given["share"], given["host_root"])
    else:
        answer = node_process.collect(given["run"], wait_seconds=5.0, host_root=given["host_root"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
