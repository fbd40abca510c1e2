# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons of this machine, for tests that run with more than one."""
from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import Optional


def interpreter(minor: int) -> Optional[str]:
    """A Python 3 of that minor version, on the path or of pyenv; None when none starts, as with a pyenv shim of a version that is not selected."""
    # Not Path.glob, which raises where a directory may not be read, such as another user's home.
    homes = glob.glob(os.path.join(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions", f"3.{minor}.*", "bin", "python3"))
    candidates = [shutil.which(f"python3.{minor}"), *sorted(homes)]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return candidate
    return None
