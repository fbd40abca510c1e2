# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The user who started Ansible, and the command line."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import typing as t

import yaml
from ansible.parsing.splitter import parse_kv

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import variables

#: Takes the place of a value that may be secret.
HIDDEN = "***"
#: Options of Ansible whose value may contain anything, such as a password for a jump host.
_PRIVATE = re.compile(r"--(ssh-common|ssh-extra|scp-extra|sftp-extra)-args")
#: ``-e`` alone or after flags without a value, such as ``-be``; argparse accepts shortened options.
_EXTRA = re.compile(r"(--e[-xtravs]*|-[bCDJkKv]*e)(=?)(.*)", re.DOTALL)
#: Variables that AWX and its predecessor set to the user who launched the job.
_LAUNCHED_BY = ("awx_user_name", "tower_user_name")


def user_name(play_variables: t.Mapping[str, t.Any]) -> str:
    """The user who launched the job in AWX, who called sudo, or whose process this is."""
    for name in _LAUNCHED_BY:
        if isinstance(play_variables.get(name), str):
            return str(play_variables[name])
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container often runs as a number without an account
        return str(os.getuid())


def command_line(arguments: t.Sequence[str], playbook: str) -> str:
    """The command line as a shell reads it. Of the variables on it, only the options of the playbook
    are shown with their values; other values may be secret.
    """
    shown = [os.path.basename(arguments[0])] if arguments else []
    rest = iter(arguments[1:])
    for argument in rest:
        extra, private = _EXTRA.fullmatch(argument), _PRIVATE.match(argument)
        if extra and extra[3]:
            shown.append(f"{extra[1]}{extra[2]}{_variables(extra[3], playbook)}")
        elif extra:
            shown += [argument, _variables(next(rest, ""), playbook)]
        elif private:
            if "=" not in argument:
                next(rest, "")
            shown += [private[0], HIDDEN]
        else:
            shown.append(argument)
    return shlex.join(shown)


def _variables(text: str, playbook: str) -> str:
    """The value of ``-e`` with only the values that are known not to be secret."""
    if text.startswith("@"):
        return text
    try:
        given = yaml.safe_load(text) if text.lstrip()[:1] in ("{", "[") else parse_kv(text)
    except Exception:  # what Ansible refuses by its own message
        return HIDDEN
    if not isinstance(given, dict):
        return HIDDEN
    spec = variables.spec_of(playbook)
    return " ".join(
        f"{name}={value if _is_public(spec.get(str(name)), value) else HIDDEN}"
        for name, value in given.items()
        if name != "_raw_params"  # what has no name
    )


def _is_public(rules: dict[str, t.Any] | None, value: t.Any) -> bool:
    """True if a value is of an option without secrets. A dictionary may contain options of a check,
    such as a password.
    """
    return (
        rules is not None
        and not rules.get("no_log")
        and rules["type"] != "dict"
        and not isinstance(value, dict)
        and not str(value).lstrip().startswith("{")
    )
