# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel of a healthy host shows below a stand-in node's root, besides its GPUs: kernel
log, network ports, memory, mounts, services.

Formats: Linux Documentation/ABI (sysfs, dev-kmsg), proc(5), and Documentation/PCI/pcieaer-howto.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Numbers of the driver's services.
FABRIC_MANAGER_PID, PERSISTENCED_PID, CHRONYD_PID = 1801, 1802, 1803
_CORRECTABLE = (
    "RxErr",
    "BadTLP",
    "BadDLLP",
    "Rollover",
    "Timeout",
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
    "TOTAL_ERR_COR",
)
_UNCORRECTABLE = (
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
)
_IB_COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
_IB_HARDWARE_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
)
_NET_STATISTICS = (
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_compressed",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_packets",
    "tx_window_errors",
)
#: Counters that grow on a healthy port.
_TRAFFIC = {
    "port_rcv_data": 81206338,
    "port_xmit_data": 79313312,
    "port_rcv_packets": 310223,
    "port_xmit_packets": 305101,
    "unicast_rcv_packets": 310120,
    "unicast_xmit_packets": 305001,
    "multicast_rcv_packets": 103,
    "multicast_xmit_packets": 100,
    "port_xmit_wait": 1204,
    "rx_bytes": 912233412,
    "rx_packets": 1022331,
    "tx_bytes": 101223341,
    "tx_packets": 612233,
    "multicast": 1203,
}
_MOUNTS = (
    "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw",
    "23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:2 - proc proc rw",
    "24 22 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:3 - sysfs sysfs rw",
    "25 22 0:5 / /dev rw,nosuid shared:4 - devtmpfs udev "
    "rw,size=1056562384k,nr_inodes=264140596,mode=755",
    "26 22 0:23 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=211316480k,mode=755",
)
#: Programs of a healthy host, as shell scripts: chronyc(1), which says that the clock is 12 us off,
#: and nvme-smart-log(1) of a sound disk.
PROGRAMS = {
    "chronyc": 'echo "A9FEA97B,169.254.169.123,4,$(date '
    '+%s).123456789,0.000012345,-0.000003,0.000034,-12.345,0.001,0.045,0.000345,0.000087,64.2,Normal"',
    "nvme": """cat <<'END'
{
  "critical_warning":0,
  "temperature":308,
  "avail_spare":100,
  "spare_thresh":10,
  "percent_used":1,
  "endurance_grp_critical_warning_summary":0,
  "data_units_read":120334,
  "data_units_written":701223,
  "power_cycles":21,
  "power_on_hours":8123,
  "unsafe_shutdowns":9,
  "media_errors":0,
  "num_err_log_entries":0,
  "warning_temp_time":0,
  "critical_comp_time":0
}
END""",
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.endswith("\n") else text + "\n")


def aer_files(root_port: bool) -> dict:
    """The error counters of a PCI device, all of them nought; a root port has totals of what was
    reported to it.
    """

    def lines(names):
        return "".join(f"{name} 0\n" for name in names)

    found = {
        "aer_dev_correctable": lines(_CORRECTABLE),
        "aer_dev_nonfatal": lines((*_UNCORRECTABLE, "TOTAL_ERR_NONFATAL")),
        "aer_dev_fatal": lines((*_UNCORRECTABLE, "TOTAL_ERR_FATAL")),
    }
    if root_port:
        found.update(
            {f"aer_rootport_total_err_{kind}": "0" for kind in ("cor", "nonfatal", "fatal")}
        )
    return found


def render_host(scenario: dict, profile: dict, gpus: list, root: Path) -> None:
    _render_kmsg(scenario, gpus, root / "dev/kmsg")
    _render_memory_and_cpu(root)
    _render_infiniband(root)
    _render_network(root)
    _render_storage(root)
    _render_service(root, CHRONYD_PID, "/usr/sbin/chronyd", ["-F", "1"], [])
    if scenario["driver"]["loaded"] and scenario["gpus"]:
        write(root / "sys/module/nvidia/version", scenario["driver"]["version"])
        write(root / "sys/module/nvidia/initstate", "live")
        devices = ["nvidiactl", *(f"nvidia{gpu['index']}" for gpu in gpus)]
        _render_service(
            root,
            PERSISTENCED_PID,
            "/usr/bin/nvidia-persistenced",
            ["--persistence-mode", "--verbose"],
            devices,
        )
        if profile.get("fabric") is True:
            manager = ["-c", "/usr/share/nvidia/nvswitch/fabricmanager.cfg"]
            _render_service(
                root,
                FABRIC_MANAGER_PID,
                "/usr/bin/nv-fabricmanager",
                manager,
                ["nvidiactl", "nvidia-nvswitchctl"],
            )


# ---- the kernel's log ----


