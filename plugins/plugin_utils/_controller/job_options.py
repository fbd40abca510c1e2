# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Validate the options of the action `job_action`: how a job is decided about, who is notified and
how the job is suspended or stopped.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils import _kube
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import jobs
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import (
    job_decision,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    notify as _notify,
    options as _options,
)

_ACTS: dict[str, dict[str, t.Any]] = {
    "kubernetes": {
        "type": "dict",
        "options": {
            "kind": {"type": "str", "choices": list(jobs.KINDS), "default": "Job"},
            "namespace": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
        },
    },
    "slurm": {
        "type": "dict",
        "options": {
            "job_id": {"type": "str", "required": True},
            "suspend_by": {"type": "str", "choices": ["requeue", "suspend"], "default": "requeue"},
        },
    },
    "command": {"type": "list", "elements": "str"},
}
OPTIONS: dict[str, dict[str, t.Any]] = {
    "report": {"type": "path"},
    "job": {"type": "str", "default": ""},
    "hosts": {"type": "list", "elements": "str"},
    "policy": {"type": "dict", "default": {}},
    "history": {"type": "path"},
    "dry_run": {"type": "bool", "default": True},
    "notify": {"type": "dict", "default": {}, "options": _notify.OPTIONS},
    "act": {"type": "dict", "default": {}, "options": _ACTS},
    "timeout": {"type": "float", "default": 60.0},
    **_kube.CONNECTION_OPTIONS,
}


def secrets_in(given: dict[str, t.Any]) -> set[str]:
    """Values among the options that no message may show, such as the URL of a webhook."""
    notify = given.get("notify")
    notify = notify if isinstance(notify, dict) else {}
    mail = notify.get("mail")
    found = [
        notify.get("webhook"),
        notify.get("slack"),
        mail.get("password") if isinstance(mail, dict) else None,
    ]
    return {one for one in found if isinstance(one, str) and one}


def validated(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The options; raises ValueError that names the option, its value and what is accepted."""
    options: dict[str, t.Any] = _options.validated(OPTIONS, given)
    options["decisions"] = job_decision.job_policy_from(options["policy"])
    _options.refuse_unknown_codes("policy.codes", options["decisions"].codes)
    _notify.validate(options["notify"])
    acts = [name for name in _ACTS if options["act"].get(name)]
    if len(acts) > 1:
        raise ValueError(f"act: {' and '.join(acts)} exclude each other; expected one of them")
    slurm, kubernetes = options["act"].get("slurm"), options["act"].get("kubernetes")
    if slurm and not re.fullmatch(r"\d+([_+]\d+)?", slurm["job_id"]):
        raise ValueError(
            f"act.slurm.job_id: {slurm['job_id']!r} is invalid; expected the number of a job, "
            "such as 4711, 4711_3 or 4711+1"
        )
    for name in ("namespace", "name") if kubernetes else ():
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", kubernetes[name]):
            raise ValueError(
                f"act.kubernetes.{name}: {kubernetes[name]!r} is invalid; expected the name "
                "of an object"
            )
    if not 0 < options["timeout"] <= 3600:
        raise ValueError(
            f"timeout: {options['timeout']} is invalid; expected seconds greater than 0, at "
            "most 3600"
        )
    return options
