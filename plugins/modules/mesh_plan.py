#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_plan
short_description: Plan which hosts measure the network with whom, and when
version_added: 0.1.0
description:
  - Makes one plan for all hosts of the play from what M(autopilot.gpu.mesh_facts) returned on each,
    and a share of it for each host.
  - First all hosts ping each other, or a balanced sample of the others. Then pairs of hosts run
    iperf3 round by round; in a round a host
    has one partner, so that no measurement disturbs another.
  - With O(follow_up=true), judges what was collected and plans a second pass between hosts under
    suspicion and partners that proved good.
    It measures each pair twice, and the better figure counts.
  - Starts nothing. M(autopilot.gpu.mesh_run) follows the plan, and the role
    P(autopilot.gpu.mesh#role) has all the steps in their order.
  - Runs once, on the controller, under the strategy C(linear). Set C(run_once) on the task to have
    what it registers on every host.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  checks:
    description:
      - The checks to plan, V(ping_mesh) (V(ping)) and V(iperf3_pairs) (V(iperf)); both when empty.
      - Names of checks that a node does alone are passed over.
    type: list
    elements: str
    default: []
  rounds:
    description: How many rounds of pairs on each plane, or V(all) for every pair of hosts.
    type: raw
    default: 5
  together:
    description: Whether all planes carry traffic at once instead of one after the other.
    type: bool
    default: false
  seed:
    description: Makes the choice of partners the same again; the time when not given. The plan
      tells which was used.
    type: int
  group_by:
    description:
      - Names of inventory variables that tell where a host is. The first of them that any host has
        makes the groups.
      - Rounds then have pairs within groups and pairs across them in turn.
    type: list
    elements: str
    default: [rack, switch, zone]
  confirm:
    description: Whether O(follow_up=true) plans a second pass at all.
    type: bool
    default: true
  frozen:
    description:
      - The name under which an earlier result of this module is registered. The options and the
        groups of hosts that it read are used again.
      - With O(only_options=true) before any host is asked, and this afterwards, nothing that a host
        answers can change them.
    type: str
  options:
    description:
      - "Options by check name or short name, for example C({iperf3_pairs: {duration: 10}})."
      - M(autopilot.gpu.ping_mesh) and M(autopilot.gpu.iperf3_pairs) document them. Those of other
        checks are passed over.
    type: dict
    default: {}
  only_options:
    description:
      - Only look at the options, and at how many hosts there are, before any host is asked for
        facts.
      - Fails for what is wrong with them. A host that is alone has its whole plan then, which says
        so.
    type: bool
    default: false
  follow_up:
    description: Whether to plan the second pass, from O(plan) and O(readings).
    type: bool
    default: false
  facts:
    description: The name under which M(autopilot.gpu.mesh_facts) registered its result.
    type: str
    default: autopilot_mesh_facts
  plan:
    description: The name under which this module registered the plan of the first pass.
    type: str
    default: autopilot_mesh_plan
  readings:
    description: The name under which M(autopilot.gpu.mesh_run) registered what it collected of the
      first pass.
    type: str
    default: autopilot_mesh_first
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Plans all the same, and returns that nothing goes on.
seealso:
  - module: autopilot.gpu.mesh_facts
  - module: autopilot.gpu.mesh_run
  - module: autopilot.gpu.verdict
"""

EXAMPLES = r"""
- name: Every pair of hosts, ten seconds each
  autopilot.gpu.mesh_plan:
    rounds: all
    options:
      iperf3_pairs:
        duration: 10
  register: autopilot_mesh_plan
  run_once: true
"""

RETURN = r"""
plan:
  description: The plan, which the run document of M(autopilot.gpu.verdict) has too; null when there
    is nothing to measure once more.
  type: dict
  returned: unless only the options were looked at
shares:
  description: What each host has to do, as JSON text by host; hosts that take no part have none.
  type: dict
  returned: with RV(plan)
description:
  description: >-
    What the plan costs: hosts, planes, rounds, pairs, pings, bytes at most (null where the speed of
    an interface is not known), seconds,
    and how many hosts are left out of something.
  type: dict
  returned: with RV(plan)
  sample:
    hosts: 32
    planes: [eth1, eth2]
    rounds: 10
    pairs: 160
    pings: 45632
    bytes: 1920000000000
    seconds: 80.0
    seed: 7
    left_out: 0
end:
  description: When all is over, in seconds since the epoch on the controller's clock.
  type: float
  returned: with RV(plan)
checks:
  description: The checks of the network that are planned; none when none is asked for.
  type: list
  elements: str
  returned: success
frozen:
  description: The options and the groups of hosts that were read, as JSON text for the option of
    that name.
  type: str
  returned: unless O(follow_up=true)
gate:
  description: Whether hosts are to be asked if somebody uses their GPUs.
  type: bool
  returned: with O(only_options=true)
goes_on:
  description: Whether there is something left to do.
  type: bool
  returned: success
"""
