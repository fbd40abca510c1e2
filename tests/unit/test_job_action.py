# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action job_action on real servers and programs: the notifications, the action on the
job, and that no action is repeated.
"""

from __future__ import annotations

import contextlib
import email
import fcntl
import http.server
import json
import queue
import smtplib
import os
import socket
import socketserver
import threading
import time

import gateways
import pytest
from action_call import call

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import notify as _notify
from ansible_collections.autopilot.gpu.plugins.action.job_action import ActionModule
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file

START = 1_700_000_000


def finding(code="gpu_lost", status="fail"):
    subject = {"kind": "gpu", "index": 3, "pci": "00000000:5D:00.0"}
    return {
        "code": code,
        "status": status,
        "action": "reboot_node",
        "subject": subject,
        "message": "fell off the bus",
        "evidence": {"code": 15},
        "check": "gpu_count",
    }


LOST = (finding(),)


@pytest.fixture
def act(tmp_path):
    """``act(turn, findings, check_mode=False, **options)``: what the action returns for this pass
    over the nodes gpu07 and gpu08.
    """

    def decided(turn=0, findings=LOST, check_mode=False, **options):
        report = tmp_path / "run.json"
        atomic_file.write(
            str(report),
            json.dumps(
                {
                    "run_id": f"job42-inflight-{turn}",
                    "finished": time.strftime(
                        "%Y-%m-%dT%H:%M:%SZ", time.gmtime(START + 300 * turn)
                    ),
                    "findings": [],
                    "nodes": [
                        {"name": "gpu07", "findings": list(findings)},
                        {"name": "gpu08", "findings": []},
                    ],
                }
            ),
        )
        arguments = {
            "report": str(report),
            "job": "job42",
            "history": str(tmp_path / "history.json"),
            **options,
        }
        return call(ActionModule, arguments, check_mode=check_mode)[0]

    return decided


class Web(http.server.BaseHTTPRequestHandler):
    """Answers each POST with the code in its path and keeps what came."""

    def do_POST(self):
        self.server.got.append(
            (self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        )
        self.send_response(int(self.path.rpartition("/")[2]))
        self.end_headers()

    def log_message(self, *words):
        pass


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as a letter takes; refuses recipients at nowhere."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while True:
            line = self.rfile.readline().strip()
            word = line[:4].upper()
            if word in (b"EHLO", b"HELO", b"MAIL", b"RSET"):
                self.wfile.write(b"250 ok\r\n")
            elif word == b"RCPT":
                self.wfile.write(b"550 no such user\r\n" if b"nowhere" in line else b"250 ok\r\n")
            elif word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += self.rfile.readline()
                self.server.got.append(email.message_from_bytes(text[:-3]))
                self.wfile.write(b"250 taken\r\n")
            else:
                self.wfile.write(b"221 bye\r\n")
                return


@contextlib.contextmanager
def serving(kind, handler):
    with kind(("127.0.0.1", 0), handler) as server:
        server.got = []
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def web():
    with serving(http.server.ThreadingHTTPServer, Web) as server:
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield server


@pytest.fixture
def smtp():
    with serving(socketserver.ThreadingTCPServer, Mail) as server:
        to = ["jane@example.org", "ops@example.org"]
        server.options = {
            "host": "127.0.0.1",
            "port": server.server_address[1],
            "sender": "autopilot@example.org",
            "to": to,
        }
        yield server


@pytest.fixture
def program(tmp_path, monkeypatch):
    """``program(name, script) -> file`` with a line for each call of the program, which is first on
    the path.
    """
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def made(name, script):
        calls = tmp_path / f"{name}.calls"
        calls.write_text("", encoding="utf-8")
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n{script}\n', encoding="utf-8")
        path.chmod(0o755)
        return calls

    return made


SUSPEND = {"on_fail": "suspend", "passes": 1}


# ---- deciding ----


def test_nothing_found_is_nothing_done(act, web):
    result = act(
        findings=[finding(status="unknown")],
        dry_run=False,
        policy=SUSPEND,
        notify={"webhook": f"{web.url}/200"},
    )
    assert (result["decision"], result["changed"], result["notified"], result["acted"]) == (
        "continue",
        False,
        [],
        "",
    )
    assert "failed" not in result and not web.got


def test_a_dry_run_says_what_it_would_do_and_does_nothing(act, web, program):
    calls = program("stop-it", "exit 0")
    result = act(
        policy=SUSPEND,
        notify={"webhook": f"{web.url}/secret/200"},
        act={"command": ["stop-it", "job42"]},
    )
    assert result["dry_run"] and not result["changed"] and not web.got and calls.read_text() == ""
    assert result["planned"] == ["would run stop-it", "would notify webhook at 127.0.0.1"]
    assert "secret" not in json.dumps(result)


def test_check_mode_writes_no_history(act, tmp_path, web):
    act(check_mode=True, dry_run=False, notify={"webhook": f"{web.url}/200"})
    assert not web.got and not (tmp_path / "history.json").exists()
    act()
    assert (tmp_path / "history.json").exists()


def test_a_second_pass_suspends(act, program):
    calls = program("stop-it", "cat >/dev/null")
    options = dict(
        dry_run=False, policy={"on_fail": "suspend"}, act={"command": ["stop-it", "job42"]}
    )
    assert act(0, **options)["decision"] == "warn_owner" and calls.read_text() == ""
    assert act(1, **options)["decision"] == "suspend" and calls.read_text() == "job42\n"
    # What it did lasts; a program of somebody else's is not run over and over.
    again = act(2, **options)
    assert (again["changed"], again["acted"]) == (
        False,
        "stop-it was run for this decision before",
    ) and calls.read_text() == "job42\n"
    assert act(3, [], **options)["decision"] == "continue"
    act(4, **options)
    act(5, **options)
    assert calls.read_text() == "job42\njob42\n"


def test_a_history_that_is_none_begins_anew(act, tmp_path):
    (tmp_path / "history.json").write_text("{broken", encoding="utf-8")
    assert act()["decision"] == "warn_owner"
    assert len(json.loads((tmp_path / "history.json").read_text())) == 1


def test_without_a_run_document_only_the_options_are_looked_at(act, tmp_path):
    assert act(report=None, dry_run=False, policy=SUSPEND) == {"changed": False}
    assert not (tmp_path / "history.json").exists()
    assert (
        "policy.on_fail: 'kill' is invalid" in act(report=None, policy={"on_fail": "kill"})["msg"]
    )


def test_of_two_that_decide_at_once_one_acts(act, tmp_path, program):
    """As of a cron job whose turn comes while the one before is still at it."""
    calls = program("stop-it", "cat >/dev/null; sleep 0.5")
    options = dict(dry_run=False, policy=SUSPEND, act={"command": ["stop-it", "job42"]})
    results = []
    both = [
        threading.Thread(target=lambda: results.append(act(0, **options))) for _which in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert calls.read_text() == "job42\n" and sorted(result["changed"] for result in results) == [
        False,
        True,
    ]
    assert {result["acted"] for result in results} == {
        "ran stop-it",
        "stop-it was run for this decision before",
    }
    assert not [path for path in tmp_path.iterdir() if "lock" in path.name]


def test_who_waits_for_another_decision_does_not_wait_for_ever(act, tmp_path):
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = act(timeout=0.3)
    finally:
        os.close(held)
    assert (
        result["failed"]
        and "history.json is in use by another decision for 0.3 s (timeout) already; nothing "
        "was decided"
        in result["msg"]
    )
    assert act()["decision"] == "warn_owner"


def test_a_history_that_cannot_be_kept_is_said(act):
    result = act(history="/proc/nowhere/history.json")
    assert (
        result["failed"]
        and result["decision"] == "warn_owner"
        and "history: /proc/nowhere/history.json cannot be written" in result["msg"]
    )


# ---- telling ----


def test_all_are_told_once_until_it_changes(act, web, smtp):
    options = dict(
        dry_run=False,
        notify={
            "webhook": f"{web.url}/hook/200",
            "slack": f"{web.url}/services/T0/200",
            "mail": smtp.options,
        },
    )
    first = act(0, **options)
    assert first["changed"] and sorted(first["notified"]) == [
        "mail to jane@example.org, ops@example.org by 127.0.0.1",
        "slack at 127.0.0.1",
        "webhook at 127.0.0.1",
    ]
    told = dict(web.got)
    assert told["/hook/200"]["decision"] == "warn_owner" and told["/hook/200"]["facts"][0][
        "evidence"
    ] == {"code": 15}
    assert told["/hook/200"]["job"] == "job42" and told["/hook/200"]["run_id"] == "job42-inflight-0"
    assert told["/services/T0/200"]["text"].splitlines() == [
        "*autopilot: job job42: look at it*",
        "gpu07: FAIL gpu_lost: GPU 3 (5D:00.0): fell off the bus",
        "run job42-inflight-0",
    ]
    (letter,) = smtp.got
    assert (letter["Subject"], letter["To"]) == (
        "autopilot: job job42: look at it",
        "jane@example.org, ops@example.org",
    )
    text, attachment = letter.get_payload()
    assert (
        "fell off the bus" in text.get_payload()
        and json.loads(attachment.get_payload(decode=True))["decision"] == "warn_owner"
    )
    second = act(1, **options)
    assert (
        not second["changed"]
        and second["notified"] == []
        and (len(web.got), len(smtp.got)) == (2, 1)
    )
    act(2, [finding(), finding("hw_thermal_slowdown")], **options)
    assert (len(web.got), len(smtp.got)) == (4, 2)


def test_names_that_nodes_sent_are_no_markup_and_no_header(act, web, smtp):
    hostile = dict(finding(), message="<!channel> <https://x|y> &\x1b[31m\u202e\nBcc: eve@evil.org")
    notify = {"slack": f"{web.url}/services/T0/200", "mail": smtp.options}
    assert len(act(0, [hostile], dry_run=False, notify=notify)["notified"]) == 2
    text = dict(web.got)["/services/T0/200"]["text"]
    assert "&lt;!channel&gt; &lt;https://x|y&gt; &amp;?[31m?" in text
    (letter,) = smtp.got
    body = letter.get_payload()[0].get_payload()
    assert "Bcc" not in letter and "\x1b" not in body and "\nBcc" not in body


def test_a_password_does_not_cross_the_network_in_clear(act, smtp):
    login = {**smtp.options, "username": "autopilot", "password": "hush"}
    result = act(dry_run=False, notify={"mail": login})
    assert result["failed"] and "notify.mail.starttls: False is invalid" in result["msg"]
    assert "hush" not in result["msg"] and not smtp.got
    allowed = act(1, dry_run=False, notify={"mail": {**login, "allow_plaintext_login": True}})
    assert "notify.mail.starttls" not in allowed.get("msg", "")


def test_who_could_not_be_told_is_an_error_and_told_with_the_next_pass(act, web, smtp):
    notify = {"webhook": f"{web.url}/secret/500", "mail": {**smtp.options, "to": ["jane@nowhere"]}}
    result = act(0, dry_run=False, notify=notify)
    assert (
        result["failed"]
        and "webhook at 127.0.0.1: answered 500" in result["msg"]
        and "no such user" in result["msg"]
    )
    assert "secret" not in json.dumps(result) and result["decision"] == "warn_owner"
    assert act(1, dry_run=False, notify={"webhook": f"{web.url}/200"})["notified"] == [
        "webhook at 127.0.0.1"
    ]


def test_a_redirection_is_not_followed(act, web):
    assert "answered 302" in act(dry_run=False, notify={"webhook": f"{web.url}/302"})["msg"]


def test_a_server_that_never_answers_holds_nobody_up(act, web):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        result = act(
            dry_run=False,
            timeout=1,
            notify={
                "webhook": f"http://127.0.0.1:{silent.getsockname()[1]}/",
                "slack": f"{web.url}/200",
            },
        )
    assert result["failed"] and "no answer within 1 s" in result["msg"]
    assert result["notified"] == ["slack at 127.0.0.1"]


def test_a_server_that_is_not_there_is_named_without_its_secret(act):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    result = act(dry_run=False, notify={"slack": f"http://127.0.0.1:{port}/services/hush"})
    assert (
        result["failed"]
        and "slack at 127.0.0.1: " in result["msg"]
        and "refused" in result["msg"]
        and "hush" not in json.dumps(result)
    )


# ---- acting ----


def test_a_command_gets_the_decision_on_its_standard_input(act, tmp_path, program):
    program("stop-it", f"cat >{tmp_path}/told; echo stopped")
    result = act(
        dry_run=False,
        policy={"on_fail": "stop", "passes": 1},
        act={"command": ["stop-it", "a b", "$HOME"]},
    )
    told = json.loads((tmp_path / "told").read_text())
    assert (told["decision"], told["job"], told["facts"][0]["node"]) == ("stop", "job42", "gpu07")
    assert (
        result["changed"]
        and result["acted"] == "ran stop-it: stopped"
        and (tmp_path / "stop-it.calls").read_text() == "a b $HOME\n"
    )


@pytest.mark.parametrize(
    "script, words",
    [
        ("echo 'no such job' >&2; exit 3", "stop-it ended with 3: no such job"),
        ("exec sleep 60", "stop-it did not end within 1 s"),
    ],
)
def test_what_was_not_done_is_an_error_and_told(act, web, program, script, words):
    program("stop-it", script)
    result = act(
        dry_run=False,
        policy=SUSPEND,
        timeout=1,
        act={"command": ["stop-it"]},
        notify={"webhook": f"{web.url}/200"},
    )
    assert (
        result["failed"]
        and words in result["msg"]
        and result["notified"] == ["webhook at 127.0.0.1"]
    )
    assert any(words in trouble for trouble in web.got[0][1]["troubles"])


def test_a_program_that_is_not_there_is_an_error(act):
    result = act(dry_run=False, policy=SUSPEND, act={"command": ["no-such-program-here"]})
    assert result["failed"] and "no-such-program-here" in result["msg"]


SHOW = (
    'case "$*" in "-o show job "*) echo "JobId=4711 JobName=x JobState=$(cat {state}) '
    'Reason=None";; *) echo {after} >{state};; esac'
)


@pytest.mark.parametrize(
    "decision, by, state, called, words",
    [
        ("suspend", "requeue", "RUNNING", "requeue 4711", "ran scontrol requeue 4711"),
        ("suspend", "suspend", "RUNNING", "suspend 4711", "ran scontrol suspend 4711"),
        ("suspend", "suspend", "SUSPENDED", None, "job 4711 is already SUSPENDED"),
        ("suspend", "requeue", "PENDING", None, "job 4711 is already PENDING"),
        ("suspend", "requeue", "COMPLETED", None, "job 4711 has ended"),
    ],
)
def test_slurm_is_asked_before_it_is_told(
    act, tmp_path, program, decision, by, state, called, words
):
    (tmp_path / "state").write_text(state, encoding="utf-8")
    calls = program(
        "scontrol",
        SHOW.format(state=tmp_path / "state", after="SUSPENDED" if by == "suspend" else "PENDING"),
    )
    options = dict(
        policy={"on_fail": decision, "passes": 1},
        act={"slurm": {"job_id": "4711", "suspend_by": by}},
    )
    if called:
        assert act(**options)["planned"] == [f"would run scontrol {called}"]
    calls.write_text("")
    result = act(dry_run=False, **options)
    assert (result["acted"], result["changed"]) == (words, called is not None)
    assert calls.read_text().splitlines() == ["-o show job 4711", *([called] if called else [])]
    again = act(1, dry_run=False, **options)
    assert not again["changed"] and (
        " is already " in again["acted"] or again["acted"].endswith("has ended")
    )


def test_stopping_a_job_of_slurm_cancels_it(act, tmp_path, program):
    (tmp_path / "state").write_text("RUNNING", encoding="utf-8")
    program("scontrol", SHOW.format(state=tmp_path / "state", after="x"))
    cancelled = program("scancel", "exit 0")
    assert (
        act(
            dry_run=False,
            policy={"on_fail": "stop", "passes": 1},
            act={"slurm": {"job_id": "4711_3"}},
        )["acted"]
        == "ran scancel 4711_3"
    )
    assert cancelled.read_text() == "4711_3\n"


@pytest.fixture
def api(monkeypatch):
    """An API server with the one JobSet train/llama: ``asked`` has what it was asked, ``pods`` the
    pods of the JobSet.
    """
    job = {"metadata": {"name": "llama", "resourceVersion": "7"}, "spec": {"suspend": False}}
    pods = []

    def read(_headers, path):
        if path.startswith("/api/v1/namespaces/train/pods?labelSelector=jobset.sigs.k8s.io"):
            return 200, {"Content-Type": "application/json"}, json.dumps({"items": pods})
        if path != "/apis/jobset.x-k8s.io/v1alpha2/namespaces/train/jobsets/llama":
            return (
                404,
                {"Content-Type": "application/json"},
                json.dumps({"kind": "Status", "message": "no such thing", "reason": "NotFound"}),
            )
        return 200, {"Content-Type": "application/json"}, json.dumps(job)

    def write(_headers, path):
        job["spec"]["suspend"] = True
        job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
        return read(_headers, path)

    with gateways.Answering(GET=read, PATCH=write) as server:
        monkeypatch.setenv("K8S_AUTH_HOST", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("K8S_AUTH_API_KEY", "token")
        server.pods = pods
        yield server


def test_a_jobset_is_suspended_once(act, api):
    pytest.importorskip("kubernetes", reason="needs the Python package kubernetes")
    options = dict(
        policy=SUSPEND,
        act={"kubernetes": {"kind": "JobSet", "namespace": "train", "name": "llama"}},
    )
    assert act(0, **options)["planned"] == ["would suspend JobSet train/llama"]
    first = act(1, dry_run=False, **options)
    assert (first["changed"], first["acted"]) == (True, "suspended JobSet train/llama")
    second = act(2, dry_run=False, **options)
    assert (second["changed"], second["acted"]) == (
        False,
        "JobSet train/llama is already suspended",
    )
    patches = [json.loads(body) for method, _path, _headers, body in api.asked if method == "PATCH"]
    assert patches == [{"metadata": {"resourceVersion": "7"}, "spec": {"suspend": True}}]


def test_a_jobset_whose_pods_stay_is_suspended_but_not_proven(act, api, web):
    pytest.importorskip("kubernetes", reason="needs the Python package kubernetes")
    metadata = {"name": "llama-0-0", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    api.pods.append(
        {"metadata": metadata, "spec": {"nodeName": "gpu07"}, "status": {"phase": "Running"}}
    )
    options = dict(
        policy=SUSPEND,
        timeout=0.5,
        dry_run=False,
        notify={"webhook": f"{web.url}/200"},
        act={"kubernetes": {"kind": "JobSet", "namespace": "train", "name": "llama"}},
    )
    first = act(0, **options)
    words = (
        "job job42: not proven within 0.5 s (timeout) that it holds no GPU: 1 pod may still hold "
        "GPUs: llama-0-0 (terminating on gpu07)"
    )
    assert (first["failed"], first["changed"], first["msg"]) == (True, True, words)
    assert first["acted"] == "suspended JobSet train/llama"
    assert web.got[0][1]["troubles"] == [words]
    # A later pass looks again, although there is nothing to suspend.
    second = act(1, **options)
    assert (second["failed"], second["changed"]) == (True, False) and second["msg"] == words
    api.pods.clear()
    assert "failed" not in act(2, **options)


def test_a_job_of_kubernetes_that_is_not_there_is_an_error(act, api):
    pytest.importorskip("kubernetes", reason="needs the Python package kubernetes")
    result = act(
        dry_run=False,
        policy=SUSPEND,
        act={"kubernetes": {"kind": "Job", "namespace": "train", "name": "gone"}},
    )
    assert (
        result["failed"]
        and "decided to suspend it, but failed" in result["msg"]
        and "no such thing" in result["msg"]
    )


def test_without_a_way_to_act_it_is_only_told(act, web):
    result = act(dry_run=False, policy=SUSPEND, notify={"webhook": f"{web.url}/200"})
    assert (
        result["acted"] == "nothing: no action is configured to suspend a job"
        and web.got[0][1]["acted"] == result["acted"]
    )


# ---- options ----


@pytest.mark.parametrize(
    "options, named",
    [
        ({"policy": {"on_fail": "kill"}}, "policy.on_fail: 'kill' is invalid"),
        ({"report": "/no/such/file"}, "report: /no/such/file cannot be read"),
        ({"hosts": ["gpu99"]}, "hosts: 'gpu99' is not in the run; its hosts: gpu07, gpu08"),
        ({"notify": {"slack": "hush-hush"}}, "notify.slack: the given value is invalid"),
        (
            {"notify": {"mail": {"host": "h", "sender": "me", "to": ["a@b"]}}},
            "notify.mail: 'me' is invalid",
        ),
        (
            {"notify": {"mail": {"host": "h", "sender": "a@b", "to": []}}},
            "notify.mail.to: [] is invalid",
        ),
        (
            {"notify": {"webhook": "http://hooks.example.org/hush-hush"}},
            "notify.webhook: http:// at hooks.example.org is invalid, because the URL would cross",
        ),
        ({"notify": {"pager": 1}}, "notify"),
        ({"act": {"slurm": {"job_id": "4711; rm"}}}, "act.slurm.job_id: '4711; rm' is invalid"),
        (
            {"act": {"slurm": {"job_id": "1"}, "command": ["x"]}},
            "act: slurm and command exclude each other; expected one of them",
        ),
        (
            {"act": {"kubernetes": {"namespace": "../x", "name": "y"}}},
            "act.kubernetes.namespace: '../x' is invalid",
        ),
        ({"act": {"kubernetes": {"namespace": "x", "name": "y", "kind": "Pod"}}}, "Pod"),
        ({"timeout": 0}, "timeout: 0.0 is invalid"),
        ({"dryrun": True}, "unsupported option 'dryrun'"),
    ],
)
def test_a_wrong_option_is_named(act, options, named):
    result = act(**options)
    assert result["failed"] and named in result["msg"] and "hush-hush" not in json.dumps(result)


def test_what_a_mail_server_answers_is_printable():
    def refused(_seconds):
        raise smtplib.SMTPDataError(550, "no\x1b[31m \u202espam\r\n".encode())

    found = queue.Queue()
    _notify._send_one("mail", refused, 1.0, found)
    assert found.get() == ("mail", "answered 550, no?[31m ?spam")
