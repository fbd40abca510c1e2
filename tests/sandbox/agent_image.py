# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's image, built by its own Containerfile without a registry: on a root file system made
of Debian's packages, from wheels fetched beforehand.

What was made is kept in the user's cache, by a hash of all that goes into it. `archive` is what a
cluster imports.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autopilot-gpu" / "images"
)
NAME = "localhost/autopilot-agent:test"
#: The Debian release that the Containerfile names, its Python, and what the Containerfile would
#: install.
RELEASE, PYTHON = "trixie", "3.13"
PACKAGES = ("python3", "python3-pip-whl", "ca-certificates", "fping", "iperf3", "iproute2")
#: Goes into the hash of the base: a new word when the way it is made changes.
RECIPE = "1"
PROGRAMS = ("buildah", "mmdebstrap")
#: What of the repository goes into an image.
SOURCES = (
    "plugins/module_utils/_health",
    "src/agent/autopilot_agent",
    "src/agent/Containerfile",
    "src/agent/install-packages",
    "src/agent/requirements.txt",
)
#: Seconds after which an image that nobody asked for goes.
KEPT = 6 * 3600
#: Seconds for a build, and for fetching what it needs, on a machine that is busy.
PATIENCE = 900


def missing():
    """What keeps this machine from building images, in words; None when nothing does."""
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    if lacking:
        return f"needs {' and '.join(lacking)} to build the agent's image"
    return "needs root to build the agent's image" if os.geteuid() != 0 else None


def archive():
    """The image `NAME` of this tree as a docker archive, which `ctr images import` takes; built
    when it is not in the cache.
    """
    with context() as tree:
        path = cached(
            f"agent-{hash_of(tree, base().name)}.tar", lambda path: Builder.once(tree, path)
        )
    os.utime(path)
    # Each change of the tree leaves one of 130 MB.
    for old in CACHE.glob("agent-*.tar*"):
        if old.stat().st_mtime < time.time() - KEPT:
            old.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def context():
    """A directory with what the Containerfile copies, as it is in this tree, and the wheels."""
    with tempfile.TemporaryDirectory(prefix="agent-context-") as directory:
        tree = Path(directory)
        for source in SOURCES:
            copy = shutil.copytree if (REPOSITORY / source).is_dir() else shutil.copy2
            (tree / source).parent.mkdir(parents=True, exist_ok=True)
            copy(
                REPOSITORY / source,
                tree / source,
                **(
                    {"ignore": shutil.ignore_patterns("__pycache__", ".*")}
                    if copy is shutil.copytree
                    else {}
                ),
            )
        shutil.copytree(wheels(tree / "src/agent/requirements.txt"), tree / "src/agent/wheels")
        yield tree


def hash_of(tree, *more):
    """Of all files of a directory and some words."""
    found = hashlib.sha256("\0".join(more).encode())
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        found.update(
            f"\0{path.relative_to(tree)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode()
        )
    return found.hexdigest()[:20]


