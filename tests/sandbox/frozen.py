# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file system that never answers: ``frozen.py <directory>`` mounts it there, prints ``ready`` and
serves until it is ended.

A process that opens a file in it waits in state D and not even SIGKILL ends the wait, as in a driver call
that never returns: the kernel waits for the answer to a FUSE request once the daemon has read it
(fs/fuse/dev.c, request_wait_answer). Ending this program ends the wait. Needs /dev/fuse and the
right to mount. Exit status 3 says that one of them is missing, with the reason on standard error.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

FUSE_INIT = 26
#: struct fuse_in_header and struct fuse_out_header of linux/fuse.h, as far as they are used.
REQUEST = struct.Struct("=IIQ")
ANSWER = struct.Struct("=IiQ")
NOSUID_NODEV = 2 | 4
DETACH = 2
_PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def serve(directory: str) -> None:
    try:
        door = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        sys.stderr.write(f"/dev/fuse: {error.strerror}\n")
        sys.exit(3)
    options = f"fd={door},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if libc.mount(b"frozen", directory.encode(), b"fuse", NOSUID_NODEV, options) != 0:
        sys.stderr.write(f"mount: {os.strerror(ctypes.get_errno())}\n")
        sys.exit(3)
    try:
        while True:
            request = os.read(door, 1 << 20)
            _length, operation, unique = REQUEST.unpack_from(request)
            if operation == FUSE_INIT:
                # struct fuse_init_out: protocol 7.31, then readahead, flags, background limits, the
                # largest write; the rest is zero.
                body = struct.pack("=IIIIHHI", 7, 31, 0, 0, 1, 1, 4096).ljust(64, b"\0")
                os.write(door, ANSWER.pack(ANSWER.size + len(body), 0, unique) + body)
                print("ready", flush=True)
    finally:
        libc.umount2(directory.encode(), DETACH)


if __name__ == "__main__":
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    serve(sys.argv[1])
