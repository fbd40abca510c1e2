# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The token that identifies an agent to other agents."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import Dict

#: Header of requests from other agents; its value is the caller's node.
PEER_HEADER = "X-Autopilot-Peer"


class AgentToken:
    """The token of this agent's service account, which all agents share. ``file`` is "" if the
    agent has no token.
    """

    def __init__(self, file: str, namespace: str) -> None:
        self._file = file
        self._namespace = namespace

    def read(self) -> str:
        """Return the token; "" if the agent has none. The file is read each time, since the kubelet
        rotates the token. Raises OSError, ValueError.
        """
        return Path(self._file).read_text(encoding="ascii").strip() if self._file else ""

    def user_name(self) -> str:
        """Return the user name of the service account; "" if the token lacks it."""
        try:
            payload = self.read().split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            subject = claims["sub"]
        except (OSError, IndexError, KeyError, TypeError, ValueError, binascii.Error):
            return ""
        prefix = f"system:serviceaccount:{self._namespace}:"
        return subject if isinstance(subject, str) and subject.startswith(prefix) else ""

    def headers(self, node: str) -> Dict[str, str]:
        """Return the headers of a request to another agent. Raises OSError, ValueError."""
        token = self.read()
        return {PEER_HEADER: node, **({"Authorization": f"Bearer {token}"} if token else {})}
