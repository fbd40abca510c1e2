# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sampler reads of a host: its files below a root, the control group of a job, and the
record of a run.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from interpreters import interpreter

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import record
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling.cgroup import (
    ControlGroup,
    NoGroup,
    group_of,
    pod_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling.sources import (
    HostSources,
    averages,
)

CORE = Path(__file__).resolve().parents[2] / "plugins/module_utils"
UID = "0a1b2c3d-0000-1111-2222-333344445555"


@pytest.fixture
def write(tmp_path):
    """``write({path: text})``: files below a root, whose `Host` it returns."""

    def put(files):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        return Host(str(tmp_path))

    return put


# ---- the host ----

STAT = "cpu  {0} 0 {1} {2} {3} 0 0 0 0 0\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nintr 5\n"
DISKS = (
    "   8       0 sda 1 2 {0} 4 5 6 {1} 8 9 {2} 11\n   8       1 sda1 1 2 9 4 5 6 9 8 9 9 "
    "11\n   7 0 loop0 1 2 9 4 5 6 9 8 9 9 11\n"
)
NET = (
    "Inter-|   Receive\n face |bytes packets\n    lo: 7 0 0 0 0 0 0 0 7 0\n  eth0: {0} 0 0 0 "
    "0 0 0 0 {1} 0 0\n bond0: 9 0 0 0 0 0 0 0 9 0 0\n"
)
MEMINFO = (
    "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable:  900 kB\nBuffers: 3 kB\nCached: 500 kB\n"
)


def machine(
    user=0, system=0, idle=0, iowait=0, read=0, written=0, busy=0, received=0, sent=0, ib=None
):
    ports = (
        {}
        if ib is None
        else {
            f"sys/class/infiniband/mlx5_0/ports/1/counters/port_{way}_data": f"{ib}\n"
            for way in ("rcv", "xmit")
        }
    )
    return {
        "proc/stat": STAT.format(user, system, idle, iowait),
        "proc/meminfo": MEMINFO,
        "proc/diskstats": DISKS.format(read, written, busy),
        "proc/net/dev": NET.format(received, sent),
        "sys/block/sda/device/model": "x",
        "sys/class/net/eth0/device/vendor": "x",
        **ports,
    }


def test_counters_become_rates(write):
    sources = HostSources(write(machine(ib=1000)))
    assert set(sources.read(100.0)) == {"memory"}, "the first read has no rates"
    write(
        machine(
            50, 25, 20, 5, read=2000, written=4000, busy=2500, received=5000, sent=10_000, ib=6000
        )
    )
    found = sources.read(105.0)
    assert found["cpu"] == {"user": 0.5, "system": 0.25, "iowait": 0.05, "steal": 0.0, "idle": 0.2}
    assert found["memory"] == {
        "total": 1_024_000,
        "free": 409_600,
        "available": 921_600,
        "cached": 512_000,
    }
    assert found["disk"] == {
        "read_bytes_per_second": 2000 * 512 // 5,
        "write_bytes_per_second": 4000 * 512 // 5,
        "busy": 0.5,
    }
    assert found["net"] == {"received_bytes_per_second": 1000, "sent_bytes_per_second": 2000}
    assert found["infiniband"] == {"received_bytes_per_second": 4000, "sent_bytes_per_second": 4000}
    assert (
        sources.host.online_processors() == 2
        and set(sources.missing) == {"pressure"}
        and "pressure" not in found
    )


def test_a_counter_that_went_backwards_has_no_rate_once(write):
    sources = HostSources(write(machine(100, received=10_000)))
    sources.read(0.0)
    write(machine(200, received=10))
    assert "net" not in sources.read(5.0) and "net" not in sources.missing
    write(machine(300, received=510))
    assert sources.read(10.0)["net"]["received_bytes_per_second"] == 100


def test_what_is_not_there_is_missing_with_a_reason_and_never_zero(write):
    sources = HostSources(write({"proc/net/dev": "head\nhead\n    lo: 7 0 0 0 0 0 0 0 7 0\n"}))
    for now in (0.0, 5.0):
        assert sources.read(now) == {}
    assert set(sources.missing) == {"cpu", "memory", "pressure", "disk", "net", "infiniband"}
    assert (
        sources.missing["infiniband"] == "no InfiniBand port"
        and "No such file" in sources.missing["cpu"]
        and "loopback" in sources.missing["net"]
    )


@pytest.mark.parametrize(
    "path", ["proc/stat", "proc/meminfo", "proc/net/dev", "proc/diskstats", "proc/pressure/cpu"]
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu\n",
        "\x00\xff",
        "cpu a b c d e f g h\n",
        "MemTotal:\n",
        "  eth0: x x x x x x x x x x\n",
        "some avg10=x",
    ],
)
def test_garbage_costs_its_own_source_alone(write, path, text):
    host = write(machine())
    sources = HostSources(host)
    sources.read(0.0)
    write({**machine(50, 25, 25), path: text})
    found = sources.read(5.0)
    kept = {
        "proc/stat": "memory",
        "proc/meminfo": "cpu",
        "proc/net/dev": "cpu",
        "proc/diskstats": "cpu",
        "proc/pressure/cpu": "cpu",
    }[path]
    assert kept in found


