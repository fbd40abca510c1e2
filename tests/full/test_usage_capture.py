# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real samplers on nodes of stand-in hardware, started, ended and collected as an operator does."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import node as sandbox
import pytest

from controller import write_inventory

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.sampling import daemon

MODULE = "autopilot.gpu.usage_capture"
#: Seconds to wait for what must come; far above what it takes.
PATIENCE = 60

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

PROCESS = {"gpu": 0, "pid": 4242, "name": "python", "memory": 1 << 30, "kind": "compute"}


class Host:
    """A stand-in node with a place for captures, and the module on it."""

    def __init__(self, controller, base, scenario):
        base.mkdir(exist_ok=True)
        self.node = sandbox.build(dict({"gpus": 2}, **scenario), base / "node")
        self.base, self.controller = base, controller
        self.captures = base / "captures"
        self.inventory = write_inventory(base / "hosts.json", {"gpu01": self.node})

    def __call__(self, **options):
        """What the module returned, run by the node's Python; where it is to be collected, by a
        playbook.
        """
        if options.get("state") == "collected":
            return self.several(options)[0]
        given = {
            "name": "run",
            "directory": str(self.captures),
            "host_root": self.node.root,
            **options,
        }
        arguments = {
            "ANSIBLE_MODULE_ARGS": dict(
                given, _ansible_remote_tmp=str(self.base), _ansible_keep_remote_files=False
            )
        }
        done = subprocess.run(
            [
                self.node.python,
                "-m",
                "ansible_collections.autopilot.gpu.plugins.modules.usage_capture",
            ],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.controller.collections)},
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def several(self, *calls):
        """What the module returned each time, called with these options (and ``check``) one after
        the other; a playbook has one start for all.
        """
        tasks, answers = [], self.base / "answers.json"
        for place, options in enumerate(calls):
            given = {
                "name": "run",
                "state": "started",
                "directory": str(self.captures),
                "host_root": self.node.root,
                **options,
            }
            check = given.pop("check", False)
            if given["state"] == "collected":
                given.setdefault("dest", str(self.base / "runs"))
            given = {name: value for name, value in given.items() if value is not None}
            tasks.append(
                {
                    MODULE: given,
                    "register": f"answer{place}",
                    "ignore_errors": True,
                    "check_mode": check,
                }
            )
        content = (
            "{{ [" + ", ".join(f"answer{place}" for place in range(len(calls))) + "] | to_json }}"
        )
        tasks.append(
            {
                "ansible.builtin.copy": {"content": content, "dest": str(answers)},
                "vars": {"ansible_python_interpreter": sys.executable},
            }
        )
        (self.base / "play.json").write_text(
            json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]), encoding="utf-8"
        )
        done = self.controller.run(
            "ansible-playbook", "-i", self.inventory, "play.json", cwd=self.base
        )
        assert done.returncode == 0, done.stdout
        return json.loads(answers.read_text(encoding="utf-8"))

    def start(self, **options):
        answer = self(**{"interval": 1, "duration": 600, **options})
        assert answer.get("changed") and answer["state"] == "running", answer
        return answer

    def lines(self, name="run"):
        """What the sampler has written so far."""
        path = self.captures / name / "samples.jsonl"
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )

    def samples(self, name="run"):
        return [line for line in self.lines(name) if "event" not in line]

    def events(self, event, name="run"):
        return [line for line in self.lines(name) if line.get("event") == event]

    def running(self):
        return sandbox.processes_of(self.node)

    def read(self, file="gpu01.jsonl.gz"):
        return [
            json.loads(line)
            for line in gzip.decompress((self.base / "runs" / file).read_bytes())
            .decode()
            .splitlines()
        ]


@pytest.fixture(scope="module")
def hosts(controller, tmp_path_factory):
    """``hosts(name, scenario={}) -> Host``; nothing is left of any of them."""
    made = []

    def build(name, scenario=None):
        made.append(Host(controller, tmp_path_factory.mktemp(name), scenario or {}))
        return made[-1]

    yield build
    left = [pid for host in made for pid in host.running()]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


def until(condition, what):
    """Wait until a condition holds; its value."""
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} within {PATIENCE} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def hung(hosts):
    """A node on which the driver hangs in the kernel after two samples; started early, since it
    takes ten seconds until that is certain.
    """
    call = "nvmlDeviceGetUtilizationRates"
    host = hosts(
        "hung",
        {
            "rules": [
                {"gpu": 1, "call": call, "values": [50, 20], "times": 2},
                {"gpu": 1, "call": call, "hang": "ignore_term"},
            ]
        },
    )
    host.start()
    yield host
    # Its test may be another worker's.
    host(state="absent")


