# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's copy of a snapshot, as the node is given it."""

from __future__ import annotations

import os
import threading

import pytest

from ansible_collections.autopilot.gpu.plugins.action import node_checks
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda path: None, "there is none"),
        (os.mkfifo, "it is no file"),
        (lambda path: os.symlink("/dev/zero", path), "it is no file"),
        (os.mkdir, "it is no file"),
        (lambda path: os.symlink(path, path), "Too many levels"),
    ],
)
def test_what_is_no_copy_is_said_and_holds_nobody_up(tmp_path, make, said):
    path = store.controller_path(str(tmp_path), "job42", "gpu01")
    os.makedirs(os.path.dirname(path))
    make(path)
    found = []
    # A thread, since what waits for a pipe waits for ever.
    reading = threading.Thread(
        target=lambda: found.append(node_checks._copy(str(tmp_path), "job42", "gpu01")), daemon=True
    )
    reading.start()
    reading.join(10)
    assert len(found) == 1 and set(found[0]) == {"error"} and said in found[0]["error"]
