# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The only bridge between the core in ``_health`` and Ansible: argument specs in, one result out."""

from __future__ import annotations

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.check import (
    Check,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import refuse_negative
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import STATUSES, overall
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (
    Outcome,
    node_facts,
    not_run,
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
#: ``_checks.virtualenv``.
VIRTUALENV_OPTIONS: dict[str, dict[str, t.Any]] = {
    "virtualenv": {"type": "path"},
    "nvml_package": {"type": "str", "default": "nvidia-ml-py"},
}


def main_of(check: Check) -> None:
    """The whole of a module that runs one check."""
    module = AnsibleModule(
        argument_spec={**COMMON_OPTIONS, **check.options}, supports_check_mode=True
    )
    requests = [(check, {name: module.params[name] for name in check.options})]
    settings = accepted(module, requests)
    leave(
        module,
        result_of(
            run(requests, settings, passive_only=module.check_mode),
            settings,
            with_readings=module.params["readings"],
        ),
    )


def accepted(module: AnsibleModule, requests: list[tuple[Check, dict[str, t.Any]]]) -> HostSettings:
    """The module's common options, once they and those of the checks are accepted; what is not ends
    the module.

    From here on the module also ends when Ansible has gone.
    """
    refuse_negative(module, module.params)
    if not os.path.isdir(module.params["host_root"]):
        given = module.params["host_root"]
        module.fail_json(
            msg=f"host_root: {given} is not a directory on this host; give the one where its "
            "root file system is mounted"
        )
    for check, options in requests:
        try:
            check.refuse(options)
        except ValueError as error:
            module.fail_json(msg=f"options of {check.name}: {error}")
    bounded.end_with_reader(1)
    return HostSettings(*(module.params[name] for name in HostSettings._fields))


def left_out(not_of_a_host: list[str], disturbing: list[str]) -> list[Outcome]:
    """Outcomes of the checks that were named and do not run here."""
    return [
        *(Outcome(not_run(name, _NOT_OF_A_HOST), {}, {}) for name in not_of_a_host),
        *(Outcome(not_run(name, _NOT_BESIDE_A_JOB), {}, {}) for name in disturbing),
    ]


def leave(module: AnsibleModule, result: dict[str, t.Any]) -> t.NoReturn:
    """Leave the module with what it returns, as its option ``fail_on`` has it."""
    threshold = module.params["fail_on"]
    if threshold != "never" and STATUSES.index(result["status"]) >= STATUSES.index(threshold):
        bad = [one for one in result["health"] if one["status"] == result["status"]]
        module.fail_json(
            msg="; ".join(f"{one['check']} is {one['status']}: {one['summary']}" for one in bad),
            **result,
        )
    module.exit_json(**result)


def result_of(
    outcomes: list[Outcome], settings: HostSettings, with_readings: bool
) -> dict[str, t.Any]:
    """What every check module returns."""
    result: dict[str, t.Any] = {
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


def options_of(module: AnsibleModule, check: Check, given: dict[str, t.Any]) -> dict[str, t.Any]:
    """A check's options from a nested dictionary, validated against its argument spec."""
    for name in given:
        if name not in check.options:
            accepted = ", ".join(check.options) or "none, this check has no options of its own"
            module.fail_json(
                msg=f"options.{check.name}.{name} does not exist; accepted are: {accepted}"
            )
    validated = ArgumentSpecValidator(check.options).validate(given)
    if validated.error_messages:
        module.fail_json(msg=f"options of {check.name}: {'; '.join(validated.error_messages)}")
    refuse_negative(module, validated.validated_parameters, f"options.{check.name}.")
    secret = {
        value
        for name, value in validated.validated_parameters.items()
        if check.options.get(name, {}).get("no_log") and isinstance(value, str) and value
    }
    if secret and isinstance(module, AnsibleModule):
        # Ansible knows the secrets among a module's own options only, and these stand in one that
        # is a dictionary.
        module.no_log_values.update(secret)
    return {name: validated.validated_parameters.get(name) for name in check.options}
