# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first process of a sandbox cluster: while it lives, so do the cluster's namespaces and
processes; ``init.py [directory to remove]``.

It ends when its standard input does, which the kernel sees to however the other end dies. Killed
itself, it takes all with it but the directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys


def main(directories: list) -> None:
    if os.getpid() != 1:
        sys.exit(
            "init.py: not the first process of a PID namespace, and it is about to kill all others"
        )
    # Names of namespaces, sshd's directory and control sockets: private, and gone with the mount
    # namespace.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "sandbox", "/run"], check=True)
    for name in ("netns", "sshd", "control"):
        os.mkdir(f"/run/{name}", 0o755)
    # The kernel then reaps what is orphaned to this process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    os.read(0, 1)
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
