# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action usage_capture collects from a host that may say anything: the task fails for that host,
and the captures of the other hosts can be compared.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json

import pytest

import usage_world as world
from action_call import call
from test_hostile_answers import VALUES

from ansible_collections.autopilot.gpu.plugins.action import usage_capture
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage import reading, runs
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import on_node

GPU = {"index": 0, "uuid": "GPU-0", "utilization": 50}
BEGUN = world.lines([])[0]
SAMPLES = [
    BEGUN,
    *({"m": BEGUN["m"] + second, "gpus": [GPU]} for second in range(1, 30)),
    {"event": "ended", "reason": "stopped"},
]


def packed(lines):
    return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())


class Host:
    """A host with a capture of these bytes; ``spoilt`` replaces fields of what it answers."""

    def __init__(self, content, spoilt=()):
        self.content, self.spoilt = content, dict(spoilt)
        self.removed = False
        self.asked = 0

    def answer(self, module, arguments):
        self.asked += 1
        if module == "ansible.legacy.slurp":
            given = {"content": base64.b64encode(self.content).decode(), "encoding": "base64"}
        elif arguments["state"] == "absent":
            self.removed, given = True, {"changed": True, "state": "none"}
        else:
            given = {
                "changed": True,
                "state": "ended",
                "directory": "/var/lib/x",
                "record": {"gpus": {"list": [{"uuid": "GPU-0"}]}, "node": {}},
                "parts": ["/var/lib/x/parts/0"],
                "sha256": hashlib.sha256(self.content).hexdigest(),
                "bytes": len(self.content),
            }
        return {key: self.spoilt.get(key, value) for key, value in given.items()}


@pytest.fixture
def collect(tmp_path, monkeypatch):
    """``collect(host, **options)``: the result of the task for that host."""
    monkeypatch.chdir(tmp_path)

    def run(host, **options):
        def execute(_self, module_name, module_args, task_vars):
            return on_node.bounded(host.answer(module_name, module_args))

        monkeypatch.setattr(usage_capture.ActionModule, "_execute_module", execute)
        given = {"name": "run1", "state": "collected", "dest": "runs", **options}
        return call(usage_capture.ActionModule, given, {"inventory_hostname": "gpu03"})[0]

    return run


def test_a_capture_is_collected_and_judged(collect, tmp_path):
    host = Host(packed(SAMPLES))
    result = collect(host)
    assert not result.get("failed"), result
    assert result["health"][0]["check"] == "gpu_usage" and host.removed
    assert len(runs.load(str(tmp_path / "runs"))) == 1


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize(
    "field", ["changed", "state", "directory", "record", "parts", "sha256", "bytes", "content"]
)
def test_a_field_of_another_kind_fails_the_task_of_the_host_alone(collect, tmp_path, field, value):
    (tmp_path / "runs").mkdir()
    (tmp_path / f"runs/gpu01{runs.SAMPLES}").write_bytes(packed(SAMPLES))
    (tmp_path / f"runs/gpu01{runs.RECORD}").write_text("{}", encoding="utf-8")
    result = collect(Host(packed(SAMPLES), {field: value}))
    assert result.get("msg") if result.get("failed") else "state" in result
    assert {one.host for one in runs.load(str(tmp_path / "runs"))} <= {"gpu01", "gpu03"}


def test_no_more_parts_are_fetched_than_max_bytes(collect, tmp_path):
    host = Host(packed(SAMPLES), {"parts": ["/var/lib/x/parts/0"] * 60_000})
    result = collect(host, max_bytes=20_000)
    assert result["failed"] and "max_bytes" in result["msg"]
    assert host.asked < 200 and not host.removed and not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    "content, reason",
    [
        (packed([{"event": "started", "schema": "other"}]), "schema"),
        (b"no gzip", "cannot be unpacked"),
        (
            packed(
                [
                    *SAMPLES,
                    {
                        "m": BEGUN["m"] + 99,
                        "gpus": [{"index": 0, "uuid": f"u{n}"} for n in range(99)],
                    },
                ]
            ),
            "64 GPUs",
        ),
    ],
    ids=["schema", "gzip", "gpus"],
)
def test_what_is_no_capture_stays_on_the_host_and_is_not_compared(
    collect, tmp_path, content, reason
):
    host = Host(content)
    result = collect(host)
    assert result["failed"] and reason in result["msg"] and not host.removed
    with pytest.raises(ValueError, match="has no capture"):
        runs.load(str(tmp_path / "runs"))


def test_the_values_of_a_capture_are_limited(monkeypatch):
    monkeypatch.setattr(reading, "MOST_VALUES", 100)
    with pytest.raises(ValueError, match="more than 100 values"):
        reading.read(map(json.dumps, SAMPLES), {}, "gpu03")


def test_lines_beside_the_samples_are_limited(monkeypatch):
    monkeypatch.setattr(reading, "MOST_KEPT", 5)
    more = [{"event": kind, "source": n} for kind in ("gap", "process") for n in range(9)]
    capture = reading.read(map(json.dumps, [*SAMPLES, *more]), {}, "gpu03")
    assert len(capture.gaps) <= 5 and len(capture.processes) <= 5
