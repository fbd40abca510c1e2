# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What the callback and the action that forget and push have in common: settings, the way to a
Pushgateway, delivery.

Everything that waits for the network does so in daemon threads, which are left behind when the time
is up: a server that sends a byte a second, or none at all, holds nobody up.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import json
import math
import os
import queue
import re
import ssl
import threading
import time
import typing as t
import urllib.parse

from ansible import constants as C
from ansible.errors import AnsibleError

from ansible_collections.autopilot.gpu.plugins.module_utils._health import VERSION
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.spool import (
    Kept,
    Spool,
    key_of,
)

#: Python packages and the names they are installed by.
_LIBRARIES = {"prometheus_client": "prometheus_client", "urllib3": "urllib3"}

#: Seconds for a connection, and without a word from a server, after which it is given up.
_CONNECT, _SILENCE = 5.0, 10.0
#: Seconds for which a thread outlasts whoever waits for it.
_LINGER = 1.0
#: Connections at once: with more, a Pushgateway on the same machine gets no faster.
CONNECTIONS = 8
#: Groups that may fail, other than by what the Pushgateway says of themselves, before the rest is
#: not tried.
_PATIENCE = 5
#: Answers about a group itself: its metrics are inconsistent, or too large. They hold up no other.
_REFUSALS = (400, 413, 422)
#: Bytes of an answer at most: 2,000 nodes in three phases are about 100 MB.
_MOST_BYTES = 512 << 20
#: Seconds that a time may be ahead of the Pushgateway's clock when it is pushed.
_AHEAD = 300.0
#: Characters of the Pushgateway's own words that are shown.
_MOST_WORDS = 300
#: A push of so many groups that takes longer than so many seconds is slow.
_MANY, _SLOW = 200, 5.0

_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
#: Labels that are in the groups and samples already; one in the group would write over those of the
#: samples.
_TAKEN = frozenset(
    {
        "job",
        "node",
        "phase",
        *(label for metric in (*metrics.METRICS, metrics.COMPATIBILITY) for label in metric.labels),
    }
)

_LIST_START = re.compile(r'\s*\{\s*(?:"status"\s*:\s*"success"\s*,\s*)?"data"\s*:\s*\[\s*')

#: The callback of this process that pushes: however many are enabled, it is one.
active: t.Any = None

Key = t.FrozenSet[t.Tuple[str, str]]


