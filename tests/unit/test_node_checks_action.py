# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of node_checks: the controller's copy of a snapshot, and an interpreter that fails."""

from __future__ import annotations

import os
import threading

import pytest

from ansible_collections.autopilot.gpu.plugins.action import node_checks
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import on_node
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda path: None, "no snapshot"),
        (os.mkfifo, "not a regular file"),
        (lambda path: os.symlink("/dev/zero", path), "not a regular file"),
        (os.mkdir, "not a regular file"),
        (lambda path: os.symlink(path, path), "Too many levels"),
    ],
)
def test_what_is_no_copy_is_said_and_holds_nobody_up(tmp_path, make, said):
    path = controller_snapshots.controller_path(str(tmp_path), "job42", "gpu01")
    os.makedirs(os.path.dirname(path))
    make(path)
    found = []
    # A thread, since what waits for a pipe waits for ever.
    reading = threading.Thread(
        target=lambda: found.append(node_checks._copy(str(tmp_path), "job42", "gpu01")), daemon=True
    )
    reading.start()
    reading.join(10)
    assert len(found) == 1 and set(found[0]) == {"error"} and said in found[0]["error"]


@pytest.mark.parametrize(
    "stderr, stdout, said",
    [
        (
            "ImportError: libpython3.9.so.1.0: no such file\n  while starting\n",
            "",
            "ImportError: libpython3.9.so.1.0: no such file",
        ),
        ("", "\nKilled\n", "Killed"),
        ("", "", "it wrote nothing"),
    ],
)
def test_an_interpreter_that_does_not_start_is_named_with_its_first_line(stderr, stdout, said):
    result = {"rc": 127, "module_stderr": stderr, "module_stdout": stdout}
    assert on_node.interpreter_failure("/opt/python", result) == (
        f"the Python interpreter /opt/python did not run the module (exit status 127): {said}"
    )


def test_an_exception_of_a_module_is_none_of_its_interpreter():
    raised = "Traceback (most recent call last):\nKeyError: 1\n"
    assert on_node.is_traceback({"module_stderr": raised, "module_stdout": ""})
    assert on_node.is_traceback({"module_stderr": "", "module_stdout": raised})
    assert not on_node.is_traceback({"module_stderr": "Killed", "module_stdout": ""})


def test_the_limits_of_nhc_apply_to_the_host_and_options_of_the_task_override_them(tmp_path):
    conf = tmp_path / "nhc.conf"
    conf.write_text(
        "gpu01 || check_gpu_count 8\n* || check_gpu_bw 50 40\n* || check_gpu_xid\n",
        encoding="utf-8",
    )
    given = {"nhc_conf": str(conf), "options": {"pciebw": {"minimum": 46}}}
    expected = {
        "pcie_bandwidth": {"minimum": 46},
        "gpu_link": {"minimum": 40.0},
        "xid_errors": {"since": 7200.0},
    }
    assert node_checks._limits_of_nhc(given, "gpu01") == {"options": expected, "expected_gpus": 8}
    assert node_checks._limits_of_nhc(given, "gpu02") == {"options": expected}
    assert node_checks._limits_of_nhc({**given, "expected_gpus": 4}, "gpu01") == {
        "options": expected
    }


@pytest.mark.parametrize(
    "text, options, said",
    [
        ("gpus: 8\n", {}, "nhc_conf: no line has"),
        ("* || check_gpu_xid\n", [1], r"options: \[1\] is invalid; expected a dictionary"),
        ("* || check_gpu_xid\n", {"pciebv": {}}, "options: unsupported check 'pciebv'"),
    ],
)
def test_an_invalid_file_of_nhc_or_option_is_named(tmp_path, text, options, said):
    conf = tmp_path / "nhc.conf"
    conf.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        node_checks._limits_of_nhc({"nhc_conf": str(conf), "options": options}, "gpu01")
