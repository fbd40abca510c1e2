# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Talk to a Pushgateway over HTTP: list its groups, replace a group, delete a group."""

from __future__ import annotations

import json
import math
import re
import ssl
import time
import typing as t
import urllib.parse

from ansible_collections.autopilot.gpu.plugins.module_utils._health import VERSION
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    PushSettings,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    CONNECTIONS,
)

#: Timeouts in seconds: to connect, and between two parts of an answer.
_CONNECT, _SILENCE = 5.0, 10.0
#: Seconds by which a request may outlast the deadline of its caller.
_GRACE = 1.0
#: Largest answer in bytes; 2,000 nodes in three phases are about 100 MB.
_MOST_BYTES = 512 << 20
#: Seconds by which a timestamp may be ahead of the Pushgateway's clock.
_AHEAD = 300.0
#: Longest error message of the Pushgateway that is shown, in characters.
_MOST_CHARACTERS = 300

_LIST_START = re.compile(r'\s*\{\s*(?:"status"\s*:\s*"success"\s*,\s*)?"data"\s*:\s*\[\s*')


class GatewayError(Exception):
    """Why a request failed, without secrets. ``status`` is the HTTP status, None without an answer."""

    def __init__(
        self, reason: str, status: int | None = None, affects_all_groups: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        #: True if every other group would fail in the same way, so that pushing stops.
        self.affects_all_groups = affects_all_groups


class Gateway:
    """A client of a Pushgateway with a pool of connections. Its methods return at most about a
    second after ``until`` (monotonic seconds).
    """

    def __init__(self, settings: PushSettings) -> None:
        """Raises ValueError for certificates or keys that cannot be used."""
        import urllib3

        self._settings = settings
        self._headers = {"User-Agent": f"autopilot.gpu/{VERSION}"}
        if settings.authorization:
            self._headers["Authorization"] = settings.authorization
        context = _ssl_context(settings) if settings.url.startswith("https:") else None
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=CONNECTIONS, ssl_context=context)

    def groups(self, until: float) -> t.Iterator[tuple[dict[str, str], dict[str, t.Any]]]:
        """The labels of each group, and its metrics in the format of the API."""
        text = self._get_text("/api/v1/metrics", until)
        try:
            for group in listed_groups(text):
                if isinstance(group, dict) and isinstance(group.get("labels"), dict):
                    yield group["labels"], group
        except ValueError:
            raise GatewayError(
                "the answer to GET /api/v1/metrics is not that of a Pushgateway",
                affects_all_groups=True,
            ) from None

    def samples(self, group: t.Mapping[str, t.Any]) -> list[metrics.Sample]:
        """The samples of this collection's metrics in a group, without the labels of the group."""
        found = []
        group_labels = {*group["labels"], "instance"}
        pushed = max(
            (
                float(entry["value"])
                for entry in group.get("push_time_seconds", {}).get("metrics") or []
            ),
            default=math.inf,
        )
        for name, family in group.items():
            if name.startswith("autopilot_") and isinstance(family, dict):
                for entry in family.get("metrics") or []:
                    labels = {
                        label: value
                        for label, value in entry["labels"].items()
                        if label not in group_labels
                    }
                    if "value" in entry:
                        value = float(entry["value"])
                        # A timestamp from a controller whose clock is ahead would override newer
                        # results of others.
                        ahead = name.endswith("_timestamp_seconds") and value > pushed + _AHEAD
                        found.append(metrics.Sample(name, labels, pushed if ahead else value))
        return found

    def put(
        self, labels: t.Mapping[str, str], samples: t.Sequence[metrics.Sample], until: float
    ) -> None:
        """Replace a group."""
        import prometheus_client

        grouping = {name: value for name, value in labels.items() if name != "job"}
        prometheus_client.push_to_gateway(
            self._settings.url,
            labels["job"],
            _Samples(samples),
            grouping,
            handler=self._handler(until),
        )

    def delete(self, labels: t.Mapping[str, str], until: float) -> None:
        """Delete a group, if it exists."""
        import prometheus_client

        grouping = {name: value for name, value in labels.items() if name != "job"}
        prometheus_client.delete_from_gateway(
            self._settings.url, labels["job"], grouping, handler=self._handler(until)
        )

    def checks_consistency(self, until: float) -> bool:
        """True if the Pushgateway compares each push with all its metrics, which is slow for a
        large fleet.
        """
        flags = json.loads(self._get_text("/api/v1/status", until))["data"]["flags"]
        return bool(flags.get("push.disable-consistency-check") == "false")

    def _handler(self, until: float) -> t.Callable[..., t.Callable[[], None]]:
        def handler(
            url: str, method: str, timeout: t.Any, headers: t.Iterable[tuple[str, str]], data: bytes
        ) -> t.Callable[[], None]:
            def send() -> None:
                self._request(method, url, until, dict(headers), data)

            return send

        return handler

    def _get_text(self, path: str, until: float) -> str:
        return self._request("GET", self._settings.url + path, until).decode("utf-8", "replace")

    def _request(
        self,
        method: str,
        url: str,
        until: float,
        headers: t.Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> bytes:
        import urllib3.exceptions

        try:
            try:
                return self._send_once(method, url, until, headers, body)
            except urllib3.exceptions.ProtocolError:
                # The server may have closed a pooled connection; the request can be repeated
                # safely.
                return self._send_once(method, url, until, headers, body)
        except urllib3.exceptions.SSLError as error:
            raise GatewayError(f"TLS: {_describe_error(error)}", affects_all_groups=True) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise GatewayError(_describe_error(error)) from None

    def _send_once(
        self,
        method: str,
        url: str,
        until: float,
        headers: t.Mapping[str, str] | None,
        body: bytes | None,
    ) -> bytes:
        import urllib3

        rest = until - time.monotonic()
        if rest <= 0:
            raise GatewayError("the deadline had passed", affects_all_groups=True)
        # The caller's deadline must end first, so that "no answer within 10 s" is true when it is
        # shown.
        timeout = urllib3.Timeout(
            connect=min(_CONNECT, rest + _GRACE), read=min(_SILENCE, rest + _GRACE)
        )
        response = self._pool.request(
            method,
            url,
            body=body,
            headers={**self._headers, **(headers or {})},
            redirect=False,
            retries=False,
            preload_content=False,
            timeout=timeout,
        )
        whole = bytearray()
        try:
            for part in response.stream(1 << 16):
                whole += part
                if time.monotonic() > until or len(whole) > _MOST_BYTES:
                    raise GatewayError(
                        f"the answer to {method} {urllib.parse.urlsplit(url).path} took too "
                        "long or was too long",
                        affects_all_groups=True,
                    )
        except BaseException:
            response.close()
            raise
        response.release_conn()
        if 200 <= response.status < 300:
            return bytes(whole)
        raise error_of_answer(
            response.status, response.headers.get("Location"), whole.decode("utf-8", "replace")
        )


def _ssl_context(settings: PushSettings) -> ssl.SSLContext:
    def passphrase() -> str:
        raise ValueError(
            "client_key: the key has a passphrase; expected a key without a passphrase"
        )

    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"ca_file: {settings.ca_file!r} cannot be used: {_one_line(str(error))}"
        ) from None
    if settings.client_cert:
        try:
            context.load_cert_chain(settings.client_cert, settings.client_key, passphrase)
        except (OSError, ssl.SSLError) as error:
            files = " with ".join(
                repr(path) for path in (settings.client_cert, settings.client_key) if path
            )
            raise ValueError(
                f"client_cert: {files} cannot be used: {_one_line(str(error))}"
            ) from None
    return context


