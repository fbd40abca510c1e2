# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""HCAs on paper, in sysfs, and as a stand-in for perftest."""

from __future__ import annotations

import json
import stat
import sys

from controller import ROOT

RDMA = "rdma_pairs"
PERFTEST = {"path": "/usr/bin/ib_write_bw", "latency": "/usr/bin/ib_write_lat", "version": "6.06"}


def hca(device="mlx5_0", port=1, **changed):
    """A port as a host reports it."""
    return {
        "device": device,
        "port": port,
        "active": True,
        "state": "4: ACTIVE",
        "link_layer": "InfiniBand",
        "speed": 400e9,
        "lid": "0x1",
        "gid_index": None,
        "gid": None,
        "netdev": None,
        "gpu": None,
        **changed,
    }


def readings(made, rate=380e9, latency=2.0, bad=None, bad_rate=100e9, **windows):
    """What hosts collect from a fleet whose pairs reach ``rate``; ``bad``: a host that sends at
    another.
    """
    found = {
        host: {
            "run": made["run"],
            "pass": made["pass"],
            "host": host,
            "state": "done",
            "windows": [],
        }
        for host in made["hosts"]
    }
    for kind, planned in (("pair", made["pairs"]), ("rdma", made["probes"].get(RDMA))):
        for number, one in enumerate(planned["rounds"] if planned else []):
            for plane, client, server in one["pairs"]:
                ends = (made["hosts"][client], made["hosts"][server])
                for side, host, peer in (("client", *ends), ("server", *reversed(ends))):
                    window = {
                        "kind": kind,
                        "plane": made["planes"][plane]["name"],
                        "round": number,
                        "peer": peer,
                        "side": side,
                        "hello": {"sent": 8, "heard": 8, "error": None},
                        "error": None,
                        **windows.get(host, {}),
                    }
                    if side == "client":
                        window["legs"] = windows.get("legs") or {
                            name: {
                                "bits_per_second": bad_rate if source == bad else rate,
                                "cpu_local_percent": 5.0,
                            }
                            for name, source in (("transmit", host), ("receive", peer))
                        }
                        window["legs"]["latency"] = {"latency_us": latency}
                    found[host]["windows"].append(window)
    return found


def port_in_sysfs(root, device, port=1, **changed):
    """Write the port of an HCA under ``root``; returns its directory. ``changed`` are files."""
    base = root / f"sys/class/infiniband/{device}/ports/{port}"
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
        "lid": "0x1",
        "gids/0": "fe80:0000:0000:0000:b83f:d203:00aa:0001",
        "counters/symbol_error": "7",
        "counters/link_downed": "0",
        "counters/port_xmit_wait": "100",
        "hw_counters/np_cnp_sent": "5",
        **changed,
    }
    for name, text in files.items():
        if text is not None:
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
    return base


def stand_in(folder, scenario, names=("ib_write_bw", "ib_write_lat")):
    """Programs in ``folder`` that stand in for perftest's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")
    text = (ROOT / "tests/sandbox/perftest.py").read_text(encoding="utf-8")
    for name in names:
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return folder
