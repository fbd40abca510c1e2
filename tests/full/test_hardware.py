# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""make hardware on stand-in GPUs with stand-in tools: its verdict follows from the comparisons, and
a tool that is missing or hangs is never agreement.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import hardware_world

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "hardware" / "hardware.py"
RATES = {"*": {"h2d": 55.2e9, "d2h": 55.0e9}}
TWO = {"gpus": 2, "cuda": RATES}


@pytest.fixture
def report(tmp_path):
    """``report(node, **seconds) -> (exit status, output, document or None, page or None)``; ``seconds``
    are shorter deadlines of tools.
    """

    def run(node, **seconds):
        output = tmp_path / "reports"
        program = (
            "import runpy, sys; sys.path.insert(0, sys.argv[1]); import tools; "
            f"tools.SECONDS.update({seconds!r}); sys.argv = sys.argv[2:]; "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        options = ["--output", str(output), "--host-root", node.root]
        done = subprocess.run(
            [node.python, "-c", program, str(PROGRAM.parent), str(PROGRAM), *options],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert not done.stderr, done.stderr
        written = output / "hardware-report.json"
        if not written.exists():
            return done.returncode, done.stdout, None, None
        page = (output / "hardware-report.md").read_text(encoding="utf-8")
        return done.returncode, done.stdout, json.loads(written.read_text(encoding="utf-8")), page

    return run


def results(document, tool):
    return {
        (one["figure"], one["gpu"]): one["result"]
        for one in document["comparisons"]
        if one["tool"] == tool
    }


def test_all_tools_agree(node, report):
    built = node(TWO)
    hardware_world.install(built)
    status, output, document, page = report(built)
    assert (status, document["verdict"]["reasons"]) == (0, [])
    assert "this release is right on this GPU" in output
    assert {one["result"] for one in document["comparisons"]} == {"agree"}
    tools = {one["tool"] for one in document["comparisons"]}
    assert tools == {"nvidia-smi", "nvbandwidth", "dcgmi", "all_reduce_perf"}
    assert {figure for figure, _gpu in results(document, "nvidia-smi")} == {
        *("UUIDs", "version", "name", "ECC mode", "links up", "power limit, W"),
        *("rows remapped, correctable", "rows remapped, uncorrectable"),
        *("row remapping pending", "row remapping failed", "graphics clock, MHz"),
        *("ECC volatile corrected", "ECC volatile uncorrected"),
        *("ECC aggregate corrected", "ECC aggregate uncorrected"),
        *("PCIe generation, maximum", "PCIe lanes, maximum", "PCIe replays"),
    }
    assert document["about"]["cuda"] == "13.0" and document["about"]["dcgm"] == "4.6.0"
    assert "| GPUs | 2 x NVIDIA H100 80GB HBM3 |" in page
    assert "bus bandwidth 412.3 GB/s" in page


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (
            {"remapped": 3},
            "remapped_rows: GPU 0: rows remapped, uncorrectable: differs by -100.0 % "
            "(0, nvidia-smi 3)",
        ),
        (
            {"host_to_device": 27.6},
            "pcie_bandwidth: GPU 0: host to device: differs by +100.0 % (55.2, nvbandwidth 27.6)",
        ),
        (
            {"wrong": 7},
            "gpu_link: data: differs: bus bandwidth 412.3 GB/s (right, all_reduce_perf wrong)",
        ),
    ],
)
def test_a_figure_that_differs_makes_the_release_wrong(node, report, told, reason):
    built = node(TWO)
    hardware_world.install(built, **told)
    status, output, document, page = report(built)
    assert (status, document["verdict"]["text"]) == (1, "this release is wrong on this GPU")
    assert reason in document["verdict"]["reasons"] and reason in output
    assert "**Verdict: this release is wrong on this GPU**" in page


