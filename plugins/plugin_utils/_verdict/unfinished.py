# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Judge a play that ended before its verdict (Ctrl-C, an error), in Ansible's main process: the
results that the hosts registered so far are there.
"""

from __future__ import annotations

import typing as t

from ansible.template import Templar

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict.judge_play import (
    judge_play,
    read_options,
    write_judged,
)


def judge_unfinished(play: t.Any, verdict: t.Any, ended: str) -> list[Line]:
    """The summary of the play, which ended before its task ``verdict``; ``ended`` says where. The
    run document is written if a node has answered.
    """
    manager = play.get_variable_manager()
    variables = manager.get_vars(play=play)
    names = hosts.hosts_of(variables)
    given = _arguments(play, verdict, names[0]) if names else {}
    options, refused = read_options(given)
    answers = hosts.answers(
        hosts.raw_variables(variables), options["results"], ("health", "unreachable")
    )
    if not any(answer for _name, answer in answers):
        return [Line(f"autopilot {options['phase']} INCOMPLETE: {ended}; no node was checked")]
    judged = judge_play(options, refused, variables, bool(play.check_mode), ended)
    lines: list[Line] = write_judged(judged, {})[0]
    return lines


def _arguments(play: t.Any, task: t.Any, name: str) -> dict[str, t.Any]:
    """The arguments of the task for a host, without those that are omitted or cannot be had yet."""
    manager = play.get_variable_manager()
    host = manager._inventory.get_host(name)
    variables = manager.get_vars(play=play, host=host, task=task)
    templar = Templar(loader=play.get_loader(), variables=variables)
    given = {}
    for option, value in task.args.items():
        try:
            found = templar.template(value)
        except Exception:  # nosec B112 # also what is omitted raises, by an error of its own
            continue
        if found != variables.get("omit"):
            given[option] = found
    return given
