# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a request to the agent means: the predecessor's parameters of all its years, and refusals
that say what is accepted.
"""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given, strategies
from _health.node import registry
from autopilot_agent.fleet.query import Job, Query, Refused, for_peer
from autopilot_agent.http.query_parser import ENDPOINTS, GONE, LEVELS, parse

PERIODIC = ("gpu_count", "remapped_rows", "dcgm_diag")


def parsed(query="", path="/status", accept=""):
    return parse(path, query, PERIODIC, accept)


def refused(query, path="/status"):
    with pytest.raises(Refused) as caught:
        parsed(query, path)
    return caught.value.status, str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "check=all",
        "check=",
        "host=all",
        "host=&job=None&nodelabel=None&batch=0",
        "host=all&check=all&r=1",
    ],
)
def test_nothing_and_all_are_every_node_and_the_periodic_checks(query):
    assert (parsed(query).checks, parsed(query).everyone) == (PERIODIC, True)


#: Value of ``check`` -> checks. The predecessor cut the letters of iperf off both ends of the list
#: (n4).
LISTS = {
    "pciebw,iperf": ("pcie_bandwidth", "iperf3_pairs"),
    "remapped,iperf": ("remapped_rows", "iperf3_pairs"),
    "ping,iperf": ("ping_mesh", "iperf3_pairs"),
    "iperf": ("iperf3_pairs",),
    " gpupower , pciebw,,": ("gpu_power", "pcie_bandwidth"),
    "pcie_bandwidth,pciebw": ("pcie_bandwidth",),
    "all,gpupower": ("gpu_count", "remapped_rows", "gpu_power", "dcgm_diag"),
}


@pytest.mark.parametrize("value", LISTS)
def test_check_is_a_list(value):
    assert parsed(urlencode({"check": value})).checks == LISTS[value]


def test_check_and_host_given_twice_are_united():
    query = parsed("host=a,b&host=b&host=c&check=pciebw&check=dcgm")
    assert (query.hosts, query.checks) == (("a", "b", "c"), ("pcie_bandwidth", "dcgm_diag"))


def test_host_job_and_nodelabel_are_all_kept():
    query = parsed("host=a&job=team:app%3Dtrain&nodelabel=pool=h100")
    assert (query.hosts, query.job, query.nodelabel, query.everyone) == (
        ("a",),
        Job("team", "app=train"),
        "pool=h100",
        False,
    )


def test_level_goes_to_dcgm_alone():
    assert parsed("check=dcgm&r=3").options == {"dcgm_diag": {"level": 3}}
    assert parsed("check=pciebw&r=3").options == {}
    assert [parsed(f"check=dcgm&r={level}").diagnostic for level in LEVELS] == [
        False,
        True,
        True,
        True,
    ]
    assert parsed("check=dcgm").diagnostic is False


def test_words_of_iperf_old_and_new():
    query = parsed(
        "check=iperf&workload=ring&pclients=4&startport=6000&cleanup&serverspernode=1&plane=data&minimum=90.5"
    )
    assert query.options["iperf3_pairs"] == {
        "workload": "ring",
        "pclients": 4,
        "startport": 6000,
        "plane": "data",
        "minimum": 90.5,
    }
    assert query.diagnostic


#: Query -> words of the refusal.
REFUSALS = {
    "chek=pciebw": ("'chek'", "accepted are host", "check"),
    "check=pcibw": ("check", "'pcibw'", "pcie_bandwidth (pciebw)", "all"),
    "r=5": ("r:", "'5'", "1 to 4"),
    "r=high": ("r:", "'high'"),
    "r=%D9%A3": ("r:",),
    "batch=-1": ("batch", "'-1'"),
    "host=Node_1": ("host", "'Node_1'"),
    "host=a;reboot": ("host",),
    "job=app=train": ("job", "namespace:key=value"),
    "job=:app=train": ("job",),
    "nodelabel=h100": ("nodelabel", "key=value"),
    "nodelabel=a=b&nodelabel=c=d": ("nodelabel", "twice"),
    "workload=star": ("workload", "star", "ring"),
    "startport=99999": ("startport",),
    "serverspernode=4": ("serverspernode", "'4'", "one partner at a time"),
    "check=pciebw&minimum=90": ("minimum", "no effect without check=iperf"),
    "minimum=0": ("minimum", "'0'", "Gbit/s"),
    "minimum=1e400": ("minimum", "Gbit/s"),
    "format=xml": ("format", "text or json"),
    "&".join(f"host=n{number}" for number in range(100)): ("64 parameters",),
    "pingnodes=a/b": ("pingnodes",),
    "force=true": ("'force'",),
}


@pytest.mark.parametrize("query", REFUSALS)
def test_what_is_not_understood_is_refused_with_what_is_accepted(query):
    status, words = refused(query)
    assert status == 400
    assert [word for word in REFUSALS[query] if word not in words] == []
    assert len(words) < 600


def test_a_long_value_does_not_come_back_whole():
    assert len(refused("host=" + "!" * 8000)[1]) < 300


@pytest.mark.parametrize("path", GONE)
def test_what_is_gone_says_what_is_there(path):
    status, words = refused("numservers=8&startport=5200", path)
    assert status == 410
    assert "/iperf?" in words


def test_gpumem_is_its_own_check():
    """The predecessor ran gpupower for it (n5)."""
    assert parsed("check=gpumem,pciebw").checks == ("pcie_bandwidth", "gpu_memory")
    assert parsed("", "/gpumem").checks == ("gpu_memory",)
    assert refused("host=a", "/gpumem")[0] == 400


def test_paths_of_one_check():
    own = {path: endpoint.check for path, endpoint in ENDPOINTS.items() if endpoint.check}
    assert {parsed("", path).checks for path in own} == {(check,) for check in own.values()}
    assert refused("host=a", "/pciebw")[0] == 400
    assert refused("", "/nowhere")[0] == 404
    assert parsed("r=2", "/dcgm").options == {"dcgm_diag": {"level": 2}}


def test_json_by_either_way_and_the_parameter_decides():
    assert [
        parsed("", accept="application/json").json,
        parsed("format=json").json,
        parsed("format=text", accept="application/json").json,
        parsed().json,
    ] == [True, True, False, False]


names = strategies.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)


@given(
    strategies.builds(
        Query,
        checks=strategies.lists(
            strategies.sampled_from(list(registry.NAMES)), min_size=1, unique=True
        ).map(lambda chosen: tuple(name for name in registry.NAMES if name in chosen)),
        pingnodes=strategies.lists(names, unique=True, max_size=5).map(tuple),
        options=strategies.just({}),
        hosts=strategies.just(("n1",)),
        json=strategies.just(True),
        job=strategies.none(),
        nodelabel=strategies.just(""),
        batch=strategies.just(0),
        scheme=strategies.just("http"),
    )
)
def test_what_one_agent_asks_another_understands(query):
    assert parse("/status", for_peer(query, "n1"), ()) == query._replace(
        pingnodes=() if "all" in query.pingnodes else query.pingnodes
    )


def test_options_reach_the_other_agent():
    query = parsed("check=dcgm,iperf&r=2&pclients=4&workload=ring&minimum=90.5")
    assert parse("/status", for_peer(query, "n1"), ()).options == query.options
    # The checks before iperf are asked without its options.
    before = query._replace(checks=("dcgm_diag",))
    assert parse("/status", for_peer(before, "n1"), ()).options == {"dcgm_diag": {"level": 2}}


@given(strategies.sampled_from(sorted(ENDPOINTS)), strategies.text(max_size=200))
def test_nothing_but_a_query_or_a_refusal(path, text):
    try:
        assert isinstance(parsed(text, path), Query)
    except Refused as error:
        assert 400 <= error.status < 600
