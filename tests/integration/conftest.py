# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of modules and playbooks share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from controller import linked


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    """A controller of this Python's Ansible, with the collection and a home of its own."""
    return linked(tmp_path_factory.mktemp("controller"), Path(sys.executable).parent)
