# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""TLS of the agents: the certificate that all of them serve, and how they verify each other."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Optional, Tuple

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
