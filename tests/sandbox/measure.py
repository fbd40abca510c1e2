# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs checks for real on the node it is started on and prints what came out: ``measure.py <request
as JSON>``.

The request is ``{"checks": [[name, options], ...], "settings": {...}, "how": {...}}``; the answer
is a list of ``{"result", "readings", "options"}`` in the same order.
"""

from __future__ import annotations

import json
import sys

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import runner
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)

request = json.loads(sys.argv[1])
chosen = [
    (registry.find(name), dict(registry.find(name).defaults(), **options))
    for name, options in request["checks"]
]
outcomes = runner.run(chosen, HostSettings(**request["settings"]), **request["how"])
print(
    json.dumps(
        [
            {
                "result": outcome.result.to_dict(),
                "readings": outcome.readings,
                "options": outcome.options,
            }
            for outcome in outcomes
        ]
    )
)
