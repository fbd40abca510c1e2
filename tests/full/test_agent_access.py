# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gets in: every kind of identity at every path, decided by a real API server's TokenReview and
SubjectAccessReview.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time

import pytest

from agent_world import Agent, NoDeepDiagnostics, result, settings  # noqa: E402
from _health.knowledge.cluster import AUDIENCE  # noqa: E402
from autopilot_agent.http import access, http_api  # noqa: E402
from autopilot_agent.fleet.agent_token import PEER_HEADER  # noqa: E402
from autopilot_agent.http.access import AGENTS, Access, Denied  # noqa: E402
from autopilot_agent.cluster.kube import Kube  # noqa: E402
from autopilot_agent.http.limits import TooMany  # noqa: E402

NAMESPACE, OTHER = "agent-access", "agent-access-other"
CHECKS = (
    "gpu_count",
    "remapped_rows",
    "gpu_power",
    "pcie_bandwidth",
    "gpu_memory",
    "dcgm_diag",
    "ping_mesh",
    "iperf3_pairs",
    "volume_claim",
)
PEER = {PEER_HEADER: "gpu02"}


def role(name, *rules):
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": list(rules),
    }


def binding(name, to, *accounts):
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": to},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": one} for one in accounts
        ],
    }


def account(name, namespace=NAMESPACE):
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }


ROLES = [
    role(f"access-{purpose}", {"nonResourceURLs": [path], "verbs": [verb]})
    for purpose, (path, verb) in access.PURPOSES.items()
] + [
    role(
        "access-agent",
        {
            "apiGroups": ["authentication.k8s.io"],
            "resources": ["tokenreviews"],
            "verbs": ["create"],
        },
        {
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["subjectaccessreviews"],
            "verbs": ["create"],
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},
    )
]
BINDINGS = [
    binding("access-agent", "access-agent", "autopilot"),
    binding("access-admin", "cluster-admin", "admin"),
    *(
        binding(
            f"access-{purpose}",
            f"access-{purpose}",
            purpose,
            *(["both"] if purpose != "metrics" else []),
        )
        for purpose in access.PURPOSES
    ),
]


@pytest.fixture(scope="module")
def cluster(lab):
    """The lab with the accounts, roles and bindings of this file."""
    accounts = [
        account(name) for name in ("autopilot", "admin", "nobody", "both", "gone", *access.PURPOSES)
    ] + [account("autopilot", OTHER)]
    lab.apply(
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in (NAMESPACE, OTHER)
        )
    )
    lab.apply(*accounts, *ROLES, *BINDINGS)
    yield lab
    for made in ROLES + BINDINGS:
        lab.kubectl("delete", made["kind"], made["metadata"]["name"], "--wait=false", check=False)
    lab.kubectl("delete", "namespace", NAMESPACE, OTHER, "--wait=false", check=False)


@pytest.fixture
def agent_of(cluster, tmp_path):
    """``agent_of(says, variables) -> Agent`` that asks the lab's API server with the agents'
    service account.
    """
    own, peer = tmp_path / "token", tmp_path / "peer"
    own.write_text(cluster.token(NAMESPACE, "autopilot"))
    peer.write_text(cluster.token(NAMESPACE, "autopilot", AGENTS))

    def made(says=(), **variables):
        return Agent(
            settings(
                **{
                    "NAMESPACE": NAMESPACE,
                    "AUTOPILOT_AUTH": "required",
                    "AUTOPILOT_API_SERVER": cluster.server,
                    "AUTOPILOT_API_CA": str(cluster.ca or ""),
                    "AUTOPILOT_API_TOKEN_FILE": str(own),
                    "AUTOPILOT_PEER_TOKEN_FILE": str(peer),
                    **variables,
                }
            ),
            says,
        )

    made.own, made.peer = own, peer
    return made


