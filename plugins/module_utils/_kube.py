# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Connect modules to an API server with the Python package kubernetes, which supports every way of
authentication that a kubeconfig can name.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
import traceback
import typing as t
from urllib.parse import urlencode

from ansible.module_utils.basic import AnsibleModule, env_fallback, missing_required_lib
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MOST_BYTES,
    READ_WAITS,
    ApiError,
    Pause,
    Procedure,
    Request,
    Unavailable,
    answer_of,
    error_of,
)

try:
    import kubernetes.config
    import urllib3
    from kubernetes.client.api_client import ApiClient
    from kubernetes.client.configuration import Configuration
except ImportError:
    MISSING = traceback.format_exc()
else:
    MISSING = ""

#: Options of every module that connects to a cluster; documented in the fragment ``_kube``.
CONNECTION_OPTIONS: dict[str, dict[str, t.Any]] = {
    "kubeconfig": {"type": "path", "fallback": (env_fallback, ["K8S_AUTH_KUBECONFIG"])},
    "context": {"type": "str", "fallback": (env_fallback, ["K8S_AUTH_CONTEXT"])},
}

#: Environment variables that kubernetes.core reads too, and that AWX sets from its credentials.
#: There are no such options, since the arguments of a module are not secret.
_HOST, _API_KEY, _VERIFY_SSL, _CA_CERT = (
    "K8S_AUTH_HOST",
    "K8S_AUTH_API_KEY",
    "K8S_AUTH_VERIFY_SSL",
    "K8S_AUTH_SSL_CA_CERT",
)

#: Timeouts in seconds: of one request, of a procedure of several requests, and of a kubeconfig's
#: program that fetches credentials.
DEADLINE, PROCEDURE_DEADLINE, CREDENTIALS_DEADLINE = 10.0, 60.0, 30.0

T = t.TypeVar("T")


def connected(module: AnsibleModule) -> Cluster:
    """The cluster of the module's connection options; fails the module if there is none."""
    if MISSING:
        module.fail_json(msg=missing_required_lib("kubernetes"), exception=MISSING)
    try:
        return Cluster(module.params["kubeconfig"], module.params["context"])
    except ValueError as error:
        module.fail_json(msg=str(error))