# ---- settings ----


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to push. Secrets are left out where it is shown."""

    url: str
    job: str = "autopilot_gpu"
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout: float = 30.0
    #: The header of basic or bearer authentication.
    authorization: str | None = dataclasses.field(default=None, repr=False)
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    on_failure: str = "warn"
    spool_dir: str = ""
    #: Bytes.
    spool_limit: int = 64 << 20
    compatibility: bool = False

    def key(self, labels: t.Mapping[str, str]) -> dict[str, str]:
        """The whole grouping key of a group that a run has."""
        return {**self.labels, **labels, "job": self.job}

    def wants(self, sample: metrics.Sample) -> bool:
        """Whether it is to be in the Pushgateway."""
        return self.compatibility or sample.metric != metrics.COMPATIBILITY.name

    @property
    def spool(self) -> Spool:
        return Spool(self.spool_dir, [self.url, self.job, self.labels], self.spool_limit)


def missing() -> list[str]:
    """Python packages that pushing needs and that are not there."""
    found = []
    for module, package in _LIBRARIES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            found.append(package)
    return found


def settings_from(
    callback: str, variables: t.Mapping[str, t.Any], templar: t.Any
) -> Settings | None:
    """The settings by variables, environment and configuration, as the callback of that name
    documents its options. Raises ValueError, or AnsibleError.
    """
    given = {}
    for name in C.config.get_plugin_vars("callback", callback):
        if name in variables:
            try:
                given[name] = hosts.plain(templar.template(variables[name]))
            except AnsibleError:
                # What it holds may be secret.
                raise ValueError(
                    f"{name}: the variable cannot be used; is all defined that it is made of?"
                ) from None
    return settings_of(
        C.config.get_plugin_options("callback", callback, variables=given), C.ANSIBLE_HOME
    )


def settings_of(options: t.Mapping[str, t.Any], home: str) -> Settings | None:
    """The settings, None without a URL. ``home`` is Ansible's own directory. Raises ValueError that
    names option, value and what is accepted.

    The value of a secret is never in it.
    """
    given = {name: value for name, value in options.items() if value not in (None, "")}
    if "url" not in given:
        return None
    url, user, password = _url(str(given["url"]))
    timeout, limit = float(given.get("timeout", 30)), float(given.get("spool_limit", 64))
    if not 0 < timeout < float("inf"):
        raise _refused("timeout", timeout, "seconds above 0")
    if not 0 <= limit < float("inf"):
        raise _refused("spool_limit", limit, "MiB from 0")
    job = str(given.get("job", "autopilot_gpu"))
    if not job.isprintable():
        raise _refused("job", job, "printable text")
    if given.get("on_failure", "warn") not in ("warn", "ignore"):
        raise _refused("on_failure", given["on_failure"], "warn or ignore")
    if "client_key" in given and "client_cert" not in given:
        raise ValueError(
            "client_key: is given without client_cert, the certificate that it belongs to"
        )
    for name in ("ca_file", "client_cert", "client_key"):
        if name in given:
            _read(name, str(given[name]))
    spool_dir = os.path.join(os.path.expanduser(home), "autopilot_gpu", "spool")
    return Settings(
        url=url,
        job=job,
        labels=_labels(given.get("labels", {})),
        timeout=timeout,
        authorization=_authorization(given, user, password),
        ca_file=_path(given, "ca_file"),
        client_cert=_path(given, "client_cert"),
        client_key=_path(given, "client_key"),
        on_failure=str(given.get("on_failure", "warn")),
        spool_dir=str(given.get("spool_dir") or spool_dir),
        spool_limit=int(limit * (1 << 20)),
        compatibility=bool(given.get("compatibility", False)),
    )


def _path(given: t.Mapping[str, t.Any], name: str) -> str | None:
    return str(given[name]) if name in given else None


def _refused(name: str, value: t.Any, accepted: str) -> ValueError:
    return ValueError(f"{name}: {value!r} is not accepted, give {accepted}")


def _url(text: str) -> tuple[str, str | None, str | None]:
    """The URL without user and password, and these."""
    accepted = (
        "http:// or https:// with a host, and a path where the Pushgateway is below "
        "one, such as https://push.example:9091"
    )
    shown = re.sub(r"^([a-zA-Z]+://)?.*@", r"\1***@", text)
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused("url", shown, accepted) from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.query
        or parts.fragment
        or re.search(r"[^!-~]", text)
    ):
        raise _refused("url", shown, accepted)
    place = f"[{host}]" if ":" in host else host
    user, password = (
        urllib.parse.unquote(part) if part else None for part in (parts.username, parts.password)
    )
    return (
        f"{parts.scheme}://{place}{f':{port}' if port else ''}{parts.path.rstrip('/')}",
        user,
        password,
    )


def _labels(given: t.Any) -> dict[str, str]:
    accepted = "a dictionary of labels, or text such as cluster=a,site=north"
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",") if part.strip()]
        if not all(equals for _name, equals, _value in pairs):
            raise _refused("labels", given, accepted)
        given = {name.strip(): value.strip() for name, _equals, value in pairs}
    if not isinstance(given, t.Mapping):
        raise _refused("labels", given, accepted)
    labels = {str(name): str(value) for name, value in given.items()}
    for name, value in labels.items():
        if not _NAME.match(name) or name.startswith("__"):
            raise _refused("labels", name, "names of letters, digits and '_'")
        if name in _TAKEN:
            raise _refused(
                "labels", name, f"other names than {', '.join(sorted(_TAKEN))}, which are in use"
            )
        if not value or not value.isprintable():
            raise _refused(f"labels.{name}", value, "printable text")
    return labels


def _authorization(
    given: t.Mapping[str, t.Any], user: str | None, password: str | None
) -> str | None:
    """The header, from the options or, without them, from the URL."""
    token = _secret(given, "token")
    user, password = (
        str(given["username"]) if "username" in given else user,
        _secret(given, "password") or password,
    )
    if token and user:
        raise ValueError("token: is given together with username, give one of them")
    if token:
        return f"Bearer {token}"
    if user and password is None:
        raise ValueError(
            f"password: is missing for username {user!r}, give password or password_file"
        )
    if password is not None and not user:
        raise ValueError("username: is missing for the password that is given")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else None


def _secret(given: t.Mapping[str, t.Any], name: str) -> str | None:
    if name in given and f"{name}_file" in given:
        raise ValueError(f"{name}_file: is given together with {name}, give one of them")
    secret = str(given[name]) if name in given else None
    if f"{name}_file" in given:
        secret = _read(f"{name}_file", str(given[f"{name}_file"])).strip()
    if secret is not None and (
        not secret
        or re.search(r"[\x00-\x1f\x7f]", secret)
        or (name == "token" and not secret.isascii())
    ):
        raise ValueError(f"{name}: what is given is empty, or has characters that cannot be sent")
    return secret


def _read(name: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "not text"
        raise ValueError(f"{name}: {path!r} cannot be read: {words}") from None


# ---- the Pushgateway ----


class Trouble(Exception):
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

    def __init__(self, settings: Settings) -> None:
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
            for group in _listed(text):
                if isinstance(group, dict) and isinstance(group.get("labels"), dict):
                    yield group["labels"], group
        except ValueError:
            raise Trouble(
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
            raise Trouble(f"TLS: {_words_of(error)}", lasting=True) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Trouble(_words_of(error)) from None

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
            raise Trouble("there was no time left", lasting=True)
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
                    raise Trouble(
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
        raise _answered(
            response.status, response.headers.get("Location"), whole.decode("utf-8", "replace")
        )


def _ssl_context(settings: Settings) -> ssl.SSLContext:
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


def _listed(text: str) -> t.Iterator[t.Any]:
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


def _answered(status: int, location: str | None, text: str) -> Trouble:
    words = _plain(text)
    if 300 <= status < 400:
        target = re.sub(r"//[^/]*@", "//***@", _plain(location or "elsewhere"))
        return Trouble(
            f"it answers {status} and sends on to {target}, which is not followed; give that URL",
            status,
            lasting=True,
        )
    hint = _HINTS.get(status)
    said = f"it answers {status}{f' ({hint})' if hint else ''}{f': {words}' if words else ''}"
    return Trouble(said, status, lasting=status in (401, 403, 404, 405))


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


# ---- threads that may be left behind ----


class Crew:
    """Daemon threads that work off tasks. One is started at once, since none can be any more when
    the interpreter shuts down.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[t.Callable[[], None]] = queue.SimpleQueue()
        self._size = 0
        self._grow(1)

    def run(self, tasks: t.Sequence[t.Callable[[], None]], until: float) -> bool:
        """Whether all tasks were done before ``until``; those that are not begun by then are not
        begun. Tasks raise nothing.
        """
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def timed(task: t.Callable[[], None]) -> t.Callable[[], None]:
            def work() -> None:
                try:
                    if time.monotonic() < until:
                        task()
                finally:
                    done.put(None)

            return work

        self._grow(min(CONNECTIONS, len(tasks)))
        for task in tasks:
            self._tasks.put(timed(task))
        try:
            for _task in tasks:
                done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return False
        return time.monotonic() < until

    def _grow(self, size: int) -> None:
        while self._size < size:
            try:
                threading.Thread(target=self._serve, daemon=True, name="autopilot-push").start()
            except RuntimeError:
                # The interpreter shuts down: those that there are do it.
                return
            self._size += 1

    def _serve(self) -> None:
        while True:
            self._tasks.get()()