def part(text):
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def signed(token, key, **changes):
    """The token with other claims, signed by the API server's own key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    head, claims, _signature = token.split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    text = f"{head}.{part(json.dumps({**told, **changes}).encode())}"
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    numbers = utils.decode_dss_signature(private.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{part(b''.join(number.to_bytes(32, 'big') for number in numbers))}"


def unsigned_or_invalid(head, claims):
    """Headers without a token that the API server has signed; head and claims are an admin's."""
    return {
        "empty": {"Authorization": "Bearer "},
        "malformed": {"Authorization": "Bearer not a token"},
        "made up": {"Authorization": "Bearer " + "a1" * 100},
        "forged": {"Authorization": f"Bearer {head}.{claims}.{part(b'x' * 256)}"},
        "unsigned": {
            "Authorization": "Bearer " + part(b'{"alg":"none","typ":"JWT"}') + f".{claims}."
        },
    }


def out_of_time(admin, peer, key):
    """Headers with tokens signed by the API server's own key, of which only one is valid now."""
    now = int(time.time())
    past = {"exp": now - 60, "iat": now - 600, "nbf": now - 600}
    future = {"exp": now + 7200, "iat": now + 3600, "nbf": now + 3600}
    return {
        "expired": {"Authorization": f"Bearer {signed(admin, key, **past)}"},
        "not yet valid": {"Authorization": f"Bearer {signed(admin, key, **future)}"},
        # The same by the same key, and valid: what is refused is refused for its times.
        "admin, signed by hand": {"Authorization": f"Bearer {signed(admin, key, exp=now + 3000)}"},
        "expired agent": {"Authorization": f"Bearer {signed(peer, key, **past)}", **PEER},
    }


def identities(lab):
    """Name -> headers."""
    tokens = {
        name: lab.token(NAMESPACE, name, AUDIENCE)
        for name in (
            "nobody",
            "checks",
            "diagnostics",
            "both",
            "metrics",
            "admin",
            "autopilot",
            "gone",
        )
    }
    lab.kubectl("-n", NAMESPACE, "delete", "serviceaccount", "gone")
    head, claims, _signature = tokens["admin"].split(".")
    peer, foreign = lab.token(NAMESPACE, "autopilot", AGENTS), lab.token(OTHER, "autopilot", AGENTS)
    found = {
        "none": {},
        "no bearer": {"Authorization": f"Basic {tokens['admin']}"},
        **unsigned_or_invalid(head, claims),
        "deleted account": {"Authorization": f"Bearer {tokens['gone']}"},
        "no rights": {"Authorization": f"Bearer {tokens['nobody']}"},
        **{
            name: {"Authorization": f"bearer {tokens[name]}"}
            for name in ("checks", "diagnostics", "both", "metrics")
        },
        "cluster admin": {"Authorization": f"Bearer {tokens['admin']}"},
        "agent, as a user": {"Authorization": f"Bearer {tokens['autopilot']}"},
        "agent, by its token for the API server": {
            "Authorization": f"Bearer {tokens['autopilot']}",
            **PEER,
        },
        "admin, who says he is an agent": {"Authorization": f"Bearer {tokens['admin']}", **PEER},
        "agent": {"Authorization": f"Bearer {peer}", **PEER},
        "agent, without saying so": {"Authorization": f"Bearer {peer}"},
        "agent of another namespace": {"Authorization": f"Bearer {foreign}", **PEER},
        "says it is an agent": dict(PEER),
    }
    key = next(lab.directory.rglob("accounts.key"), None)
    if key:
        found.update(out_of_time(tokens["admin"], peer, key))
    return found


