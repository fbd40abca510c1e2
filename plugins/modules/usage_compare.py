#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_compare
short_description: Compare two recordings of a job, for example on two platforms
version_added: 0.1.0
description:
  - Reads two recordings of M(autopilot.gpu.usage_capture), and first decides whether the runs are
    comparable.
  - The verdict is V(identical), V(same hardware) (a difference is then due to the platform),
    V(different hardware) or V(different job). The differing parameters come first.
  - Then come the figures of each metric, weighted by time, with missing samples, and the difference
    with a 95 % confidence interval from a bootstrap over block means of 60 s.
  - Measures nothing and contacts no host. Runs once, on the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  a:
    description: Directory on the controller with the first recording; relative to the directory in
      which Ansible was started, like O(b).
    type: path
    required: true
  b:
    description: Directory with the second recording. Differences are those of the second recording
      to the first.
    type: path
    required: true
  rules:
    description: Thresholds of the findings, see M(autopilot.gpu.usage_capture).
    type: dict
    default: {}
  report_dir:
    description: Directory on the controller for C(comparison.json), C(comparison.html) and
      C(summary.txt). Nothing is written when not given.
    type: path
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Proposes the minimum figures and writes nothing.
seealso:
  - module: autopilot.gpu.usage_capture
"""

EXAMPLES = r"""
- name: Compare bare metal with OpenShift
  autopilot.gpu.usage_compare:
    a: runs/baremetal
    b: runs/openshift
    report_dir: reports/platforms
"""

RETURN = r"""
comparability:
  description: C(verdict), whether a difference is C(attributable) to the platform, the C(reason),
    and the differing C(parameters), C(hardware) and C(software), each with its C(name), C(a) and
    C(b).
  type: dict
  returned: success
metrics:
  description: By metric its name, unit, the figures of both recordings and their difference,
    without the plots that the document has.
  type: list
  elements: dict
  returned: success
summary:
  description: The same as text lines.
  type: list
  elements: str
  returned: success
report:
  description: Path of the document.
  type: str
  returned: when O(report_dir) is given and not in check mode
page:
  description: Path of the comparison as an HTML page with plots.
  type: str
  returned: when O(report_dir) is given and not in check mode
summary_file:
  description: Path of the summary as text, beside the document.
  type: str
  returned: when O(report_dir) is given and not in check mode
"""
