# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""HCAs on paper, in sysfs, and as a stand-in for perftest."""

from __future__ import annotations

import json
import stat
import sys

from controller import ROOT


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
