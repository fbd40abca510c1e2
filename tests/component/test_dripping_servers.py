# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""API servers and agents that answer byte by byte for ever, or with more or deeper JSON than fits:
real connections, each request ends with an error of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socketserver
import threading
import time

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MOST_BYTES,
    ApiError,
    Request,
    Unavailable,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health import lenient
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ROW = json.dumps({"node": "gpu01", "health": []}).encode()
DEEP = b"[" * 100_000
#: Beginning of an answer, after which a byte follows now and then.
DRIPS = {
    "head": b"HTTP/1.1 200 OK\r\nX-Slow: ",
    "body": OK + b'Content-Length: 1000000\r\n\r\n{"kind": "',
    "chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n0",
}


@contextlib.contextmanager
def answering(pieces):
    """The URL of a server that sends these pieces of an answer, each at once."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1 << 16)
            with contextlib.suppress(OSError):
                for piece in pieces():
                    self.request.sendall(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def dripping(start):
    def pieces():
        yield start
        for _byte in itertools.repeat(b"0"):
            time.sleep(0.05)
            yield _byte

    return pieces


def cluster_at(url, monkeypatch):
    monkeypatch.setenv("K8S_AUTH_HOST", url)
    monkeypatch.setenv("K8S_AUTH_API_KEY", "token")
    return Cluster()


@pytest.mark.parametrize("start", DRIPS.values(), ids=DRIPS)
def test_a_dripping_api_server_is_abandoned_at_the_deadline(start, monkeypatch):
    with answering(dripping(start)) as url:
        with pytest.raises(Unavailable, match="no complete answer within 1 s"):
            cluster_at(url, monkeypatch).request(Request("GET", "/api/v1/nodes"), 1.0)


@pytest.mark.parametrize("code", [200, 500])
def test_deep_json_of_an_api_server_is_an_error_of_its_own(code, monkeypatch):
    head = f"HTTP/1.1 {code} So\r\nContent-Length: {len(DEEP)}\r\n\r\n".encode()
    with answering(lambda: [head, DEEP]) as url:
        with pytest.raises(ApiError):
            cluster_at(url, monkeypatch).request(Request("POST", "/api/v1/nodes", {}))


def test_a_huge_answer_of_an_api_server_is_not_read_to_its_end(monkeypatch):
    def pieces():
        yield OK + b"Content-Length: 999999999999\r\n\r\n"
        yield from itertools.repeat(b" " * (1 << 20))

    with answering(pieces) as url:
        with pytest.raises(Unavailable, match=f"more than {MOST_BYTES} bytes"):
            cluster_at(url, monkeypatch).request(Request("POST", "/api/v1/nodes", {}))


def test_a_dripping_head_of_an_agent_is_no_answer():
    with answering(dripping(DRIPS["head"])) as url:
        with pytest.raises(ask.RequestError, match="no answer: no complete answer within 1 s"):
            ask.ask(url, "token", {}, 1.0)


@pytest.mark.parametrize("rest", [b"Content-Length: 1000000\r\n\r\n", b"\r\n"])
def test_the_nodes_that_a_dripping_agent_has_sent_count(rest):
    with answering(dripping(OK + rest + b'{"nodes": [' + ROW + b',\n{"node": "')) as url:
        answer = ask.ask(url, "token", {}, 1.0)
    assert ([row["node"] for row in answer.rows], answer.complete) == (["gpu01"], False)


def test_deep_json_of_an_agent_costs_the_rest_of_its_answer():
    with answering(lambda: [OK + b"\r\n", b'{"nodes": [' + ROW + b', {"a": ' + DEEP]) as url:
        answer = ask.ask(url, "token", {}, 30.0)
    assert ([row["node"] for row in answer.rows], answer.complete) == (["gpu01"], False)
    with answering(lambda: [OK + b"\r\n", DEEP]) as url:
        with pytest.raises(ask.RequestError, match="not one of an agent"):
            ask.ask(url, "token", {}, 30.0)


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 500 So\r\n\r\n{"error": "\\u001b[31m\\u202e", "message": "\\u001b[31m\\u202e"}',
        b"HTTP/1.1 500 So\r\n\r\n\x1b[31m\xe2\x80\xae",
        b"\x1b[31m \xe2\x80\xae\r\n\r\n",
    ],
    ids=["json", "text", "status line"],
)
def test_an_error_has_nothing_that_a_terminal_obeys(answer, monkeypatch):
    with answering(lambda: [answer]) as url:
        with pytest.raises(ask.RequestError) as of_agent:
            ask.ask(url, "token", {}, 30.0)
        with pytest.raises(ApiError) as of_server:
            cluster_at(url, monkeypatch).request(Request("POST", "/api/v1/nodes", {}))
    assert str(of_agent.value).isprintable() and str(of_server.value).isprintable()


def test_a_row_that_is_too_large_costs_its_node_alone(monkeypatch):
    monkeypatch.setattr(lenient, "MOST_VALUES", 20)
    large = json.dumps({"node": "gpu02", "health": [{}] * 50}).encode()
    huge = json.dumps({"node": "gpu03", "seconds": 10**400}).encode()
    with answering(
        lambda: [OK + b'\r\n{"nodes": [' + b",".join([large, ROW, huge]) + b"]}"]
    ) as url:
        answer = ask.ask(url, "token", {}, 30.0)
    assert answer.complete and [row["node"] for row in answer.rows] == ["gpu02", "gpu01", "gpu03"]
    assert "too large" in answer.rows[0]["summary"] and answer.rows[2]["seconds"] is None