#: What each path takes, for the table: the right to start checks, to start diagnostics, both, to
#: read metrics, or nothing.
PATHS = {
    "/status?host=gpu01": "checks",
    "/status?host=gpu01,gpu02": "checks",
    "/status": "checks",
    "/remapped": "checks",
    "/dcgm": "checks",
    "/dcgm?r=3": "diagnostics",
    "/status?host=gpu01&check=dcgm&r=2": "diagnostics",
    "/status?host=gpu01&check=pciebw,dcgm&r=2": "both",
    "/iperf": "diagnostics",
    "/pvc": "checks",
    "/ping": "checks",
    "/invasive": "diagnostics",
    "/gpumem": "checks",
    "/nothing": "anybody known",
    "/metrics": "metrics",
    "/healthz": "anybody",
    "/readyz": "anybody",
}
RIGHTS = {
    "no rights": set(),
    "checks": {"checks"},
    "diagnostics": {"diagnostics"},
    "both": {"checks", "diagnostics", "both"},
    "metrics": {"metrics"},
    "cluster admin": {"checks", "diagnostics", "both", "metrics"},
    "admin, signed by hand": {"checks", "diagnostics", "both", "metrics"},
    "agent, as a user": set(),
}
#: Agents may ask for the own node's part, whatever it is, and for nothing else.
OF_AGENTS = {
    path for path in PATHS if path.startswith("/status?host=gpu01") and "gpu02" not in path
}
WELL = {"/nothing": 404}


def expected(identity, path):
    takes = PATHS[path]
    if takes == "anybody":
        return 200
    if identity == "agent":
        # The right to the metrics is the service account's own, and it has none.
        return WELL.get(path) or (200 if path in OF_AGENTS or path == "/metrics" else 403)
    if identity == "agent of another namespace":
        return 403
    if identity not in RIGHTS:
        return 401
    if takes == "anybody known":
        return WELL[path]
    return 200 if takes in RIGHTS[identity] else 403


@pytest.fixture(scope="module")
def table(cluster, tmp_path_factory):
    """Identity -> path -> code, asked of one running agent."""
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "own").write_text(cluster.token(NAMESPACE, "autopilot"))
    (directory / "peer").write_text(cluster.token(NAMESPACE, "autopilot", AGENTS))
    chosen = settings(
        NAMESPACE=NAMESPACE,
        AUTOPILOT_AUTH="required",
        AUTOPILOT_API_SERVER=cluster.server,
        AUTOPILOT_API_CA=str(cluster.ca or ""),
        AUTOPILOT_API_TOKEN_FILE=str(directory / "own"),
        AUTOPILOT_PEER_TOKEN_FILE=str(directory / "peer"),
        AUTOPILOT_OPEN_METRICS="false",
    )
    known = identities(cluster)

    async def ask():
        deep = NoDeepDiagnostics()
        async with Agent(chosen, {check: result(check) for check in CHECKS}, deep=deep) as agent:
            codes = {}
            for identity, headers in known.items():
                codes[identity] = {}
                for path in PATHS:
                    ran = len(agent.runs), len(deep.asked)
                    status, _headers, text = await agent.get(path, headers=headers)
                    started = (len(agent.runs), len(deep.asked)) != ran
                    codes[identity][path] = status
                    assert started == (
                        status == 200
                        and PATHS[path] not in ("metrics", "anybody")
                        and path not in ("/status",)
                    ), (identity, path, text)
                    token = headers.get("Authorization", "").partition(" ")[2]
                    assert not token or token not in text
            return codes

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AT_ONCE", "PEER_AT_ONCE"):
            patch.setattr(http_api, name, 10000.0)
        yield asyncio.run(ask())


def test_the_table(table, capsys):
    width = max(map(len, table))
    with capsys.disabled():
        print(
            "\n\n"
            + " " * width
            + "  "
            + "  ".join(f"({number})" for number in range(1, len(PATHS) + 1))
        )
        for identity, codes in table.items():
            print(
                f"{identity:{width}}  "
                + "  ".join(
                    f"{code:<{len(str(number)) + 2}}"
                    for number, code in enumerate(codes.values(), 1)
                )
            )
        print(
            "".join(
                f"\n({number}) {path}: {takes}"
                for number, (path, takes) in enumerate(PATHS.items(), 1)
            )
        )
    assert len(table) >= 21


