# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of the host around the GPUs: its network ports, clock, storage, memory and processors."""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, CABLE, Entry

FINDINGS: Dict[str, Entry] = {
    "host_not_read": Entry(
        "Files of the kernel that this check reads were not there, or not understood.",
        f"{AGAIN}; in a container, see that the host's /sys and /proc are mounted below "
        "`host_root`.",
    ),
    # infiniband
    "port_missing": Entry(
        "The host does not have an InfiniBand port that its options name.",
        "Look at `ls /sys/class/infiniband` and `lspci`: a card that is there and has no port "
        "lacks its driver, or its ports have other names; one that "
        "is not there is to be reseated.",
    ),
    "ports_missing": Entry(
        "Fewer InfiniBand or RoCE ports are up, or as fast as wanted, than the option expects.",
        f"{CABLE}; the finding names the ports that are not so.",
    ),
    "port_down": Entry(
        "An InfiniBand or RoCE port that the options want up is down.",
        f"{CABLE}; `ibstat` and `ip link` say whether it was switched off.",
    ),
    "port_slow": Entry(
        "An InfiniBand or RoCE port runs below the rate that the options want.",
        f"{CABLE}; a link that lost lanes often comes back by reseating.",
    ),
    "port_not_active": Entry(
        "An InfiniBand port has a link to its switch, but the subnet manager has not set it up.",
        "Look at the subnet manager (`sminfo` from a node that works) and at what it says "
        "about this port.",
    ),
    "port_down_unlike_others": Entry(
        "An InfiniBand or RoCE port is down where most ports of the same board are up.",
        f"If it is meant to be up: {CABLE[0].lower() + CABLE[1:]}. If not, name the ports that "
        "count in the option `ports`.",
    ),
    "port_slower_than_others": Entry(
        "An InfiniBand or RoCE port runs below most ports of the same board.",
        f"{CABLE}, and at the settings of both ends.",
    ),
    "port_flaps": Entry(
        "The link of an InfiniBand or RoCE port went down again and again.",
        f"{CABLE}; if it goes on, take the node out before its next job.",
    ),
    "port_errors": Entry(
        "An InfiniBand or RoCE port counts more errors than a sound link.",
        f"{CABLE}; clean or replace it, clear the counters with `perfquery -R`.",
    ),
    "port_firmware_differs": Entry(
        "Network cards of one board run different firmware.",
        "Bring them to one version with the vendor's tool (`mlxfwmanager`), and reset the cards.",
    ),
    # ethernet
    "interface_absent": Entry(
        "The host does not have an interface that its options name.",
        "Look at `ip link` and `lspci`: it may have another name, no driver, or no card.",
    ),
    "interface_not_up": Entry(
        "An interface that the options want up is down, or none is up.",
        f"See whether it was switched off (`ip link`). If not: {CABLE[0].lower() + CABLE[1:]}.",
    ),
    "interface_slow": Entry(
        "An interface runs below the speed that the options want.",
        f"{CABLE}, and at what both ends offer (`ethtool <interface>`).",
    ),
    "speed_not_reported": Entry(
        "The driver of an interface does not say how fast it is, as those of virtual machines do.",
        "Leave `minimum_speed_mbps` away for this host, or measure with the check `iperf3_pairs`.",
    ),
    "interface_down_unlike_others": Entry(
        "An interface is switched on and has no link, where most of its kind have one.",
        f"If it is meant to be up: {CABLE[0].lower() + CABLE[1:]}. If not, switch it off in "
        "the host's configuration.",
    ),
    "interface_slower_than_others": Entry(
        "An interface runs below most of its kind.", f"{CABLE}, and at the settings of both ends."
    ),
    "bond_degraded": Entry(
        "Members of a bond are down, so it has less bandwidth and less to fall back on.",
        f"{CABLE}; `cat /proc/net/bonding/<bond>` has its view.",
    ),
    "half_duplex": Entry(
        "An interface runs half duplex, mostly since only one end negotiates.",
        "Let both ends negotiate (`ethtool -s <interface> autoneg on`), or set both alike.",
    ),
    "interface_flaps": Entry(
        "An interface lost its link again and again.", f"{CABLE}; the kernel's log has the times."
    ),
    "interface_errors": Entry(
        "An interface counts more broken frames or errors than a sound link.",
        f"{CABLE}; `ethtool -S <interface>` has them in detail.",
    ),
    # clock_sync
    "clock_not_told": Entry(
        "The daemon that keeps the clock could not be asked, and the kernel does not vouch for "
        "the clock.",
        "Run its program by hand (`chronyc tracking`, `timedatectl timesync-status`, `ntpq -c "
        "rv`), and install it where it is missing.",
    ),
    "clock_not_synchronised": Entry(
        "Nobody keeps the clock of the host, so its logs and its certificates' times drift.",
        "Start chrony or systemd-timesyncd; where one runs, see that it reaches its servers "
        "(`chronyc sources`).",
    ),
    "clock_is_off": Entry(
        "The clock is further off than allowed.",
        "Look at the daemon's servers (`chronyc sources -v`); `chronyc makestep` sets the "
        "clock at once, best between jobs.",
    ),
    "clock_not_updated": Entry(
        "The daemon that keeps the clock has not heard of a server for a day.",
        "See that the host reaches its time servers (UDP port 123).",
    ),
    # storage
    "mount_missing": Entry(
        "Nothing is mounted at a path that the options name.",
        "Mount it (`systemctl status <unit>.mount`, `mount <path>`), or take it out of the option.",
    ),
    "mount_hung": Entry(
        "A mounted file system does not answer, and whoever touches it waits.",
        "See whether its server is up and can be reached. If it stays away, end its users and "
        "unmount it (`umount -f`, then `umount -l`).",
    ),
    "mount_broken": Entry(
        "A mounted file system answers with an error: its server, its daemon or its disk is gone.",
        "Look at `dmesg`, then unmount it and mount it again; if that fails, look at its "
        "server or its disk.",
    ),
    "mount_not_read": Entry(
        "A file system could not be asked for its figures.",
        "Run the check as root; its message has the error.",
    ),
    "mounts_closed": Entry(
        "The user that the check runs as may not look at some file systems.",
        "Run the check as root if they matter.",
    ),
    "mount_became_read_only": Entry(
        "A file system has become read-only while it was mounted, as the kernel does after "
        "errors of the disk.",
        "Look at `dmesg` and at the disk's health; take the work off the node, check the file "
        "system (`fsck`), and replace the disk if it has errors.",
    ),
    "mount_read_only": Entry(
        "A file system that is to be written to is mounted read-only.",
        "Mount it for writing (`mount -o remount,rw <path>`), and correct its line in /etc/fstab.",
    ),
    "mount_full": Entry(
        "A file system has little or no room left.",
        "Find what fills it (`du -x -d 2 <path>`), and delete it or move it away.",
    ),
    "mount_out_of_inodes": Entry(
        "A file system can hold few or no further files.",
        "Find who makes so many (`du --inodes -x -d 2 <path>`), and delete them.",
    ),
    "disk_dead": Entry(
        "The kernel has given a disk up.",
        "Look at `dmesg`; reseat the disk, and replace it if it does not come back.",
    ),
    "disk_not_answering": Entry(
        "A disk did not answer the question for its health in time.",
        "Look at `dmesg` for its timeouts and resets; watch it.",
    ),
    "disk_warning": Entry(
        "An NVMe disk warns of itself.",
        "Save what is on it and replace it where it is failing; where it is too hot, look at "
        "the cooling.",
    ),
    "disk_worn": Entry(
        "An NVMe disk has written more than its maker guarantees.",
        "Plan to replace it; it may go on for long.",
    ),
    "disk_media_errors": Entry(
        "An NVMe disk could not give data back that it had taken.",
        "Watch whether it grows (`nvme smart-log`); replace the disk if it does.",
    ),
    "disks_missing": Entry(
        "Fewer NVMe disks are there than the option expects.",
        "Look at `lspci` and `nvme list`; reseat or replace the one that is missing.",
    ),
    # memory_and_cpu
    "memory_uncorrected": Entry(
        "The host's memory had errors that could not be corrected; who had data there has "
        "wrong data or was killed.",
        "Take the work off the node and reboot it, so that the firmware can repair the module; "
        "replace the module that the finding names if they return.",
    ),
    "memory_corrected": Entry(
        "The host's memory has many errors that could still be corrected.",
        "Plan to replace the module that the finding names (`ras-mc-ctl --error-count`).",
    ),
    "memory_missing": Entry(
        "The host has less memory than the option expects.",
        "Look at the firmware's list of modules (`dmidecode -t memory`): one was disabled or "
        "has failed.",
    ),
    "swap_on": Entry(
        "The host has more swap space than the option allows.",
        "Switch it off (`swapoff -a`), and take it out of /etc/fstab.",
    ),
    "cpus_missing": Entry(
        "Fewer processors run than the option expects.",
        "Look at `lscpu`, at the firmware's settings (multithreading, sockets) and at the "
        "kernel's parameters.",
    ),
    "more_cpus_than_expected": Entry(
        "More processors run than the option expects.",
        "Correct the option, or switch multithreading off if that was meant.",
    ),
    "cpus_offline": Entry(
        "Processors are there and switched off.",
        "Switch them on (`chcpu -e <list>`); the kernel's log says whether it did it for errors.",
    ),
    "numa_node_without_memory": Entry(
        "A NUMA node with processors has no memory of its own, so that these work on another "
        "node's.",
        "Look at `dmidecode -t memory` and `numactl -H`.",
    ),
    "numa_memory_uneven": Entry(
        "NUMA nodes differ in their memory.",
        "Look at `dmidecode -t memory` for a module that is missing; if it is meant so, "
        "nothing is wrong.",
    ),
    "governor_differs": Entry(
        "Processors are not governed as the option wants.",
        "Set it with `cpupower frequency-set -g <governor>`, and make it last (a profile of tuned).",
    ),
    "memory_bandwidth_not_measured": Entry(
        "The bandwidth of the host's memory was asked for and not measured.",
        "Measure while nothing runs on the host; its message says what was in the way.",
    ),
}
