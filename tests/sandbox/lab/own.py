# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster that a user names by KUBECONFIG, with AUTOPILOT_TEST_CLUSTER=1: in place of a lab, as
far as tests leave it as it was.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from . import build
from .kubectl import Kubectl
from .world import LabError


def named() -> bool:
    """Whether a user wants their own cluster to be used."""
    return os.environ.get("AUTOPILOT_TEST_CLUSTER") == "1" and bool(os.environ.get("KUBECONFIG"))


class OwnCluster(Kubectl):
    """What of `Lab` can be done to any cluster; whatever else is asked of it skips the test."""

    def __enter__(self):
        self._files = tempfile.TemporaryDirectory(prefix="autopilot-own-cluster-")
        self._numbers = itertools.count()
        self.directory = Path(self._files.name)
        self.kubectl_program = shutil.which("kubectl") or build.programs() / "kubectl"
        done = subprocess.run(
            [self.kubectl_program, "config", "view", "--minify", "--flatten", "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise LabError(f"KUBECONFIG={os.environ['KUBECONFIG']}: {done.stderr.strip()}")
        self._view = json.loads(done.stdout)
        self.kubeconfig = self._write({})
        cluster = self._view["clusters"][0]["cluster"]
        self.server, self.ca = cluster["server"], None
        if "certificate-authority-data" in cluster:
            self.ca = self.directory / "ca.crt"
            self.ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
        self.nodes = [one["metadata"]["name"] for one in self.get("nodes")["items"]]
        return self

    def __exit__(self, *_exception):
        self._files.cleanup()

    def kubeconfig_for(self, user, groups=()) -> Path:
        """For somebody as whom the user of the cluster acts."""
        return self._write({"as": user, "as-groups": list(groups)})

    def _write(self, more) -> Path:
        users = [{**one, "user": {**one["user"], **more}} for one in self._view["users"]]
        path = self.directory / f"{next(self._numbers)}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps({**self._view, "users": users}))
        return path

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(
            f"needs a lab of its own for {name}: AUTOPILOT_TEST_CLUSTER=1 names a cluster in use"
        )