@pytest.mark.parametrize(
    "identity",
    [
        *RIGHTS,
        "none",
        "no bearer",
        "empty",
        "malformed",
        "made up",
        "forged",
        "unsigned",
        "deleted account",
        "expired",
        "not yet valid",
        "expired agent",
        "agent",
        "agent, without saying so",
        "agent of another namespace",
        "says it is an agent",
        "agent, by its token for the API server",
        "admin, who says he is an agent",
    ],
)
def test_nobody_gets_in(table, identity):
    if identity not in table:
        pytest.skip("needs the key with which the API server signs tokens")
    assert table[identity] == {path: expected(identity, path) for path in PATHS}


# ---- what is remembered ----


class Api:
    """The API server, with a count of what it is asked."""

    def __init__(self, kube):
        self.kube, self.asked = kube, 0

    async def create(self, path, body, query=None, deadline=10.0):
        self.asked += 1
        return await self.kube.create(path, body, query, deadline)


@contextlib.asynccontextmanager
async def judging(agent_of, cluster):
    """(access, api, clock), with a clock that the test sets forward."""
    kube, now = Kube(cluster.server, str(cluster.ca or ""), str(agent_of.own)), [1000.0]
    api = Api(kube)
    try:
        yield Access(api, NAMESPACE, AUDIENCE, str(agent_of.peer), lambda: now[0]), api, now
    finally:
        await kube.close()


async def code(judge, token, purpose="checks", address="10.0.0.1"):
    """What a request with this token would be answered."""
    try:
        await judge.permit(await judge.identify(f"Bearer {token}", False, address), purpose)
    except Denied as error:
        return error.status
    except TooMany:
        return 429
    return 200


def test_a_yes_is_remembered_for_a_minute_and_a_no_for_ten_seconds(agent_of, cluster):
    async def ask():
        async with judging(agent_of, cluster) as (judge, api, now):
            good, poor = (cluster.token(NAMESPACE, name, AUDIENCE) for name in ("checks", "nobody"))
            seen = [await asyncio.gather(*(code(judge, good) for _one in range(20))), api.asked]
            now[0] += 59
            seen += [await code(judge, good), api.asked]
            now[0] += 2
            seen += [await code(judge, good), api.asked, await code(judge, poor)]
            cluster.apply(binding("access-poor", "access-checks", "nobody"))
            try:
                seen += [await code(judge, poor)]
                now[0] += 11
                while await code(judge, poor) != 200:
                    now[0] += 11
                    await asyncio.sleep(0.2)
            finally:
                cluster.kubectl("delete", "clusterrolebinding", "access-poor")
            while await code(judge, poor) != 403:
                now[0] += 61
                await asyncio.sleep(0.2)
            return seen

    assert asyncio.run(ask()) == [[200] * 20, 2, 200, 2, 200, 4, 403, 403]


def test_without_the_api_server_only_who_was_let_in_before_gets_in_and_for_five_minutes(
    agent_of, cluster
):
    async def ask():
        async with judging(agent_of, cluster) as (judge, api, now):
            good, late, poor = (
                cluster.token(NAMESPACE, name, AUDIENCE) for name in ("checks", "both", "nobody")
            )
            before = [
                await code(judge, good),
                await code(judge, poor),
                await code(judge, "made-up"),
            ]
            cluster.stop_api()
            try:
                now[0] += 61
                while_away = [
                    await code(judge, good),
                    await code(judge, late),
                    await code(judge, poor),
                    await code(judge, "made-up"),
                ]
                asked = api.asked
                while_away += [await code(judge, good), api.asked - asked]
                now[0] += 230
                while_away += [await code(judge, good)]
                now[0] += 15
                while_away += [await code(judge, good)]
            finally:
                cluster.start_api()
            now[0] += 6
            return (
                before,
                while_away,
                [
                    await code(judge, good),
                    await code(judge, late),
                    await code(judge, poor),
                    await code(judge, "made-up"),
                ],
            )

    before, while_away, after = asyncio.run(ask())
    assert before == [200, 403, 401]
    # Who was let in; who was not there yet, who may nothing, who is not known; who was let in,
    # without asking again; at 4:51; at 5:06.
    assert while_away == [200, 503, 503, 503, 200, 0, 200, 503]
    assert after == [200, 200, 403, 401]


