#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_action
short_description: Decide about a running job from a verdict, notify its owner, and suspend or stop
  the job
version_added: 0.1.0
description:
  - Decides from the run document of M(autopilot.gpu.verdict) what to do with the job on these
    nodes, V(continue), V(warn_owner), V(suspend) or V(stop).
  - A finding with the status V(unknown) never stops a job, and is a warning only when O(policy)
    says so.
  - To suspend or stop a job, a finding must appear in several passes in a row, on the same node and
    part. Until then the owner is warned.
  - With O(dry_run), the default, nothing is done and no notification is sent; RV(planned) has what would
    be done.
  - A person is notified again when the decision changes, and not with each pass. A job that is
    suspended or has ended is left alone.
  - Runs once, on the controller, with its programs and its kubeconfig. The playbook
    C(autopilot.gpu.inflight) calls it after each verdict.
  - With O(act.kubernetes) the module waits after the suspension until the pods of the job have
    ended. The task fails when this is not proven within O(timeout), and names the pods that may
    still hold GPUs; RV(acted) and C(changed) still report the suspension. A later pass waits again.
  - The task fails when the decision could not be carried out, or a notification failed. An
    unhealthy node alone does not fail the task.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  report:
    description:
      - Path of the run document, as returned by M(autopilot.gpu.verdict).
      - Without it the module only validates the other options.
    type: path
  job:
    description: Name of the job in messages.
    type: str
    default: ""
  hosts:
    description: Nodes of the job, by their names in the run. All nodes of the run when not given.
    type: list
    elements: str
  policy:
    description:
      - Decisions by finding. Each decision is one of V(continue), V(warn_owner), V(suspend) and
        V(stop).
      - C(on_fail) applies to findings that are V(fail) (default C(warn_owner)), C(on_warn) to
        findings that are V(warn) (default C(continue)), C(codes) to findings with a code of
        C(docs/findings.md), whether V(fail) or V(warn).
      - C(passes) is the number of passes in a row that are needed to suspend or stop a job (default
        2). A pass follows another within two hours, or within twice the shorter of the last two
        pauses, at most 26 hours.
    type: dict
    default: {}
  history:
    description:
      - File on the controller with the findings of earlier passes and the notifications sent. One
        file for each job.
      - Without it every pass is the first.
      - Decisions with the same file wait for each other, for at most O(timeout).
    type: path
  dry_run:
    description: Whether to only report what would be done.
    type: bool
    default: true
  timeout:
    description:
      - Timeout in seconds of each notification, of each step of acting, and of the wait for another
        decision with the same O(history).
      - The wait for the end of the pods of a suspended job is such a step; give more than the
        C(terminationGracePeriodSeconds) of the pods.
    type: float
    default: 60
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
  - autopilot.gpu._jobs
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: As with O(dry_run), and the history is not written.
"""

EXAMPLES = r"""
- name: Report what would be done with the job
  autopilot.gpu.job_action:
    report: "{{ autopilot_verdict.report }}"
    job: job42
    policy:
      on_fail: suspend

- name: Warn the owner, and suspend the job when a GPU is lost or keeps failing
  autopilot.gpu.job_action:
    report: "{{ autopilot_verdict.report }}"
    job: llama
    history: reports/llama/decisions.json
    dry_run: false
    policy:
      codes: {gpu_lost: suspend, ecc_errors_growing: suspend, stalled_collective: warn_owner}
      passes: 3
    notify:
      slack: "{{ vault_slack_url }}"
      mail: {host: smtp.example.org, sender: autopilot@example.org, to: [jane@example.org]}
    act:
      kubernetes: {kind: JobSet, namespace: training, name: llama}
"""

RETURN = r"""
decision:
  description: The decision, one of V(continue), V(warn_owner), V(suspend), V(stop).
  type: str
  returned: when O(report) is given
  sample: warn_owner
reason:
  description: The reason in a sentence.
  type: str
  returned: when O(report) is given
facts:
  description: The findings that led to the decision, each with its node, the decision of the policy
    (C(wanted)), the decision now (C(decided)), and the number of passes in a row in which it was
    C(seen).
  type: list
  elements: dict
  returned: when O(report) is given
planned:
  description: The actions that a dry run would have carried out.
  type: list
  elements: str
  returned: when O(report) is given
acted:
  description: The action on the job, or why none was needed; empty without an action. Whether
    the pods of the job are gone is not part of it; the task fails when that is not proven.
  type: str
  returned: when O(report) is given
notified:
  description: The receivers that were notified.
  type: list
  elements: str
  returned: when O(report) is given
dry_run:
  description: Whether the run was a dry run.
  type: bool
  returned: when O(report) is given
job:
  description: Name of the job.
  type: str
  returned: when O(report) is given
"""
