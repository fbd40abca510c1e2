# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""storage on nodes whose files say what is mounted and which disks there are, and on real file
systems: full, read-only, and never answering.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro"
FSTAB = (
    "# <file system> <mount point> <type> <options>\nUUID=4e1f / ext4 "
    "defaults,errors=remount-ro 0 1\n/dev/md0 /scratch xfs defaults,noatime 0 2\n"
)
#: nvme-smart-log of a disk that is failing, as nvme-cli 2 prints it: spelt out, and counters of 128
#: bits as text.
FAILING = """cat <<'END'
{"critical_warning":{"value":5,"available_spare":1,"temp_threshold":0,"reliability_degraded":1,
"ro":0,"vmbu_failed":0,"pmr_ro":0},
"temperature":308,"avail_spare":3,"spare_thresh":10,"percent_used":104,"media_errors":"7","num_err_log_entries":"9"}
END"""


def mounted(*lines, **more):
    """A node where this is mounted, and whose root directory has those places."""
    places = {
        f"{line.split()[4].lstrip('/')}/.keep": "" for line in lines if line.split()[4] != "/"
    }
    return {
        "gpus": 0,
        "files": {
            "proc/1/mountinfo": "\n".join([ROOT, *lines]),
            "etc/fstab": FSTAB,
            **places,
            **more.pop("files", {}),
        },
        **more,
    }


def scratch(options, super_options):
    return f"40 22 9:0 / /scratch {options} shared:9 - xfs /dev/md0 {super_options}"


#: Scenario, options -> status, then (code, status, subject) of every finding.
TABLE = {
    "as it comes": ({"gpus": 0}, {}, "pass", []),
    "a path that is there": (mounted(scratch("rw", "rw")), {"paths": ["/scratch/"]}, "pass", []),
    "a path that is not": (
        mounted(),
        {"paths": ["/scratch"]},
        "fail",
        [("mount_missing", "fail", "/scratch")],
    ),
    "the root became read-only": (
        {"gpus": 0, "files": {"proc/1/mountinfo": ROOT.replace(" rw,errors", " ro,errors")}},
        {},
        "fail",
        [("mount_became_read_only", "fail", "/")],
    ),
    "scratch became read-only": (
        mounted(scratch("rw", "ro")),
        {},
        "warn",
        [("mount_became_read_only", "warn", "/scratch")],
    ),
    "scratch is read-only against fstab": (
        mounted(scratch("ro", "ro")),
        {},
        "warn",
        [("mount_read_only", "warn", "/scratch")],
    ),
    "little room": (mounted(), {"minimum_free": 100}, "warn", [("mount_full", "warn", "/")]),
    "no file systems of its own": (
        {
            "gpus": 0,
            "files": {
                "proc/1/mountinfo": "22 1 0:50 / / rw - overlay overlay rw",
                "sys/class/nvme": None,
                "sys/block": None,
            },
        },
        {},
        "skip",
        [],
    ),
    "a failing disk": (
        {"gpus": 0, "programs": {"nvme": FAILING}},
        {},
        "warn",
        [
            ("disk_warning", "warn", "nvme0"),
            ("disk_worn", "warn", "nvme0"),
            ("disk_media_errors", "warn", "nvme0"),
        ],
    ),
    "a disk that no answer": (
        {"gpus": 0, "programs": {"nvme": "exec sleep 60"}},
        {},
        "warn",
        [("disk_not_answering", "warn", "nvme0")],
    ),
    "nvme-cli does not know it": (
        {"gpus": 0, "programs": {"nvme": "echo 'NVMe status: Invalid Log Page' >&2; exit 1"}},
        {},
        "pass",
        [],
    ),
    "nvme-cli prints no JSON": (
        {"gpus": 0, "programs": {"nvme": "echo Smart Log"}},
        {},
        "pass",
        [],
    ),
    "a dead disk": (
        {"gpus": 0, "files": {"sys/class/nvme/nvme0/state": "dead"}},
        {"expected_nvme_disks": 1},
        "fail",
        [("disk_dead", "warn", "nvme0"), ("disks_missing", "fail", None)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, options, status, findings = TABLE[case]
    result = measure(node(scenario), "storage", **options).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.name) for one in result.findings],
    ) == (status, findings)


