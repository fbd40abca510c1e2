#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_checks
short_description: Run all checks of a GPU node in one pass
version_added: 0.1.0
description:
  - Runs the chosen checks of a host in one task, which costs about as much as a single one of them.
  - Passive checks come first. What is not passive runs one check at a time, and not at all on a node that already failed.
  - A check that hangs is ended or abandoned within its time limit, and the results of the others are there all the same.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  checks:
    description:
      - The checks to run, by name or by the short name operators know (for example V(remapped), V(pciebw), V(dcgm)).
      - Every check when not given.
    type: list
    elements: str
  options:
    description:
      - "Options by check name or short name, for example C({pcie_bandwidth: {minimum: 46}})."
      - Which options a check has is documented with the module of the same name.
    type: dict
    default: {}
  stop_on_fail:
    description: Whether checks that are not passive are left out on a node that already failed another one.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Everything this collection knows about the GPUs of a node
  autopilot.gpu.node_checks:
    expected_gpus: 8

- name: Two checks, one with an option of its own
  autopilot.gpu.node_checks:
    checks: [remapped, pciebw]
    options:
      remapped_rows:
        require_clean: true
"""

RETURN = r"""
status:
  description: The worst status of all checks, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: One result for each check, with its findings and measurements.
  type: list
  elements: dict
  returned: always
node:
  description: The GPUs of the node (index, uuid, pci, name), the driver's version and the boot id.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import COMMON_OPTIONS, finish, options_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.checks import chosen, name_of


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **COMMON_OPTIONS,
            "checks": {"type": "list", "elements": "str"},
            "options": {"type": "dict", "default": {}},
            "stop_on_fail": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        checks = chosen(module.params["checks"] or [])
        given = {name_of(name): value for name, value in module.params["options"].items()}
    except ValueError as error:
        module.fail_json(msg=f"checks, options: {error}")
    for name, value in given.items():
        if not isinstance(value, dict):
            module.fail_json(msg=f"options.{name}: {value!r} is not accepted, give a dictionary of the check's options")
    requests = [(check, options_of(module, check, given.get(check.name, {}))) for check in checks]
    finish(module, requests, stop_on_fail=module.params["stop_on_fail"])


if __name__ == "__main__":
    main()
