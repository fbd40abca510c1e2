# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of the network between the nodes."""

from __future__ import annotations

from typing import Dict

from ..finding_text import IF_FAIL, CABLE, FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- network: one host by hand ----
    "program_missing": FindingText(
        "The program that measures is not installed on the host.", "Install it: fping, or iperf3."
    ),
    "program_unusable": FindingText(
        "The program that measures cannot be used on the host.",
        "The finding says why; fping 4.0 and iperf3 3.1 are the oldest that do.",
    ),
    "cpu_limited": FindingText(
        "iperf3 takes all of a CPU core, so that the link may be faster than what it shows.",
        "Give `streams` (or `minimum`) as an option of iperf3_pairs.",
    ),
    # ---- network: the mesh ----
    "no_path": FindingText(
        "Nothing gets through to or from a node or one of its interfaces, or between two nodes "
        "that others reach.",
        f"If a node fails for it, let no job start there. {CABLE}; then at VLAN, routes and "
        "the firewall.",
    ),
    "packet_loss": FindingText(
        "Packets get lost on the way.", f"{CABLE}; error counters are in `ethtool -S <interface>`."
    ),
    "mtu_on_the_way": FindingText(
        "Large packets do not get through and small ones do: somewhere the MTU is smaller.",
        "Set one MTU on interfaces and switch ports; `ping -M do -s 8972 <peer>` finds the hop "
        "with MTU 9000.",
    ),
    "high_latency": FindingText(
        "Round trips take longer than they should.",
        "Look for congestion, for a detour in the routes (`tracepath <peer>`) and for CPU "
        "power saving on the node.",
    ),
    "slow_both_ways": FindingText(
        "The node or interface carries less than the others, both ways.",
        f"{IF_FAIL}. {CABLE}; then at its speed (`ethtool <interface>`) and its PCIe slot.",
    ),
    "slow_transmit": FindingText(
        "The node or interface sends slower than the others and receives normally.",
        f"{IF_FAIL}. {CABLE}; then at its queues and offloads (`ethtool -k <interface>`).",
    ),
    "slow_receive": FindingText(
        "The node or interface receives slower than the others and sends normally.",
        f"{IF_FAIL}. {CABLE}; then at its ring buffers and interrupts (`ethtool -g <interface>`).",
    ),
    "slow_link": FindingText(
        "Two nodes are slow with each other, and both are fine with others.",
        "No node is to blame: look at what lies between these two, such as a bundle of uplinks "
        "of which one member is bad. Measure again with `--tags mesh`.",
    ),
    "slow_path": FindingText(
        "Two groups of nodes are slow with each other, and all are fine within.",
        "No node is to blame: look at the uplinks and the spine between these racks.",
    ),
    "pings_filtered": FindingText(
        "iperf3 gets through and pings do not.",
        "Let ICMP echo pass between the nodes, or leave `ping_mesh` out with `mesh_checks`.",
    ),
    "ports_closed": FindingText(
        "Pings get through and iperf3 does not.",
        "Open TCP and UDP 5200 to 5299 between the nodes, or give others (`{iperf3_pairs: "
        "{ports: ...}}`).",
    ),
    "no_connection": FindingText(
        "iperf3 does not get through, and whether pings do was not seen.",
        "Look at the firewall between the nodes (TCP and UDP 5200 to 5299), and run with "
        "`ping_mesh` too.",
    ),
    "undecided": FindingText(
        "A pair of nodes is bad, and it cannot be told whose fault it is.",
        "Measure more: more rounds (`-e mesh_rounds=all`), or more nodes in the play.",
    ),
    "mesh_no_answer": FindingText(
        "The node did not answer when its figures were collected.",
        "Run again; look at the node if it stays silent.",
    ),
    "not_in_mesh": FindingText(
        "The node took no part in the mesh: it was not reached, or did not say what it has.",
        "Other findings of the node say why; run again.",
    ),
    "no_partner": FindingText(
        "There was no other node to measure it with.",
        "Nothing is wrong; give the play at least two nodes on this network.",
    ),
    "clock_offset": FindingText(
        "The node's clock is off by more than a second.",
        "Look at `chronyc tracking` or `timedatectl`.",
    ),
    "clock_not_read": FindingText(
        "The node's clock could not be read well enough to take part.",
        "Run again; a slow way to the node, such as a jump host under load, is the usual reason.",
    ),
    "interfaces_not_read": FindingText(
        "The node's interfaces could not be read.",
        "Install iproute2 on it; the finding says what failed.",
    ),
    "interface_missing": FindingText(
        "The node does not have an interface that it should have.",
        "Correct `mesh_interfaces`, or look for the network card with `lspci` and `dmesg`.",
    ),
    "interface_down": FindingText(
        "An interface is set down.",
        "Set it up: `ip link set <interface> up`; then look why it was down.",
    ),
    "interface_without_address": FindingText(
        "An interface has no address that the other nodes can reach.",
        "Give it one, or name others with `mesh_interfaces`.",
    ),
    "no_carrier": FindingText("An interface has no carrier.", f"Let no job start here. {CABLE}."),
    "duplicate_address": FindingText(
        "Two nodes have the same address, so that it cannot be told which of them answers.",
        "Give each its own; `arping -D -I <interface> <address>` finds the other.",
    ),
    "link_speed_differs": FindingText(
        "A link runs slower than those of nearly all other nodes.",
        f"{CABLE}; `ethtool <interface>` shows what was negotiated.",
    ),
    "mtu_differs": FindingText(
        "The MTU of an interface is not that of nearly all other nodes.", "Set it as on the others."
    ),
    "fping_missing": FindingText(
        "fping cannot be used on the node.",
        "Install fping 4.0 or newer, or leave `ping_mesh` out with `mesh_checks`.",
    ),
    "iperf3_missing": FindingText(
        "iperf3 cannot be used on the node.",
        "Install iperf3 3.1 or newer, or leave `iperf3_pairs` out with `mesh_checks`.",
    ),
    "fleet_below_link_speed": FindingText(
        "All pairs of a network are slower than their links.",
        "Look at what they share: a switch, its settings, the number of streams; say with "
        "`minimum` what they should reach.",
    ),
    "fleet_uneven": FindingText(
        "Some pairs are much faster than most, and no interface tells its speed.",
        "Say with `minimum` of iperf3_pairs (Gbit/s) what they should reach.",
    ),
}
