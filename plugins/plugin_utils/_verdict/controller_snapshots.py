# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The controller's copies of the snapshots that nodes keep."""

from __future__ import annotations

import hashlib
import os
import typing as t
from urllib.parse import quote

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode, mapping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.node_changes import (
    NAME,
    KeptReading,
    NodeChangesReadings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots.snapshot import (
    Snapshot,
)


def controller_path(report_dir: str, run: str, host: str) -> str:
    """The controller's path for a host's snapshot. A file name holds 255 bytes, so a long name is
    told apart by its digest.
    """
    name = quote(host, safe="")
    if len(name) > 200:
        name = f"{name[:200]}-{hashlib.sha256(host.encode()).hexdigest()[:16]}"
    return os.path.join(
        os.getcwd(), os.path.expanduser(report_dir), run, "snapshots", f"{name}.json"
    )


def controller_copy(readings: dict[str, t.Any], facts: dict[str, t.Any]) -> Snapshot | None:
    """Rebuild the snapshot that a node kept or tried to keep, from its module's readings, options
    and facts; None if no snapshot was requested.
    """
    found = {check: mapping(one).get("readings") for check, one in readings.items()}
    changes = decode(NodeChangesReadings, found.get(NAME))
    header = changes.get("kept", KeptReading()).get("header")
    return store.of(header, facts, found) if header else None
