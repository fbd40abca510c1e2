# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A copy of the collection with one probe more: a check, the probe's two halves, a line of each
registry, and the program that it runs.
"""

from __future__ import annotations

import shutil
import sys

from controller import ROOT

#: Moves bytes over TCP for some seconds and prints how many bits a second arrived.
PROGRAM = """
import socket, sys, time
role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "serve":
    server = socket.create_server((address, port))
    while True:
        link, _sender = server.accept()
        leg = link.recv(1)
        if leg == b"t":
            count = 0
            while data := link.recv(65536):
                count += len(data)
            link.sendall(str(count).encode())
        else:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                link.sendall(bytes(10000))
                time.sleep(0.001)
        link.close()
leg, count = sys.argv[4], 0
link = socket.create_connection((address, port))
link.sendall(leg[0].encode())
if leg == "transmit":
    until = time.monotonic() + 1
    while time.monotonic() < until:
        link.sendall(bytes(10000))
        time.sleep(0.001)
    link.shutdown(socket.SHUT_WR)
    count = int(link.recv(64))
else:
    while data := link.recv(65536):
        count += len(data)
print(count * 8)
"""

CHECK = """
from __future__ import annotations

from ..framework.check import ON_MESH, Check
from ...knowledge.finding_text import FindingText
from ...model import LIGHT, concluded

CHECK = Check(
    name="blast_pairs",
    place=ON_MESH,
    purpose="how fast do blasts get through",
    intrusion=LIGHT,
    measure=lambda probe: {},
    judge=lambda readings, options: concluded("blast_pairs", [], ""),
    gpu=False,
    options={"minimum": {"type": "float"}, "force": {"type": "bool", "default": True}},
    findings={"blast_missing": FindingText("There is no blast.", "Install it.")},
)
"""

NODE_HALF = """
from __future__ import annotations

from ...system import programs
from ..windows import PAIR_WINDOW, pair_probe
from .record import PairProgram


def _parse(completed, leg, window):
    if completed.returncode:
        reason = "refused" if "refused" in completed.stderr else "failed"
        return {"error": programs.error(reason, completed.stderr[-200:])}
    return {"bits_per_second": float(completed.stdout)}


def _client(tool, window, leg, port, interface):
    return [tool["path"], "call", window["peer_address"], str(port), leg]


def _server(tool, window, leg, port, interface):
    return [tool["path"], "serve", window["address"], str(port)]


PROGRAM = PairProgram(
    name="blast",
    legs=("transmit", "receive"),
    client_argv=_client,
    server_argv=_server,
    parse_client=_parse,
    parse_server=lambda completed: None,
    seconds=lambda window, leg: window["leg_seconds"],
    retried=("refused",),
    counters=lambda window, root: {"blasts": 1},
)
PROBE = pair_probe("blast", "blast", PROGRAM, rules=PAIR_WINDOW)
"""

#: The line of `finders`.
FINDER = """    "blast": lambda: {"path": programs.path_of("blast") or "", "version": "1"},
}
"""

CONTROLLER_HALF = """
from __future__ import annotations

from .record import PairProbe, PairTimes

PROBE = PairProbe(
    check="blast_pairs",
    title="blast",
    kind="blast",
    program="blast",
    validate=lambda options: None,
    times=lambda options: PairTimes(1.0, 1.0, 4.0),
    ports=lambda options: (5400, 5409),
    expected_share=0.5,
)
"""


def _changed(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def copied(to, programs):
    """Copy the collection to ``to``, which is not there yet, add the probe, and put its program into
    the folder ``programs``. Returns the files that were changed or added.
    """
    shutil.copytree(ROOT / "plugins", to / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    core = to / "plugins/module_utils/_health"
    files = {
        "node/checks/blast_pairs.py": CHECK,
        "node/mesh/probes/blast.py": NODE_HALF,
        "fleet/mesh/probes/blast.py": CONTROLLER_HALF,
    }
    for name, text in files.items():
        (core / name).write_text(text, encoding="utf-8")
    _changed(
        core / "node/registry.py",
        '    "rdma_pairs": (),\n',
        '    "rdma_pairs": (),\n    "blast_pairs": (),\n',
    )
    for registry in ("node/mesh/probes/registry.py", "fleet/mesh/probes/registry.py"):
        _changed(
            core / registry,
            "from . import iperf3, ping, rdma",
            "from . import blast, iperf3, ping, rdma",
        )
        _changed(core / registry, "rdma.PROBE)", "rdma.PROBE, blast.PROBE)")
    finders = core / "node/mesh/probes/finders.py"
    _changed(finders, "import fping, iperf3\n", "import fping, iperf3, programs\n")
    _changed(finders, "perftest.find,\n}\n", f"perftest.find,\n{FINDER}")
    programs.mkdir()
    program = programs / "blast"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}", encoding="utf-8")
    program.chmod(0o755)
    return core
