#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pushgateway_forget
short_description: Remove nodes that are gone from a Pushgateway
version_added: 0.1.0
description:
  - A Pushgateway keeps pushed metrics until they are deleted.
  - This module deletes the metrics that P(autopilot.gpu.pushgateway#callback) pushed for nodes that
    are no longer in the inventory.
  - Address and credentials of the Pushgateway are read from the variables, environment and
    configuration of that callback, such as C(pushgateway_url). Only groups with its C(job) and
    exactly its C(labels) are deleted.
  - Metrics of these nodes in the spool of this controller are deleted too.
  - Refuses when the inventory is empty, or has less than half of the pushed nodes, and O(nodes) is
    not given. C(--limit) makes no difference.
  - Runs once, on the controller. The playbook C(autopilot.gpu.forget) calls it.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  nodes:
    description: Delete the metrics of exactly these nodes, whether they are in the inventory or
      not.
    type: list
    elements: str
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Returns the nodes whose metrics would be deleted.
requirements:
  - prometheus_client and urllib3 on the controller (Python packages)
seealso:
  - plugin: autopilot.gpu.pushgateway
    plugin_type: callback
"""

EXAMPLES = r"""
- name: Delete the metrics of nodes that left the inventory
  autopilot.gpu.pushgateway_forget:
  vars:
    pushgateway_url: https://push.example:9091
    pushgateway_token_file: /etc/autopilot/push.token

- name: Delete the metrics of one node
  autopilot.gpu.pushgateway_forget:
    nodes: [gpu07]
  vars:
    pushgateway_url: https://push.example:9091
"""

RETURN = r"""
forgotten:
  description: The nodes whose metrics were deleted, or would be in check mode.
  type: list
  elements: str
  returned: when the Pushgateway could be asked
  sample: [gpu07]
groups:
  description: Number of deleted groups, one for each node and phase.
  type: int
  returned: when the Pushgateway could be asked
  sample: 2
"""
