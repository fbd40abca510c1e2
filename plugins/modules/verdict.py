#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verdict
short_description: Judge the checks of all nodes
version_added: 0.1.0
description:
  - Reads the results of M(autopilot.gpu.node_checks) of every host of the play and decides, once
    for all of them, which nodes are fit.
  - Judges the results of the role P(autopilot.gpu.mesh#role) too, if it ran. A bad link or path
    between nodes makes no node unfit; it fails the run.
  - Compares each measurement with the same GPU model across the fleet, and warns of figures far
    below their peers.
  - Writes the run as one JSON document, with the raw readings when the checks returned them, so
    that it can be judged again later. In the same directory are the report page, the metrics for
    Prometheus, and the summary as text.
  - Fails when the policy is not met. A host that could not be reached, or was not checked, is never
    fit.
  - Fails for an invalid option too. The results are then judged by the default policy, and the
    document is written in any case.
  - Runs once, on the controller. Ansible counts a failure for the first host of the play, whichever
    nodes are unfit; O(on_failure) fails the unfit nodes instead.
  - Needs the strategy C(linear). Ansible refuses the task under C(free) and C(host_pinned), which
    run each host by itself; the callback P(autopilot.gpu.summary#callback) refuses the play before
    any host is contacted.
  - With C(serial) each batch gets a verdict and a document of its own. A verdict that fails ends
    the play, so later batches are not checked. Hosts that left the play in an earlier batch are
    rows of the later verdicts too.
  - Set C(run_once) on the task to register the result on every host, instead of only one host.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  results:
    description:
      - Name under which the check task registered its result.
      - The task needs C(ignore_unreachable) and C(ignore_errors), or hosts that do not answer leave
        the play before the verdict.
    type: str
    default: autopilot_checks
  mesh_plans:
    description: Names under which the plans of the mesh were registered, of the first pass and of
      the retest.
    type: list
    elements: str
    default: [autopilot_mesh_plan, autopilot_mesh_second_plan]
  mesh_readings:
    description: Names under which the hosts registered the readings of each pass of the mesh, in
      the order of O(mesh_plans).
    type: list
    elements: str
    default: [autopilot_mesh_first, autopilot_mesh_second]
  policy:
    description:
      - The policy, a dictionary with any of these keys.
      - C(unfit), the statuses that make a node unfit, V([fail]) by default; V(unknown) and V(warn)
        can be added.
      - C(warn_only), codes of findings that count as warnings at most, none by default.
      - C(max_unfit), how many nodes may be unfit, a number (V(0) by default) or a share of the
        nodes such as V(5%).
      - C(max_unknown), how many nodes may be undecided, V(0) by default.
      - C(max_partial), how many of the fit nodes may have skipped checks, V(100%) by default.
      - C(false_drains), how many healthy nodes the mesh may be expected to fail in a run, V(0.001) by
        default.
    type: dict
    default: {}
  report_dir:
    description: Directory of the reports on the controller, in which each run gets a directory;
      relative to the directory in which Ansible was started.
    type: path
    default: reports
  phase:
    description: Phase of the job in which the nodes were checked.
    type: str
    default: preflight
    choices: [preflight, inflight, postflight]
  run_id:
    description:
      - Name of the run and of its directory. A name whose directory has a run document gets a
        number, such as C(nightly-2); no document is overwritten.
      - The time and the phase when not given.
    type: str
  run:
    description:
      - Name of the job that this phase belongs to. The directories of its runs are then in a
        directory with this name, together with C(snapshots), the controller's copies of the
        snapshots of M(autopilot.gpu.node_checks).
    type: str
  cluster:
    description: Name of the cluster, for the report page and the run document.
    type: str
    version_added: 0.1.0
  on_failure:
    description:
      - What fails when the policy is not met.
      - With V(task) the task fails, and with it the first host of the play.
      - With V(hosts) the task does not fail. RV(failing) has the nodes to fail in a play that
        follows, as the file C(playbooks/plays/fail_hosts.yml) of this collection does. Plays after
        that one do not run. When no node fails (a bad link, an invalid option), the callback
        P(autopilot.gpu.summary#callback) exits with status 2.
      - V(hosts) is not supported with C(serial). Without the callback it is the same as V(task).
    type: str
    default: task
    choices: [task, hosts]
    version_added: 0.1.0
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Nothing was measured. Returns what would run as RV(plan), passes, and writes nothing.
seealso:
  - module: autopilot.gpu.node_checks
  - plugin: autopilot.gpu.summary
    plugin_type: callback
"""

EXAMPLES = r"""
- name: Check every node in one task
  autopilot.gpu.node_checks:
    readings: true
  register: autopilot_checks
  ignore_errors: true
  ignore_unreachable: true

- name: Judge all nodes, and tolerate two unfit nodes in a hundred
  autopilot.gpu.verdict:
    policy:
      max_unfit: 2%
      warn_only: [low_bandwidth]
"""

RETURN = r"""
status:
  description: The worst status of all nodes, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
passed:
  description: Whether the policy is met.
  type: bool
  returned: always
counts:
  description: Numbers of nodes, C(nodes) in all, C(fit), C(unfit), C(could_not_tell), C(skipped),
    and C(partial) for fit nodes with skipped checks.
  type: dict
  returned: always
  sample: {nodes: 3, fit: 1, unfit: 1, could_not_tell: 1, skipped: 0, partial: 0}
fit:
  description: The fitness of each host, V(fit), V(unfit), V(could_not_tell) or V(skipped).
  type: dict
  returned: when the task does not fail; the document has it always
failing:
  description: By host to fail, one line with its first finding and the next step. Contains all
    unfit hosts, and undecided and not fully checked hosts when there are more than the policy
    tolerates. Hosts that left the play earlier have failed already and are not included.
  type: dict
  returned: with O(on_failure=hosts), when the task does not fail
  sample:
    gpu04: >-
      unfit: GPU 3 (5D:00.0): fell off the bus (gpu_lost). Next: Drain the node and reboot it when
      its jobs have ended.
ansible_stats:
  description:
    - What M(ansible.builtin.set_stats) would set, for workflows of AWX.
    - C(autopilot_verdict) is V(passed) or V(failed). An interrupted run sets nothing; its document
      is marked incomplete.
    - C(autopilot_fit), C(autopilot_unfit) and C(autopilot_undecided) are lists of hosts.
    - C(autopilot_report) is the path of the report page, empty in check mode.
    - With C(serial) they are those of the last batch.
  type: dict
  returned: when the task does not fail
  sample:
    aggregate: false
    per_host: false
    data:
      autopilot_verdict: failed
      autopilot_fit: [gpu01, gpu02]
      autopilot_unfit: [gpu04]
      autopilot_undecided: []
      autopilot_report: /srv/autopilot/reports/20261121T031200-preflight/report.html
run_id:
  description: Name of the run.
  type: str
  returned: always
  sample: 20261121T031200-preflight
report:
  description: Path of the run document on the controller. The task fails with the reason when the
    document cannot be written.
  type: str
  returned: when not in check mode and written
page:
  description: Path of the report page, beside the document.
  type: str
  returned: when not in check mode and written
metrics_file:
  description: Path of the metrics for Prometheus, beside the document.
  type: str
  returned: when not in check mode and written
summary_file:
  description: Path of the summary as text, beside the document.
  type: str
  returned: when not in check mode and written
summary:
  description: The lines of the summary.
  type: list
  elements: str
  returned: when the task does not fail, and in check mode
plan:
  description: The checks that would run without check mode, each with its intrusion, its maximum
    minutes, and the number of nodes.
  type: list
  elements: dict
  returned: in check mode
"""
