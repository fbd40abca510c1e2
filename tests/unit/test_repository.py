# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Promises of the tree as a whole: it stands alone, and its parts agree with each other."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import COMMON_OPTIONS
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health import model
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.iperf3_pairs import (
    PREDECESSOR,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller.on_node import OnNode
from template_names import names_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))

# With brackets, so that this file does not accuse itself.
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.>}])/(?:[w]ork|[f]arm|[r]oot|home/[a-z]+)/"),
    "a way out of the tree": re.compile(r"[.]{2}/[s]hared"),
    "the host of a package registry": re.compile(
        r"[p]ypi\.org|[p]ythonhosted|[c]rates\.io|[n]pmjs|[d]eb\.debian|[r]epo1?\.maven"
    ),
}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: " + listed.stderr.decode().strip())
    return [
        ROOT / name
        for name in listed.stdout.decode().split("\0")
        if name and (ROOT / name).is_file()
    ]


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", sorted(FOREIGN))
def test_nothing_points_outside(what):
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if FOREIGN[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert found == []


def test_links_stay_inside():
    links = [path for path in tracked() if path.is_symlink()]
    assert [str(link) for link in links if ROOT not in link.resolve().parents] == []


def test_groups_and_routing_are_what_the_modules_give():
    """The options that checks share are defaults of their group, which any other module would refuse."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "src/meta/runtime.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    groups = load("meta/runtime.yml")["action_groups"]
    assert set(MODULES) > set(groups["gpu"]) > set(registry.names_of_pass())
    assert groups["cluster"] == ["node_mark", "volume_claim"]


def test_no_module_is_run_on_a_node_by_an_action_of_ansible_core():
    """Ansible's own action makes variables of what a node answers. Ours do not: those of the
    collection derive from OnNode, or run on the controller.
    """
    routed = {
        name: entry["action_plugin"]
        for name, entry in load("meta/runtime.yml")["plugin_routing"]["modules"].items()
    }
    for name in MODULES:
        action = routed.get(name, f"autopilot.gpu.{name}").rpartition(".")[2]
        found = importlib.import_module(
            f"ansible_collections.autopilot.gpu.plugins.action.{action}"
        ).ActionModule
        assert (
            issubclass(found, OnNode)
            and not found._supports_async
            or not found._requires_connection
        ), name


#: What a play still reads after its nodes have answered though nothing froze it: it says what a
#: node does on itself.
OF_THE_NODE = {
    "preflight_nhc_conf",
    "preflight_become",
    "inflight_checks",
    "inflight_become",
    "postflight_checks",
    "postflight_release_seconds",
    "postflight_become",
}


@pytest.mark.parametrize("name", ["preflight", "inflight", "postflight"])
def test_a_play_reads_its_options_before_a_node_answers(name):
    """All that comes after the first task has them from autopilot_frozen, or from what was read
    before.
    """
    play, failing = load(f"playbooks/{name}.yml")
    assert failing["ansible.builtin.import_playbook"] == "plays/fail_hosts.yml"
    room = "pre_tasks" if "pre_tasks" in play else "tasks"
    first = [task["name"] for task in play[room]].index(
        "Freeze the options before any node answers"
    )
    # What comes before it runs on the controller.
    assert [task["name"] for task in play[room][:first]] == ["Validate options"]
    after = {**play, "hosts": None, room: play[room][first + 1 :]}
    names, _frozen = names_of(
        [
            after,
            *(
                yaml.safe_load(path.read_text(encoding="utf-8"))
                for path in (ROOT / "playbooks/tasks").glob(f"{name}_*.yml")
            ),
        ]
    )
    options = {
        word
        for word in names
        if re.match(r"(preflight|inflight|postflight)_|(run|watch|node_name)$", word)
    }
    assert options - OF_THE_NODE == set()


def options_of(documentation):
    """Names of the options of a module, with those of its fragments."""
    names = set(documentation.get("options") or {})
    for fragment in documentation.get("extends_documentation_fragment", []):
        _namespace, _collection, stem, *part = fragment.split(".")
        module = importlib.import_module(
            f"ansible_collections.autopilot.gpu.plugins.doc_fragments.{stem}"
        )
        text = getattr(module.ModuleDocFragment, (part or ["documentation"])[0].upper())
        names |= set(yaml.safe_load(text).get("options") or {})
    return names


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_documented(name):
    text = (ROOT / "plugins/modules" / f"{name}.py").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r'^(DOCUMENTATION|EXAMPLES|RETURN) = r"""\n(.*?)^"""', text, re.M | re.S)
    )
    assert sorted(sections) == ["DOCUMENTATION", "EXAMPLES", "RETURN"]
    documentation, examples, returned = (
        yaml.safe_load(sections[key]) for key in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    )
    assert documentation["module"] == name
    assert any(f"autopilot.gpu.{name}" in task for task in examples), (
        "no example calls the module by its full name"
    )
    options = options_of(documentation)
    for task in examples:
        for given in (task, *task.get("tasks", [])):
            assert set(given.get(f"autopilot.gpu.{name}") or {}) <= options
    assert returned
    # A module calls the core; the core does the work.
    documented = sum(len(section.splitlines()) for section in sections.values())
    assert len(text.splitlines()) - documented <= 125
    if "health" in returned:
        assert types_of(returned["health"]["contains"]) == HEALTH


def types_of(contains):
    """Types of documented values, by name; a list of dictionaries by what these contain."""
    return {
        name: types_of(value["contains"]) if "contains" in value else value["type"]
        for name, value in contains.items()
    }


def json_types(value):
    """The same of a value: the names of its types as Ansible's documentation writes them."""
    if isinstance(value, list):
        return json_types(value[0])
    if set(value) == {"kind"} or not value:
        return "dict"
    names = {str: "str", float: "float", int: "int"}
    return {
        name: json_types(item) if isinstance(item, (dict, list)) else names[type(item)]
        for name, item in value.items()
    }


#: What a result of a check holds, in the form of `types_of`.
HEALTH = json_types(
    model.CheckResult(
        "check",
        model.PASS,
        "summary",
        [model.Finding("code", model.PASS, "message")],
        [model.Measurement("name", 1.0, "unit")],
    ).to_dict()
)


@pytest.mark.parametrize("name", MODULES)
def test_a_page_names_every_module(name):
    assert any(
        f"{name}`" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")
    )


def rows(path, heading):
    """First cells of the table under a heading; names in backticks only."""
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.count(heading) == 1
    table = re.search(r"(?:^\|.*\n)+", text[text.index(heading) :], re.M).group()
    return [line.split("|")[1] for line in table.splitlines()[2:]]


def named(cells):
    return [name for cell in cells for name in re.findall(r"`([a-z][a-z0-9_]*)`", cell)]


def test_the_pages_have_the_names_of_the_code():
    verdict = (ROOT / "docs/verdict.md").read_text(encoding="utf-8")
    for page, heading in (
        ("README.md", "## What a status means"),
        ("docs/verdict.md", "## Status of a finding"),
    ):
        assert named(rows(page, heading)) == list(model.STATUSES)
    assert named(rows("docs/checks.md", "## Options of every check")) == list(COMMON_OPTIONS)
    assert named(
        [verdict[verdict.index("Each finding also has a next step:") :].split(". [Findings]")[0]]
    ) == list(model.ACTIONS)
    short = [name for names in registry.short_names().values() for name in names]
    predecessors = set(named(rows("docs/ibm-autopilot.md", "# Coming from IBM Autopilot")))
    assert predecessors & set(short) == set(short)


def test_troubleshooting_has_findings_that_there_are():
    core = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "plugins/module_utils/_health").rglob("*.py")
    )
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    told = set(re.findall(r"findings\.md#([a-z0-9_]+)", text))
    assert "binding_missing" in told
    assert [code for code in sorted(told) if f'"{code}"' not in core] == []