def test_pressure_is_that_of_ten_seconds():
    text = (
        "some avg10=1.50 avg60=0.10 avg300=0.00 total=12\nfull avg10=0.25 avg60=0.00 "
        "avg300=0.00 total=3\n"
    )
    assert averages(text) == {"some": 1.5, "full": 0.25}


# ---- control groups ----

SLICE = (
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)
V2 = {
    "sys/fs/cgroup/cgroup.controllers": "cpu memory",
    f"sys/fs/cgroup/{SLICE}/cpu.stat": "usage_usec 5000\nnr_periods 10\nnr_throttled "
    "2\nthrottled_usec 70\n",
    f"sys/fs/cgroup/{SLICE}/memory.current": "3000\n",
    f"sys/fs/cgroup/{SLICE}/memory.stat": "anon 1\ninactive_file 1000\n",
    f"sys/fs/cgroup/{SLICE}/memory.events": "oom 1\noom_kill 4\n",
    f"sys/fs/cgroup/{SLICE}/io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
    f"sys/fs/cgroup/{SLICE}/cpu.pressure": "some avg10=12.00 avg60=0 avg300=0 total=1\n",
    f"sys/fs/cgroup/{SLICE}/cpu.max": "250000 100000\n",
    f"sys/fs/cgroup/{SLICE}/memory.max": "4096\n",
    f"sys/fs/cgroup/{SLICE}/cpuset.cpus.effective": "0-3\n",
    f"sys/fs/cgroup/{SLICE}/cgroup.procs": "17\n",
    f"sys/fs/cgroup/{SLICE}/inner/cgroup.procs": "42\n43\n",
    "proc/42/cgroup": f"0::/{SLICE}/inner\n",
    "proc/17/cgroup": f"0::/{SLICE}\n",
    "proc/5/cgroup": "0::/\n",
    "sys/fs/cgroup/system.slice/train.service/cpu.stat": "usage_usec 9\n",
}
V1 = {
    f"sys/fs/cgroup/cpu,cpuacct/kubepods/pod{UID}/cpuacct.usage": "5000000\n",
    f"sys/fs/cgroup/cpu,cpuacct/kubepods/pod{UID}/cpu.stat": "nr_periods 10\nnr_throttled 2\nthrottled_time 70000\n",
    f"sys/fs/cgroup/cpu,cpuacct/kubepods/pod{UID}/cpu.cfs_quota_us": "250000\n",
    f"sys/fs/cgroup/cpu,cpuacct/kubepods/pod{UID}/cpu.cfs_period_us": "100000\n",
    f"sys/fs/cgroup/memory/kubepods/pod{UID}/memory.usage_in_bytes": "3000\n",
    f"sys/fs/cgroup/memory/kubepods/pod{UID}/memory.stat": "total_inactive_file 1000\n",
    f"sys/fs/cgroup/memory/kubepods/pod{UID}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    f"sys/fs/cgroup/memory/kubepods/pod{UID}/memory.limit_in_bytes": "9223372036854771712\n",
    f"sys/fs/cgroup/blkio/kubepods/pod{UID}/blkio.throttle.io_service_bytes_recursive": (
        "8:0 Read 10\n8:0 Write 20\n8:16 Read 1\n8:16 Write 2\nTotal 33\n"
    ),
    f"sys/fs/cgroup/cpuset/kubepods/pod{UID}/cpuset.cpus": "0-3\n",
    "proc/42/cgroup": "".join(
        f"5:{one}:/kubepods/pod{UID}\n" for one in ("memory", "cpu,cpuacct", "blkio", "cpuset")
    )
    + "0::/\n",
    "proc/5/cgroup": "5:memory:/\n0::/\n",
    "proc/6/cgroup": f"5:memory:/\n3:cpu,cpuacct:/kubepods/pod{UID}\n",
}
USED = {
    "cpu_usec": 5000,
    "nr_periods": 10,
    "nr_throttled": 2,
    "throttled_usec": 70,
    "memory_current": 3000,
    "memory_inactive_file": 1000,
    "oom_kill": 4,
    "io_read_bytes": 11,
    "io_write_bytes": 22,
}


