# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The base class of actions that run on the controller, once for all hosts of the play."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase


class Once(ActionBase):
    """Runs `once` and returns its result; a ValueError fails the task with its message."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        # With -v, Ansible would print the result, which is long since it covers all hosts.
        result.update(changed=False, _ansible_verbose_override=True)
        try:
            result.update(self.once(task_vars or {}))
        except ValueError as error:
            result.update(failed=True, msg=str(error))
        return t.cast("dict[str, t.Any]", result)

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        """The result of the task; raises ValueError that names an invalid option, its value and what
        is accepted.
        """
        raise NotImplementedError
