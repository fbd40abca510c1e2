# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Validate the rules by which captures are judged."""

from __future__ import annotations

import math
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage.judge import RULES
from ansible_collections.autopilot.gpu.plugins.module_utils._health.spelling import unsupported


def rules_of(given: t.Any) -> dict[str, t.Any]:
    """The validated rules with defaults; raises ValueError that names an invalid rule, its value
    and what is accepted.
    """
    if given is not None and not isinstance(given, dict):
        raise ValueError(
            f"rules: {given!r} is invalid; expected a dictionary of {', '.join(RULES)}"
        )
    for name in given or {}:
        if name not in RULES:
            raise ValueError(f"rules: {unsupported('rule', name, RULES)}")
    found = ArgumentSpecValidator(RULES).validate(dict(given or {}))
    if found.error_messages:
        raise ValueError(f"rules: {'; '.join(found.error_messages)}")
    for name, value in found.validated_parameters.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"rules.{name}: {value} is invalid; expected 0 or a greater number")
    return t.cast("dict[str, t.Any]", found.validated_parameters)
