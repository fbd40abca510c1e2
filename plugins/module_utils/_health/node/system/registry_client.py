# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Image registries: test step by step whether this host can fetch an image's manifest.

The steps are those of a container runtime: name, connection (through the environment's proxy if
set), TLS, ``GET /v2/``, a token, ``HEAD`` of the manifest (OCI Distribution Specification 1.1; the
token as in the Distribution project's "Token Authentication Specification"). No part of an image is
fetched. Each step takes at most `STEP` seconds, except the resolver, which has no time limit: use
inside a `bounded.Child`.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import re
import socket
import ssl
import time
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit
from urllib.request import getproxies_environment

from . import tcp
from .bounded import ReportPipe
from .host import Host
from .image_reference import Reference

#: Seconds to wait for each answer of a few bytes. Container runtimes wait longer.
STEP = tcp.SECONDS
_REDIRECTS = 3
_KINDS = {401: "denied", 403: "denied", 404: "not_found", 429: "busy"}
#: Maximum bytes of an answer; a token has some 2 kB.
_MOST_BYTES = 1 << 20
_MOST_WORDS = 200

#: Manifest types that container runtimes accept: single-platform and multi-platform, of OCI and
#: Docker.
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
#: Directories of registry-specific CA certificates: Docker, Podman and CRI-O, containerd.
_CERTIFICATES = ("etc/docker/certs.d", "etc/containers/certs.d", "etc/containerd/certs.d")
#: OpenSSL's X509_V_ERR_* codes of certificates that are invalid for every client. Other errors may
#: depend on this client's CA certificates.
_WRONG = {9: "not_yet_valid", 10: "expired", 62: "wrong_name", 64: "wrong_name"}


class Trouble(Exception):
    """Where the test ended: the ``step``, the ``kind`` of error, the ``host``, a message, and the
    HTTP ``status`` if any.
    """

    def __init__(
        self, step: str, kind: str, host: str, message: str, status: Optional[int] = None
    ) -> None:
        super().__init__(message)
        self.step, self.kind, self.host, self.message, self.status = (
            step,
            kind,
            host,
            " ".join(message.split())[:_MOST_WORDS],
            status,
        )

    def to_dict(self) -> Dict[str, Any]:
        return dict(vars(self))


class Access(NamedTuple):
    """How to reach registries; files are on the host."""

    username: Optional[str] = None
    password: Optional[str] = None
    auth_file: Optional[str] = None
    ca_file: Optional[str] = None
    #: Whether plain HTTP and certificates of unknown CAs are accepted.
    insecure: Optional[bool] = False
    #: Whether a push is tried, too.
    push: Optional[bool] = False


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes


def examine(report: ReportPipe, reference: Reference, access: Access, host: Host) -> None:
    """Report the result of each step under its name: ``addresses``, ``proxy`` (or None), ``tls``
    (``version``, ``expires`` in seconds since the epoch, ``verified``), ``plain``, ``credentials``
    (their source), ``digest``, ``pushed``, ``seconds``; and ``trouble`` where the test ended.
    """
    began = time.monotonic()
    try:
        _Visit(report, reference, access, host).manifest()
        report.send("seconds", round(time.monotonic() - began, 3))
    except Trouble as trouble:
        report.send("trouble", trouble.to_dict())


class _Visit:
    def __init__(
        self, report: ReportPipe, reference: Reference, access: Access, host: Host
    ) -> None:
        self._report, self._reference, self._access, self._host = report, reference, access, host
        self._plain_allowed = bool(access.insecure) or is_loopback(reference.host)
        self._scheme = "https"
        self._told = False

    def manifest(self) -> None:
        credentials = self._credentials()
        answer = self._first()
        headers: Dict[str, str] = {}
        if answer.status == 401:
            headers = self._authorised(answer, credentials)
        elif answer.status != 200:
            raise self._odd("api", answer)
        own = self._reference
        path = f"/v2/{own.repository}/manifests/{quote(own.digest or own.tag, safe=':')}"
        ask = partial(self._ask, "manifest", "HEAD", self._url(path))
        answer = ask({"Accept": MANIFESTS, **headers})
        if answer.status == 401 and not headers:
            # Some registries authenticate only for image paths.
            headers = self._authorised(answer, credentials)
            answer = ask({"Accept": MANIFESTS, **headers})
        # An image may be pushed that is not there yet.
        if answer.status != 200 and not (self._access.push and answer.status == 404):
            raise self._odd("manifest", answer)
        self._report.send("digest", answer.headers.get("Docker-Content-Digest"))
        if self._access.push:
            self._push(headers, credentials)

    def _push(self, headers: Dict[str, str], credentials: Optional[Dict[str, str]]) -> None:
        """Begin an upload and cancel it."""
        url = self._url(f"/v2/{self._reference.repository}/blobs/uploads/")
        ask = partial(self._ask, "push", "POST", url, body=b"")
        answer = ask(headers)
        if answer.status == 401 and not headers:
            headers = self._authorised(answer, credentials)
            answer = ask(headers)
        upload = urljoin(url, answer.headers.get("Location") or "")
        if answer.status != 202 or upload == url:
            raise self._odd("push", answer)
        if urlsplit(upload)[:2] != urlsplit(url)[:2]:
            headers = {}
        try:
            self._report.send("pushed", self._ask("cancel", "DELETE", upload, headers).status)
        except Trouble:
            self._report.send("pushed", 0)

    def _first(self) -> Answer:
        """``GET /v2/``; without TLS if that is accepted and the registry does not speak TLS."""
        try:
            return self._ask("api", "GET", self._url("/v2/"))
        except Trouble as trouble:
            if not self._plain_allowed or trouble.kind != "no_tls":
                raise
        self._scheme = "http"
        self._report.send("plain", True)
        return self._ask("api", "GET", self._url("/v2/"))

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._reference.registry}{path}"

    # ---- who we are ----

    def _credentials(self) -> Optional[Dict[str, str]]:
        """``{"basic": user:password}`` or ``{"refresh": token}``; None for anonymous access."""
        own = self._access
        if own.username is not None:
            self._report.send("credentials", "username")
            return {"basic": f"{own.username}:{own.password or ''}"}
        if not own.auth_file:
            return None
        path = self._host.path(own.auth_file.lstrip("/"))
        try:
            with open(path, encoding="utf-8") as file:
                found = credentials_of(json.load(file), self._reference)
        except OSError as error:
            raise Trouble(
                "credentials",
                "not_read",
                self._reference.registry,
                f"auth_file: {own.auth_file} cannot be read: {error.strerror}",
            ) from None
        except ValueError:
            words = (
                f"auth_file: {own.auth_file} is invalid; expected JSON with auths, as "
                "docker login writes it"
            )
            raise Trouble("credentials", "not_read", self._reference.registry, words) from None
        self._report.send("credentials", "auth_file" if found else None)
        return found

    def _authorised(self, answer: Answer, credentials: Optional[Dict[str, str]]) -> Dict[str, str]:
        """The authorisation header that the registry requested; none for anonymous access, then the
        next answer decides.
        """
        scheme, asked = challenge_of(answer.headers.get_all("WWW-Authenticate") or [])
        if scheme == "basic":
            if not credentials or "basic" not in credentials:
                raise Trouble(
                    "token",
                    "denied",
                    self._reference.registry,
                    "the registry requires a user and a password, and none are given",
                    401,
                )
            return _basic(credentials["basic"])
        if scheme != "bearer" or not asked.get("realm"):
            raise Trouble(
                "token",
                "broken",
                self._reference.registry,
                "the registry requires an unsupported kind of authorisation",
                answer.status,
            )
        return {"Authorization": f"Bearer {self._token(asked, credentials)}"}

    def _token(self, asked: Dict[str, str], credentials: Optional[Dict[str, str]]) -> str:
        realm = asked["realm"]
        host = urlsplit(realm).hostname or realm
        if urlsplit(realm).scheme != "https" and not (self._plain_allowed or is_loopback(host)):
            raise Trouble(
                "token",
                "broken",
                host,
                "the registry names a token service without TLS, which gets no credentials",
            )
        query = {
            "service": asked.get("service", ""),
            "scope": f"repository:{self._reference.repository}:pull"
            + ",push" * bool(self._access.push),
        }
        query = {key: value for key, value in query.items() if value}
        if credentials and "refresh" in credentials:
            form = {
                **query,
                "grant_type": "refresh_token",
                "client_id": "autopilot.gpu",
                "refresh_token": credentials["refresh"],
            }
            answer = self._ask(
                "token",
                "POST",
                realm,
                {"Content-Type": "application/x-www-form-urlencoded"},
                urlencode(form).encode(),
            )
        else:
            url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}"
            answer = self._ask(
                "token", "GET", url, _basic(credentials["basic"]) if credentials else {}
            )
        if answer.status != 200:
            raise self._odd("token", answer, host)
        try:
            told = json.loads(answer.body)
            token = told.get("token") or told.get("access_token")
        except (ValueError, AttributeError):
            token = None
        # An invalid token must not become a header.
        if not isinstance(token, str) or not re.match(r"^[\x21-\x7e]+$", token):
            raise Trouble("token", "broken", host, "the token service answered without a token")
        return token

    # ---- asking ----

    def _ask(
        self,
        step: str,
        method: str,
        url: str,
        headers: Optional[Dict[str, str]] = None,
        body: Optional[bytes] = None,
    ) -> Answer:
        """The answer after redirects; credentials are not sent to another host."""
        headers = {"User-Agent": "autopilot.gpu", **(headers or {})}
        for _turn in range(_REDIRECTS + 1):
            self._report.send("step", step)
            answer = self._once(step, method, url, headers, body)
            location = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not location:
                return answer
            following = urljoin(url, location)
            if urlsplit(following).scheme != "https" and not (
                self._plain_allowed and urlsplit(following).scheme == "http"
            ):
                raise Trouble(
                    step,
                    "broken",
                    urlsplit(url).hostname or "",
                    "the registry redirects to an address without TLS",
                )
            if urlsplit(following).netloc != urlsplit(url).netloc:
                headers = {
                    name: value for name, value in headers.items() if name != "Authorization"
                }
            url = following
        raise Trouble(
            step, "broken", urlsplit(url).hostname or "", f"more than {_REDIRECTS} redirects"
        )

    def _once(
        self, step: str, method: str, url: str, headers: Dict[str, str], body: Optional[bytes]
    ) -> Answer:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        try:
            port = parts.port or (443 if secure else 80)
        except ValueError:
            raise Trouble(step, "broken", host, "it redirects to an invalid address") from None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = proxy_for(host, parts.scheme)
        if proxy:
            # The proxy resolves the registry's name.
            stream = self._connected(proxy.host, proxy.port)
            if secure:
                self._tunnel(stream, proxy, host, port)
            else:
                target, headers = f"http://{parts.netloc}{target}", {**headers, **proxy.headers}
        else:
            stream = self._connected(host, port)
        if not self._told:
            self._report.send("proxy", f"{proxy.host}:{proxy.port}" if proxy else None)
        self._told = True
        with stream:
            connection = http.client.HTTPConnection(host, port, timeout=STEP)
            connection.default_port = 443 if secure else 80
            connection.sock = self._secured(stream, host, port) if secure else stream
            self._report.stage(f"asking {host}")
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                return Answer(response.status, response.headers, response.read(_MOST_BYTES))
            except socket.timeout:
                raise Trouble(
                    step,
                    "silent",
                    host,
                    f"the registry accepted the connection but did not answer within {STEP:.0f} s",
                ) from None
            except (OSError, http.client.HTTPException) as error:
                raise Trouble(
                    step,
                    "broken",
                    host,
                    f"the answer is not a registry's: {type(error).__name__} {error}",
                ) from None
            finally:
                connection.close()

    def _connected(self, host: str, port: int) -> socket.socket:
        try:
            addresses = tcp.resolve(host, port, self._report.stage)
            if not self._told:
                self._report.send(
                    "addresses",
                    list(dict.fromkeys(str(address[0]) for _family, address in addresses)),
                )
            return tcp.connect(host, addresses, self._report.stage)
        except tcp.NotConnected as error:
            raise Trouble(
                "resolve" if error.unresolved else "connect", error.kind, host, str(error)
            ) from None

    def _tunnel(self, stream: socket.socket, proxy: "Proxy", host: str, port: int) -> None:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [
            f"CONNECT {where} HTTP/1.1",
            f"Host: {where}",
            *(f"{name}: {value}" for name, value in proxy.headers.items()),
        ]
        said = b""
        until = time.monotonic() + STEP
        try:
            stream.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
            while b"\r\n\r\n" not in said and len(said) < 1 << 16 and time.monotonic() < until:
                # One byte at a time, so that nothing after the header is consumed.
                piece = stream.recv(1)
                if not piece:
                    break
                said += piece
        except OSError as error:
            stream.close()
            raise Trouble(
                "proxy",
                "silent",
                proxy.host,
                f"the proxy {proxy.host}:{proxy.port} did not answer: {tcp.words(error)}",
            ) from None
        status = re.match(rb"HTTP/1\.[01] (\d{3})", said)
        if not status or status.group(1) != b"200":
            stream.close()
            code = int(status.group(1)) if status else None
            message = (
                f"the proxy {proxy.host}:{proxy.port} did not connect to {where}: "
                f"{code or 'no answer in HTTP'}"
            )
            raise Trouble("proxy", "refused" if code else "broken", proxy.host, message, code)

    def _secured(self, stream: socket.socket, host: str, port: int) -> ssl.SSLSocket:
        self._report.stage(f"TLS with {host}")
        context = self._context(host, port)
        try:
            secure = context.wrap_socket(stream, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            kind = _WRONG.get(error.verify_code, "not_trusted")
            raise Trouble(
                "tls", kind, host, f"the certificate of {host}: {error.verify_message}"
            ) from None
        except socket.timeout:
            raise Trouble(
                "tls",
                "silent",
                host,
                f"{host} accepted the connection but did not answer the TLS handshake within "
                f"{STEP:.0f} s",
            ) from None
        except ssl.SSLError as error:
            raise Trouble(
                "tls",
                "no_tls",
                host,
                f"{host} does not support a common TLS version: {error.reason or error}",
            ) from None
        except OSError as error:
            # A plain HTTP server may also close the connection.
            raise Trouble(
                "tls",
                "no_tls",
                host,
                f"{host} closed the connection in the TLS handshake: {tcp.words(error)}",
            ) from None
        expires = (secure.getpeercert() or {}).get("notAfter")
        if host == self._reference.host:
            verified = context.verify_mode == ssl.CERT_REQUIRED
            when = ssl.cert_time_to_seconds(expires) if isinstance(expires, str) else None
            self._report.send(
                "tls", {"version": secure.version(), "expires": when, "verified": verified}
            )
        return secure

    def _context(self, host: str, port: int) -> ssl.SSLContext:
        context = ssl.create_default_context()
        # Since 3.13 Python rejects certificates for details that container runtimes do not check.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if self._access.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        if self._access.ca_file:
            path = self._access.ca_file
            try:
                context.load_verify_locations(self._host.path(path.lstrip("/")))
            except (OSError, ssl.SSLError) as error:
                words = (
                    f"ca_file: {path} cannot be used: {getattr(error, 'strerror', None) or error}"
                )
                raise Trouble("credentials", "not_read", self._reference.registry, words) from None
        for base in _CERTIFICATES:
            for directory in (host, f"{host}:{port}"):
                for name in self._host.names(base, directory) or []:
                    if name.endswith((".crt", ".pem")):
                        try:
                            context.load_verify_locations(self._host.path(base, directory, name))
                        except (OSError, ssl.SSLError):
                            continue  # a client's certificate and other files are there too
        return context

    def _odd(self, step: str, answer: Answer, host: str = "") -> Trouble:
        """The error of an unsuccessful answer, in the registry's words."""
        message = f"answered {answer.status}"
        try:
            first = json.loads(answer.body)["errors"][0]
            message += f", {first.get('code')}: {first.get('message')}"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            pass
        kind = _KINDS.get(answer.status, "error")
        return Trouble(step, kind, host or self._reference.registry, message, answer.status)


def _basic(pair: str) -> Dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


# ---- what needs no network ----


class Proxy(NamedTuple):
    host: str
    port: int
    headers: Dict[str, str]


def proxy_for(host: str, scheme: str) -> Optional[Proxy]:
    """The environment's proxy for a host (``https_proxy``, ``http_proxy``, ``no_proxy``, including
    networks as Go's programs accept them). Raises `Trouble` for an unsupported proxy.
    """
    proxies = getproxies_environment()
    given = proxies.get(scheme)
    if (
        not given
        or is_loopback(host)
        or any(_is_excepted(host, one.strip()) for one in proxies.get("no", "").split(","))
    ):
        return None
    parts = urlsplit(given if "://" in given else f"http://{given}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise Trouble(
            "proxy",
            "not_known",
            host,
            f"{scheme}_proxy: {parts.scheme}://{parts.hostname} is invalid; expected "
            "http://host:port",
        )
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(
        parts.hostname, port, {"Proxy-Authorization": _basic(pair)["Authorization"]} if pair else {}
    )


def _is_excepted(host: str, pattern: str) -> bool:
    """True if an item of ``no_proxy`` matches: a domain, an address, a network, or ``*``."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        domain = re.sub(r":[0-9]+$", "", pattern.lower()).lstrip("*").lstrip(".")
        return pattern == "*" or bool(domain) and (host == domain or host.endswith(f".{domain}"))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def challenge_of(headers: List[str]) -> Tuple[str, Dict[str, str]]:
    """The scheme in lower case and the parameters of ``WWW-Authenticate``, ``bearer`` first;
    ("", {}) if there is none.
    """
    found: Dict[str, Dict[str, str]] = {}
    for header in headers:
        for part in re.split(r",\s*(?=(?:Bearer|Basic)\s)", header.strip(), flags=re.IGNORECASE):
            scheme, _blank, rest = part.strip().partition(" ")
            parameters = {
                name.lower(): quoted or bare
                for name, quoted, bare in re.findall(
                    r'([A-Za-z_]+)\s*=\s*(?:"([^"]*)"|([^\s",]+))', rest
                )
            }
            found.setdefault(scheme.lower(), parameters)
    for scheme in ("bearer", "basic"):
        if scheme in found:
            return scheme, found[scheme]
    return next(iter(found.items()), ("", {}))


def credentials_of(config: Any, reference: Reference) -> Optional[Dict[str, str]]:
    """The most specific entry for an image in a file such as ``~/.docker/config.json`` or a pull
    secret's ``.dockerconfigjson``, as in containers-auth.json(5). Raises ValueError for an invalid
    file.
    """
    auths = (
        config.get("auths", {})
        if isinstance(config, dict) and ({"auths", "credsStore", "credHelpers"} & set(config))
        else None
    )
    if not isinstance(auths, dict):
        raise ValueError("no auths")
    given = {
        re.sub(r"^https?://|/(v1|v2)?/?$", "", str(key)): value
        for key, value in auths.items()
        if isinstance(value, dict)
    }
    parts = f"{reference.registry}/{reference.repository}".split("/")
    for length in range(len(parts), 0, -1):
        own = given.get("/".join(parts[:length]))
        if own is None:
            continue
        if own.get("identitytoken"):
            return {"refresh": str(own["identitytoken"])}
        if own.get("username"):
            return {"basic": f"{own['username']}:{own.get('password') or ''}"}
        if own.get("auth"):
            return {"basic": base64.b64decode(str(own["auth"]), validate=False).decode("utf-8")}
    return None
