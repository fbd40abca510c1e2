#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_wait
short_description: Wait on the controller until a mesh run is over
version_added: 0.1.0
description:
  - Waits until the end of the plan that M(autopilot.gpu.mesh_plan) made. The hosts measure by
    themselves meanwhile, without a connection.
  - Returns at once on Ctrl-C when the callback P(autopilot.gpu.summary#callback) is enabled, as in
    the playbooks of this collection. The play then continues with M(autopilot.gpu.mesh_run) and
    V(collected), which ends the measurement on the hosts, and Ansible exits.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  plan:
    description: Name under which M(autopilot.gpu.mesh_plan) registered the plan.
    type: str
    default: autopilot_mesh_plan
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Returns at once, because no plan is followed in check mode.
"""

EXAMPLES = r"""
- name: Wait for the end of the mesh plan
  autopilot.gpu.mesh_wait:
    plan: autopilot_mesh_plan
"""

RETURN = r"""
seconds:
  description: Seconds that the task waited.
  type: float
  returned: when the plan goes on
  sample: 42.1
interrupted:
  description: Whether Ctrl-C was pressed.
  type: bool
  returned: when the plan goes on
"""
