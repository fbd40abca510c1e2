# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action validate_options on the variables of a play: what it names, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace

import pytest
import yaml
from action_call import call
from template_names import names_of

from ansible_collections.autopilot.gpu.plugins.action import validate_options
from ansible_collections.autopilot.gpu.plugins.action.validate_options import ActionModule
from ansible_collections.autopilot.gpu.plugins.doc_fragments import _pushgateway
from ansible_collections.autopilot.gpu.plugins.modules import validate_options as module
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    playbook_options,
    variables,
)
from controller import ROOT


@pytest.fixture
def validate(tmp_path, monkeypatch):
    """``validate(playbook="preflight", extra={}, hosts={}, role={}, **of_all)``: what the task
    returns and shows where all hosts have ``of_all`` and ``extra``, the latter from the command
    line, and the play's role has ``role``.
    """
    monkeypatch.chdir(tmp_path)

    def validated(playbook="preflight", extra=None, hosts=None, role=None, **of_all):
        extra = extra or {}
        monkeypatch.setattr(validate_options, "load_extra_vars", lambda loader: extra)
        raws = {name: {**of_all, **own, **extra} for name, own in (hosts or {"gpu01": {}}).items()}
        first, names = next(iter(raws)), list(raws)
        return call(
            ActionModule,
            {"playbook": playbook},
            {
                **(role or {}),
                **raws[first],
                "inventory_hostname": first,
                "ansible_play_hosts_all": names,
                "ansible_play_hosts": names,
                "ansible_play_batch": names,
                "hostvars": SimpleNamespace(raw_get=raws.get),
            },
            templar=SimpleNamespace(template=lambda value: value),
        )

    return validated


