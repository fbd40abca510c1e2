# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe of ``rdma_pairs``: the rate of RDMA writes in each direction between two ports of HCAs,
and their latency.
"""

from __future__ import annotations

from typing import Any, Dict

from ....knowledge.network import RDMA_LINK_SHARE
from ....node.framework.pair_options import port_range
from .record import HCA, Options, PairProbe, PairTimes

#: Default range of ports for the exchange of parameters.
PORTS = "5300-5399"
#: Seconds of a leg beside its traffic: perftest waits a second after connecting, opens the card and
#: registers memory before.
SLACK = 2.5
#: Seconds of the latency, as the node's half of the probe has it.
_LATENCY_SECONDS = 1.0
#: Seconds at the end of a window in which the counters are read again.
_COUNTERS = 1.0


def _times(options: Options) -> PairTimes:
    direction = options["duration"] / 2
    legs = 2 * direction + _LATENCY_SECONDS + 3 * SLACK
    return PairTimes(direction, SLACK, legs + _COUNTERS)


def _fields(options: Options) -> Dict[str, Any]:
    names = ("queue_pairs", "message_size", "gpu_memory")
    return {"settings": {name: options[name] for name in names}}


PROBE = PairProbe(
    check="rdma_pairs",
    title="ib_write_bw",
    kind="rdma",
    program="perftest",
    validate=lambda options: port_range(options["ports"], PORTS),
    endpoint=HCA,
    times=_times,
    fields=_fields,
    ports=lambda options: port_range(options["ports"], PORTS),
    server_ports=3,
    together=lambda options: bool(options["together"]),
    expected_share=RDMA_LINK_SHARE,
    # The parameters go another way than the data, so that a timeout says nothing about the ports.
    unreached=("no_completion",),
    can_be_filtered=False,
    latency_leg="latency",
)