@pytest.fixture(scope="module")
def short(hosts):
    """A capture of three seconds that ends by itself."""
    host = hosts("short")
    host.start(duration=3)
    yield host
    until(lambda: not host.running(), "it ends")


def test_a_capture_from_its_start_to_the_controller(hosts, hung, short):
    cgroup = "0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_1111_2222_333344445555.slice"
    host = hosts("whole", {"processes": [PROCESS], "files": {"proc/4242/cgroup": cgroup}})
    same = {"interval": 1, "duration": 600, "declared": {"batch": 128, "precision": "bf16"}}
    start_once(host, same)
    samples_arrive(host)
    stop_once(host, same)
    collect_once(host, same["declared"])


def start_once(host, same):
    """Start a capture; a second start changes nothing, and one with other options is refused."""
    planned, begun, again, other, asked = host.several(
        dict(same, check=True),
        same,
        same,
        dict(same, interval=5),
        {"state": "stopped", "check": True},
    )
    assert (planned["changed"], planned["state"], planned["record"]) == (True, "none", None), (
        "check mode starts nothing"
    )
    assert begun["changed"] and begun["record"]["declared"] == same["declared"]
    assert len(begun["record"]["gpus"]["list"]) == 2 and begun["record"]["gpus"]["cuda_version"]
    assert (again["changed"], again["state"], again["pid"]) == (False, "running", begun["pid"])
    assert other["failed"] and "already runs with interval 1.0; stop it first" in other["msg"]
    assert asked["changed"] is True and begun["pid"] in host.running()


def samples_arrive(host):
    two = until(
        lambda: [one for one in host.samples() if "gpus" in one][1:], "two samples of the GPUs"
    )
    assert {gpu["utilization"] for gpu in two[0]["gpus"]} == {0} and [
        gpu["uuid"] for gpu in two[0]["gpus"]
    ] == [gpu["uuid"] for gpu in host.node.gpus]
    assert (
        two[0]["memory"]["total"] > 0
        and "job" not in two[0]
        and set(host.events("started")[0]["missing"]) & set(two[0]) == set()
    )
    assert [(one["pid"], one["name"], one["pod"]) for one in host.events("process")] == [
        (4242, "python", "0a1b2c3d-0000-1111-2222-333344445555")
    ]


def stop_once(host, same):
    """Stop the capture; a second stop changes nothing, and a start is refused until it is collected."""
    stopped, idle, refused = host.several({"state": "stopped"}, {"state": "stopped"}, same)
    assert (stopped["changed"], stopped["state"], idle["changed"]) == (
        True,
        "ended",
        False,
    ) and host.running() == []
    assert host.lines()[-1] == dict(host.lines()[-1], event="ended", reason="stopped")
    assert (
        refused["failed"]
        and "exists but is not collected; collect it (state=collected), remove it (state=absent)"
        in refused["msg"]
    )


def collect_once(host, declared):
    """Collect the capture; nothing stays on the host, and a second time changes nothing."""
    written = host.lines()
    log = {"throughput_log": str(write_log(host.base)), "throughput_regex": r"(\d+\.\d) images/s"}
    collected, once_more, absent = host.several(
        {"state": "collected", **log}, {"state": "collected"}, {"state": "absent"}
    )
    assert collected["changed"] and host.read() == written and not host.captures.exists(), (
        "nothing is left on the host"
    )
    record = json.loads((host.base / "runs/gpu01.record.json").read_text(encoding="utf-8"))
    assert (record["ended"], record["declared"]) == ("stopped", declared)
    assert record["throughput"] == {
        "values": 3,
        "mean": pytest.approx(200.0),
        "median": 200.0,
        "last": 300.0,
    }
    assert (
        collected["health"][0]["check"] == "gpu_usage"
        and collected["status"] == collected["health"][0]["status"]
    )
    assert [gpu["uuid"] for gpu in collected["node"]["gpus"]] == [
        gpu["uuid"] for gpu in host.node.gpus
    ]
    assert (once_more["changed"], absent["changed"]) == (False, False) and once_more[
        "health"
    ] == collected["health"]
    assert sorted(path.name for path in (host.base / "runs").iterdir()) == [
        "gpu01.jsonl.gz",
        "gpu01.record.json",
    ]


def write_log(base):
    path = base / "train.log"
    path.write_text(
        "step 1: 100.0 images/s\nstep 2: 200.0 images/s\nnan images/s\nstep 3: 300.0 images/s\n",
        encoding="utf-8",
    )
    return path


