#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: replay
short_description: Judge a saved run again
version_added: 0.1.0
description:
  - Judges the readings in a run document once more, by the rules of this version and by other
    thresholds or another policy where they are given, and
    shows which nodes, findings and verdict would differ.
  - Measures nothing and asks no host. Options that say how to measure have no effect on what was
    measured.
  - A result whose readings are not in the document stays as it was recorded, and the summary says
    so.
  - Fails only for what it cannot read. That the verdict would be another one is no failure.
  - Runs once, on the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  run:
    description: Path of the run document on the controller, as M(autopilot.gpu.verdict) wrote it;
      relative to where Ansible was started.
    type: path
    required: true
  policy:
    description: What is tolerated, as for M(autopilot.gpu.verdict). The policy that the run was
      judged by when not given.
    type: dict
  options:
    description:
      - "Options by check name or short name, for example C({pcie_bandwidth: {minimum: 20}}), in
        place of those that the run recorded, on all nodes."
      - What is not given stays as it was recorded; V(null) takes a recorded V(minimum) away.
      - Which options a check has is documented with the module of the same name.
    type: dict
    default: {}
  report_dir:
    description:
      - Directory on the controller for the document of the replay, which gets a directory named
        after the run and C(-replay) in it; one that exists is
        written over.
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
  - plugin: autopilot.gpu.summary
    plugin_type: callback
"""

EXAMPLES = r"""
- name: What would have failed with 20 GB/s as the limit?
  autopilot.gpu.replay:
    run: reports/20261121T031200-preflight/run.json
    options:
      pcie_bandwidth:
        minimum: 20
"""

RETURN = r"""
run_id:
  description: Name of the run.
  type: str
  returned: success
  sample: 20261121T031200-preflight
status:
  description: The worst status of all nodes as it would be, one of V(pass), V(skip), V(warn),
    V(unknown), V(fail).
  type: str
  returned: success
passed:
  description: Whether the policy would be met.
  type: bool
  returned: success
counts:
  description: Numbers of nodes as they would be, see M(autopilot.gpu.verdict).
  type: dict
  returned: success
changes:
  description: >-
    What differs. C(passed) and C(reason) of the run, each with C(before) and C(after); C(nodes),
    those that differ, with their C(name), C(status), C(fit),
    C(partial) and C(findings); and C(findings) about what lies between nodes. Findings are lists of
    those that C(appear), C(vanish) and C(change).
  type: dict
  returned: success
kept:
  description: By check, the nodes whose result stays as it was recorded, because its readings are
    not in the document.
  type: dict
  returned: success
summary:
  description: The same for a person, line by line.
  type: list
  elements: str
  returned: success
report:
  description: Path of the document of the replay.
  type: str
  returned: when O(report_dir) is given and not in check mode
page:
  description: Path of the same as one HTML page.
  type: str
  returned: when O(report_dir) is given and not in check mode
summary_file:
  description: Path of the summary as text, beside the document.
  type: str
  returned: when O(report_dir) is given and not in check mode
"""
