# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads of the queue's releases from a real server: complete, bounded, and nothing half-written."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.queue_releases import (
    RELEASES,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._queue import archives

CONTENT = b"an archive" * 1000


class Handler(http.server.BaseHTTPRequestHandler):
    """/whole answers; /slow sends a byte now and then; anything else is not there."""

    def do_GET(self):
        if self.path not in ("/whole", "/slow"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with contextlib.suppress(OSError):
            if self.path == "/whole":
                self.wfile.write(CONTENT)
            while self.path == "/slow":
                self.wfile.write(b"a")
                time.sleep(0.1)

    def log_message(self, *_words):
        pass


@pytest.fixture
def release():
    """``release(path)``: a release whose archive is at that path of a server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    yield lambda path: RELEASES["kueue", "0.10.2"]._replace(archive=f"{address}/{path}")
    server.shutdown()
    server.server_close()


def test_an_archive_is_downloaded_whole(release, tmp_path):
    target = tmp_path / "cache/kueue-0.10.2.tar.gz"
    archives.download(release("whole"), str(target), 20)
    assert target.read_bytes() == CONTENT
    assert [one.name for one in target.parent.iterdir()] == [target.name]
    assert target.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("path, timeout", [("missing", 20), ("slow", 1)])
def test_a_download_that_fails_leaves_nothing(release, tmp_path, path, timeout):
    with pytest.raises(Exception, match="404|no complete answer within 1 s"):
        archives.download(release(path), str(tmp_path / "kueue.tar.gz"), timeout)
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_bounded(release, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_ARCHIVE", len(CONTENT) - 1)
    with pytest.raises(OSError, match="more than 9999 bytes"):
        archives.download(release("whole"), str(tmp_path / "kueue.tar.gz"), 20)
    assert list(tmp_path.iterdir()) == []
