# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""image_registry against real servers on loopback: a registry with TLS, tokens and proxies, and
servers that are none.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gateways
import pytest
from controller import ROOT, linked
from interpreters import interpreter
from registry import DIGEST, Authority, Proxy, Registry

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import runner
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    image_registry,
)

PROXIES = (
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "no_proxy",
    "NO_PROXY",
    "all_proxy",
    "ALL_PROXY",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A host's root with an authority's certificate in it, and a registry behind it for everybody."""
    root = tmp_path_factory.mktemp("root")
    authority = Authority(root / "etc/ssl/ours")
    with Registry(authority.context()) as registry:
        yield SimpleNamespace(
            root=root, authority=authority, ca="/etc/ssl/ours/ca.pem", registry=registry
        )


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def look(world, *images, **options):
    """The outcome of the check, whose children do what they do on a node."""
    given = {
        **image_registry.CHECK.defaults(),
        "images": list(images),
        "ca_file": world.ca,
        **options,
    }
    image_registry.CHECK.validate_options(given)
    return runner.run([(image_registry.CHECK, given)], HostSettings(host_root=str(world.root)))[0]


def said(outcome):
    return outcome.result.status, [
        (one.code, one.status, one.action) for one in outcome.result.findings
    ]


def test_an_image_that_can_be_pulled(world):
    outcome = look(
        world,
        f"{world.registry.host}/team/llm:v1",
        f"{world.registry.host}/team/llm@{DIGEST}",
        f"{world.registry.host}/team/llm",
    )
    assert said(outcome) == ("pass", []), outcome.result
    assert outcome.result.summary.startswith(
        f"3 images at {world.registry.host}, certificates until 20"
    )
    first = outcome.readings["images"][0]
    assert (first["addresses"], first["proxy"], first["digest"], first["tls"]["verified"]) == (
        ["127.0.0.1"],
        None,
        DIGEST,
        True,
    )
    assert [(one.name, one.unit, one.labels) for one in outcome.result.measurements] == [
        ("image_lookup", "seconds", {"registry": world.registry.host})
    ]
    # Nothing of an image was fetched.
    assert {(method, path.split("/")[2]) for method, path, _headers in world.registry.asked} == {
        ("GET", ""),
        ("HEAD", "team"),
    }


def test_no_image_and_nobody_is_asked(world):
    before = len(world.registry.asked)
    assert said(look(world)) == ("skip", []) and len(world.registry.asked) == before


def test_images_that_are_not_there(world):
    outcome = look(
        world,
        f"{world.registry.host}/team/llm:v2",
        f"{world.registry.host}/team/other:v1",
        f"{world.registry.host}/team/llm:v1",
    )
    assert said(outcome) == ("fail", [("image_not_found", "fail", "fix_configuration")] * 2)
    assert str(outcome.result.findings[0].subject) == f"image {world.registry.host}/team/llm:v2"


#: Users of a registry, how it asks, what is given -> the check's status and codes, and whether the
#: manifest was asked for.
ACCESS = {
    "anybody by token": ({"": ""}, "token", {}, "pass", []),
    "a user by token": (
        {"ops": "pass:word"},
        "token",
        {"username": "ops", "password": "pass:word"},
        "pass",
        [],
    ),
    "a user by password": (
        {"ops": "secret"},
        "basic",
        {"username": "ops", "password": "secret"},
        "pass",
        [],
    ),
    "unknown user by token": ({"ops": "secret"}, "token", {}, "fail", ["image_registry_denied"]),
    "unknown user by password": ({"ops": "secret"}, "basic", {}, "fail", ["image_registry_denied"]),
    "a wrong password by token": (
        {"ops": "secret"},
        "token",
        {"username": "ops", "password": "wrong"},
        "fail",
        ["image_registry_denied"],
    ),
    "a wrong password": (
        {"ops": "secret"},
        "basic",
        {"username": "ops", "password": "wrong"},
        "fail",
        ["image_registry_denied"],
    ),
    "a file": ({"ops": "secret"}, "basic", {"auth_file": {"auth": "b3BzOnNlY3JldA=="}}, "pass", []),
    "a file with names": (
        {"ops": "secret"},
        "token",
        {"auth_file": {"username": "ops", "password": "secret"}},
        "pass",
        [],
    ),
    "a file with a refresh token": (
        {"refresh": "much.longer"},
        "token",
        {"auth_file": {"identitytoken": "much.longer"}},
        "pass",
        [],
    ),
    "a file for others": (
        {"ops": "secret"},
        "token",
        {"auth_file": None},
        "fail",
        ["image_registry_denied"],
    ),
}


@pytest.mark.parametrize("guard", ["token", "basic"])
@pytest.mark.parametrize("name", ["team/llm:v1", "team/new:v9"])
def test_a_push_is_begun_and_cancelled(world, guard, name):
    """Also to a repository that has no image yet."""
    users = {"ops": "secret", "guest": "secret"}
    with Registry(world.authority.context(), guard=guard, users=users) as registry:
        registry.pushers = ["ops"]
        image = f"{registry.host}/{name}"
        allowed = look(world, image, username="ops", password="secret", push=True)
        assert said(allowed) == ("pass", []), allowed.result
        assert "push allowed" in allowed.result.summary
        assert "not cancelled" not in allowed.result.summary
        refused = look(world, image, username="guest", password="secret", push=True)
        assert [one[:2] for one in said(refused)[1]] == [("image_registry_denied", "fail")]
        assert "access denied to push" in refused.result.summary
        assert registry.uploads == []
        methods = [method for method, path, _headers in registry.asked if "/uploads/" in path]
        assert methods == ["POST", "DELETE", "POST"]


def test_without_the_option_no_push_is_tried(world):
    with Registry(world.authority.context(), guard="token", users={"": ""}) as registry:
        outcome = look(world, f"{registry.host}/team/llm:v1")
        assert (
            "push" not in outcome.result.summary and "pushed" not in outcome.readings["images"][0]
        )
        assert {method for method, _path, _headers in registry.asked} == {"GET", "HEAD"}
        assert not [path for _method, path, _headers in registry.asked if "push" in path]


def test_an_anonymous_reader_needs_credentials_for_a_push(world):
    with Registry(
        world.authority.context(), guard="token", users={"": "", "ops": "secret"}
    ) as registry:
        registry.pushers = ["ops"]
        outcome = look(world, f"{registry.host}/team/llm:v1", push=True)
    assert [one[:2] for one in said(outcome)[1]] == [("image_registry_denied", "fail")]
    assert "no credentials are given" in outcome.result.summary


@pytest.mark.parametrize(
    "faults, status, words",
    [
        ({"cancel": 405}, "pass", "1 uploads not cancelled, the registry removes them"),
        ({"push": 503}, "unknown", "answered 503"),
        ({"push": (202, {}, {})}, "unknown", "answered 202"),
        ({"push": 404}, "fail", "no such repository to push to"),
    ],
)
def test_what_registries_answer_to_an_upload(world, faults, status, words):
    with Registry(world.authority.context(), faults=faults) as registry:
        outcome = look(world, f"{registry.host}/team/llm:v1", push=True)
    assert outcome.result.status == status and words in outcome.result.summary, outcome.result


def test_credentials_are_not_sent_to_the_address_of_an_upload_elsewhere(world):
    with Registry(world.authority.context()) as elsewhere:
        away = {"push": (202, {"Location": f"{elsewhere.url}/v2/team/llm/blobs/uploads/1"}, {})}
        with Registry(
            world.authority.context(), guard="basic", users={"ops": "secret"}, faults=away
        ) as registry:
            look(
                world, f"{registry.host}/team/llm:v1", username="ops", password="secret", push=True
            )
    assert [method for method, _path, _headers in elsewhere.asked] == ["DELETE"]
    assert all("Authorization" not in headers for _method, _path, headers in elsewhere.asked)


@pytest.mark.parametrize("open_api", [False, True], ids=["guarded", "open api"])
@pytest.mark.parametrize("case", ACCESS)
def test_who_may_pull(world, case, open_api):
    users, guard, given, status, codes = ACCESS[case]
    with Registry(
        world.authority.context(), guard=guard, users=users, open_api=open_api
    ) as registry:
        options = dict(given)
        if "auth_file" in given:
            host = registry.host if given["auth_file"] else "elsewhere.example.com"
            (world.root / "config.json").write_text(
                json.dumps({"auths": {host: given["auth_file"] or {"auth": "b3BzOnNlY3JldA=="}}}),
                encoding="utf-8",
            )
            options["auth_file"] = "/config.json"
        outcome = look(world, f"{registry.host}/team/llm:v1", **options)
    assert (outcome.result.status, [one.code for one in outcome.result.findings]) == (
        status,
        codes,
    ), outcome.result.summary
    kept = json.dumps([outcome.readings, outcome.result.to_dict(), outcome.options])
    assert not any(
        secret in kept
        for secret in ("pass:word", "secret", "wrong", "much.longer", "good.token", "b3Bz")
    ), "no secret is written down"
    if codes and not given:
        assert "no credentials are given" in outcome.result.summary


#: What a server does -> what is said.
SERVERS = {
    "trouble in its API": (
        lambda world: Registry(world.authority.context(), faults={"api": 503}),
        "unknown",
        "image_registry_error",
        "answered 503",
    ),
    "too many requests": (
        lambda world: Registry(world.authority.context(), faults={"manifest": 429}),
        "unknown",
        "image_registry_error",
        "answered 429",
    ),
    "token trouble": (
        lambda world: Registry(world.authority.context(), guard="token", faults={"token": 500}),
        "unknown",
        "image_registry_error",
        "answered 500, UNAVAILABLE",
    ),
    "a token with a line end": (
        lambda world: Registry(
            world.authority.context(),
            guard="token",
            faults={"token": (200, {}, {"token": "a\r\nX: b"})},
        ),
        "unknown",
        "image_registry_error",
        "answered without a token",
    ),
    "round and round": (
        lambda world: Registry(
            world.authority.context(), faults={"api": (302, {"Location": "/v2/"}, {})}
        ),
        "unknown",
        "image_registry_error",
        "redirects",
    ),
    "to plain HTTP": (
        lambda world: Registry(
            world.authority.context(), faults={"api": (302, {"Location": "ftp://127.0.0.1/"}, {})}
        ),
        "unknown",
        "image_registry_error",
        "without TLS",
    ),
    "not a registry": (
        lambda world: gateways.Raw(gateways.talking_nonsense),
        "unknown",
        "image_registry_error",
        "the answer is not a registry's",
    ),
    "hanging up": (
        lambda world: gateways.Raw(gateways.hanging_up),
        "unknown",
        "image_registry_error",
        "the answer is not a registry's",
    ),
    "expired": (
        lambda world: Registry(world.authority.context(-9, -3)),
        "fail",
        "image_registry_tls",
        "has expired",
    ),
    "not yet": (
        lambda world: Registry(world.authority.context(3, 9)),
        "fail",
        "image_registry_tls",
        "not valid yet",
    ),
    "another's name": (
        lambda world: Registry(world.authority.context(address="127.0.0.2")),
        "fail",
        "image_registry_tls",
        "for another name",
    ),
    "another's authority": (
        lambda world: Registry(Authority(world.root / "other").context()),
        "fail",
        "image_registry_tls",
        "not in ca_file",
    ),
}


@pytest.mark.parametrize("case", SERVERS)
def test_what_servers_do(world, case):
    make, status, code, words = SERVERS[case]
    with make(world) as server:
        outcome = look(world, f"127.0.0.1:{server.port}/team/llm:v1")
    assert [(one.code, one.status) for one in outcome.result.findings] == [(code, status)], (
        outcome.result
    )
    assert words in outcome.result.summary


def test_a_server_that_is_silent_costs_its_deadline_and_no_other_its_time(world):
    """One takes connections and never says a word of TLS, one drips its headers for ever; the third
    answers beside them.
    """
    with gateways.Raw(gateways.silent) as silent, gateways.Raw(
        gateways.dripping_headers
    ) as dripping:
        given = {**image_registry.CHECK.defaults(), "ca_file": world.ca}
        given["images"] = [f"127.0.0.1:{port}/a:b" for port in (silent.port, dripping.port)] + [
            f"{world.registry.host}/team/llm:v1"
        ]
        outcome = runner.run(
            [(image_registry.CHECK, given)], HostSettings(host_root=str(world.root), timeout=9.0)
        )[0]
    assert [(one.code, one.status, one.subject.name) for one in outcome.result.findings] == [
        ("image_registry_tls", "unknown", given["images"][0]),
        ("image_registry_error", "unknown", given["images"][1]),
    ], outcome.result
    assert outcome.result.measurements[0].labels == {"registry": world.registry.host}


def test_a_certificate_that_ends_soon_is_a_warning(world):
    with Registry(world.authority.context(last=5)) as registry:
        outcome = look(world, f"{registry.host}/team/llm:v1", f"{registry.host}/team/llm:latest")
    assert said(outcome) == ("warn", [("image_registry_tls", "warn", "fix_configuration")])
    assert "expires in 5 days" in outcome.result.summary


def test_an_authority_that_is_not_known_is_no_fault_of_the_registry(world):
    assert said(look(world, f"{world.registry.host}/team/llm:v1", ca_file=None)) == (
        "unknown",
        [("image_registry_tls", "unknown", "fix_configuration")],
    )
    assert said(look(world, f"{world.registry.host}/team/llm:v1", ca_file=None, insecure=True)) == (
        "pass",
        [],
    )
    assert said(look(world, f"{world.registry.host}/team/llm:v1", ca_file="/nowhere.pem")) == (
        "unknown",
        [("image_registry_error", "unknown", "fix_configuration")],
    )
    own = world.root / "etc/docker/certs.d" / world.registry.host
    own.mkdir(parents=True)
    (own / "ca.crt").write_bytes(world.authority.file.read_bytes())
    try:
        assert said(look(world, f"{world.registry.host}/team/llm:v1", ca_file=None)) == (
            "pass",
            [],
        ), "the container runtime trusts it"
    finally:
        (own / "ca.crt").unlink()


#: What a node's Python runs: the core alone, with images and a file of an authority as arguments.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from _health.node.framework import runner
from _health.node.framework.probe import HostSettings
from _health.node.checks import image_registry
options = dict(image_registry.CHECK.defaults(), images=sys.argv[3:], ca_file=sys.argv[2])
outcomes = runner.run([(image_registry.CHECK, options)], HostSettings())
print([finding.code for outcome in outcomes for finding in outcome.result.findings])
"""


@pytest.mark.parametrize("minor", [8, 13], ids=lambda minor: f"python3.{minor}")
def test_every_python_trusts_the_same_certificates(world, minor):
    """From 3.13 on Python wants more of a certificate than container runtimes do, by itself."""
    python = interpreter(minor)
    if not python:
        pytest.skip(f"needs Python 3.{minor}: neither on the path nor in pyenv")
    with Registry(world.authority.context(-9, -3)) as expired:
        argv = [
            python,
            "-B",
            "-c",
            PROGRAM,
            str(ROOT / "plugins/module_utils"),
            str(world.authority.file),
        ]
        done = subprocess.run(
            [*argv, f"{world.registry.host}/team/llm:v1", f"{expired.host}/team/llm:v1"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stdout == "['image_registry_tls']\n", done.stderr


def test_plain_http_only_where_it_stays_on_the_host(world):
    with Registry() as registry:
        outcome = look(world, f"{registry.host}/team/llm:v1")
        assert (
            said(outcome) == ("pass", [])
            and outcome.readings["images"][0]["plain"] is True
            and "without TLS" in outcome.result.summary
        )


def test_nobody_listens_and_no_such_name(world):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = look(world, f"127.0.0.1:{port}/team/llm:v1", "registry.invalid/team/llm:v1")
    found = {one.code: one for one in outcome.result.findings}
    assert (
        found["image_registry_unreachable"].status == "fail"
        and "Connection refused" in found["image_registry_unreachable"].message
    )
    # A machine without a resolver cannot tell; RFC 6761 says that the name does not exist.
    assert found["image_registry_unresolvable"].status in ("fail", "unknown")


def test_a_proxy_of_the_environment(world, monkeypatch):
    with Proxy(world.registry.port) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//me:secret@"))
        image = f"registry.test:{world.registry.port}/team/llm:v1"
        outcome = look(world, image)
        assert said(outcome) == ("pass", []), "the proxy knows what the name leads to"
        assert outcome.readings["images"][0]["proxy"] == proxy.url[
            7:
        ] and "secret" not in json.dumps(outcome.readings)
        assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in proxy.asked[0] and proxy.asked[
            0
        ].startswith(f"CONNECT registry.test:{world.registry.port} ")
        monkeypatch.setenv("no_proxy", "example.com,.test")
        assert said(look(world, image))[1][0][0] == "image_registry_unresolvable"
        monkeypatch.delenv("no_proxy")
        asked = len(proxy.asked)
        assert (
            said(look(world, f"{world.registry.host}/team/llm:v1")) == ("pass", [])
            and len(proxy.asked) == asked
        ), "what is on the host goes by no proxy"


def test_a_proxy_that_refuses(world, monkeypatch):
    with Proxy(status=403) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        outcome = look(world, "registry.example.com/team/llm:v1")
    assert (
        said(outcome) == ("unknown", [("image_registry_unreachable", "unknown", "watch")])
        and "403" in outcome.result.summary
    )


def test_the_module_takes_the_password_and_shows_it_to_nobody(world, tmp_path):
    with Registry(
        world.authority.context(), guard="basic", users={"ops": "very secret"}
    ) as registry:
        options = {
            "checks": ["image_registry"],
            "readings": True,
            "host_root": str(world.root),
            "options": {
                "image_registry": {
                    "images": [f"{registry.host}/team/llm:v1"],
                    "username": "ops",
                    "password": "very secret",
                    "ca_file": world.ca,
                }
            },
        }
        (tmp_path / "hosts").write_text(
            f"n1 ansible_connection=local ansible_python_interpreter={sys.executable}\n",
            encoding="utf-8",
        )
        controller = linked(tmp_path / "controller", Path(sys.executable).parent)
        done = controller.run(
            "ansible",
            "-i",
            tmp_path / "hosts",
            "all",
            "-m",
            "autopilot.gpu.node_checks",
            "-a",
            json.dumps(options),
            "-vvv",
            cwd=tmp_path,
        )
    assert "1 image at" in done.stdout and "very secret" not in done.stdout, done.stdout
