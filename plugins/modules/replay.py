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
  - Judges the readings in a run document by the rules of this version, with other options or
    another policy when given, and shows which nodes, findings and verdict would differ.
  - Measures nothing and contacts no host. Options that control the measurement have no effect.
  - A result without readings in the document stays as recorded, and the summary says so.
  - Fails only for a document that it cannot read. Another verdict is not a failure.
  - Runs once, on the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  run:
    description: Path of the run document of M(autopilot.gpu.verdict) on the controller; relative to
      the directory in which Ansible was started.
    type: path
    required: true
  policy:
    description: The policy, as in M(autopilot.gpu.verdict). The recorded policy when not given.
    type: dict
  options:
    description:
      - "Options by check name or short name, for example C({pcie_bandwidth: {minimum: 20}}),
        instead of the recorded options, on all nodes."
      - Other options stay as recorded; V(null) removes a recorded V(minimum).
      - The module of each check documents its options.
    type: dict
    default: {}
  report_dir:
    description:
      - Directory on the controller for the document of the replay, in a directory with the name of
        the run and C(-replay), which is overwritten.
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
  - plugin: autopilot.gpu.summary
    plugin_type: callback
"""

EXAMPLES = r"""
- name: Judge a run with 20 GB/s as the minimum
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
  description: The worst status of all nodes in the replay, one of V(pass), V(skip), V(warn),
    V(unknown), V(fail).
  type: str
  returned: success
passed:
  description: Whether the replay meets the policy.
  type: bool
  returned: success
counts:
  description: Numbers of nodes in the replay, see M(autopilot.gpu.verdict).
  type: dict
  returned: success
changes:
  description: The differences. C(passed) and C(reason) of the run, each with C(before) and
    C(after); C(nodes) that differ, with their C(name), C(status), C(fit), C(partial) and
    C(findings); and C(findings) between nodes. Findings are lists of those that C(appear),
    C(vanish) and C(change).
  type: dict
  returned: success
kept:
  description: By check, the nodes whose result stays as recorded because its readings are not in
    the document.
  type: dict
  returned: success
summary:
  description: The same as text lines.
  type: list
  elements: str
  returned: success
report:
  description: Path of the document of the replay.
  type: str
  returned: when O(report_dir) is given and not in check mode
page:
  description: Path of the report page of the replay.
  type: str
  returned: when O(report_dir) is given and not in check mode
summary_file:
  description: Path of the summary as text, beside the document.
  type: str
  returned: when O(report_dir) is given and not in check mode
"""