@pytest.mark.parametrize(
    "files, job, used, limits",
    [
        (
            V2,
            {"pod_uid": UID},
            dict(USED, cpu_pressure=12.0),
            {"cpus": 2.5, "memory": 4096, "cpuset": "0-3"},
        ),
        (
            V2,
            {"pod_uid": UID.upper().replace("-", "_")},
            dict(USED, cpu_pressure=12.0),
            {"cpus": 2.5, "memory": 4096, "cpuset": "0-3"},
        ),
        (
            V2,
            {"pid": 17},
            dict(USED, cpu_pressure=12.0),
            {"cpus": 2.5, "memory": 4096, "cpuset": "0-3"},
        ),
        (
            V2,
            {"unit": "train.service"},
            {"cpu_usec": 9},
            {"cpus": None, "memory": None, "cpuset": None},
        ),
        (V1, {"pod_uid": UID}, USED, {"cpus": 2.5, "memory": None, "cpuset": "0-3"}),
        (V1, {"pid": 42}, USED, {"cpus": 2.5, "memory": None, "cpuset": "0-3"}),
    ],
    ids=["v2 pod", "v2 pod spelt otherwise", "v2 pid", "v2 unit", "v1 pod", "v1 pid"],
)
def test_a_job_by_its_control_group(write, files, job, used, limits):
    group = ControlGroup(write(files), job)
    assert group.read() == used and group.limits() == limits


def test_a_controller_that_does_not_tell_the_job_apart_says_nothing_of_it(write):
    """Its root group is the whole node."""
    host = write({**V1, "sys/fs/cgroup/memory/memory.usage_in_bytes": "999999\n"})
    assert "memory_current" not in ControlGroup(host, {"pid": 6}).read()


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(
    "job, words",
    [
        ({"pid": 99}, "process 99 does not exist"),
        ({"pid": 5}, "root control group, which is the whole node"),
        ({"unit": "other.service"}, "no control group of unit"),
        ({"pod_uid": "ffffffff-0000-1111-2222-333344445555"}, "no control group of pod"),
    ],
)
def test_a_job_that_is_not_there_is_said(write, files, job, words):
    with pytest.raises(NoGroup, match=words):
        ControlGroup(write(files), job)


def test_a_job_that_ends_is_said(write, tmp_path):
    group = ControlGroup(write(V2), {"unit": "train.service"})
    (tmp_path / "sys/fs/cgroup/system.slice/train.service/cpu.stat").unlink()
    (tmp_path / "sys/fs/cgroup/system.slice/train.service").rmdir()
    with pytest.raises(NoGroup, match="does not exist any more, so the job has ended"):
        group.read()


def test_whose_a_process_is(write):
    host = write(V2)
    group = ControlGroup(host, {"pod_uid": UID})
    assert (
        group.has(group_of(host, 42))
        and group.has(group_of(host, 17))
        and not group.has(group_of(host, 5))
        and not group.has(group_of(host, 99))
    )
    assert (
        not group.has(f"/{SLICE}x")
        and pod_of(group_of(host, 42)) == UID
        and pod_of("/system.slice/train.service") is None
    )
    assert sorted(group.pids()) == [17, 42, 43]