def test_who_lost_the_right_does_not_get_it_back_when_the_api_server_goes_away(agent_of, cluster):
    async def ask():
        async with judging(agent_of, cluster) as (judge, _api, now):
            cluster.apply(binding("access-poor", "access-checks", "nobody"))
            poor = cluster.token(NAMESPACE, "nobody", AUDIENCE)
            while await code(judge, poor) != 200:
                now[0] += 11
                await asyncio.sleep(0.2)
            cluster.kubectl("delete", "clusterrolebinding", "access-poor")
            while await code(judge, poor) != 403:
                now[0] += 61
                await asyncio.sleep(0.2)
            cluster.stop_api()
            try:
                now[0] += 11
                return await code(judge, poor)
            finally:
                cluster.start_api()

    assert asyncio.run(ask()) == 503


def test_a_flood_of_made_up_tokens_is_not_passed_on_and_displaces_nobody(agent_of, cluster):
    async def ask():
        async with judging(agent_of, cluster) as (judge, api, _now):
            good = cluster.token(NAMESPACE, "checks", AUDIENCE)
            first = await code(judge, good)
            before = api.asked
            codes = await asyncio.gather(
                *(code(judge, f"made-up-{number}", address="10.0.0.9") for number in range(3000))
            )
            passed_on = api.asked - before
            return (
                first,
                {one: codes.count(one) for one in set(codes)},
                passed_on,
                await code(judge, good),
                api.asked - before - passed_on,
            )

    first, codes, passed_on, again, more = asyncio.run(ask())
    assert (first, again, more) == (200, 200, 0)
    assert set(codes) == {401, 429} and passed_on == codes[401] <= 60


def test_an_agent_that_may_not_ask_lets_nobody_in(agent_of, cluster, tmp_path):
    """Its service account is not bound: that is no yes."""
    (tmp_path / "poor").write_text(cluster.token(NAMESPACE, "nobody"))

    async def ask():
        made = agent_of(
            {"remapped_rows": result("remapped_rows")},
            AUTOPILOT_API_TOKEN_FILE=str(tmp_path / "poor"),
        )
        async with made as agent:
            answer = await agent.get(
                "/remapped",
                headers={"Authorization": f"Bearer {cluster.token(NAMESPACE, 'admin', AUDIENCE)}"},
            )
            return answer, agent.runs

    (status, headers, text), runs = asyncio.run(ask())
    assert (status, headers["Retry-After"], runs) == (503, "10", [])
    assert "could not be asked who you are" in text


def test_prometheus_shows_the_token_of_its_pod(agent_of, cluster):
    """A token for the API server counts for the metrics and for nothing else."""

    async def ask():
        async with agent_of({}, AUTOPILOT_OPEN_METRICS="false") as agent:
            words = {"Authorization": f"Bearer {cluster.token(NAMESPACE, 'metrics')}"}
            return [(await agent.get(path, headers=words))[0] for path in ("/metrics", "/remapped")]

    assert asyncio.run(ask()) == [200, 401]


def test_a_token_for_an_audience_of_its_own(agent_of, cluster):
    async def ask():
        async with agent_of({"remapped_rows": result("remapped_rows")}) as agent:
            tokens = [
                cluster.token(NAMESPACE, "checks", AUDIENCE),
                cluster.token(NAMESPACE, "checks"),
                cluster.token(NAMESPACE, "checks", AGENTS),
            ]
            return [
                (await agent.get("/remapped", headers={"Authorization": f"Bearer {token}"}))[0]
                for token in tokens
            ]

    assert asyncio.run(ask()) == [200, 401, 401]
