# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The busy gate: what is seen and what it means (tables, properties), and the lock against real
processes.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import busy_gate
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import gpu_holders
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    Probe,
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import NODE, gpu_subject

MIB = 1024 * 1024
TRAINING = {"pid": 4242, "name": "python3", "how": "compute", "memory": 60 * 1024 * MIB}
DAEMON = {"pid": 900, "name": "nvidia-persiste", "how": "open", "memory": None}


def gpu(index=0, **changes):
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "processes": [],
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_used": 0,
        "mig": False,
    }
    return {**base, **changes}


def look(*gpus, **changes):
    return {"gpus": list(gpus), "mps": [], "jobs": None, **changes}


def seen(*looks, locked_by=None):
    return {"locked_by": locked_by, "looks": list(looks)}


def twice(*gpus, **changes):
    return seen(look(*gpus, **changes), look(*gpus, **changes))


#: What was seen -> (code, status, index of the GPU or None for the node, words in the message).
TABLE = {
    "idle": (twice(gpu(0), gpu(1)), []),
    "no MIG, no utilisation on this model": (
        twice(gpu(0, mig=None, utilisation=None, memory_utilisation=None, memory_used=None)),
        [],
    ),
    "services that hold GPUs open": (
        twice(
            gpu(
                0,
                processes=[
                    DAEMON,
                    {"pid": 5, "name": "nv-hostengine", "how": "open", "memory": None},
                ],
            )
        ),
        [],
    ),
    "a training job on one of two": (
        twice(gpu(0), gpu(1, processes=[TRAINING])),
        [("gpu_in_use", "skip", 1, "in use by python3 (pid 4242)")],
    ),
    "a job that ended between the looks": (
        seen(look(gpu(0, processes=[TRAINING])), look(gpu(0))),
        [("gpu_in_use", "skip", 0, "pid 4242")],
    ),
    "a job that came between the looks": (
        seen(look(gpu(0)), look(gpu(0, processes=[TRAINING]))),
        [("gpu_in_use", "skip", 0, "pid 4242")],
    ),
    "a process of another namespace": (
        twice(gpu(0, processes=[dict(TRAINING, name=None)])),
        [("gpu_in_use", "skip", 0, "a process that is not visible here (pid 4242)")],
    ),
    "held open without a context": (
        twice(gpu(0, processes=[{"pid": 7, "name": "bash", "how": "open", "memory": None}])),
        [("gpu_in_use", "skip", 0, "bash (pid 7)")],
    ),
    "an MPS client": (
        twice(gpu(0, processes=[dict(TRAINING, how="mps")])),
        [("gpu_in_use", "skip", 0, "pid 4242")],
    ),
    "an MPS server": (
        twice(gpu(0), mps=[{"pid": 77, "name": "nvidia-cuda-mps"}]),
        [("gpu_in_use", "skip", None, "MPS server is running: nvidia-cuda-mps (pid 77)")],
    ),
    "two processes": (
        twice(gpu(0, processes=[TRAINING, dict(TRAINING, pid=4243)])),
        [("gpu_in_use", "skip", 0, "and 1 more")],
    ),
    "MIG": (twice(gpu(0, mig=True, processes=[TRAINING])), [("mig_enabled", "skip", 0, "MIG")]),
    "busy without a process": (
        twice(gpu(0, utilisation=97)),
        [("gpu_in_use", "skip", 0, "busy at 97 %")],
    ),
    "memory traffic without a process": (
        twice(gpu(0, memory_utilisation=3)),
        [("gpu_in_use", "skip", 0, "busy at 3 %")],
    ),
    "utilisation left over from before": (seen(look(gpu(0, utilisation=100)), look(gpu(0))), []),
    "memory just below the limit": (twice(gpu(0, memory_used=64 * MIB - 1)), []),
    "memory without an owner": (
        twice(gpu(0, memory_used=64 * MIB)),
        [("gpu_in_use", "skip", 0, "64 MiB of its memory")],
    ),
    "memory that a display server owns": (
        twice(
            gpu(
                0,
                memory_used=200 * MIB,
                processes=[{"pid": 3, "name": "Xorg", "how": "graphics", "memory": 190 * MIB}],
            )
        ),
        [],
    ),
    "processes could not be read": (
        twice(gpu(0, processes=None)),
        [("use_unknown", "unknown", 0, "unknown whether")],
    ),
    "a GPU that no answer": (
        twice(gpu(0), {"index": 1, "uuid": "GPU-1", "pci": "x", "error": {"kind": "lost"}}),
        [("use_unknown", "unknown", 1, "unknown whether")],
    ),
    "a GPU missing from one look": (
        seen(look(gpu(0), gpu(1)), look(gpu(0))),
        [("use_unknown", "unknown", 1, "unknown whether")],
    ),
    "Slurm jobs": (
        twice(gpu(0), jobs={"ids": ["123", "124"]}),
        [("jobs_on_node", "skip", None, "Slurm runs job 123 and 1 more")],
    ),
    "no Slurm job": (twice(gpu(0), jobs={"ids": []}), []),
    "Slurm no answer": (
        twice(gpu(0), jobs={"error": "squeue did not answer"}),
        [("use_unknown", "unknown", None, "squeue did not answer")],
    ),
    "another check": (
        seen(
            look(gpu(0)),
            look(gpu(0)),
            locked_by={"pid": 99, "name": "python3", "since": 1795381200},
        ),
        [
            (
                "locked",
                "unknown",
                None,
                "another check of this collection is running: python3 (pid 99), since "
                "2026-11-22T21:00:00Z",
            )
        ],
    ),
    "another check, whose lock says nothing": (
        seen(look(gpu(0)), look(gpu(0)), locked_by={"pid": None, "name": None, "since": "now"}),
        [("locked", "unknown", None, "not visible here")],
    ),
    "no lock to be had": (
        seen(look(gpu(0)), locked_by={"error": "read-only file system"}),
        [("use_unknown", "unknown", None, "read-only file system")],
    ),
    "nothing seen": ({}, [("use_unknown", "unknown", None, "unknown whether")]),
    "no GPU seen": (twice(), [("use_unknown", "unknown", None, "none was read")]),
}


