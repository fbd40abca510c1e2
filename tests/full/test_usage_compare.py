# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs compared as an operator does it: captured by one playbook, compared by another."""

from __future__ import annotations

import json
import re
import sys
import time

import node as sandbox
import pytest

import usage_world as world
from controller import write_inventory
from servers import Pushgateway, missing

CAPTURE, COMPARE = "autopilot.gpu.capture", "autopilot.gpu.compare"


def compare(controller, base, *arguments, **variables):
    done = controller.run(
        "ansible-playbook",
        COMPARE,
        "-e",
        json.dumps(variables),
        *arguments,
        cwd=base,
        ANSIBLE_LOCALHOST_WARNING="false",
    )
    after = done.stdout[done.stdout.rfind("PLAY RECAP") :].splitlines()[1:]
    return done, [line for line in after if line and not re.match(r"\S+ +: ok=", line)]


@pytest.mark.smoke
@pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)
def test_two_nodes_captured_and_compared_with_themselves(controller, tmp_path):
    """As an operator does all of it, with the playbooks alone."""
    nodes = {name: sandbox.build({"gpus": 1}, tmp_path / name) for name in ("gpu01", "gpu02")}
    inventory = write_inventory(
        tmp_path / "hosts.json",
        nodes,
        capture_directory=str(tmp_path / "captures-{{ inventory_hostname }}"),
    )

    def capture(**variables):
        done = controller.run(
            "ansible-playbook", "-i", inventory, CAPTURE, "-e", json.dumps(variables), cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    unnamed = controller.run("ansible-playbook", "-i", inventory, CAPTURE, cwd=tmp_path)
    assert (
        unnamed.returncode != 0
        and "run: is missing; expected the name of the run" in unnamed.stdout
    ), unnamed.stdout
    assert "changed=1" in capture(run="run42", interval=1, duration=300, declared={"batch": 128})
    try:
        end = time.monotonic() + 60
        files = [tmp_path / f"captures-{name}/run42/samples.jsonl" for name in nodes]
        while any(path.read_text(encoding="utf-8").count("\n") < 3 for path in files):
            assert time.monotonic() < end, "three lines within a minute"
            time.sleep(0.05)
    finally:
        said = capture(run="run42", state="collected", expected_gpus=2)
    assert said.count("gpus_missing: the driver lists 1 GPUs, expected 2") == 2, said
    assert sorted(path.name for path in (tmp_path / "runs/run42").iterdir()) == [
        f"{name}.{file}" for name in nodes for file in ("jsonl.gz", "record.json")
    ]
    assert [pid for node in nodes.values() for pid in sandbox.processes_of(node)] == []
    done, after = compare(controller, tmp_path, a="runs/run42", b="runs/run42")
    assert done.returncode == 0 and after[2].startswith(
        "IDENTICAL: same job, same hardware and software"
    ), done.stdout
    assert after[-1] == "comparison: reports/compare/comparison.json"


@pytest.mark.skipif(
    bool(missing("prometheus-pushgateway")), reason=missing("prometheus-pushgateway") or "-"
)
def test_what_was_collected_is_pushed_as_what_a_job_did(controller, tmp_path):
    """In a phase of its own, so that it does not take the place of what a preflight found."""
    (tmp_path / "hosts.json").write_text(
        json.dumps(
            {
                "all": {
                    "hosts": {
                        "moc": {
                            "ansible_connection": "local",
                            "ansible_python_interpreter": sys.executable,
                            "capture_directory": str(tmp_path / "captures"),
                        }
                    }
                }
            }
        ),
        encoding="utf-8",
    )
    world.save(tmp_path / "captured", "moc", *world.moc())
    with Pushgateway(
        tmp_path / "gateway", arguments=["--push.disable-consistency-check"]
    ) as gateway:
        given = {
            "run": "gone",
            "state": "collected",
            "dest": str(tmp_path / "captured"),
            "pushgateway_url": gateway.url,
        }
        done = controller.run(
            "ansible-playbook", "-i", "hosts.json", CAPTURE, "-e", json.dumps(given), cwd=tmp_path
        )
        assert done.returncode == 0 and "autopilot: pushed 1 node to" in done.stdout, done.stdout
        groups = gateway.groups()
    assert {dict(key)["phase"] for key in groups} == {"inflight"}
    group = next(group for key, group in groups.items() if ("node", "moc") in key)
    values = {
        name: {one["labels"]["gpu"]: float(one["value"]) for one in group[name]["metrics"]}
        for name in group
        if name.startswith("autopilot_gpu_usage")
    }
    assert values["autopilot_gpu_usage_mean_ratio"] == {
        "0": pytest.approx(0.31, abs=0.001),
        "1": 0,
        "2": 0,
        "3": 0,
    }
    assert (
        values["autopilot_gpu_usage_idle_ratio"]["0"] == 0
        and values["autopilot_gpu_usage_idle_episodes"]["0"] == 0
    )
    assert set(values) == {
        f"autopilot_gpu_usage_{name}"
        for name in (
            "mean_ratio",
            "median_ratio",
            "idle_ratio",
            "idle_episodes",
            "memory_occupied_ratio",
        )
    }
