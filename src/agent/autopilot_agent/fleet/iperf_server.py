# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The program that runs one iperf3 server for a limited lifetime; it also ends with the agent.

Standard input: ``{"parent": process id, "ports": [first, last], "seconds": lifetime}``; standard
output: one line, ``{"port": number}`` once the server listens, or ``{"error": message}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict

from _health.node.system import bounded, iperf3, interfaces
from _health.node.system.host import Host

#: Maximum number of ports to try.
_TRIES = 5
_PR_SET_PDEATHSIG = 1


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _unwind)
    request = json.load(sys.stdin)
    if os.getppid() == request["parent"]:
        serve(range(request["ports"][0], request["ports"][1] + 1), request["seconds"])


def serve(ports: range, seconds: float) -> None:
    """Serve for so many seconds on the first free port, and report the port."""
    program = iperf3.find()
    if "error" in program:
        _report({"error": program["error"]})
        return
    until, why = time.monotonic() + seconds, "no port is free"
    taken = interfaces.listening(Host())
    for port in [port for port in ports if port not in taken][:_TRIES]:
        told = threading.Event()
        # It ends with this process, or when it reports an error.
        threading.Thread(target=_tell, args=(port, told), daemon=True).start()
        ended = iperf3.parse_server(
            bounded.run(iperf3.server_argv(program, None, None, port), until - time.monotonic())
        )
        if told.is_set() or ended is None:
            return
        told.set()
        why = ended["message"]
    _report({"error": f"ports {ports[0]} to {ports[-1]}: {why}"})


def _tell(port: int, told: threading.Event) -> None:
    while not told.is_set():
        if port in interfaces.listening(Host()):
            told.set()
            _report({"port": port})
        time.sleep(0.02)


def _report(message: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _unwind(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    main()
