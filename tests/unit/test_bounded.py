# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bounded execution: deadlines hold against processes that ignore signals, and nothing of ours is left
behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import (
    bounded,
    detached,
)


#: Seconds beyond deadline and grace that ending something may take: two waits for SIGKILL to be
#: delivered, and a busy machine.
SLACK = 3.0


def state(pid):
    """The state letter of a process, None when it is gone; a zombie counts as gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if letter in "ZX" else letter


def gone(pid, seconds=3.0):
    """Whether the process ends within so many seconds."""
    until = time.monotonic() + seconds
    while state(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return state(pid) is None


def never_minding(_report=None):
    """What a callee in foreign code does that SIGTERM does not bring back."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


# ---- functions in a child ----


def test_a_child_hands_over_what_it_found():
    def work(report):
        report.send("a", {"n": 1})
        report.send("a", {"n": 2})
        report.send("b", [None, "é"])

    child = bounded.call(work, 5)
    assert child.values == {"a": {"n": 2}, "b": [None, "é"]}
    assert (
        not child.timed_out
        and child.signal is None
        and child.raised is None
        and child.abandoned is None
    )


def test_more_than_a_pipe_holds_arrives_whole():
    child = bounded.call(lambda report: report.send("text", "x" * 3_000_000), 10)
    assert len(child.values["text"]) == 3_000_000


def test_what_a_child_raises_is_reported():
    def work(report):
        report.stage("dividing")
        return 1 / 0

    child = bounded.call(work, 5)
    assert child.raised == "ZeroDivisionError: division by zero"
    assert child.stage == "dividing" and "in work" in child.trace


def test_a_child_that_dies_by_a_signal_says_which():
    child = bounded.call(lambda report: os.kill(os.getpid(), signal.SIGSEGV), 5)
    assert child.signal == signal.SIGSEGV and not child.timed_out


def test_a_child_has_no_descriptor_but_its_own(tmp_path):
    with open(tmp_path / "ours", "w", encoding="utf-8") as ours:
        os.set_inheritable(ours.fileno(), True)

        def work(report):
            home = Path("/proc/self/fd")
            report.send(
                "open",
                {
                    link.name: os.readlink(link)
                    for link in list(home.iterdir())
                    if link.is_symlink()
                },
            )

        opened = bounded.call(work, 5).values["open"]
    assert {opened.pop(name) for name in "012"} == {"/dev/null"}
    assert len(opened) == 1 and opened.popitem()[1].startswith("pipe:")


