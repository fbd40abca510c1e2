# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Options of actions, and those of checks as a user writes them for several checks at once, which
each check's own spec validates.
"""

from __future__ import annotations

import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.autopilot.gpu.plugins.module_utils import _ansible
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts


class _Refusing:
    """Stands in for a module where its options are validated: what fails there is wrong here."""

    def fail_json(self, msg: str) -> t.NoReturn:
        raise ValueError(msg)


def validated(spec: dict[str, dict[str, t.Any]], given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The options of an action by its spec; raises ValueError that names the option, its value and
    what is accepted.
    """
    for name in given:
        if name not in spec:
            raise ValueError(
                f"{name}: there is no such option, there {'is' if len(spec) == 1 else 'are'} "
                f"{', '.join(spec)}"
            )
    found = ArgumentSpecValidator(spec).validate(
        {
            name: hosts.listed(value) if spec[name]["type"] == "list" else value
            for name, value in given.items()
        }
    )
    if found.error_messages:
        raise ValueError("; ".join(found.error_messages))
    return t.cast("dict[str, t.Any]", found.validated_parameters)


def by_check(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The options by the checks' own names; raises ValueError for a name that is no check's."""
    try:
        return {registry.name_of(name): value for name, value in given.items()}
    except ValueError as error:
        raise ValueError(f"options: {error}") from error


def of_check(name: str, given: t.Any) -> dict[str, t.Any]:
    """All options of a check, those not given by default; raises ValueError that names the option,
    its value and what is accepted.
    """
    if not isinstance(given, dict):
        raise ValueError(
            f"options.{name}: {given!r} is not accepted, give a dictionary of the check's options"
        )
    check = registry.load(name)
    options: dict[str, t.Any] = _ansible.options_of(_Refusing(), check, given)
    try:
        check.refuse(options)
    except ValueError as error:
        raise ValueError(f"options of {name}: {error}") from error
    return options
