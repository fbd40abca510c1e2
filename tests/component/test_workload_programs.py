# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of the role `workload`, as its containers run them: their figures, and what they leave
when a side of them fails. vLLM is a stand-in without a model.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workload_world import write_vllm

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads import (
    figures,
    kinds,
)

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "roles/workload/files"


def command(name, arguments):
    return [sys.executable, "-c", (FILES / f"{name}.py").read_text(), json.dumps(arguments)]


def read(kind, printed):
    return figures.pod_figures(kinds.KINDS[kind], "pod", "node", printed)


def test_the_synthetic_workload_reports_its_loss_and_speed():
    done = subprocess.run(
        command("synthetic", {"steps": 100}), capture_output=True, text=True, timeout=60, check=True
    )
    found = read("synthetic", done.stdout)
    assert found.reports == 11
    assert found.figures["samples_per_second"] > 0
    assert found.figures["loss"] < found.first_loss / 10
    assert not found.not_finite


@pytest.fixture
def stand_in(tmp_path):
    """``(arguments, environment)`` of the program of the kind vllm, whose model is to be set."""
    program = tmp_path / "vllm"
    write_vllm(program)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {
        "model": "good",
        "gpus": 1,
        "prompts": 32,
        "input_tokens": 128,
        "output_tokens": 128,
        "concurrency": 16,
        "timeout": 60,
        "port": port,
    }
    return arguments, {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def run(stand_in, **arguments):
    given, environment = stand_in
    done = subprocess.run(
        command("vllm", {**given, **arguments}),
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert is_free(given["port"])
    return done


def is_free(port):
    """True if the server has ended."""
    with socket.socket() as other:
        return other.connect_ex(("127.0.0.1", port)) != 0


def test_vllms_result_is_printed_for_the_reader_of_logs(stand_in):
    done = run(stand_in)
    assert done.returncode == 0, done.stderr
    assert read("vllm", done.stdout).figures == {
        "output_tokens": 6280.1,
        "total_tokens": 12560.2,
        "requests": 49.06,
        "ttft_median": 38.4,
        "ttft_p99": 97.3,
        "tpot_median": 7.98,
        "tpot_p99": 8.9,
        "completed": 32,
        "prompts": 32,
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"model": "no-server"}, "the server ended with status 1 before it was ready"),
        ({"model": "server-dies"}, "the server ended with status 9 before the load ended"),
        ({"model": "no-load"}, "the load ended with status 1"),
        ({"model": "slow-load", "timeout": 4}, "the deadline passed before the load ended"),
    ],
)
def test_the_failure_of_one_side_ends_the_other(stand_in, arguments, told):
    done = run(stand_in, **arguments)
    assert done.returncode == 1 and told in done.stderr, done.stderr


def test_torchrun_gets_the_program_in_a_file_with_its_argument(tmp_path):
    variables = yaml.safe_load((ROOT / "roles/workload/vars/main.yml").read_text(encoding="utf-8"))
    shell = variables["workload_torchrun"].replace("{{ workload_gpus | int }}", "2")
    program = tmp_path / "torchrun"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    source = (FILES / "pytorch_fsdp.py").read_text(encoding="utf-8")
    environment = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "run-0", "MASTER_PORT": "23456"}
    done = subprocess.run(
        ["bash", "-c", shell.replace("/tmp/train.py", f"{tmp_path}/train.py"), source, "{}"],
        env={**os.environ, **environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    options = "--nnodes 2 --node_rank 1 --nproc_per_node 2 --master_addr run-0 --master_port 23456"
    assert done.stdout.split() == [*options.split(), f"{tmp_path}/train.py", "{}"]
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == source
    compile(source, "pytorch_fsdp.py", "exec")


def test_ray_lora_prints_reports_for_the_reader_of_logs():
    program = runpy.run_path(str(FILES / "ray_lora.py"))
    steps = [step for step in range(1, 101) if program["reported"](step, 100)]
    assert steps == [1, *range(10, 101, 10)]
    printed = program["report"](1, 9.5, 0, 0.1) + program["report"](10, 7.25, 36, 4)
    found = read("ray_lora", printed)
    assert found.reports == 2 and found.first_loss == 9.5
    assert found.figures == {"samples_per_second": 9.0, "loss": 7.25}


def test_the_end_of_the_pod_ends_server_and_load(stand_in):
    given, environment = stand_in
    process = subprocess.Popen(command("vllm", {**given, "model": "slow-load"}), env=environment)
    while is_free(given["port"]):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert is_free(given["port"])
