# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Nothing is measured. Returns what the check would do.
  async:
    support: none
    description: Can be used with the C(async) keyword.
    details: ansible-core reads the result of an asynchronous task itself, and would turn answers of
      the node into variables.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing is changed.
  platform:
    support: full
    description: The systems it runs on.
    platforms: linux
  action_group:
    support: full
    description: Use the group C(autopilot.gpu.gpu) in C(module_defaults) to set options of all
      checks at once.
    membership:
      - autopilot.gpu.gpu
"""

    # What starts and ends a process on a host.
    CAPTURE = r"""
options: {}
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Starts, stops and collects nothing.
  async:
    support: none
    description: Can be used with the C(async) keyword.
    details: ansible-core reads the result of an asynchronous task itself, and would turn answers of
      the node into variables.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Changes no text.
  platform:
    support: full
    description: The systems it runs on.
    platforms: linux
"""

    # What runs once, on the controller.
    CONTROLLER = r"""
options: {}
attributes:
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Changes nothing on a host.
  platform:
    support: full
    description: The systems it runs on.
    platforms: posix
  bypass_host_loop:
    support: full
    description: Runs once for all hosts of the play.
"""

    # What speaks to the API server of a cluster.
    CLUSTER = r"""
options: {}
attributes:
  platform:
    support: full
    description: The systems it runs on.
    platforms: posix
  action_group:
    support: full
    description: Use the group C(autopilot.gpu.cluster) in C(module_defaults) to set the access to
      the cluster once.
    membership:
      - autopilot.gpu.cluster
"""
