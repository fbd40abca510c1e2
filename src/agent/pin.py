# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Write requirements.txt: the requirements of requirements.in and their dependencies, each with its
version and the hashes of matching wheels.

A wheel matches if one of the Pythons and machines below can use it. Nothing is installed; pip's own
settings select the package index.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: The Pythons of Debian 12, Ubuntu 24.04, Debian 13 and the next release.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
HEADER = "# Written by `make -C src/agent pin` from requirements.in: change that one.\n"


def fetch(python: str, machine: str, directory: Path) -> None:
    """Download the wheels for one Python and machine into the directory; raises CalledProcessError."""
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux2014", "manylinux_2_28")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--only-binary=:all:",
            f"--python-version={python}",
            "--implementation=cp",
            *platforms,
            f"--dest={directory}",
            f"--requirement={HERE / 'requirements.in'}",
        ],
        check=True,
    )


def lines(wheels: list[Path]) -> list[str]:
    """One requirement for each project, with the hashes of its wheels; raises ValueError for
    several versions of one.
    """
    hashes: dict[str, dict[str, set[str]]] = {}
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        hashes.setdefault(re.sub(r"[-_.]+", "-", name).lower(), {}).setdefault(version, set()).add(
            hashlib.sha256(wheel.read_bytes()).hexdigest()
        )
    for name, versions in hashes.items():
        if len(versions) > 1:
            raise ValueError(
                f"{name}: several versions fit, {', '.join(sorted(versions))}; give one in "
                "requirements.in"
            )
    return [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(found))])
        for name, versions in sorted(hashes.items())
        for version, found in versions.items()
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for python, machine in itertools.product(PYTHONS, MACHINES):
            fetch(python, machine, Path(directory))
        (HERE / "requirements.txt").write_text(
            HEADER + "\n".join(lines(list(Path(directory).glob("*.whl")))) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
