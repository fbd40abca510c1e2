# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Commands that repeat the failed part of a run. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    NodeReport,
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mappings_in,
    sequence,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    FAIL,
    PASS,
    SKIP,
    UNKNOWN,
    WARN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_text import text_of

#: Host names without characters that have a meaning in an Ansible pattern.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
#: The playbook of the command in every phase: a repaired node is checked before it gets a job.
_PLAYBOOK = "autopilot.gpu.preflight"
#: Hosts in one command; Linux limits one argument to 128 KiB.
_MOST_HOSTS = 1000
#: Healthy hosts that suspects are measured with; fewer cannot tell which end is bad.
_PARTNERS = 5
#: The code of a finding that needs nodes of the same model for comparison, and the number of
#: healthy nodes added for each node that has it.
_COMPARED, _PEERS_EACH = "below_fleet", 3


class Command(t.NamedTuple):
    """A command, its title, and the hosts that no pattern can name."""

    words: str
    line: str
    left_out: list[str]


def commands_of(report: RunReport) -> list[Command]:
    """The commands to run after a repair: the checks of single nodes, and the checks between nodes
    together with healthy partners.
    """
    nodes = {node.name: node for node in report.nodes if node.name}
    alone: dict[str, set[str]] = {}
    meshed: list[str] = []
    for name, node in nodes.items():
        if node.status in (PASS, SKIP):
            continue
        found = {found.check for found in node.verdict.findings} or {""}
        if found & set(CHECKS):
            meshed.append(name)
        if found - set(CHECKS):
            alone[name] = found - set(CHECKS)
    commands = [_of_nodes(nodes, alone)] if alone else []
    suspects = list(dict.fromkeys(meshed + _between(report)))
    return commands + ([_of_mesh(report, nodes, suspects)] if suspects else [])


def _of_nodes(nodes: dict[str, NodeReport], alone: dict[str, set[str]]) -> Command:
    """The command for the checks of single nodes. ``alone``: by host, the checks that found
    something.
    """
    wanted = set().union(*alone.values())
    names = (
        [name for name in registry.names_of_pass() if name in wanted]
        if wanted <= set(registry.names_of_pass())
        else []
    )
    message = (
        f"{'The checks with findings' if names else 'All checks of single nodes'}, on "
        "the nodes that need attention"
    )
    peers = _peers(nodes, list(alone))
    if peers:
        message += f", with {len(peers)} healthy nodes of the same model for comparison"
    variables = {"checks_list": names} if names else {}
    return _command(message, "--skip-tags", list(alone) + peers, variables)


def _of_mesh(report: RunReport, nodes: dict[str, NodeReport], suspects: t.Sequence[str]) -> Command:
    partners = _partners(report, nodes, suspects)
    message = "The network of the nodes that need attention and of the ends of bad links"
    if partners:
        message += (
            f", with {len(partners)} healthy nodes ({', '.join(partners)}), which show the bad end"
        )
    planned = report.mesh.first_plan.get("checks", []) if report.mesh else []
    names = [name for name in CHECKS if name in planned] or list(CHECKS)
    return _command(message, "--tags", [*suspects, *partners], {"mesh_checks": names})


def _between(report: RunReport) -> list[str]:
    """The hosts at the ends of bad links and paths."""
    pairs = [
        pair
        for found in report.findings
        if found.finding.status in (WARN, UNKNOWN, FAIL)
        for pair in mappings_in(found.finding.evidence.get("pairs"))
    ]
    return list(
        dict.fromkeys(
            text_of(pair[end]) for pair in pairs for end in ("from", "to") if pair.get(end)
        )
    )


def _peers(nodes: dict[str, NodeReport], suspects: t.Sequence[str]) -> list[str]:
    """Healthy hosts with the same GPUs as suspects that are slower than the fleet; checked alone,
    these suspects would pass.
    """
    below = [
        name
        for name in suspects
        if any(found.finding.code == _COMPARED for found in nodes[name].verdict.findings)
    ]
    models = {model for name in below for model in _models(nodes[name])}
    well = [
        name
        for name, node in nodes.items()
        if node.status == PASS and models & _models(node) and _pattern(name)
    ]
    return well[: max(_PARTNERS, _PEERS_EACH * len(below))] if below else []


def _models(node: NodeReport) -> set[str]:
    return {text_of(gpu.get("name")) for gpu in node.gpus if gpu.get("name")}


def _partners(
    report: RunReport, nodes: dict[str, NodeReport], suspects: t.Sequence[str]
) -> list[str]:
    """Healthy hosts of the mesh, first those that the suspects were measured with."""
    members = [text_of(host) for host in report.mesh.hosts] if report.mesh else []
    met = [
        text_of(host)
        for name in suspects
        if name in nodes
        for found in nodes[name].verdict.findings
        for host in sequence(found.finding.evidence.get("partners"))
    ]
    well = [
        host
        for host in dict.fromkeys(met + members)
        if host in nodes and nodes[host].status == PASS and host not in suspects
    ]
    return [host for host in well if _pattern(host)][:_PARTNERS]


def _command(words: str, tags: str, hosts: t.Sequence[str], variables: dict[str, t.Any]) -> Command:
    patterns = [_pattern(host) for host in hosts]
    named = [pattern for pattern in patterns if pattern]
    left_out = [host for host, pattern in zip(hosts, patterns) if not pattern]
    arguments = ["ansible-playbook", "-i", "hosts.yml", _PLAYBOOK, tags, "mesh"]
    if named and len(named) <= _MOST_HOSTS:
        # With a comma at the end, Ansible does not split a single IPv6 address at its colons.
        arguments += ["--limit", ",".join(named) + ("," if ":" in named[-1] else "")]
    elif named:
        words += f"; these are more than {_MOST_HOSTS}, so it is for all hosts"
    else:
        words += "; no pattern can name them, so it is for all hosts"
    if variables:
        arguments += ["-e", json.dumps(variables)]
    return Command(
        words, " ".join(shlex.quote(argument) for argument in arguments), left_out if named else []
    )


def _pattern(host: str) -> str:
    """A pattern that matches this host only; "" if there is none."""
    if _PLAIN.fullmatch(host):
        return host
    try:
        return host if ipaddress.ip_address(host) and "%" not in host else ""
    except ValueError:
        return ""
