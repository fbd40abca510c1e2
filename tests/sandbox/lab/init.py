# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first process of a lab: while it lives, so do the lab's namespaces and processes; ``init.py
DIRECTORY``.

It ends when its standard input does, which the kernel sees to however the other end dies: it kills
the rest, and removes the directory and the control groups whose paths are in the directory's file
`cgroups`. Killed itself, it takes the processes with it; the rest waits for the next lab.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def remove_group(group) -> None:
    """A control group and those below it, whose processes have been killed."""
    for path, _directories, _files in os.walk(group, topdown=False):
        # One whose last process is just ending is busy for a moment.
        for _attempt in range(100):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:
                time.sleep(0.05)
                continue
            break


def remove(directory: Path) -> None:
    """The lab's control groups, then its directory."""
    listed = directory / "cgroups"
    for group in listed.read_text().splitlines() if listed.exists() else []:
        remove_group(group)
    shutil.rmtree(directory, ignore_errors=True)


def main(directory: Path) -> None:
    if os.getpid() != 1:
        sys.exit(
            "init.py: not the first process of a PID namespace, and it is about to kill all others"
        )
    # Names of network namespaces: private, and gone with the mount namespace.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "lab", "/run"], check=True)
    # The kernel then reaps what is orphaned to this process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    os.read(0, 1)
    for _attempt in range(200):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    remove(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
