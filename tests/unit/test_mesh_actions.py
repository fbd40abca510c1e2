# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions of the mesh work out on the controller: clocks, options, the time that starting
takes.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ansible_collections.autopilot.gpu.plugins.action import mesh_facts, mesh_plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning.launch import (
    estimate_launch,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.clock_base import (
    clock_base,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts as _hosts


@pytest.mark.parametrize(
    "exchanges, offset, uncertainty",
    [
        ([(100.0, 103.1, 100.2)], 3.0, 0.1),
        # The quickest exchange decides, wherever it stands.
        ([(100.0, 104.0, 102.0), (102.0, 105.05, 102.1), (103.0, 106.3, 104.0)], 3.0, 0.05),
        ([(100.0, 93.0, 100.0)], -7.0, 0.0),
    ],
)
def test_the_clock_is_that_of_the_quickest_exchange(exchanges, offset, uncertainty):
    assert mesh_facts.best_of(exchanges) == pytest.approx(
        {"offset_seconds": offset, "uncertainty_seconds": uncertainty}
    )


def test_the_base_of_the_clock_is_that_of_the_quickest_exchange():
    exchanges = [(100.0, 104.0, 102.0, 3.0), (102.0, 105.05, 102.1, 3.5), (103.0, 106.3, 104.0)]
    assert mesh_facts.best_of(exchanges)["base_seconds"] == 3.5


def test_the_program_for_the_host_prints_both_clocks():
    printed = subprocess.run(
        [sys.executable, "-c", mesh_facts._PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert mesh_facts.read(printed) == pytest.approx(time.time(), abs=60)
    base = mesh_facts.read(printed) - mesh_facts.read(printed, "boot")
    assert base == pytest.approx(clock_base(), abs=1)


@pytest.mark.parametrize(
    "printed",
    [
        "clock 1732145600.25\n",
        "Welcome to gpu07\r\nclock 1732145600.25\r\n",
        "clock 1\nclock 1732145600.25\nbye\n",
    ],
)
def test_a_banner_around_the_clock_does_no_harm(printed):
    assert mesh_facts.read(printed) == 1732145600.25


@pytest.mark.parametrize(
    "printed",
    ["", "None", "sh: python: not found", "clock", "clock soon", "clock nan", "clock inf"],
)
def test_what_is_no_clock_is_not_read_as_one(printed):
    with pytest.raises(ValueError):
        mesh_facts.read(printed)


@pytest.mark.parametrize(
    "given, listed",
    [
        ("[eth1, eth2]", ["eth1", "eth2"]),
        (" ['eth1']", ["eth1"]),
        ("[]", []),
        (["eth1"], ["eth1"]),
        ("eth1,eth2", "eth1,eth2"),
        ("[eth1", "[eth1"),
        (None, None),
    ],
)
def test_lists_that_come_as_text(given, listed):
    assert _hosts.parse_list(given) == listed


def test_a_list_that_ansible_cut_at_its_blanks_is_whole_again():
    assert _hosts.parse_list("[eth1,", {"_raw_params": "eth2, eth3]"}) == ["eth1", "eth2", "eth3"]
    assert _hosts.parse_list("[eth1]", {"_raw_params": "other"}) == ["eth1"]
    assert _hosts.parse_list("[eth1,", {"_raw_params": "other"}) == "[eth1,"


def settings(**options):
    return mesh_plan.settings_of(mesh_plan.validated(options))


def test_without_options_both_checks_are_planned():
    made = settings()
    assert (made.checks, made.rounds, made.together, made.plane_class) == (
        ["ping_mesh", "iperf3_pairs"],
        5,
        "auto",
        None,
    )
    assert (
        made.options["ping_mesh"]["count"] == 20
        and made.options["iperf3_pairs"]["ports"] == "5200-5299"
    )


@pytest.mark.parametrize(
    "given, together",
    [
        (True, True),
        ("True", True),
        ("no", False),
        (False, False),
        ("auto", "auto"),
        ("Auto ", "auto"),
    ],
)
def test_networks_together_in_turn_or_as_the_hosts_can(given, together):
    assert settings(together=given).together == together


def test_names_of_other_checks_and_their_options_are_passed_over():
    assert settings(
        checks=["remapped", "iperf", "dcgm"],
        options={"dcgm": {"level": 2}, "iperf": {"duration": 4}},
    ).checks == ["iperf3_pairs"]
    assert settings(checks=["remapped"]).checks == []


def test_the_words_of_the_predecessor():
    made = settings(
        options={
            "iperf": {
                "workload": "ring",
                "pclients": 8,
                "startport": 6000,
                "serverspernode": 2,
                "plane": "mgmt",
            }
        }
    )
    assert (made.rounds, made.plane_class) == ("all", "mgmt")
    assert (made.options["iperf3_pairs"]["streams"], made.options["iperf3_pairs"]["ports"]) == (
        8,
        "6000-6099",
    )


def test_rounds_may_come_as_text_and_a_list_too():
    made = settings(rounds="12", checks="[ping, iperf]", seed="7")
    assert (made.rounds, made.checks, made.seed) == (12, ["ping_mesh", "iperf3_pairs"], 7)
    assert settings(rounds="all").rounds == "all"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"round": 3}, "unsupported option 'round' (did you mean 'rounds'?)"),
        ({"rounds": 0}, "rounds: 0 is invalid; expected a positive integer or 'all'"),
        ({"rounds": "some"}, "rounds: 'some' is invalid; expected a positive integer or 'all'"),
        ({"checks": ["pings"]}, "checks: unsupported check 'pings' (did you mean 'ping'?)"),
        ({"together": "perhaps"}, "together: 'perhaps' is invalid; expected true, false or auto"),
        (
            {"options": {"iperf3": {}}},
            "options: unsupported check 'iperf3' (did you mean 'iperf'?)",
        ),
        (
            {"options": {"iperf": 5}},
            "options.iperf3_pairs: 5 is invalid; expected a dictionary of its options",
        ),
        (
            {"options": {"iperf": {"lenght": 5}}},
            "options.iperf3_pairs: unsupported option 'lenght'; supported: duration, streams",
        ),
        (
            {"options": {"ping": {"count": -1}}},
            "options.ping_mesh.count: -1 is invalid; expected 0 or a greater number",
        ),
        (
            {"options": {"ping": {"family": "5"}}},
            "options.ping_mesh.family: '5' is invalid; expected one of auto, 4, 6",
        ),
        (
            {"options": {"iperf": {"duration": 1}}},
            "options.iperf3_pairs: duration: 1 is invalid; expected 2 s or more",
        ),
        (
            {"options": {"iperf": {"workload": "mesh"}}},
            "options.iperf3_pairs: workload: mesh is invalid; expected ring",
        ),
        ({"options": {"iperf": {"ports": "ssh"}}}, "options.iperf3_pairs: ports: ssh is invalid"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_accepted(options, said):
    with pytest.raises(ValueError) as refused:
        settings(**options)
    assert str(refused.value).startswith(said)


def host(asked, answered, gate_seconds):
    return {
        "gate_seconds": gate_seconds,
        "clock": {
            "offset_seconds": 0.0,
            "uncertainty_seconds": 0.01,
            "asked": asked,
            "answered": answered,
        },
    }


def test_two_names_for_one_machine_are_left_out_and_said_and_no_path_between_them_is_measured():
    def facts(number):
        addresses = [
            {"family": 4, "address": f"10.0.{plane}.{number}", "prefix": 24} for plane in (1, 2)
        ]
        interfaces = [
            {
                "name": f"eth{plane}",
                "kind": "",
                "up": True,
                "carrier": True,
                "mtu": 1500,
                "speed": None,
                "addresses": [address],
                "default_route": False,
            }
            for plane, address in enumerate(addresses, 1)
        ]
        tools = {name: {"path": f"/bin/{name}", "version": "9.9"} for name in ("iperf3", "fping")}
        return dict(
            tools,
            interfaces=interfaces,
            busy=[],
            clock={
                "offset_seconds": 0.0,
                "uncertainty_seconds": 0.01,
                "asked": 1.0,
                "answered": 2.0,
            },
        )

    hosts = {"a": facts(1), "b": facts(2), "c": facts(3), "c-ib": facts(3), "down": None}
    wanted = settings()._replace(
        interfaces={"a": ["eth1", "eth2"], "b": ["eth1", "eth2"], "c": ["eth1"], "c-ib": ["eth2"]}
    )
    made = plan.make(mesh_plan.without_duplicates(hosts), wanted, 1e9, "r")
    assert set(plan.shares(made, b"secret")) == {"a", "b"}
    said = {
        one["host"]: (one["finding"]["status"], one["finding"]["message"])
        for one in made["left_out"]
    }
    assert set(said) == {"c", "c-ib", "down"} and said["c"][0] == said["c-ib"][0] == "unknown"
    assert (
        "same as those of c-ib: both names seem to be one machine" in said["c"][1]
        and "the same as those of c:" in said["c-ib"][1]
    )


def test_starting_is_given_what_asking_took_without_the_gate():
    """Eight hosts by two forks, four seconds each: that is sixteen, of which the hosts watched
    their GPUs for three quarters.
    """
    facts = {
        f"gpu{number}": host(4.0 * (number // 2), 4.0 * (number // 2) + 4.0, 3.0)
        for number in range(8)
    }
    assert estimate_launch(facts, 100.0, forks=2).lead == pytest.approx(1.3 * 16 / 4 + 3.08)


def test_a_controller_that_is_the_limit_is_given_as_long_again():
    """A host answers in two seconds, but each is asked a second after the one before: without the
    gate it would take as long.
    """
    facts = {f"gpu{number}": host(float(number), number + 2.0, 1.9) for number in range(100)}
    assert estimate_launch(facts, 200.0, forks=50).lead == pytest.approx(1.3 * 100 + 4)
    assert mesh_plan.plan.lead(facts, 200.0) == pytest.approx(1.3 * 100 + 4)


def test_many_hosts_are_given_the_time_to_hand_out_as_many_tasks():
    facts = {f"gpu{number}": host(0.0, 3.0, 2.9) for number in range(1000)}
    assert estimate_launch(facts, 100.0, forks=1000).lead == pytest.approx(1.3 * 20 + 6)
    silent = {"gpu1": None, "gpu2": {"clock": None, "gate_seconds": 1.0}}
    assert estimate_launch(silent, 100.0, forks=5).lead == 5.0


@pytest.mark.parametrize("watched", [None, 0.0, 0, -1e9, 1e29])
def test_what_one_host_says_of_its_gate_counts_for_no_more_than_its_answer_took(watched):
    facts = {f"gpu{number}": host(float(number), number + 8.0, 0.0) for number in range(8)}
    usual = estimate_launch(facts, 100.0, forks=1).lead
    facts["gpu0"].pop("gate_seconds")
    if watched is not None:
        facts["gpu0"]["gate_seconds"] = watched
    assert usual * 7 / 8 <= estimate_launch(facts, 100.0, forks=1).lead <= usual


def asked_in_turn(seconds, forks, silent=0.0):
    """The facts of hosts that take these seconds each (None: unreachable for ``silent`` seconds),
    asked in turn by as many forks.
    """
    free = [0.01 * fork for fork in range(forks)]
    facts = {}
    for number, took in enumerate(seconds):
        asked = min(free)
        free[free.index(asked)] = asked + (silent if took is None else took)
        facts[f"gpu{number}"] = None if took is None else host(asked, asked + took, 0.0)
    return facts


def test_one_host_that_hangs_costs_the_others_nothing():
    usual = asked_in_turn([1.0] * 64, forks=10)
    hanging = asked_in_turn([1.0] * 30 + [100.0] + [1.0] * 33, forks=10)
    launch = estimate_launch(hanging, 300.0, forks=10)
    assert launch.lead == pytest.approx(estimate_launch(usual, 300.0, forks=10).lead, abs=1.5)
    assert launch.left_out == {"gpu30": pytest.approx(100.0)}
    # A host that can still reach most rounds takes part, and nobody waits for it.
    slow = asked_in_turn([1.0] * 30 + [20.0] + [1.0] * 33, forks=10)
    launch = estimate_launch(slow, 300.0, forks=10)
    assert launch.lead < 15 and launch.left_out == {}


def test_hosts_that_would_hold_up_the_start_of_the_others_are_left_out():
    seconds = [15.0 if number % 8 == 0 else 1.0 for number in range(256)]
    launch = estimate_launch(asked_in_turn(seconds, forks=10), 900.0, forks=10)
    assert set(launch.left_out) == {f"gpu{number}" for number in range(0, 256, 8)}
    assert launch.lead == pytest.approx(1.3 * 224 / 10 + 6, abs=2)


def test_a_fleet_of_which_many_are_slow_is_waited_for():
    seconds = [20.0 if number % 2 else 1.0 for number in range(16)]
    launch = estimate_launch(asked_in_turn(seconds, forks=16), 900.0, forks=16)
    assert launch.left_out == {} and launch.lead == pytest.approx(1.3 * 20 + 3.16)


def test_unreachable_hosts_leave_no_idle_time():
    seconds = [None if number % 10 == 0 else 1.0 for number in range(1024)]
    facts = asked_in_turn(seconds, forks=10, silent=10.0)
    assert max(own["clock"]["answered"] for own in facts.values() if own) > 180
    lead = estimate_launch(facts, 1000.0, forks=10).lead
    assert lead == pytest.approx(1.3 * 921 / 10 + 6, abs=2)


def test_reading_the_clock_is_no_part_of_a_start():
    facts = asked_in_turn([2.0] * 64, forks=4)
    for own in facts.values():
        own["clock"]["spent_seconds"] = 0.5
    assert estimate_launch(facts, 100.0, forks=4).lead == pytest.approx(1.3 * 64 / 4 / 2 + 3.64)


def test_a_retest_of_few_hosts_is_handed_to_all():
    facts = asked_in_turn([1.0] * 10, forks=10)
    assert estimate_launch(facts, 100.0, 10).lead == 5.0
    assert estimate_launch(facts, 100.0, 10, tasks=1000).lead == pytest.approx(1.3 * 20 + 6)


def test_a_host_that_would_be_started_too_late_is_left_out_by_name():
    answers = asked_in_turn([1.0] * 5 + [100.0], forks=6)
    facts = {host: mesh_plan.read_facts(own) for host, own in answers.items()}
    launch = estimate_launch(facts, 900.0, forks=6)
    assert set(launch.left_out) == {"gpu5"}
    error = mesh_plan.without_late(facts, launch)["gpu5"]["error"]
    assert error["message"].startswith("it took 100 s to answer, the median of the hosts is 1.0 s")
    made = plan.make(mesh_plan.without_late(facts, launch), settings(), 1e9, "r")
    found = {one["host"]: one["finding"] for one in made["left_out"]}["gpu5"]
    assert (found["code"], found["status"]) == ("not_in_mesh", "unknown")
    assert "it would be started too late" in found["message"]


def test_a_plan_in_a_line():
    described = {
        "hosts": 16,
        "planes": ["eth1", "eth2"],
        "rounds": 10,
        "pairs": 80,
        "pings": 11040,
        "bytes": 600e9,
        "seconds": 79.0,
        "seed": 7,
        "left_out": 0,
    }
    line = (
        "16 hosts on eth1, eth2: 11040 pings, 80 pairs in 10 rounds, at most 600.0 GB, 79 s, seed 7"
    )
    assert plan.plan_text(described) == line
    assert "unknown traffic" in plan.plan_text(dict(described, bytes=None))
    assert "iperf3" not in plan.plan_text(dict(described, rounds=0, pairs=0))


class HostVars:
    def __init__(self, values):
        self._values = values

    def raw_get(self, name):
        return self._values.get(name, "undefined")


def test_hosts_of_other_batches_are_left_alone_and_those_that_dropped_out_are_not_forgotten():
    variables = {
        "ansible_play_hosts_all": ["a", "b", "c", "d"],
        "ansible_play_hosts": ["a", "c", "d"],
        "ansible_play_batch": ["a", "c"],
    }
    variables["hostvars"] = HostVars(
        {"a": {"found": {"mesh": {"x": 1}, "more": 2}}, "c": {"found": "no result"}}
    )
    assert _hosts.hosts_of(variables) == ["a", "b", "c"]
    assert _hosts.answers(_hosts.raw_variables(variables), "found", ("mesh",)) == [
        ("a", {"mesh": {"x": 1}}),
        ("b", None),
        ("c", None),
    ]