@pytest.mark.parametrize("role", sorted(path.name for path in (ROOT / "roles").iterdir()))
def test_the_readme_of_a_role_has_its_variables(role):
    assert sorted(
        named(rows(f"roles/{role}/README.md", "| variable | default | meaning |"))
    ) == sorted(specified(role))
    assert set(load(f"roles/{role}/defaults/main.yml")) <= set(specified(role))


def specified(role):
    return load(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]


def test_the_pages_have_variables_that_there_are():
    playbook = (ROOT / "playbooks/preflight.yml").read_text(encoding="utf-8")
    variables = named(
        rows(
            "docs/getting-started.md",
            "| variable | default | meaning |\n| --- | --- | --- |\n| `expected_gpus` |",
        )
    )
    assert {name for name in variables if name.startswith("checks_")} <= set(specified("checks"))
    assert {name for name in variables if name.startswith("preflight_")} == set(
        re.findall(r"preflight_[a-z_]+", playbook)
    )
    mesh = named(
        rows(
            "docs/mesh.md",
            "| variable | default | meaning |\n| --- | --- | --- |\n| `mesh_checks` |",
        )
    )
    assert set(mesh) <= set(specified("mesh"))


def test_the_options_of_the_predecessor_have_an_equivalent():
    told = " ".join(rows("docs/ibm-autopilot.md", "## Options of `iperf`"))
    assert [word for word in PREDECESSOR if f"`{word}" not in told] == []


def test_version_is_the_same_everywhere():
    version = load("galaxy.yml")["version"]
    assert list(load("changelogs/changelog.yaml")["releases"])[-1] == version
    assert f"v{version}\n" in (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_no_sanity_exceptions():
    assert list((ROOT / "tests").glob("sanity/ignore*")) == []


def licence(path):
    found = re.search(r"SPDX-License-Identifier: (\S+)", path.read_text(encoding="utf-8"))
    return found.group(1) if found else None


def test_licences():
    """The core is Apache-2.0, so that it can be used without Ansible; what Ansible loads is GPL, as
    its rules demand.
    """
    core = ROOT / "plugins/module_utils/_health"
    for path in (
        path
        for path in tracked()
        if path.suffix == ".py" and ROOT / "plugins" in path.parents and path.stat().st_size
    ):
        assert licence(path) == ("Apache-2.0" if core in path.parents else "GPL-3.0-or-later"), path
    for name in load("galaxy.yml")["license"]:
        assert (ROOT / "LICENSES" / f"{name}.txt").is_file()


def test_collection_depends_on_one_other():
    """By which the role agent speaks to a cluster. Where it is installed, AWX syncs the repository
    as a project without reaching a Galaxy server.
    """
    needed = load("galaxy.yml")["dependencies"]
    assert list(needed) == ["kubernetes.core"]
    assert load("requirements.yml")["collections"] == [
        {"name": name, "version": version} for name, version in needed.items()
    ]
    assert load("collections/requirements.yml")["collections"] == [{"source": "./", "type": "dir"}]
