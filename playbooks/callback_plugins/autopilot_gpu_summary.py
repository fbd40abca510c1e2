# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads the callback ``autopilot.gpu.summary`` with the playbooks of this directory: Ansible loads
callbacks beside a playbook unasked.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: autopilot_gpu_summary
type: aggregate
short_description: The callback autopilot.gpu.summary for the playbooks of this collection
description:
  - The same as P(autopilot.gpu.summary#callback).
"""

from ansible_collections.autopilot.gpu.plugins.callback.summary import CallbackModule as Summary


class CallbackModule(Summary):
    """Needs no enabling; where the original is enabled too, the summary is shown once."""

    CALLBACK_NAME = "autopilot_gpu_summary"
    CALLBACK_NEEDS_ENABLED = False
