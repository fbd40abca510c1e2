# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nfs_mounts: bytes of a call, tables of mounts, and the judge as a table."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import nfs
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import nfs_mounts
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    check = nfs_mounts.CHECK
    return check.judge(decode(check.readings, readings), options)


def test_a_call_is_what_rfc_5531_has():
    call = nfs.call_bytes(0x01020304, 4)
    assert call.hex() == "80000028010203040000000000000002000186a30000000400000000" + "00000000" * 4


@given(st.binary(max_size=60))
def test_any_bytes_are_a_reply_in_a_word_or_none(record):
    try:
        assert nfs.reply_of(record, 5) in (
            "success",
            "denied",
            "program_mismatch",
            "program_unavailable",
            "procedure_unavailable",
            "garbage_arguments",
            "system_error",
            "not_known",
        )
        assert struct.unpack_from(">2I", record) == (5, 1)
    except nfs.NotUnderstood as error:
        assert str(error).startswith("the ")


@pytest.mark.parametrize(
    "line, expected",
    [
        (
            "nas:/export /data nfs4 rw,vers=4.2,addr=10.0.0.1 0 0",
            ("/data", "nas", "/export", "10.0.0.1"),
        ),
        (
            "[fd00::1]:/a\\040b /x\\134y nfs rw,addr=fd00::1 0 0",
            ("/x\\y", "fd00::1", "/a b", "fd00::1"),
        ),
        ("10.0.0.1:/ /data nfs rw 0 0", ("/data", "10.0.0.1", "/", None)),
        ("/dev/sda1 / ext4 rw 0 0", None),
        ("nfsd /proc/fs/nfsd nfsd rw 0 0", None),
        ("nas:/export /data", None),
        ("", None),
    ],
)
def test_the_table_of_mounts(line, expected, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text(f"{line}\n")
    found = [
        (one["path"], one["server"], one["export"], one["options"].get("addr"))
        for one in nfs.mounts(Host(str(tmp_path)))
    ]
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"server": "", "path": "/a"}, "server: '' is invalid"),
        ({"server": "nas:/a", "path": "/a"}, "server: 'nas:/a' is invalid"),
        ({"server": "nas", "path": "a"}, "path: 'a' is invalid; expected an absolute path"),
        ({"server": "nas", "path": "/a", "mount_point": "b"}, "mount_point: 'b'"),
        ({"server": "nas", "path": "/a", "port": 70000}, "port: 70000 is invalid"),
        ({"server": "nas", "path": "/a", "port": -1}, "port: -1 is invalid"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        nfs_mounts.validate_options({"mounts": [options]})


# ---- the judge ----

WANTED = {"server": "nas", "path": "/export", "mount_point": "/data", "port": 2049}
MOUNT = {
    "path": "/data",
    "source": "nas:/export",
    "server": "nas",
    "export": "/export",
    "type": "nfs4",
    "options": {"addr": "10.0.0.1"},
}
SERVER = {
    "server": "nas",
    "asked": "nas",
    "port": 2049,
    "addresses": ["10.0.0.1"],
    "version": 4,
    "seconds": 0.001,
}
POINT = {"path": "/data", "size": 1 << 40}


def down(kind, step="connect"):
    return {
        "server": "nas",
        "asked": "nas",
        "port": 2049,
        "trouble": {"step": step, "kind": kind, "message": "so it is"},
    }


def hung(what, seconds, pid=None):
    return {
        "hung": {"what": what, "seconds": seconds, "allowed_seconds": seconds, "abandoned_pid": pid}
    }


#: What is wanted, mounted, and read of server and point -> status, then code, status and action of
#: every finding.
TABLE = {
    "well": ([WANTED], [MOUNT], [SERVER], [POINT], "pass", []),
    "a server alone": ([dict(WANTED, mount_point=None)], [], [SERVER], [], "pass", []),
    "mounted and not named": ([], [MOUNT], [SERVER], [POINT], "pass", []),
    "nothing": ([], [], [], [], "skip", []),
    "no such name": (
        [WANTED],
        [],
        [down("no_such_name")],
        [POINT],
        "fail",
        [
            ("nfs_unreachable", "fail", "fix_configuration"),
            ("nfs_not_mounted", "fail", "fix_configuration"),
        ],
    ),
    "resolver": (
        [dict(WANTED, mount_point=None)],
        [],
        [down("resolver_failed")],
        [],
        "unknown",
        [("nfs_unreachable", "unknown", "watch")],
    ),
    "resolver hangs": (
        [dict(WANTED, mount_point=None)],
        [],
        [{"server": "nas", **hung("resolving nas", 20.0)}],
        [],
        "unknown",
        [("nfs_unreachable", "unknown", "watch")],
    ),
    "refused": (
        [dict(WANTED, mount_point=None)],
        [],
        [down("refused")],
        [],
        "fail",
        [("nfs_unreachable", "fail", "fix_configuration")],
    ),
    "silent": (
        [dict(WANTED, mount_point=None)],
        [],
        [down("silent", "call")],
        [],
        "unknown",
        [("nfs_unreachable", "unknown", "watch")],
    ),
    "refused to us alone": (
        [WANTED],
        [MOUNT],
        [down("refused")],
        [POINT],
        "warn",
        [("nfs_unreachable", "warn", "watch")],
    ),
    "refused to us alone, not named": ([], [MOUNT], [down("refused")], [POINT], "pass", []),
    "down and hangs": (
        [WANTED],
        [MOUNT],
        [down("timeout")],
        [{"path": "/data", **hung("looking at /data", 10.0)}],
        "fail",
        [
            ("nfs_unreachable", "fail", "fix_configuration"),
            ("mount_hung", "fail", "fix_configuration"),
        ],
    ),
    "down and hangs, not named": (
        [],
        [MOUNT],
        [down("timeout")],
        [{"path": "/data", **hung("looking at /data", 10.0)}],
        "warn",
        [
            ("nfs_unreachable", "warn", "fix_configuration"),
            ("mount_hung", "warn", "fix_configuration"),
        ],
    ),
    "stale, not named": (
        [],
        [MOUNT],
        [SERVER],
        [{"path": "/data", "error": "Stale", "errno": 116}],
        "warn",
        [("nfs_mount_error", "warn", "fix_configuration")],
    ),
    "hangs in the kernel": (
        [WANTED],
        [MOUNT],
        [SERVER],
        [{"path": "/data", **hung("looking", 3.0, 42)}],
        "fail",
        [("mount_hung", "fail", "fix_configuration")],
    ),
    "had little time": (
        [],
        [MOUNT],
        [SERVER],
        [{"path": "/data", **hung("looking", 3.0)}],
        "unknown",
        [("mount_hung", "unknown", "watch")],
    ),
    "an automount that hangs": (
        [WANTED],
        [],
        [SERVER],
        [{"path": "/data", **hung("looking", 10.0)}],
        "fail",
        [("mount_hung", "fail", "fix_configuration")],
    ),
    "stale": (
        [WANTED],
        [MOUNT],
        [SERVER],
        [{"path": "/data", "error": "Stale file handle", "errno": 116}],
        "fail",
        [("nfs_mount_error", "fail", "fix_configuration")],
    ),
    "may not look": (
        [],
        [MOUNT],
        [SERVER],
        [{"path": "/data", "error": "Permission denied", "errno": 13}],
        "unknown",
        [("nfs_mount_error", "unknown", "fix_configuration")],
    ),
    "not looked at": (
        [],
        [MOUNT],
        [SERVER],
        [],
        "unknown",
        [("nfs_mount_error", "unknown", "watch")],
    ),
    "not mounted": (
        [WANTED],
        [],
        [SERVER],
        [POINT],
        "fail",
        [("nfs_not_mounted", "fail", "fix_configuration")],
    ),
    "another export": (
        [WANTED],
        [dict(MOUNT, export="/other")],
        [SERVER],
        [POINT],
        "fail",
        [("nfs_not_mounted", "fail", "fix_configuration")],
    ),
    "mounted over": (
        [WANTED],
        [dict(MOUNT, export="/other"), MOUNT],
        [SERVER],
        [POINT],
        "pass",
        [],
    ),
    "the same by address": (
        [WANTED],
        [dict(MOUNT, server="storage.example.com")],
        [SERVER],
        [POINT],
        "pass",
        [],
    ),
    "a slash more": ([dict(WANTED, path="/export/")], [MOUNT], [SERVER], [POINT], "pass", []),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_state_has_its_findings(case):
    wanted, mounts, servers, points, status, findings = TABLE[case]
    result = judge({"wanted": wanted, "mounts": mounts, "servers": servers, "points": points}, {})
    assert (result.status, [(one.code, one.status, one.action) for one in result.findings]) == (
        status,
        findings,
    )


def test_what_is_garbled_is_judged_all_the_same():
    readings = {
        "wanted": [WANTED],
        "mounts": [dict(MOUNT, options=5)],
        "servers": [dict(SERVER, addresses=5)],
        "points": [POINT],
    }
    assert judge(readings, {}).status == "pass"


def test_nothing_was_read():
    assert (
        judge({}, {}).status
        == judge({"hung": {"what": "x"}}, {}).status
        == judge({"servers": [5]}, {}).status
        == "unknown"
    )


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-1, 99)
    | st.sampled_from(["nas", "/data", "refused", "looking", "x"])
)
KEYS = st.sampled_from(
    [
        "server",
        "path",
        "mount_point",
        "export",
        "source",
        "options",
        "trouble",
        "kind",
        "hung",
        "seconds",
        "size",
        "error",
        "abandoned_pid",
        "addresses",
    ]
)
DICTS = st.lists(
    st.dictionaries(
        KEYS,
        LEAVES | st.dictionaries(KEYS, LEAVES, max_size=3) | st.lists(LEAVES, max_size=2),
        max_size=5,
    ),
    max_size=3,
)


@given(st.fixed_dictionaries({"wanted": DICTS, "mounts": DICTS, "servers": DICTS, "points": DICTS}))
def test_any_readings_are_judged(readings):
    result = judge(readings, {})
    assert all(one.action != "none" for one in result.findings if one.status == "fail")
    assert result.status != "skip" or not readings["mounts"]
