#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_plan
short_description: Plan which hosts measure the network with each other, and when
version_added: 0.1.0
description:
  - Makes one plan for all hosts of the play from the facts of M(autopilot.gpu.mesh_facts), and a
    share of the plan for each host.
  - First all hosts ping each other, or a balanced sample of the others. Then pairs of hosts run
    iperf3, or perftest on the ports of their HCAs, in rounds. In a round a host has one partner on
    a network, so that no measurement disturbs another.
  - With O(follow_up=true), judges the first results and plans a retest of suspects with known-good
    partners. The retest measures each pair three times.
  - Starts no measurement. M(autopilot.gpu.mesh_run) follows the plan, and the role
    P(autopilot.gpu.mesh#role) runs all the steps in order.
  - Runs once, on the controller, under the strategy C(linear). Set C(run_once) on the task to have
    what it registers on every host.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  checks:
    description:
      - Checks to plan, V(ping_mesh) (V(ping)), V(iperf3_pairs) (V(iperf)) and
        V(rdma_pairs); the first two when empty.
      - Names of checks of a single node are ignored.
    type: list
    elements: str
    default: []
  rounds:
    description: Number of rounds of pairs on each network, or V(all) for every pair of hosts.
    type: raw
    default: 5
  together:
    description:
      - Whether all networks are measured at the same time instead of one after the other.
      - V(auto) measures them at the same time where each host shows that its network cards have
        PCIe root ports of their own, and two cores for each network.
    type: raw
    default: auto
  seed:
    description: Seed for the choice of partners, to repeat a plan; the time when not given. The
      plan has the seed that was used.
    type: int
  group_by:
    description:
      - Names of inventory variables that tell where a host is. The first one that any host has
        forms the groups. Hosts without it are grouped by what M(autopilot.gpu.mesh_facts) found out
        about their place in the network.
      - Rounds then alternate between pairs within groups and pairs across groups.
    type: list
    elements: str
    default: [rack, switch, zone]
  confirm:
    description: Whether O(follow_up=true) plans a retest.
    type: bool
    default: true
  frozen:
    description:
      - Name under which an earlier result of this module is registered. Its options and groups of
        hosts are used again.
      - With O(only_options=true) before any host is contacted, and this option afterwards, no
        answer of a host can change the options.
    type: str
  options:
    description:
      - "Options by check name or short name, for example C({iperf3_pairs: {duration: 10}})."
      - M(autopilot.gpu.ping_mesh), M(autopilot.gpu.iperf3_pairs) and M(autopilot.gpu.rdma_pairs)
        document them. Options of other checks are ignored.
    type: dict
    default: {}
  only_options:
    description:
      - Only validate the options and count the hosts, before facts are collected.
      - Fails for invalid options. For a single host the returned plan is complete and says that
        there is nothing to measure.
    type: bool
    default: false
  follow_up:
    description: Whether to plan the retest, from O(plan) and O(readings).
    type: bool
    default: false
  facts:
    description: Name under which M(autopilot.gpu.mesh_facts) registered its result.
    type: str
    default: autopilot_mesh_facts
  plan:
    description: Name under which this module registered the plan of the first pass.
    type: str
    default: autopilot_mesh_plan
  readings:
    description: Name under which M(autopilot.gpu.mesh_run) registered the results of the first
      pass.
    type: str
    default: autopilot_mesh_first
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Makes the plan, and returns that no measurement will run.
seealso:
  - module: autopilot.gpu.mesh_facts
  - module: autopilot.gpu.mesh_run
  - module: autopilot.gpu.verdict
"""

EXAMPLES = r"""
- name: Plan every pair of hosts, ten seconds each
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
  description: The plan, which the run document of M(autopilot.gpu.verdict) contains too; null when
    no retest is needed.
  type: dict
  returned: unless only the options were looked at
shares:
  description: The share of each host, by host, as JSON text or as a reference that
    M(autopilot.gpu.mesh_run) resolves; hosts without a share are left out.
  type: dict
  returned: with RV(plan)
description:
  description: The cost of the plan, as hosts, networks, rounds, pairs, pings, maximum bytes (null
    when the speed of an interface is unknown), seconds, and the number of hosts that are left out.
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
  description: End of the plan, in seconds since the epoch on the controller's clock.
  type: float
  returned: with RV(plan)
checks:
  description: The network checks in the plan; empty when none is selected.
  type: list
  elements: str
  returned: success
frozen:
  description: The options and the groups of hosts, as JSON text for the option of the same name.
  type: str
  returned: unless O(follow_up=true)
gate:
  description: Whether hosts need to be asked if their GPUs are in use.
  type: bool
  returned: with O(only_options=true)
goes_on:
  description: Whether there is anything to measure.
  type: bool
  returned: success
"""
