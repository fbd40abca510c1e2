# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""image_registry: references, credentials, challenges and proxies as text, and its judge as a
table.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import (
    registry_client,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    image_registry,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.image_reference import (
    reference_of,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    check = image_registry.CHECK
    return check.judge(decode(check.readings, readings), options)


SUM = "sha256:" + "0" * 64
DAY = 86400


@pytest.mark.parametrize(
    "text, registry_, host, repository, tag, digest",
    [
        ("registry.example.com/a:b", "registry.example.com", "registry.example.com", "a", "b", ""),
        (
            "registry.example.com:5000/team/sub-x/a__b",
            "registry.example.com:5000",
            "registry.example.com",
            "team/sub-x/a__b",
            "latest",
            "",
        ),
        (f"localhost/a@{SUM}", "localhost", "localhost", "a", "latest", SUM),
        (
            f"Registry.Example.com/a:b@{SUM}",
            "Registry.Example.com",
            "registry.example.com",
            "a",
            "b",
            SUM,
        ),
        ("r:5000/a", "r:5000", "r", "a", "latest", ""),
        ("[fd00::1]:5000/a:b", "[fd00::1]:5000", "fd00::1", "a", "b", ""),
        (" 10.0.0.1/a:b ", "10.0.0.1", "10.0.0.1", "a", "b", ""),
    ],
)
def test_references_are_read(text, registry_, host, repository, tag, digest):
    assert reference_of(text)[1:] == (registry_, host, repository, tag, digest)


@pytest.mark.parametrize(
    "text, words",
    [
        ("cuda:12.4", "full reference"),
        ("nvidia/cuda:12.4", "names no registry"),
        ("https://registry.example.com/a", "full reference"),
        ("", "full reference"),
        (5, "full reference"),
        ("registry.example.com/A:b", "full reference"),
        ("registry.example.com/a:b:c", "full reference"),
        ("registry.example.com/", "full reference"),
        ("registry.example.com:99999/a", "port 99999 is invalid"),
        ("registry.example.com/a@sha256:12", "full reference"),
        ("registry.example.com/a b", "full reference"),
        ("registry.example.com/a:b\nX-Header: y", "full reference"),
        ("registry.example.com/../../v2/x:y", "full reference"),
    ],
)
def test_what_is_no_full_reference_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        reference_of(text)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"images": ["cuda"]}, "^images: 'cuda' is invalid"),
        (
            {"images": [f"r.example.com/a:{number}" for number in range(33)]},
            "33 are invalid; expected at most 32",
        ),
        ({"username": "a"}, "username needs password"),
        ({"username": "a", "password": "b", "auth_file": "/c"}, "username excludes auth_file"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        image_registry.validate_options({**image_registry.CHECK.defaults(), **options})


@pytest.mark.parametrize(
    "headers, scheme, parameters",
    [
        ([], "", {}),
        (
            ['Bearer realm="https://a/token",service="s",scope="repository:x:pull,push"'],
            "bearer",
            {"realm": "https://a/token", "service": "s", "scope": "repository:x:pull,push"},
        ),
        (['Basic realm="a", Bearer realm="https://b"'], "bearer", {"realm": "https://b"}),
        (["Basic realm=x"], "basic", {"realm": "x"}),
        (["Negotiate"], "negotiate", {}),
        (['bearer REALM = "https://a"'], "bearer", {"realm": "https://a"}),
    ],
)
def test_challenges(headers, scheme, parameters):
    assert registry_client.challenge_of(headers) == (scheme, parameters)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "auths, found",
    [
        ({"r.example.com": {"auth": encoded("a:b:c")}}, {"basic": "a:b:c"}),
        ({"https://r.example.com/v1/": {"auth": encoded("a:b")}}, {"basic": "a:b"}),
        ({"https://r.example.com/v2/": {"username": "a", "password": "b"}}, {"basic": "a:b"}),
        (
            {
                "r.example.com": {"username": "a"},
                "r.example.com/team": {"username": "t", "password": "b"},
            },
            {"basic": "t:b"},
        ),
        (
            {
                "r.example.com/team/llm": {"identitytoken": "x"},
                "r.example.com/team": {"username": "t", "password": "b"},
            },
            {"refresh": "x"},
        ),
        (
            {
                "r.example.com/tea": {"username": "t"},
                "other.example.com": {"username": "t"},
                "r.example.com:5000": {"username": "t"},
            },
            None,
        ),
        ({"r.example.com": {}}, None),
        ({}, None),
    ],
)
def test_credentials_for_the_most_of_the_name(auths, found):
    assert (
        registry_client.credentials_of({"auths": auths}, reference_of("r.example.com/team/llm:v1"))
        == found
    )