def cached(name, make):
    """``name`` in the cache; ``make(path)`` writes it when it is not there, for one process at a
    time.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / name
    with open(CACHE / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = CACHE / f"{name}.{os.getpid()}.part"
            try:
                make(unfinished)
                unfinished.rename(path)
            finally:
                shutil.rmtree(
                    unfinished, ignore_errors=True
                ) if unfinished.is_dir() else unfinished.unlink(missing_ok=True)
    return path


def base(*more):
    """A docker archive with a root file system of Debian that has what the Containerfile would
    install, and ``more`` packages.
    """
    packages = (*PACKAGES, *more)
    words = hashlib.sha256(
        json.dumps([RECIPE, RELEASE, packages, platform.machine()]).encode()
    ).hexdigest()[:20]
    return cached(f"base-{words}.tar", lambda path: make_base(path, packages))


def make_base(path, packages):
    with tempfile.TemporaryDirectory(prefix="agent-base-") as directory:
        root = Path(directory) / "layer.tar"
        without = [
            f"--dpkgopt=path-exclude=/usr/share/{name}/*"
            for name in ("doc", "man", "locale", "info")
        ]
        command = [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=essential",
            f"--include={','.join(packages)}",
            "--dpkgopt=force-unsafe-io",
            *without,
        ]
        call([*command, "--skip=output/dev", RELEASE, str(root)])
        digest = hash_of_file(root)
        config = json.dumps(
            {
                "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(
                    platform.machine(), platform.machine()
                ),
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            }
        ).encode()
        manifest = json.dumps(
            [
                {
                    "Config": "config.json",
                    "RepoTags": [f"localhost/{RELEASE}:base"],
                    "Layers": ["layer.tar"],
                }
            ]
        ).encode()
        with tarfile.open(path, "w") as whole:
            whole.add(root, arcname="layer.tar")
            for name, data in (("config.json", config), ("manifest.json", manifest)):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                whole.addfile(entry, io.BytesIO(data))


def hash_of_file(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def wheels(requirements):
    """A directory with the wheels for the base's Python, fetched as pip is set up here."""
    words = hashlib.sha256(
        requirements.read_bytes() + f"{PYTHON} {platform.machine()}".encode()
    ).hexdigest()[:20]
    platforms = [
        f"--platform={name}_{platform.machine()}" for name in ("manylinux2014", "manylinux_2_28")
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--require-hashes",
        "--only-binary=:all:",
        f"--python-version={PYTHON}",
    ]
    return cached(
        f"wheels-{words}",
        lambda path: call(
            [
                *command,
                "--implementation=cp",
                *platforms,
                f"--requirement={requirements}",
                f"--dest={path}",
            ]
        ),
    )


def call(command, **how):
    """What the program printed; raises RuntimeError with its words when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, **how
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


class Builder:
    """buildah with a store of its own, which goes when this is closed."""

    def __init__(self):
        self._directory = tempfile.mkdtemp(prefix="agent-build-")
        kind = call(["stat", "--file-system", "--format=%T", self._directory]).strip()
        # One overlay cannot lie on another.
        driver = "vfs" if kind == "overlayfs" else "overlay"
        self._buildah = [
            "buildah",
            "--root",
            f"{self._directory}/root",
            "--runroot",
            f"{self._directory}/run",
            "--storage-driver",
            driver,
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        subprocess.run(
            [*self._buildah, "rm", "--all"], capture_output=True, timeout=PATIENCE, check=False
        )
        subprocess.run(
            [*self._buildah, "rmi", "--all", "--force"],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        shutil.rmtree(self._directory, ignore_errors=True)

    def build(self, tree, name=NAME, *arguments):
        """Build the image of a directory like `context` gives, with more arguments of buildah; its
        identity, which is the digest of its configuration.
        """
        call(
            [
                *self._buildah,
                "build",
                "--quiet",
                "--isolation=chroot",
                "--layers=false",
                "--timestamp=0",
                f"--build-arg=BASE=docker-archive:{base()}",
                "--build-arg=VERSION=test",
                f"--tag={name}",
                f"--file={tree / 'src/agent/Containerfile'}",
                *arguments,
                str(tree),
            ]
        )
        return self.inspect(name)["FromImageID"]

    def inspect(self, name=NAME):
        return json.loads(call([*self._buildah, "inspect", "--type=image", name]))

    def save(self, path, name=NAME):
        call([*self._buildah, "push", "--quiet", name, f"docker-archive:{path}:{name}"])

    @contextlib.contextmanager
    def mounted(self, name=NAME):
        """The image's root file system, in a directory."""
        container = call([*self._buildah, "from", "--pull-never", name]).strip()
        try:
            yield Path(call([*self._buildah, "mount", container]).strip())
        finally:
            call([*self._buildah, "umount", container])
            call([*self._buildah, "rm", container])

    def extend(self, whole, directory, name):
        """The image of an archive with the files of a directory, by another name."""
        container = call([*self._buildah, "from", f"docker-archive:{whole}"]).strip()
        call([*self._buildah, "copy", "--quiet", container, str(directory), "/"])
        # In one layer: the base has no history, and so layers cannot be counted.
        call([*self._buildah, "commit", "--quiet", "--squash", "--rm", container, name])

    @classmethod
    def once(cls, tree, path):
        with cls() as builder:
            builder.build(tree)
            builder.save(path)


if __name__ == "__main__":
    print(missing() or archive())
