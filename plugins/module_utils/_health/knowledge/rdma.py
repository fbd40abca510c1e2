# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Counters of the ports of HCAs."""

from __future__ import annotations

#: Counters that count errors of the link (drivers/infiniband/core/sysfs.c).
LINK_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
#: Counters that tell of congestion, and of packets that were lost or repeated: the same file, and
#: mlx5's hardware counters (drivers/infiniband/hw/mlx5/counters.c).
LOAD_COUNTERS = (
    "port_xmit_discards",
    "port_xmit_wait",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "np_ecn_marked_roce_packets",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_adp_retrans",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
)