# ---- delivery ----


@dataclasses.dataclass
class Outcome:
    """What became of a delivery."""

    #: Groups that the Pushgateway has, and those that it has not, with what it is to have and why
    #: it has not.
    delivered: set[Key] = dataclasses.field(default_factory=set)
    left: dict[Key, metrics.Group] = dataclasses.field(default_factory=dict)
    why: dict[Key, str] = dataclasses.field(default_factory=dict)
    #: Whether the Pushgateway was slow because it compares each push with all it has.
    slow: bool = False


def deliver(
    settings: Settings,
    gateway: Gateway,
    crew: Crew,
    exports: t.Sequence[metrics.Export],
    until: float,
) -> Outcome:
    """Push the groups of runs, oldest first: of several states of a group what they come to
    together with what the Pushgateway has of it. ``until`` is in monotonic seconds.
    """
    began = time.monotonic()
    delivery = _Delivery(settings, gateway, _together(exports), until)
    delivery.run(crew)
    outcome = delivery.outcome(f"it took longer than {until - began:.0f} s")
    slow = (
        len(delivery.wanted) > _MANY
        and time.monotonic() - began > _SLOW
        and bool(outcome.delivered)
        and _compares(gateway, crew)
    )
    return dataclasses.replace(outcome, slow=slow)


