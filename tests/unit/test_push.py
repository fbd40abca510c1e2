# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the callback that pushes, and what is said of them; words of others that reach the
screen.
"""

from __future__ import annotations

import threading
import time

import pytest
import yaml
from ansible_collections.autopilot.gpu.plugins.doc_fragments._pushgateway import ModuleDocFragment
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.delivery import (
    merge_groups,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import (
    error_of_answer,
    listed_groups,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import settings_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    CONNECTIONS,
    WorkerThreads,
)

SECRET = "hunter2-very-secret"
OPTIONS = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]


def settings(url="https://push.example:9091", **options):
    return settings_of({"url": url, **options}, "/var/lib/ansible")


def test_without_a_url_there_is_nothing_to_push():
    assert settings_of({"job": "other", "url": None}, "/") is None


def test_the_defaults_are_those_of_the_documentation():
    told = {name: option["default"] for name, option in OPTIONS.items() if "default" in option}
    made = settings()
    others = ("spool_limit", "allow_plaintext")
    assert {name: getattr(made, name) for name in told if name not in others} == {
        name: value for name, value in told.items() if name not in others
    }
    assert made.spool_limit == told["spool_limit"] << 20
    assert made.spool_dir == "/var/lib/ansible/autopilot_gpu/spool"


def test_every_option_is_a_variable_and_in_the_environment_and_those_that_are_no_secrets_in_the_configuration():
    for name, option in OPTIONS.items():
        assert [one["name"] for one in option["vars"]] == [f"pushgateway_{name}"]
        assert [one["name"] for one in option["env"]] == [f"AUTOPILOT_PUSHGATEWAY_{name.upper()}"]
        assert ("ini" in option) == (name not in ("password", "token"))


@pytest.mark.parametrize(
    "given, url",
    [
        ("http://push:9091", "http://push:9091"),
        ("https://push.example/prefix/", "https://push.example/prefix"),
        ("http://[::1]:9091", "http://[::1]:9091"),
        (f"https://ops:{SECRET}@push.example:9091", "https://push.example:9091"),
    ],
)
def test_urls(given, url):
    assert settings(given).url == url


@pytest.mark.parametrize(
    "given",
    [
        "push:9091",
        "ftp://push",
        "https://",
        "http://push:port",
        "http://push/?a=b",
        "http://push#x",
        "http://pu sh",
        f"ops:{SECRET}@push:9091",
        f"http://ops:{SECRET}@push:notaport",
        f"ftp://ops:{SECRET}@push",
    ],
)
def test_urls_that_are_none(given):
    with pytest.raises(
        ValueError, match="^url: .* is invalid; expected http:// or https://"
    ) as error:
        settings(given)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "given, labels",
    [
        ({"cluster": "a", "rack": 7}, {"cluster": "a", "rack": "7"}),
        ("cluster=a,site=north", {"cluster": "a", "site": "north"}),
        (" cluster = a ,", {"cluster": "a"}),
        ("", {}),
        ({}, {}),
        ("url=a=b", {"url": "a=b"}),
    ],
)
def test_labels(given, labels):
    assert settings(labels=given).labels == labels


@pytest.mark.parametrize(
    "given",
    [
        "cluster",
        ["cluster"],
        {"node": "x"},
        {"job": "x"},
        {"phase": "x"},
        {"gpu": "x"},
        {"check": "x"},
        {"1st": "x"},
        {"__name": "x"},
        {"cluster": ""},
        "cluster=",
        {"cluster": "a\nb"},
    ],
)
def test_labels_that_are_none_or_taken(given):
    with pytest.raises(ValueError, match="^labels"):
        settings(labels=given)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"timeout": 0}, "timeout: 0.0 is invalid; expected a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout: nan"),
        ({"spool_limit": -1}, "spool_limit: -1.0"),
        ({"job": "a\x1bb"}, "job: "),
        ({"on_failure": "fail"}, "on_failure: 'fail' is invalid; expected warn or ignore"),
        ({"client_key": "/k"}, "client_key: requires client_cert"),
        ({"ca_file": "/nowhere/ca"}, "ca_file: '/nowhere/ca' cannot be read: No such file"),
        (
            {"password_file": "/nowhere/p", "username": "ops"},
            "password_file: '/nowhere/p' cannot be read",
        ),
        ({"username": "ops"}, "password: is required with username 'ops'"),
        ({"password": SECRET}, "username: is required"),
        (
            {"token": SECRET, "username": "ops", "password": SECRET},
            "token: cannot be combined with username",
        ),
        ({"token": SECRET, "token_file": "/t"}, "token_file: cannot be combined with token"),
        ({"token": SECRET + "\nX-Other: 1"}, "token: the value (not shown) is empty"),
    ],
)
def test_what_is_wrong_is_named_and_secrets_are_not(wrong, words):
    with pytest.raises(ValueError) as error:
        settings(**wrong)
    assert str(error.value).startswith(words) and SECRET not in str(error.value)


def test_secrets_are_read_from_files_and_never_shown(tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    basic = settings(username="ops", password_file=str(tmp_path / "secret"))
    bearer = settings(token_file=str(tmp_path / "secret"))
    assert (
        basic.authorization
        == settings(f"https://ops:{SECRET}@push.example:9091").authorization
        == "Basic b3BzOmh1bnRlcjItdmVyeS1zZWNyZXQ="
    )
    assert bearer.authorization == f"Bearer {SECRET}"
    assert SECRET not in repr((basic, bearer)) and "b3Bz" not in repr(basic)


def test_the_spool_belongs_to_url_job_and_labels_and_to_no_secret():
    directory = settings().spool.directory
    assert settings(f"https://ops:{SECRET}@push.example:9091").spool.directory == directory
    assert (
        len(
            {
                directory,
                settings(job="other").spool.directory,
                settings(labels="a=b").spool.directory,
                settings("http://push").spool.directory,
            }
        )
        == 4
    )


def test_words_of_a_server_obey_nobody():
    trouble = error_of_answer(
        400, None, "pushed metrics are \x1b[31minvalid\x1b[0m\r\n\n" + "x" * 999
    )
    assert (
        str(trouble).startswith("the server answered 400: pushed metrics are [31minvalid [0m xxx")
        and len(str(trouble)) < 340
    )
    assert not trouble.affects_all_groups and error_of_answer(401, None, "").affects_all_groups
    moved = error_of_answer(302, f"http://ops:{SECRET}@elsewhere/", "")
    assert (
        moved.affects_all_groups
        and "http://***@elsewhere/" in str(moved)
        and SECRET not in str(moved)
    )


def test_groups_are_read_one_by_one():
    assert list(
        listed_groups('{"status":"success","data":[{"labels":{}}, {"labels":{"a":"b"}}]}')
    ) == [{"labels": {}}, {"labels": {"a": "b"}}]
    assert list(listed_groups(' {"data" : [ ] , "status":"success"}')) == []
    for wrong in (
        "",
        "{}",
        "<html>",
        '{"data":[{"labels":{}}',
        '{"data":[{} {}]}',
        '{"data":[nonsense]}',
    ):
        with pytest.raises(ValueError):
            list(listed_groups(wrong))


def test_workers_do_what_they_can_in_time_and_leave_the_rest():
    workers, done = WorkerThreads(), []
    assert workers.run(
        [lambda number=number: done.append(number) for number in range(50)], time.monotonic() + 5
    )
    assert sorted(done) == list(range(50))
    begun, release = [], threading.Event()

    def work():
        begun.append(release.wait(60))

    try:
        # They hold all threads: the others are not started, and the caller waits for none.
        assert not workers.run([work] * (CONNECTIONS + 3), time.monotonic() + 0.3)
        assert begun == []
    finally:
        release.set()
    all_free = threading.Barrier(CONNECTIONS)
    assert workers.run([lambda: all_free.wait(60)] * CONNECTIONS, time.monotonic() + 60)
    assert begun == [True] * CONNECTIONS


def test_several_states_of_a_group_come_to_one():
    def run(finished, check, status):
        samples = [
            metrics.Sample("autopilot_check_status", {"check": check}, status),
            metrics.Sample("autopilot_check_timestamp_seconds", {"check": check}, finished),
            metrics.Sample("autopilot_node_status", {}, status),
            metrics.Sample("autopilot_last_run_timestamp_seconds", {}, finished),
        ]
        return metrics.Export(
            "run",
            "preflight",
            finished,
            True,
            [metrics.Group({"node": "gpu01", "phase": "preflight"}, samples)],
        )

    together = merge_groups(
        [run(1.0, "gpu_power", 4.0), run(2.0, "remapped_rows", 0.0), run(3.0, "gpu_power", 0.0)]
    )
    group = next(iter(together.values()))
    assert len(together) == 1
    assert (
        metrics.Sample("autopilot_check_timestamp_seconds", {"check": "gpu_power"}, 3.0)
        in group.samples
    )
    assert (
        metrics.Sample("autopilot_check_timestamp_seconds", {"check": "remapped_rows"}, 2.0)
        in group.samples
    )
    assert metrics.Sample("autopilot_node_status", {}, 0.0) in group.samples


@pytest.mark.parametrize(
    "url, options, refused",
    [
        ("http://push.example:9091", {"token": SECRET}, True),
        ("http://10.0.0.7:9091", {"username": "ops", "password": SECRET}, True),
        (f"http://ops:{SECRET}@push.example:9091", {}, True),
        ("http://push.example:9091", {}, False),
        ("https://push.example:9091", {"token": SECRET}, False),
        ("http://127.0.0.1:9091", {"token": SECRET}, False),
        ("http://[::1]:9091", {"token": SECRET}, False),
        ("http://localhost:9091", {"token": SECRET}, False),
        ("http://push.example:9091", {"token": SECRET, "allow_plaintext": True}, False),
    ],
)
def test_a_secret_does_not_cross_the_network_in_clear(url, options, refused):
    if not refused:
        assert settings(url, **options).url == url
        return
    with pytest.raises(ValueError, match="expected https://, or allow_plaintext: true") as raised:
        settings(url, **options)
    assert SECRET not in str(raised.value)
