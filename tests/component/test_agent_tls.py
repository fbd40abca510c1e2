# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent over TLS: its certificate is the Service's, renewals are served without a restart, and
agents trust no other authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import ssl

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from agent_world import Agent, result, settings  # noqa: E402
from autopilot_agent.fleet.agent_tls import end_of  # noqa: E402
from autopilot_agent.fleet.iperf_requests import IperfRequester, Refused  # noqa: E402
from autopilot_agent.fleet.peers import Agent as Peer  # noqa: E402
from autopilot_agent.service import Service  # noqa: E402
from lab.pki import Authority

from ansible_collections.autopilot.gpu.plugins.module_utils._agent_certificate import (
    CA_LIFE,
    make_ca,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask

NAME = "autopilot-healthchecks.autopilot.svc"
SAYS = {"gpu_count": result("gpu_count")}


@pytest.fixture
def directory(tmp_path):
    """As the kubelet mounts a Secret of the type kubernetes.io/tls."""
    (tmp_path / "tls").mkdir()
    Authority(tmp_path / "tls").issue(tmp_path / "tls/tls", NAME, names=[NAME])
    return tmp_path / "tls"


async def served(agent, context):
    """The serial number of the agent's certificate."""
    _reader, writer = await asyncio.open_connection(
        "127.0.0.1", agent.listening.port, ssl=context, server_hostname=NAME
    )
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return found


def test_a_caller_that_trusts_the_authority_is_answered_and_the_text_has_the_url(directory):
    async def ask():
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        async with Agent(settings(AUTOPILOT_TLS_DIR=str(directory)), SAYS) as agent:
            told = await agent.get(
                "/status?host=gpu01&check=gpu_count", ssl=context, server_hostname=NAME
            )
            with pytest.raises(aiohttp.ClientError):
                await agent.get("/healthz")
            return told

    status, _headers, text = asyncio.run(ask())
    assert status == 200 and "url(s): https://127.0.0.1:3333/status?host=gpu01" in text


def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(directory, tmp_path):
    async def ask():
        chosen = settings(AUTOPILOT_TLS_DIR=str(directory))
        async with Agent(chosen, SAYS) as agent:
            context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
            first = await served(agent, context)
            (directory / "tls.crt").write_text("broken")
            os.utime(directory / "tls.crt", (1, 1))
            second = await served(agent, context)
            Authority(directory).issue(directory / "tls", NAME, names=[NAME])
            os.utime(directory / "tls.crt", (2, 2))
            renewed = ssl.create_default_context(cafile=str(directory / "ca.crt"))
            return first, second, await served(agent, renewed)

    first, second, third = asyncio.run(ask())
    assert first == second != third


def test_agents_verify_each_other(directory, tmp_path):
    (tmp_path / "foreign").mkdir()
    Authority(tmp_path / "foreign")

    async def refusal(trusted):
        async with Agent(settings(AUTOPILOT_TLS_DIR=str(directory)), SAYS) as agent:
            asking = IperfRequester(settings(AUTOPILOT_TLS_DIR=str(trusted)))
            with pytest.raises(Refused) as caught:
                await asking.server(Peer("gpu01", "127.0.0.1", agent.listening.port, True), 0.1)
            return str(caught.value)

    assert "seconds: '0' is invalid" in asyncio.run(refusal(directory))
    assert "certificate verify failed" in asyncio.run(refusal(tmp_path / "foreign"))


def test_status_verifies_the_agent_at_any_address(directory, tmp_path):
    """As over a forwarded port: the address is not in the certificate, the Service is."""
    (tmp_path / "foreign").mkdir()
    Authority(tmp_path / "foreign")

    async def answer(trust):
        async with Agent(settings(AUTOPILOT_TLS_DIR=str(directory)), SAYS) as agent:
            parameters = {"host": "gpu01", "check": "gpu_count"}
            return await asyncio.to_thread(ask.ask, agent.url, "token", parameters, 30.0, trust)

    published = (directory / "ca.crt").read_text(encoding="ascii")
    for trust in (ask.Trust(str(directory / "ca.crt"), NAME), ask.Trust(None, NAME, published)):
        assert [row["node"] for row in asyncio.run(answer(trust)).rows] == ["gpu01"]
    for trust in (
        ask.Trust(str(tmp_path / "foreign/ca.crt"), NAME),
        ask.Trust(str(directory / "ca.crt")),
    ):
        with pytest.raises(ask.RequestError, match="certificate verify failed"):
            asyncio.run(answer(trust))


def test_the_end_of_the_certificate_is_a_metric(directory):
    path = directory / "tls.crt"
    wanted = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    chain = path.read_text(encoding="ascii") + (directory / "ca.crt").read_text(encoding="ascii")
    assert end_of(chain) == end_of(f"subject=agents\n{chain}") == wanted
    chosen = settings(AUTOPILOT_TLS_DIR=str(directory), AUTOPILOT_MARK_NODES="false")
    name = "autopilot_agent_certificate_expiry_timestamp_seconds"

    def told(exposition):
        text, _form = exposition.render("")
        lines = [line for line in text.decode().splitlines() if line.startswith(name)]
        return [float(line.rpartition(" ")[2]) for line in lines]

    exposition = Service(chosen).exposition
    assert told(exposition) == [wanted]
    path.write_text("broken", encoding="ascii")
    os.utime(path, (1, 1))
    assert told(exposition) == []
    assert told(Service(settings(AUTOPILOT_MARK_NODES="false")).exposition) == []


def test_after_2049_the_end_of_a_certificate_has_four_digits_of_the_year(tmp_path):
    now = datetime.datetime(2049, 12, 1, tzinfo=datetime.timezone.utc)
    made = make_ca(now).certificate
    text = made.public_bytes(serialization.Encoding.PEM).decode()
    assert end_of(text) == made.not_valid_after_utc.timestamp() == (now + CA_LIFE).timestamp()
    for cut in (f"{text[:200]}\n-----END CERTIFICATE-----", "-----END CERTIFICATE-----", ""):
        with pytest.raises((ValueError, IndexError)):
            end_of(cut)


def free_ports(count):
    """Ports that are free now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _number in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def test_requests_metrics_and_probes_are_served_with_tls(directory):
    names = ("AUTOPILOT_PORT", "AUTOPILOT_METRICS_PORT", "AUTOPILOT_READINESS_PORT")
    ports = dict(zip(names, free_ports(3)))

    async def answers():
        variables = {name: str(port) for name, port in ports.items()}
        service = Service(
            settings(
                AUTOPILOT_TLS_DIR=str(directory),
                AUTOPILOT_MARK_NODES="false",
                AUTOPILOT_INVASIVE_SECONDS="0",
                **variables,
            )
        )
        trust = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        await service._start()
        try:
            async with aiohttp.ClientSession() as session:
                found = []
                for port, path in zip(ports.values(), ("/healthz", "/metrics", "/readyz")):
                    with pytest.raises(aiohttp.ClientError):
                        await session.get(f"http://127.0.0.1:{port}{path}")
                    async with session.get(
                        f"https://127.0.0.1:{port}{path}", ssl=trust, server_hostname=NAME
                    ) as answer:
                        found.append(answer.status)
                return found
        finally:
            await service._leave()

    assert asyncio.run(answers()) == [200, 200, 200]


def test_a_request_with_too_long_a_line_is_answered_over_tls(directory):
    """The connection is refused in front of the HTTP library, which TLS cannot half close."""

    async def ask():
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        async with Agent(settings(AUTOPILOT_TLS_DIR=str(directory)), SAYS) as agent:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", agent.listening.port, ssl=context, server_hostname=NAME
            )
            writer.write(b"GET /" + b"x" * 9000)
            return await reader.readline()

    assert asyncio.run(ask()).startswith(b"HTTP/1.1 414 ")