def node_with_every_part(node):
    """A node with an NVMe disk, a SATA disk and mounts of every kind."""
    sda = {
        "device/model": "ST4000NM000A",
        "device/state": "running",
        "device/ioerr_cnt": "0x1c",
        "size": "7814037168",
    }
    files = {
        **{f"sys/block/sda/{name}": text for name, text in sda.items()},
        "sys/block/loop0/size": "8",
        "sys/block/dm-0/size": "8",
    }
    lines = (
        scratch("rw,noatime", "rw,attr2"),
        "41 22 9:0 /deep /var/lib/kubelet/pods/1/volumes rw - xfs /dev/md0 rw",
        "42 22 0:60 / /home rw - nfs4 server:/home rw",
        "43 22 0:61 / /tmp rw - tmpfs tmpfs rw",
        "44 22 7:1 / /snap/core ro - squashfs /dev/loop1 ro",
    )
    return node(mounted(*lines, files=files))


def test_every_part_is_read(node, measure):
    readings = measure(node_with_every_part(node), "storage").readings
    check_mounts(readings["mounts"])
    check_disks(*readings["disks"])


def check_mounts(mounts):
    shown = {
        mount["path"]: (
            mount["source"],
            mount["options"],
            mount["super_options"],
            mount["fstab"],
            mount["system"],
        )
        for mount in mounts
    }
    # Of what is mounted twice the file system's own root, of the kernel's own and of NFS nothing,
    # and /tmp since it is needed.
    assert shown == {
        "/": (
            "/dev/nvme0n1p2",
            "rw,relatime",
            "rw,errors=remount-ro",
            "defaults,errors=remount-ro",
            True,
        ),
        "/tmp": ("tmpfs", "rw", "rw", None, True),
        "/scratch": ("/dev/md0", "rw,noatime", "rw,attr2", "defaults,noatime", False),
    }
    real = os.statvfs("/")
    assert (
        all(
            mount["bytes_total"] > 0 and mount["bytes_used"] >= 0 and mount["inodes_total"] >= 0
            for mount in mounts
        )
        and real.f_blocks
    )


def check_disks(nvme, disk):
    assert (nvme["name"], nvme["model"], nvme["serial"], nvme["state"], nvme["transport"]) == (
        "nvme0",
        "SAMSUNG MZQL23T8HCLS-00A07",
        "S64HNE0W000001",
        "live",
        "pcie",
    )
    assert nvme["nvme"] == {
        "critical_warning": 0,
        "percentage_used": 1,
        "media_errors": 0,
        "available_spare": 100,
        "spare_threshold": 10,
    }
    assert (disk["name"], disk["model"], disk["state"], disk["ioerr_count"], disk["bytes"]) == (
        "sda",
        "ST4000NM000A",
        "running",
        28,
        7814037168 * 512,
    )


def hung_mounts(outcome, mount):
    """The findings of this mount: other tests at the same time have frozen ones of their own."""
    return [
        finding
        for finding in outcome.result.findings
        if (finding.code, finding.subject.name) == ("mount_hung", str(mount))
    ]


def test_a_file_system_that_never_answers_costs_seconds_and_is_named(
    node, measure, frozen, tmp_path
):
    frozen_directory = frozen()
    outcome = measure.several(
        node({"gpus": 0}),
        ["storage"],
        options={"storage": {"paths": [str(frozen_directory.parent)]}},
        settings={"host_root": "/"},
    )[0]
    hung = hung_mounts(outcome, frozen_directory.parent)
    assert [(one.status, one.action) for one in hung] == [("fail", "fix_configuration")]
    assert "did not answer within 4.0 s" in hung[0].message
    # The others were asked at the same time and have answered.
    assert any(
        mount["path"] == "/" and mount.get("bytes_total") for mount in outcome.readings["mounts"]
    )
    pid = hung[0].evidence["abandoned_pid"]
    assert pid and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "DZ"