# ---- the record ----


def gathered(host, job=None):
    return record.gather(
        {"name": "run", "host_root": host.root, "nvml_library": None, "job": job}, {}, 0.0
    )


@pytest.mark.parametrize(
    "files, job, kind",
    [
        ({}, None, "bare"),
        ({"proc/9/stat": "9 (kubelet) S 1 9 9"}, None, "kubernetes"),
        (
            {"proc/9/stat": "9 (kubelet) S 1 9 9", "etc/os-release": 'ID="rhcos"\n'},
            None,
            "openshift",
        ),
        ({"proc/9/stat": "9 (slurmd) S 1 9 9"}, None, "slurm"),
        ({"proc/9/stat": "9 (sbatchd) S 1 9 9"}, None, "lsf"),
        ({"proc/17/environ": "PATH=/bin\0LSB_JOBID=7\0SECRET=x\0"}, {"pid": 17}, "lsf"),
        ({}, {"pod_uid": UID}, "kubernetes"),
    ],
)
def test_the_platform(write, files, job, kind):
    found = gathered(write({**V2, **files}), job)
    assert found["platform"]["kind"] == kind and "SECRET" not in json.dumps(found)


def test_what_is_read_of_a_job(write):
    words = ["python", "train.py", "--batch=8", "--api-key=abc", "--token", "def", "PASSWORD=ghi"]
    found = gathered(
        write(
            {
                **V2,
                "proc/17/environ": "NVIDIA_VISIBLE_DEVICES=all\0AWS_SECRET=x\0",
                "proc/17/cmdline": "\0".join(["/pause", ""]),
                "proc/42/cmdline": "\0".join([*words, ""]),
            }
        ),
        {"pod_uid": UID},
    )["job"]
    assert (
        found["visible"] == {"NVIDIA_VISIBLE_DEVICES": "all"}
        and found["pod"] == UID
        and found["limits"]["cpus"] == 2.5
    )
    assert found["command"] == "python train.py --batch=8 --api-key=*** --token *** PASSWORD=***"


def test_what_is_not_told_is_none(write):
    found = gathered(write({}), {"pid": 99})
    assert (
        found["node"]["cpus"] is None
        and found["node"]["memory"] is None
        and found["gpus"]["list"] == []
        and found["gpus"]["error"]
    )
    assert found["job"] == {"given": {"pid": 99}, "error": "process 99 does not exist"}


def test_a_log_that_does_not_tell(tmp_path):
    log = tmp_path / "log"
    log.write_text("loss 1.0\n", encoding="utf-8")
    assert record.throughput(str(log), r"speed (\S+)") == {
        "values": 0,
        "error": f"no number where 'speed (\\\\S+)' matches in {log}",
    }
    assert "No such file" in record.throughput(str(tmp_path / "none"), "(x)")["error"]


# ---- on other Pythons ----

PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from _health.node.sampling import daemon, record
directory = sys.argv[2]
settings = {
    "name": "run", "interval": 1.0, "duration": 60, "max_bytes": 1000000,
    "host_root": "/", "nvml_library": None, "job": None,
}
begun = daemon.start(directory, settings, lambda: record.gather(settings, {}, time.time()))
until = time.monotonic() + 30
while open(directory + "/samples.jsonl").read().count("\\n") < 2 and time.monotonic() < until:
    time.sleep(0.05)
stopped = daemon.stop(directory)
left = daemon.state(directory)["state"]
print(json.dumps([begun["state"], stopped, left, daemon.collect(directory)["ended"]]))
"""


@pytest.mark.parametrize("version", [8, 14], ids=lambda version: f"python3.{version}")
def test_a_sampler_runs_on_the_oldest_and_the_newest_python(version, tmp_path):
    found = interpreter(version)
    if not found:
        pytest.skip(f"needs Python 3.{version}: neither on the path nor in pyenv")
    done = subprocess.run(
        [found, "-B", "-c", PROGRAM, str(CORE), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["running", True, "ended", "stopped"]
