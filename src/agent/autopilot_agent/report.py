# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""``python -m autopilot_agent.report``: write the report of the init container into its termination
message, for the module agent_info.

The init container has the image and the environment of the agent, so its report holds for the
agent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Mapping

from _health.cluster.agents_without_dcgm import report_of

from _health.agent.settings import AgentSettings

from .dcgm_version import dcgm_version

#: The file from which the kubelet reads the termination message of a container.
MESSAGE = Path("/dev/termination-log")


def main(environ: Mapping[str, str], message: Path = MESSAGE) -> int:
    """Write the report. Always return 0: an invalid setting or a read-only file must not block the
    start of the agent.
    """
    # The agent reports an invalid setting when it starts.
    with contextlib.suppress(ValueError, OSError):
        settings = AgentSettings.from_environment(environ)
        version = dcgm_version(environ)
        message.write_text(
            report_of(settings.has_dcgmi, settings.left_out, version), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