def test_missing_tools_are_not_agreement(node, report):
    status, output, document, _page = report(node({**TWO, "dcgmi": False}))
    assert status == 2
    assert "it could not be shown that this release is right on this GPU" in output
    for tool in ("nvidia-smi", "nvbandwidth", "all_reduce_perf", "dcgmi"):
        assert set(results(document, tool).values()) == {"not compared"}, tool
        assert f"not compared: {tool} is not installed" in output


def test_without_nvbandwidth_pytorch_is_compared(node, report):
    built = node({"gpus": 1, "cuda": RATES})
    hardware_world.install(built)
    (built.directory / "bin" / "nvbandwidth").unlink()
    rates = 'case "$2" in local) echo "[1250.5]";; *) echo "[55.0]";; esac'
    hardware_world.write(built, "python3", rates)
    _status, _output, document, _page = report(built)
    assert results(document, "PyTorch") == {
        ("host to device", 0): "agree",
        ("device to host", 0): "agree",
        ("memory", 0): "agree",
    }
    assert not results(document, "nvbandwidth")


def test_a_tool_that_hangs_is_ended_and_named(node, report):
    built = node({"gpus": 1, "cuda": RATES})
    hardware_world.install(built)
    hardware_world.write(built, "nvbandwidth", "trap '' TERM; sleep 600")
    status, output, document, _page = report(built, nvbandwidth=2)
    assert status == 2
    assert set(results(document, "nvbandwidth").values()) == {"not compared"}
    assert "nvbandwidth did not answer within 2 s and was ended" in output
    assert set(results(document, "nvidia-smi").values()) == {"agree"}


def test_a_failure_that_nvidia_smi_confirms_is_a_right_answer(node, report):
    counts = [("nvmlDeviceGetRemappedRows", [0, 3, 0, 1])]
    counts += [(f"field.{number}", [value]) for number, value in ((142, 0), (143, 3), (145, 1))]
    rules = [{"gpu": "*", "call": call, "values": values} for call, values in counts]
    built = node({"gpus": 1, "cuda": RATES, "rules": rules})
    hardware_world.install(built, remapped=3, failed="Yes")
    status, _output, document, _page = report(built)
    [rows] = [one for one in document["checks"] if one["check"] == "remapped_rows"]
    assert rows["status"] == "fail"
    assert (status, document["verdict"]["reasons"]) == (0, [])


@pytest.mark.parametrize(("number", "severity", "judged"), [(29, 5, "warn"), (33, 2, "fail")])
def test_dcgm_prints_fail_for_a_warning_too(node, report, number, severity, judged):
    """29 is persistence mode, a configuration; 33 isolates the GPU."""
    fault = {"test": "software", "gpu": 0, "id": number, "severity": severity, "text": "a fault"}
    built = node({"gpus": 1, "cuda": RATES, "dcgmi": {"faults": [fault]}})
    hardware_world.install(built)
    status, _output, document, _page = report(built)
    [diagnostic] = [one for one in document["checks"] if one["check"] == "dcgm_diag"]
    assert diagnostic["status"] == judged
    assert results(document, "dcgmi") == {("result", None): "agree"}
    assert (status, document["verdict"]["reasons"]) == (0, [])


def test_no_tool_is_started_after_the_limit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    tools = importlib.import_module("tools")
    with pytest.raises(tools.Unusable, match="nvidia-smi was not started: no time was left"):
        tools.Tools(time.monotonic()).nvidia_smi()


def test_nothing_is_run_without_a_gpu(node, report):
    status, output, document, _page = report(node("no_gpu"))
    assert (status, document) == (2, None)
    assert "hardware: this machine has no usable NVIDIA GPU" in output
    assert "nothing was run" in output


def test_a_check_that_crashes_makes_the_release_wrong(node, report):
    built = node({"gpus": 1, "cuda": {"*": {**RATES["*"], "crash": "cuMemcpyDtoHAsync_v2"}}})
    hardware_world.install(built)
    status, _output, document, _page = report(built)
    assert status == 1
    assert any(one.startswith("pcie_bandwidth: unknown") for one in document["verdict"]["reasons"])