def test_one_that_is_not_named_is_a_warning_and_holds_up_no_other_check(node, measure, frozen):
    frozen_directory = frozen()
    outcomes = measure.several(
        node({"gpus": 0}), ["ethernet", "storage"], settings={"host_root": "/"}, timeout=3
    )
    hung = hung_mounts(outcomes[1], frozen_directory.parent)
    assert [one.status for one in hung] == ["warn"]
    assert outcomes[0].result.status in ("pass", "skip", "warn")


#: In a mount namespace of its own: a file system whose daemon has died.
DEAD = """
set -e
directory=$1 python=$2; shift 2
mkfifo "$directory/told"
"$python" "$1" "$directory/dead" > "$directory/told" 2>&1 &
daemon=$!
read -r word < "$directory/told"
[ "$word" = ready ] || { echo "$word"; exit 3; }
kill -KILL $daemon
wait $daemon || true
shift
exec "$python" "$@"
"""


def test_a_file_system_whose_daemon_died_is_broken(tmp_path):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    (tmp_path / "dead").mkdir()
    sandbox = Path(__file__).parents[1] / "sandbox"
    request = {
        "checks": [["storage", {"paths": [str(tmp_path / "dead")]}]],
        "settings": {},
        "how": {},
    }
    command = [
        "unshare",
        "--mount",
        "timeout",
        "60",
        "sh",
        "-c",
        DEAD,
        "sh",
        str(tmp_path),
        sys.executable,
        str(sandbox / "frozen.py"),
    ]
    done = subprocess.run(
        [*command, str(sandbox / "measure.py"), json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(f"needs a file system by FUSE: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads(done.stdout)[0]["result"]["findings"]
    broken = [
        (one["code"], one["status"], one["message"])
        for one in findings
        if one["subject"].get("name") == str(tmp_path / "dead")
    ]
    assert broken == [
        (
            "mount_broken",
            "fail",
            "frozen (fuse) returns an error: Transport endpoint is not connected",
        )
    ]


#: In a mount namespace of its own: a full file system, and one that is read-only while one of the
#: places where it is mounted is not.
MOUNTS = """
set -e
cd "$1"; shift
mkdir full a b view
mount -t tmpfs -o size=64k tmpfs full
head -c 100000 /dev/zero > full/file 2>/dev/null || true
mount -t tmpfs tmpfs a
mount --bind a b
mount --bind . view
mount -o remount,bind,ro view
mount -o remount,ro a
exec "$@"
"""


def test_real_file_systems(tmp_path):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    names = {name: str(tmp_path / name) for name in ("full", "b", "view")}
    program = Path(__file__).parents[1] / "sandbox" / "measure.py"
    request = {
        "checks": [["storage", {"paths": [*names.values(), str(tmp_path)]}]],
        "settings": {},
        "how": {},
    }
    command = [
        "unshare",
        "--mount",
        "timeout",
        "60",
        "sh",
        "-c",
        MOUNTS,
        "sh",
        str(tmp_path),
        sys.executable,
        str(program),
        json.dumps(request),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)[0]["result"]
    found = {
        (one["code"], one["status"], one["subject"]["name"])
        for one in result["findings"]
        if one["subject"].get("name", "").startswith(str(tmp_path))
    }
    assert found == {
        ("mount_full", "fail", names["full"]),
        ("mount_became_read_only", "fail", names["b"]),
        ("mount_read_only", "fail", names["view"]),
        ("mount_missing", "fail", str(tmp_path)),
    }
