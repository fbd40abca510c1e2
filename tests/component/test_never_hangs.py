# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver that never answers costs a pass its deadline and no more: the check says what hung, the
others have their results, and no process stays.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from node import processes_of

DEADLINE = 2.0
PASSIVE = ("gpu_count", "remapped_rows", "gpu_power")
HANGS = ("ignore_term", "stop", "uninterruptible")


@pytest.fixture
def passed(measure):
    """``passed(node, checks) -> outcomes by name``: one pass with the deadline, whose
    leftovers are ended.
    """
    nodes = []

    def run(node, checks=PASSIVE, **more):
        nodes.append(node)
        outcomes = measure.several(node, checks, timeout=DEADLINE, **more)
        return {outcome.result.check: outcome for outcome in outcomes}

    yield run
    for node in nodes:
        for pid in processes_of(node):
            os.kill(pid, signal.SIGKILL)


def nobody_stays(node):
    """No process of the node is left, or soon will be: SIGKILL is delivered in its own time."""
    until = time.monotonic() + 2
    while processes_of(node) and time.monotonic() < until:
        time.sleep(0.02)
    return not processes_of(node)


def the_hang(outcome):
    """The finding of a check that hung, and the seconds that it names."""
    assert outcome.result.status == "unknown", outcome.result
    finding = [finding for finding in outcome.result.findings if finding.code == "hung"][0]
    return finding, float(re.search(r"did not return within ([\d.]+) s", finding.message).group(1))


@pytest.mark.parametrize("mode", HANGS)
def test_one_call_on_one_gpu_hangs(mode, node, passed):
    built = node(
        {
            "rules": [
                {"gpu": 3, "call": call, "hang": mode}
                for call in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram")
            ]
        }
    )
    outcomes = passed(built, expected_gpus=8)
    finding, seconds = the_hang(outcomes["remapped_rows"])
    assert finding.message.startswith("nvmlDeviceGetRemappedRows on GPU 3 did not return within ")
    assert (finding.subject.index, finding.subject.uuid, finding.subject.pci) == (
        3,
        built.gpus[3]["uuid"],
        "00000000:5D:00.0",
    )
    assert 1 <= seconds <= DEADLINE
    assert (
        outcomes["gpu_count"].result.status == "pass"
        and outcomes["gpu_power"].result.status == "pass"
    )
    assert [
        gpu["index"] for gpu in outcomes["remapped_rows"].readings["gpus"] if "error" not in gpu
    ] == [0, 1, 2]
    assert nobody_stays(built)


def test_every_call_on_one_gpu_hangs(node, passed):
    built = node({"rules": [{"gpu": 3, "call": "*", "hang": "ignore_term"}]})
    outcomes = passed(built, expected_gpus=8)
    for check in PASSIVE:
        finding, seconds = the_hang(outcomes[check])
        assert finding.message.startswith(
            "nvmlDeviceGetHandleByIndex on GPU 3 did not return within "
        )
        assert 1 <= seconds <= DEADLINE
        assert [one.status for one in outcomes[check].result.findings if one.status == "fail"] == []
    assert nobody_stays(built)


def test_the_library_hangs_when_it_is_initialised(node, passed):
    built = node({"rules": [{"gpu": "system", "call": "nvmlInit", "hang": "stop"}]})
    outcomes = passed(built, expected_gpus=8)
    for check in PASSIVE:
        finding, _seconds = the_hang(outcomes[check])
        assert finding.message.startswith("nvmlInit did not return within ")
        assert finding.subject.kind == "node"
    assert nobody_stays(built)


def test_the_library_hangs_when_it_is_shut_down(node, passed):
    built = node({"rules": [{"gpu": "system", "call": "nvmlShutdown", "hang": "ignore_term"}]})
    outcomes = passed(built, expected_gpus=8)
    assert [outcomes[check].result.status for check in PASSIVE] == ["pass", "pass", "pass"]
    assert nobody_stays(built)


@pytest.mark.parametrize(
    "deed, words",
    [
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("raise TypeError('odd')", "TypeError: odd"),
    ],
    ids=["crash", "exception"],
)
def test_a_measurement_that_dies_costs_no_other_check_its_result(
    deed, words, node, passed, tmp_path, monkeypatch
):
    import pynvml

    (tmp_path / "pynvml.py").write_text(
        f"exec(compile(open({pynvml.__file__!r}).read(), 'pynvml', 'exec'))\n"
        f"def nvmlDeviceGetRemappedRows(handle):\n    {deed}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcomes = passed(node({}), expected_gpus=8)
    crashed = [
        finding
        for finding in outcomes["remapped_rows"].result.findings
        if finding.code == "crashed"
    ]
    assert outcomes["remapped_rows"].result.status == "unknown" and len(crashed) == 1
    assert (
        words in crashed[0].message and "nvmlDeviceGetRemappedRows on GPU 0" in crashed[0].message
    )
    assert (
        outcomes["gpu_count"].result.status == "pass"
        and outcomes["gpu_power"].result.status == "pass"
    )


@pytest.mark.parametrize(
    "rules, what",
    [
        (
            [{"gpu": 3, "call": "nvmlDeviceGetRemappedRows", "hang": "uninterruptible"}],
            "nvmlDeviceGetRemappedRows on GPU 3",
        ),
        (
            [{"gpu": 3, "call": "*", "hang": "uninterruptible"}],
            "nvmlDeviceGetHandleByIndex on GPU 3",
        ),
    ],
    ids=["one call", "one GPU"],
)
def test_what_not_even_sigkill_ends_is_abandoned_and_named(rules, what, node, passed, frozen):
    built = node({"rules": rules})
    frozen(built.directory / "frozen")
    outcomes = passed(built, expected_gpus=8)
    finding, _seconds = the_hang(outcomes["remapped_rows"])
    assert finding.message.startswith(f"{what} did not return within ")
    pid = finding.evidence["abandoned_pid"]
    assert f"process {pid} could not be ended" in finding.message
    assert pid in processes_of(built)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    if "Remapped" in what:
        assert (
            outcomes["gpu_count"].result.status == "pass"
            and outcomes["gpu_power"].result.status == "pass"
        )
        assert processes_of(built) == [pid]


def test_nobody_downstream_waits_for_what_was_abandoned(node, frozen, tmp_path):
    """An abandoned process that held on to the task's output would keep Ansible, and over SSH the
    connection, waiting for ever.
    """
    built = node(
        {"rules": [{"gpu": 3, "call": "nvmlDeviceGetRemappedRows", "hang": "uninterruptible"}]}
    )
    frozen(built.directory / "frozen")
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        f"all: {{hosts: {{gpu07: {{ansible_connection: local, ansible_python_interpreter: "
        f"{built.python}}}}}}}\n"
    )
    ansible = [
        str(Path(sys.executable).with_name("ansible")),
        "-i",
        str(inventory),
        "gpu07",
        "-m",
        "autopilot.gpu.remapped_rows",
    ]
    done = subprocess.run(
        [*ansible, "-a", f"host_root={built.root} timeout={DEADLINE}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and '"status": "unknown"' in done.stdout, done.stdout + done.stderr
    assert len(processes_of(built)) == 1
