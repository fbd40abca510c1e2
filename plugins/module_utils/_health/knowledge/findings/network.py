# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the network between the nodes."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- network: one host by hand ----
    "program_missing": FindingText(
        "The measuring program is not installed on the host.",
        "Install fping or iperf3, as the message says.",
    ),
    "program_unusable": FindingText(
        "The measuring program on the host is unusable.",
        "Resolve the reason in the message. The oldest supported versions are fping 4.0 and "
        "iperf3 3.1.",
    ),
    "cpu_limited": FindingText(
        "iperf3 uses a full CPU core, so the link may be faster than measured.",
        "Set the option `streams` (or `minimum`) of iperf3_pairs.",
    ),
    # ---- network: the resident agent ----
    "peers_unread": FindingText(
        "The agent cannot read the addresses of the other agents from the API server, so nothing "
        "is measured. The finding says nothing about the node.",
        "Check the API server, then the agent's rights: `kubectl auth can-i list endpointslices "
        "-n <namespace> --as system:serviceaccount:<namespace>:autopilot`.",
    ),
    # ---- network: the mesh ----
    "no_path": FindingText(
        "No packets get through to or from a node or one of its interfaces, or between two nodes "
        "that others reach.",
        "Check the cable, transceiver, switch port and network card, in this order; then VLAN, "
        "routes and the firewall.",
    ),
    "packet_loss": FindingText(
        "Packets are lost.",
        "Check the cable, transceiver, switch port and network card, in this order. `ethtool -S "
        "<interface>` shows error counters.",
    ),
    "mtu_on_the_way": FindingText(
        "Large packets are lost while small packets arrive: the path MTU is smaller than the "
        "interfaces' MTU.",
        "Set one MTU on interfaces and switch ports. `ping -M do -s 8972 <peer>` finds the hop "
        "for MTU 9000.",
    ),
    "high_latency": FindingText(
        "Round trips take longer than accepted.",
        "Check for congestion, a detour in the routes (`tracepath <peer>`) and CPU power saving "
        "on the node.",
    ),
    "slow_both_ways": FindingText(
        "The node or interface is slower than the others in both directions.",
        "Check the cable, transceiver, switch port and network card, in this order; then the link "
        "speed (`ethtool <interface>`) and the PCIe slot.",
    ),
    "slow_transmit": FindingText(
        "The node or interface sends slower than the others and receives normally.",
        "Check the cable, transceiver, switch port and network card, in this order; then queues "
        "and offloads (`ethtool -k <interface>`).",
    ),
    "slow_receive": FindingText(
        "The node or interface receives slower than the others and sends normally.",
        "Check the cable, transceiver, switch port and network card, in this order; then ring "
        "buffers and interrupts (`ethtool -g <interface>`).",
    ),
    "slow_link": FindingText(
        "Two nodes are slow with each other, and both are good with others.",
        "Check the path between these two nodes, for example a bundle of uplinks with a bad "
        "member. Neither node is faulty. Measure again with `--tags mesh`.",
    ),
    "slow_path": FindingText(
        "Two groups of nodes are slow with each other, and good within.",
        "Check the uplinks and the spine between these racks. No node is faulty.",
    ),
    "slow_group": FindingText(
        "All nodes of a group, such as a rack, are slow with each other and with others.",
        "Check the leaf switch of the group and its uplinks. No node is faulty.",
    ),
    "pings_filtered": FindingText(
        "iperf3 gets through but pings do not.",
        "Allow ICMP echo between the nodes, or leave `ping_mesh` out of `mesh_checks`.",
    ),
    "ports_closed": FindingText(
        "Pings get through but iperf3 does not.",
        "Open TCP and UDP 5200 to 5299 between the nodes, or set other ports (`{iperf3_pairs: "
        "{ports: ...}}`).",
    ),
    "no_connection": FindingText(
        "iperf3 cannot connect; pings were not measured.",
        "Check the firewall between the nodes (TCP and UDP 5200 to 5299), and run `ping_mesh` too.",
    ),
    "undecided": FindingText(
        "A pair of nodes is bad, and the evidence does not tell which of them is faulty.",
        "Measure more pairs: more rounds (`-e mesh_rounds=all`), or more nodes in the play.",
    ),
    "mesh_not_judged": FindingText(
        "The readings of the mesh could not be judged; the checks of the nodes are.",
        "Run the mesh again (`--tags mesh`), and report the message as a defect of this "
        "collection.",
    ),
    "mesh_no_answer": FindingText(
        "The node did not answer when its readings were collected.",
        "Run the check again. If the node stays silent, check the node.",
    ),
    "not_in_mesh": FindingText(
        "The node took no part in the mesh: it was unreachable, did not report its interfaces and "
        "tools, or answered so slowly that it would have been started too late.",
        "Resolve the node's other findings, then run the check again.",
    ),
    "no_partner": FindingText(
        "There was no other node to measure with.",
        "No action is needed. To measure, give the play at least two nodes on this network.",
    ),
    "clock_offset": FindingText(
        "The node's clock is off by more than a second.",
        "Check `chronyc tracking` or `timedatectl`.",
    ),
    "clock_moved": FindingText(
        "The node's clock was set during the mesh, which is scheduled by clock: `warn` if the node "
        "kept to the plan by its boot clock, `unknown` if its pairs were missed.",
        "Check `chronyc tracking` or `timedatectl`: NTP must adjust the clock gradually after boot, "
        "and nothing else may set it.",
    ),
    "clock_not_read": FindingText(
        "The node's clock could not be read precisely enough for the mesh.",
        "Run the check again. The usual reason is a slow connection to the node, such as a jump "
        "host under load.",
    ),
    "interfaces_not_read": FindingText(
        "The node's interfaces could not be read.",
        "Install iproute2 on the node. The message contains the error.",
    ),
    "interface_missing": FindingText(
        "The node lacks an expected interface.",
        "Correct `mesh_interfaces`, or search for the network card with `lspci` and `dmesg`.",
    ),
    "interface_down": FindingText(
        "An interface is administratively down.",
        "Enable it with `ip link set <interface> up`, then find out why it was down.",
    ),
    "interface_without_address": FindingText(
        "An interface has no address that other nodes can reach.",
        "Configure an address, or select other interfaces with `mesh_interfaces`.",
    ),
    "no_carrier": FindingText(
        "An interface has no carrier.",
        "Check the cable, transceiver, switch port and network card, in this order.",
    ),
    "duplicate_address": FindingText(
        "Two nodes have the same address, so the answering node is ambiguous.",
        "Give each node its own address. `arping -D -I <interface> <address>` finds the other "
        "node.",
    ),
    "link_speed_differs": FindingText(
        "A link is slower than the links of nearly all other nodes: `fail` at half their speed or "
        "less, where the port is the likely reason; else `warn`.",
        "Check the cable, transceiver, switch port and network card, in this order. `ethtool "
        "<interface>` shows the negotiated speed.",
    ),
    "mtu_differs": FindingText(
        "The MTU of an interface differs from nearly all other nodes.",
        "Set the MTU of the other nodes.",
    ),
    "fping_missing": FindingText(
        "fping is missing or unusable on the node.",
        "Install fping 4.0 or newer, or leave `ping_mesh` out of `mesh_checks`.",
    ),
    "iperf3_missing": FindingText(
        "iperf3 is missing or unusable on the node.",
        "Install iperf3 3.1 or newer, or leave `iperf3_pairs` out of `mesh_checks`.",
    ),
    "fabric_not_measured": FindingText(
        "The check measured the management interface only, while the node has active InfiniBand "
        "ports without an IP address. The result says nothing about the network that jobs use.",
        'Run the check `rdma_pairs` (`-e \'{"mesh_checks": ["ping", "iperf", "rdma_pairs"]}\'`), or '
        "give the ports addresses (IPoIB). If the management network is what should be measured, "
        "set `plane: mgmt`.",
    ),
    "iperf3_hung": FindingText(
        "iperf3 hung while datagrams between the two nodes arrived, so there is no rate and no "
        "evidence about the link: `unknown`; `warn` for one round beside rounds with a rate.",
        "Run `iperf3 -s` on the node and `iperf3 -c <node>` on a partner by hand. Check the node for "
        "a firewall that drops TCP only, for a hung iperf3 and for CPU load.",
    ),
    "fleet_below_link_speed": FindingText(
        "All pairs of a network are slower than their links.",
        "Check shared parts: the switch, its settings, and the number of streams. Set `minimum` "
        "to the expected rate.",
    ),
    "fleet_uneven": FindingText(
        "The nodes reach rates of several levels, and no interface reports its speed: each level is "
        "compared with itself.",
        "If the levels are not different network cards, set `minimum` of the check (Gbit/s) to the "
        "expected rate.",
    ),
    "reference_in_doubt": FindingText(
        "Most pairs or nodes are slower than the better ones, and nothing but their own figures tells "
        "which rate is usual. Only a node that is slow beside most of the others fails.",
        "Set `minimum` of the check (Gbit/s) to the expected rate.",
    ),
    "oversubscribed": FindingText(
        "Nodes of different groups are slower with each other than nodes of one group while all send "
        "at once: the network between the groups has less capacity than the nodes' links.",
        "Check the uplinks of the switches: their number, their speed and links that are down. If "
        "the network is built so, set the option `oversubscription` of the check, such as 4 for 4 to 1.",
    ),
    "slightly_slow": FindingText(
        "Several pairs of the node together are slower than the noise of healthy pairs explains, none "
        "of them by much: `warn`.",
        "Check the link's error counters (`ethtool -S <interface>`), the PCIe link of the network card "
        "and CPU load, and run the check again.",
    ),
}