def _boot(scenario: dict, gpus: list) -> list:
    """The lines of a healthy boot that have to do with what is looked at."""
    lines = [
        (0, "Linux version 6.8.0-60-generic (buildd@host) (gcc 13.3.0) #63-Ubuntu SMP"),
        (812_000, "pci_bus 0000:00: root bus resource [bus 00-fe]"),
        (1_204_000, "pcieport 0000:17:01.0: AER: enabled with IRQ 26"),
        (
            1_300_000,
            "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 "
            "IMC#0: DEV 0000:fe:0c.0 (INTERRUPT)",
        ),
        (
            3_101_000,
            "EXT4-fs (nvme0n1p2): mounted filesystem 4e1f7c0a-8f10-4b9c-9a2e-0f8f5d0a9b11 ro "
            "with ordered data mode. Quota mode: none.",
        ),
        (4_021_000, "mlx5_core 0000:0f:00.0: firmware version: 28.39.1002"),
        (
            6_212_000,
            "ice 0000:11:00.0 eth0: NIC Link is up 25 Gbps Full Duplex, Requested FEC: RS-FEC, "
            "Negotiated FEC: RS-FEC, Autoneg: True",
        ),
        (
            7_003_000,
            "EXT4-fs (nvme0n1p2): re-mounted 4e1f7c0a-8f10-4b9c-9a2e-0f8f5d0a9b11 r/w. Quota "
            "mode: none.",
        ),
    ]
    if scenario["driver"]["loaded"] and scenario["gpus"]:
        version = scenario["driver"]["version"]
        lines += [
            (9_100_000, "nvidia: loading out-of-tree module taints kernel."),
            (9_180_000, "nvidia-nvlink: Nvlink Core is being initialized, major device number 510"),
            *(
                (
                    9_200_000 + gpu["index"],
                    f"nvidia {gpu['pci'][4:].lower()}: enabling device (0140 -> 0142)",
                )
                for gpu in gpus
            ),
            (
                9_420_000,
                f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}  Release Build  "
                "(dvs-builder@U22-I3-AE18-23-3)",
            ),
            (
                9_610_000,
                "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms "
                f" {version}  Release Build",
            ),
            (12_001_000, "nvidia-uvm: Loaded the UVM driver, major device number 508."),
        ]
    return [{"text": text, "usec": usec} for usec, text in lines]


def _render_kmsg(scenario: dict, gpus: list, path: Path) -> None:
    """The kernel's log as its records read one after the other."""
    if scenario["kmsg"] is None:
        return
    lines, seq, usec = [], -1, 0
    for record in [
        one
        for given in scenario["kmsg"]
        for one in (_boot(scenario, gpus) if given == "boot" else [given])
    ]:
        seq, usec = record.get("seq", seq + 1), record.get("usec", usec + 1_000_000)
        lines.append(f"{record.get('level', 6)},{seq},{usec},-;{record['text']}")
        lines += [f" {line}" for line in record.get("continued", [])]
    path.write_text("".join(f"{line}\n" for line in lines))


# ---- services ----


def _render_service(root: Path, pid: int, program: str, arguments: list, devices: list) -> None:
    name = os.path.basename(program)[:15]
    home = root / "proc" / str(pid)
    write(home / "comm", name)
    (home / "cmdline").write_text("\0".join([program, *arguments]) + "\0")
    write(home / "stat", f"{pid} ({name}) S 1 {pid} {pid} 0 -1 4194304" + " 0" * 43)
    (home / "fd").mkdir()
    for number, device in enumerate(devices):
        (home / "fd" / str(number + 3)).symlink_to(f"/dev/{device}")


# ---- memory and CPUs ----


def _render_memory_and_cpu(root: Path) -> None:
    write(
        root / "proc/meminfo",
        "".join(
            f"{name + ':':<15} {kilobytes:>12} kB\n"
            for name, kilobytes in (
                ("MemTotal", 2113124772),
                ("MemFree", 1903114772),
                ("MemAvailable", 2040118448),
                ("Buffers", 512340),
                ("Cached", 96011220),
                ("SwapTotal", 0),
                ("SwapFree", 0),
            )
        )
        + "".join(f"HugePages_{name}:       0\n" for name in ("Total", "Free", "Rsvd", "Surp"))
        + "Hugepagesize:       2048 kB\nHugetlb:               0 kB\n",
    )
    write(root / "proc/uptime", "86400.25 19304221.11")
    write(root / "proc/loadavg", "0.42 0.35 0.30 2/2213 40211")
    idle = "1201 3 2210 8612345 120 0 31 0 0 0"
    write(
        root / "proc/stat",
        "".join(f"{name} {idle}\n" for name in ("cpu ", "cpu0", "cpu1", "cpu2", "cpu3"))
        + "intr 0\nctxt 90211233\nbtime 1760000000\nprocesses 40211\nprocs_running "
        "1\nprocs_blocked 0\nsoftirq 0\n",
    )
    cpus = root / "sys/devices/system/cpu"
    for name in ("online", "possible", "present"):
        write(cpus / name, "0-223")
    write(cpus / "offline", "")
    for cpu in range(4):
        write(cpus / f"cpufreq/policy{cpu}/scaling_governor", "performance")
        (cpus / f"cpu{cpu}").mkdir()
        (cpus / f"cpu{cpu}/cpufreq").symlink_to(f"../cpufreq/policy{cpu}")
    for controller in range(2):
        home = root / f"sys/devices/system/edac/mc/mc{controller}"
        write(home / "mc_name", f"Intel_10nm Socket#{controller} IMC#0")
        write(home / "size_mb", "1048576")
        for counter in ("ce_count", "ce_noinfo_count", "ue_count", "ue_noinfo_count"):
            write(home / counter, "0")
    for node in range(2):
        write(
            root / f"sys/devices/system/node/node{node}/meminfo",
            "".join(
                f"Node {node} {name + ':':<15} {kilobytes:>12} kB\n"
                for name, kilobytes in (("MemTotal", 1056562386), ("MemFree", 951557386))
            ),
        )