def test_it_ends_by_itself_when_its_time_is_over(short):
    until(lambda: not short.running(), "it ends")
    assert short.lines()[-1]["reason"] == "duration" and 1 <= len(short.samples()) <= 3
    collected = short(state="collected")
    assert collected["changed"] and collected["record"]["ended"] == "duration"


def test_a_driver_that_hangs_costs_the_gpus_alone(hung):
    """And only until it is tried again, which here would hang again."""
    gap = until(
        lambda: [one for one in hung.events("gap") if "abandoned" in one["reason"]],
        "the hang is said",
    )[0]
    assert gap["source"] == "gpus" and gap["reason"].startswith(
        "nvmlDeviceGetUtilizationRates on GPU 1 has not returned for 1"
    )
    after = until(
        lambda: [one for one in hung.samples() if one["m"] > gap["m"]][1:], "samples go on"
    )
    assert all("gpus" not in one and one["memory"]["total"] > 0 for one in after)
    told = hung.samples()
    assert {one["gpus"][1]["utilization"] for one in told if "gpus" in one} <= {50}
    steps = [later["m"] - earlier["m"] for earlier, later in zip(told, told[1:])]
    assert max(steps) < 10, "no sample of the host was held up until the hang was certain"
    assert len(hung.running()) == 1, "the child that hung was ended"
    collected = hung(state="collected")
    assert collected["changed"] and hung.running() == []
    assert collected["status"] in ("pass", "unknown") and collected["record"]["ended"] == "stopped"


def test_it_ends_before_it_fills_the_disk(hosts):
    host = hosts("bytes")
    host.start(max_bytes=8192)
    until(lambda: not host.running(), "it ends")
    assert (
        host.lines()[-1]["reason"] == "max_bytes"
        and 4096 < (host.captures / "run/samples.jsonl").stat().st_size <= 8192
    )


def test_one_that_is_killed_leaves_what_it_wrote_and_no_child(hosts):
    host = hosts("killed")
    pid = host.start()["pid"]
    until(host.samples, "a sample")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not host.running(), "its child ends too")
    with open(host.captures / "run/samples.jsonl", "a", encoding="utf-8") as stream:
        stream.write('{"t": 1.0, "gp')
    collected = host(state="collected")
    assert (
        collected["record"]["ended"] == "vanished"
        and len(host.captures.parent.name) > 0
        and not host.captures.exists()
    )
    assert (
        "the sampler ended without a reason" in json.dumps(collected["health"])
        or collected["status"] == "pass"
    )


def test_a_pid_file_from_before_a_reboot_is_nobodys(hosts):
    """The number is another process's by now, which must not be touched."""
    host = hosts("reboot")
    pid = host.start()["pid"]
    until(host.samples, "a sample")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not host.running(), "it ends")
    path = host.captures / "run/sampler.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            own = (
                Path(f"/proc/{bystander.pid}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()
            )
            for changed in ({"boot_id": "another"}, {"started": said["started"] - 1}):
                path.write_text(
                    json.dumps(
                        dict(said, **{"pid": bystander.pid, "started": int(own[19]), **changed})
                    ),
                    encoding="utf-8",
                )
                assert daemon.state(str(path.parent))["state"] == "ended"
            assert (
                host(state="absent")["changed"] is True
                and not host.captures.exists()
                and bystander.poll() is None
            )
        finally:
            bystander.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give a file to another user")