@pytest.mark.parametrize(
    "playbook, given, said",
    [
        (
            "preflight",
            {"mesh_rounds": "fast"},
            "mesh_rounds: 'fast' is invalid; expected a positive",
        ),
        ("preflight", {"mesh_rounds": 0}, "mesh_rounds: 0 is invalid; expected a positive integer"),
        (
            "preflight",
            {"mesh_confirm": "perhaps"},
            "mesh_confirm: 'perhaps' is invalid; expected true",
        ),
        ("preflight", {"mesh_interfaces": ["eth1", "eth1"]}, "expected a list of distinct names"),
        (
            "preflight",
            {"checks_list": ["gpu_cont"]},
            "checks_list: unsupported check 'gpu_cont' (did",
        ),
        (
            "inflight",
            {"inflight_checks": "gpu_cont"},
            "inflight_checks: unsupported check 'gpu_cont'",
        ),
        (
            "preflight",
            {"checks_timeout": 0},
            "checks_timeout: 0 is invalid; expected a number greater",
        ),
        (
            "preflight",
            {"expected_gpus": -8},
            "expected_gpus: -8 is invalid; expected 0 or a greater",
        ),
        ("preflight", {"checks_snapshot": "take"}, "expected one of none, keep, compare"),
        (
            "preflight",
            {"checks_options": {"dcgm": {"lvl": 2}}},
            "checks_options.dcgm_diag: unsupported option 'lvl'; supported: level, tests, parameters, "
            "host_engine, force (did you mean 'level'?)",
        ),
        (
            "preflight",
            {"checks_options": {"pci": {}}},
            "checks_options: unsupported check 'pci'; supported",
        ),
        (
            "preflight",
            {"checks_options": "dcgm"},
            "checks_options: 'dcgm' is invalid; expected a dict",
        ),
        (
            "preflight",
            {"mesh_options": {"iperf": {"ports": "ssh"}}},
            "mesh_options.iperf3_pairs: ports: ssh is invalid; expected a range of ports",
        ),
        (
            "preflight",
            {"preflight_policy": {"max_unfits": 1}},
            "preflight_policy: unsupported option 'max_unfits'; supported: unfit, ",
        ),
        (
            "preflight",
            {"preflight_policy": {"warn_only": ["gpu_lots"]}},
            "preflight_policy.warn_only: unknown finding code 'gpu_lots' (did you mean 'gpu_lost'?)",
        ),
        (
            "preflight",
            {"run": "../job42"},
            "run: '../job42' is invalid; expected at most 100 letters",
        ),
        ("preflight", {"preflight_run_id": "a/b"}, "preflight_run_id: 'a/b' is invalid; expected"),
        (
            "preflight",
            {"preflight_nhc_conf": "/nowhere"},
            "preflight_nhc_conf: '/nowhere' cannot be read",
        ),
        (
            "preflight",
            {"preflight_report_dir": "/dev/null"},
            "/dev/null is not a directory; expected a",
        ),
        (
            "preflight",
            {"preflight_mark_taint": "Evict"},
            "preflight_mark_taint: 'Evict' is invalid",
        ),
        (
            "preflight",
            {"preflight_mark_max_bad_share": 7},
            "preflight_mark_max_bad_share: 7.0 is invalid",
        ),
        ("preflight", {"preflight_mark_kubeconfig": "/nowhere"}, "expected the path of a file"),
        ("preflight", {"preflight_become": "perhaps"}, "preflight_become: 'perhaps' is invalid"),
        ("inflight", {"watch": "soon"}, "watch: 'soon' is invalid; expected a length of time"),
        (
            "inflight",
            {"inflight_every": 0},
            "inflight_every: 0 is invalid; expected a length of time",
        ),
        (
            "inflight",
            {"inflight_timeout": 0},
            "inflight_timeout: 0.0 is invalid; expected seconds greater than 0, at most 3600",
        ),
        (
            "inflight",
            {"inflight_decisions": {"on_fail": "kill"}},
            "inflight_decisions.on_fail: 'kill' is invalid; expected one of continue, warn_owner, ",
        ),
        (
            "inflight",
            {"inflight_decisions": {"codes": {"gpu_lots": "suspend"}}},
            "inflight_decisions.codes: unknown finding code 'gpu_lots' (did you mean 'gpu_lost'?)",
        ),
        (
            "inflight",
            {"inflight_act": {"slurm": {"job_id": "x"}}},
            "inflight_act.slurm.job_id: 'x' is",
        ),
        (
            "inflight",
            {"inflight_notify": {"pager": 1}},
            "inflight_notify: unsupported option 'pager'",
        ),
        ("postflight", {}, "run: is missing; expected the name of the run (-e run=job42)"),
        ("capture", {"run": ""}, "run: is missing"),
        (
            "postflight",
            {"run": "j", "postflight_release_seconds": -1},
            "postflight_release_seconds: -1 is",
        ),
        (
            "replay",
            {"replay_policy": {"max_unfit": "many"}},
            "replay_policy.max_unfit: 'many' is invalid",
        ),
    ],
)
def test_an_invalid_option_is_named_with_its_value_and_what_is_accepted(
    validate, playbook, given, said
):
    result, shown = validate(playbook, **given)
    assert not result["failed"], "the callback ends the playbook, no host fails"
    assert result["msg"].startswith("1 option is invalid, no host was contacted: ")
    assert said in result["msg"]
    assert shown[0] == f"autopilot {playbook}   1 option is invalid, no host was contacted:"


def test_all_problems_are_listed_at_once_each_with_its_hosts(validate):
    result, shown = validate(
        hosts={
            "gpu01": {"checks_deadline": "soon"},
            "gpu02": {"checks_options": {"dcgm": {"level": 9}}},
            "gpu03": {"checks_options": {"dcgm": {"level": 9}}},
        },
        mesh_rounds="fast",
    )
    assert result["msg"].startswith("3 options are invalid")
    assert shown[1:] == [
        "  checks_options.dcgm_diag.level: 9 is invalid; expected one of 1, 2, 3, 4 (gpu[02-03])",
        "  checks_deadline: 'soon' is invalid; expected a whole number (gpu01)",
        "  mesh_rounds: 'fast' is invalid; expected a positive integer or 'all'",
    ]


