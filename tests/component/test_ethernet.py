# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ethernet on nodes whose sysfs has interfaces as the kernel shows them, and on the real interfaces
of a network namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UP = {
    "type": "1",
    "operstate": "up",
    "carrier": "1",
    "speed": "100000",
    "duplex": "full",
    "mtu": "9000",
    "flags": "0x1003",
    "carrier_down_count": "1",
}
#: Of an interface that is switched on and has no carrier; where it is switched off the kernel
#: refuses to tell carrier, speed and duplex.
NO_CARRIER = {**UP, "operstate": "down", "carrier": "0", "speed": "-1", "duplex": "unknown"}


def card(name, bus, files):
    home = f"sys/devices/pci0000:{bus}/0000:{bus}:01.0"
    return {
        f"{home}/vendor": "0x15b3",
        f"{home}/device": "0x101d",
        f"{home}/net/{name}/device": {"link": "../.."},
        f"sys/class/net/{name}": {
            "link": f"../../devices/pci0000:{bus}/0000:{bus}:01.0/net/{name}"
        },
        **{f"{home}/net/{name}/{key}": content for key, content in files.items()},
    }


def host(*interfaces, **more):
    """A host of these interfaces, called eth0 and so on, and of the further files."""
    found = {"sys/class/net": None}
    for index, files in enumerate(interfaces):
        found.update(card(f"eth{index}", f"{0x50 + index:02x}", files))
    return {"gpus": 0, "files": {**found, **more.get("files", {})}}


def bonded(*words, **changes):
    """A bond whose members have these words of it."""
    members = [
        {
            **(UP if word == "up" else NO_CARRIER),
            "bonding_slave/mii_status": word,
            "master": {"link": "../bond0"},
            **changes,
        }
        for word in words
    ]
    bond = {
        **UP,
        "bonding/slaves": " ".join(f"eth{index}" for index in range(len(words))),
        "bonding/mode": "802.3ad 4",
        "speed": "200000",
    }
    return host(*members, files={f"sys/class/net/bond0/{key}": text for key, text in bond.items()})


#: Scenario, options -> status, then (code, status, subject) of every finding.
TABLE = {
    "as it comes": (
        {"gpus": 0},
        {"interfaces": ["eth0", "lo"], "minimum_speed_mbps": 25000},
        "unknown",
        [("speed_not_reported", "unknown", "lo")],
    ),
    "as it comes, nothing wanted": ({"gpus": 0}, {}, "pass", []),
    "a container": (host(files={"sys/class/net/eth0/operstate": "up"}), {}, "skip", []),
    "one of three down": (
        host(UP, NO_CARRIER, UP),
        {},
        "warn",
        [("interface_down_unlike_others", "warn", "eth1")],
    ),
    "this one is wanted": (
        host(UP, NO_CARRIER, UP),
        {"interfaces": ["eth1"]},
        "fail",
        [("interface_not_up", "fail", "eth1")],
    ),
    "a bond": (bonded("up", "up"), {"minimum_speed_mbps": 200000}, "pass", []),
    "a bond with a member down": (
        bonded("up", "down"),
        {},
        "warn",
        [("bond_degraded", "warn", "bond0")],
    ),
    "a bond of IP over InfiniBand": (bonded("up", "up", type="32"), {}, "skip", []),
    "a bond of IP over InfiniBand with a member down": (
        bonded("up", "down", type="32"),
        {},
        "warn",
        [("bond_degraded", "warn", "bond0")],
    ),
    "present, and down": (host(UP, NO_CARRIER), {"present_interfaces": ["eth1"]}, "pass", []),
    "not present": (
        host(UP),
        {"present_interfaces": ["eth7"]},
        "fail",
        [("interface_absent", "fail", "eth7")],
    ),
    "InfiniBand is not Ethernet": (host({**NO_CARRIER, "type": "32"}, UP, UP), {}, "pass", []),
    "no sysfs": (
        {"gpus": 0, "files": {"sys/class": None, "sys/bus": None}},
        {},
        "unknown",
        [("host_not_read", "unknown", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, options, status, findings = TABLE[case]
    result = measure(node(scenario), "ethernet", **options).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.name) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    files = {
        **UP,
        "speed": "4294967295",
        "statistics/rx_packets": "5",
        "statistics/rx_crc_errors": "2",
        "carrier_changes": "3",
    }
    assert measure(node(host(files)), "ethernet").readings == {
        "uptime_seconds": 86400.25,
        "interfaces": [
            {
                "name": "eth0",
                "physical": True,
                "operstate": "up",
                "up": True,
                "carrier": True,
                "speed_mbps": None,
                "duplex": "full",
                "mtu": 9000,
                "driver": None,
                "device": "0x15b3:0x101d",
                "pci": "00000000:50:01.0",
                "master": None,
                "member": None,
                "virtual_function": False,
                "counters": {
                    "rx_packets": 5,
                    "rx_crc_errors": 2,
                    "carrier_changes": 3,
                    "carrier_down_count": 1,
                },
            }
        ],
    }


#: In network and mount namespaces of its own: two ends of a virtual cable that are up, and one end
#: whose other is down.
CABLES = """
set -e
mount -t sysfs sysfs /sys
ip link set lo up
for end in cable0 cable1; do ip link add $end type veth peer name other-$end; ip link set $end up; done
ip link set other-cable0 up
until [ "$(cat /sys/class/net/cable0/operstate)" = up ]; do sleep 0.02; done
exec "$@"
"""


def test_real_interfaces():
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip")
    program = Path(__file__).parents[1] / "sandbox" / "measure.py"
    request = {
        "checks": [["ethernet", {"interfaces": ["lo", "cable0", "cable1", "cable2"]}]],
        "settings": {},
        "how": {},
    }
    command = [
        "unshare",
        "--net",
        "--mount",
        "timeout",
        "60",
        "sh",
        "-c",
        CABLES,
        "sh",
        sys.executable,
        str(program),
        json.dumps(request),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)[0]["result"]
    assert [(one["code"], one["status"], one["subject"]["name"]) for one in result["findings"]] == [
        ("interface_not_up", "fail", "cable1"),
        ("interface_absent", "fail", "cable2"),
    ]
    assert "down (no carrier)" in result["findings"][0]["message"]
