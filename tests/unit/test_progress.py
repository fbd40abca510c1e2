# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines that tell how far a long task is, and where lines for people go."""

from __future__ import annotations

import pytest
from ansible import constants

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import progress, screen


@pytest.fixture
def shown(monkeypatch):
    """The lines that are shown, with the name of their stream."""
    lines = []
    monkeypatch.setattr(
        screen.Display,
        "display",
        lambda _self, text, color=None, stderr=False: lines.append(
            ("stderr" if stderr else "stdout", text)
        ),
    )
    return lines


def answer_each_second(hosts, answers):
    """A task on so many hosts, of which one answers each second."""
    now = [1000.0]
    task = progress.Progress("autopilot preflight", hosts, clock=lambda: now[0])
    for answer in answers:
        now[0] += 1
        task.count(answer)


def test_a_line_every_30_s_counts_what_hosts_answered(shown):
    answers = [{"status": "pass"}] * 80
    answers[3:7] = [{"status": "fail"}, {"status": "fail"}, {"unreachable": True}, {"failed": True}]
    answer_each_second(1000, answers)
    assert [text for _stream, text in shown] == [
        f"autopilot preflight: {answered} of 1000 hosts answered "
        f"(2 failing, 1 unreachable, 1 without a result), {answered} s"
        for answered in (30, 60)
    ]


def test_few_hosts_need_no_line(shown):
    answer_each_second(progress.LEAST_HOSTS - 1, [{"status": "pass"}] * 49)
    assert shown == []


@pytest.mark.parametrize("callback", ["json", "ansible.posix.json", "community.general.ndjson"])
def test_lines_leave_standard_output_to_programs_and_progress_is_not_shown(
    monkeypatch, shown, callback
):
    monkeypatch.setattr(constants, "DEFAULT_STDOUT_CALLBACK", callback)
    screen.show("preflight passed")
    answer_each_second(1000, [{"status": "pass"}] * 40)
    assert shown == [("stderr", "preflight passed")]


@pytest.mark.parametrize("callback", ["default", "ansible.builtin.minimal", "awx_display", "yaml"])
def test_lines_for_people_are_on_standard_output(monkeypatch, shown, callback):
    monkeypatch.setattr(constants, "DEFAULT_STDOUT_CALLBACK", callback)
    screen.show("preflight passed")
    assert shown == [("stdout", "preflight passed")]
