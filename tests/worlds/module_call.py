# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call a module of the collection in a process of its own, without Ansible around it."""

from __future__ import annotations

import json
import subprocess

import pytest

PREFIX = "ansible_collections.autopilot.gpu.plugins.modules."


def call(python, module, **arguments):
    """Return the module's answer on the node whose interpreter is ``python``."""
    given = json.dumps(
        {
            "ANSIBLE_MODULE_ARGS": dict(
                {"_ansible_remote_tmp": "/tmp", "_ansible_keep_remote_files": False}, **arguments
            )
        }
    )
    program = (
        "from ansible.module_utils.testing import patch_module_args\nimport json, sys\nfrom "
        f"{PREFIX}{module} import main\n"
        "with patch_module_args(json.loads(sys.argv[1])['ANSIBLE_MODULE_ARGS']):\n    main()\n"
    )
    done = subprocess.run(
        [str(python), "-c", program, given],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return json.loads(done.stdout or "{}") or pytest.fail(done.stderr)
