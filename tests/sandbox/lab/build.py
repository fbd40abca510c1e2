# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the programs of the lab's Kubernetes from the Go module proxy, once for each recipe and
machine: ``python tests/sandbox/lab/build.py``.

They lie in ``$XDG_CACHE_HOME`` (``~/.cache``) below autopilot-gpu/kubernetes, by version and
recipe; go.mod and go.sum in the recipe's directory pin every module. Whoever wants them while they
are being built waits for that build. Other labs have recipes of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

#: Seconds: far above a build from nothing on a slow machine with two processors.
_PATIENCE = 3600


class BuildError(RuntimeError):
    """The programs are not there and cannot be built; says why."""


class Unavailable(BuildError):
    """Something that the machine or its network does not have."""


def command(*variables) -> list:
    """go's arguments for one program; ``variables``: what the linker sets, as PACKAGE.NAME=VALUE."""
    flags = ["-s", "-w"]
    for variable in variables:
        flags += ["-X", variable]
    return ["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", " ".join(flags)]


def version(source: Path, module: str) -> str:
    """Of a module, as the directory's go.mod has it."""
    return re.search(rf"{re.escape(module)} v(\S+)", (source / "go.mod").read_text())[1]


class Recipe(NamedTuple):
    """Programs that one go.mod pins."""

    #: As messages call it.
    title: str
    #: Of go.mod, go.sum and what else there is.
    source: Path
    #: Of `title`.
    version: str
    #: What builds the programs: output, package, and go's arguments without the two.
    commands: list
    #: The first of them under more names.
    names: tuple = ()

    def directory(self) -> Path:
        """Where the programs are, or will be."""
        recipe = hashlib.sha256(repr((self.names, self.commands, platform.machine())).encode())
        for path in sorted(path for path in self.source.rglob("*") if path.is_file()):
            recipe.update(str(path.relative_to(self.source)).encode() + b"\0" + path.read_bytes())
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autopilot-gpu"
        return base / self.title.lower() / f"{self.version}-{recipe.hexdigest()[:12]}"

    def obstacle(self) -> str | None:
        """Why the programs are not there and cannot be built either; None where they are, or a
        build can be tried.
        """
        if self.directory().is_dir():
            return None
        major, minor = re.search(
            r"^go (\d+)\.(\d+)", (self.source / "go.mod").read_text(), re.MULTILINE
        ).groups()
        wanted = f"{self.title} {self.version} is not built yet, and building it needs"
        go = shutil.which("go")
        if not go:
            return f"{wanted} Go {major}.{minor} or newer: go was not found"
        said = subprocess.run(
            [go, "env", "GOVERSION", "GOPROXY"],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        found, _newline, proxy = said.stdout.strip().partition("\n")
        numbers = re.match(r"go(\d+)\.(\d+)", found)
        if not numbers or (int(numbers[1]), int(numbers[2])) < (int(major), int(minor)):
            return f"{wanted} Go {major}.{minor} or newer: {go} is {found or said.stderr.strip()}"
        return f"{wanted} a module proxy: GOPROXY is off" if proxy == "off" else None

    def programs(self) -> Path:
        """The directory of the programs, after the build where they are not there yet; raises
        BuildError, Unavailable where it is for no fault of the recipe.
        """
        wanted = self.directory()
        if wanted.is_dir():
            return wanted
        reason = self.obstacle()
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
                    self._build(new)
                    new.chmod(0o755)
                    new.rename(wanted)
                finally:
                    shutil.rmtree(new, ignore_errors=True)
        return wanted

    def _build(self, target):
        try:
            packages = [package for _output, package, _command in self.commands]
            self._go("list", "-mod=readonly", "-deps", *packages)
        except BuildError as error:
            raise Unavailable(
                f"{self.title} {self.version} is not built yet, and its modules are not to be had: "
                f"{error}"
            ) from None
        for output, package, arguments in self.commands:
            self._go(*arguments, "-o", str(target / output), package)
        for name in self.names:
            (target / name).symlink_to(self.commands[0][0])

    def module(self, path) -> Path:
        """The directory of a module that go.mod names, as it was released: its manifests are there;
        raises Unavailable where it is not to be had.
        """
        try:
            return Path(json.loads(self._go("mod", "download", "-json", path))["Dir"])
        except BuildError as error:
            raise Unavailable(f"{path}: {error}") from None

    def _go(self, *arguments) -> str:
        """What go says at the recipe; raises BuildError with the last line of its errors."""
        try:
            done = subprocess.run(
                ["go", *arguments],
                cwd=self.source,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
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
        return done.stdout


def _environment() -> dict:
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "",
    }


def _kubernetes() -> Recipe:
    source = Path(__file__).resolve().parent / "go"
    found = version(source, "k8s.io/kubernetes")
    major, minor = found.split(".")[:2]
    arguments = command(
        *(
            f"{package}.{name}={value}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for name, value in (
                ("gitVersion", f"v{found}"),
                ("gitMajor", major),
                ("gitMinor", minor),
            )
        )
    )
    return Recipe(
        title="Kubernetes",
        source=source,
        version=found,
        # `pod` is for images.
        commands=[("kubernetes", ".", arguments), ("pod", "./pod", arguments)],
        names=(
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
            "forward",
        ),
    )


KUBERNETES = _kubernetes()
obstacle, programs = KUBERNETES.obstacle, KUBERNETES.programs


def main(recipe: Recipe) -> None:
    """Build it, for a shell."""
    began = time.monotonic()
    try:
        where = recipe.programs()
    except BuildError as error:
        sys.exit(f"build.py: {error}")
    print(f"{recipe.title} {recipe.version}: {where} ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main(KUBERNETES)
