# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""``python -m autopilot_agent``: exit status 2 for a setting that is not accepted or a port that is
taken, 1 for what should not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys

from . import logs
from .settings import AgentSettings

_M_ARENA_MAX = -8


def main() -> int:
    with contextlib.suppress(AttributeError):
        # The few threads (name resolution) need no arenas of their own, which the C library never
        # gives back.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    try:
        settings = AgentSettings.from_environment(os.environ)
        logs.start(settings.log_level)
        asyncio.run(_serve(settings))
    except (ValueError, OSError) as error:
        print(f"autopilot_agent: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: AgentSettings) -> None:
    # Not before the allocator has been told.
    from .service import Service

    await Service(settings).run()


if __name__ == "__main__":
    sys.exit(main())
