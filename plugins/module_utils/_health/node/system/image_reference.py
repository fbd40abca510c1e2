# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Image references: registry, repository, and tag or digest. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

#: The first part is a registry name if it contains a dot or a port, or is localhost: Docker's
#: reference grammar, which containerd, CRI-O and Podman share (module reference of the Distribution
#: project).
_REFERENCE = re.compile(
    r"^(?P<registry>(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?$"
)


class Reference(NamedTuple):
    """An image reference. ``registry`` is host and optional port; ``tag`` is ``latest`` if neither
    tag nor digest is given.
    """

    text: str
    registry: str
    host: str
    repository: str
    tag: str
    digest: str


def reference_of(text: object) -> Reference:
    """Parse a full reference; raises ValueError with what is accepted."""
    accepted = (
        "expected a full reference such as registry.example.com:5000/team/image:tag or …@sha256:…"
    )
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is invalid; {accepted}")
    found = _REFERENCE.match(text.strip())
    if not found:
        raise ValueError(f"{text!r} is invalid; {accepted}")
    host, port = found.group("host"), found.group("port")
    if not (port or "." in host or ":" in host or host == "localhost"):
        raise ValueError(
            f"{text!r} names no registry, and nodes may use different defaults; {accepted}"
        )
    if port and not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: port {port} is invalid; {accepted}")
    digest = found.group("digest") or ""
    return Reference(
        text.strip(),
        found.group("registry"),
        host.strip("[]").lower(),
        found.group("repository"),
        found.group("tag") or "latest",
        digest,
    )
