# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  notify:
    description: Receivers of a decision other than V(continue). All of them are notified at once.
    type: dict
    default: {}
    suboptions:
      webhook:
        description: URL to which the decision and its facts are posted as JSON. Treated as a
          secret.
        type: str
      slack:
        description: URL of an incoming webhook of Slack, or of a compatible service. Treated as a
          secret.
        type: str
      mail:
        description: Mail with the decision as text and with a JSON attachment.
        type: dict
        suboptions:
          host:
            description: SMTP server.
            type: str
            required: true
          port:
            description: Port of the SMTP server.
            type: int
            default: 25
          sender:
            description: Sender address.
            type: str
            required: true
          to:
            description: Receiver addresses.
            type: list
            elements: str
            required: true
          starttls:
            description: Whether to encrypt, and to verify the server's certificate.
            type: bool
            default: false
          username:
            description: User name for the SMTP server; no login when not given.
            type: str
          password:
            description: Password of the user.
            type: str
          allow_plaintext_login:
            description: Allow a login without C(starttls), which shows the password to
              the network.
            type: bool
            default: false
      allow_plaintext:
        description: Allow O(notify.webhook) and O(notify.slack) with C(http://) to another host,
          which shows their URLs to the network.
        type: bool
        default: false
  act:
    description: How to suspend or stop the job, with one of these keys. Without it the decision is
      only reported.
    type: dict
    default: {}
    suboptions:
      kubernetes:
        description:
          - Sets C(spec.suspend) of an object, for V(suspend) and for V(stop). Where Kueue queues the
            job, sets C(spec.active) of its Workload to false instead, since Kueue resumes a job that
            others suspend. A job that is part of another one is refused; name that one.
          - Afterwards waits until the job has no pod that may hold a GPU, by the selector of a Job,
            or the label C(jobset.sigs.k8s.io/jobset-name) or
            C(workload.codeflare.dev/appwrapper). The proof also needs the C(Suspended) condition
            or phase that the controller of the job sets.
          - No test runs the controller of JobSet, only the requests for this kind.
          - Needs the rights to C(get) and C(patch) the object, and to C(list) pods in its
            namespace; in a cluster with Kueue also to C(list) and C(patch) workloads there.
        type: dict
        suboptions:
          kind:
            description: Kind of the object.
            type: str
            choices: [Job, JobSet, AppWrapper]
            default: Job
          namespace:
            description: Namespace of the object.
            type: str
            required: true
          name:
            description: Name of the object.
            type: str
            required: true
      slurm:
        description: Calls C(scontrol) for V(suspend) and C(scancel) for V(stop). Drain the node
          first, or a requeued job may return to it.
        type: dict
        suboptions:
          job_id:
            description: Job id.
            type: str
            required: true
          suspend_by:
            description: How V(suspend) works. A suspended job keeps its nodes; a requeued job
              releases its nodes and starts again.
            type: str
            choices: [requeue, suspend]
            default: requeue
      command:
        description: A program with its arguments, without a shell, that receives the decision and
          its facts as JSON on its standard input. Runs once for each decision.
        type: list
        elements: str
"""