def test_what_another_user_calls_the_sampler_is_not_ended(hosts):
    """A directory in which others write, and root who ends the capture in it."""
    host = hosts("forged")
    pid = host.start()["pid"]
    until(host.samples, "a sample")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not host.running(), "it ends")
    path = host.captures / "run/sampler.json"
    said = json.loads(path.read_text(encoding="utf-8"))
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            own = (
                Path(f"/proc/{bystander.pid}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()
            )
            path.write_text(
                json.dumps(dict(said, pid=bystander.pid, started=int(own[19]))), encoding="utf-8"
            )
            os.chown(path, 65534, 65534)
            for state in ("stopped", "absent", "collected"):
                answer = host(state=state)
                assert (
                    answer.get("failed")
                    and f"{path} of user 65534 names process {bystander.pid}" in answer["msg"]
                ), answer
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_two_captures_go_on_beside_each_other(hosts):
    host = hosts("two")
    first, second, gone = host.several(
        {"name": "one"}, {"name": "two"}, {"name": "one", "state": "absent"}
    )
    assert first["pid"] != second["pid"] and gone["changed"]
    assert first["pid"] not in host.running() and second["pid"] in host.running()
    assert host(name="two", state="absent")["changed"] and not host.captures.exists()


V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/cgroup.controllers")


@pytest.fixture
def group():
    """A real control group with a process in it that keeps a processor busy: ``(its path, the
    process)``.
    """
    name = f"autopilot-test-{os.getpid()}"
    roots = (
        [Path("/sys/fs/cgroup")]
        if V2.exists()
        else [
            Path("/sys/fs/cgroup", controller)
            for controller in ("memory", "cpu", "cpuacct", "blkio")
        ]
    )
    made = []
    worker = None
    try:
        for root in roots:
            if root.is_dir() and not root.is_symlink():
                (root / name).mkdir()
                made.append(root / name)
        # What it has before it is moved is counted where it was.
        program = (
            "import sys, time\nsys.stdin.read()\nheld = bytearray(32 << 20)\nwhile True: "
            "time.sleep(sum(held[:9999]) + 0.01)"
        )
        worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        for directory in made:
            (directory / "cgroup.procs").write_text(str(worker.pid), encoding="ascii")
        worker.stdin.close()
    except OSError as error:
        pytest.skip(f"needs control groups that can be made: {error}")
    else:
        yield f"/{name}", worker
    finally:
        if worker:
            worker.kill()
            worker.wait()
        for directory in made:
            until(
                lambda one=directory: not (one / "cgroup.procs").read_text(encoding="ascii"),
                "the group is empty",
            )
            directory.rmdir()


@pytest.mark.parametrize("how", ["pid", "unit"])
def test_the_job_is_sampled_beside_the_node(hosts, group, how):
    path, worker = group
    host = hosts(f"job-{how}")
    job = {"pid": worker.pid} if how == "pid" else {"unit": path[1:]}
    begun = host.start(host_root="/", nvml_library=host.node.library, job=job)
    assert (
        begun["record"]["job"]["cgroup"] == path
        and "held = bytearray" in begun["record"]["job"]["command"]
    ), begun["record"]["job"]
    used = until(
        lambda: [
            one
            for one in host.samples()
            if one.get("job", {}).get("memory_current", 0) > 32 << 20 and "cpu" in one
        ][2:],
        "samples of the job",
    )
    assert (
        used[0]["job"]["cpu_usec"] > 0
        and 0 < used[0]["cpu"]["idle"] + used[0]["cpu"]["user"] <= 1.0001
    )
    cpu = [one["job"]["cpu_usec"] for one in host.samples() if "job" in one]
    assert cpu == sorted(cpu) and cpu[-1] > cpu[0]
    worker.kill()
    worker.wait()
    collected = host(state="collected")
    assert collected["changed"] and collected["record"]["ended"] == "stopped"


WRONG = [
    ({"name": "../x"}, "name: '../x' is invalid; expected up to 64 letters"),
    ({"interval": 0.5}, "interval: 0.5 is invalid; expected 1 to 60 seconds"),
    ({"interval": 61}, "interval: 61.0 is invalid"),
    ({"duration": 0}, "duration: 0 is invalid"),
    ({"name": "run\n"}, "name: 'run\\n' is invalid; expected up to 64 letters"),
    ({"max_bytes": 10}, "max_bytes: 10 is invalid; expected 8192 to"),
    ({"job": {"pid": 1, "unit": "x"}}, "mutually exclusive"),
    ({"job": {"pid": 0}}, "is invalid; expected one of pod_uid, unit, pid"),
    ({"job": {}}, "is invalid; expected one of pod_uid, unit, pid"),
    ({"throughput_regex": "x"}, "required together"),
    (
        {"throughput_log": "/x", "throughput_regex": "("},
        "throughput_regex: '(' is not a regular expression",
    ),
    (
        {"throughput_log": "/x", "throughput_regex": "x"},
        "expected one with a group around the number",
    ),
    ({"rules": {"busy": 1}}, "rules: unsupported rule 'busy'; supported: warm_up"),
    ({"rules": {"warm_up": -1}}, "rules.warm_up: -1.0 is invalid"),
    ({"host_root": "/nowhere"}, "host_root: /nowhere is not a directory on this host"),
    (
        {"state": "collected", "dest": None},
        "state is collected but all of the following are missing: dest",
    ),
    ({"state": "collected"}, "neither this host nor"),
    ({"state": "collected", "dest": "/proc/none"}, "neither this host nor"),
    ({"directory": "/proc/none"}, "directory: /proc/none"),
]


def test_what_is_wrong_is_named(hosts):
    host = hosts("wrong")
    answers = host.several(*(options for options, _words in WRONG))
    assert [
        (words, answer)
        for answer, (_options, words) in zip(answers, WRONG)
        if not (answer.get("failed") and words in answer["msg"])
    ] == []
    assert host.running() == [] and not host.captures.exists()
