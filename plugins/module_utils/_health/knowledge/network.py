# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Thresholds of a healthy path between two nodes, each with its source."""

from __future__ import annotations

#: The share of the link's speed that TCP reaches at least. With an MTU of 1500 at most 94.9 % of an
#: Ethernet link's rate is TCP payload (1448 of 1526 bytes with preamble, gap and timestamps); our
#: own rule leaves 15 points for the hosts.
LINK_SHARE = 0.8
#: The share of an HCA's data rate that RDMA writes reach at least: AzNHC's lowest threshold is 0.9
#: (180 of 200 and 360 of 400 Gbit/s; azurehpc-health-checks, conf/*.conf); our own rule leaves 5
#: points for a path MTU of 1024, with which 93 % of RoCE's rate is data.
RDMA_LINK_SHARE = 0.85
#: Share of the better pairs' rate that every pair must reach: our own rule. It is well below the
#: spread of repeated TCP measurements between idle hosts (a few percent), and well above a link
#: that lost a lane or negotiated the next lower speed.
FLEET_SHARE = 0.8
#: Figures of one kind of link that are enough for a comparison.
LEAST_FIGURES = 6
#: CPU time of an end, in percent of one core, from which iperf3 itself is the limit: before 3.16 it
#: has one thread (iperf3's release notes), so that the link cannot be blamed.
CPU_LIMIT = 90.0
#: Bytes of headers in front of a ping's data, by IP version: IP without options (RFC 791, RFC 8200)
#: and ICMP (RFC 792, RFC 4443).
PING_HEADERS = {4: 20 + 8, 6: 40 + 8}
#: Percent of pings that may get lost on a path by default; healthy fabrics lose
#: none.
MAXIMUM_LOSS = 2.0
#: One ping may get lost anywhere, whatever the share.
LEAST_LOST = 2
#: A round trip this many times the fleet's median, and of so many ms at least, is worth a look. Our
#: own figures: the median round trips of healthy pairs in one fabric differ by hops, that is by
#: tens of microseconds.
LATENCY_FACTOR = 10.0
LATENCY_LEAST_MS = 5.0
#: Share of the best pairs' rate within which pairs are near the best: our own rule, wider than the
#: spread of repeated TCP measurements between idle hosts.
NEAR_BEST = 0.85
#: Highest share of the usual rate that counts as slightly slow where several pairs of a host show
#: it; a wider spread of healthy pairs lowers it. Our own rule: twice the spread of a few percent.
DENT_SHARE = 0.95
#: A share of the hosts, and the distance from its own median, at which hosts of equal rates are a
#: population of their own and not broken: our own rules.
LEAST_POPULATION = 0.2
POPULATION_WIDTH = 0.06
#: Share of lost pings of a host, of the accepted share of a single path, that fails the host: many
#: pairs tell more than one. TCP and RDMA lose most of their rate at 1 % loss.
POOLED_LOSS = 0.5
#: Bad measurements of a link that fail the run, when most of all are bad: our own rule. One is bad by
#: chance in hundreds.
TIMES_BAD = 3
#: Number, and share, of a host's partners with which a measurement gave no rate that are worth a look:
#: our own rule. One program may always fail.
LEAST_WITHOUT_RATE, WITHOUT_RATE = 2, 0.3