# ---- network ----


def _render_infiniband(root: Path) -> None:
    """One NDR port of a ConnectX-7, active."""
    home = root / "sys/devices/pci0000:0e/0000:0f:00.0/infiniband/mlx5_0"
    for name, text in (
        ("fw_ver", "28.39.1002"),
        ("board_id", "MT_0000000838"),
        ("hca_type", "MT4129"),
        ("hw_rev", "0"),
        ("node_type", "1: CA"),
        ("node_guid", "a088:c203:00ab:0f00"),
        ("sys_image_guid", "a088:c203:00ab:0f00"),
        ("node_desc", "gpu mlx5_0"),
    ):
        write(home / name, text)
    port = home / "ports/1"
    for name, text in (
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "400 Gb/sec (4X NDR)"),
        ("link_layer", "InfiniBand"),
        ("lid", "0x1a"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x1"),
        ("sm_sl", "0"),
        ("cap_mask", "0xa751e848"),
        ("pkeys/0", "0xffff"),
        ("pkeys/1", "0x0000"),
    ):
        write(port / name, text)
    for directory, names in (("counters", _IB_COUNTERS), ("hw_counters", _IB_HARDWARE_COUNTERS)):
        for name in names:
            write(port / directory / name, str(_TRAFFIC.get(name, 0)))
    (home / "device").symlink_to("../..")
    link = root / "sys/class/infiniband/mlx5_0"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("../../devices/pci0000:0e/0000:0f:00.0/infiniband/mlx5_0")


def _render_network(root: Path) -> None:
    """One Ethernet port of 25 Gbit/s, up, and the loopback."""
    for name, home, attributes in (
        (
            "eth0",
            "pci0000:10/0000:11:00.0",
            {
                "type": "1",
                "operstate": "up",
                "carrier": "1",
                "speed": "25000",
                "duplex": "full",
                "mtu": "1500",
                "flags": "0x1003",
                "address": "b4:96:91:0a:1b:2c",
                "carrier_changes": "2",
                "carrier_up_count": "1",
                "carrier_down_count": "1",
                "ifindex": "2",
            },
        ),
        (
            "lo",
            "virtual",
            {
                "type": "772",
                "operstate": "unknown",
                "carrier": "1",
                "mtu": "65536",
                "flags": "0x9",
                "address": "00:00:00:00:00:00",
                "carrier_changes": "0",
                "ifindex": "1",
            },
        ),
    ):
        directory = root / f"sys/devices/{home}/net/{name}"
        for attribute, text in attributes.items():
            write(directory / attribute, text)
        for counter in _NET_STATISTICS:
            write(directory / "statistics" / counter, str(_TRAFFIC.get(counter, 0)))
        if home != "virtual":
            (directory / "device").symlink_to("../..")
        link = root / f"sys/class/net/{name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../devices/{home}/net/{name}")
    received, sent = "912233412 1022331 0 0 0 0 0 1203", "101223341 612233 0 0 0 0 0 0"
    write(
        root / "proc/net/dev",
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets "
        "errs drop fifo colls carrier compressed\n"
        f"    lo: {received} {received}\n  eth0: {received} {sent}\n",
    )


# ---- storage ----


def _render_storage(root: Path) -> None:
    write(root / "proc/1/mountinfo", "\n".join(_MOUNTS))
    write(
        root / "proc/diskstats",
        " 259       0 nvme0n1 212033 0 8123344 90122 612233 0 91233444 701223 0 120334 791345 "
        "0 0 0 0 0 0",
    )
    disk = root / "sys/devices/pci0000:12/0000:13:00.0/nvme/nvme0"
    for name, text in (
        ("model", "SAMSUNG MZQL23T8HCLS-00A07"),
        ("serial", "S64HNE0W000001"),
        ("state", "live"),
        ("firmware_rev", "GDC5902Q"),
        ("transport", "pcie"),
    ):
        write(disk / name, text)
    for name, text in (
        ("size", "7501476528"),
        ("ro", "0"),
        ("queue/rotational", "0"),
        ("stat", "212033 0 8123344 90122 612233 0 91233444 701223 0 120334 791345 0"),
    ):
        write(disk / "nvme0n1" / name, text)
    (disk / "nvme0n1/device").symlink_to("..")
    (root / "dev/nvme0").touch()
    for place, target in (
        ("sys/class/nvme/nvme0", "../../devices/pci0000:12/0000:13:00.0/nvme/nvme0"),
        ("sys/block/nvme0n1", "../devices/pci0000:12/0000:13:00.0/nvme/nvme0/nvme0n1"),
    ):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(target)
