# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What the actions that run once for all hosts share: reading what each host registered."""

from __future__ import annotations

import json
import typing as t

import yaml

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import raw_data


def tasks_of(play: t.Any) -> t.Iterator[t.Any]:
    """The tasks of a play as it was written, those of its blocks and of the files that it imports
    too.
    """
    left = list(play.get_tasks())
    while left:
        one = left.pop(0)
        if isinstance(one, list):
            left[:0] = one
        elif hasattr(one, "rescue"):
            left[:0] = [*one.block, *one.rescue, *one.always]
        else:
            yield one


def hosts_of(variables: dict[str, t.Any]) -> list[str]:
    """The hosts of the play, those that dropped out of it included."""
    still = set(variables.get("ansible_play_hosts") or [])
    batch = set(variables.get("ansible_play_batch") or [])
    # With `serial`, hosts of other batches are neither in this batch nor out of the play.
    return [
        host for host in variables["ansible_play_hosts_all"] if host not in still or host in batch
    ]


def raws(variables: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """The raw variables of each host: templating thousands of results would take minutes, and
    results hold nothing to template.

    Gathering the variables of a host takes a millisecond, so this is for once.
    """
    found = {}
    for host in hosts_of(variables):
        own = variables["hostvars"].raw_get(host)
        found[str(host)] = own if isinstance(own, dict) else {}
    return found


def registered(own: dict[str, t.Any], name: str) -> t.Any:
    """What a task registered for a host under the name, from the host's variables; None where only
    a fact of that name is there.

    A node can set facts (``ansible_facts`` in the result of any module), but not what is
    registered.
    """
    facts = own.get("ansible_facts")
    value = own.get(name)
    return None if isinstance(facts, dict) and name in facts and facts[name] == value else value


def answers(
    raws: dict[str, dict[str, t.Any]], name: str, kept: t.Iterable[str]
) -> list[tuple[str, t.Any]]:
    """What each host registered under the name, of it the keys in ``kept``, also those that were
    kept apart; None where it has nothing.
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
    """The value as plain JSON types: Ansible's own string and number types do not belong in a
    document, nor do NaN and infinity.
    """
    return json.loads(json.dumps(value, default=str), parse_constant=lambda word: None)


def listed(value: t.Any, variables: dict[str, t.Any] | None = None) -> t.Any:
    """A list that came as text, as ``-e 'name=[eth1, eth2]'`` gives it; anything else as it is.

    Ansible ends such a value at the first blank and keeps what follows under a name of its own.
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
