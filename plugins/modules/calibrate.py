#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: calibrate
short_description: Propose floors for checks from what the fleet has measured
version_added: 0.1.0
description:
  - Reads run documents and proposes, for each model of GPU, the least that its checks should
    accept, as a file of variables for the operator to review.
  - Proposed are O(autopilot.gpu.pcie_bandwidth#module:minimum),
    O(autopilot.gpu.gpu_link#module:minimum) (of NVLinks) and
    O(autopilot.gpu.gpu_memory#module:minimum).
  - Only results count that are V(pass), of nodes that were not unfit, and of each node the newest
    O(newest).
  - A floor is 0.9 of the median. It takes 20 values of 5 nodes, of which at most 2 % (or one) lie
    far below the others.
  - Where values are of two kinds, scatter, or lie far below the others, nothing is proposed and the
    reason is said; the floor is never lowered to let them
    pass.
  - A floor below the built-in one is not set. It stands in the file as a comment, with a warning.
  - Measures nothing, and asks no host. Runs once, on the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  runs:
    description:
      - Run documents, and directories with run documents below them, on the controller; relative to
        where Ansible was started.
      - What is below a directory and cannot be read is said and passed over.
    type: list
    elements: path
    required: true
  newest:
    description: How many results of a check are taken of each node, the newest.
    type: int
    default: 3
  dest:
    description:
      - Directory on the controller for the files, one for each model, named after it.
      - Nothing is written when not given.
    type: path
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: The same, and nothing is written.
seealso:
  - module: autopilot.gpu.verdict
  - module: autopilot.gpu.replay
"""

EXAMPLES = r"""
- name: What floors do the runs of this month make?
  autopilot.gpu.calibrate:
    runs: [reports]
    dest: floors
"""

RETURN = r"""
proposals:
  description: >-
    By C(model), C(check) and C(option), the C(floor) in C(unit), V(none) where there is C(trouble);
    C(built_in), the floor that it takes the place of, and
    C(below_built_in); the C(runs) that it is made of, and their C(distributions).
  type: list
  elements: dict
  returned: success
left_out:
  description: How many results and documents were not taken, by reason.
  type: dict
  returned: success
unread:
  description: Files below a directory that are no run documents, with the reason.
  type: list
  elements: str
  returned: success
files:
  description: Paths of the files, also in check mode.
  type: list
  elements: str
  returned: success
  sample: [/srv/floors/nvidia_h100_80gb_hbm3.yml]
summary:
  description: The same for a person, line by line.
  type: list
  elements: str
  returned: success
"""
