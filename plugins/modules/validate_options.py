#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: validate_options
short_description: Validate the variables of a playbook before a host is contacted
version_added: 0.1.0
description:
  - Validates every variable that a playbook of this collection reads, on the controller, and fails
    with all problems at once.
  - With the callback P(autopilot.gpu.summary#callback) enabled, no host fails. The callback shows
    the problems and ends the playbook with status 2. Under a stdout callback that writes JSON the
    task fails.
  - Validates the options of the callback P(autopilot.gpu.pushgateway#callback) too.
  - Validates the names of checks, the options of each check, the policy, the codes of findings, the
    names of runs, and files on the controller. Variables of hosts are validated for every host of
    the play; a value that many hosts share is validated once.
  - Answers a misspelt variable with the nearest supported ones. A variable with the prefix
    C(preflight_), C(inflight_), C(postflight_), C(checks_), C(mesh_) or C(pushgateway_) that is not
    supported is an error. So is a variable of the command line that resembles a supported one.
  - With O(playbook=agent), validates what the role C(agent) gives the agents by the agents' own
    rules, refuses the image tag V(latest), and takes an unknown variable C(agent_*) for misspelt.
  - With O(playbook=queue), takes an unknown variable C(queue_*) for misspelt, with O(playbook=teams)
    an unknown variable C(teams_*).
  - Refuses a C(preflight_run_id) whose directory has a run document.
  - Runs once, on the controller. The playbooks of this collection start with it.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  playbook:
    description: The playbook whose variables are validated.
    type: str
    required: true
    choices: [preflight, inflight, postflight, capture, compare, replay, calibrate, status, forget, quota,
      nfs_provisioner, scrape_targets, agent, queue, teams]
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: The same as without check mode.
seealso:
  - module: autopilot.gpu.verdict
"""

EXAMPLES = r"""
- name: Validate the variables of a preflight
  autopilot.gpu.validate_options:
    playbook: preflight
"""

RETURN = r"""
msg:
  description: All problems, separated by semicolons.
  type: str
  returned: when an option is invalid
  sample: "1 option is invalid, no host was contacted: mesh_rounds: 'fast' is invalid; expected a
    positive integer or 'all'"
"""