class Cluster:
    """A cluster, from K8S_AUTH_HOST and K8S_AUTH_API_KEY in the environment, or from a kubeconfig
    (by default $KUBECONFIG, ~/.kube/config, or the pod's service account). Raises the errors of the
    core's ``cluster.client``.
    """

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """Raise ValueError for invalid options."""
        self._configuration = _configuration(kubeconfig, context)
        self.server = self._configuration.host.rstrip("/")
        self._pool = ApiClient(self._configuration).rest_client.pool_manager

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for kubectl, made from the environment; "" if the cluster comes
        from a kubeconfig.
        """
        if not os.environ.get(_HOST):
            return ""
        trust = (
            {"certificate-authority": self._configuration.ssl_ca_cert}
            if self._configuration.ssl_ca_cert
            else {}
        )
        cluster = {
            "server": self.server,
            **(trust if self._configuration.verify_ssl else {"insecure-skip-tls-verify": True}),
        }
        name = "environment"
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "clusters": [{"name": name, "cluster": cluster}],
                "users": [{"name": name, "user": {"token": os.environ[_API_KEY]}}],
            }
        )

    def run(self, procedure: Procedure[T], deadline: float = PROCEDURE_DEADLINE) -> T:
        """Run a procedure of the core within ``deadline`` seconds and return its result."""
        until = time.monotonic() + deadline
        try:
            step = next(procedure)
            while True:
                try:
                    answer = self._step(step, until - time.monotonic())
                except ApiError as error:
                    step = procedure.throw(error)
                else:
                    step = procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            procedure.close()

    def _step(self, step: Request | Pause, left: float) -> t.Any:
        if isinstance(step, Pause):
            time.sleep(max(min(step.seconds, left), 0))
            return None
        if left <= 0:
            raise Unavailable(f"{step.method} {step.path}: no time was left for the request")
        return self.request(step, min(left, DEADLINE))

    def request(self, request: Request, deadline: float = DEADLINE) -> dict[str, t.Any]:
        """The answer to one request within ``deadline`` seconds; a GET is retried up to three times."""
        until = time.monotonic() + deadline
        for wait in READ_WAITS if request.method == "GET" else ():
            try:
                return self._ask(request, until)
            except Unavailable as error:
                pause = error.retry_after if error.retry_after is not None else wait
                if time.monotonic() + pause >= until:
                    raise
                time.sleep(pause)
        return self._ask(request, until)

    def _ask(self, request: Request, until: float) -> dict[str, t.Any]:
        headers = {"Accept": request.accept, "User-Agent": "autopilot.gpu"}
        token = self._configuration.auth_settings().get("BearerToken")
        if token:
            headers["Authorization"] = token["value"]
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            left = max(until - time.monotonic(), 0.01)
            status, content, retry_after = within(
                left, lambda: self._exchange(request, headers, until)
            )
            if status < 300:
                return answer_of(content, request.accept)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            words = " ".join(str(error).split())
            raise Unavailable(
                f"{request.method} {request.path}: no answer from {self.server}: {words}"
            ) from None
        raise error_of(request, status, content, retry_after)

    def _exchange(
        self, request: Request, headers: dict[str, str], until: float
    ) -> tuple[int, bytes, str | None]:
        """HTTP code, body and the header Retry-After."""
        url = self.server + request.path + ("?" + urlencode(request.query) if request.query else "")
        left = max(until - time.monotonic(), 0.01)
        response = self._pool.request(
            request.method,
            url,
            body=None if request.body is None else json.dumps(request.body).encode(),
            headers=headers,
            preload_content=False,
            redirect=False,
            retries=False,
            timeout=urllib3.Timeout(total=left),
        )
        try:
            content = bytearray()
            for chunk in response.stream(1 << 16):
                content += chunk
                if len(content) > MOST_BYTES:
                    raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
                # The timeout above applies to each chunk of the answer.
                if time.monotonic() > until:
                    raise ValueError("the answer came too slowly")
        except BaseException:
            # A connection with unread data cannot serve the next request.
            response.close()
            raise
        return response.status, bytes(content), response.headers.get("Retry-After")


def within(seconds: float, work: t.Callable[[], T]) -> T:
    """The result of ``work``; raises TimeoutError after the seconds. The thread of ``work`` is then
    abandoned, because timeouts of a socket begin anew with each byte that a server sends.
    """
    outcome: queue.SimpleQueue[tuple[list[T], Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put(([work()], None))
        except Exception as error:  # raised again below
            outcome.put(([], error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no complete answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return result[0]


def _configuration(kubeconfig: str | None, context: str | None) -> t.Any:
    """A new Configuration; a copy would keep the token of the original."""
    configuration = Configuration()
    if not _from_environment(configuration):
        _load(configuration, kubeconfig, context)
    verify, authority = os.environ.get(_VERIFY_SSL), os.environ.get(_CA_CERT)
    if verify:
        try:
            configuration.verify_ssl = boolean(verify)
        except TypeError:
            raise ValueError(
                f"{_VERIFY_SSL}: {verify!r} is invalid; expected true or false"
            ) from None
    if authority:
        if not os.access(authority, os.R_OK):
            raise ValueError(
                f"{_CA_CERT}: {authority} cannot be read; expected a file with the certificates of "
                "the API server's authority"
            )
        configuration.ssl_ca_cert = authority
    return configuration


def _from_environment(configuration: t.Any) -> bool:
    """Configure from the environment; False if it names no cluster. The environment takes precedence
    over a kubeconfig, as in kubernetes.core, so that both connect to the same cluster.
    """
    host, token = os.environ.get(_HOST, ""), os.environ.get(_API_KEY, "")
    if bool(host) != bool(token):
        raise ValueError(
            f"{_API_KEY if token else _HOST} is in the environment without "
            f"{_HOST if token else _API_KEY}; expected both or neither of them"
        )
    if not host:
        return False
    if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", host):
        raise ValueError(
            f"{_HOST}: {host!r} is invalid; expected the address of the API server, such as "
            "https://10.0.0.1:6443"
        )
    configuration.host = host
    configuration.api_key = {"BearerToken": f"Bearer {token}"}
    return True


def _load(configuration: t.Any, kubeconfig: str | None, context: str | None) -> None:
    """Configure from a kubeconfig or the pod's service account. Raises ValueError."""
    trouble = ""

    def load() -> None:
        try:
            kubernetes.config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
        except kubernetes.config.ConfigException:
            if kubeconfig or context:
                raise
            kubernetes.config.load_incluster_config(client_configuration=configuration)

    try:
        within(CREDENTIALS_DEADLINE, load)
    except TimeoutError:
        # A kubeconfig can name a program that fetches credentials; the package waits for it for ever.
        trouble = (
            f"its program that fetches credentials did not end within {CREDENTIALS_DEADLINE:.0f} s"
        )
    # The package raises many kinds of errors for a broken file.
    except Exception as error:
        trouble = " ".join(str(error).split()) or type(error).__name__
    if trouble:
        given = f"kubeconfig: {kubeconfig}" if kubeconfig else "kubeconfig: not given"
        where = f", context: {context}" if context else ""
        raise ValueError(
            f"{given}{where}: {trouble}; expected a kubeconfig and a context that reach the cluster"
        )
