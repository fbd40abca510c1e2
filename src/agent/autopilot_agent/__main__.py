# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""``python -m autopilot_agent``: exit status 2 for an invalid setting or a port in use, 1 for other
errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys

from . import logs
from _health.agent.settings import AgentSettings

_M_ARENA_MAX = -8


def main() -> int:
    with contextlib.suppress(AttributeError):
        # The few threads (name resolution) need no arenas of their own, which the C library never
        # releases.
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
    # After the allocator is configured.
    from .service import Service

    await Service(settings).run()


if __name__ == "__main__":
    sys.exit(main())
