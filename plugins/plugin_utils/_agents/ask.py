# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Request a status from an agent over HTTP: get a token of a service account, forward a port to one
of the pods, send the request and parse the answer, even if it is incomplete.

`kubectl port-forward` is used because the proxy of the API server does not pass the header
Authorization on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import typing as t
from urllib.parse import urlencode, urlsplit

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    CONTAINER,
    PORT,
    SELECTOR,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    NotFound,
    Request,
    Right,
    items,
    missing_rights,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    bounded,
    mapping,
    mappings_in,
    parse_json,
    text as text_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import printable
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster, within
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import agents

#: Lifetime of a token in seconds, the shortest that an API server accepts. The agent checks the
#: token when a request arrives.
_TOKEN_SECONDS = 600
#: Timeout in seconds of a port forward or a connection, and how many agents are tried.
_CONNECTING, _TRIES = 20.0, 3
#: Largest answer in bytes; a thousand nodes with a finding for each GPU take some 10 MB.
_MOST_BYTES = 64 << 20
#: What the role sets in the pods of agents that serve TLS, and the ConfigMap with their CA.
_TLS_DIR, _CA = "AUTOPILOT_TLS_DIR", "autopilot-ca"
#: How often a request to a busy agent is retried, and the longest wait in seconds.
_RETRIES, _MOST_WAIT = 3, 60.0
#: Ends a program after its lifetime, whatever happens to this process.
_WITH_LIFETIME = (
    "import os, signal, sys; signal.alarm(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
)


class RequestError(Exception):
    """Why a request failed, as printable text. Never contains a token."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class Trust(t.NamedTuple):
    """How the certificate of an agent is verified: by the CA certificates of a file or a text, or
    else of the system; for a name, or else for the host of the URL.
    """

    ca_file: str | None = None
    name: str | None = None
    ca_text: str | None = None


_OF_THE_SYSTEM = Trust()


class Pod(t.NamedTuple):
    """A pod of the agent, and whether it serves TLS."""

    name: str
    tls: bool


class Answer(t.NamedTuple):
    """The rows of nodes in an answer of the agent, and whether the answer is complete."""

    rows: list[dict[str, t.Any]]
    complete: bool


def token(cluster: Cluster, namespace: str, account: str, audience: str) -> str:
    """A token of the service account that only servers of the audience accept, of the API server's
    for "". Raises RequestError.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": _TOKEN_SECONDS,
            **({"audiences": [audience]} if audience else {}),
        },
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
        words = "the role autopilot.gpu.agent creates autopilot-client; or name another one"
        raise RequestError(
            f"service_account: {account} is not in namespace {namespace}; {words}"
        ) from None
    except ApiError as error:
        raise RequestError(f"no token for service account {account}: {error}") from None


def rights_lacking(cluster: Cluster, namespace: str, gets_token: bool, forwards: bool) -> str:
    """Every right that the caller lacks to get a token and to forward a port, as the end of a
    message; "" if there is none, or if the API server does not say.
    """
    rights = []
    if gets_token:
        rights.append(Right("create", "serviceaccounts/token", namespace))
    if forwards:
        rights += [Right("list", "pods", namespace), Right("create", "pods/portforward", namespace)]
    try:
        missing = cluster.run(missing_rights(rights))
    except ApiError:
        return ""
    return f"; your account lacks: {', '.join(map(str, missing))}" if missing else ""


def ready_pods(cluster: Cluster, namespace: str) -> list[Pod]:
    """A few ready pods of the agent. Raises RequestError."""
    try:
        pods = cluster.run(
            items(path_of("api/v1/namespaces", namespace, "pods"), {"labelSelector": SELECTOR})
        )
    except ApiError as error:
        raise RequestError(
            f"the agents in namespace {namespace} cannot be listed: {error}"
        ) from None
    ready = [
        Pod(str(pod["metadata"]["name"]), serves_tls(pod))
        for pod in pods
        if not agents.trouble_of(pod)
    ]
    if not ready:
        reasons = (
            "; ".join(agents.trouble_of(pod) for pod in pods[:3])
            or "there are no pods of the agent"
        )
        raise RequestError(f"no agent in namespace {namespace} is ready: {reasons}")
    return ready[:_TRIES]


