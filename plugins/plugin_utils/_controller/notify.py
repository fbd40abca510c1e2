# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Telling people: a webhook, a channel of Slack, a mail.

Each has its own daemon thread, which is left behind when the time is up, so that a server that
never answers holds nobody up. What is said of a failure has the name of the server and no more of
an address, since the rest of it may be a secret.
"""

from __future__ import annotations

import json
import queue
import re
import smtplib
import ssl
import threading
import time
import typing as t
from email.message import EmailMessage
from urllib.error import HTTPError
from urllib.parse import urlsplit

from ansible.module_utils.urls import open_url

#: Options by which somebody is told; documented in the module job_action. All of them may be
#: secrets.
OPTIONS: dict[str, dict[str, t.Any]] = {
    "webhook": {"type": "str", "no_log": True},
    "slack": {"type": "str", "no_log": True},
    "mail": {
        "type": "dict",
        "options": {
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "default": 25},
            "sender": {"type": "str", "required": True},
            "to": {"type": "list", "elements": "str", "required": True},
            "starttls": {"type": "bool", "default": False},
            "username": {"type": "str"},
            "password": {"type": "str", "no_log": True},
        },
    },
}
#: Characters of a message of Slack; it cuts what is longer than 40,000, and nobody reads that.
_MOST_TEXT = 3000


class Message(t.NamedTuple):
    """What to tell: one line, some lines, and all of it for programs."""

    title: str
    lines: list[str]
    document: dict[str, t.Any]


def refuse(notify: dict[str, t.Any]) -> None:
    """Raises ValueError for a target that is none; it names the option and what is accepted, not
    the value, which may be a secret.
    """
    for name in ("webhook", "slack"):
        if notify.get(name) and not re.fullmatch(r"https?://[^/?#@\s]+(/\S*)?", notify[name]):
            raise ValueError(
                f"notify.{name}: the given value is invalid; expected the URL to post to, "
                "such as https://hooks.example.org/..."
            )
    mail = notify.get("mail") or {}
    for address in [mail["sender"], *mail["to"]] if mail else []:
        if not re.fullmatch(r"[^@\s<>,;]+@[^@\s<>,;]+", address):
            raise ValueError(
                f"notify.mail: {address!r} is invalid; expected addresses such as jane@example.org"
            )
    if mail and not mail["to"]:
        raise ValueError("notify.mail.to: [] is invalid; expected at least one address")


def named(notify: dict[str, t.Any]) -> list[str]:
    """Whom to tell, without secrets."""
    mail = notify.get("mail")
    found = [
        f"{name} at {_server(notify[name])}" for name in ("webhook", "slack") if notify.get(name)
    ]
    return found + ([f"mail to {', '.join(mail['to'])} by {mail['host']}"] if mail else [])


def tell(notify: dict[str, t.Any], message: Message, seconds: float) -> dict[str, str]:
    """Tell all of them at once; by whom (as `named` has it), "" or why it did not come to that
    within ``seconds``.
    """
    ways: list[t.Callable[[float], None]] = []
    if notify.get("webhook"):
        ways.append(lambda left: _post(notify["webhook"], message.document, left))
    if notify.get("slack"):
        ways.append(
            lambda left: _post(
                notify["slack"],
                {"text": "\n".join([f"*{message.title}*", *message.lines])[:_MOST_TEXT]},
                left,
            )
        )
    if notify.get("mail"):
        ways.append(lambda left: _mail(notify["mail"], message, left))
    until = time.monotonic() + seconds
    found: queue.Queue[tuple[str, str]] = queue.Queue()
    names = named(notify)
    for name, way in zip(names, ways):
        threading.Thread(target=_try, args=(name, way, seconds, found), daemon=True).start()
    said = dict.fromkeys(names, f"no answer within {seconds:.0f} s")
    for _name in names:
        try:
            name, trouble = found.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        said[name] = trouble
    return said


def _try(
    name: str, way: t.Callable[[float], None], seconds: float, found: queue.Queue[tuple[str, str]]
) -> None:
    try:
        way(seconds)
        found.put((name, ""))
    # Whatever goes wrong on the way is why nobody was told.
    except Exception as error:
        found.put((name, _words(error)))


def _words(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"answered {error.code}"
    if isinstance(error, smtplib.SMTPResponseException):
        said = error.smtp_error
        return (
            f"answered {error.smtp_code}, "
            f"{said.decode('utf-8', 'replace') if isinstance(said, bytes) else said}"
        )
    reason = getattr(error, "reason", None) or error
    return (
        f"{type(error).__name__}: {getattr(reason, 'strerror', None) or reason}"[:200]
        if not isinstance(error, ValueError)
        else type(error).__name__
    )


def _server(url: str) -> str:
    return str(urlsplit(url).hostname)


def _post(url: str, document: dict[str, t.Any], seconds: float) -> None:
    """A redirection is no answer: what was to be told would go to somebody else."""
    answer = open_url(
        url,
        data=json.dumps(document).encode(),
        method="POST",
        headers={"Content-Type": "application/json", "User-Agent": "autopilot.gpu"},
        timeout=seconds,
        follow_redirects="none",
    )
    answer.close()


def _mail(mail: dict[str, t.Any], message: Message, seconds: float) -> None:
    letter = EmailMessage()
    letter["Subject"], letter["From"], letter["To"] = (
        message.title,
        mail["sender"],
        ", ".join(mail["to"]),
    )
    letter.set_content("\n".join(message.lines) + "\n")
    letter.add_attachment(
        json.dumps(message.document, indent=1).encode(),
        maintype="application",
        subtype="json",
        filename="decision.json",
    )
    with smtplib.SMTP(mail["host"], mail["port"], timeout=seconds) as server:
        if mail["starttls"]:
            server.starttls(context=ssl.create_default_context())
        if mail["username"]:
            server.login(mail["username"], mail["password"] or "")
        server.send_message(letter)
