# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons of this machine and the ansible-cores that are supported, for tests that run with
more than one.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import Optional

import pytest

#: Where virtualenvs are kept.
MATRIX = Path(__file__).resolve().parents[2] / ".build/matrix"
#: ansible-core by the requirement that installs it, with the Pythons that it can run on.
CORES = {
    "2.18": ("ansible-core==2.18.*", range(11, 14)),
    "newest": ("ansible-core", range(14, 10, -1)),
}


def interpreter(minor: int) -> Optional[str]:
    """A Python 3 of that minor version, on the path or of pyenv; None when none starts, as with a
    pyenv shim of a version that is not selected.
    """
    # Not Path.glob, which raises where a directory may not be read, such as another user's home.
    homes = glob.glob(
        os.path.join(
            os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"),
            "versions",
            f"3.{minor}.*",
            "bin",
            "python3",
        )
    )
    candidates = [shutil.which(f"python3.{minor}"), *sorted(homes)]
    for candidate in filter(None, candidates):
        if (
            subprocess.run(
                [candidate, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL, check=False
            ).returncode
            == 0
        ):
            return candidate
    return None


def virtualenv(name: str, python: str, *requirements: str) -> Path:
    """The programs of a virtualenv with these packages; made once, also when several processes ask
    for it.
    """
    MATRIX.mkdir(parents=True, exist_ok=True)
    directory = MATRIX / name
    ready = directory / ".ready"
    wanted = "\n".join([python, str(directory), *requirements])
    with (MATRIX / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
            subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
            subprocess.run(
                [
                    directory / "bin/python",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    *requirements,
                ],
                check=True,
            )
            ready.write_text(wanted, encoding="utf-8")
    return directory / "bin"


def core(version: str, name: str, *packages: str) -> Path:
    """The programs of an ansible-core of `CORES`, in a virtualenv of that name with further
    packages.
    """
    requirement, minors = CORES[version]
    python = next(filter(None, map(interpreter, minors)), None)
    if python is None:
        pytest.skip(
            f"needs Python 3.{min(minors)} to 3.{max(minors)} for {requirement}: none was found"
        )
    return virtualenv(f"{name}-{version}", python, requirement, *packages)