class _Delivery:
    """The groups to push, and what came of each so far. Threads fill it in."""

    def __init__(
        self, settings: Settings, gateway: Gateway, wanted: dict[Key, metrics.Group], until: float
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._until = until
        self.wanted = wanted
        #: What the Pushgateway has already; each group is given back once it is merged.
        self._known: dict[Key, list[metrics.Sample]] = {}
        self._delivered: set[Key] = set()
        self._why: dict[Key, str] = {}
        #: Failures that say nothing about a group itself.
        self._failures: list[str] = []
        #: Why the rest is not tried; "" while it is.
        self._stopped = ""

    def run(self, crew: Crew) -> None:
        """Read what the Pushgateway has, then push every group."""
        if crew.run([self._look], self._until) and not self._stopped:
            puts = [functools.partial(self._put, key) for key in self.wanted]
            crew.run(puts, self._until)

    def outcome(self, late: str) -> Outcome:
        """Return what was delivered and why the rest was not; ``late`` where nothing else says why.

        Threads that are left behind go on for a moment; what they do from here on is done twice,
        which does no harm.
        """
        delivered, why = set(self._delivered), dict(self._why)
        left = {key: group for key, group in self.wanted.items() if key not in delivered}
        reason = self._stopped or late
        return Outcome(delivered, left, {key: why.get(key, reason) for key in left})

    def _look(self) -> None:
        keys = {key_of(self._settings.key(one.labels)): key for key, one in self.wanted.items()}
        try:
            for labels, group in self._gateway.groups(self._until):
                key = keys.get(key_of(labels))
                if key is not None:
                    self._known[key] = self._gateway.samples(group)
        except Exception as error:  # a server may answer anything
            self._stopped = _said(error)

    def _put(self, key: Key) -> None:
        if self._stopped:
            return
        group = self.wanted[key]
        old, samples = (
            [sample for sample in several if self._settings.wants(sample)]
            for several in (self._known.pop(key, []), group.samples)
        )
        if old:
            samples = metrics.merged(samples, old)
        try:
            self._gateway.put(self._settings.key(group.labels), samples, self._until)
        except Exception as error:  # a server may answer anything
            self._failed(key, error)
        else:
            self._delivered.add(key)

    def _failed(self, key: Key, error: Exception) -> None:
        words = self._why[key] = _said(error)
        trouble = error if isinstance(error, Trouble) else Trouble("")
        if trouble.status in _REFUSALS:
            return
        self._failures.append(words)
        if trouble.lasting or len(self._failures) >= _PATIENCE:
            self._stopped = self._stopped or words


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Trouble) else _plain(f"{type(error).__name__}: {error}")


def _together(exports: t.Sequence[metrics.Export]) -> dict[Key, metrics.Group]:
    wanted: dict[Key, metrics.Group] = {}
    for export in exports:
        for group in export.groups:
            key = key_of(group.labels)
            known = wanted.get(key)
            wanted[key] = (
                group
                if known is None
                else metrics.Group(group.labels, metrics.merged(group.samples, known.samples))
            )
    return wanted


def _compares(gateway: Gateway, crew: Crew) -> bool:
    """Whether the Pushgateway says so, within a second."""
    found: list[bool] = []

    def ask() -> None:
        try:
            found.append(gateway.checks_consistency(until))
        except Exception:  # it is only for a hint
            found.append(False)

    until = time.monotonic() + 1.0
    crew.run([ask], until)
    return bool(found and found[0])


# ---- a run, from the spool to the Pushgateway ----


class Report(t.NamedTuple):
    """What there is to say when a run was pushed."""

    #: Names of nodes that the Pushgateway has now, of all runs that waited.
    pushed: list[str]
    #: Runs before this one of which something was pushed.
    earlier: int
    seconds: float
    #: Names of nodes that it has not (an empty name for the run itself), by why.
    left: dict[str, list[str]]
    #: Whether what is left is kept; otherwise why not.
    kept: bool
    wrong: list[str]
    slow: bool


