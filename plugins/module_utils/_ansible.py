# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Connect the core in ``_health`` with Ansible: from argument specs to the result of a module."""

from __future__ import annotations

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

# First, so that the others are compiled once.
from ansible_collections.autopilot.gpu.plugins.module_utils import (  # pylint: disable=unused-import
    _zip_imports,  # noqa: F401
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    Check,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import (
    fail_on_negative,
    refuse_negative,
    validated,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    PASS,
    SKIP,
    STATUSES,
    CheckResult,
    overall,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (
    Outcome,
    node_facts,
    not_run,
    planned,
    run,
)

_NOT_OF_A_HOST = (
    "not run here: the cluster's API server is asked for it, by the module "
    "autopilot.gpu.volume_claim and by the agent"
)
_NOT_BESIDE_A_JOB = "not run: it could disturb the job that runs here"

#: Options that every check module has; documented in the fragment ``_checks``.
COMMON_OPTIONS: dict[str, dict[str, t.Any]] = {
    "expected_gpus": {"type": "int"},
    "nvml_library": {"type": "path"},
    "host_root": {"type": "path", "default": "/"},
    "timeout": {"type": "float"},
    "fail_on": {"type": "str", "default": "never", "choices": ["never", "fail", "unknown", "warn"]},
    "readings": {"type": "bool", "default": False},
}

#: Options of node_checks that its action acts on; documented in the fragment
#: ``_checks.action``.
ACTION_OPTIONS: dict[str, dict[str, t.Any]] = {
    "virtualenv": {"type": "path"},
    "nvml_package": {"type": "str", "default": "nvidia-ml-py"},
    "nhc_conf": {"type": "path"},
    "readings_for_verdict": {"type": "bool", "default": False},
}


def main_of(check: Check) -> None:
    """Run a module with one check."""
    module = AnsibleModule(
        argument_spec={**COMMON_OPTIONS, **check.options}, supports_check_mode=True
    )
    options = {name: module.params[name] for name in check.options}
    settings = accepted(module)
    try:
        check.validate_options(options)
    except ValueError as error:
        module.fail_json(msg=str(error))
    run_or_plan = planned if module.check_mode else run
    outcomes = run_or_plan([(check, options)], settings)
    leave(module, result_of(outcomes, settings, with_readings=module.params["readings"]))


def accepted(module: AnsibleModule) -> HostSettings:
    """The module's common options; an invalid one ends the module.

    From here on the module also ends when Ansible has gone.
    """
    fail_on_negative(module)
    if not os.path.isdir(module.params["host_root"]):
        given = module.params["host_root"]
        module.fail_json(
            msg=f"host_root: {given} is not a directory on this host; expected the one where its "
            "root file system is mounted"
        )
    bounded.end_with_reader(1)
    return HostSettings(*(module.params[name] for name in HostSettings._fields))


def left_out(not_of_a_host: list[str], disturbing: list[str]) -> list[Outcome]:
    """Outcomes of the checks that were named and do not run here."""
    return [
        *(Outcome(not_run(name, _NOT_OF_A_HOST), {}, {}) for name in not_of_a_host),
        *(Outcome(not_run(name, _NOT_BESIDE_A_JOB), {}, {}) for name in disturbing),
    ]


def leave(module: AnsibleModule, result: dict[str, t.Any]) -> t.NoReturn:
    """End the module with its result; fail if the status is at least that of the option ``fail_on``."""
    threshold = module.params["fail_on"]
    if threshold != "never" and STATUSES.index(result["status"]) >= STATUSES.index(threshold):
        bad = [check for check in result["health"] if check["status"] == result["status"]]
        module.fail_json(
            msg="; ".join(
                f"{check['check']} is {check['status']}: {check['summary']}" for check in bad
            ),
            **result,
        )
    module.exit_json(**result)


def result_of(
    outcomes: list[Outcome], settings: HostSettings, with_readings: bool
) -> dict[str, t.Any]:
    """The result of a check module."""
    result: dict[str, t.Any] = {
        # Ansible sorts the keys that it prints; this one comes first.
        "brief": brief_of([outcome.result for outcome in outcomes]),
        "changed": False,
        "status": overall([outcome.result for outcome in outcomes]),
        "health": [outcome.result.to_dict() for outcome in outcomes],
        "node": node_facts(outcomes, settings),
    }
    if with_readings:
        result["readings"] = {
            outcome.result.check: {"options": outcome.options, "readings": outcome.readings}
            for outcome in outcomes
        }
    return result


def brief_of(results: list[CheckResult]) -> str:
    """The results in one line: the status and summary of one check, or of several checks those
    that neither passed nor were skipped, the worst first.
    """
    if len(results) == 1:
        return f"{results[0].status}: {results[0].summary}"
    bad = [one for one in results if one.status not in (PASS, SKIP)]
    bad.sort(key=lambda one: -STATUSES.index(one.status))
    counts = [f"{sum(one.status == status for one in results)} {status}" for status in (PASS, SKIP)]
    return "; ".join([*(f"{one.status}: {one.check}: {one.summary}" for one in bad), *counts])


def options_of(check: Check, given: t.Any, where: str = "options") -> dict[str, t.Any]:
    """All options of a check, those not given by default; ``where`` is the option of ours that has
    them by check. Raises ValueError that names each invalid option, its value and what is accepted.
    """
    path = f"{where}.{check.name}"
    if not isinstance(given, dict):
        raise ValueError(f"{path}: {given!r} is invalid; expected a dictionary of its options")
    options = validated(check.options, given, path)
    refuse_negative(options, path)
    try:
        check.validate_options(options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {name: options.get(name) for name in check.options}


def keep_secret(module: AnsibleModule, check: Check, options: dict[str, t.Any]) -> None:
    """Keep the secrets among a check's options out of the module's result: Ansible knows those
    among the module's own options only.
    """
    module.no_log_values.update(
        value
        for name, value in options.items()
        if check.options[name].get("no_log") and isinstance(value, str) and value
    )
