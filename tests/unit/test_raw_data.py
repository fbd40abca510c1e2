# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw data that is kept out of registered results, and read back by the actions that need it."""

from __future__ import annotations

import multiprocessing

import pytest

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts, raw_data

READINGS = {"gpu_count": {"options": {}, "readings": {"gpus": list(range(2000))}}}


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(raw_data, "_file", None)
    raw_data.open_file()
    yield
    raw_data._file.close()


def kept(host, key="readings", value=None):
    result = {"status": "pass", key: READINGS if value is None else value}
    raw_data.set_apart(result, key, host)
    return result


def answer(result, host="gpu01"):
    return dict(
        hosts.answers({host: {"autopilot_checks": result}}, "autopilot_checks", ["readings"])
    )[host]


def test_a_result_gives_its_readings_back_and_does_not_carry_them(opened):
    result = kept("gpu01")
    assert set(result) == {"status", raw_data.KEY} and len(str(result)) < 100
    assert answer(result) == {"readings": READINGS}


def test_without_a_callback_the_result_carries_its_readings():
    result = kept("gpu01")
    assert result == {"status": "pass", "readings": READINGS}
    assert answer(result) == {"readings": READINGS}


def test_a_reference_gives_only_the_data_of_its_own_host(opened):
    result = kept("gpu01")
    assert answer(result, "gpu02") == {}


@pytest.mark.parametrize(
    "reference",
    [None, "0", [0], [0, 5], [0, -1], [-1, 10], [10**6, 10**12], [10**30, 5], ["0", "5"]],
)
def test_a_reference_that_is_invalid_gives_nothing(opened, reference):
    kept("gpu01")
    assert answer({raw_data.KEY: {"readings": reference}}) == {}
    assert answer({raw_data.KEY: reference}) == {}


def test_what_is_forgotten_gives_nothing_and_leaves_its_space(opened):
    before = kept("gpu01")
    raw_data.forget()
    assert answer(before) == {}
    after = kept("gpu02")
    assert after[raw_data.KEY]["readings"][0] == 0
    assert answer(after, "gpu02") == {"readings": READINGS}


def test_data_over_the_limit_is_left_out_and_named(opened, monkeypatch):
    monkeypatch.setattr(raw_data, "LIMIT", 1000)
    result = kept("gpu01")
    assert set(result) == {"status", "warnings"}
    assert result["warnings"][0].startswith("readings of gpu01 is left out: ")


def _keep_some(queue, fork):
    for turn in range(20):
        host = f"gpu{fork}-{turn}"
        queue.put((host, kept(host, value=[host] * 3000)))


def test_forks_that_write_at_once_do_not_write_into_each_other(opened):
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    writers = [fork.Process(target=_keep_some, args=(queue, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    results = [queue.get(timeout=60) for _result in range(80)]
    for writer in writers:
        writer.join()
    for host, result in results:
        assert answer(result, host) == {"readings": [host] * 3000}
