# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection to hosts that do not exist: it takes the time that a host would take, without CPU,
and answers what the modules of the mesh and ``ping`` would answer there. A host whose name begins
with ``down`` cannot be reached.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: stand_in
short_description: Connection to hosts that do not exist
description: [Answers what the modules of the mesh would answer.]
author: Contributors to autopilot.gpu
options: {}
"""

#: Bits per second, and milliseconds of a round trip, of all pairs.
RATE, DELAY = 97e9, 0.05


class Connection(ConnectionBase):
    transport = "stand_in"
    has_pipelining = True

    @property
    def host(self):
        return self._play_context.remote_addr

    def _connect(self):
        if self.host.startswith("down"):
            time.sleep(float(os.environ["STAND_IN_UNREACHABLE_SECONDS"]))
            raise AnsibleConnectionFailure("no route to host")
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        self._connect()
        if not in_data:
            time.sleep(float(os.environ["STAND_IN_EXCHANGE_SECONDS"]))
            return 0, f"clock {time.time()!r}\nboot {time.clock_gettime(7)!r}\n".encode(), b""
        time.sleep(float(os.environ["STAND_IN_MODULE_SECONDS"]))
        module, arguments = sent(in_data.decode())
        answer = {
            "ping": lambda: {"ping": "pong"},
            "mesh_facts": lambda: {"mesh": facts(self.host)},
            "mesh_run": lambda: {"mesh": run(self.host, arguments)},
        }[module]()
        return 0, json.dumps(dict(answer, changed=False)).encode(), b""

    def put_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("the stand-in takes no files")

    def fetch_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("the stand-in has no files")

    def close(self):
        self._connected = False


def sent(payload):
    """The name and the arguments of the module in an AnsiballZ payload."""
    name = re.search(r"module_fqn='[\w.]*?(\w+)'", payload)[1]
    given = re.search(r"params=('(?:[^'\\]|\\.)*')", payload)[1]
    return name, json.loads(ast.literal_eval(given))["ANSIBLE_MODULE_ARGS"]


def facts(host):
    number = int(re.sub(r"\D", "", host))
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    interface = {
        "name": "eth1",
        "kind": "",
        "up": True,
        "carrier": True,
        "mtu": 9000,
        "speed": 100e9,
        "default_route": False,
        "addresses": [{"family": 4, "address": address, "prefix": 8}],
    }
    tool = {"path": "/usr/bin/tool", "version": "5.1"}
    return {"interfaces": [interface], "iperf3": tool, "fping": tool, "busy": [], "wanted": []}


def run(host, arguments):
    """Start or collect the share of a host; what it would have measured is known beforehand."""
    kept = Path(os.environ["STAND_IN_DIRECTORY"]) / f"{host}.json"
    share = arguments["share"]
    share = json.loads(share) if isinstance(share, str) else share
    if arguments["state"] == "started":
        kept.write_text(json.dumps({"share": share, "started": time.time()}))
        return {"state": "started", "pid": 1, "replaced": None}
    told = json.loads(kept.read_text())
    kept.write_text(json.dumps(dict(told, collected=time.time())))
    late = max(0.0, told["started"] - told["share"]["start"])
    return {
        "run": told["share"]["run"],
        "pass": told["share"]["pass"],
        "host": host,
        "state": "done",
        "reason": None,
        "late_seconds": late,
        "windows": [reading(window, late) for window in told["share"]["windows"]],
    }


def reading(window, late):
    kept = {key: window[key] for key in ("kind", "plane", "round", "peer", "side") if key in window}
    if late > window["offset"]:
        return dict(kept, error={"reason": "late", "message": "started late"})
    if window["kind"] == "ping":
        small = {"sent": window["count"], "received": window["count"], "p50_ms": DELAY}
        big = {"size": 8972, "sent": window["big_count"], "received": window["big_count"]}
        targets = {
            host: {"small": small, "big": dict(big, p50_ms=DELAY)} for host in window["targets"]
        }
        return dict(kept, targets=targets, error=None)
    leg = {"bits_per_second": RATE, "retransmits": 0, "cpu_local_percent": 30.0}
    legs = {"transmit": leg, "receive": leg} if window["side"] == "client" else {}
    return dict(kept, hello={"sent": 8, "heard": 8}, port=5200, legs=legs, error=None)
