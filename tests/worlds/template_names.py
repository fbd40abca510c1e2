# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of variables in the templates of playbooks and roles."""

from __future__ import annotations

import jinja2
from jinja2 import nodes

#: Keys of tasks and plays whose text is an expression without braces.
_BARE = {"when", "that", "until", "failed_when", "changed_when", "var"}


def names_in(text):
    """The names of the variables that a template reads; what a playbook froze is read by attribute."""
    tree = jinja2.Environment().parse(text)
    frozen = {
        one.attr
        for one in tree.find_all(nodes.Getattr)
        if getattr(one.node, "name", None) == "autopilot_frozen"
    }
    return {name.name for name in tree.find_all(nodes.Name)}, frozen


def names_of(value, bare=False):
    """Those of all templates in a YAML document: the names, and what is read of
    ``autopilot_frozen``.
    """
    names, frozen = set(), set()
    for text in _texts(value, bare):
        found = names_in(text)
        names |= found[0]
        frozen |= found[1]
    return names, frozen


def _texts(value, bare):
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, key in _BARE)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, bare)
    elif isinstance(value, str) and (bare or "{{" in value or "{%" in value):
        yield f"{{{{ {value} }}}}" if bare and "{{" not in value else value
