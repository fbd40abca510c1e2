# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in node: a scenario that means nothing is refused in words, and what is rendered looks
like the real thing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host

import node as sandbox  # found by conftest.py

SCENARIOS = sorted(path.stem for path in (sandbox.SANDBOX / "scenarios").glob("*.yml"))


@pytest.mark.parametrize(
    "scenario, words",
    [
        (
            {"gpu_count": 8},
            "the scenario has no key 'gpu_count'; accepted are description, model, gpus",
        ),
        ({"model": "H900"}, "'H900' has no profile; there are H100-80GB"),
        ({"gpus": 9}, "gpus: 9 is invalid; expected a number from 0 to 8"),
        ({"gpus": "eight"}, "gpus: 'eight' is invalid"),
        (
            {"driver": {"library": "somewhere"}},
            "driver.library: 'somewhere' is invalid; expected true, false or container",
        ),
        ({"driver": {"present": True}}, "driver has no key 'present'"),
        ({"rules": [{"gpu": 3, "call": "nvmlInit", "return": 3}]}, "a rule has no key 'return'"),
        (
            {"rules": [{"gpu": "three", "call": "nvmlInit", "returns": 3}]},
            "a rule's gpu is an index",
        ),
        (
            {"rules": [{"gpu": 3, "call": "remapped rows", "returns": 3}]},
            "a rule's call is an NVML or CUDA function",
        ),
        (
            {"rules": [{"gpu": 3, "call": "nvmlInit"}]},
            "a rule has one of values, returns, hang, missing",
        ),
        (
            {"rules": [{"gpu": 3, "call": "nvmlInit", "hang": "stop", "values": [1]}]},
            "a rule has one of values, returns, hang, missing",
        ),
        (
            {"rules": [{"gpu": 3, "call": "nvmlInit", "hang": "for ever"}]},
            "hang: 'for ever' is invalid; there are ignore_term, stop, uninterruptible",
        ),
        ({"rules": ["nvmlInit"]}, "a rule is a mapping"),
        ({"cuda": {"all": {}}}, "cuda: 'all': {} is invalid"),
        ({"pci": {"lost": [1]}}, "pci has no key 'lost'; accepted are missing, drivers, link"),
        (
            {"processes": [{"gpu": 0, "pid": 1, "kind": "cuda"}]},
            "a process is one of compute, graphics, mps",
        ),
        ("no_such_scenario", "no such scenario; there are corrupt_copy"),
    ],
)
def test_a_scenario_that_means_nothing_is_refused(scenario, words, tmp_path):
    with pytest.raises(sandbox.ScenarioError) as refused:
        sandbox.build(scenario, tmp_path)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_rendered_and_says_what_it_is(name, node):
    built = node(name)
    assert built.scenario["description"]
    assert len(Host(built.root).pci_gpus()) == built.scenario["gpus"]


def test_a_rule_of_the_scenario_replaces_what_the_model_answers(node):
    rules = [
        {"gpu": "*", "call": "nvmlDeviceGetUUID", "returns": 3},
        {"gpu": "*", "call": "nvmlDeviceGetClockInfo", "values": [345]},
    ]
    built = node({"gpus": 2, "rules": rules})
    table = (built.directory / "node.table").read_text().splitlines()
    assert [row for row in table if "UUID" in row or "GetClockInfo" in row] == [
        "* nvmlDeviceGetUUID 3",
        "* nvmlDeviceGetClockInfo 0 345",
    ]


def test_rates_are_plain_numbers_however_yaml_reads_them(node):
    table = (node("slow_link").directory / "node.table").read_text().splitlines()
    assert "* cuda.h2d 0 55200000000" in table and "4 cuda.h2d 0 3300000000" in table


def test_the_python_of_a_node_carries_the_node(node):
    built = node({"gpus": 1})
    program = (
        "import os, shutil, sys; print(os.environ['SANDBOX_NODE'], "
        "os.environ['LD_LIBRARY_PATH'], sys.argv[1])"
    )
    done = subprocess.run(
        [built.python, "-c", program, "a b"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{built.directory} {built.directory}/lib a b\n"


def test_the_fake_files_are_read_as_a_host_is(node):
    built = node(
        {
            "pci": {
                "link": {4: {"current_link_width": 1, "numa_node": -1, "local_cpulist": None}},
                "missing": [7],
                "drivers": {6: "vfio-pci"},
            }
        }
    )
    host = Host(built.root)
    assert host.pci_link("00000000:18:00.0") == {
        "current_link_speed": 32.0,
        "current_link_width": 16,
        "max_link_speed": 32.0,
        "max_link_width": 16,
        "numa_node": 0,
        "local_cpulist": "0-55,112-167",
    }
    assert host.pci_link("00000000:9A:00.0") == {
        "current_link_speed": 32.0,
        "current_link_width": 1,
        "max_link_speed": 32.0,
        "max_link_width": 16,
        "numa_node": None,
        "local_cpulist": None,
    }
    assert [device["driver"] for device in host.pci_gpus()] == ["nvidia"] * 6 + ["vfio-pci"]
    assert len(host.driver_gpus()) == 7 and host.boot_id()
    assert host.cpu_model() == "Intel(R) Xeon(R) Platinum 8480C"


@pytest.mark.parametrize(
    "text, name",
    [
        (
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: A: B \n\nprocessor\t: 1\nmodel "
            "name\t: C\n",
            "A: B",
        ),
        ("processor\t: 0\nBogoMIPS\t: 2000.00\nCPU part\t: 0xd4f\n", None),
        ("model name\t:\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_model_of_the_cpu_is_that_of_the_first(tmp_path, text, name):
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(text)
    assert Host(tmp_path).cpu_model() == name


def test_what_a_gpu_lends_to_virtual_machines_is_no_gpu_of_the_host(node):
    built = node({"gpus": 1})
    gpu = Path(built.root, "sys/bus/pci/devices/0000:18:00.0").resolve()
    virtual = gpu.parent / "0000:18:00.4"
    virtual.mkdir()
    for name in ("vendor", "class", "device"):
        (virtual / name).write_text((gpu / name).read_text())
    (virtual / "physfn").symlink_to(gpu)
    Path(built.root, "sys/bus/pci/devices/0000:18:00.4").symlink_to(virtual)
    assert [one["pci"] for one in Host(built.root).pci_gpus()] == ["00000000:18:00.0"]


def test_the_bridge_above_a_gpu_is_its_parent_directory(node):
    device = Path(node({}).root, "sys/bus/pci/devices/0000:9a:00.0").resolve()
    assert (device.parent / "class").read_text().strip() == "0x060400"
    assert (device.parent / "current_link_width").read_text().strip() == "16"


def test_a_job_is_seen_in_proc(node):
    built = node("gpu_busy")
    assert Host(built.root).process_name(4242) == "python3"
    assert os.readlink(f"{built.root}/proc/4242/fd/7") == "/dev/nvidia2"
