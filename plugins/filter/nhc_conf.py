# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import nhc

DOCUMENTATION = r"""
name: nhc_conf
short_description: Convert a configuration file of Node Health Check to options of checks
version_added: 0.1.0
description:
  - Converts the text of a configuration file of Node Health Check (NHC), or of Azure's variant
    (AzNHC), into options of this collection's checks, from the lines for a host.
  - A line applies to a host by its hostmask, a glob, a C(/regular expression/) or a C({range}),
    also negated. The full and the short name of the host are compared.
  - No line is dropped silently. Lines without an equivalent are in RV(_value.not_taken), and lines
    that this collection judges by another rule are in RV(_value.differences), each with the reason.
  - Hostmasks that call a program, and shell commands, have no equivalent. No part of the file is
    executed.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
positional: host
options:
  _input:
    description: The text of the configuration file.
    type: string
    required: true
  host:
    description: Name of the host. Without it every line counts, whatever its hostmask.
    type: string
seealso:
  - module: autopilot.gpu.node_checks
"""

EXAMPLES = r"""
- name: Check a node by its limits of NHC
  autopilot.gpu.node_checks:
    checks: "{{ taken.checks_list }}"
    options: "{{ taken.checks_options }}"
    expected_gpus: "{{ taken.expected_gpus or omit }}"
  vars:
    taken: "{{ lookup('ansible.builtin.file', 'nhc.conf') | autopilot.gpu.nhc_conf(inventory_hostname) }}"

- name: Show lines without an equivalent
  ansible.builtin.debug:
    var: (lookup('ansible.builtin.file', 'nhc.conf') | autopilot.gpu.nhc_conf).not_taken
"""

RETURN = r"""
_value:
  description: Options of checks for the host.
  type: dictionary
  contains:
    checks_list:
      description: The checks that correspond to the lines.
      type: list
      elements: string
    checks_options:
      description: Their options, as the role C(autopilot.gpu.checks) and
        M(autopilot.gpu.node_checks) accept them.
      type: dictionary
    expected_gpus:
      description: Expected number of GPUs of the host; V(none) if the file does not name it.
      type: integer
    not_taken:
      description: Lines without an equivalent, each with C(line) (its number), C(text) and
        C(reason).
      type: list
      elements: dictionary
    differences:
      description: Converted lines that are judged by another rule, in the same form.
      type: list
      elements: dictionary
    lines:
      description: Number of lines for the host.
      type: integer
"""


def nhc_conf(text: t.Any, host: t.Any = None) -> dict[str, t.Any]:
    """Convert the text of a file for a host, see the documentation."""
    if not isinstance(text, str):
        raise AnsibleFilterError(
            f"autopilot.gpu.nhc_conf: {text!r} is invalid; expected the text of a "
            "configuration file of NHC"
        )
    if host is not None and not isinstance(host, str):
        raise AnsibleFilterError(
            f"autopilot.gpu.nhc_conf: host: {host!r} is invalid; expected the name of a host"
        )
    try:
        return nhc.read(str(text), None if host is None else str(host)).to_dict()
    except ValueError as error:
        raise AnsibleFilterError(f"autopilot.gpu.nhc_conf: {error}") from error


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"nhc_conf": nhc_conf}
