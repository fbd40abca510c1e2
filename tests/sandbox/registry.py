# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image registry on loopback that speaks the distribution protocol, its token service, a proxy
in front of it, and certificates of any kind for it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.server
import ipaddress
import json
import socket
import ssl
import threading
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DIGEST = "sha256:" + "7d865e959b2466918c9863afca942d0fb89d7c9ac0c99bafc3749504ded97730"
_MANIFEST = "application/vnd.oci.image.index.v1+json"


class Authority:
    """Signs certificates for 127.0.0.1 and registry.test; ``file`` is its own."""

    def __init__(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of registries")])
        made = self._builder(self._name, self._key.public_key(), -1, 365).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
        self.file = directory / "ca.pem"
        self.file.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def _builder(self, name, key, first, last):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
        )
        return builder.not_valid_before(now + datetime.timedelta(days=first)).not_valid_after(
            now + datetime.timedelta(days=last, hours=1)
        )

    def context(self, first=-2, last=90, address="127.0.0.1"):
        """For a server, with a certificate that is valid from day ``first`` to day ``last`` of now
        on.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
        called = "registry.test" if address == "127.0.0.1" else "other.test"
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName(called)]
        )
        made = (
            self._builder(name, key.public_key(), first, last)
            .add_extension(names, False)
            .sign(self._key, hashes.SHA256())
        )
        files = (
            self.directory / f"{first}{last}{address}.pem",
            self.directory / f"{first}{last}{address}.key",
        )
        files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        return context


class Registry:
    """``images`` are repositories with their tags and digests; ``guard`` is None, ``basic`` or
    ``token``; ``users`` by name with their passwords, of whom "" is anybody; ``faults`` are
    statuses by step: api, token, manifest, push, cancel. ``asked`` has method, path, and the
    headers of every request, ``uploads`` the uploads that were begun and not cancelled. A token
    is good for a push if it was asked for one by a user who may (``pushers``; None: everybody).
    """

    def __init__(
        self, context=None, images=None, guard=None, users=None, faults=None, open_api=False
    ):
        self.images = {"team/llm": ["v1", "latest", DIGEST]} if images is None else images
        self.guard, self.users, self.faults, self.open_api = (
            guard,
            users or {},
            faults or {},
            open_api,
        )
        self.asked = []
        self.uploads, self.pushers, self._begun = [], None, 0
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                registry.asked.append((self.command, self.path, dict(self.headers)))
                status, headers, told = registry.answer(self.command, self.path, self.headers, body)
                text = json.dumps(told).encode()
                self.send_response(status)
                for name, value in {
                    **headers,
                    "Content-Type": "application/json",
                    "Content-Length": str(len(text)),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_HEAD = do_POST = do_DELETE = answer

            def log_message(self, *_words):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_who):
                pass  # who does not trust the certificate hangs up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        if context:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self.host = f"127.0.0.1:{self.port}"

    def answer(self, method, path, headers, body):
        parts = urlsplit(path)
        step = "token" if parts.path == "/token" else "api" if parts.path == "/v2/" else "manifest"
        if "/blobs/uploads/" in parts.path:
            step = "cancel" if method == "DELETE" else "push"
        if step in self.faults:
            fault = self.faults[step]
            return (
                fault
                if isinstance(fault, tuple)
                else (fault, {}, _error("UNAVAILABLE", "having trouble"))
            )
        if step == "token":
            return self._token(method, parse_qs(body if method == "POST" else parts.query), headers)
        if not self._known(headers) and not (step == "api" and self.open_api):
            asking = {
                "basic": 'Basic realm="registry"',
                "token": f'Bearer realm="{self.url}/token",service="registry",scope="x"',
            }
            return (
                401,
                {"WWW-Authenticate": asking[self.guard]},
                _error("UNAUTHORIZED", "authentication required"),
            )
        if step == "api":
            return 200, {}, {}
        if step in ("push", "cancel"):
            return self._upload(step, parts.path, headers)
        repository, _manifests, name = parts.path[len("/v2/") :].rpartition("/manifests/")
        if name not in self.images.get(repository, []):
            return 404, {}, _error("MANIFEST_UNKNOWN", "manifest unknown")
        if _MANIFEST not in headers.get("Accept", ""):
            return (
                404,
                {},
                _error(
                    "MANIFEST_UNKNOWN",
                    "OCI index found, but accept header does not support OCI indexes",
                ),
            )
        return 200, {"Docker-Content-Digest": DIGEST, "X-Kind": _MANIFEST}, {}

    def _upload(self, step, path, headers):
        given = headers.get("Authorization", "")
        allowed = self.pushers is None or (
            given == "Bearer good.token.push"
            if self.guard == "token"
            else self._user(given) in self.pushers
        )
        if not allowed:
            return 403, {}, _error("DENIED", "requested access to the resource is denied")
        if step == "push":
            self._begun += 1
            self.uploads.append(f"{path}{self._begun}")
            return 202, {"Location": self.uploads[-1], "Range": "0-0"}, {}
        if path not in self.uploads:
            return 404, {}, _error("BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
        self.uploads.remove(path)
        return 204, {}, {}

    def _known(self, headers):
        given = headers.get("Authorization", "")
        if self.guard == "basic":
            return self._user(given) is not None
        return self.guard is None or given in ("Bearer good.token", "Bearer good.token.push")

    def _user(self, given):
        if given.startswith("Basic "):
            name, _colon, password = base64.b64decode(given[6:]).decode().partition(":")
            return name if self.users.get(name) == password else None
        return "" if not given and "" in self.users else None

    def _token(self, method, query, headers):
        if query.get("scope", [""])[0].split(":")[0] != "repository" or query.get("service") != [
            "registry"
        ]:
            return 400, {}, _error("BAD", "no scope")
        if method == "POST":
            good = query.get("grant_type") == ["refresh_token"] and query.get("refresh_token") == [
                self.users.get("refresh")
            ]
            return (
                (200, {}, {"access_token": "good.token"})
                if good
                else (401, {}, _error("UNAUTHORIZED", "no such token"))
            )
        if headers.get("Authorization") and self._user(headers["Authorization"]) is None:
            return 401, {}, _error("UNAUTHORIZED", "incorrect username or password")
        user = self._user(headers.get("Authorization", ""))
        push = query["scope"][0].endswith(":pull,push") and user in (self.pushers or ())
        good = "good.token.push" if push else "good.token"
        return 200, {}, {"token": good if user is not None else "poor.token"}

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_how):
        self._server.shutdown()
        self._server.server_close()


def _error(code, message):
    return {"errors": [{"code": code, "message": message}]}


class Proxy:
    """An HTTP proxy that connects every host to one address, or answers every CONNECT with
    ``status``; ``asked`` has its first lines and headers.
    """

    def __init__(self, to=None, status=200):
        self.asked = []
        self._to, self._status = to, status
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_how):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=(self._listener.accept()[0],), daemon=True
                ).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            said = b""
            while b"\r\n\r\n" not in said:
                said += client.recv(4096)
            self.asked.append(said.decode())
            client.sendall(f"HTTP/1.1 {self._status} as told\r\n\r\n".encode())
            if self._status != 200:
                return
            with socket.create_connection(("127.0.0.1", self._to)) as server:
                threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
                self._copy(client, server)

    @staticmethod
    def _copy(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
