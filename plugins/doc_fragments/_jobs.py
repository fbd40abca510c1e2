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
    description: Who is told of a decision other than V(continue). All of them are told at once.
    type: dict
    default: {}
    suboptions:
      webhook:
        description: URL that gets the decision and its facts as JSON, by POST. It is taken for a
          secret.
        type: str
      slack:
        description: URL of an incoming webhook of Slack, or of a service that takes the same. It is
          taken for a secret.
        type: str
      mail:
        description: A mail with the decision as text and as an attachment of JSON.
        type: dict
        suboptions:
          host:
            description: The SMTP server.
            type: str
            required: true
          port:
            description: Its port.
            type: int
            default: 25
          sender:
            description: Address in From.
            type: str
            required: true
          to:
            description: Addresses of those who get it.
            type: list
            elements: str
            required: true
          starttls:
            description: Whether to encrypt, and to insist on the server's certificate.
            type: bool
            default: false
          username:
            description: Who logs in; nobody when not given.
            type: str
          password:
            description: Their password.
            type: str
  act:
    description: How the job is suspended or stopped, by one of these. Without it the decision is
      only told.
    type: dict
    default: {}
    suboptions:
      kubernetes:
        description:
          - Sets C(spec.suspend) of an object, for V(suspend) and for V(stop). Where Kueue admits
            jobs, it may take the suspension back; suspend the object that
            Kueue does not own.
          - It takes the rights to C(get) and C(patch) the object.
        type: dict
        suboptions:
          kind:
            description: Its kind.
            type: str
            choices: [Job, JobSet, AppWrapper]
            default: Job
          namespace:
            description: Its namespace.
            type: str
            required: true
          name:
            description: Its name.
            type: str
            required: true
      slurm:
        description: Calls C(scontrol) for V(suspend) and C(scancel) for V(stop). Drain the node
          first, or a job that is requeued may come back to it.
        type: dict
        suboptions:
          job_id:
            description: Number of the job.
            type: str
            required: true
          suspend_by:
            description: What V(suspend) is. A job that is suspended keeps its nodes, one that is
              requeued gives them back and starts again.
            type: str
            choices: [requeue, suspend]
            default: requeue
      command:
        description: A program with its arguments, without a shell, that gets the decision and its
          facts as JSON on its standard input. Run once for a decision.
        type: list
        elements: str
"""
