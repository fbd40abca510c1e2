# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe ``pair``: the TCP rate of each direction between two hosts, by iperf3."""

from __future__ import annotations

from typing import List, Optional

from ...system import iperf3
from ...system.bounded import Completed
from ...system.programs import ProgramReading
from ..share_window import FLAG, ShareWindow, whole
from ..windows import PAIR_WINDOW, pair_probe
from .record import PairProgram


def _client_argv(
    tool: ProgramReading, window: ShareWindow, leg: str, port: int, interface: Optional[str]
) -> List[str]:
    return iperf3.client_argv(
        tool,
        window["peer_address"],
        port,
        window["leg_seconds"],
        window["streams"],
        window["zerocopy"],
        reverse=leg == "receive",
        bind=window["address"],
        interface=interface,
        connect_seconds=window["leg_seconds"],
    )


def _server_argv(
    tool: ProgramReading, window: ShareWindow, _leg: str, port: int, interface: Optional[str]
) -> List[str]:
    return iperf3.server_argv(tool, window["address"], interface, port)


def _parse_client(completed: Completed, leg: str, _window: ShareWindow) -> iperf3.LegReading:
    return iperf3.parse_client(completed, leg == "receive")


PROGRAM = PairProgram(
    name="iperf3",
    legs=("transmit", "receive"),
    client_argv=_client_argv,
    server_argv=_server_argv,
    parse_client=_parse_client,
    parse_server=iperf3.parse_server,
    # iperf3 takes whole seconds.
    seconds=lambda window, _leg: window["leg_seconds"],
    # The server does not listen yet, or is busy with the previous leg.
    retried=("refused", "busy", "control"),
)
PROBE = pair_probe(
    "pair", "iperf3", PROGRAM, rules=dict(PAIR_WINDOW, streams=whole(1, 128), zerocopy=FLAG)
)
