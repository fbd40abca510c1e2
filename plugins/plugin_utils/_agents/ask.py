# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Asking an agent over HTTP: a token of a service account, a way to one of the pods, the request,
and its answer as far as it came.

The API server's own proxy is no way in, since it keeps the header Authorization to itself; `kubectl
port-forward` is one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import typing as t
from urllib.parse import urlencode, urlsplit

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    PORT,
    SELECTOR,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    NotFound,
    Request,
    items,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import agents

#: Seconds a token lasts, which is the least that an API server gives; it is looked at when a
#: request comes in.
_TOKEN_SECONDS = 600
#: Seconds until a port is forwarded or a connection made, and agents that are tried for it.
_CONNECTING, _TRIES = 20.0, 3
#: Bytes of an answer; a thousand nodes with a finding for each GPU have some 10 MB.
_MOST_BYTES = 64 << 20
#: Times that an agent that is busy is asked again, and seconds to wait for it at most.
_AGAIN, _MOST_WAIT = 3, 60.0
#: Gives a program a lifetime of its own.
_FOR_A_WHILE = (
    "import os, signal, sys; signal.alarm(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
)


class Trouble(Exception):
    """Why there is no answer, in words for whoever asked; no token is ever in it."""


class Answer(t.NamedTuple):
    """Rows of nodes as the agent gives them, and whether all came."""

    rows: list[dict[str, t.Any]]
    complete: bool


def token(cluster: Cluster, namespace: str, account: str) -> str:
    """A token of the service account, for the API server's audience, from the API server. Raises
    Trouble.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    try:
        answer = cluster.request(
            Request(
                "POST",
                path_of("api/v1/namespaces", namespace, "serviceaccounts", account, "token"),
                body,
            )
        )
        return str(answer["status"]["token"])
    except NotFound:
        words = "the role autopilot.gpu.agent makes autopilot-client, or give another"
        raise Trouble(
            f"service_account: {account} is not in namespace {namespace}; {words}"
        ) from None
    except ApiError as error:
        raise Trouble(f"no token for service account {account}: {error}") from None


def ready_pods(cluster: Cluster, namespace: str) -> list[str]:
    """Agents that can be asked, a few. Raises Trouble."""
    try:
        pods = cluster.run(
            items(path_of("api/v1/namespaces", namespace, "pods"), {"labelSelector": SELECTOR})
        )
    except ApiError as error:
        raise Trouble(f"the agents in namespace {namespace} cannot be listed: {error}") from None
    ready = [str(pod["metadata"]["name"]) for pod in pods if not agents.trouble_of(pod)]
    if not ready:
        reasons = (
            "; ".join(agents.trouble_of(pod) for pod in pods[:3]) or "there is no pod of the agent"
        )
        raise Trouble(f"no agent in namespace {namespace} is ready: {reasons}")
    return ready[:_TRIES]


def _for_a_while(
    command: list[str], seconds: float, descriptors: list[int]
) -> subprocess.Popen[bytes]:
    """A program that ends after its time also where nobody ends it."""
    lifetime = str(int(seconds + _CONNECTING) + 1)
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _FOR_A_WHILE, lifetime, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=descriptors,
    )


@contextlib.contextmanager
def forwarded(
    cluster: Cluster,
    namespace: str,
    pods: t.Sequence[str],
    kubeconfig: str | None,
    context: str | None,
    seconds: float,
) -> t.Iterator[str]:
    """The address at which one of the pods is reached; nothing of it is left, not even when this
    process is killed. Raises Trouble.
    """
    program = shutil.which("kubectl")
    if not program:
        raise Trouble(
            "kubectl is not on the controller, and it is the way to the agents; install it, or "
            "give url where they can be reached directly"
        )
    said, own = "", cluster.kubeconfig()
    # A file without a name: a token on the command line could be read by all.
    with tempfile.TemporaryFile() if own else contextlib.nullcontext() as file:
        if file:
            file.write(own.encode())
            file.flush()
            kubeconfig, context = f"/dev/fd/{file.fileno()}", None
        where = [
            *(["--kubeconfig", kubeconfig] if kubeconfig else []),
            *(["--context", context] if context else []),
            "--namespace",
            namespace,
        ]
        for pod in pods:
            command = [
                program,
                *where,
                "port-forward",
                f"pod/{pod}",
                f":{PORT}",
                "--address",
                "127.0.0.1",
            ]
            with _for_a_while(command, seconds, [file.fileno()] if file else []) as running:
                try:
                    said = _first_words(
                        t.cast("t.IO[bytes]", running.stdout), time.monotonic() + _CONNECTING
                    )
                    port = re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", said)
                    if port:
                        yield f"http://127.0.0.1:{port.group(1)}"
                        return
                finally:
                    running.kill()
    raise Trouble(
        f"kubectl port-forward to {', '.join(pods)} in namespace {namespace}: "
        f"{' '.join(said.split()) or 'no answer'}"
    )


def _first_words(output: t.IO[bytes], until: float) -> str:
    """What the program says until its first line that forwards, its end, or the time is up."""
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while b"Forwarding from" not in said or b"\n" not in said:
            if not selector.select(max(until - time.monotonic(), 0)):
                break
            piece = os.read(output.fileno(), 4096)
            if not piece:
                break
            said += piece
    return said.decode("utf-8", "replace")


def ask(url: str, bearer: str, parameters: dict[str, str], seconds: float) -> Answer:
    """What the agent at the URL answers to /status. Raises Trouble."""
    until = time.monotonic() + seconds
    for turn in range(_AGAIN + 1):
        status, wait, text = _posted(url, bearer, parameters, until)
        if status == 200:
            return read(text)
        again = min(float(wait) if wait.isdecimal() else 5.0, _MOST_WAIT)
        if status not in (429, 503) or turn == _AGAIN or time.monotonic() + again >= until:
            break
        time.sleep(again)
    raise Trouble(f"{url}: {status}, {_words(text)}")


def _posted(
    url: str, bearer: str, parameters: dict[str, str], until: float
) -> tuple[int, str, str]:
    """HTTP code, the header Retry-After, and the body as far as it came."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CONNECTING)
    headers = {
        "Authorization": f"Bearer {bearer}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "autopilot.gpu",
    }
    body = bytearray()
    try:
        connection.connect()
        # A node is answered for when its checks are done.
        connection.sock.settimeout(max(until - time.monotonic(), 0.01))
        connection.request(
            "POST", f"{parts.path.rstrip('/')}/status", urlencode(parameters), headers
        )
        response = connection.getresponse()
        with contextlib.suppress(http.client.IncompleteRead, OSError):
            while len(body) < _MOST_BYTES and time.monotonic() < until:
                piece = response.read1(1 << 16)
                if not piece:
                    break
                body += piece
        return (
            response.status,
            response.headers.get("Retry-After", ""),
            body.decode("utf-8", "replace"),
        )
    except (http.client.HTTPException, OSError) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Trouble(f"{url}: no answer: {words}") from None
    finally:
        connection.close()


def _words(text: str) -> str:
    """What an error says, whoever answers."""
    with contextlib.suppress(ValueError, AttributeError):
        text = str(json.loads(text).get("error") or text)
    return " ".join(text.split())[:400] or "without a word"


def read(text: str) -> Answer:
    """The rows of an answer, also of one that broke off: those that came as a whole."""
    decode = json.JSONDecoder().raw_decode
    rows: list[dict[str, t.Any]] = []
    start = re.match(r'\s*\{\s*"nodes"\s*:\s*\[\s*', text)
    if not start:
        raise Trouble(f"what answered is no agent: {_words(text)[:200]}")
    with contextlib.suppress(ValueError):
        rows = _listed(json.loads(text)["nodes"])
        return Answer(rows, True)
    at = start.end()
    with contextlib.suppress(ValueError):
        while at < len(text):
            row, at = decode(text, at)
            rows += _listed([row])
            at = len(text) - len(text[at:].lstrip(" ,\r\n\t"))
    return Answer(rows, False)


def _listed(rows: t.Any) -> list[dict[str, t.Any]]:
    return (
        [row for row in rows if isinstance(row, dict) and row.get("node")]
        if isinstance(rows, list)
        else []
    )
