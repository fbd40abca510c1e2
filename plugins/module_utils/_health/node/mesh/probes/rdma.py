# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe ``rdma``: the rate of RDMA writes in each direction between two ports of HCAs, and their
latency, by perftest.

The two ends exchange their parameters over TCP by any addresses; the data goes from port to port.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ...system.rdma import hcas, perftest
from ...system.bounded import Completed
from ...system.host import Host
from ...system.programs import ProgramReading
from ..share_window import FLAG, Rules, ShareWindow, check, whole
from ..windows import PAIR_WINDOW, pair_probe
from .record import PairProgram

#: Seconds that perftest needs for its 5000 exchanges of a latency, without its second of waiting.
LATENCY_SECONDS = 1.0

_SETTINGS: Rules = {
    "queue_pairs": whole(1, 64),
    "message_size": whole(2, 2**23),
    "gpu_memory": FLAG,
}
_GPU: Rules = {
    "index": whole(0, 1023),
    "pci": (
        lambda pci: isinstance(pci, str) and re.fullmatch(r"[0-9A-Fa-f:.]{7,20}", pci) is not None,
        "a PCI address",
    ),
}
_ENDPOINT: Rules = {
    # No text that a program could take for an option.
    "device": (
        lambda name: isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,62}", name) is not None,
        "the name of an HCA",
    ),
    "port": whole(1, 255),
    "gid_index": (
        lambda index: index is None or whole(0, 255)[0](index),
        "a whole number from 0 to 255, or nothing",
    ),
}


def _fits(rules: Rules) -> Any:
    def fits(value: Any) -> bool:
        try:
            check(value, "", rules)
        except ValueError:
            return False
        return True

    return fits


def _is_end(value: Any) -> bool:
    gpu = value.get("gpu") if isinstance(value, dict) else None
    return bool(_fits(_ENDPOINT)(value) and (gpu is None or _fits(_GPU)(gpu)))


def _target(
    tool: ProgramReading, window: ShareWindow, leg: str, port: int, peer: Optional[str]
) -> perftest.RdmaTarget:
    settings, end = window["settings"], window["endpoint"]
    gpu = end.get("gpu") if settings["gpu_memory"] else None
    return perftest.RdmaTarget(
        device=end["device"],
        port=end["port"],
        tcp_port=port,
        peer=peer,
        address=window["address"],
        seconds=int(window["leg_seconds"]),
        queue_pairs=settings["queue_pairs"],
        size=settings["message_size"],
        reverse=leg == "receive",
        gid_index=end["gid_index"],
        gpu=(gpu["index"], gpu["pci"]) if gpu and perftest.can_use_gpu(tool) else None,
    )


def _argv(
    tool: ProgramReading, window: ShareWindow, leg: str, port: int, peer: Optional[str]
) -> List[str]:
    target = _target(tool, window, leg, port, peer)
    return (perftest.latency_argv if leg == "latency" else perftest.rate_argv)(tool, target)


def _client_argv(
    tool: ProgramReading, window: ShareWindow, leg: str, port: int, _interface: Optional[str]
) -> List[str]:
    return _argv(tool, window, leg, port, window["peer_address"])


def _server_argv(
    tool: ProgramReading, window: ShareWindow, leg: str, port: int, _interface: Optional[str]
) -> List[str]:
    return _argv(tool, window, leg, port, None)


def _parse_client(completed: Completed, leg: str, window: ShareWindow) -> perftest.RdmaLegReading:
    if leg == "latency":
        return perftest.parse_latency(completed)
    reading = perftest.parse_rate(completed, window["settings"]["message_size"])
    reading["gpu_memory"] = any(one.startswith("--use_cuda") for one in completed.argv)
    return reading


def _counters(window: ShareWindow, root: Host) -> Dict[str, int]:
    end = window["endpoint"]
    netdev = end.get("netdev")
    named = netdev if isinstance(netdev, str) and not netdev.startswith("-") else None
    return hcas.counters(root, end["device"], end["port"], named)


PROGRAM = PairProgram(
    name="ib_write_bw",
    legs=("transmit", "receive", "latency"),
    client_argv=_client_argv,
    server_argv=_server_argv,
    parse_client=_parse_client,
    parse_server=perftest.parse_server,
    seconds=lambda window, leg: LATENCY_SECONDS if leg == "latency" else window["leg_seconds"],
    retried=("refused",),
    server_for_each_leg=True,
    counters=_counters,
    # GPUs in the order of `hcas.NearGpu`.
    environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
)
PROBE = pair_probe(
    "rdma",
    "perftest",
    PROGRAM,
    rules=dict(
        PAIR_WINDOW,
        settings=(_fits(_SETTINGS), "queue_pairs, message_size and gpu_memory"),
        endpoint=(_is_end, "device, port, gid_index and, with a GPU, its index and pci"),
    ),
)
