# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the programs of the lab's Kubernetes from the Go module proxy, once for each recipe and
machine: ``python tests/sandbox/lab/build.py``.

They lie in ``$XDG_CACHE_HOME`` (``~/.cache``) below autopilot-gpu/kubernetes, by version and
recipe; go.mod and go.sum beside this file pin every module. Whoever wants them while they are being
built waits for that build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "go"
#: One executable under all these names, and `pod`, which is for images.
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "forward",
)
#: The oldest Go, as in go.mod.
_GO = (1, 24)
#: Seconds: far above a build from nothing on a slow machine with two processors.
_PATIENCE = 3600


class BuildError(RuntimeError):
    """The programs are not there and cannot be built; says why."""


class Unavailable(BuildError):
    """Something that the machine or its network does not have."""


def version() -> str:
    """Of Kubernetes, as go.mod has it."""
    return re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())[1]


def directory() -> Path:
    """Where the programs are, or will be."""
    recipe = hashlib.sha256(repr((PROGRAMS, _commands(), platform.machine())).encode())
    for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
        recipe.update(str(path.relative_to(SOURCE)).encode() + b"\0" + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "autopilot-gpu" / "kubernetes" / f"{version()}-{recipe.hexdigest()[:12]}"


def obstacle() -> str | None:
    """Why the programs are not there and cannot be built either; None where they are, or a build
    can be tried.
    """
    if directory().is_dir():
        return None
    wanted = f"Kubernetes {version()} is not built yet, and building it needs"
    go = shutil.which("go")
    if not go:
        return f"{wanted} Go {_GO[0]}.{_GO[1]} or newer: go was not found"
    said = subprocess.run(
        [go, "env", "GOVERSION", "GOPROXY"],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    found, _newline, proxy = said.stdout.strip().partition("\n")
    numbers = re.match(r"go(\d+)\.(\d+)", found)
    if not numbers or (int(numbers[1]), int(numbers[2])) < _GO:
        return f"{wanted} Go {_GO[0]}.{_GO[1]} or newer: {go} is {found or said.stderr.strip()}"
    return f"{wanted} a module proxy: GOPROXY is off" if proxy == "off" else None


def programs() -> Path:
    """The directory of the programs, after the build where they are not there yet; raises
    BuildError, Unavailable where it is for no fault of the recipe.
    """
    wanted = directory()
    if wanted.is_dir():
        return wanted
    reason = obstacle()
    if reason:
        raise Unavailable(reason)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with open(wanted.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not wanted.is_dir():
            # What an earlier build left that was killed.
            for left in wanted.parent.glob("new-*"):
                shutil.rmtree(left, ignore_errors=True)
            new = Path(tempfile.mkdtemp(prefix="new-", dir=wanted.parent))
            try:
                _build(new)
                new.chmod(0o755)
                new.rename(wanted)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return wanted


def _commands() -> list:
    """What builds the programs: output, package, and go's arguments without the two."""
    major, minor = version().split(".")[:2]
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [
            "-X",
            f"{package}.gitVersion=v{version()}",
            "-X",
            f"{package}.gitMajor={major}",
            "-X",
            f"{package}.gitMinor={minor}",
        ]
    command = [
        "build",
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        "-ldflags",
        " ".join(flags),
    ]
    return [("kubernetes", ".", command), ("pod", "./pod", command)]


def _build(target):
    try:
        _go("list", "-mod=readonly", "-deps", "./...")
    except BuildError as error:
        raise Unavailable(
            f"Kubernetes {version()} is not built yet, and its modules are not to be had: {error}"
        ) from None
    for output, package, command in _commands():
        _go(*command, "-o", str(target / output), package)
    for name in PROGRAMS:
        (target / name).symlink_to("kubernetes")


def _go(*arguments):
    """Run it at the recipe; raises BuildError with the last line that it said."""
    try:
        done = subprocess.run(
            ["go", *arguments],
            cwd=SOURCE,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"go {arguments[0]}: not done after {_PATIENCE} seconds") from None
    if done.returncode:
        said = [
            line.strip()
            for line in done.stderr.splitlines()
            if line.strip() and not line.startswith(("go: downloading", "#"))
        ]
        raise BuildError(
            f"go {arguments[0]}: {said[-1] if said else f'exit status {done.returncode}'}"
        )


def _environment() -> dict:
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "",
    }


if __name__ == "__main__":
    began = time.monotonic()
    try:
        where = programs()
    except BuildError as error:
        sys.exit(f"build.py: {error}")
    print(f"Kubernetes {version()}: {where} ({time.monotonic() - began:.0f} s)")
