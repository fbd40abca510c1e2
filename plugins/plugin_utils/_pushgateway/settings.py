# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Read and validate the settings of a Pushgateway: options, variables, files with secrets."""

from __future__ import annotations

import base64
import dataclasses
import importlib
import os
import re
import typing as t
import urllib.parse

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    options as controller_options,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.spool import Spool

#: Python modules that are needed, and the packages that contain them.
_LIBRARIES = {"prometheus_client": "prometheus_client", "urllib3": "urllib3"}

_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
#: Labels that groups and samples already have. A group's label would override the sample's.
_TAKEN = frozenset(
    {
        "job",
        "node",
        "phase",
        *(label for metric in (*metrics.METRICS, metrics.COMPATIBILITY) for label in metric.labels),
    }
)


@dataclasses.dataclass(frozen=True)
class PushSettings:
    """The settings of a Pushgateway. Secrets do not appear in its `repr`."""

    url: str
    job: str = "autopilot_gpu"
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout: float = 30.0
    #: Value of the Authorization header, for basic or bearer authentication.
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
        """The grouping key in the Pushgateway for a group with these labels."""
        return {**self.labels, **labels, "job": self.job}

    def wants(self, sample: metrics.Sample) -> bool:
        """True if the sample is to be pushed; IBM Autopilot's metric is pushed only on request."""
        return self.compatibility or sample.metric != metrics.COMPATIBILITY.name

    @property
    def spool(self) -> Spool:
        return Spool(self.spool_dir, [self.url, self.job, self.labels], self.spool_limit)


def missing_packages() -> list[str]:
    """The Python packages that are needed but cannot be imported."""
    found = []
    for module, package in _LIBRARIES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            found.append(package)
    return found


def settings_from(
    callback: str, variables: t.Mapping[str, t.Any], templar: t.Any
) -> PushSettings | None:
    """Read the settings from variables, environment and configuration, as the documentation of the
    callback describes. None without a URL. Raises ValueError or AnsibleError.
    """
    given = {}
    for name in C.config.get_plugin_vars("callback", callback):
        if name in variables:
            try:
                given[name] = hosts.plain(templar.template(variables[name]))
            except AnsibleError:
                # Ansible's own error may contain a secret.
                raise ValueError(
                    f"{name}: the variable cannot be evaluated; check that all variables in it are defined"
                ) from None
    return settings_of(
        C.config.get_plugin_options("callback", callback, variables=given), C.ANSIBLE_HOME
    )


def settings_of(options: t.Mapping[str, t.Any], home: str) -> PushSettings | None:
    """Validate the options; None without a URL. ``home`` is Ansible's home directory. Raises
    ValueError that names the option, the value and what is accepted, but never the value of a
    secret.
    """
    given = {name: value for name, value in options.items() if value not in (None, "")}
    if "url" not in given:
        return None
    url, user, password = _url(str(given["url"]))
    timeout, limit = float(given.get("timeout", 30)), float(given.get("spool_limit", 64))
    if not 0 < timeout < float("inf"):
        raise _invalid_value("timeout", timeout, "a number of seconds above 0")
    if not 0 <= limit < float("inf"):
        raise _invalid_value("spool_limit", limit, "a number of MiB, 0 or more")
    job = str(given.get("job", "autopilot_gpu"))
    if not job.isprintable():
        raise _invalid_value("job", job, "printable text")
    if given.get("on_failure", "warn") not in ("warn", "ignore"):
        raise _invalid_value("on_failure", given["on_failure"], "warn or ignore")
    if "client_key" in given and "client_cert" not in given:
        raise ValueError("client_key: requires client_cert, the certificate of the key")
    for name in ("ca_file", "client_cert", "client_key"):
        if name in given:
            _read(name, str(given[name]))
    authorization = _authorization(given, user, password)
    if (
        authorization
        and not given.get("allow_plaintext")
        and controller_options.crosses_in_clear(url)
    ):
        raise ValueError(
            f"url: {url!r} is invalid with a password or token, which would cross the network in "
            "clear; expected https://, or allow_plaintext: true"
        )
    spool_dir = os.path.join(os.path.expanduser(home), "autopilot_gpu", "spool")
    return PushSettings(
        url=url,
        job=job,
        labels=_labels(given.get("labels", {})),
        timeout=timeout,
        authorization=authorization,
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


def _invalid_value(name: str, value: t.Any, accepted: str) -> ValueError:
    return ValueError(f"{name}: {value!r} is invalid; expected {accepted}")


def _url(text: str) -> tuple[str, str | None, str | None]:
    """Split a URL into the URL without credentials, the user and the password."""
    accepted = (
        "http:// or https:// with a host, and a path where the Pushgateway is below "
        "one, such as https://push.example:9091"
    )
    shown = re.sub(r"^([a-zA-Z]+://)?.*@", r"\1***@", text)
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _invalid_value("url", shown, accepted) from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.query
        or parts.fragment
        or re.search(r"[^!-~]", text)
    ):
        raise _invalid_value("url", shown, accepted)
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
            raise _invalid_value("labels", given, accepted)
        given = {name.strip(): value.strip() for name, _equals, value in pairs}
    if not isinstance(given, t.Mapping):
        raise _invalid_value("labels", given, accepted)
    labels = {str(name): str(value) for name, value in given.items()}
    for name, value in labels.items():
        if not _NAME.match(name) or name.startswith("__"):
            raise _invalid_value("labels", name, "names of letters, digits and '_'")
        if name in _TAKEN:
            raise _invalid_value(
                "labels", name, f"other names than {', '.join(sorted(_TAKEN))}, which are in use"
            )
        if not value or not value.isprintable():
            raise _invalid_value(f"labels.{name}", value, "printable text")
    return labels


def _authorization(
    given: t.Mapping[str, t.Any], user: str | None, password: str | None
) -> str | None:
    """The value of the Authorization header; options override the credentials in the URL."""
    token = _secret(given, "token")
    user, password = (
        str(given["username"]) if "username" in given else user,
        _secret(given, "password") or password,
    )
    if token and user:
        raise ValueError("token: cannot be combined with username; set only one of them")
    if token:
        return f"Bearer {token}"
    if user and password is None:
        raise ValueError(
            f"password: is required with username {user!r}; set password or password_file"
        )
    if password is not None and not user:
        raise ValueError("username: is required with a password")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else None


def _secret(given: t.Mapping[str, t.Any], name: str) -> str | None:
    if name in given and f"{name}_file" in given:
        raise ValueError(f"{name}_file: cannot be combined with {name}; set only one of them")
    secret = str(given[name]) if name in given else None
    if f"{name}_file" in given:
        secret = _read(f"{name}_file", str(given[f"{name}_file"])).strip()
    if secret is not None and (
        not secret
        or re.search(r"[\x00-\x1f\x7f]", secret)
        or (name == "token" and not secret.isascii())
    ):
        raise ValueError(
            f"{name}: the value (not shown) is empty or has characters that cannot be sent"
        )
    return secret


def _read(name: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ValueError(f"{name}: {path!r} cannot be read: {reason}") from None
