#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_action
short_description: Decide about a running job by a judged run, tell its owner, and suspend or stop
  it
version_added: 0.1.0
description:
  - "Decides by the run document of M(autopilot.gpu.verdict) what becomes of the job on these nodes:
    V(continue), V(warn_owner), V(suspend) or V(stop)."
  - What could not be told (V(unknown)) decides nothing, and a warning only where O(policy) says so.
  - What suspends or stops a job must have been found in several passes in a row, on the same node
    and part. Until then its owner is warned.
  - Nothing is done and nobody is told while O(dry_run) is on, which it is unless switched off; what
    would be is in RV(planned).
  - Whoever was told of something is told again when it changes, and not with each pass. A job that
    is suspended already, or has ended, is left alone.
  - Runs once, on the controller, with its programs and its way to the cluster. The playbook
    C(autopilot.gpu.inflight) calls it after each verdict.
  - The task fails when the decision could not be carried out, or somebody could not be told; an
    unhealthy node alone does not make it fail.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  report:
    description:
      - The run document, as M(autopilot.gpu.verdict) returns its path.
      - Without it nothing is decided, and only the other options are looked at, so that a wrong one
        is found before a job is watched.
    type: path
  job:
    description: What to call the job in messages.
    type: str
    default: ""
  hosts:
    description: The nodes of the job, by their names in the run. All nodes of the run when not
      given.
    type: list
    elements: str
  policy:
    description:
      - What follows from what was found. Each decision is one of V(continue), V(warn_owner),
        V(suspend) and V(stop).
      - C(on_fail) is for findings that are V(fail) (C(warn_owner)), C(on_warn) for those that are
        V(warn) (C(continue)), C(codes) for those with a code of
        C(docs/findings.md), whichever of the two they are.
      - C(passes) is the number of passes in a row that it takes to suspend or stop a job (2), not
        more than two hours apart.
    type: dict
    default: {}
  history:
    description:
      - File on the controller that keeps what earlier passes found and who was told. One file for a
        job.
      - Without it every pass is the first.
      - Of several that decide by one file at a time, one waits for the other, for O(timeout) at
        most.
    type: path
  dry_run:
    description: Whether to say what would be done instead of doing it.
    type: bool
    default: true
  timeout:
    description: Seconds that telling somebody, each step of acting, and waiting for another
      decision by the same O(history) may take.
    type: float
    default: 30
extends_documentation_fragment:
  - autopilot.gpu._attributes.controller
  - autopilot.gpu._jobs
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: As with O(dry_run), and the history is not written either.
"""

EXAMPLES = r"""
- name: What would become of the job
  autopilot.gpu.job_action:
    report: "{{ autopilot_verdict.report }}"
    job: job42
    policy:
      on_fail: suspend

- name: Tell the owner, and suspend the job when a GPU is lost or keeps failing
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
  description: What becomes of the job, one of V(continue), V(warn_owner), V(suspend), V(stop).
  type: str
  returned: when O(report) is given
  sample: warn_owner
reason:
  description: Why, in a sentence.
  type: str
  returned: when O(report) is given
facts:
  description: The findings that led to it, each with its node, what the policy wants for it
    (C(wanted)), what follows now (C(decided)), and in how many passes
    in a row it was C(seen).
  type: list
  elements: dict
  returned: when O(report) is given
planned:
  description: What would be done, in a dry run.
  type: list
  elements: str
  returned: when O(report) is given
acted:
  description: What was done to the job, or why there was nothing to do; empty where nothing was to
    be done.
  type: str
  returned: when O(report) is given
notified:
  description: Who was told.
  type: list
  elements: str
  returned: when O(report) is given
dry_run:
  description: Whether it only said what it would do.
  type: bool
  returned: when O(report) is given
job:
  description: What the job is called.
  type: str
  returned: when O(report) is given
"""