def listed_groups(text: str) -> t.Iterator[t.Any]:
    """The elements of ``data``, one at a time: all of them at once would take ten times the memory
    of the text. Raises ValueError for other JSON.
    """
    start = _LIST_START.match(text)
    if not start:
        raise ValueError("not a list")
    decode, place = json.JSONDecoder().raw_decode, start.end()
    while not text.startswith("]", place):
        element, place = decode(text, place)
        yield element
        place = _skip(text, place)
        if text.startswith(",", place):
            place = _skip(text, place + 1)
        elif not text.startswith("]", place):
            raise ValueError("not a list")


def _skip(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


_HINTS = {
    401: "check user, password or token",
    403: "check user, password or token",
    404: "check the path of the URL",
    413: "the push is too large for the server",
}


def error_of_answer(status: int, location: str | None, text: str) -> GatewayError:
    detail = _one_line(text)
    if 300 <= status < 400:
        target = re.sub(r"//[^/]*@", "//***@", _one_line(location or "elsewhere"))
        return GatewayError(
            f"the server answered {status}, a redirect to {target}, which is not followed; set that URL",
            status,
            affects_all_groups=True,
        )
    hint = _HINTS.get(status)
    message = f"the server answered {status}{f' ({hint})' if hint else ''}{f': {detail}' if detail else ''}"
    return GatewayError(message, status, affects_all_groups=status in (401, 403, 404, 405))


def error_text(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, GatewayError)
        else _one_line(f"{type(error).__name__}: {error}")
    )


def _one_line(text: str) -> str:
    """A message of a server as one short line, without control characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."


def _describe_error(error: BaseException) -> str:
    """The message of a connection error, without the addresses of Python objects."""
    import urllib3.exceptions

    if isinstance(error, urllib3.exceptions.ConnectTimeoutError) and not isinstance(
        error, urllib3.exceptions.NewConnectionError
    ):
        return f"no connection within {_CONNECT:.0f} s"
    if isinstance(error, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        return f"no answer within {_SILENCE:.0f} s"
    return (
        _one_line(
            re.sub(r"<[^>]* at 0x[0-9a-f]+>:? ?|^HTTPS?Connection\([^)]*\): ", "", str(error))
        )
        or type(error).__name__
    )


class _Samples:
    """Samples as a collector for prometheus_client."""

    def __init__(self, samples: t.Sequence[metrics.Sample]) -> None:
        self._samples = samples

    def collect(self) -> t.Iterable[t.Any]:
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, t.Any] = {}
        for sample in self._samples:
            family = families.get(sample.metric)
            if family is None:
                family = families[sample.metric] = GaugeMetricFamily(
                    sample.metric, _HELP.get(sample.metric, "")
                )
            family.add_sample(sample.metric, sample.labels, sample.value)
        return families.values()


_HELP = {metric.name: metric.help for metric in (*metrics.METRICS, metrics.COMPATIBILITY)}
