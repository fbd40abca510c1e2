# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding perftest, the ports of HCAs in sysfs, and the module rdma_pairs against a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
import rdma_world
from module_call import call

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.rdma import (
    hcas,
    perftest,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host

DEVICES = {"devices": {"mlx5_0:1": {"gbits": 0.4}}}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    def put(scenario=None, **how):
        folder = rdma_world.stand_in(tmp_path / "bin", scenario or DEVICES, **how)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return folder

    return put


@pytest.mark.parametrize(
    "scenario, features",
    [
        ({}, ["out_json_file", "source_ip"]),
        ({"json": "none"}, ["source_ip"]),
        ({"cuda": True}, ["out_json_file", "use_cuda", "use_cuda_bus_id", "source_ip"]),
    ],
)
def test_perftest_is_found_with_its_options(programs, scenario, features):
    folder = programs(scenario)
    assert perftest.find() == {
        "path": f"{folder}/ib_write_bw",
        "version": "6.06",
        "features": features,
        "latency": f"{folder}/ib_write_lat",
    }


def test_a_version_without_a_needed_option_is_too_old(programs):
    programs({"old": True})
    found = perftest.find()
    assert found["reason"] == "too_old" and "--report_gbits, --reversed" in found["error"]


def test_a_program_that_cannot_start_says_why(tmp_path, monkeypatch):
    rdma_world.stand_in(tmp_path, {}, names=("ib_write_lat",))
    program = tmp_path / "ib_write_bw"
    words = "ib_write_bw: error while loading shared libraries: libmlx5.so.1"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = perftest.find()
    assert found["reason"] == "not_understood" and "libmlx5.so.1" in found["error"]


def test_the_ports_of_hcas(tmp_path):
    rdma_world.port_in_sysfs(tmp_path, "mlx5_0")
    rdma_world.port_in_sysfs(tmp_path, "mlx5_1", state="1: DOWN", rate="40 Gb/sec (4X QDR)")
    rdma_world.port_in_sysfs(
        tmp_path,
        "mlx5_2",
        link_layer="Ethernet",
        rate="40 Gb/sec (4X QDR)",
        **{
            "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001",
            "gid_attrs/types/0": "IB/RoCE v1",
            "gid_attrs/ndevs/0": "eth7",
            "gids/1": "fe80:0000:0000:0000:0000:0000:0000:0001",
            "gid_attrs/types/1": "RoCE v2",
            "gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001",
            "gid_attrs/types/3": "RoCE v2",
        },
    )
    rdma_world.port_in_sysfs(tmp_path, "mlx5_3", rate=None, state=None, link_layer=None)
    physical = tmp_path / "sys/class/infiniband/mlx5_4/device/physfn"
    rdma_world.port_in_sysfs(tmp_path, "mlx5_4")
    physical.parent.mkdir(parents=True)
    physical.symlink_to("../0000:1a:00.0")
    found = {one["device"]: one for one in hcas.look(Host(str(tmp_path)))}
    # A virtual function is not the host's own.
    assert set(found) == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}
    seen = {
        name: (one["active"], one["speed"], one["gid_index"], one["netdev"])
        for name, one in found.items()
    }
    assert seen == {
        "mlx5_0": (True, 400e9, None, None),
        # 8b/10b: a fifth of the rate of older InfiniBand is no data.
        "mlx5_1": (False, 32e9, None, None),
        "mlx5_2": (True, 40e9, 3, "eth7"),
        "mlx5_3": (False, None, None, None),
    }


def test_a_host_without_rdma_has_no_ports(tmp_path):
    assert hcas.look(Host(str(tmp_path))) == []


def test_the_nearest_gpu_shares_the_most_bridges(tmp_path):
    devices = tmp_path / "sys/devices/pci0000:00"
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for bridge, gpu, card in (
        ("0000:00:01.0", "0000:1b:00.0", 0),
        ("0000:00:02.0", "0000:3b:00.0", 1),
    ):
        folder = devices / bridge / gpu
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (bus / gpu).symlink_to(folder)
        nic = devices / bridge / f"0000:4{card}:00.0"
        nic.mkdir()
        rdma_world.port_in_sysfs(tmp_path, f"mlx5_{card}")
        (tmp_path / f"sys/class/infiniband/mlx5_{card}/device").symlink_to(nic)
    found = hcas.look(Host(str(tmp_path)))
    assert [one["gpu"]["index"] for one in found] == [0, 1]
    assert found[1]["gpu"]["pci"].lower().endswith("3b:00.0")


