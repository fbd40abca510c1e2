# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small image with this machine's own Python and a shell, for pods that need nothing else of the
agent's image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab import images

NAME = "localhost/autopilot-python:1"
PYTHON = "/usr/bin/python3"
_PROGRAMS = (
    "/bin/sh",
    "/bin/cat",
    "/bin/chmod",
    "/bin/mkdir",
    "/bin/rm",
    "/bin/sleep",
    "/usr/bin/dd",
    "/usr/bin/id",
)
_UNUSED = shutil.ignore_patterns(
    "__pycache__",
    "test",
    "config-*",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "tkinter",
    "ensurepip",
    "pydoc_data",
)


def obstacle() -> str | None:
    """Why it cannot be made; None when it can."""
    missing = [path for path in (PYTHON, *_PROGRAMS) if not os.path.exists(path)]
    return f"needs the system's own programs: {' '.join(missing)}" if missing else None


def make(directory: Path) -> Path:
    """The image's archive, in a directory of the caller's."""
    code = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    library = subprocess.run(
        [PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    shutil.copytree(library, directory / "library", ignore=_UNUSED, ignore_dangling_symlinks=True)
    files = {library: directory / "library"}
    for program in (PYTHON, *_PROGRAMS, *Path(library, "lib-dynload").glob("*.so")):
        files[str(program)] = os.path.realpath(program)
        for line in subprocess.run(
            ["ldd", str(program)], capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines():
            files.update(
                {word: os.path.realpath(word) for word in line.split() if word.startswith("/")}
            )
    return images.make(directory / "python.tar", NAME, files, [PYTHON], {"PATH": "/usr/bin:/bin"})
