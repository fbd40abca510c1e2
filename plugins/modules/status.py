#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Ask the agents of a cluster whether its nodes are fit
version_added: 0.1.0
description:
  - Asks one agent, which asks the other agents, and judges the results by the rules of the
    preflight. The task fails when a node is unfit or undecided.
  - Reaches the agent through C(kubectl port-forward), or at O(url). The caller is a service account
    with a token that is valid for ten minutes and on no command line. This needs the rights to
    C(create) C(serviceaccounts/token) and C(pods/portforward) in the namespace, to list its pods,
    and to get its ConfigMaps where the agents serve TLS.
  - Selects the nodes that match any of O(host), O(job) and O(nodelabel); all nodes with an agent
    when none is given.
  - Runs once, on the controller. The playbook C(autopilot.gpu.status) calls it.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  host:
    description: Names of nodes, or V(all).
    type: list
    elements: str
    default: []
  check:
    description: Names or short names of checks, or V(all); the agents' periodic checks when none is
      given.
    type: list
    elements: str
    default: []
  batch:
    description: Number of nodes to ask at once; the agents' limit when V(0).
    type: int
    default: 0
  job:
    description: Select the nodes with pods that have a label, as C(namespace:key=value).
    type: str
  nodelabel:
    description: Select the nodes with a label, as C(key=value).
    type: str
  r:
    description: Level of the DCGM diagnostic. From V(2) on it takes the GPUs.
    type: int
    default: 1
    choices: [1, 2, 3, 4]
  url:
    description: Address of an agent or of their Service, such as
      V(https://autopilot-healthchecks.autopilot.svc:3333).
    type: str
  ca_file:
    description: File on the controller with CA certificates that verify the agents. A forwarded port
      needs no file, because the role publishes the CA certificates of agents that serve TLS as
      ConfigMap C(autopilot-ca).
    type: path
  allow_plaintext:
    description: Allow O(url) with C(http://) on another host, which shows the token to the network.
    type: bool
    default: false
  token_file:
    description: File with the caller's token, instead of a token from the API server.
    type: path
  namespace:
    description: Namespace of the agents.
    type: str
    default: autopilot
  service_account:
    description: Service account of the caller. It needs the ClusterRole C(autopilot-checks), and
      C(autopilot-diagnostics) for requests that take GPUs.
    type: str
    default: autopilot-client
  audience:
    description: Audience of the token, the role's C(agent_audience). Other servers do not accept
      such a token; empty for the audience of the API server.
    type: str
    default: autopilot
  timeout:
    description: Seconds until the timeout for all nodes.
    type: float
    default: 3600
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: partial
    description: Can run in C(check_mode) and return what it would do.
    details: Asks no agent, because a request starts checks.
requirements:
  - kubectl on the controller, unless O(url) is given
"""

EXAMPLES = r"""
- name: Check the nodes of a pool
  autopilot.gpu.status:
    nodelabel: pool=h100

- name: Check two nodes from within the cluster
  autopilot.gpu.status:
    host: [gpu07, gpu08]
    check: [pciebw, remapped]
    url: https://autopilot-healthchecks.autopilot.svc:3333
    ca_file: /etc/autopilot/ca.crt
"""

RETURN = r"""
run_id:
  description: Name of the run.
  type: str
  returned: when an agent answered
  sample: 20261121T134853-status
status:
  description: The worst status of all nodes.
  type: str
  returned: when an agent answered
  sample: pass
passed:
  description: Whether every node is fit or was skipped.
  type: bool
  returned: when an agent answered
counts:
  description: Number of nodes in all (V(nodes)) and by fitness.
  type: dict
  returned: when an agent answered
fit:
  description: By node V(fit), V(unfit), V(could_not_tell) or V(skipped).
  type: dict
  returned: when an agent answered
testing:
  description: By node whose GPUs a diagnostic has, the reason and the age of its results, which are
    earlier ones.
  type: dict
  returned: when an agent answered
summary:
  description: The lines of the summary.
  type: list
  elements: str
  returned: when an agent answered
"""
