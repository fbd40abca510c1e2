# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of storage: one table of readings and what must be said about them, and properties over
any readings.
"""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.storage import (
    CHECK,
    _mount_table,
    _unescaped,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GB = 10**9


def mount(path="/scratch", free=500, used=500, named=False, **parts):
    """A file system of a terabyte, half free (``free`` and ``used`` in GB), its ``parts`` changed."""
    base = {
        "path": path,
        "source": "/dev/nvme1n1",
        "type": "xfs",
        "options": "rw,relatime",
        "super_options": "rw,attr2",
        "fstab": "defaults",
        "named": named,
        "system": path in ("/", "/var", "/tmp"),
        "bytes_total": (free + used) * GB,
        "bytes_free": free * GB,
        "bytes_used": used * GB,
        "inodes_total": 10**6,
        "inodes_free": 10**6 // 2,
    }
    return {**base, **parts}


def silent(path="/scratch", named=False, **parts):
    """A mount that told nothing but this."""
    return {
        **{
            key: value
            for key, value in mount(path, named=named).items()
            if "bytes" not in key and "inodes" not in key
        },
        **parts,
    }


def hung(path="/scratch", named=False):
    return silent(path, named, hung=True, waited_seconds=4.0)


def failed(number, path="/scratch", named=False):
    return silent(path, named, errno=number, error="words")


def nvme(**health):
    base = {
        "critical_warning": 0,
        "percentage_used": 3,
        "media_errors": 0,
        "available_spare": 100,
        "spare_threshold": 10,
    }
    return {
        "name": "nvme0",
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "serial": "S64H",
        "firmware": "GDC5",
        "state": "live",
        "transport": "pcie",
        "ioerr_count": None,
        "nvme": {**base, **health},
    }


def disk(**parts):
    return {**nvme(), **parts}


RO = {"options": "ro,relatime", "super_options": "ro"}
BECAME = {"options": "rw,relatime", "super_options": "ro"}
FIX = "fix_configuration"

#: Mounts, disks, options -> status of the check, then (code, status, action, subject) of every
#: finding.
TABLE = {
    "well": ([mount("/"), mount()], [nvme()], {}, "pass", []),
    "a container": ([], [], {}, "skip", []),
    "hung": ([hung()], [], {}, "warn", [("mount_hung", "warn", FIX, "/scratch")]),
    "hung and named": (
        [hung(named=True)],
        [],
        {},
        "fail",
        [("mount_hung", "fail", FIX, "/scratch")],
    ),
    "its server is gone": (
        [failed(errno.ENOTCONN)],
        [],
        {},
        "warn",
        [("mount_broken", "warn", FIX, "/scratch")],
    ),
    "stale and named": (
        [failed(errno.ESTALE, named=True)],
        [],
        {},
        "fail",
        [("mount_broken", "fail", FIX, "/scratch")],
    ),
    "the root's disk is gone": (
        [failed(errno.EIO, "/")],
        [],
        {},
        "fail",
        [("mount_broken", "fail", FIX, "/")],
    ),
    "closed to this user": (
        [mount("/"), failed(errno.EACCES)],
        [],
        {},
        "pass",
        [("mounts_closed", "pass", "none", "node")],
    ),
    "closed and named": (
        [failed(errno.EACCES, named=True)],
        [],
        {},
        "unknown",
        [("mount_not_read", "unknown", FIX, "/scratch")],
    ),
    "closed and named, not as true or false": (
        [failed(errno.EACCES, named=1)],
        [],
        {},
        "unknown",
        [("mount_not_read", "unknown", FIX, "/scratch")],
    ),
    "unmounted meanwhile": ([mount("/"), failed(errno.ENOENT)], [], {}, "pass", []),
    "another error": (
        [failed(errno.ELOOP)],
        [],
        {},
        "unknown",
        [("mount_not_read", "unknown", FIX, "/scratch")],
    ),
    "no figures": (
        [silent()],
        [],
        {},
        "unknown",
        [("mount_not_read", "unknown", "watch", "/scratch")],
    ),
    # read-only
    "became read-only": (
        [mount(**BECAME)],
        [],
        {},
        "warn",
        [("mount_became_read_only", "warn", "watch", "/scratch")],
    ),
    "the root became read-only": (
        [mount("/", **BECAME)],
        [],
        {},
        "fail",
        [("mount_became_read_only", "fail", "drain_node", "/")],
    ),
    "became read-only and named": (
        [mount(named=True, **BECAME)],
        [],
        {},
        "fail",
        [("mount_became_read_only", "fail", "drain_node", "/scratch")],
    ),
    "mounted read-only against fstab": (
        [mount(**RO)],
        [],
        {},
        "warn",
        [("mount_read_only", "warn", FIX, "/scratch")],
    ),
    "mounted read-only as fstab has it": ([mount(fstab="ro,noatime", **RO)], [], {}, "pass", []),
    "mounted read-only, not in fstab": ([mount("/", fstab=None, **RO)], [], {}, "pass", []),
    "a read-only view of another": ([mount(fstab=None, options="ro,relatime")], [], {}, "pass", []),
    "read-only and named": (
        [mount(named=True, fstab=None, **RO)],
        [],
        {},
        "fail",
        [("mount_read_only", "fail", FIX, "/scratch")],
    ),
    "full and read-only as it should be": ([mount(free=0, fstab="ro", **RO)], [], {}, "pass", []),
    # room
    "a twentieth free": ([mount(free=50, used=950)], [], {}, "pass", []),
    "less than that": (
        [mount(free=49, used=951)],
        [],
        {},
        "warn",
        [("mount_full", "warn", FIX, "/scratch")],
    ),
    "less than the option wants": (
        [mount(free=90, used=910)],
        [],
        {"minimum_free": 10},
        "warn",
        [("mount_full", "warn", FIX, "/scratch")],
    ),
    "any room is enough": ([mount(free=1, used=999)], [], {"minimum_free": 0}, "pass", []),
    "no room": (
        [mount(free=0, used=999)],
        [],
        {"minimum_free": 0},
        "warn",
        [("mount_full", "warn", FIX, "/scratch")],
    ),
    "no room for the system": (
        [mount("/var", free=0, used=999)],
        [],
        {},
        "fail",
        [("mount_full", "fail", FIX, "/var")],
    ),
    "no room where it is named": (
        [mount(free=0, used=999, named=True)],
        [],
        {},
        "fail",
        [("mount_full", "fail", FIX, "/scratch")],
    ),
    "little room for the system": (
        [mount("/", free=1, used=999)],
        [],
        {},
        "warn",
        [("mount_full", "warn", FIX, "/")],
    ),
    "few inodes": (
        [mount(inodes_free=49_999)],
        [],
        {},
        "warn",
        [("mount_out_of_inodes", "warn", FIX, "/scratch")],
    ),
    "fewer inodes than the option wants": (
        [mount(inodes_free=99_999)],
        [],
        {"minimum_free_inodes": 10},
        "warn",
        [("mount_out_of_inodes", "warn", FIX, "/scratch")],
    ),
    "no inodes for the system": (
        [mount("/tmp", inodes_free=0)],
        [],
        {},
        "fail",
        [("mount_out_of_inodes", "fail", FIX, "/tmp")],
    ),
    "inodes are not counted": ([mount(inodes_total=0, inodes_free=0)], [], {}, "pass", []),
    "neither are blocks": ([mount(free=0, used=0)], [], {}, "pass", []),
    "no room and no inodes": (
        [mount(free=0, used=9, inodes_free=0)],
        [],
        {},
        "warn",
        [("mount_full", "warn", FIX, "/scratch"), ("mount_out_of_inodes", "warn", FIX, "/scratch")],
    ),
    # disks
    "used up spare": (
        [],
        [nvme(critical_warning=1, available_spare=5)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "less spare than its threshold, not said": (
        [],
        [nvme(available_spare=9)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "too hot": (
        [],
        [nvme(critical_warning=2)],
        {},
        "warn",
        [("disk_warning", "warn", "watch", "nvme0")],
    ),
    "unreliable": (
        [],
        [nvme(critical_warning=4)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "read-only": (
        [],
        [nvme(critical_warning=8)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "no backup of its memory": (
        [],
        [nvme(critical_warning=16)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "persistent memory read-only": (
        [],
        [nvme(critical_warning=32)],
        {},
        "warn",
        [("disk_warning", "warn", "replace_part", "nvme0")],
    ),
    "a bit that is not known": (
        [],
        [nvme(critical_warning=64)],
        {},
        "warn",
        [("disk_warning", "warn", "watch", "nvme0")],
    ),
    "nearly worn": ([], [nvme(percentage_used=99)], {}, "pass", []),
    "worn": (
        [],
        [nvme(percentage_used=100)],
        {},
        "warn",
        [("disk_worn", "warn", "replace_part", "nvme0")],
    ),
    "lost data": (
        [],
        [nvme(media_errors=1)],
        {},
        "warn",
        [("disk_media_errors", "warn", "watch", "nvme0")],
    ),
    "dead": (
        [],
        [disk(state="dead", nvme=None)],
        {},
        "warn",
        [("disk_dead", "warn", "replace_part", "nvme0")],
    ),
    "offline": (
        [],
        [disk(name="sda", state="offline", nvme=None)],
        {},
        "warn",
        [("disk_dead", "warn", "replace_part", "sda")],
    ),
    "errors of SCSI are no verdict": (
        [],
        [disk(name="sda", state="running", nvme=None, ioerr_count=12)],
        {},
        "pass",
        [],
    ),
    "no answer": (
        [],
        [disk(nvme=None, unread={"reason": "timeout", "message": "w"})],
        {},
        "warn",
        [("disk_not_answering", "warn", "watch", "nvme0")],
    ),
    "not requested": (
        [],
        [disk(nvme=None, unread={"reason": "missing", "message": "w"})],
        {},
        "pass",
        [],
    ),
    "as many as expected": ([], [nvme()], {"expected_nvme_disks": 1}, "pass", []),
    "fewer than expected": (
        [],
        [nvme()],
        {"expected_nvme_disks": 2},
        "fail",
        [("disks_missing", "fail", "drain_node", "node")],
    ),
    "fewer live than expected": (
        [],
        [disk(state="dead", nvme=None)],
        {"expected_nvme_disks": 1},
        "fail",
        [
            ("disk_dead", "warn", "replace_part", "nvme0"),
            ("disks_missing", "fail", "drain_node", "node"),
        ],
    ),
    "one over the network is not counted": (
        [],
        [disk(transport="tcp", nvme=None)],
        {"expected_nvme_disks": 1},
        "fail",
        [("disks_missing", "fail", "drain_node", "node")],
    ),
}


def told(result):
    return result.status, [
        (one.code, one.status, one.action, one.subject.name or one.subject.kind)
        for one in result.findings
    ]


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said(case):
    mounts, disks, options, status, findings = TABLE[case]
    assert told(judge({"mounts": mounts, "missing": [], "disks": disks}, options)) == (
        status,
        findings,
    )


def test_a_path_where_nothing_is_mounted():
    assert told(judge({"mounts": [mount("/")], "missing": ["/scratch"], "disks": []}, {})) == (
        "fail",
        [("mount_missing", "fail", FIX, "/scratch")],
    )


@pytest.mark.parametrize(
    "mounts, disks, summary",
    [
        (
            [mount("/", free=770, used=230), mount(free=500, used=500)],
            [nvme()],
            "2 file systems answer, the fullest is /scratch with 50 % free, 1 NVMe disk read",
        ),
        (
            [mount("/")],
            [disk(nvme=None, unread={"message": "nvme is not installed"})],
            "1 file system answers, the fullest is / with 50 % free, the health of 1 NVMe disk "
            "could not be read (nvme is not installed)",
        ),
        ([], [], "no file systems of its own, as in a container"),
        (
            [mount(free=49, used=951)],
            [],
            "mount /scratch: /dev/nvme1n1 (xfs) has 49 GB of 1 TB free, expected at least 5 % (minimum_free)",
        ),
        (
            [hung()],
            [],
            "mount /scratch: /dev/nvme1n1 (xfs) did not answer within 4.0 s; processes "
            "that access it hang",
        ),
        (
            [],
            [nvme(critical_warning=6)],
            "disk nvme0: SAMSUNG MZQL23T8HCLS-00A07 S64H reports a critical warning: its "
            "temperature is out of range; it reports itself as unreliable",
        ),
    ],
)
def test_the_words(mounts, disks, summary):
    assert judge({"mounts": mounts, "disks": disks}, {}).summary == summary


def test_room_is_measured_where_it_can_be_used_up():
    measured = judge(
        {"mounts": [mount("/", free=250, used=750), mount(**RO), hung("/home")], "disks": []}, {}
    ).measurements
    assert [(one.name, one.value, one.unit, one.labels) for one in measured] == [
        ("filesystem_free", 0.25, "ratio", {"path": "/"})
    ]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"paths": ["scratch"]}, "paths: scratch is invalid"),
        ({"minimum_free": 101.0}, "minimum_free: 101 is invalid"),
        ({"minimum_free_inodes": 500}, "minimum_free_inodes: 500"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        CHECK.validate_options(options)


# ---- what is mounted ----


@pytest.mark.parametrize(
    "text, path",
    [
        ("/a\\040b", "/a b"),
        ("/tab\\011", "/tab\t"),
        ("/back\\134slash", "/back\\slash"),
        ("/plain", "/plain"),
    ],
)
def test_blanks_of_paths(text, path):
    assert _unescaped(text) == path


def test_the_table_of_mounts(tmp_path):
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/mountinfo").write_text(
        "22 1 259:2 / / rw,relatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro\n"
        "30 22 8:1 / /a\\040b ro - xfs /dev/sda1 ro\n31 22 0:50 / /home rw - nfs4 server:/old "
        "rw\n32 22 0:51 / /home rw - nfs4 server:/new rw,addr=10.0.0.1\n"
        "cut\n33 22 0:52 / /x rw - short\n"
    )
    table = _mount_table(Host(str(tmp_path)))
    assert {
        path: (one["source"], one["type"], one["options"], one["super_options"], one["device"])
        for path, one in table.items()
    } == {
        "/": ("/dev/nvme0n1p2", "ext4", "rw,relatime", "rw,errors=remount-ro", "259:2"),
        "/a b": ("/dev/sda1", "xfs", "ro", "ro", "8:1"),
        "/home": ("server:/new", "nfs4", "rw", "rw,addr=10.0.0.1", "0:51"),
    }


# ---- any readings ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["path", "bytes_total", "hung", "error", "nvme", "unread", "state", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["mounts", "missing", "disks", "abandoned_pid"]), JSON, max_size=4
    ),
    st.dictionaries(st.sampled_from([*CHECK.options]), JSON, max_size=2),
)
def test_no_garbage_makes_it_raise_or_pass(readings, options):
    result = judge(readings, options)
    if readings.get("mounts") != [] or not isinstance(readings.get("disks"), list):
        assert result.status in ("unknown", "fail") or readings["mounts"][0].get("hung") is True


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["bytes_total", "bytes_free", "options"]), JSON)
def test_a_mount_that_is_not_understood_is_no_pass(key, value):
    result = judge({"mounts": [mount(**{key: value})], "disks": []}, {})
    understood = (
        isinstance(value, str)
        if key == "options"
        else isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
    )
    assert understood or result.status == "unknown"


def test_nothing_read_is_unknown():
    nothing = (
        {},
        {"mounts": None, "disks": []},
        {"mounts": []},
        {"mounts": [None], "disks": []},
        [],
        None,
    )
    assert [judge(readings, {}).status for readings in nothing] == ["unknown"] * 6


def test_a_disk_without_model_and_serial_is_called_by_its_name():
    dead = disk(name="sdl", state="offline", nvme=None, model="  ", serial=None)
    assert judge({"mounts": [], "disks": [dead]}, {}).summary.startswith("disk sdl: sdl is offline")
