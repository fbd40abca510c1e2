# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Validate the options of actions, and those of checks as a user writes them for several checks at
once.
"""

from __future__ import annotations

import ipaddress
import re
import typing as t
import urllib.parse

from ansible_collections.autopilot.gpu.plugins.module_utils import _ansible, _option_values
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    FINDINGS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import STATUSES
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.spelling import (
    did_you_mean,
    nearest,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts


def validated(spec: dict[str, dict[str, t.Any]], given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The options of an action by its spec; raises ValueError that names each invalid option, its
    value and what is accepted.
    """
    read = {
        name: hosts.parse_list(value) if spec.get(name, {}).get("type") == "list" else value
        for name, value in given.items()
    }
    return t.cast("dict[str, t.Any]", _option_values.validated(spec, read))


def by_check(given: dict[str, t.Any], where: str = "options") -> dict[str, t.Any]:
    """The options by full names of checks; raises ValueError for an unsupported name."""
    try:
        return {registry.name_of(name): value for name, value in given.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def of_check(name: str, given: t.Any, where: str = "options") -> dict[str, t.Any]:
    """All options of a check, with defaults; raises ValueError that names an invalid option, its
    value and what is accepted.
    """
    found = _ansible.options_of(registry.load(name), given, where)
    return t.cast("dict[str, t.Any]", found)


def unknown_codes(option: str, codes: t.Iterable[str]) -> list[str]:
    """Why the codes of findings that an option names do not exist, one message each."""
    # The code of a result that none of its findings explains.
    unexplained = re.compile(rf"({'|'.join(registry.NAMES)})_({'|'.join(STATUSES)})")
    return [
        f"{option}: unknown finding code {code!r}{did_you_mean(nearest(code, FINDINGS))}; "
        "docs/findings.md lists all codes"
        for code in codes
        if code not in FINDINGS and not unexplained.fullmatch(code)
    ]


def refuse_unknown_codes(option: str, codes: t.Iterable[str]) -> None:
    """Raise ValueError for codes of findings that do not exist."""
    unknown = unknown_codes(option, codes)
    if unknown:
        raise ValueError("; ".join(unknown))


def crosses_in_clear(url: str) -> bool:
    """True for a URL without TLS on another host than this one."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(str(parts.hostname)).is_loopback
    except ValueError:
        return True
