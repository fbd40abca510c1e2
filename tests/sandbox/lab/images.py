# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images without a registry or an engine: an archive as of ``docker save``, with one layer, made of
a directory.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def make(archive: Path, name, files, command, environment=None, user="") -> Path:
    """Write the archive of the image ``name`` (a full one: `localhost/pause:1`); ``files``: by path
    in the image, files and directories of this machine.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, source in files.items():
            tar.add(source, arcname=path.lstrip("/"), filter=_anonymous)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    settings = {
        "Env": [f"{key}={value}" for key, value in (environment or {}).items()],
        "Entrypoint": list(command),
        "User": user,
        "WorkingDir": "/",
    }
    config = json.dumps(
        {
            "architecture": _ARCHITECTURE.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps(
        [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    ).encode()
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in (
            (config_name, config),
            (f"{digest}/layer.tar", layer.getvalue()),
            ("manifest.json", manifest),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive


def _anonymous(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
