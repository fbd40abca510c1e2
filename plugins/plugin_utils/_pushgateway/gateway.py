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

#: Seconds for a connection, and without a word from a server, after which it is given up.
_CONNECT, _SILENCE = 5.0, 10.0
#: Seconds for which a thread outlasts whoever waits for it.
_LINGER = 1.0
#: Bytes of an answer at most: 2,000 nodes in three phases are about 100 MB.
_MOST_BYTES = 512 << 20
#: Seconds that a time may be ahead of the Pushgateway's clock when it is pushed.
_AHEAD = 300.0
#: Characters of the Pushgateway's own words that are shown.
_MOST_WORDS = 300

_LIST_START = re.compile(r'\s*\{\s*(?:"status"\s*:\s*"success"\s*,\s*)?"data"\s*:\s*\[\s*')


class GatewayError(Exception):
    """Something was not done; its text says why, with nothing secret in it. ``status`` is the
    answer's, None where there was none.
    """

    def __init__(self, words: str, status: int | None = None, lasting: bool = False) -> None:
        super().__init__(words)
        self.status = status
        #: Whether it is the same for every group, so that there is no use in trying others.
        self.lasting = lasting


class Gateway:
    """A Pushgateway, over connections that are kept. Its methods wait, but not much longer than
    ``until`` (of the monotonic clock).
    """

    def __init__(self, settings: PushSettings) -> None:
        """Raises ValueError where certificates or keys cannot be used."""
        import urllib3

        self._settings = settings
        self._headers = {"User-Agent": f"autopilot.gpu/{VERSION}"}
        if settings.authorization:
            self._headers["Authorization"] = settings.authorization
        context = _ssl_context(settings) if settings.url.startswith("https:") else None
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=CONNECTIONS, ssl_context=context)

    def groups(self, until: float) -> t.Iterator[tuple[dict[str, str], dict[str, t.Any]]]:
        """The groups that there are: labels, and metrics as the API has them."""
        text = self._asked("/api/v1/metrics", until)
        try:
            for group in listed_groups(text):
                if isinstance(group, dict) and isinstance(group.get("labels"), dict):
                    yield group["labels"], group
        except ValueError:
            raise GatewayError(
                "the answer to GET /api/v1/metrics is not that of a Pushgateway", lasting=True
            ) from None

    def samples(self, group: t.Mapping[str, t.Any]) -> list[metrics.Sample]:
        """What a group has of this collection's metrics, without the labels of the group."""
        found = []
        own = {*group["labels"], "instance"}
        pushed = max(
            (
                float(one["value"])
                for one in group.get("push_time_seconds", {}).get("metrics") or []
            ),
            default=math.inf,
        )
        for name, family in group.items():
            if name.startswith("autopilot_") and isinstance(family, dict):
                for one in family.get("metrics") or []:
                    labels = {
                        label: value for label, value in one["labels"].items() if label not in own
                    }
                    if "value" in one:
                        value = float(one["value"])
                        # A controller whose clock is ahead must not have the last word until the
                        # others' clocks are there, too.
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
        """Remove a group, if there is one."""
        import prometheus_client

        grouping = {name: value for name, value in labels.items() if name != "job"}
        prometheus_client.delete_from_gateway(
            self._settings.url, labels["job"], grouping, handler=self._handler(until)
        )

    def checks_consistency(self, until: float) -> bool:
        """Whether it compares each push with all that it has, which makes a large fleet slow."""
        flags = json.loads(self._asked("/api/v1/status", until))["data"]["flags"]
        return bool(flags.get("push.disable-consistency-check") == "false")

    def _handler(self, until: float) -> t.Callable[..., t.Callable[[], None]]:
        def handler(
            url: str, method: str, timeout: t.Any, headers: t.Iterable[tuple[str, str]], data: bytes
        ) -> t.Callable[[], None]:
            def send() -> None:
                self._request(method, url, until, dict(headers), data)

            return send

        return handler

    def _asked(self, path: str, until: float) -> str:
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
                return self._once(method, url, until, headers, body)
            except urllib3.exceptions.ProtocolError:
                # A connection that was kept may have been closed in the meantime; what is asked for
                # does no harm twice.
                return self._once(method, url, until, headers, body)
        except urllib3.exceptions.SSLError as error:
            raise GatewayError(f"TLS: {_words_of(error)}", lasting=True) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise GatewayError(_words_of(error)) from None

    def _once(
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
            raise GatewayError("there was no time left", lasting=True)
        # Who waits gives up first when the time runs out, so that what is said of a silence is as
        # long as it says.
        timeout = urllib3.Timeout(
            connect=min(_CONNECT, rest + _LINGER), read=min(_SILENCE, rest + _LINGER)
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
                        lasting=True,
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
        raise ValueError("client_key: has a passphrase, give one without")

    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"ca_file: {settings.ca_file!r} cannot be used: {_plain(str(error))}"
        ) from None
    if settings.client_cert:
        try:
            context.load_cert_chain(settings.client_cert, settings.client_key, passphrase)
        except (OSError, ssl.SSLError) as error:
            files = " with ".join(
                repr(path) for path in (settings.client_cert, settings.client_key) if path
            )
            raise ValueError(f"client_cert: {files} cannot be used: {_plain(str(error))}") from None
    return context


def listed_groups(text: str) -> t.Iterator[t.Any]:
    """The elements of ``data``, one at a time: all of them at once would take ten times the memory
    of the text. Raises ValueError.
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
    413: "it does not take so much at once",
}


def error_of_answer(status: int, location: str | None, text: str) -> GatewayError:
    words = _plain(text)
    if 300 <= status < 400:
        target = re.sub(r"//[^/]*@", "//***@", _plain(location or "elsewhere"))
        return GatewayError(
            f"it answers {status} and sends on to {target}, which is not followed; give that URL",
            status,
            lasting=True,
        )
    hint = _HINTS.get(status)
    said = f"it answers {status}{f' ({hint})' if hint else ''}{f': {words}' if words else ''}"
    return GatewayError(said, status, lasting=status in (401, 403, 404, 405))


def error_text(error: Exception) -> str:
    return (
        str(error)
        if isinstance(error, GatewayError)
        else _plain(f"{type(error).__name__}: {error}")
    )


def _plain(text: str) -> str:
    """Somebody else's words in a line, without what a terminal would obey."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS]}..."


def _words_of(error: BaseException) -> str:
    """What a library says of a connection, without its address in memory."""
    import urllib3.exceptions

    if isinstance(error, urllib3.exceptions.ConnectTimeoutError) and not isinstance(
        error, urllib3.exceptions.NewConnectionError
    ):
        return f"no connection within {_CONNECT:.0f} s"
    if isinstance(error, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        return f"no answer within {_SILENCE:.0f} s"
    return (
        _plain(re.sub(r"<[^>]* at 0x[0-9a-f]+>:? ?|^HTTPS?Connection\([^)]*\): ", "", str(error)))
        or type(error).__name__
    )


class _Samples:
    """Samples as prometheus_client wants to have them."""

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
