# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the callback ``autopilot.gpu.pushgateway`` with the playbooks of this directory: Ansible
loads callbacks beside a playbook unasked.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: autopilot_gpu_pushgateway
type: aggregate
short_description: The callback autopilot.gpu.pushgateway for the playbooks of this collection
description:
  - The same as P(autopilot.gpu.pushgateway#callback).
extends_documentation_fragment:
  - autopilot.gpu._pushgateway
"""

from ansible_collections.autopilot.gpu.plugins.callback.pushgateway import (
    CallbackModule as Pushgateway,
)


class CallbackModule(Pushgateway):
    """Needs no enabling; where the original is enabled too, one of them pushes."""

    CALLBACK_NAME = "autopilot_gpu_pushgateway"
    CALLBACK_NEEDS_ENABLED = False
