#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: calibrate
short_description: Propose minimum figures for checks from the measurements of the fleet
version_added: 0.1.0
description:
  - Reads run documents and proposes, for each GPU model, the minimum that its checks should accept,
    as a file of variables for review.
  - Proposes O(autopilot.gpu.pcie_bandwidth#module:minimum),
    O(autopilot.gpu.gpu_link#module:minimum) (of NVLinks) and
    O(autopilot.gpu.gpu_memory#module:minimum).
  - Uses only results that are V(pass), of nodes that were not unfit, and of each node the O(newest)
    results.
  - A minimum is 0.9 of the median. It needs 20 values of 5 nodes, of which at most 2 % (or one) are
    far below the others.
  - Proposes nothing, and gives the reason, when the values form two groups, scatter, or are far
    below the others. The minimum is never lowered to include such values.
  - A minimum below the built-in minimum is not set. The file has it as a comment, with a warning.
  - Measures nothing and contacts no host. Runs once, on the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  runs:
    description:
      - Run documents, and directories with run documents, on the controller; relative to the
        directory in which Ansible was started.
      - Files in a directory that cannot be read are reported and ignored.
    type: list
    elements: path
    required: true
  newest:
    description: Number of results of a check to use of each node, the newest first.
    type: int
    default: 3
  dest:
    description:
      - Directory on the controller for the files, one for each GPU model.
      - Nothing is written when not given.
    type: path
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Proposes the minimum figures and writes nothing.
seealso:
  - module: autopilot.gpu.verdict
  - module: autopilot.gpu.replay
"""

EXAMPLES = r"""
- name: Propose minimum figures from the runs of this month
  autopilot.gpu.calibrate:
    runs: [reports]
    dest: floors
"""

RETURN = r"""
proposals:
  description: By C(model), C(check) and C(option), the proposed C(floor) in C(unit), V(none) with
    C(trouble); C(built_in), the minimum that it replaces, and C(below_built_in); the C(runs) that
    it is based on, and their C(distributions).
  type: list
  elements: dict
  returned: success
left_out:
  description: Number of results and documents that were ignored, by reason.
  type: dict
  returned: success
unread:
  description: Files below a directory that are not run documents, with the reason.
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
  description: The same as text lines.
  type: list
  elements: str
  returned: success
"""
