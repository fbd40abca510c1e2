# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface to iperf3: what each version is asked, and that nothing but a whole document of the
right shape becomes a figure.
"""

from __future__ import annotations

import copy
import json

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import iperf3
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import (
    Completed,
)

#: What iperf3 3.12 printed for ``-c 127.0.0.1 -t 1 -J -R``, without the intervals.
DOCUMENT = {
    "start": {
        "connected": [
            {
                "socket": 5,
                "local_host": "127.0.0.1",
                "local_port": 40000,
                "remote_host": "127.0.0.1",
                "remote_port": 5201,
            }
        ],
        "version": "iperf 3.12",
        "system_info": 'Linux {odd} \\" name',
        "test_start": {
            "protocol": "TCP",
            "num_streams": 1,
            "blksize": 131072,
            "omit": 0,
            "duration": 1,
            "bytes": 0,
            "blocks": 0,
            "reverse": 1,
        },
    },
    "intervals": [],
    "end": {
        "streams": [
            {
                "sender": {
                    "socket": 5,
                    "start": 0,
                    "end": 1.001316,
                    "seconds": 1.001316,
                    "bytes": 2211184640,
                    "bits_per_second": 17666228363.473667,
                },
                "receiver": {
                    "socket": 5,
                    "start": 0,
                    "end": 1.000032,
                    "seconds": 1.000032,
                    "bytes": 2210135958,
                    "bits_per_second": 17680521887.299606,
                },
            }
        ],
        "sum_sent": {
            "start": 0,
            "end": 1.001316,
            "seconds": 1.001316,
            "bytes": 2211184640,
            "bits_per_second": 17666228363.473667,
            "retransmits": 2,
        },
        "sum_received": {
            "start": 0,
            "end": 1.000032,
            "seconds": 1.000032,
            "bytes": 2210135958,
            "bits_per_second": 17680521887.299606,
        },
        "cpu_utilization_percent": {
            "host_total": 40.9,
            "host_user": 1.2,
            "host_system": 39.7,
            "remote_total": 97.7,
            "remote_user": 0.2,
        },
        "sender_tcp_congestion": "bbr",
    },
}
#: iperf3 prints tabs.
TEXT = json.dumps(DOCUMENT, indent="\t")
FIGURE = {
    "bits_per_second": 17680521887.299606,
    "retransmits": 2,
    "seconds": 1.000032,
    "cpu_local_percent": 40.9,
    "cpu_remote_percent": 97.7,
}


def ended(stdout="", stderr="", returncode=0, **more):
    return Completed(["iperf3"], returncode, stdout, stderr, 1.1, **more)


def reason(leg):
    return leg["error"]["reason"]


def changed(value, *path):
    """The document with one value replaced, or removed (None)."""
    document = copy.deepcopy(DOCUMENT)
    part = document
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return json.dumps(document)


def test_a_whole_document_is_a_figure():
    assert iperf3.parse_client(ended(TEXT + "\n"), reverse=True) == FIGURE


PRELOAD = "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded: ignored.\n"


@pytest.mark.parametrize("before", ["", PRELOAD])
@pytest.mark.parametrize("document", [{"start": {}, "intervals": [], "end": {}}, None])
def test_a_refusal_of_iperf3_3_9_is_in_stderr(document, before):
    """Debian 11 and Ubuntu 22.04 have it; its document has no error."""
    refused = ended(
        json.dumps(document) if document else "",
        f"{before}iperf3: error - unable to connect to server: Connection refused\n",
        1,
    )
    error = iperf3.parse_client(refused, reverse=False)["error"]
    assert error["reason"] == "refused"
    assert error["message"] == "unable to connect to server: Connection refused"


def test_no_part_of_a_document_is_a_figure():
    found = {
        reason(iperf3.parse_client(ended(TEXT[:length]), reverse=True))
        for length in range(len(TEXT))
    }
    assert found == {"truncated", "not_understood"}
    assert all(
        reason(iperf3.parse_client(ended(TEXT[:length]), reverse=True)) == "truncated"
        for length in range(1, len(TEXT))
    )


def test_a_document_that_lacks_bytes_anywhere_is_no_other_figure():
    """Whatever 40 bytes are lost in the middle, the figure is the true one or there is none."""
    for place in range(len(TEXT) - 40):
        leg = iperf3.parse_client(ended(TEXT[:place] + TEXT[place + 40 :]), reverse=True)
        assert "error" in leg or leg["bits_per_second"] == pytest.approx(
            FIGURE["bits_per_second"], rel=0.03
        ), (place, leg)


@pytest.mark.parametrize("place", range(0, len(TEXT), 37))
def test_a_line_printed_into_the_document_spoils_it(place):
    cut = TEXT.rfind("\n", 0, place) + 1 if place else 1
    leg = iperf3.parse_client(
        ended(TEXT[:cut] + "\nwarning: this is no JSON {\n" + TEXT[cut:]), reverse=True
    )
    assert reason(leg) in ("truncated", "not_understood")


@pytest.mark.parametrize(
    "before, after",
    [
        ("warning: no version information available\n", ""),
        ("", "\nbye\n"),
        ("one\ntwo\n", "\n\nthree\n"),
    ],
)
def test_lines_around_the_only_document_do_no_harm(before, after):
    assert iperf3.parse_client(ended(before + TEXT + after), reverse=True) == FIGURE


@pytest.mark.parametrize(
    "text",
    [
        TEXT + TEXT,
        TEXT + "\n" + TEXT,
        TEXT + "{",
        "{}\n" + TEXT,
        "a {\n" + TEXT,
        TEXT + " trailing words",
        TEXT + '\n{"error": "x"}',
    ],
    ids=[
        "twice",
        "twice, on lines",
        "brace after",
        "empty first",
        "brace before",
        "words on its line",
        "error after",
    ],
)
def test_more_than_one_document_is_not_understood(text):
    assert reason(iperf3.parse_client(ended(text), reverse=True)) == "not_understood"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "{}",
        "[]",
        "null",
        "17",
        "true",
        '{"end": []}',
        '{"end": {"sum_received": 5}}',
        "hello",
        "\0\0\0",
        '{"start": 1, "end": {}}',
        "{" * 5000 + "}" * 5000,
        '{"a":' * 100000 + "1" + "}" * 100000,
        changed(None, "end", "sum_received"),
        changed(None, "end", "sum_received", "bits_per_second"),
        changed(None, "end", "sum_received", "bytes"),
        changed(None, "end", "sum_received", "seconds"),
        changed("17e9", "end", "sum_received", "bits_per_second"),
        changed(True, "end", "sum_received", "bytes"),
        changed(-1, "end", "sum_received", "bits_per_second"),
        changed(float("nan"), "end", "sum_received", "bits_per_second"),
        changed(float("inf"), "end", "sum_received", "bits_per_second"),
        changed(10**400, "end", "sum_received", "bits_per_second"),
        changed(1e15, "end", "sum_received", "bits_per_second"),
        changed(1e9, "end", "sum_received", "bits_per_second"),
        changed(0, "end", "sum_received", "seconds"),
        changed(0.1, "end", "sum_received", "seconds"),
        changed(9, "end", "sum_received", "bytes"),
        changed(0, "start", "test_start", "reverse"),
        changed(10, "start", "test_start", "duration"),
    ],
    ids=lambda text: text[-40:] if len(text) < 2000 else "deep",
)
def test_what_is_no_measurement_is_not_understood(text):
    assert reason(iperf3.parse_client(ended(text), reverse=True)) == "not_understood"


def test_a_rate_of_1e400_is_none():
    assert (
        reason(
            iperf3.parse_client(ended(TEXT.replace("17680521887.299606", "1e400")), reverse=True)
        )
        == "not_understood"
    )


def test_nothing_received_is_a_figure_when_the_server_says_so():
    """A path that carries the handshake and no large packet: iperf3 ends in time and has received
    nothing.
    """
    document = copy.deepcopy(DOCUMENT)
    document["end"]["sum_received"].update(bytes=0, bits_per_second=0)
    assert iperf3.parse_client(ended(json.dumps(document)), reverse=True)["bits_per_second"] == 0


@pytest.mark.parametrize(
    "path, key",
    [
        (("end", "sum_sent", "retransmits"), "retransmits"),
        (("end", "sum_sent"), "retransmits"),
        (("end", "cpu_utilization_percent", "host_total"), "cpu_local_percent"),
        (("end", "cpu_utilization_percent"), "cpu_remote_percent"),
    ],
)
def test_what_a_version_does_not_tell_is_none(path, key):
    leg = iperf3.parse_client(ended(changed(None, *path)), reverse=True)
    assert leg[key] is None and leg["bits_per_second"] == FIGURE["bits_per_second"]


@pytest.mark.parametrize("value", [-1, True, "2", 2.5, []])
def test_retransmits_that_are_no_count_are_none(value):
    assert (
        iperf3.parse_client(ended(changed(value, "end", "sum_sent", "retransmits")), reverse=True)[
            "retransmits"
        ]
        is None
    )


def test_the_shape_of_3_1_is_understood():
    """No congestion algorithm, no ``sender``; the start without much of what came later."""
    document = {
        "start": {
            "connected": [],
            "version": "iperf 3.1.3",
            "test_start": {"protocol": "TCP", "num_streams": 1, "duration": 3, "reverse": 0},
        },
        "intervals": [],
        "end": {
            "streams": [],
            "sum_sent": {
                "start": 0,
                "end": 3.0001,
                "seconds": 3.0001,
                "bytes": 3530000000,
                "bits_per_second": 9.413e9,
                "retransmits": 0,
            },
            "sum_received": {
                "start": 0,
                "end": 3.0001,
                "seconds": 3.0001,
                "bytes": 3528000000,
                "bits_per_second": 9.4077e9,
            },
            "cpu_utilization_percent": {"host_total": 12.0, "remote_total": 30.0},
        },
    }
    assert (
        iperf3.parse_client(ended(json.dumps(document)), reverse=False)["bits_per_second"]
        == 9.4077e9
    )


def test_the_shape_of_3_0_is_not():
    """Before 3.0.3 one stream had no sum."""
    text = changed(None, "end", "sum_received").replace("3.12", "3.0.1")
    assert reason(iperf3.parse_client(ended(text), reverse=True)) == "not_understood"


@pytest.mark.parametrize(
    "words, expected",
    [
        ("the server is busy running a test. try again later", "busy"),
        ("error - the server is busy running a test. try again later", "busy"),
        ("unable to connect to server: Connection refused", "refused"),
        (
            "unable to connect to server - server may have stopped running or use a different "
            "port, firewall issue, etc.: Connection refused",
            "refused",
        ),
        ("unable to connect stream: Connection refused", "refused"),
        ("unable to connect to server: No route to host", "no_route"),
        ("unable to connect to server: Network is unreachable", "no_route"),
        ("unable to connect to server: Connection timed out", "timeout"),
        ("error - idle timeout for receiving data", "timeout"),
        ("error - unable to start listener for connections: Address already in use", "bind"),
        ("unable to connect to server: Cannot assign requested address", "bind"),
        ("unable to connect to server: No such device", "bind"),
        ("error - control socket has closed unexpectedly", "control"),
        ("error - unable to receive control message: Connection reset by peer", "control"),
        ("error - the server has terminated", "control"),
        ("unable to connect to server: Operation not permitted", "permission"),
        ("error - unable to create a new stream: Read-only file system", "failed"),
        ("", "failed"),
        ("\0", "failed"),
    ],
)
def test_an_error_document_has_its_reason(words, expected):
    document = {
        "start": {"connected": [], "version": "iperf 3.12"},
        "intervals": [],
        "end": {},
        "error": words,
    }
    for returncode in (0, 1):
        leg = iperf3.parse_client(ended(json.dumps(document), returncode=returncode), reverse=False)
        assert reason(leg) == expected
        assert leg["error"]["message"] == words.strip().replace("error - ", "")


def test_an_error_in_a_document_with_figures_is_an_error():
    document = dict(copy.deepcopy(DOCUMENT), error="error - control socket has closed unexpectedly")
    assert reason(iperf3.parse_client(ended(json.dumps(document)), reverse=True)) == "control"


@pytest.mark.parametrize(
    "completed, expected",
    [
        (ended(TEXT, timed_out=True), "timeout"),
        (ended(TEXT, returncode=None), "timeout"),
        (ended(TEXT, returncode=-11), "crashed"),
        (ended(TEXT, cut=True), "truncated"),
        (
            ended(
                "",
                "iperf3: unrecognized option '--bind-dev'\nUsage: iperf3 [-s|-c host] [options]\n",
                1,
            ),
            "too_old",
        ),
        (
            ended("", "iperf3: error - unable to connect to server: Connection refused\n", 1),
            "refused",
        ),
        (
            ended(
                "",
                "iperf3: error while loading shared libraries: libiperf.so.0: cannot open\n",
                127,
            ),
            "failed",
        ),
        (ended("", "", 1), "not_understood"),
    ],
)
def test_a_client_that_did_not_come_to_its_document(completed, expected):
    assert reason(iperf3.parse_client(completed, reverse=True)) == expected


@pytest.mark.parametrize(
    "completed, expected",
    [
        (
            ended(
                json.dumps(
                    {
                        "error": "error - unable to start listener for connections: Address "
                        "already in use"
                    }
                ),
                returncode=1,
            ),
            "bind",
        ),
        (
            ended(
                "",
                "iperf3: error - unable to start listener for connections: Address already in use\n",
                1,
            ),
            "bind",
        ),
        (ended("", returncode=-9), "crashed"),
        (ended(TEXT), "failed"),
    ],
)
def test_a_server_that_ended_by_itself_has_a_reason(completed, expected):
    assert iperf3.parse_server(completed)["reason"] == expected


def test_a_server_that_was_ended_has_none():
    assert iperf3.parse_server(ended(TEXT, timed_out=True)) is None


# ---- what each version is asked ----


def client(version, features=None, **more):
    program = {"path": "/usr/bin/iperf3", "version": version, "features": features}
    return iperf3.client_argv(
        program, "10.0.0.2", 5200, 3.0, bind="10.0.0.1", interface="eth1", **more
    )


def test_an_old_version_is_asked_for_nothing_new():
    assert client("3.1.3") == [
        "/usr/bin/iperf3",
        "-c",
        "10.0.0.2",
        "-p",
        "5200",
        "-J",
        "-t",
        "3",
        "-P",
        "1",
        "-Z",
        "-B",
        "10.0.0.1",
    ]


def test_a_new_version_is_asked_for_all():
    assert client(
        "3.12", ["zerocopy", "bind_device"], reverse=True, streams=4, connect_seconds=0.5
    ) == [
        "/usr/bin/iperf3",
        "-c",
        "10.0.0.2",
        "-p",
        "5200",
        "-J",
        "-t",
        "3",
        "-P",
        "4",
        "-R",
        "-Z",
        "--connect-timeout",
        "500",
        "-B",
        "10.0.0.1",
        "--bind-dev",
        "eth1",
    ]


@pytest.mark.parametrize(
    "version, connect_timeout, bind_device",
    [
        ("3.1", False, False),
        ("3.1.7", False, False),
        ("3.2", True, False),
        ("3.9", True, False),
        ("3.10.1", True, False),
        ("3.11", True, True),
        ("3.19.1", True, True),
        ("4.0", True, True),
    ],
)
def test_the_options_of_a_version(version, connect_timeout, bind_device):
    argv = client(version)
    assert ("--connect-timeout" in argv, "--bind-dev" in argv) == (connect_timeout, bind_device)


def test_a_build_without_a_feature_is_not_asked_for_it():
    assert not {"-Z", "--bind-dev"} & set(client("3.12", []))
    assert "-Z" not in client("3.12", zerocopy=False)


@pytest.mark.parametrize("seconds, expected", [(3.0, "3"), (2.5, "2"), (0.4, "1"), (10, "10")])
def test_seconds_are_whole(seconds, expected):
    argv = iperf3.client_argv({"path": "iperf3", "version": "3.12"}, "::1", 5200, seconds)
    assert argv[argv.index("-t") + 1] == expected


def test_a_server_is_bound():
    program = {"path": "iperf3", "version": "3.12", "features": ["bind_device"]}
    assert iperf3.server_argv(program, "10.0.0.1", "eth1", 5200) == [
        "iperf3",
        "-s",
        "-p",
        "5200",
        "-J",
        "-B",
        "10.0.0.1",
        "--bind-dev",
        "eth1",
    ]


# ---- finding it ----


@pytest.mark.parametrize(
    "script, expected",
    [
        (
            "echo 'iperf 3.12 (cJSON 1.7.15)'; echo 'Optional features available: IPv6 flow "
            "label, sendfile / zerocopy, bind to device'",
            {"version": "3.12", "features": ["zerocopy", "bind_device"]},
        ),
        (
            "echo 'iperf 3.16 (cJSON 1.7.15)'; echo 'Optional features available: CPU affinity "
            "setting'",
            {"version": "3.16", "features": []},
        ),
        ("echo 'iperf 3.1.3'; exit 1", {"version": "3.1.3", "features": None}),
        ("echo 'iperf 3.0.11'", {"reason": "too_old"}),
        ("echo hello", {"reason": "not_understood"}),
        ("exit 1", {"reason": "not_understood"}),
    ],
)
def test_the_program_is_found_by_what_it_says(script, expected, tmp_path, monkeypatch):
    program = tmp_path / "iperf3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = iperf3.find()
    assert {key: found.get(key) for key in expected} == expected
    assert ("path" in found) == ("error" not in found)


def test_a_program_that_cannot_be_started_is_said(tmp_path, monkeypatch):
    (tmp_path / "iperf3").write_text("#!/nowhere/sh\n")
    (tmp_path / "iperf3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert iperf3.find()["reason"] == "not_started"
