# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each command in README.md and docs is run by a test or says why not, and names playbooks, modules
and variables that exist.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

import documented

ROOT = documented.ROOT
COMMANDS = [(block, command) for block in documented.consoles() for command in block.commands]
#: What a shell block may be called; `console` is the one that tests read.
SHELLS = {"", "sh", "bash", "shell"}
#: The prefix of options that callbacks read, not playbooks.
OF_CALLBACKS = "pushgateway_"


@pytest.mark.parametrize("page", documented.PAGES, ids=lambda page: page.name)
def test_commands_stand_in_console_blocks(page):
    blocks, rest = documented.blocks(page)
    assert [block.line for block in blocks if block.language in SHELLS] == []
    program = re.compile(r"^ {4,}(\$ )?(ansible\S*|make|kubectl|curl|amtool|promtool) ")
    assert [line for line in rest if program.match(line)] == []
    for block in blocks:
        if block.language == "console":
            assert block.commands == block.text.replace("$ ", "").splitlines(), block


def test_a_marked_command_says_what_runs_it():
    for block in documented.consoles():
        kind, said = block.marker or ("", "")
        if kind == "run by":
            assert (ROOT / said).is_file(), block
        for named in re.findall(r"tests/\S+\.py", said):
            assert (ROOT / named).is_file(), block


def variables(playbook):
    """Names of variables in a playbook, in the roles it uses and in the tasks it includes."""
    text = (ROOT / f"playbooks/{playbook}.yml").read_text(encoding="utf-8")
    roles = re.findall(r"autopilot\.gpu\.(checks|mesh|agent|monitoring)\b", text)
    for role in roles:
        text += (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text(encoding="utf-8")
    for tasks in re.findall(r"(?:file|import_tasks|import_playbook): (tasks/\w+\.yml)", text):
        text += (ROOT / "playbooks" / tasks).read_text(encoding="utf-8")
    return set(re.findall(r"[a-z][a-z_0-9]*", text))


@pytest.mark.parametrize(
    "command", sorted({command for _block, command in COMMANDS if "autopilot.gpu." in command})
)
def test_a_command_names_what_exists(command):
    words = shlex.split(command)
    for playbook in re.findall(r"ansible-playbook (?:-i \S+ )?autopilot\.gpu\.(\w+)", command):
        assert (ROOT / f"playbooks/{playbook}.yml").is_file()
        given = [value for option, value in zip(words, words[1:]) if option == "-e"]
        names = {
            name
            for value in given
            if not value.startswith("@")
            for name in (json.loads(value) if value.startswith("{") else [value.partition("=")[0]])
        }
        unknown = {name for name in names if not name.startswith(OF_CALLBACKS)}
        assert unknown - variables(playbook) == set()
    for module in re.findall(r"-m autopilot\.gpu\.(\w+)", command):
        path = ROOT / f"plugins/modules/{module}.py"
        documentation = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
        assert yaml.safe_load(documentation)["module"] == module