@pytest.mark.parametrize("case", TABLE)
def test_judge(case):
    readings, expected = TABLE[case]
    found = busy_gate.judge(readings)
    assert [(one.code, one.status, one.subject.index) for one in found] == [
        one[:3] for one in expected
    ]
    for one, (_code, _status, _index, words) in zip(found, expected):
        assert words in one.message


def test_free_leaves_out_only_the_gpus_spoken_against():
    gpus = [gpu(0), gpu(1)]
    assert busy_gate.free(gpus, busy_gate.judge(twice(gpu(0), gpu(1, processes=[TRAINING])))) == [
        gpus[0]
    ]
    assert busy_gate.free(gpus, []) == gpus


def test_free_is_empty_when_the_whole_node_is_spoken_against():
    assert busy_gate.free([gpu(0)], busy_gate.judge(twice(gpu(0), jobs={"ids": ["1"]}))) == []


class TestDisturbed:
    def test_nobody_came(self):
        assert (
            busy_gate.disturbed(
                twice(gpu(0)), seen(look(gpu(0, utilisation=90, memory_used=900 * MIB)))
            )
            == []
        )

    def test_who_was_there_before_has_not_come(self):
        assert (
            busy_gate.disturbed(
                twice(gpu(0, processes=[TRAINING])), seen(look(gpu(0, processes=[TRAINING])))
            )
            == []
        )

    def test_a_process_came(self):
        [finding] = busy_gate.disturbed(
            twice(gpu(0), gpu(1)), seen(look(gpu(0), gpu(1, processes=[TRAINING, DAEMON])))
        )
        assert (finding.code, finding.status, finding.subject) == (
            "disturbed",
            "unknown",
            gpu_subject(gpu(1)),
        )
        assert "python3 (pid 4242)" in finding.message

    def test_a_job_and_a_server_came(self):
        after = seen(look(gpu(0), jobs={"ids": ["8"]}, mps=[{"pid": 3, "name": "nvidia-cuda-mps"}]))
        found = busy_gate.disturbed(twice(gpu(0), jobs={"ids": ["7"]}), after)
        assert [(one.code, one.status, one.subject) for one in found] == [
            ("disturbed", "unknown", NODE)
        ] * 2
        assert "job 8" in found[0].message

    def test_no_look_before_or_after_tells_nothing(self):
        assert busy_gate.disturbed({}, seen(look(gpu(0, processes=[TRAINING])))) == []
        assert busy_gate.disturbed(twice(gpu(0)), None) == []