def test_a_value_that_many_hosts_share_is_validated_once(validate, monkeypatch):
    seen = []
    problems_of = validate_options.playbook_options.problems_of
    monkeypatch.setattr(
        validate_options.playbook_options,
        "problems_of",
        lambda spec, name, value: seen.append(name) or problems_of(spec, name, value),
    )
    hosts = {f"gpu{number:04d}": {"rack": number} for number in range(1000)}
    result, _shown = validate(hosts=hosts, checks_options={"pciebw": {"minimum": 46}})
    assert not result.get("failed") and seen.count("checks_options") == 1


def test_a_template_is_evaluated_once_for_hosts_that_are_alike(validate, monkeypatch):
    """Racks differ, and the template reads them; the node names differ too, and it does not."""
    evaluated = []
    final = validate_options._Settings._final
    monkeypatch.setattr(
        validate_options._Settings,
        "_final",
        lambda self, name, raw, hosts: evaluated.append(len(hosts)) or final(self, name, raw, []),
    )
    hosts = {
        f"gpu{number:03d}": {"rack": number // 50, "node_name": f"n{number}"}
        for number in range(200)
    }
    options = {"pciebw": {"minimum": "{{ 46 if rack else 20 }}"}}
    validate(hosts=hosts, checks_options=options)
    assert evaluated == [50] * 4
    evaluated.clear()
    validate(hosts=hosts, expected_gpus="{{ hostvars[inventory_hostname].rack }}")
    assert evaluated == [1] * 200


@pytest.mark.parametrize(
    "name, meant",
    [
        ("run_name", "run"),
        ("runid", "preflight_run_id"),
        ("preflight_polcy", "preflight_policy"),
        ("policy", "preflight_policy"),
        ("hosts", "preflight_hosts"),
        ("check_list", "checks_list"),
        ("expected_gpu", "expected_gpus"),
        ("mesh_round", "mesh_rounds"),
    ],
)
def test_a_misspelt_variable_of_the_command_line_is_answered_with_the_right_one(
    validate, name, meant
):
    result, _shown = validate(extra={name: "x"})
    assert f"unsupported variable {name!r} (did you mean {meant!r}?)" in result["msg"]


def test_a_name_of_the_inventory_with_a_prefix_of_ours_is_refused(validate):
    result, _shown = validate(mesh_rouns=3, checks_floor_of_bandwidth=46)
    assert "unsupported variable 'mesh_rouns' (did you mean 'mesh_rounds'?)" in result["msg"]
    assert "unsupported variable 'checks_floor_of_bandwidth'; supported: checks_" in result["msg"]


def test_what_resembles_nothing_of_ours_is_left_alone(validate):
    """Also a variable from which a play of the user's sets ours, and the result of a task."""
    result, _shown = validate(
        extra={"awx_job_id": 7, "cluster": "a", "hosts": "rack7", "preflight_hosts": "{{ hosts }}"},
        run_as_user="ops",
        preflight_result={"changed": False, "failed": False},
        postflight_checks=["gpu_count"],
    )
    assert not result.get("failed"), result


def test_a_run_id_with_a_run_document_is_in_use(validate, tmp_path):
    directory = tmp_path / "reports/nightly"
    directory.mkdir(parents=True)
    assert not validate(extra={"preflight_run_id": "nightly"})[0].get("failed")
    (directory / "run.json").write_text("{}", encoding="utf-8")
    result, _shown = validate(extra={"preflight_run_id": "nightly"})
    assert result["msg"].endswith(
        "preflight_run_id: 'nightly' is in use (reports/nightly/run.json); choose another name or "
        "remove it"
    )
    assert not validate(extra={"preflight_run_id": "nightly", "run": "job42"})[0].get("failed")


def test_a_configuration_file_of_nhc_is_read_and_lines_without_an_equivalent_are_shown(
    validate, tmp_path, capsys
):
    path = tmp_path / "nhc.conf"
    path.write_text("gpus: 8\n", encoding="utf-8")
    result, _shown = validate(preflight_nhc_conf=str(path))
    assert "nhc.conf' is invalid: no line has the form" in result["msg"]
    path.write_text("* || check_ps_loadavg 8\n", encoding="utf-8")
    assert not validate(preflight_nhc_conf=str(path))[0].get("failed")
    assert "NHC: * || check_ps_loadavg 8: " in capsys.readouterr().out


def test_no_message_shows_a_secret(validate):
    for notify in ("hush-hush", {"slack": "hush-hush"}, {"webhook": ["hush-hush"]}):
        result, shown = validate("inflight", inflight_notify=notify)
        assert result["msg"] and "hush" not in json.dumps([result, shown])


# ---- the table of variables ----


def test_the_documented_playbooks_are_those_with_variables():
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert options["playbook"]["choices"] == list(variables.PLAYBOOKS)


def test_the_options_of_the_pushgateway_are_those_of_its_callback():
    documented = yaml.safe_load(_pushgateway.ModuleDocFragment.DOCUMENTATION)["options"]
    assert set(variables.PUSHGATEWAY) == {
        own["name"] for option in documented.values() for own in option.get("vars", [])
    }


OURS = re.compile(r"(preflight|inflight|postflight|checks|mesh)_")


def load(*path):
    return yaml.safe_load((ROOT.joinpath(*path)).read_text(encoding="utf-8"))


@pytest.mark.parametrize("playbook", list(variables.PLAYBOOKS))
def test_a_playbook_reads_the_variables_that_are_validated_and_no_others(playbook):
    documents = [load("playbooks", f"{playbook}.yml")]
    tasks = ROOT / "playbooks/tasks"
    documents += [load(path) for path in sorted(tasks.glob(f"{playbook}_*.yml"))]
    names, frozen = names_of(documents)
    read = {name for name in names | frozen if not re.match(r"autopilot_|ansible_", name)}
    known = set(variables.PLAYBOOKS[playbook])
    foreign = {
        *("hostvars", "inventory_hostname", "omit", "now", "query", "dict", "range", "lookup"),
        # Variables of tasks.
        *("result", "lines", *variables.OF_HOST, *variables.role_options("checks")),
    }
    assert read - foreign - known == set()
    # The action of forget reads its variables by itself.
    assert known - read <= {f"{playbook}_hosts"}


@pytest.mark.parametrize("role", ["checks", "mesh"])
def test_a_role_reads_its_options_and_what_it_sets_itself(role):
    documents = [load(path) for path in sorted((ROOT / "roles" / role).glob("*/*.yml"))]
    names, _frozen = names_of(documents)
    known = {
        *variables.role_options("checks"),
        *variables.role_options("mesh"),
        *variables.INTERNAL,
    }
    assert {name for name in names if OURS.match(name)} - known == set()
    assert set(variables.role_defaults(role)) <= set(variables.role_options(role))


def test_what_the_roles_set_is_not_taken_for_an_option(validate):
    assert os.path.isdir(variables._ROLES)
    assert not validate(**{name: 1 for name in variables.INTERNAL})[0].get("failed")


def role_variables(**given):
    """The variables that the role agent has of its own; settings as the role templates them."""
    own = load("roles", "agent", "vars", "main.yml")
    own["agent_settings"] = {
        name: given.get(re.search(r"agent_\w+", text).group(), "") if "{{" in text else text
        for name, text in own["agent_settings"].items()
    }
    return {**variables.role_defaults("agent"), **own}


@pytest.mark.parametrize(
    "given, said",
    [
        ({"agent_image_tag": "latest"}, "agent_image_tag: 'latest' is invalid; expected a version"),
        (
            {"agent_perodic_checks": ["ping"]},
            "'agent_perodic_checks' (did you mean 'agent_periodic_",
        ),
        (
            {"agent_env": [{"name": "AUTOPILOT_FANOUT", "value": "0"}]},
            "agent_env: AUTOPILOT_FANOUT: '0' is invalid; expected a whole number from 1 to 1024",
        ),
        (
            {"agent_env": [{"name": "PERIODIC_CHECKS", "value": "gpu_cont"}]},
            "unsupported check 'gpu_cont' (did you mean 'gpu_count'?)",
        ),
        (
            {"agent_env": [{"name": "PVC_TEST_STORAGE_CLASS", "value": "fast"}]},
            "agent_env: PVC_TEST_STORAGE_CLASS is not supported, since the role's objects depend on",
        ),
        (
            {"agent_periodic_checks": "gpu_count,pvc"},
            "'gpu_count,pvc' is invalid: volume_claim needs a storage class; expected",
        ),
        (
            {"agent_invasive_seconds": 3600, "agent_reserve_gpus": "false"},
            "'3600' is invalid; expected 0 while AUTOPILOT_RESERVE_GPUS is false",
        ),
    ],
)
def test_settings_of_the_agent_are_refused_by_the_agents_own_rules(validate, given, said):
    assert said in validate("agent", role=role_variables(**given), **given)[0]["msg"]


def test_the_defaults_of_the_role_agent_are_valid(validate):
    result, shown = validate("agent", role=role_variables())
    assert not result.get("failed"), (result, shown)


@pytest.mark.parametrize("name", ["agent_image", "agent_objects"])
def test_a_variable_that_the_role_agent_defines_for_itself_is_refused(validate, name):
    """On the command line it would win over the role's, in an inventory it would be ignored."""
    for given in ({"extra": {name: "x"}}, {name: "x"}):
        result, _shown = validate("agent", role=role_variables(), **given)
        assert f"unsupported variable {name!r}" in result["msg"]


def test_a_misspelt_variable_does_not_remove_the_agents_of_another_cluster(validate):
    given = {"agent_state": "absent", "agent_image_tag": "latest"}
    result, _shown = validate("agent", role=role_variables(), **given)
    assert not result.get("failed"), result
    result, _shown = validate("agent", role=role_variables(), agent_contxt="prod", **given)
    assert "'agent_contxt' (did you mean 'agent_context'?)" in result["msg"]


def test_a_misspelt_variable_of_the_teams_is_named(validate):
    role = {**variables.role_defaults("teams"), **load("roles", "teams", "vars", "main.yml")}
    given = {"teams": [], "state": "absent", "teams_hosts": "localhost", "teams_context": "lab"}
    assert not validate("teams", role=role, **given)[0].get("failed")
    result, _shown = validate("teams", role=role, teams_remove_claim=True, **given)
    assert "'teams_remove_claim' (did you mean 'teams_remove_claims'?)" in result["msg"]


def test_a_setting_of_the_agent_is_named_by_the_variable_of_the_role():
    templates = load("roles", "agent", "vars", "main.yml")["agent_settings"]
    found = playbook_options.problems_of_agent(templates, {"AUTOPILOT_FANOUT": 0})
    assert found == ["agent_fanout: '0' is invalid; expected a whole number from 1 to 1024"]
    found = playbook_options.problems_of_agent_env(templates, ["AUTOPILOT_TAINT_UNFIT", "HOME"])
    assert found == [
        "agent_env: AUTOPILOT_TAINT_UNFIT is not supported, since the role's objects depend on it; "
        "expected agent_taint_unfit instead"
    ]
    assert set(playbook_options._WITH_OBJECTS) <= templates.keys()
    found = playbook_options.problems_of_agent(templates, {"PERIODIC_CHECKS": "pvc"})
    assert found == [
        "agent_periodic_checks: 'pvc' is invalid: volume_claim needs a storage class; expected "
        "agent_pvc_storage_class to be set, or no volume_claim"
    ]


@pytest.mark.parametrize(
    "given, said",
    [
        ({"queue_profil": "current"}, "'queue_profil' (did you mean 'queue_profile'?)"),
        ({"queue_profile": "newest"}, "queue_profile: 'newest' is invalid; expected"),
        ({"queue_flavors": [{"nam": "a"}]}, "expected a dictionary with any of name, node_labels"),
        ({"queue_order": ["kueue"]}, "unsupported variable 'queue_order'"),
        ({}, None),
    ],
)
def test_settings_of_the_queue_are_named_with_what_is_accepted(validate, given, said):
    role = {**variables.role_defaults("queue"), **load("roles", "queue", "vars", "main.yml")}
    result, _shown = validate("queue", role=role, **given)
    assert said in result["msg"] if said else not result.get("failed"), result
