# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The version of dcgmi in the agent's image."""

from __future__ import annotations

import os
import shutil
from typing import Mapping

from _health.cluster.agents_without_dcgm import NO_DCGM, version_in
from _health.node.system import bounded

#: Seconds for ``dcgmi --version``, which asks no GPU.
_SECONDS = 5.0


def dcgm_version(environ: Mapping[str, str]) -> str:
    """The version, `NO_DCGM` without dcgmi, or "unknown"."""
    program = shutil.which("dcgmi", path=environ.get("PATH", os.defpath))
    if program is None:
        return NO_DCGM
    try:
        return version_in(bounded.run([program, "--version"], _SECONDS).stdout)
    except OSError:
        return version_in("")
