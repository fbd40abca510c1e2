# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nfs_mounts against real servers on loopback: one that answers the call that does nothing, and
those that do anything else; and a mount that hangs.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from pathlib import Path

import gateways
import pytest
from controller import linked

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import runner
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import nfs_mounts


def reply(transaction, kind=1, state=0, accepted=0, verifier=b"", more=b""):
    """A reply of RFC 5531 as one record."""
    body = (
        struct.pack(">3I", transaction, kind, state)
        + struct.pack(">2I", 0, len(verifier))
        + verifier.ljust((len(verifier) + 3) // 4 * 4, b"\0")
    )
    body += struct.pack(">I", accepted) + more
    return struct.pack(">I", 0x80000000 | len(body)) + body


def nfsd(versions=(3, 4), change=lambda transaction, answer: answer):
    """A server of these versions of NFS, which takes a call apart as RFC 5531 has it."""

    def behave(connection):
        while True:
            head = connection.recv(4, socket.MSG_WAITALL)
            if not head:
                return
            length = struct.unpack(">I", head)[0]
            assert length & 0x80000000, "one fragment"
            call = connection.recv(length & 0x7FFFFFFF, socket.MSG_WAITALL)
            transaction, kind, rpc, program, version, procedure, *nobody = struct.unpack(
                ">10I", call
            )
            assert (kind, rpc, program, procedure, nobody) == (0, 2, 100003, 0, [0, 0, 0, 0])
            mismatch = struct.pack(">2I", min(versions), max(versions))
            answer = (
                reply(transaction)
                if version in versions
                else reply(transaction, accepted=2, more=mismatch)
            )
            connection.sendall(change(transaction, answer))

    return behave


def look(root, mounts=(), table="", timeout=None):
    """The outcome of the check on a host with these mounts in its table."""
    (root / "proc/1").mkdir(parents=True, exist_ok=True)
    (root / "proc/1/mounts").write_text(f"/dev/sda1 / ext4 rw 0 0\n{table}", encoding="utf-8")
    given = {"mounts": [{"mount_point": None, "path": "/export", **one} for one in mounts]}
    nfs_mounts.validate_options(given)
    return runner.run(
        [(nfs_mounts.CHECK, given)], HostSettings(host_root=str(root), timeout=timeout)
    )[0]


def said(outcome):
    return outcome.result.status, [
        (one.code, one.status, one.action, str(one.subject)) for one in outcome.result.findings
    ]


def in_two_fragments(whole):
    """The record of one fragment as one of two (RFC 5531, section 11)."""
    return (
        struct.pack(">I", 8)
        + whole[4:12]
        + struct.pack(">I", 0x80000000 | len(whole) - 12)
        + whole[12:]
    )


#: What a server does -> status and code, and words.
SERVERS = {
    "versions 3 and 4": (nfsd(), "pass", None, "1 NFS server answered within"),
    "version 3": (nfsd((3,)), "pass", None, "1 NFS server answered within"),
    "a verifier and two fragments": (
        nfsd(
            change=lambda transaction, _answer: in_two_fragments(
                reply(transaction, verifier=b"abcde")
            )
        ),
        "pass",
        None,
        "1 NFS server",
    ),
    "version 2 alone": (
        nfsd((2,)),
        "unknown",
        "nfs_unreachable",
        "the server answered program mismatch to a call of NFS 4 and 3",
    ),
    "no NFS": (
        nfsd(change=lambda transaction, _answer: reply(transaction, accepted=1)),
        "unknown",
        "nfs_unreachable",
        "answered program unavailable",
    ),
    "denied": (
        nfsd(change=lambda transaction, _answer: reply(transaction, state=1)),
        "unknown",
        "nfs_unreachable",
        "answered denied",
    ),
    "another call's reply": (
        nfsd(change=lambda transaction, _answer: reply(transaction + 7)),
        "unknown",
        "nfs_unreachable",
        "does not belong to the call",
    ),
    "half a reply": (
        nfsd(change=lambda _transaction, _answer: struct.pack(">2I", 0x80000004, 1)),
        "unknown",
        "nfs_unreachable",
        "the answer is too short",
    ),
    "silent": (
        gateways.silent,
        "unknown",
        "nfs_unreachable",
        "no answer: the server accepted the connection but did not answer within 5 s",
    ),
    "hanging up": (gateways.hanging_up, "unknown", "nfs_unreachable", "closed the connection"),
    "another protocol": (
        gateways.talking_nonsense,
        "unknown",
        "nfs_unreachable",
        "the answer is not RPC",
    ),
}


@pytest.mark.parametrize("case", SERVERS)
def test_what_servers_answer(case, tmp_path):
    behave, status, code, words = SERVERS[case]
    with gateways.Raw(behave) as server:
        outcome = look(tmp_path, [{"server": "127.0.0.1", "port": server.port}])
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == (
        status,
        [code] if code else [],
    ), outcome.result
    assert words in outcome.result.summary
    assert [one.labels for one in outcome.result.measurements] == (
        [{"server": "127.0.0.1"}] if status == "pass" else []
    )


def test_nobody_listens_and_no_such_name(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = look(
        tmp_path, [{"server": "127.0.0.1", "port": port}, {"server": "nas.invalid", "port": 2049}]
    )
    status, findings = said(outcome)
    assert status == "fail" and findings[0] == (
        "nfs_unreachable",
        "fail",
        "fix_configuration",
        "nfs_server 127.0.0.1",
    )
    assert "Connection refused" in outcome.result.findings[0].message and len(findings) == 2


def test_nothing_is_mounted_and_nothing_is_wanted(tmp_path):
    assert said(look(tmp_path)) == ("skip", [])


def test_what_is_mounted(tmp_path):
    """Mounts as the table has them; what is there answers, as a directory does."""
    for name in ("data", "home dir", "other"):
        (tmp_path / name).mkdir()
    with gateways.Raw(nfsd()) as server:
        here = f"rw,vers=4.2,proto=tcp,port={server.port},addr=127.0.0.1 0 0"
        table = f"nas.test:/export /data nfs4 {here}\nnas.test:/homes /home\\040dir nfs4 {here}\n"
        good = look(
            tmp_path, [{"server": "127.0.0.1", "port": server.port, "mount_point": "/data"}], table
        )
        assert said(good) == ("pass", []), "the server is the same by its address"
        assert good.result.summary.endswith("2 mounts in use") and [
            one["path"] for one in good.readings["points"]
        ] == ["/data", "/home dir"]
        assert said(look(tmp_path, (), table)) == ("pass", []), (
            "what is mounted is looked at without being named"
        )
        missing = look(
            tmp_path, [{"server": "127.0.0.1", "port": server.port, "mount_point": "/other"}], table
        )
        assert said(missing) == (
            "fail",
            [("nfs_not_mounted", "fail", "fix_configuration", "mount /other")],
        )
        wrong = look(
            tmp_path,
            [
                {
                    "server": "127.0.0.1",
                    "port": server.port,
                    "path": "/scratch",
                    "mount_point": "/data",
                }
            ],
            table,
        )
        assert said(wrong) == (
            "fail",
            [("nfs_not_mounted", "fail", "fix_configuration", "mount /data")],
        )
        assert "nas.test:/export is mounted, expected 127.0.0.1:/scratch" in wrong.result.summary
        table = f"nas.test:/export /gone nfs4 {here}\n"
        gone = look(
            tmp_path, [{"server": "127.0.0.1", "port": server.port, "mount_point": "/gone"}], table
        )
        assert said(gone) == (
            "fail",
            [("nfs_mount_error", "fail", "fix_configuration", "mount /gone")],
        )
        assert said(look(tmp_path, (), table))[0] == "warn", "no option says that jobs need it"


def test_a_server_that_only_the_kernel_reaches(tmp_path):
    (tmp_path / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    table = f"127.0.0.1:/export /data nfs4 rw,port={port},addr=127.0.0.1 0 0\n"
    assert said(look(tmp_path, (), table)) == ("pass", []), "its mount answers"
    named = look(tmp_path, [{"server": "127.0.0.1", "port": port, "mount_point": "/data"}], table)
    assert said(named) == ("warn", [("nfs_unreachable", "warn", "watch", "nfs_server 127.0.0.1")])
    assert said(look(tmp_path, (), table.replace("rw,", "rw,proto=rdma,"))) == ("pass", []), (
        "our call takes TCP alone"
    )


def test_a_mount_that_hangs_in_the_kernel_is_named_and_the_others_count(tmp_path, frozen):
    frozen_directory = frozen(tmp_path / "frozen")
    (tmp_path / "data").mkdir()
    # A process that reads below it waits in the kernel, as at a mount whose server is gone.
    table = f"nas:/a /data nfs rw,proto=rdma 0 0\nnas:/b /frozen/{frozen_directory.name} nfs rw,proto=rdma 0 0\n"
    outcome = look(tmp_path, (), table, timeout=6)
    assert said(outcome) == (
        "warn",
        [("mount_hung", "warn", "fix_configuration", f"mount /frozen/{frozen_directory.name}")],
    ), outcome.result
    assert outcome.result.findings[0].evidence["abandoned_pid"]


def test_the_module_by_ansible(tmp_path):
    with gateways.Raw(nfsd()) as server:
        (tmp_path / "hosts").write_text(
            f"n1 ansible_connection=local ansible_python_interpreter={sys.executable}\n",
            encoding="utf-8",
        )
        (tmp_path / "root/proc").mkdir(parents=True)
        controller = linked(tmp_path / "controller", Path(sys.executable).parent)
        given = {
            "host_root": str(tmp_path / "root"),
            "mounts": [{"server": "127.0.0.1", "path": "/export", "port": server.port}],
            "fail_on": "unknown",
        }
        told = controller.ad_hoc(tmp_path / "hosts", "autopilot.gpu.nfs_mounts", given, tmp_path)[
            "n1"
        ]
        assert told["status"] == "pass" and told["health"][0]["check"] == "nfs_mounts", told
        wrong = {
            "host_root": str(tmp_path / "root"),
            "mounts": [{"server": "nas", "path": "export"}],
        }
        refused = controller.run(
            "ansible",
            "-i",
            tmp_path / "hosts",
            "all",
            "-m",
            "autopilot.gpu.nfs_mounts",
            "-a",
            json.dumps(wrong),
            cwd=tmp_path,
        )
        assert "mounts: path: 'export' is invalid; expected an absolute path" in refused.stdout