def write_down(
    settings: Settings, exports: t.Sequence[metrics.Export]
) -> tuple[list[Kept], list[str]]:
    """Put runs into the spool; returns them with their files, and in words what went wrong."""
    if settings.spool_limit:
        try:
            return [Kept(settings.spool.add(export), export) for export in exports], []
        except OSError as error:
            return [Kept(None, export) for export in exports], [_unwritable(settings, error)]
    return [Kept(None, export) for export in exports], []


def push(
    settings: Settings, gateway: Gateway, crew: Crew, new: list[Kept], seconds: float
) -> Report:
    """Push what waits together with runs that were written down just now, and keep what was not
    taken.
    """
    began = time.monotonic()
    until = began + seconds
    wrong: list[str] = []
    exports = [entry.export for entry in new]
    if all(entry.path is not None for entry in new):
        try:
            with settings.spool.locked(until) as free:
                if free:
                    return _push_all(settings, gateway, crew, new, began, until)
            outcome = Outcome(left=_together(exports))
            outcome.why = dict.fromkeys(outcome.left, "another run was pushing all the time")
            return _report(outcome, [], new, began, wrong)
        except OSError as error:
            wrong.append(_unwritable(settings, error))
    # Without a spool, or a lock on it, the run is pushed by itself.
    return _report(deliver(settings, gateway, crew, exports, until), [], new, began, wrong)


def _unwritable(settings: Settings, error: OSError) -> str:
    return f"{settings.spool_dir} cannot be written: {error.strerror}"


def _push_all(
    settings: Settings, gateway: Gateway, crew: Crew, new: list[Kept], began: float, until: float
) -> Report:
    """Push what waits in the spool, which is locked, and these runs, which are in it as well."""
    spool = settings.spool
    waiting, unread = spool.waiting()
    own = {entry.path for entry in new}
    before = [entry for entry in waiting if entry.path not in own]
    outcome = deliver(settings, gateway, crew, [entry.export for entry in [*before, *new]], until)
    wrong = list(unread)
    try:
        spool.settle([*before, *new], outcome.left)
        wrong += [
            f"dropped, since more than {settings.spool_limit / (1 << 20):.3g} MiB wait: "
            f"{_named(export)}"
            for export in spool.trim()
        ]
    except OSError as error:
        wrong.append(_unwritable(settings, error))
    return _report(outcome, before, new, began, wrong)


def forget(settings: Settings, nodes: t.Collection[str], until: float) -> None:
    """Take nodes out of the runs that wait, so that no later run brings them back. Raises OSError,
    also when the spool is in use all the time.
    """
    spool = settings.spool
    if not os.path.isdir(spool.directory):
        return
    with spool.locked(until) as free:
        if not free:
            raise TimeoutError(None, "another run is pushing all the time")
        waiting, _unread = spool.waiting()
        together = _together([entry.export for entry in waiting])
        spool.settle(
            waiting,
            {
                key: group
                for key, group in together.items()
                if group.labels.get("node") not in nodes
            },
        )


def _named(export: metrics.Export) -> str:
    return f"run {export.run_id} ({sum('node' in group.labels for group in export.groups)} nodes)"


def _report(
    outcome: Outcome,
    before: t.Sequence[Kept],
    new: t.Sequence[Kept],
    began: float,
    wrong: list[str],
) -> Report:
    earlier = sum(
        any(key_of(group.labels) in outcome.delivered for group in entry.export.groups)
        for entry in before
    )
    left: dict[str, list[str]] = {}
    for key, group in outcome.left.items():
        left.setdefault(outcome.why[key], []).append(group.labels.get("node", ""))
    groups = [group for entry in [*before, *new] for group in entry.export.groups]
    pushed = {
        group.labels["node"]
        for group in groups
        if "node" in group.labels and key_of(group.labels) in outcome.delivered
    }
    kept = all(
        entry.path is not None and os.path.exists(entry.path)
        for entry in new
        if any(key_of(group.labels) in outcome.left for group in entry.export.groups)
    )
    return Report(
        sorted(pushed), earlier, time.monotonic() - began, left, kept, wrong, outcome.slow
    )
