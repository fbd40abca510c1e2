# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""README.md is short, and the screen in it is what the collection prints."""

from __future__ import annotations

import documented
import run_world

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import console

README = documented.ROOT / "README.md"


def screen():
    report = RunReport.from_dict(run_world.readme())
    return "\n".join(line.text for line in console.lines_of(report, width=100))


def test_it_has_at_most_150_lines():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_its_screen_is_real():
    text = README.read_text(encoding="utf-8")
    shown = text.partition("<!-- screen: begin -->")[2].partition("<!-- screen: end -->")[0]
    assert shown.strip() == f"```text\n{screen()}\n```", f"put this into README.md:\n{screen()}"


def test_its_picture_is_small():
    picture = (documented.ROOT / "docs/images/report.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) < 150_000
    assert int.from_bytes(picture[16:20], "big") == 1200