def serves_tls(pod: dict[str, t.Any]) -> bool:
    """True if the agent of the pod serves TLS."""
    return any(
        one.get("name") == _TLS_DIR and one.get("value")
        for container in mappings_in(mapping(pod.get("spec")).get("containers"))
        if container.get("name") == CONTAINER
        for one in mappings_in(container.get("env"))
    )


def published_ca(cluster: Cluster, namespace: str) -> str:
    """The CA certificates that the role or OpenShift published for clients of the agents. Raises
    RequestError.
    """
    path = path_of("api/v1/namespaces", namespace, "configmaps", _CA)
    try:
        data = mapping(cluster.request(Request("GET", path)).get("data"))
    except ApiError as error:
        reason = str(error)
    else:
        found = str(data.get("ca.crt") or data.get("service-ca.crt") or "")
        if found:
            return found
        reason = "it has no ca.crt"
    raise RequestError(
        f"the agents in namespace {namespace} serve TLS, and ConfigMap {_CA} with their CA "
        f"certificate cannot be used: {reason}; set ca_file, or run the role agent again"
    )


def _start_with_lifetime(
    command: list[str], seconds: float, descriptors: list[int]
) -> subprocess.Popen[bytes]:
    """Start a program that ends after its lifetime even if this process is killed."""
    lifetime = str(int(seconds + _CONNECTING) + 1)
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _WITH_LIFETIME, lifetime, *command],
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
    pods: t.Sequence[Pod],
    kubeconfig: str | None,
    context: str | None,
    seconds: float,
) -> t.Iterator[tuple[str, bool]]:
    """The address, as host and port, that is forwarded to one of the pods, and whether that pod
    serves TLS. kubectl ends with the context, or after its lifetime if this process is killed.
    Raises RequestError.
    """
    program = shutil.which("kubectl")
    if not program:
        raise RequestError(
            "kubectl is missing on the controller, and it forwards the port to an agent; install "
            "it, or set url if the agents are reachable directly"
        )
    output_text, own = "", cluster.kubeconfig()
    # A nameless file, since every user can read a token on a command line.
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
                f"pod/{pod.name}",
                f":{PORT}",
                "--address",
                "127.0.0.1",
            ]
            with _start_with_lifetime(command, seconds, [file.fileno()] if file else []) as running:
                try:
                    output_text = _read_until_forwarding(
                        t.cast("t.IO[bytes]", running.stdout), time.monotonic() + _CONNECTING
                    )
                    port = re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", output_text)
                    if port:
                        yield f"127.0.0.1:{port.group(1)}", pod.tls
                        return
                finally:
                    running.kill()
    raise RequestError(
        f"kubectl port-forward to {', '.join(pod.name for pod in pods)} in namespace {namespace}: "
        f"{' '.join(output_text.split()) or 'no answer'}"
    )


def _read_until_forwarding(output: t.IO[bytes], until: float) -> str:
    """The output of kubectl until it forwards the port, ends, or the time is up."""
    output_text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while b"Forwarding from" not in output_text or b"\n" not in output_text:
            if not selector.select(max(until - time.monotonic(), 0)):
                break
            piece = os.read(output.fileno(), 4096)
            if not piece:
                break
            output_text += piece
    return output_text.decode("utf-8", "replace")


class _Connection(http.client.HTTPSConnection):
    """Verifies the certificate for a name that may differ from the address."""

    def __init__(self, host: str, port: int | None, trust: Trust) -> None:
        context = ssl.create_default_context(cafile=trust.ca_file, cadata=trust.ca_text)
        # Since 3.13 Python rejects a CA without key identifiers, which many clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        super().__init__(host, port, timeout=_CONNECTING, context=context)
        self._trusted, self._name = context, trust.name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusted.wrap_socket(self.sock, server_hostname=self._name)


