# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_processes, what is read of a process, and properties over any readings."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.devices import gpu_holders
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_processes import (
    CHECK,
    measure,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import sampler
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GIB = 2**30


def process(state="S", pid=77, name="python3", kind="compute", memory=4 * GIB, **more):
    return {
        "pid": pid,
        "name": name,
        "state": state,
        "kind": kind,
        "memory": memory,
        "started": 42.0,
        "cgroup": "/",
        "killed": False,
        "waits_in": None,
        **more,
    }


GONE = process(None, name=None, started=None, cgroup=None, killed=None)
SERVICE = process(name="nv-hostengine", pid=5, memory=GIB)


def look(*several, used=None):
    used = sum(one["memory"] or 0 for one in several) if used is None else used
    return {
        "processes": list(several),
        "holders": [],
        "memory": {"used": used, "reserved": GIB, "total": 80 * GIB},
    }


def gpu(first=None, later=None, index=3, name="NVIDIA H100 80GB HBM3", **more):
    read = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": name,
        **(first or look()),
        **more,
    }
    return read if later is None else {**read, "later": later}


def both(one, **more):
    return gpu(look(one), look(one), **more)


HELD = ("gpu_held", "pass", "none")
LEAK = ("memory_without_process", "warn", "reset_gpu")

#: What is read of GPU 3, and the scope -> (code, status, action) of every finding.
TABLE = {
    "idle": (gpu(), []),
    "in use": (gpu(look(process())), [HELD]),
    "services do not count": (gpu(look(SERVICE)), []),
    "open without a context": (gpu(look(process(kind="open", memory=None))), [HELD]),
    # stuck
    "waits twice": (
        both(process("D", waits_in="nfs_wait")),
        [("process_waits", "pass", "none"), HELD],
    ),
    "waits once": (gpu(look(process("D")), look(process("R"))), [HELD]),
    "killed and waits": (
        both(process("D", killed=True)),
        [("unkillable_process", "fail", "reboot_node"), HELD],
    ),
    "killed within the look": (
        gpu(look(process("D")), look(process("D", killed=True))),
        [("process_waits", "pass", "none"), HELD],
    ),
    "killed and waits, seen once": (gpu(look(process("D", killed=True))), [HELD]),
    "killed and its signals not told": (
        both(process("D", killed=None)),
        [("process_waits", "pass", "none"), HELD],
    ),
    "killed and runs": (both(process("R", killed=True)), [HELD]),
    "a zombie": (both(process("Z")), [("zombie_process", "warn", "watch"), HELD]),
    "a zombie that goes": (gpu(look(process("Z")), look()), [HELD]),
    "another process with its number": (
        gpu(look(process("Z")), look(process("Z", started=50.0))),
        [HELD],
    ),
    "a service is stuck": (
        both(process("D", killed=True, name="nv-hostengine")),
        [("unkillable_process", "fail", "reboot_node")],
    ),
    # contexts and memory of nobody
    "a context without a process": (both(GONE), [("stale_context", "warn", "reset_gpu"), HELD]),
    "a process that ended between the two lists": (gpu(look(GONE), look()), [HELD]),
    "memory without a process": (gpu(look(used=20 * GIB), look(used=20 * GIB)), [LEAK]),
    "memory that goes": (gpu(look(used=20 * GIB), look()), []),
    "memory seen once": (gpu(look(used=20 * GIB)), []),
    "a little memory": (
        gpu(look(used=gpu_holders.IDLE_MEMORY), look(used=gpu_holders.IDLE_MEMORY)),
        [],
    ),
    "memory beside a service": (
        gpu(look(SERVICE, used=20 * GIB), look(SERVICE, used=20 * GIB)),
        [LEAK],
    ),
    "memory of a service": (gpu(look(SERVICE, used=GIB + 5), look(SERVICE, used=GIB + 5)), []),
    "memory beside a process": (
        gpu(look(process(), used=20 * GIB), look(process(), used=20 * GIB)),
        [HELD],
    ),
    "memory that the system uses": (
        gpu(look(used=20 * GIB), look(used=20 * GIB), name="NVIDIA GH200 480GB"),
        [],
    ),
    "memory of a B200": (gpu(look(used=20 * GIB), look(used=20 * GIB), name="NVIDIA B200"), [LEAK]),
    # what is not told
    "processes not listed": (
        gpu({**look(used=20 * GIB), "processes": None}),
        [("processes_not_listed", "pass", "none")],
    ),
    "memory not told": (gpu({**look(process()), "memory": None}), [HELD]),
    "lost": (
        gpu(error={"kind": "lost", "call": "x", "code": 15}),
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "not read": (
        {key: value for key, value in gpu().items() if key != "processes"},
        [("not_read", "unknown", "watch")],
    ),
    "no number of a process": (
        gpu({**look(), "processes": [{"pid": False}]}),
        [("gpu_held", "pass", "none"), ("not_read", "unknown", "watch")],
    ),
    "not understood": (gpu({**look(), "processes": [7]}), [("not_read", "unknown", "watch")]),
}


def result_of(read, scope="host", **options):
    return judge(
        {"gpus": [gpu(index=0), gpu(index=1), read], "mps": [], "processes_scope": scope}, options
    )


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_verdict(case):
    read, findings = TABLE[case]
    result = result_of(read)
    assert [(one.code, one.status, one.action) for one in result.findings] == findings
    assert all(one.subject.index == 3 or one.evidence == {"gpus": [3]} for one in result.findings)


@pytest.mark.parametrize("case", TABLE)
def test_in_a_container_nothing_is_said_of_whom_it_cannot_see(case):
    read, findings = TABLE[case]
    seen = [one.code for one in result_of(read, scope="namespace").findings]
    assert seen == [
        one.code
        for one in result_of(read).findings
        if one.code not in ("stale_context", "memory_without_process")
    ]


def test_what_is_to_be_idle_and_is_not_is_a_warning():
    assert (
        result_of(gpu(), expect_idle=True).status == "pass"
        and result_of(gpu(look(SERVICE)), expect_idle=True).status == "pass"
    )
    result = result_of(gpu(look(process(), process(pid=78))), expect_idle=True)
    assert (result.status, result.summary) == (
        "warn",
        "GPU 3 (03:00.0): in use by python3 (pid 77, 4.0 GiB) and 1 more",
    )
    assert (
        "a process that is not visible here (pid 77, 4.0 GiB)"
        in result_of(both(GONE), scope="namespace", expect_idle=True).summary
    )


def test_an_mps_server_without_clients_is_told():
    server, daemon = (
        {"pid": 90, "name": "nvidia-cuda-mps", "server": True},
        {"pid": 89, "name": "nvidia-cuda-mps", "server": False},
    )

    def statuses(mps, *several, **options):
        found = judge(
            {"gpus": [gpu(look(*several))], "mps": mps, "processes_scope": "host"}, options
        ).findings
        return [one.status for one in found if one.code == "mps_without_clients"]

    assert statuses([server, daemon]) == ["pass"] and statuses([server], expect_idle=True) == [
        "warn"
    ]
    assert (
        statuses([daemon], expect_idle=True) == []
        and statuses([server], process(kind="mps"), expect_idle=True) == []
    )


def test_the_summary_and_the_numbers():
    assert (
        result_of(gpu()).summary == "3 GPUs, none in use"
        and result_of(gpu(look(process()))).summary == "1 of 3 GPUs in use by running processes"
    )
    assert [
        (one.value, one.labels) for one in judge({"gpus": [gpu(look(process()))]}, {}).measurements
    ] == [(4 * GIB, {"gpu": "3"})]


# ---- how long is looked ----


class Driver:
    """One GPU, which lists process 9."""

    driver_version, binding = "580.95.05", None
    gpus = [
        {"index": 3, "uuid": "GPU-3", "pci": "00000000:03:00.0", "name": "NVIDIA H100 80GB HBM3"}
    ]

    def optional(self, gpu, function, *arguments):
        return (
            [SimpleNamespace(pid=9, usedGpuMemory=GIB)]
            if function == "nvmlDeviceGetComputeRunningProcesses_v3"
            else None
        )


def test_a_killed_process_has_time_to_end(tmp_path, monkeypatch):
    """One of a job of many GPUs waits for its turn in the kernel when it is taken down, and ends
    after some looks.
    """
    states = ["D", "D", "D", "R"]
    for pid, text in (("2", "2 (kthreadd) S 0"), ("9", "")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "stat").write_text(text)
    (tmp_path / "proc/2/comm").write_text("kthreadd")
    (tmp_path / "proc/9/status").write_text(
        "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"
    )

    def goes_on(_seconds=0.0):
        (tmp_path / "proc/9/stat").write_text(
            f"9 (python3) {states.pop(0)} 1" + " 0" * 17 + " 100 0"
        )

    goes_on()
    monkeypatch.setattr("time.sleep", goes_on)
    driver = Driver()
    probe = SimpleNamespace(
        host=Host(str(tmp_path)),
        nvml=lambda: driver,
        keep=lambda readings: None,
        stage=lambda words: None,
    )
    result = judge(measure(probe), {})
    assert (result.status, states) == ("pass", [])


# ---- what is read of a process ----


def test_a_process_of_this_machine():
    child = subprocess.Popen(["sleep", "30"])
    try:
        read = gpu_holders.described(Host(), child.pid)
    finally:
        child.kill()
        child.wait()
    assert (read["name"], read["killed"]) == ("sleep", False) and read["state"] in "SRD"
    assert 0 < read["started"] <= Host().uptime() + 1
    assert gpu_holders.described(Host(), child.pid) == dict.fromkeys(read)


def test_a_zombie_of_this_machine():
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert gpu_holders.described(Host(), child)["state"] == "Z"
    finally:
        os.waitpid(child, 0)


#: proc/9/stat, proc/9/status -> name, state, started, killed.
STATS = {
    "a name with parentheses": (
        "9 (a) (b) c) S 1" + " 0" * 17 + " 200 0",
        "",
        ("a) (b) c", "S", 2.0, None),
    ),
    "killed by its thread group": (
        "9 (a) D 1" + " 0" * 17 + " 100 0",
        "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n",
        ("a", "D", 1.0, True),
    ),
    "other signals": (
        "9 (a) D 1" + " 0" * 17 + " 100 0",
        "SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n",
        ("a", "D", 1.0, False),
    ),
    "cut short": ("9 (a) R", "SigPnd: zz\n", ("a", "R", None, None)),
    "empty": ("", "", (None, None, None, None)),
    "no state": ("9 (a)", "", (None, None, None, None)),
}


@pytest.mark.parametrize("case", STATS)
def test_what_is_read_of_a_process(case, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    stat, status, expected = STATS[case]
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/stat").write_text(stat)
    (tmp_path / "proc/9/status").write_text(status)
    read = gpu_holders.described(Host(str(tmp_path)), 9)
    assert tuple(read[key] for key in ("name", "state", "started", "killed")) == expected


@pytest.mark.parametrize(
    "name, scope", [("kthreadd", "host"), ("nginx", "namespace"), (None, "namespace")]
)
def test_the_host_s_processes_are_told_from_a_container_s(name, scope, tmp_path):
    (tmp_path / "proc/2").mkdir(parents=True)
    if name:
        (tmp_path / "proc/2/comm").write_text(name)
    assert gpu_holders.scope(Host(str(tmp_path))) == scope


# ---- any readings ----

NAMES = (
    "gpus",
    "processes",
    "memory",
    "later",
    "mps",
    "processes_scope",
    "pid",
    "name",
    "state",
    "server",
    "error",
    "holders",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["gpus", "mps", "processes_scope"]), JSON, max_size=3))
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["later", "holders", "name"]), JSON, JSON)
def test_a_part_that_is_not_understood_makes_it_neither_raise_nor_fail(key, value, mps):
    assert judge(
        {
            "gpus": [gpu(look(process("D", killed=True)), **{key: value})],
            "mps": mps,
            "processes_scope": "host",
        },
        {},
    ).status in ("pass", "warn", "fail")


def is_process_list(value):
    """Whether a value has a process that can be read."""
    return isinstance(value, list) and any(
        isinstance(process, dict) and "pid" in process for process in value
    )


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["processes", "memory"]),
    JSON.filter(lambda value: value not in (None, []) and not is_process_list(value)),
)
def test_what_is_not_understood_is_unknown(key, value):
    assert (
        judge({"gpus": [{**gpu(), key: value}], "processes_scope": "host"}, {}).status == "unknown"
    )


def test_no_gpu_and_no_readings_are_unknown():
    assert [
        judge(readings, {}).status
        for readings in (
            {},
            {"gpus": []},
            {"gpus": None},
            {"gpus": [None]},
            {"gpus": [{}]},
            [],
            None,
        )
    ] == ["unknown"] * 7


def test_the_sampler_of_a_capture_does_not_use_the_gpu():
    assert not gpu_holders.foreign({"name": sampler.NAME})
