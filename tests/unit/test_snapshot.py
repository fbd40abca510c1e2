# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots on disk: what is kept, where, how many, and what is read back of files that are damaged
or of somebody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import subprocess
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import around_pass
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (
    Outcome,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots

FACTS = {
    "gpus": [{"index": 0, "uuid": "GPU-a", "pci": "00000000:18:00.0", "name": "H100"}],
    "driver_version": "580.95.05",
}
ROWS = {
    "gpus": [
        {"index": 0, "uuid": "GPU-a", "rows": {"uncorrectable": 2}, "recovery": {"action": 0}}
    ],
    "driver_version": "580.95.05",
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with the files that a header is made of; the home directory is there too."""
    root = tmp_path / "root"
    modules = "nvidia 1 2 - Live 0xffffffffc0a00000 (POE)\n"
    for name, text in (
        ("proc/sys/kernel/random/boot_id", "boot-1\n"),
        ("proc/uptime", "812.5 9000.1\n"),
        ("proc/modules", modules),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return Host(str(root))


def taken(host, run="job42", now=1795309200.0):
    return store.of(
        store.header(run, host, now),
        FACTS,
        {
            "remapped_rows": ROWS,
            "dcgm_diag": {"document": "x" * 9999},
            "ecc_errors": {"absent": {}},
        },
    )


def directory(host):
    return host.path("var/lib/autopilot-gpu/snapshots")


def test_what_a_snapshot_has(host):
    made = taken(host)
    assert made == {
        "schema": "autopilot.gpu/snapshot",
        "schema_version": 1,
        "run": "job42",
        "taken": "2026-11-22T01:00:00Z",
        "uptime_seconds": 812.5,
        "boot_id": "boot-1",
        "driver_loaded": made["driver_loaded"],
        "scope": "container , GPUs None",
        "driver_version": "580.95.05",
        "gpus": FACTS["gpus"],
        "readings": {
            "remapped_rows": {"gpus": [{"index": 0, "uuid": "GPU-a", "rows": {"uncorrectable": 2}}]}
        },
    }
    assert len(made["driver_loaded"]) == 16 and "c0a0" not in made["driver_loaded"]


@pytest.mark.parametrize(
    "modules",
    [
        "nvidia 1 2 - Live 0x0000000000000000 (POE)\n",
        "nvidia_uvm 1 2 - Live 0xffffffffc0a00000\n",
        "nvidia\n",
        "",
    ],
)
def test_a_loading_of_the_driver_that_cannot_be_told(host, modules):
    with open(host.path("proc/modules"), "w", encoding="utf-8") as handle:
        handle.write(modules)
    assert store.header("job42", host)["driver_loaded"] is None


def test_the_scope_tells_hosts_and_containers_apart(host, monkeypatch):
    """Which processes and which GPUs can be seen."""

    def scope():
        return store.header("job42", host)["scope"]

    for namespace in ("pid:[4026531836]", "pid:[4026532201]"):
        own = Path(host.path("proc/self/ns/pid"))
        own.parent.mkdir(parents=True, exist_ok=True)
        if own.is_symlink():
            own.unlink()
        own.symlink_to(namespace)
        assert scope() == f"container {namespace}, GPUs None"
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-a")
    assert scope() == "container pid:[4026532201], GPUs GPU-a"
    kernel = Path(host.path("proc/2/comm"))
    kernel.parent.mkdir()
    kernel.write_text("kthreadd\n")
    assert scope() == "host, GPUs GPU-a"
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    assert scope() == "host"


def test_another_loading_has_another_word(host):
    words = set()
    for address in ("0xffffffffc0a00000", "0xffffffffc0b00000"):
        with open(host.path("proc/modules"), "w", encoding="utf-8") as handle:
            handle.write(f"nvidia 1 2 - Live {address} (POE)\n")
        words.add(store.header("job42", host)["driver_loaded"])
    assert len(words) == 2


def test_zeros_and_what_is_not_compared_are_left_out():
    links = [{"link": 0, "active": True, "version": 6, "errors": {"replay": 0, "recovery": 2}}]
    assert store.comparable("nvlink", {"gpus": [{"index": 0, "links": links}]}) == {
        "gpus": [{"index": 0, "links": [{"link": 0, "active": True, "errors": {"recovery": 2}}]}]
    }
    for garbage in (None, [], "x", {}, {"gpus": 3}, {"gpus": [3]}, {"gpus": [{"links": [3]}]}):
        store.comparable("nvlink", garbage)


root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: others keep snapshots in their home"
)


@root_only
def test_kept_and_read_back(host):
    made = taken(host)
    kept = store.keep(made, host)
    assert kept == {"path": os.path.join(directory(host), "job42.json")}
    assert (
        stat.S_IMODE(os.stat(kept["path"]).st_mode) == 0o600
        and stat.S_IMODE(os.stat(directory(host)).st_mode) == 0o700
    )
    assert os.listdir(directory(host)) == ["job42.json"]
    assert store.read_back("job42", host) == {"snapshot": made, "path": kept["path"]}
    assert store.read_back("job43", host) == {"error": "no snapshot"}
    store.keep(dict(made, taken="2026-11-22T02:00:00Z"), host)
    assert store.read_back("job42", host)["snapshot"]["taken"] == "2026-11-22T02:00:00Z"


@root_only
def test_only_the_newest_stay(host):
    for number in range(25):
        path = store.keep(taken(host, f"job{number}"), host)["path"]
        os.utime(path, (1000 + number, 1000 + number))
    abandoned, fresh, other = (
        os.path.join(directory(host), name)
        for name in (".job1.json.x.part", ".job2.json.y.part", "notes.txt")
    )
    for path in (abandoned, fresh, other):
        with open(path, "w", encoding="utf-8") as handle:
            handle.write("{")
    os.utime(abandoned, (1000, 1000))
    store.keep(taken(host, "last"), host)
    assert sorted(os.listdir(directory(host))) == sorted(
        [f"job{number}.json" for number in range(6, 25)]
        + ["last.json", ".job2.json.y.part", "notes.txt"]
    )


def test_a_user_keeps_them_at_home_by_the_name_of_the_node(host, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path = store.keep(taken(host), host)["path"]
    assert path == str(
        tmp_path / f"home/.local/state/autopilot-gpu/snapshots/{os.uname().nodename}~job42.json"
    )
    assert store.read_back("job42", host)["path"] == path
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert store.keep(taken(host), host)["path"].startswith(
        str(tmp_path / "state/autopilot-gpu/snapshots/")
    )


@root_only
@pytest.mark.parametrize(
    "text, said",
    [
        ("", "not JSON: damaged or truncated"),
        ('{"schema": "autopilot.gpu/snap', "not JSON"),
        ("[]", " is missing"),
        ("{}", " is missing"),
        ("NaN", " is missing"),
        ('{"schema": "autopilot.gpu/run"}', " is missing"),
        ("[" * 100000, "not JSON"),
        (
            '{"schema": "autopilot.gpu/snapshot", "schema_version": 2}',
            "schema_version 2 is unsupported; this version",
        ),
        (
            '{"schema": "autopilot.gpu/snapshot", "schema_version": 1, "run": "job41"}',
            "of run 'job41', expected 'job42'",
        ),
        (
            '{"schema": "autopilot.gpu/snapshot", "schema_version": 1, "run": "job42", '
            '"readings": []}',
            "no readings",
        ),
        (" " * (5 << 20), "longer than 4 MiB"),
        ("\udc80", "not JSON"),
    ],
)
def test_damaged_and_foreign_files_are_said(host, text, said):
    os.makedirs(directory(host))
    with open(
        os.path.join(directory(host), "job42.json"), "w", encoding="utf-8", errors="surrogateescape"
    ) as handle:
        handle.write(text)
    found = store.read_back("job42", host)
    assert "snapshot" not in found and said in found["error"], found


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../job42",
        "a/b",
        ".hidden",
        "-x",
        "job 42",
        "job42\n",
        "jöb",
        "a" * 101,
        None,
        42,
        ["a"],
    ],
)
def test_names_of_runs_that_are_refused(name):
    with pytest.raises(
        ValueError,
        match="run: .* is invalid; expected at most 100 letters, digits, '.', '_' and '-', "
        "with a letter or digit first",
    ):
        store.validate_run_name(name)


@pytest.mark.parametrize("name", ["job42", "4", "a.b_c-d", "a" * 100, "2026-11-22T01.00"])
def test_names_of_runs(name):
    assert store.validate_run_name(name) == name


def test_the_controllers_path_stays_where_it_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    long = [
        controller_snapshots.controller_path("/srv", "job42", "g" * 249 + last) for last in "12"
    ]
    assert long[0] != long[1] and all(len(os.path.basename(path)) < 224 for path in long)
    assert controller_snapshots.controller_path("reports", "job42", "gpu07.example.org") == str(
        tmp_path / "reports/job42/snapshots/gpu07.example.org.json"
    )
    assert (
        controller_snapshots.controller_path("/srv", "job42", "../../etc/passwd")
        == "/srv/job42/snapshots/..%2F..%2Fetc%2Fpasswd.json"
    )
    assert (
        controller_snapshots.controller_path("/srv", "job42", "[fe80::1]")
        == "/srv/job42/snapshots/%5Bfe80%3A%3A1%5D.json"
    )


# ---- disks that do not take it ----


def outcome():
    return [Outcome(CheckResult("remapped_rows", "pass", ""), ROWS, {})]


@contextlib.contextmanager
def mounted(kind, options, path):
    """A mount of this process's own namespace, which no other process sees."""
    os.makedirs(path)
    libc = ctypes.CDLL(None, use_errno=True)
    done = subprocess.run(
        ["mount", "-t", kind, "-o", options, kind, path],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"needs to mount a {kind}: {done.stderr.strip()}")
    try:
        yield
    finally:
        libc.umount2(path.encode(), 2)


@root_only
def test_a_full_disk_costs_nothing_else(host):
    with mounted("tmpfs", "size=16k", host.path("var/lib/autopilot-gpu")):
        with open(host.path("var/lib/autopilot-gpu/full"), "wb") as handle, contextlib.suppress(
            OSError
        ):
            handle.write(b"x" * (64 << 10))
        kept = around_pass.kept("job42", outcome(), HostSettings(host_root=host.root))
        left = [
            name
            for _place, _directories, names in os.walk(host.path("var/lib/autopilot-gpu"))
            for name in names
        ]
    assert (kept.result.status, [finding.code for finding in kept.result.findings]) == (
        "warn",
        ["snapshot_not_kept"],
    )
    assert (
        "No space left on device" in kept.result.summary
        and "only the controller has a copy" in kept.result.summary
    )
    assert left == ["full"]
    # What the controller makes its copy of is there all the same.
    copy = controller_snapshots.controller_copy(
        {"node_changes": {"readings": kept.readings}, "remapped_rows": {"readings": ROWS}}, FACTS
    )
    assert copy["run"] == "job42" and copy["readings"]["remapped_rows"]["gpus"][0]["rows"] == {
        "uncorrectable": 2
    }


@root_only
@pytest.mark.parametrize(
    "place, said", [("var", "Not a directory"), ("var/lib/autopilot-gpu/snapshots", "File exists")]
)
def test_a_place_that_cannot_be_written(host, place, said):
    os.makedirs(os.path.dirname(host.path(place)), exist_ok=True)
    with open(host.path(place), "w", encoding="utf-8") as handle:
        handle.write("a file")
    kept = around_pass.kept("job42", outcome(), HostSettings(host_root=host.root))
    assert [finding.code for finding in kept.result.findings] == [
        "snapshot_not_kept"
    ] and said in kept.result.summary


@root_only
def test_a_disk_that_hangs_is_given_up(host, monkeypatch):
    """A named pipe in the place of the snapshot: who opens it waits for somebody to write."""
    monkeypatch.setattr(store, "_DISK_SECONDS", 0.3)
    os.makedirs(directory(host))
    os.mkfifo(os.path.join(directory(host), "job42.json"))
    found = store.read_back("job42", host)
    assert found == {"error": f"{directory(host)}/job42.json did not answer within 0.3 s"}