@pytest.mark.parametrize(
    "config", [[], "x", {}, {"auths": []}, {"auths": {"r.example.com": {"auth": "\xff"}}}]
)
def test_what_is_no_file_of_credentials(config):
    with pytest.raises(ValueError):
        registry_client.credentials_of(config, reference_of("r.example.com/team/llm:v1"))


@pytest.mark.parametrize(
    "environment, host, proxy",
    [
        ({}, "r.example.com", None),
        ({"https_proxy": "http://p.example.com:3128"}, "r.example.com", ("p.example.com", 3128)),
        ({"HTTPS_PROXY": "p.example.com:3128"}, "r.example.com", ("p.example.com", 3128)),
        ({"http_proxy": "http://p.example.com:3128"}, "r.example.com", None),
        ({"https_proxy": "http://p:1", "no_proxy": "example.com"}, "r.example.com", None),
        ({"https_proxy": "http://p:1", "no_proxy": ".example.com, other"}, "r.example.com", None),
        ({"https_proxy": "http://p:1", "no_proxy": "*.example.com:443"}, "r.example.com", None),
        (
            {"https_proxy": "http://p:1", "no_proxy": "ample.com,r.example.com.org,,"},
            "r.example.com",
            ("p", 1),
        ),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "r.example.com", None),
        ({"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "10.1.2.3", None),
        ({"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "11.1.2.3", ("p", 1)),
        ({"https_proxy": "http://p:1"}, "localhost", None),
        ({"https_proxy": "http://p:1"}, "127.0.0.1", None),
    ],
)
def test_proxies(environment, host, proxy, monkeypatch):
    for name in ("https_proxy", "http_proxy", "no_proxy"):
        for one in (name, name.upper()):
            monkeypatch.delenv(one, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = registry_client.proxy_for(host, "https")
    assert (found and (found.host, found.port)) == proxy


def test_a_proxy_of_a_kind_that_we_do_not_speak(monkeypatch):
    monkeypatch.setenv("https_proxy", "socks5://me:secret@p.example.com:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(registry_client.Trouble) as raised:
        registry_client.proxy_for("r.example.com", "https")
    assert (
        raised.value.message
        == "https_proxy: socks5://p.example.com is invalid; expected http://host:port"
    )


# ---- the judge ----


def image(**more):
    return {
        "image": "r.example.com/a:b",
        "registry": "r.example.com",
        "addresses": ["10.0.0.1"],
        "proxy": None,
        "step": "manifest",
        "tls": {"version": "TLSv1.3", "expires": 100 * DAY, "verified": True},
        "digest": SUM,
        "seconds": 0.2,
        **more,
    }


def trouble(step, kind, host="r.example.com", **more):
    return {
        key: value
        for key, value in image(
            trouble={"step": step, "kind": kind, "host": host, "message": "so it is"}, **more
        ).items()
        if key != "seconds"
    }


HUNG = {
    "what": "resolving r.example.com",
    "seconds": 27.5,
    "allowed_seconds": 27.5,
    "abandoned_pid": None,
}

#: What is read of an image -> status, code, action.
TABLE = {
    "well": (image(), "pass", None, None),
    "no such name": (
        trouble("resolve", "no_such_name"),
        "fail",
        "image_registry_unresolvable",
        "fix_configuration",
    ),
    "no resolver": (
        trouble("resolve", "resolver_failed"),
        "unknown",
        "image_registry_unresolvable",
        "watch",
    ),
    "hung resolver": (
        {**trouble("x", "y"), "trouble": None, "hung": HUNG},
        "unknown",
        "image_registry_unresolvable",
        "watch",
    ),
    "hung handshake": (
        {**image(), "seconds": None, "hung": dict(HUNG, what="TLS with r.example.com")},
        "unknown",
        "image_registry_tls",
        "watch",
    ),
    "hung elsewhere": (
        {**image(), "seconds": None, "hung": dict(HUNG, what="asking r.example.com")},
        "unknown",
        "image_registry_error",
        "watch",
    ),
    "crashed": (
        {"image": "a", "crashed": {"what": "start", "signal": 9}},
        "unknown",
        "image_registry_error",
        "watch",
    ),
    "refused": (
        trouble("connect", "refused"),
        "fail",
        "image_registry_unreachable",
        "fix_configuration",
    ),
    "no route": (
        trouble("connect", "no_route"),
        "fail",
        "image_registry_unreachable",
        "fix_configuration",
    ),
    "silent": (
        trouble("connect", "timeout"),
        "fail",
        "image_registry_unreachable",
        "fix_configuration",
    ),
    "another error": (
        trouble("connect", "other"),
        "unknown",
        "image_registry_unreachable",
        "watch",
    ),
    "refused by its token service": (
        trouble("connect", "refused", "auth.example.com"),
        "fail",
        "image_registry_unreachable",
        "fix_configuration",
    ),
    "proxy": (trouble("proxy", "refused"), "unknown", "image_registry_unreachable", "watch"),
    "proxy not known": (
        trouble("proxy", "not_known"),
        "unknown",
        "image_registry_unreachable",
        "fix_configuration",
    ),
    "expired": (trouble("tls", "expired"), "fail", "image_registry_tls", "fix_configuration"),
    "wrong name": (trouble("tls", "wrong_name"), "fail", "image_registry_tls", "fix_configuration"),
    "not trusted": (
        trouble("tls", "not_trusted"),
        "unknown",
        "image_registry_tls",
        "fix_configuration",
    ),
    "no TLS": (trouble("tls", "no_tls"), "unknown", "image_registry_tls", "fix_configuration"),
    "silent in TLS": (trouble("tls", "silent"), "unknown", "image_registry_tls", "watch"),
    "denied a token": (
        trouble("token", "denied"),
        "fail",
        "image_registry_denied",
        "fix_configuration",
    ),
    "denied": (trouble("manifest", "denied"), "fail", "image_registry_denied", "fix_configuration"),
    "denied its API": (trouble("api", "denied"), "unknown", "image_registry_error", "watch"),
    "not there": (trouble("manifest", "not_found"), "fail", "image_not_found", "fix_configuration"),
    "no API there": (trouble("api", "not_found"), "unknown", "image_registry_error", "watch"),
    "busy": (trouble("manifest", "busy"), "unknown", "image_registry_error", "watch"),
    "file not read": (
        trouble("credentials", "not_read"),
        "unknown",
        "image_registry_error",
        "fix_configuration",
    ),
    "newer than this version": (
        trouble("moon", "full"),
        "unknown",
        "image_registry_error",
        "watch",
    ),
    "broken off": (
        {"image": "r.example.com/a:b", "registry": "r.example.com"},
        "unknown",
        "image_registry_error",
        "watch",
    ),
    "ends in 13 days": (
        image(tls={"expires": 13 * DAY}),
        "warn",
        "image_registry_tls",
        "fix_configuration",
    ),
    "ends in 15 days": (image(tls={"expires": 15 * DAY}), "pass", None, None),
    "no certificate": (image(tls=None, plain=True), "pass", None, None),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_image_has_its_finding(case):
    read, status, code, action = TABLE[case]
    result = judge({"images": [image(image="other"), read], "now": 0.0}, {"images": ["x"]})
    assert (result.status, [(one.code, one.action) for one in result.findings]) == (
        status,
        [(code, action)] if code else [],
    )


def test_words_of_findings():
    said = (
        judge({"images": [trouble("connect", "refused", "auth.example.com")]}, {})
        .findings[0]
        .message
    )
    assert said == "connection failed twice: at auth.example.com: so it is"
    assert judge({"images": [trouble("tls", "not_trusted")]}, {"ca_file": "/a"}).status == "fail"
    assert (
        "no credentials are given for this registry (options auth_file, or username and password)"
        in judge({"images": [trouble("manifest", "denied")]}, {}).summary
    )
    assert (
        "no credentials"
        not in judge(
            {"images": [trouble("manifest", "denied", credentials="auth_file")]}, {}
        ).summary
    )


def test_nothing_to_look_up_and_nothing_read():
    assert judge({"images": []}, {}).status == "skip"
    assert (
        judge({}, {}).status
        == judge({"hung": {}}, {}).status
        == judge({"images": 5}, {}).status
        == "unknown"
    )


KEYS = st.sampled_from(
    [
        "image",
        "registry",
        "trouble",
        "step",
        "kind",
        "message",
        "tls",
        "expires",
        "hung",
        "what",
        "seconds",
        "crashed",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"images": st.lists(JSON, max_size=3) | JSON, "now": JSON}))
def test_any_readings_are_judged_and_never_pass_unread(readings):
    result = judge(readings, {"ca_file": None})
    images = readings["images"] if isinstance(readings["images"], list) else [None]
    assert result.status != "pass" or all(
        isinstance(one, dict) and isinstance(one.get("seconds"), (int, float)) for one in images
    )
    assert all(one.action != "none" for one in result.findings if one.status == "fail")
