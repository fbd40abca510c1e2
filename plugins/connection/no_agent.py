# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: no_agent
short_description: Connection to a node without a ready agent, which is always unreachable
version_added: 0.1.0
description:
  - P(autopilot.gpu.agents#inventory) assigns this connection to nodes without a ready agent. Every
    task is unreachable at once, with the reason.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  reason:
    description: The reason why nothing can run on the node.
    type: str
    default: there is no agent on this node
    vars:
      - name: autopilot_no_agent
"""

import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase


class Connection(ConnectionBase):
    """Never connects."""

    transport = "autopilot.gpu.no_agent"
    has_pipelining = True

    def _connect(self) -> t.NoReturn:
        raise AnsibleConnectionFailure(str(self.get_option("reason")))

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> t.NoReturn:
        self._connect()

    def put_file(self, in_path: str, out_path: str) -> t.NoReturn:
        self._connect()

    def fetch_file(self, in_path: str, out_path: str) -> t.NoReturn:
        self._connect()

    def close(self) -> None:
        pass
