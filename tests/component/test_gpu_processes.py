# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_processes on nodes of stand-in hardware whose GPUs somebody holds."""

from __future__ import annotations

import pytest

GIB = 2**30
MEMORY, COMPUTE = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"
KILLED, ALIVE = (
    "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n",
    "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n",
)
#: A node in whose container the host's processes are not to be seen.
CONTAINER = {"proc/2": None}


def stat(pid, name, state, started=4200):
    return f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194304" + " 0" * 12 + f" {started} 0 0 0"


def held(*rules, state="S", status=ALIVE, files=None, **more):
    """A node of two GPUs, the second held by python3 in this state."""
    files = {
        "proc/77/stat": stat(77, "python3", state),
        "proc/77/status": status,
        "proc/77/wchan": "os_acquire_mutex",
        **(files or {}),
    }
    return dict(
        gpus=2,
        processes=[{"gpu": 1, "pid": 77, "name": "python3", "memory": 4 * GIB}],
        rules=list(rules),
        files=files,
        **more,
    )


def idle(*rules, files=None, **more):
    return dict(gpus=2, rules=list(rules), files=files or {}, **more)


def on(call, *values, **outcome):
    return dict(gpu=1, call=call, **(outcome or {"values": list(values)}))


STALE = on(COMPUTE, 4711, 8 * GIB)
LEAKED = on(MEMORY, 80 * GIB, GIB, 20 * GIB)

#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "no_gpu": ("no_gpu", "skip", []),
    "gpu_busy": ("gpu_busy", "pass", [("gpu_held", "pass", 2, "none")]),
    "gpu_lost": ("gpu_lost", "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "a job": (held(), "pass", [("gpu_held", "pass", 1, "none")]),
    "a job that reads from storage": (
        held(state="D"),
        "pass",
        [("process_waits", "pass", 1, "none"), ("gpu_held", "pass", 1, "none")],
    ),
    "killed and stuck": (
        held(state="D", status=KILLED),
        "fail",
        [("unkillable_process", "fail", 1, "reboot_node"), ("gpu_held", "pass", 1, "none")],
    ),
    "killed and running": (
        held(state="R", status=KILLED),
        "pass",
        [("gpu_held", "pass", 1, "none")],
    ),
    "a zombie": (
        held(state="Z"),
        "warn",
        [("zombie_process", "warn", 1, "watch"), ("gpu_held", "pass", 1, "none")],
    ),
    "a zombie that goes": (
        # The binding asks for the number of processes first, and then for them.
        held(
            on(COMPUTE),
            on(COMPUTE, values=[77, 4 * GIB], times=2),
            on(MEMORY, 80 * GIB, GIB, 0),
            state="Z",
            files={"proc/77/fd": None},
        ),
        "pass",
        [("gpu_held", "pass", 1, "none")],
    ),
    "a context without a process": (
        idle(STALE),
        "warn",
        [("stale_context", "warn", 1, "reset_gpu"), ("gpu_held", "pass", 1, "none")],
    ),
    "a process of another container": (
        idle(STALE, files=CONTAINER),
        "pass",
        [("gpu_held", "pass", 1, "none")],
    ),
    "memory without a process": (
        idle(LEAKED),
        "warn",
        [("memory_without_process", "warn", 1, "reset_gpu")],
    ),
    "memory without a process, in a container": (idle(LEAKED, files=CONTAINER), "pass", []),
    "memory that goes": (
        idle(on(MEMORY, 80 * GIB, GIB, 0), on(MEMORY, values=[80 * GIB, GIB, 20 * GIB], times=1)),
        "pass",
        [],
    ),
    "memory of a Grace Hopper": (idle(LEAKED, model="GH200"), "pass", []),
    "somebody has the device open": (
        idle(
            files={
                "proc/88/comm": "tool",
                "proc/88/stat": stat(88, "tool", "S"),
                "proc/88/fd/3": {"link": "/dev/nvidia1"},
            }
        ),
        "pass",
        [("gpu_held", "pass", 1, "none")],
    ),
    "MPS without clients": (
        idle(
            files={"proc/90/comm": "nvidia-cuda-mps", "proc/90/cmdline": "nvidia-cuda-mps-server\0"}
        ),
        "pass",
        [("mps_without_clients", "pass", None, "none")],
    ),
    "processes not listed": (
        idle(on(COMPUTE, returns=3)),
        "pass",
        [("processes_not_listed", "pass", None, "none")],
    ),
    "processes without permission": (
        idle(on(COMPUTE, returns=4)),
        "unknown",
        [("no_permission", "unknown", 1, "fix_configuration")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "gpu_processes").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_what_is_read(node, measure):
    group = "/system.slice/slurmstepd.scope/job_12/step_0"
    readings = measure(
        node(held(files={"proc/77/cgroup": f"0::{group}"})), "gpu_processes"
    ).readings
    assert (readings["processes_scope"], readings["mps"]) == ("host", [])
    free, used = (
        {key: gpu[key] for key in ("processes", "holders", "memory")} for gpu in readings["gpus"]
    )
    assert free == {
        "processes": [],
        "holders": [],
        "memory": {"used": 0, "reserved": 550 * 2**20, "total": 81559 * 2**20},
    }
    assert used["memory"]["used"] == 4 * GIB and used["holders"] == [77]
    assert used["processes"] == [
        {
            "pid": 77,
            "name": "python3",
            "state": "S",
            "kind": "compute",
            "memory": 4 * GIB,
            "started": 42.0,
            "cgroup": group,
            "killed": False,
            "waits_in": None,
        }
    ]


def test_what_is_to_be_idle_and_is_not_is_a_warning(node, measure):
    assert measure(node(idle()), "gpu_processes", expect_idle=True).result.status == "pass"
    (finding,) = measure(node(held()), "gpu_processes", expect_idle=True).result.findings
    assert (finding.code, finding.status, finding.message) == (
        "gpu_held",
        "warn",
        "in use by python3 (pid 77, 4.0 GiB)",
    )


def test_only_what_is_doubtful_is_looked_at_again(node, measure):
    outcome = measure(node(idle(LEAKED)), "gpu_processes")
    assert [("later" in gpu) for gpu in outcome.readings["gpus"]] == [False, True]
    gone = idle(on(MEMORY, 80 * GIB, GIB, 0), on(MEMORY, values=[80 * GIB, GIB, 20 * GIB], times=1))
    assert measure(node(gone), "gpu_processes").readings["gpus"][1]["later"]["memory"]["used"] == 0
    assert not any(
        "later" in gpu for gpu in measure(node("gpu_busy"), "gpu_processes").readings["gpus"]
    )
