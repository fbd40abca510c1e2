# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""TLS of the agents: the certificate that all of them serve, and how they verify each other."""

from __future__ import annotations

import logging
import ssl
from datetime import datetime, timezone
from pathlib import Path
from typing import List, Optional, Tuple

from _health.agent.settings import AgentSettings

log = logging.getLogger("autopilot")

#: Changes of the files: modification times in nanoseconds.
_Stamp = Tuple[int, ...]


class AgentTls:
    """The files in AUTOPILOT_TLS_DIR. They are read again when they change, since the kubelet
    replaces them when the certificate is renewed; the old ones stay in use while the new ones are
    invalid.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._directory = Path(settings.tls_dir) if settings.tls_dir else None
        #: All agents have one certificate, for the DNS name of their Service.
        self._service_name = f"{settings.service}.{settings.namespace}.svc"
        self._server: Optional[ssl.SSLContext] = None
        self._client: Optional[ssl.SSLContext] = None
        self._server_stamp: _Stamp = ()
        self._client_stamp: _Stamp = ()
        self._ends: Optional[float] = None
        self._ends_stamp: _Stamp = ()

    @property
    def scheme(self) -> str:
        return "https" if self._directory else "http"

    @property
    def server_hostname(self) -> Optional[str]:
        """The name in the certificate of other agents, which are connected to by address."""
        return self._service_name if self._directory else None

    def server(self) -> Optional[ssl.SSLContext]:
        """The context to serve with; None without TLS. Raises OSError (with ssl.SSLError)."""
        if self._directory is None:
            return None
        if self._server is None:
            self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._server.minimum_version = ssl.TLSVersion.TLSv1_2
            self._server_stamp = self._load(self._server)
        return self._server

    def renew(self) -> None:
        """Load a renewed certificate into the context to serve with."""
        if self._directory and self._server and self._stamp("tls.crt") != self._server_stamp:
            try:
                self._server_stamp = self._load(self._server)
            except OSError as error:
                log.warning("the new certificate in %s is not used: %s", self._directory, error)

    def ends(self) -> Optional[float]:
        """When the certificate of the file ends, in seconds since 1970; None without one."""
        if self._directory is None:
            return None
        stamp = self._stamp("tls.crt")
        if stamp != self._ends_stamp:
            try:
                self._ends = end_of((self._directory / "tls.crt").read_text(encoding="ascii"))
            except (OSError, ValueError, IndexError):
                self._ends = None
            self._ends_stamp = stamp
        return self._ends

    def client(self) -> Optional[ssl.SSLContext]:
        """The context to ask other agents with. Raises OSError."""
        if self._directory is None:
            return None
        stamp = self._stamp("ca.crt")
        if self._client is None or stamp != self._client_stamp:
            self._client = ssl.create_default_context(cafile=str(self._directory / "ca.crt"))
            # Since 3.13 Python rejects a CA without key identifiers, which many clusters have.
            self._client.verify_flags &= ~ssl.VERIFY_X509_STRICT
            self._client_stamp = stamp
        return self._client

    def _load(self, context: ssl.SSLContext) -> _Stamp:
        assert self._directory is not None
        stamp = self._stamp("tls.crt")
        context.load_cert_chain(self._directory / "tls.crt", self._directory / "tls.key")
        return stamp

    def _stamp(self, name: str) -> _Stamp:
        assert self._directory is not None
        try:
            return ((self._directory / name).stat().st_mtime_ns,)
        except OSError:
            return ()


def end_of(pem: str) -> float:
    """When the first certificate of a PEM text ends, in seconds since 1970 (RFC 5280, 4.1). Python's
    ssl returns this for the certificates of peers only. Raises ValueError or IndexError.
    """
    mark = "-----END CERTIFICATE-----"
    start = max(pem.find("-----BEGIN CERTIFICATE-----"), 0)
    der = ssl.PEM_cert_to_DER_cert(pem[start : pem.index(mark) + len(mark)] + "\n")
    ((_tag, certificate),) = _values(der)
    fields = _values(_values(certificate)[0][1])
    # The version is optional; then come serial number, algorithm and issuer.
    validity = fields[4 if fields[0][0] == 0xA0 else 3][1]
    tag, end = _values(validity)[1]
    # UTCTime has two digits of the year, GeneralizedTime four.
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(end.decode("ascii"), form).replace(tzinfo=timezone.utc).timestamp()


def _values(der: bytes) -> List[Tuple[int, bytes]]:
    """The values of a sequence in DER, with their tags. Raises ValueError or IndexError."""
    found = []
    at = 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(der[at : at + digits], "big")
            at += digits
        if at + size > len(der):
            raise ValueError("the certificate ends early")
        found.append((tag, der[at : at + size]))
        at += size
    return found
