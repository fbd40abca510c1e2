# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The records by which a node knows its probes: `NodeProbe` for any window of a share, and
`PairProgram` for a program that two nodes run against each other.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ...system.bounded import Completed, ReportPipe
from ...system.host import Host
from ...system.programs import ErrorReading, ProgramReading
from ..share_window import Rules, ShareWindow


class Opening(NamedTuple):
    """A window that opens: its run, this host's name in it, its program, and its times (monotonic
    clock).
    """

    run: str
    host: str
    window: ShareWindow
    tool: ProgramReading
    opens: float
    closes: float
    root: Host


class NodeProbe(NamedTuple):
    """What a node measures in the windows of one kind. Everything else runs any of them."""

    #: The kind of its windows in a share.
    kind: str
    #: The name of its program in the facts of a host, and in `finders`.
    program: str
    #: The fields of its windows.
    rules: Rules
    #: The addresses of the other ends; all are of one family with the window's own.
    peers: Callable[[ShareWindow], List[str]]
    #: The initial reading of a window.
    blank: Callable[[ShareWindow], Dict[str, Any]]
    #: Measure, and send the reading as ``reading`` whenever it changes. Runs in a child, which is
    #: ended when the window closes.
    measure: Callable[[ReportPipe, Opening], None]
    #: Whether it loads the node: it takes the lock that keeps GPU checks away.
    loads: bool


class PairProgram(NamedTuple):
    """A program of which one end runs servers and the other end runs a client for each leg in turn.

    ``window`` is the window of the end that runs the command.
    """

    #: Its name in messages.
    name: str
    legs: Tuple[str, ...]
    #: (program, window, leg, port, interface): interface is None if the kernel refuses to bind.
    client_argv: Callable[[ProgramReading, ShareWindow, str, int, Optional[str]], List[str]]
    server_argv: Callable[[ProgramReading, ShareWindow, str, int, Optional[str]], List[str]]
    #: (completed client, leg, window): the leg's reading, with ``error`` if it has no figure.
    parse_client: Callable[[Completed, str, ShareWindow], Any]
    #: Why a server ended by itself; None if it served.
    parse_server: Callable[[Completed], Optional[ErrorReading]]
    #: Seconds of traffic of a leg.
    seconds: Callable[[ShareWindow, str], float]
    #: Reasons for which a client is started again while time remains.
    retried: Tuple[str, ...] = ()
    #: Whether a server ends after one client: each leg then has a server, on ports in a row.
    server_for_each_leg: bool = False
    #: Counters whose growth during the window is evidence; None: it has none.
    counters: Optional[Callable[[ShareWindow, Host], Dict[str, int]]] = None
    #: Variables that its environment has beside the node process's own.
    environment: Dict[str, str] = {}
