# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers on loopback that are no good Pushgateways, a real one behind TLS, and certificates for
them.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import socket
import ssl
import threading
import time

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from servers import Pushgateway

EMPTY = (200, {"Content-Type": "application/json"}, '{"status":"success","data":[]}')


class Answering:
    """Answers by method with status, headers and text, or with what a function makes of the
    request's headers and path; ``asked`` has what it was asked.
    """

    def __init__(self, port=0, context=None, **answers):
        self.asked = []
        asked, answers = (
            self.asked,
            {"GET": EMPTY, "PUT": (200, {}, ""), "DELETE": (202, {}, ""), **answers},
        )

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                asked.append((self.command, self.path, dict(self.headers), body))
                answer = answers[self.command]
                status, headers, text = (
                    answer(self.headers, self.path) if callable(answer) else answer
                )
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_words):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_who):
                pass  # who does not trust the certificate hangs up

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_how):
        self._server.shutdown()
        self._server.server_close()


class Raw:
    """Accepts connections and does with each what ``behave(connection)`` does, in a thread."""

    def __init__(self, behave, port=0):
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections = []

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _peer = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            self._behave(connection)

    def __exit__(self, *_how):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()


def silent(connection):
    """Reads, and never answers."""
    while connection.recv(1 << 16):
        pass


def _drip(connection, opening, byte):
    connection.recv(1 << 16)
    connection.sendall(opening)
    while True:
        connection.sendall(byte)
        time.sleep(0.1)


def dripping(connection):
    """A byte of an endless answer now and then."""
    _drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ")


def dripping_headers(connection):
    """The same before the answer begins."""
    _drip(connection, b"HTTP/1.1 200 OK\r\nX-Word: ", b"a")


def dripping_handshake(connection):
    """The same of a TLS handshake."""
    _drip(connection, b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00")


def hanging_up(connection):
    """Reads, and closes."""
    connection.recv(1 << 16)
    connection.close()


def talking_nonsense(connection):
    """Something that is no HTTP."""
    connection.recv(1 << 16)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.close()


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"authority {directory.name}")]
        )
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
        certificate = certificate.sign(self._key, hashes.SHA256())
        self.file = directory / "ca.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def issue(self, name, address="127.0.0.1"):
        """Files with a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key.public_key()
        )
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        usage = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        certificate = (
            builder.add_extension(names, False)
            .add_extension(usage, False)
            .sign(self._key, hashes.SHA256())
        )
        files = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def context(self, name="server", address="127.0.0.1"):
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name, address))
        return context


class SecurePushgateway(Pushgateway):
    """The real one, over TLS, which asks for a certificate of the authority and for the user
    ``ops`` with the password ``pass word``.
    """

    HASH = "$2b$04$abcdefghijklmnopqrstuuFcV8WPKEefLKdOWfX8pW1yTVya21P7a"

    def __init__(self, directory, authority, port=None):
        super().__init__(directory, port)
        certificate, key = authority.issue("gateway")
        (self.directory / "web.yml").write_text(
            yaml.safe_dump(
                {
                    "tls_server_config": {
                        "cert_file": str(certificate),
                        "key_file": str(key),
                        "client_auth_type": "RequireAndVerifyClientCert",
                        "client_ca_file": str(authority.file),
                    },
                    "basic_auth_users": {"ops": self.HASH},
                }
            )
        )

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def argv(self):
        return [*super().argv(), f"--web.config.file={self.directory}/web.yml"]

    def _is_ready(self):
        if self._process.poll() is not None:
            raise AssertionError((self.directory / "log").read_text()[-2000:])
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0