keys = st.sampled_from(["looks", "gpus", "processes", "pid", "jobs", "ids", "mps", "error", "mig"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(json_values, json_values)
@settings(max_examples=200)
def test_no_readings_make_the_gate_raise_or_improve(before, after):
    for finding in busy_gate.judge(before) + busy_gate.disturbed(before, after):
        assert finding.status in ("skip", "unknown")


@given(st.data())
@settings(max_examples=100)
def test_readings_with_parts_missing_never_free_a_gpu_in_use(data):
    readings = json.loads(json.dumps(twice(gpu(0), gpu(1, processes=[TRAINING]))))
    one = data.draw(st.sampled_from(readings["looks"]))["gpus"][1]
    for key in data.draw(
        st.lists(
            st.sampled_from(["processes", "utilisation", "memory_used", "mig", "name"]), unique=True
        )
    ):
        del one[key]
    assert busy_gate.free([gpu(1)], busy_gate.judge(readings)) == []


# --- the lock ---

HOLDER = """
import sys, time
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import busy_gate as gate
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
with gate.lock(Host(sys.argv[1])) as locked_by:
    print("held" if locked_by is None else locked_by, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def host(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "proc").mkdir()
    return Host(str(tmp_path))


@pytest.fixture
def holder(host):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, host.root], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: other users lock in a directory of their own"
)


@root_only
def test_the_lock_is_had_once_and_names_its_holder(host, holder):
    assert holder.stdout.readline() == "held\n"
    process = Path(host.root, "proc", str(holder.pid))
    process.mkdir()
    (process / "comm").write_text("python3\n")
    began = time.time()
    with busy_gate.lock(host, wait=0) as locked_by:
        assert (locked_by["pid"], locked_by["name"]) == (
            holder.pid,
            "python3",
        ) and began - 60 < locked_by["since"] <= time.time()


@root_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_goes_with_its_holder_however_that_ends(host, holder, number):
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(number)
    holder.wait()
    with busy_gate.lock(host) as locked_by:
        assert locked_by is None


@root_only
def test_the_lock_is_released_when_its_body_raises(host):
    with pytest.raises(RuntimeError), busy_gate.lock(host) as locked_by:
        assert locked_by is None
        raise RuntimeError()
    with busy_gate.lock(host) as locked_by:
        assert locked_by is None


@root_only
def test_a_process_left_behind_does_not_keep_the_lock(host):
    with busy_gate.lock(host):
        child = subprocess.Popen(["sleep", "30"])
    try:
        with busy_gate.lock(host) as locked_by:
            assert locked_by is None
    finally:
        child.kill()
        child.wait()


@root_only
def test_the_lock_is_waited_for(host, holder):
    """The holder ends while the lock is waited for."""
    assert holder.stdout.readline() == "held\n"
    later = threading.Timer(0.3, holder.kill)
    later.start()
    with busy_gate.lock(host, wait=30) as locked_by:
        assert locked_by is None
    later.join()


@root_only
def test_a_link_in_place_of_the_lock_is_not_followed(host, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run/autopilot-gpu").mkdir(mode=0o700)
    (tmp_path / "run/autopilot-gpu" / busy_gate.LOCK_NAME).symlink_to(victim)
    with busy_gate.lock(host) as locked_by:
        assert "error" in locked_by and victim.read_text() == "precious"


@root_only
def test_the_lock_lies_where_no_other_user_can_take_it(host):
    with busy_gate.lock(host) as locked_by:
        assert locked_by is None
    directory = Path(host.root, "run/autopilot-gpu")
    assert (stat.S_IMODE(directory.stat().st_mode), directory.stat().st_uid) == (0o700, 0)
    tried = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; os.setgid(65534); os.setuid(65534); os.open(sys.argv[1], os.O_RDWR)",
            directory / busy_gate.LOCK_NAME,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PermissionError" in tried.stderr


#: What is wrong with the directory -> what is said.
WRONG = {
    "of another user": (
        lambda path: os.chown(path, 65534, 65534),
        "has owner 65534 and mode 0700; expected owner 0 and mode 0700",
    ),
    "open to others": (
        lambda path: os.chmod(path, 0o755),
        "has owner 0 and mode 0755; expected owner 0 and mode 0700",
    ),
    "a link": (lambda path: (path.rmdir(), path.symlink_to("/tmp")), "Not a directory"),
}


@root_only
@pytest.mark.parametrize("wrong", WRONG)
def test_a_directory_that_is_not_roots_own_is_refused(host, wrong):
    change, said = WRONG[wrong]
    path = Path(host.root, "run/autopilot-gpu")
    path.mkdir(mode=0o700)
    change(path)
    with busy_gate.lock(host) as locked_by:
        assert said in locked_by["error"]
    [finding] = busy_gate.judge({"locked_by": locked_by, "looks": [look(gpu(0))]})
    assert (finding.code, finding.status, finding.action) == (
        "use_unknown",
        "unknown",
        "fix_configuration",
    )


# --- processes ---


def test_holders_are_found_by_what_they_have_open(tmp_path):
    several = (
        (10, "python3", "/dev/nvidia3"),
        (11, "sshd", "/dev/null"),
        (12, "tool", "/dev/nvidiactl"),
        (13, "nvidia-cuda-mps", "/dev/nvidia0"),
    )
    for pid, name, target in several:
        home = tmp_path / "proc" / str(pid)
        (home / "fd").mkdir(parents=True)
        (home / "fd/5").symlink_to(target)
        (home / "comm").write_text(name + "\n")
        (home / "cmdline").write_text(
            "/usr/bin/nvidia-cuda-mps-server\0-x\0" if pid == 13 else name + "\0"
        )
    holders, mps = gpu_holders.scan(Host(str(tmp_path)), set())
    assert holders == {
        3: [{"pid": 10, "name": "python3"}],
        0: [{"pid": 13, "name": "nvidia-cuda-mps"}],
    }
    assert mps == [{"pid": 13, "name": "nvidia-cuda-mps", "server": True}]


def test_this_process_and_its_children_are_ours():
    child = subprocess.Popen(["sleep", "30"])
    try:
        ours = gpu_holders.ours(Host("/"))
    finally:
        child.kill()
        child.wait()
    assert {os.getpid(), child.pid} <= ours
    assert os.getppid() not in ours


def test_looking_at_locks_needs_no_lock_file_left_open(host):
    before = len(os.listdir("/proc/self/fd"))
    with busy_gate.lock(host):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


# --- Slurm ---

#: What squeue does -> what is read.
SLURM = {
    "jobs on the node": ("echo 1235; echo 1234", {"ids": ["1234", "1235"]}),
    "our own job only": ("echo $SLURM_JOB_ID", {"ids": []}),
    "asked for this node": ('case "$*" in *--nodelist=gpu07*) echo 9;; esac', {"ids": ["9"]}),
    "a node that Slurm does not know": (
        "echo 'slurm_load_jobs error: Invalid node name specified' >&2; exit 1",
        None,
    ),
    "a controller that no answer": (
        "echo 'Unable to contact controller' >&2; exit 1",
        {"error": "squeue failed: Unable to contact controller"},
    ),
}


@pytest.mark.parametrize("case", SLURM)
def test_slurm_is_asked_for_jobs(case, tmp_path, monkeypatch):
    script, expected = SLURM[case]
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu07")
    assert busy_gate._jobs(Probe(HostSettings())) == expected


def test_a_slurm_that_hangs_leaves_open_whether_there_are_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(busy_gate, "_SQUEUE_SECONDS", 0.3)
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 30\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    jobs = busy_gate._jobs(Probe(HostSettings()))
    assert jobs == {"error": "squeue did not answer within 0 s"}
    assert "use_unknown" in [
        finding.code
        for finding in busy_gate.judge(
            {"locked_by": None, "looks": [{"gpus": [], "mps": [], "jobs": jobs}]}
        )
    ]


def test_without_slurm_there_are_no_jobs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert busy_gate._jobs(Probe(HostSettings())) is None
