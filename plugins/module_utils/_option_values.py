# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Validate the values of options. Apart from ``_ansible``, so that a task of the mesh does not
carry the runner of the checks.
"""

from __future__ import annotations

import math
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.autopilot.gpu.plugins.module_utils._health.spelling import unsupported

Spec = t.Mapping[str, t.Mapping[str, t.Any]]

_ACCEPTED = {
    "bool": "true or false",
    "dict": "a dictionary",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "path": "a path",
    "str": "text",
}


def problems_of(spec: Spec, given: t.Mapping[str, t.Any], where: str = "") -> list[str]:
    """Why the given options do not keep to an argument spec, one message each; empty if they do.

    ``where`` is the option that contains them, such as ``checks_options.dcgm_diag``. The value of
    an option with ``no_log`` is not in the message.
    """
    prefix = f"{where}: " if where else ""
    found = [f"{prefix}{unsupported('option', name, spec)}" for name in given if name not in spec]
    for name, rules in spec.items():
        path = f"{where}.{name}" if where else name
        value = given.get(name)
        if value is None:
            if rules.get("required"):
                found.append(f"{path}: is missing; expected {_accepted(rules)}")
        elif rules.get("options") and isinstance(value, dict):
            found += problems_of(rules["options"], value, path)
        elif ArgumentSpecValidator({name: dict(rules)}).validate({name: value}).error_messages:
            shown = "the given value" if rules.get("no_log") else repr(value)
            found.append(f"{path}: {shown} is invalid; expected {_accepted(rules)}")
    return found


def validated(spec: Spec, given: t.Mapping[str, t.Any], where: str = "") -> dict[str, t.Any]:
    """All options of an argument spec, those not given by default; raises ValueError that names
    each invalid option, its value and what is accepted.
    """
    problems = problems_of(spec, given, where)
    if problems:
        raise ValueError("; ".join(problems))
    validator = ArgumentSpecValidator({name: dict(rules) for name, rules in spec.items()})
    return t.cast("dict[str, t.Any]", validator.validate(dict(given)).validated_parameters)


def _accepted(rules: t.Mapping[str, t.Any]) -> str:
    if rules.get("choices"):
        return f"one of {', '.join(map(str, rules['choices']))}"
    if rules.get("options"):
        return f"a dictionary with any of {', '.join(rules['options'])}"
    return _ACCEPTED.get(str(rules.get("type", "str")), "another value")


def refuse_negative(params: t.Mapping[str, t.Any], where: str = "") -> None:
    """Raise ValueError for a negative number, and for a time limit of zero: no option of a check
    has a meaning there.
    """
    for name, value in params.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and (not 0 <= value < math.inf or (value == 0 and name == "timeout")):
            accepted = "a number greater than 0" if name == "timeout" else "0 or a greater number"
            path = f"{where}.{name}" if where else name
            raise ValueError(f"{path}: {value} is invalid; expected {accepted}")


def fail_on_negative(module: AnsibleModule) -> None:
    """End the module for a negative number among its options, see `refuse_negative`."""
    try:
        refuse_negative(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
