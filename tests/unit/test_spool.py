# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The spool: what waits is whole, in order, once, bounded, and survives its writer."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import spool as _spool

MIB = 1 << 20

#: Writes large runs into a spool until it is killed, and says when it begins.
WRITER = """
import sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import spool as _spool
samples = [metrics.Sample("autopilot_remapped_rows", {"gpu": str(n), "cause": "correctable"}, 1.0) for n in range(2000)]
groups = [metrics.Group({"node": f"gpu{n}", "phase": "preflight"}, samples) for n in range(5)]
spool = _spool.Spool(sys.argv[1], "there", 1 << 30)
print("begins", flush=True)
for number in range(10000):
    spool.add(metrics.Export(f"run{number}", "preflight", 1e9 + number, True, groups))
"""


def export(run_id, finished, *nodes, value=1.0):
    groups = [
        metrics.Group(
            {"node": name, "phase": "preflight"}, [metrics.Sample("autopilot_node_fit", {}, value)]
        )
        for name in nodes
    ]
    return metrics.Export(run_id, "preflight", float(finished), True, groups)


def key(node):
    return _spool.key_of({"node": node, "phase": "preflight"})


@pytest.fixture
def spool(tmp_path):
    return _spool.Spool(str(tmp_path / "spool"), ["https://push", "autopilot_gpu", {}], MIB)


def files(spool):
    return sorted(name for name in os.listdir(spool.directory) if name != "lock")


def test_runs_wait_oldest_first_whichever_was_written_first(spool):
    for run_id, finished in (("second", 200), ("third", 1000), ("first", 3)):
        spool.add(export(run_id, finished, "gpu01"))
    found, wrong = spool.waiting()
    assert ([kept.export.run_id for kept in found], wrong) == (["first", "second", "third"], [])
    assert found[0].export == export("first", 3, "gpu01")


def test_only_the_owner_can_read_it(spool):
    path = spool.add(export("run", 1, "gpu01"))
    with spool.locked(time.monotonic()):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(spool.directory).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(os.path.join(spool.directory, "lock")).st_mode) == 0o600


def test_each_destination_has_its_own(tmp_path):
    one, other = (
        _spool.Spool(str(tmp_path), ["https://push", "autopilot_gpu", {"cluster": name}], MIB)
        for name in "ab"
    )
    one.add(export("run", 1, "gpu01"))
    assert other.waiting() == ([], [])
    assert (
        len(
            _spool.Spool(
                str(tmp_path), ["https://push", "autopilot_gpu", {"cluster": "a"}], MIB
            ).waiting()[0]
        )
        == 1
    )


def test_what_is_left_is_kept_once_with_the_run_that_had_it_last(spool):
    for number, nodes in enumerate((["gpu01", "gpu02"], ["gpu02", "gpu03"], ["gpu03"])):
        spool.add(export(f"run{number}", number, *nodes))
    entries, _wrong = spool.waiting()
    merged = metrics.Group(
        {"node": "gpu02", "phase": "preflight"}, [metrics.Sample("autopilot_node_fit", {}, 0.0)]
    )
    spool.settle(entries, {key("gpu01"): entries[0].export.groups[0], key("gpu02"): merged})
    found, _wrong = spool.waiting()
    assert [
        (kept.export.run_id, [group.labels["node"] for group in kept.export.groups])
        for kept in found
    ] == [("run0", ["gpu01"]), ("run1", ["gpu02"])]
    assert found[1].export.groups == [merged]


def test_what_was_delivered_is_gone(spool):
    spool.add(export("run", 1, "gpu01"))
    spool.settle(spool.waiting()[0], {})
    assert files(spool) == []


def test_the_oldest_are_dropped_first_and_said(tmp_path):
    spool = _spool.Spool(str(tmp_path), "there", 2500)
    for number in range(5):
        spool.add(export(f"run{number}", number, *(f"gpu{node:02}" for node in range(8))))
    size = os.stat(os.path.join(spool.directory, files(spool)[0])).st_size
    assert 800 < size < 1250
    assert [dropped.run_id for dropped in spool.trim()] == ["run0", "run1", "run2"]
    assert [kept.export.run_id for kept in spool.waiting()[0]] == ["run3", "run4"]
    assert spool.trim() == []


def test_what_cannot_be_read_is_dropped_and_said_once(spool):
    spool.add(export("run", 2, "gpu01"))
    bad = Path(spool.directory, "000000000001000-abc.json")
    bad.write_text('{"schema": "autopilot.gpu/metr')
    found, wrong = spool.waiting()
    assert len(found) == 1 and len(wrong) == 1 and wrong[0].startswith(f"dropped: {bad} ")
    assert spool.waiting()[1] == []


def test_a_number_of_401_digits_costs_its_own_run_and_no_other(spool):
    spool.add(export("run", 2, "gpu01"))
    bad = Path(spool.add(export("hostile", 1, "gpu02", value=7.5)))
    bad.write_text(bad.read_text().replace("7.5", "1" + "0" * 400))
    found, wrong = spool.waiting()
    assert [entry.export.run_id for entry in found] == ["run"]
    assert len(wrong) == 1 and wrong[0].startswith(f"dropped: {bad} cannot be read: groups[0]")
    assert not bad.exists()


def test_what_cannot_be_read_just_now_is_said_and_waits(spool):
    path = Path(spool.add(export("run", 2, "gpu01")))
    path.rename(path.with_suffix(".kept"))
    # No user can open a link to itself.
    path.symlink_to(path)
    for _turn in range(2):
        found, wrong = spool.waiting()
        assert found == [] and wrong == [
            f"{path} cannot be read: Too many levels of symbolic links"
        ]
    path.with_suffix(".kept").replace(path)
    assert [kept.export.run_id for kept in spool.waiting()[0]] == ["run"]


def test_what_a_dead_writer_had_begun_is_removed_and_what_a_living_one_writes_is_not(spool):
    spool.add(export("run", 1, "gpu01"))
    dead, alive = Path(spool.directory, ".dead.part"), Path(spool.directory, ".alive.part")
    for path in (dead, alive):
        path.write_text("{")
    os.utime(dead, (time.time() - 3600, time.time() - 3600))
    assert len(spool.waiting()[0]) == 1
    assert (dead.exists(), alive.exists()) == (False, True)


def test_one_at_a_time(spool):
    with spool.locked(time.monotonic() + 1) as first:
        with spool.locked(time.monotonic() + 0.3) as second:
            assert (first, second) == (True, False)


def test_who_waits_gets_the_lock_when_it_is_given_back(spool):
    got = []

    def wait():
        with spool.locked(time.monotonic() + 10) as free:
            got.append(free)

    with spool.locked(time.monotonic() + 1):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        assert got == []
    thread.join(5)
    assert got == [True]


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        _spool.Spool(str(tmp_path / "file"), "there", MIB).add(export("run", 1, "gpu01"))


@pytest.mark.parametrize("turn", range(4))
def test_a_writer_that_is_killed_leaves_no_torn_run(tmp_path, turn):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "begins\n"
    spool = _spool.Spool(str(tmp_path), "there", 1 << 30)
    while not os.path.isdir(spool.directory) or not files(spool):
        time.sleep(0.005)
    time.sleep(0.03 + 0.017 * turn)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    found, wrong = spool.waiting()
    assert wrong == [] and all(
        len(kept.export.groups) == 5 and len(kept.export.groups[4].samples) == 2000
        for kept in found
    )
    for name in files(spool):
        os.utime(os.path.join(spool.directory, name), (1, 1))
    spool.waiting()
    assert [name for name in files(spool) if not name.endswith(".json")] == []