def ask(
    url: str, bearer: str, parameters: dict[str, str], seconds: float, trust: Trust = _OF_THE_SYSTEM
) -> Answer:
    """The answer of the agent at the URL to /status, within ``seconds``. Raises RequestError."""
    until = time.monotonic() + seconds
    for turn in range(_RETRIES + 1):
        status, wait, text = _post(url, bearer, parameters, until, trust)
        if status == 200:
            return read(text)
        again = min(float(wait) if wait.isdecimal() else 5.0, _MOST_WAIT)
        if status not in (429, 503) or turn == _RETRIES or time.monotonic() + again >= until:
            break
        time.sleep(again)
    raise RequestError(f"{url}: {status}, {_message_of(text)}")


class _Response:
    """What has arrived of a response; its body may be incomplete."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.status = 0
        self.retry_after = ""
        self.body = bytearray()

    def end(self) -> None:
        """End the thread that still reads."""
        if self.socket:
            with contextlib.suppress(OSError):
                # The method of a TLS socket must not run beside a read of another thread.
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


def _post(
    url: str, bearer: str, parameters: dict[str, str], until: float, trust: Trust
) -> tuple[int, str, str]:
    """HTTP status, the header Retry-After, and the body, which may be incomplete."""
    parts = urlsplit(url)
    connection = (
        _Connection(parts.hostname or "", parts.port, trust)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECTING)
    )
    headers = {
        "Authorization": f"Bearer {bearer}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "User-Agent": "autopilot.gpu",
    }
    found = _Response()

    def exchange() -> None:
        connection.connect()
        # The agent answers for a node once its checks are done.
        found.socket = connection.sock
        connection.sock.settimeout(max(until - time.monotonic(), 0.01))
        path = f"{parts.path.rstrip('/')}/status"
        connection.request("POST", path, urlencode(parameters), headers)
        response = connection.getresponse()
        found.retry_after = response.headers.get("Retry-After", "")
        found.status = response.status
        while len(found.body) < _MOST_BYTES:
            piece = response.read1(1 << 16)
            if not piece:
                break
            found.body += piece

    try:
        within(max(until - time.monotonic(), 0.01), exchange)
    except (http.client.HTTPException, OSError) as error:
        # Of an answer that ends early, the nodes that are complete count.
        if not found.status:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RequestError(f"{url}: no answer: {words}") from None
    finally:
        found.end()
        connection.close()
    return found.status, found.retry_after, bytes(found.body).decode("utf-8", "replace")


def _message_of(text: str) -> str:
    """The message of an error, from an agent or from a proxy in between."""
    with contextlib.suppress(ValueError):
        text = str(mapping(parse_json(text)).get("error") or text)
    return " ".join(text.split())[:400] or "no message"


def read(text: str) -> Answer:
    """Parse an answer; of an incomplete answer, the rows that are complete."""
    decode = json.JSONDecoder().raw_decode
    rows: list[dict[str, t.Any]] = []
    start = re.match(r'\s*\{\s*"nodes"\s*:\s*\[\s*', text)
    if not start:
        raise RequestError(f"the answer is not one of an agent: {_message_of(text)[:200]}")
    with contextlib.suppress(ValueError):
        return Answer(_rows_of(mapping(parse_json(text)).get("nodes")), True)
    at = start.end()
    with contextlib.suppress(ValueError, RecursionError):
        while at < len(text):
            row, at = decode(text, at)
            rows += _rows_of([row])
            at = len(text) - len(text[at:].lstrip(" ,\r\n\t"))
    return Answer(rows, False)


def _rows_of(rows: t.Any) -> list[dict[str, t.Any]]:
    """The rows of nodes, bounded; of one that is too large only the name of its node."""
    found = []
    for row in mappings_in(rows):
        if not row.get("node"):
            continue
        try:
            found.append(bounded(row))
        except ValueError as error:
            summary = f"the answer about the node is too large: {error}"
            found.append({"node": text_of(row["node"]), "summary": summary})
    return found
