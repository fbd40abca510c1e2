# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Read the variables and registered results of all hosts of a play, for actions that run once."""

from __future__ import annotations

import json
import typing as t

import yaml

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import raw_data


def tasks_of(play: t.Any) -> t.Iterator[t.Any]:
    """The tasks of a play in order, including those of blocks and imported files."""
    left = list(play.get_tasks())
    while left:
        entry = left.pop(0)
        if isinstance(entry, list):
            left[:0] = entry
        elif hasattr(entry, "rescue"):
            left[:0] = [*entry.block, *entry.rescue, *entry.always]
        else:
            yield entry


def hosts_of(variables: dict[str, t.Any]) -> list[str]:
    """The hosts of the play, including failed and unreachable hosts."""
    still = set(variables.get("ansible_play_hosts") or [])
    batch = set(variables.get("ansible_play_batch") or [])
    # With `serial`, the hosts of other batches must be left out.
    return [
        host for host in variables["ansible_play_hosts_all"] if host not in still or host in batch
    ]


def raw_variables(variables: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """The untemplated variables of each host; templating thousands of results would take minutes,
    and results contain no templates.

    Takes about a millisecond per host, so call it once.
    """
    found = {}
    for host in hosts_of(variables):
        own = variables["hostvars"].raw_get(host)
        found[str(host)] = own if isinstance(own, dict) else {}
    return found


def registered(own: dict[str, t.Any], name: str) -> t.Any:
    """The result that a task registered for a host under the name; None without such a result.

    Facts are ignored: a node can set facts (``ansible_facts`` in the result of any module), but not
    registered results.
    """
    facts = own.get("ansible_facts")
    value = own.get(name)
    return None if isinstance(facts, dict) and name in facts and facts[name] == value else value


def answers(
    raws: dict[str, dict[str, t.Any]], name: str, kept: t.Iterable[str]
) -> list[tuple[str, t.Any]]:
    """The result that each host registered under the name, reduced to the keys in ``kept``, with
    its raw data; None for a host without a result.
    """
    found = []
    for host, own in raws.items():
        answer = registered(own, name)
        if isinstance(answer, dict):
            apart = raw_data.read_back(answer, kept, host)
            answer = {**plain({key: answer[key] for key in kept if key in answer}), **apart}
        else:
            answer = None
        found.append((host, answer))
    return found


def plain(value: t.Any) -> t.Any:
    """The value as plain JSON types, without Ansible's string types, NaN and infinity."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda word: None)


def parse_list(value: t.Any, variables: dict[str, t.Any] | None = None) -> t.Any:
    """Parse a list that was given as text, as in ``-e 'name=[eth1, eth2]'``; return any other value
    unchanged.

    Ansible cuts such a value at the first blank and stores the rest in the variable
    ``_raw_params``.
    """
    if not isinstance(value, str) or not value.strip().startswith("["):
        return value
    rest = (variables or {}).get("_raw_params")
    text = (
        f"{value} {rest}" if isinstance(rest, str) and not value.rstrip().endswith("]") else value
    )
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return value
    return found if isinstance(found, list) else value