@pytest.mark.parametrize("closed", ["<&- 2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_caller_without_standard_streams_hears_its_child(closed, tmp_path):
    program = """
import sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
child = bounded.call(lambda report: report.send("a", 1), 5)
open(sys.argv[1], "w").write(str(child.values))
"""
    subprocess.run(
        [
            "sh",
            "-c",
            f'"$0" -c "$1" "$2" {closed}',
            sys.executable,
            program,
            str(tmp_path / "heard"),
        ],
        check=True,
    )
    assert (tmp_path / "heard").read_text() == "{'a': 1}"


def test_the_deadline_holds_and_says_what_hung():
    def work(report):
        report.send("first", 1)
        report.stage("nvmlDeviceGetName on GPU 3")
        time.sleep(60)

    child = bounded.call(work, 0.5, grace=0.5)
    assert (
        child.timed_out
        and child.stage == "nvmlDeviceGetName on GPU 3"
        and child.values == {"first": 1}
    )
    assert child.stage_seconds >= 0.4
    assert gone(child.pid)


def test_sigterm_lets_a_child_clean_up(tmp_path):
    def work(report):
        try:
            time.sleep(60)
        finally:
            (tmp_path / "cleaned").touch()

    child = bounded.call(work, 0.3, grace=2)
    assert child.timed_out and (tmp_path / "cleaned").exists() and gone(child.pid)


def test_the_deadline_holds_against_a_child_that_ignores_sigterm():
    child = bounded.call(never_minding, 0.5, grace=0.3)
    assert child.timed_out and child.signal == signal.SIGKILL
    assert gone(child.pid)


def test_the_deadline_holds_against_a_child_that_is_stopped():
    child = bounded.call(lambda report: os.kill(os.getpid(), signal.SIGSTOP), 0.5, grace=0.3)
    assert child.timed_out and child.signal == signal.SIGKILL
    assert gone(child.pid)


def test_the_deadline_holds_against_a_child_that_the_kernel_will_not_let_go(frozen):
    door = frozen()

    def work(report):
        report.stage("opening")
        os.open(door, os.O_RDONLY)

    child = bounded.call(work, 0.5, grace=0.3)
    assert child.timed_out and child.abandoned == child.pid and child.stage == "opening"
    assert state(child.pid) == "D"


def test_an_abandoned_child_keeps_nobody_waiting(frozen):
    """Who reads our output must see its end when we end, whatever the abandoned process holds."""
    program = f"""
import os
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import bounded
child = bounded.call(lambda report: os.open({str(frozen())!r}, os.O_RDONLY), 0.3, 0.2)
print("abandoned", child.abandoned)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    word, pid = done.stdout.split()
    assert word == "abandoned" and state(pid) == "D"


def test_children_are_awaited_together():
    children = [bounded.Child(lambda report: time.sleep(0.4), 10) for _count in range(4)]
    assert bounded.wait(children, time.monotonic() + 10)
    assert all(child.ended for child in children)


def test_many_that_the_kernel_will_not_let_go_cost_no_more_than_one(frozen, monkeypatch):
    door, untils, gone_by = frozen(), set(), bounded._gone
    monkeypatch.setattr(
        bounded, "_gone", lambda pid, until: untils.add(until) or gone_by(pid, until)
    )
    children = [bounded.Child(lambda report: os.open(door, os.O_RDONLY), 10) for _count in range(4)]
    time.sleep(0.3)
    bounded.end(children, 0.3)
    assert len(untils) == 1, "one deadline for all"
    assert [child.abandoned for child in children] == [child.pid for child in children]


def test_waiting_ends_when_the_time_is_up():
    child = bounded.Child(lambda report: time.sleep(60), 60)
    ended = bounded.wait([child], time.monotonic() + 0.3)
    child.stop(0.5)
    assert not ended and gone(child.pid)


# ---- what outlives its caller ----


def lasting(report):
    report.send(
        "facts",
        {
            "directory": os.getcwd(),
            "leader": os.getsid(0) == os.getpid(),
            "hangup": str(signal.getsignal(signal.SIGHUP)),
            "descriptors": [
                os.readlink(path).partition(":")[0]
                for path in Path("/proc/self/fd").iterdir()
                if path.exists() or path.is_symlink()
            ],
        },
    )
    report.close()
    time.sleep(60)


def test_what_is_detached_stands_alone(tmp_path):
    with open(tmp_path / "file", "w"):
        child = detached.detach(lasting, 60, 5)
    pid = child.values["pid"]
    facts = child.values["facts"]
    assert set(facts.pop("descriptors")) == {"/dev/null", "pipe"}
    assert facts == {"directory": "/", "leader": True, "hangup": str(signal.SIG_IGN)}
    assert child.mishap() == {} and state(pid)
    os.kill(pid, signal.SIGHUP)
    assert not gone(pid, 0.3)
    os.kill(pid, signal.SIGTERM)
    assert gone(pid)


def test_what_is_detached_outlives_its_caller_and_not_its_lifetime():
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_bounded import detached, never_minding
print(detached.detach(lambda report: (report.close(), never_minding()), 1.5, 5).values["pid"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    pid = int(done.stdout)
    assert state(pid), "it ended with its caller"
    assert gone(pid, 1.5 + SLACK)


def test_what_is_detached_and_fails_says_so():
    def work(report):
        report.stage("listening")
        raise OSError("no room")

    child = detached.detach(work, 60, 5)
    assert child.mishap()["crashed"]["raised"] == "OSError: no room" and child.stage == "listening"
    assert gone(child.values["pid"])


def test_what_is_detached_and_never_says_that_it_is_ready_is_killed():
    child = detached.detach(never_minding, 60, 0.5)
    assert child.mishap()["hung"] and gone(child.values["pid"])


def test_what_is_detached_and_gone_before_it_could_be_killed_is_no_error():
    def leaves_another(report):
        if os.fork() == 0:
            time.sleep(2)  # holding the pipe
            os._exit(0)

    child = detached.detach(leaves_another, 60, 0.5)
    assert child.mishap()["hung"] and gone(child.values["pid"])


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, to become a user whose number of processes is limited"
)
def test_a_child_that_cannot_be_started_costs_no_descriptors():
    program = f"""
import os, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_bounded import bounded
os.setgroups([]); os.setgid(65533); os.setuid(65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
before = os.listdir("/proc/self/fd")
try:
    bounded.Child(print, 5)
except BlockingIOError:
    print(os.listdir("/proc/self/fd") == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "True\n", done.stderr


# ---- programs ----


def test_a_program_and_what_it_says():
    done = bounded.run(["sh", "-c", "echo out; echo err >&2; exit 7"], 5)
    assert (done.returncode, done.stdout, done.stderr, done.timed_out, done.cut) == (
        7,
        "out\n",
        "err\n",
        False,
        False,
    )


def test_there_is_no_shell_between():
    assert bounded.run(["echo", "$HOME; ls *"], 5).stdout == "$HOME; ls *\n"


def test_a_program_has_nothing_to_read():
    assert bounded.run(["cat"], 5).returncode == 0


def test_a_program_that_is_not_there_is_an_oserror():
    with pytest.raises(FileNotFoundError):
        bounded.run(["/nonexistent/dcgmi"], 5)


def test_environment_and_directory_are_handed_on(tmp_path):
    done = bounded.run(
        ["/bin/sh", "-c", "echo $WORD; pwd"], 5, environment={"WORD": "x"}, directory=str(tmp_path)
    )
    assert done.stdout == f"x\n{tmp_path}\n"


def test_a_program_that_dies_by_a_signal_says_which():
    assert bounded.run(["sh", "-c", "kill -SEGV $$"], 5).returncode == -signal.SIGSEGV


def test_a_program_gets_sigterm_first():
    done = bounded.run(
        ["sh", "-c", "trap 'echo ending; exit 0' TERM; echo up; while :; do sleep 0.05; done"],
        0.5,
        grace=5,
    )
    assert done.timed_out and done.stdout == "up\nending\n" and done.returncode == 0


def test_a_program_that_ignores_sigterm_gets_sigkill_after_its_grace():
    done = bounded.run(
        ["sh", "-c", "trap 'echo asked' TERM; while :; do sleep 0.05; done"], 0.5, grace=0.5
    )
    assert done.timed_out and done.returncode == -signal.SIGKILL
    assert done.stdout == "asked\n"


def test_a_program_that_is_stopped_is_ended():
    done = bounded.run(["sh", "-c", "kill -STOP $$; sleep 60"], 0.5, grace=0.3)
    assert done.timed_out and done.returncode == -signal.SIGKILL


def test_the_whole_process_group_is_ended():
    done = bounded.run(
        ["sh", "-c", "sleep 60 & echo $!; trap '' TERM; sleep 60 & echo $!; wait"], 0.5, grace=0.3
    )
    pids = done.stdout.split()
    assert done.timed_out and len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_what_a_program_leaves_in_the_background_is_ended_and_not_waited_for():
    done = bounded.run(["sh", "-c", "sleep 60 & echo $!"], 10, grace=0.3)
    assert not done.timed_out and done.returncode == 0
    assert gone(done.stdout.strip())


def test_who_left_for_a_session_of_its_own_is_ended_too(tmp_path):
    """A grandchild that is in no group and no session of ours, as a daemon makes itself."""
    note = tmp_path / "pid"

    def work(report):
        done = bounded.run(
            [
                "sh",
                "-c",
                f"setsid sh -c 'trap \"\" TERM; echo $$ > {note}; exec sleep 60' & sleep 0.4",
            ],
            5,
        )
        report.send("done", [done.returncode, done.abandoned])

    child = bounded.call(work, 8)
    assert child.values["done"] == [0, []]
    assert gone(note.read_text().strip())


def test_a_program_that_the_kernel_will_not_let_go_is_abandoned(frozen):
    done = bounded.run(["cat", str(frozen())], 0.5, grace=0.3)
    assert done.timed_out and done.returncode is None and len(done.abandoned) == 1
    assert state(done.abandoned[0]) == "D"


def test_output_beyond_the_limit_is_dropped_and_said_to_be(monkeypatch):
    monkeypatch.setattr(bounded, "OUTPUT_LIMIT", 100_000)
    done = bounded.run([sys.executable, "-c", "print('x' * 1_000_000)"], 20)
    assert done.cut and len(done.stdout) == 100_000 and done.returncode == 0


def test_output_without_end_does_not_move_the_deadline():
    done = bounded.run(["sh", "-c", "yes"], 0.5, grace=0.3)
    assert done.timed_out and done.cut and len(done.stdout) == bounded.OUTPUT_LIMIT


def test_output_that_is_no_text_is_readable():
    assert bounded.run(["printf", "a\\377b"], 5).stdout == "a\ufffdb"


# ---- the death of the caller ----


@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(60)",
        "bounded.run(['sleep', '60'], 60)",
        "bounded.run(['sh', '-c', 'trap \"\" TERM; sleep 60 & sleep 60'], 60, grace=0.5)",
        "bounded.run(['sh', '-c', 'setsid sleep 60 & sleep 60'], 60, grace=0.5)",
        "bounded.run(['sh', '-c', 'trap \"\" TERM; sleep 0.2; kill -9 $PPID; while :; do sleep "
        "0.2; done'], 1, grace=0.2)",
        "never_minding()",
    ],
    ids=[
        "function",
        "program",
        "program ignoring SIGTERM",
        "program with a daemon",
        "program whose runner is killed",
        "function ignoring SIGTERM",
    ],
)
def test_a_caller_that_is_killed_leaves_nothing(work, tmp_path):
    mark = f"OF_THIS_TEST={tmp_path}"
    program = f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_bounded import bounded, never_minding
child = bounded.Child(lambda report: {work}, 0.5)
time.sleep(0.5)
print("up", flush=True)
time.sleep(60)
"""
    caller = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, OF_THIS_TEST=str(tmp_path)),
    )
    assert caller.stdout.readline() == "up\n"
    ours = marked(mark)
    assert len(ours) >= 2
    caller.kill()
    caller.communicate()
    until = time.monotonic() + 6
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.02)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def marked(mark):
    """Processes that have a word in their environment."""
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (home / "environ").read_bytes() and state(home.name):
                found.append(int(home.name))
        except OSError:
            continue
    return found
