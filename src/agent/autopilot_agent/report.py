# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""``python -m autopilot_agent.report``: write the termination message of the pod's init container, which the module agent_info reads.

The init container has the image and the environment of the agent, so its report holds for the agent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Mapping

from _health.without_dcgm import report_of

from .settings import Settings

#: Where the kubelet reads the termination message of a container.
MESSAGE = Path("/dev/termination-log")


def main(environ: Mapping[str, str] = os.environ, message: Path = MESSAGE) -> int:
    """Return 0 always: an invalid setting, or a message that cannot be written, must not keep the agent from starting."""
    # The agent itself reports an invalid setting.
    with contextlib.suppress(ValueError, OSError):
        settings = Settings.from_environment(environ)
        message.write_text(report_of(settings.has_dcgmi, settings.left_out), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
