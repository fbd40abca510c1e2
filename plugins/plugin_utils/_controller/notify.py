# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Notify people by a webhook, Slack or mail.

Each notification is sent by a daemon thread of its own, which is abandoned at the deadline. An error
names only the server of an address, since the rest may be a secret.
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

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import printable
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import options

#: Options of notifications, documented in the module job_action. Each may contain a secret.
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
            "allow_plaintext_login": {"type": "bool", "default": False},
        },
    },
    "allow_plaintext": {"type": "bool", "default": False},
}
#: Longest message to Slack in characters; Slack truncates at 40,000.
_MOST_TEXT = 3000


class Message(t.NamedTuple):
    """A notification: a title, some lines, and the decision as a JSON document."""

    title: str
    lines: list[str]
    document: dict[str, t.Any]


def validate(notify: dict[str, t.Any]) -> None:
    """Validate the targets; raises ValueError with the option and what is accepted. The message
    does not show a URL, which may be a secret.
    """
    for name in ("webhook", "slack"):
        if notify.get(name) and not re.fullmatch(r"https?://[^/?#@\s]+(/\S*)?", notify[name]):
            raise ValueError(
                f"notify.{name}: the given value is invalid; expected the URL to post to, "
                "such as https://hooks.example.org/..."
            )
        if options.crosses_in_clear(notify.get(name) or "https:") and not notify["allow_plaintext"]:
            raise ValueError(
                f"notify.{name}: http:// at {_server(notify[name])} is invalid, because the URL "
                "would cross the network in clear; expected https://, or allow_plaintext: true"
            )
    mail = notify.get("mail") or {}
    for address in [mail["sender"], *mail["to"]] if mail else []:
        if not re.fullmatch(r"[^@\s<>,;]+@[^@\s<>,;]+", address):
            raise ValueError(
                f"notify.mail: {address!r} is invalid; expected addresses such as jane@example.org"
            )
    if mail and mail["username"] and not (mail["starttls"] or mail["allow_plaintext_login"]):
        raise ValueError(
            "notify.mail.starttls: False is invalid with a username, whose password would cross the "
            "network in clear; set starttls, or allow_plaintext_login: true"
        )
    if mail and not mail["to"]:
        raise ValueError("notify.mail.to: [] is invalid; expected at least one address")


def targets_of(notify: dict[str, t.Any]) -> list[str]:
    """Describe the targets without secrets."""
    mail = notify.get("mail")
    found = [
        f"{name} at {_server(notify[name])}" for name in ("webhook", "slack") if notify.get(name)
    ]
    return found + ([f"mail to {', '.join(mail['to'])} by {mail['host']}"] if mail else [])


def send(notify: dict[str, t.Any], message: Message, seconds: float) -> dict[str, str]:
    """Send all notifications at once. Returns by target (see `targets_of`) an error, or "" if the
    notification was sent within ``seconds``.
    """
    senders: list[t.Callable[[float], None]] = []
    if notify.get("webhook"):
        senders.append(lambda left: _post(notify["webhook"], message.document, left))
    if notify.get("slack"):
        senders.append(
            lambda left: _post(notify["slack"], {"text": _slack(message)[:_MOST_TEXT]}, left)
        )
    if notify.get("mail"):
        senders.append(lambda left: _mail(notify["mail"], message, left))
    until = time.monotonic() + seconds
    found: queue.Queue[tuple[str, str]] = queue.Queue()
    names = targets_of(notify)
    for name, sender in zip(names, senders):
        threading.Thread(target=_send_one, args=(name, sender, seconds, found), daemon=True).start()
    outcome = dict.fromkeys(names, f"no answer within {seconds:.0f} s")
    for _name in names:
        try:
            name, trouble = found.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        outcome[name] = trouble
    return outcome


def _send_one(
    name: str,
    send_it: t.Callable[[float], None],
    seconds: float,
    found: queue.Queue[tuple[str, str]],
) -> None:
    try:
        send_it(seconds)
        found.put((name, ""))
    # No error may stop the other notifications.
    except Exception as error:
        found.put((name, _one_line(_error_text(error))))


def _error_text(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"answered {error.code}"
    if isinstance(error, smtplib.SMTPResponseException):
        text = error.smtp_error
        return (
            f"answered {error.smtp_code}, "
            f"{text.decode('utf-8', 'replace') if isinstance(text, bytes) else text}"
        )
    reason = getattr(error, "reason", None) or error
    return (
        f"{type(error).__name__}: {getattr(reason, 'strerror', None) or reason}"[:200]
        if not isinstance(error, ValueError)
        else type(error).__name__
    )


def _slack(message: Message) -> str:
    """The message in Slack's markup. Names that nodes sent must neither notify a channel nor look
    like a link, so its three control characters are escaped (Slack, "Formatting text").
    """
    lines = [_one_line(line) for line in (message.title, *message.lines)]
    title, *rest = [
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in lines
    ]
    return "\n".join([f"*{title}*", *rest])


def _one_line(text: str) -> str:
    return str(printable(" ".join(text.split())))


def _server(url: str) -> str:
    return str(urlsplit(url).hostname)


def _post(url: str, document: dict[str, t.Any], seconds: float) -> None:
    """Post the document as JSON. A redirect is an error, since it would send the message to another
    server.
    """
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
    mail_message = EmailMessage()
    mail_message["Subject"], mail_message["From"], mail_message["To"] = (
        _one_line(message.title),
        mail["sender"],
        ", ".join(mail["to"]),
    )
    mail_message.set_content("\n".join(map(_one_line, message.lines)) + "\n")
    mail_message.add_attachment(
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
        server.send_message(mail_message)
