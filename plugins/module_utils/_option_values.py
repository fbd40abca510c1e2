# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What the modules demand of the values of their options. Apart from ``_ansible``, so that a task
of the mesh does not carry the runner of the checks.
"""

from __future__ import annotations

import math
import typing as t

from ansible.module_utils.basic import AnsibleModule


def refuse_negative(module: AnsibleModule, params: dict[str, t.Any], prefix: str = "") -> None:
    """No option of a check has a meaning below zero, and no time limit has one at zero."""
    for name, value in params.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and (not 0 <= value < math.inf or (value == 0 and name == "timeout")):
            accepted = "a number greater than 0" if name == "timeout" else "0 or a greater number"
            module.fail_json(msg=f"{prefix}{name}: {value} is not accepted, give {accepted}")
