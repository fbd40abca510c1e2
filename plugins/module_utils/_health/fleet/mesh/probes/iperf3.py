# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe of ``iperf3_pairs``: the TCP rate of each direction."""

from __future__ import annotations

from ....knowledge.network import CPU_LIMIT, LINK_SHARE
from ....node.checks.iperf3_pairs import translated
from ....node.framework.pair_options import port_range
from .record import Options, PairProbe, PairTimes

#: Seconds of a round after each leg, for the difference between the clocks of both ends.
SLACK = 0.3


def _times(options: Options) -> PairTimes:
    return PairTimes(options["duration"] / 2, SLACK, options["duration"] + 2 * SLACK)


PROBE = PairProbe(
    check="iperf3_pairs",
    title="iperf3",
    kind="pair",
    program="iperf3",
    validate=lambda options: port_range(options["ports"]),
    translated=translated,
    by_default=True,
    member="pairs",
    times=_times,
    fields=lambda options: {"streams": options["streams"], "zerocopy": options["zerocopy"]},
    ports=lambda options: port_range(options["ports"]),
    expected_share=LINK_SHARE,
    cpu_limit=CPU_LIMIT,
    silent=("timeout", "no_route"),
    cpu_hint="set the option streams or minimum",
)