def test_counters_and_pause_frames(tmp_path, monkeypatch):
    rdma_world.port_in_sysfs(tmp_path, "mlx5_0", **{"counters/symbol_error": "N/A"})
    ethtool = tmp_path / "ethtool"
    ethtool.write_text(
        "#!/bin/sh\necho 'NIC statistics:'\necho '     rx_prio3_pause: 17'\necho '     rx_bytes: 5'\n"
    )
    ethtool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert hcas.counters(Host(str(tmp_path)), "mlx5_0", 1, "eth7") == {
        "link_downed": 0,
        "port_xmit_wait": 100,
        "np_cnp_sent": 5,
        "rx_prio3_pause": 17,
    }


# ---- the module ----


def server(folder, port, duration):
    """A server of the stand-in that waits for one client."""
    command = [f"{folder}/ib_write_bw", "-d", "mlx5_0", "-p", str(port), "-F", "--report_gbits"]
    process = subprocess.Popen(
        [*command, "-D", str(duration)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert any("Waiting for client" in line for line in process.stdout)
    time.sleep(0.2)
    return process


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


@pytest.mark.parametrize(
    "options, status, code",
    [
        ({"minimum": 0.2}, "pass", None),
        ({"minimum": 5}, "fail", "slow_rdma"),
        # Against a share of the port's 400 Gbit/s, which is weaker evidence.
        ({}, "warn", "slow_rdma"),
        ({"devices": ["mlx5_9"]}, "unknown", "no_active_hca_port"),
    ],
)
def test_the_module_measures_to_a_server(programs, tmp_path, options, status, code):
    folder, port = programs(), free_port()
    rdma_world.port_in_sysfs(tmp_path, "mlx5_0")
    process = server(folder, port, 1)
    try:
        answer = call(
            sys.executable,
            "rdma_pairs",
            peers=["127.0.0.1"],
            port=port,
            duration=2,
            host_root=str(tmp_path),
            **options,
        )
    finally:
        process.kill()
        process.communicate()
    [result] = answer["health"]
    assert (answer["status"], [one["code"] for one in result["findings"]]) == (
        status,
        [code] if code else [],
    ), answer
    if "devices" not in options:
        assert 0.3e9 / 8 < result["measurements"][0]["value"] < 0.5e9 / 8


def test_the_module_without_a_server_or_perftest(programs, tmp_path):
    rdma_world.port_in_sysfs(tmp_path, "mlx5_0")
    given = {"peers": ["127.0.0.1"], "port": free_port(), "host_root": str(tmp_path)}
    answer = call(sys.executable, "rdma_pairs", **given)
    assert answer["health"][0]["findings"][0]["code"] == "program_missing"
    programs()
    answer = call(sys.executable, "rdma_pairs", **given)
    [finding] = answer["health"][0]["findings"]
    assert (finding["code"], finding["evidence"]["reason"]) == ("not_measured", "refused")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"duration": 1}, "duration: 1 is invalid; expected 2 s or more"),
        ({"queue_pairs": 0}, "queue_pairs: 0 is invalid; expected a whole number from 1 to 64"),
        (
            {"queue_pairs": True},
            "queue_pairs: True is invalid; expected a whole number from 1 to 64",
        ),
        ({"message_size": 2**24}, "message_size: 16777216 is invalid"),
        ({"ports": "80"}, "ports: 80 is invalid; expected a range of ports from 1024 to 65535"),
        ({"devices": ["mlx5_0:x"]}, "devices: mlx5_0:x is invalid; expected names of HCAs"),
        ({"peers": ["gpu01"]}, "peers: gpu01 is invalid; expected IP addresses"),
    ],
)
def test_an_invalid_option_is_named(options, said):
    answer = call(sys.executable, "rdma_pairs", **{"peers": ["127.0.0.1"], **options})
    assert answer["failed"] and said in answer["msg"]
