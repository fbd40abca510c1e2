# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module node_mark tells a node by a run document, whatever that is."""

from __future__ import annotations

import json

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils import _mark
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import (
    Checked,
)


def told(directory, document, **options):
    path = directory / "run.json"
    path.write_text(
        document if isinstance(document, str) else json.dumps(document), encoding="utf-8"
    )
    params = {
        "state": "checked",
        "status": None,
        "report": str(path),
        "node": "gpu07",
        "host": None,
        "reason": "",
        **options,
    }
    return _mark._event(params, "node_mark/me")


def row(**more):
    return {
        "run_id": "r1",
        "nodes": [{"name": "gpu08", "status": "pass"}, {"name": "gpu07", "status": "fail", **more}],
    }


@pytest.mark.parametrize(
    "document, options, event",
    [
        (row(findings=[{"message": word} for word in "abcd"]), {}, Checked("fail", "a; b; c")),
        (
            row(findings=[{"message": "a", "code": "gpu_lost"}]),
            {},
            Checked("fail", "a", code="gpu_lost"),
        ),
        (row(status="warn", fit="unfit"), {}, Checked("fail")),
        (row(status="fail", fit="could_not_tell"), {}, Checked("unknown")),
        (row(findings=[{"message": "a"}]), {"reason": "seen"}, Checked("fail", "seen")),
        (row(), {"host": "gpu08"}, Checked("pass")),
        (row(status=None), {}, Checked("unknown")),
        (row(status="splendid"), {}, Checked("unknown")),
    ],
)
def test_a_node_is_told_what_the_run_found(tmp_path, document, options, event):
    assert told(tmp_path, document, **options) == (event, "r1")


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "7",
        "{",
        {},
        {"nodes": 7},
        {"nodes": ["gpu07"]},
        {"nodes": [{}]},
        row(findings=None),
        row(findings=7),
        row(findings=["x"]),
        row(findings={"a": 1}),
    ],
    ids=str,
)
def test_what_is_no_run_document_is_refused(tmp_path, document):
    with pytest.raises(ValueError, match=r"^report: .*run\.json is not a run document: "):
        told(tmp_path, document)


def test_a_host_that_the_run_did_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^host: gpu09 is not in .*run\.json"):
        told(tmp_path, row(), host="gpu09")
