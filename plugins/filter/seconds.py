# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.durations import seconds_of

DOCUMENTATION = r"""
name: seconds
short_description: Convert a duration such as 30m to seconds
version_added: 0.1.0
description:
  - Converts durations such as V(90s), V(30m), V(2h) and V(1h30m), or a number of seconds.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
positional: option
options:
  _input:
    description: The duration.
    type: raw
    required: true
  option:
    description: Name of the option in the message about an invalid duration.
    type: str
    default: duration
"""

EXAMPLES = r"""
- name: Watch for half an hour
  ansible.builtin.debug:
    msg: "{{ watch | autopilot.gpu.seconds('watch') }}"
  vars:
    watch: 30m
"""

RETURN = r"""
_value:
  description: The seconds.
  type: float
"""


def seconds(value: t.Any, option: str = "duration") -> float:
    """Seconds of a duration; raises AnsibleFilterError that names the option, its value and what is
    accepted.
    """
    try:
        return seconds_of(value, option)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filter of this file's name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"seconds": seconds}
