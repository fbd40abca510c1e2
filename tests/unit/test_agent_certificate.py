# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The certificate that the role makes: when it is written, what clients verify with it, and where
its private keys go.
"""

from __future__ import annotations

import base64
import datetime
import ssl

import pytest
from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils import _agent_certificate
from ansible_collections.autopilot.gpu.plugins.module_utils._agent_certificate import (
    CA_LIFE,
    LIFE,
    RENEWED_BEFORE,
    ForeignSecret,
    Wanted,
    ensure,
    make_ca,
    make_certificate,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._agent_objects import (
    certificates_in,
    survey,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import NotFound

NAME = "autopilot-healthchecks.autopilot.svc"
LABELS = {"app.kubernetes.io/managed-by": "autopilot-gpu"}
WANTED = Wanted("autopilot", "autopilot-ca", "autopilot-tls", [NAME], LABELS)
NOW = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
DAY = datetime.timedelta(days=1)


class Secrets:
    """The Secrets of a namespace, as an API server has them."""

    def __init__(self):
        self.by_name, self.written = {}, []

    def answer(self, request):
        name = request.path.rpartition("/")[2]
        if request.method == "GET":
            if name not in self.by_name:
                raise NotFound("not there", 404)
            return self.by_name[name]
        if request.method == "POST":
            name = request.body["metadata"]["name"]
            assert name not in self.by_name
        else:
            assert request.method == "PUT" and name in self.by_name
        self.by_name[name] = request.body
        self.written.append(name)
        return request.body

    def run(self, procedure):
        self.written.clear()
        return carried_out(procedure, self.answer)

    def ensure(self, now=NOW, wanted=WANTED, write=True):
        return self.run(ensure(wanted, now, write))

    def text(self, name, key):
        return base64.b64decode(self.by_name[name]["data"][key]).decode()


@pytest.fixture
def secrets():
    return Secrets()


def is_verified(secrets, ca, tmp_path, name=NAME):
    """Whether a client with the CA accepts the certificate that a server has from the Secret."""
    for key in ("tls.crt", "tls.key"):
        (tmp_path / key).write_text(secrets.text("autopilot-tls", key), encoding="ascii")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    sides = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(sides[0], sides[1], server_hostname=name)
    answering = server.wrap_bio(sides[1], sides[0], server_side=True)
    for _turn in range(4):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return bool(asking.getpeercert())


def test_a_second_run_changes_nothing_until_the_end_is_near(secrets):
    first = secrets.ensure()
    assert first.changed and secrets.written == ["autopilot-ca", "autopilot-tls"]
    for now in (NOW, NOW + LIFE - RENEWED_BEFORE - DAY):
        again = secrets.ensure(now)
        assert again == first._replace(changed=False) and secrets.written == []
    near = NOW + LIFE - RENEWED_BEFORE + DAY
    renewed = secrets.ensure(near)
    assert renewed.changed and secrets.written == ["autopilot-tls"]
    assert (renewed.ca, renewed.expires) == (first.ca, (near + LIFE).isoformat())


def test_clients_verify_the_certificate_by_its_names(secrets, tmp_path):
    made = secrets.ensure()
    assert is_verified(secrets, made.ca, tmp_path)
    assert not is_verified(secrets, made.ca, tmp_path, "autopilot-healthchecks.other.svc")
    other = Secrets()
    assert not is_verified(secrets, other.ensure().ca, tmp_path)


def test_a_renewed_ca_leaves_the_earlier_one_trusted_until_it_ends(secrets, tmp_path):
    made = NOW - CA_LIFE + LIFE - DAY
    first = secrets.ensure(made)
    assert secrets.ensure(NOW - 10 * DAY).ca == first.ca
    served = {key: secrets.by_name["autopilot-tls"]["data"][key] for key in ("tls.crt", "tls.key")}
    second = secrets.ensure()
    assert secrets.written == ["autopilot-ca", "autopilot-tls"]
    assert second.ca.endswith(first.ca) and second.ca != first.ca
    assert is_verified(secrets, second.ca, tmp_path)
    # An agent with the new CA accepts the agents that still serve the earlier certificate.
    other = Secrets()
    other.by_name["autopilot-tls"] = {"data": served}
    assert is_verified(other, second.ca, tmp_path)
    assert secrets.ensure(made + CA_LIFE).ca == second.ca[: -len(first.ca)]


@pytest.mark.parametrize(
    "damage, written",
    [
        (lambda data: data["autopilot-tls"].pop("tls.key"), ["autopilot-tls"]),
        (lambda data: data["autopilot-tls"].update({"tls.crt": "e30="}), ["autopilot-tls"]),
        (lambda data: data["autopilot-tls"].update({"ca.crt": "e30="}), ["autopilot-tls"]),
        (lambda data: data["autopilot-tls"].update({"ca.crt": 7}), ["autopilot-tls"]),
        (
            lambda data: data["autopilot-ca"].update({"tls.crt": data["autopilot-tls"]["tls.crt"]}),
            ["autopilot-ca", "autopilot-tls"],
        ),
        (lambda data: data["autopilot-ca"].clear(), ["autopilot-ca", "autopilot-tls"]),
    ],
    ids=["no key", "no certificate", "another CA", "no text", "another's key", "empty"],
)
def test_damaged_secrets_are_mended(secrets, tmp_path, damage, written):
    secrets.ensure()
    damage({name: one["data"] for name, one in secrets.by_name.items()})
    mended = secrets.ensure()
    assert mended.changed and secrets.written == written
    assert is_verified(secrets, mended.ca, tmp_path) and not secrets.ensure().changed


def test_other_names_lead_to_another_certificate(secrets):
    secrets.ensure()
    assert secrets.ensure(wanted=WANTED._replace(dns_names=[NAME, "another.name"])).changed
    assert secrets.written == ["autopilot-tls"]


def test_check_mode_writes_nothing(secrets):
    assert secrets.ensure(write=False) == (True, "", "") and secrets.written == []
    made = secrets.ensure()
    near = secrets.ensure(NOW + LIFE, write=False)
    assert (near.changed, near.ca) == (True, made.ca) and secrets.written == []


def test_a_secret_of_somebody_else_is_left_as_it_is(secrets):
    secrets.by_name["autopilot-tls"] = {
        "metadata": {"name": "autopilot-tls"},
        "data": {"a": "Yg=="},
    }
    with pytest.raises(ForeignSecret, match="Secret autopilot/autopilot-tls was not made by this"):
        secrets.ensure()
    assert secrets.written == []


def test_a_private_key_is_in_the_secrets_only(secrets):
    made = secrets.ensure()
    assert "PRIVATE KEY" not in f"{made}"
    keys = [
        (name, key)
        for name, one in secrets.by_name.items()
        for key in one["data"]
        if "PRIVATE KEY" in secrets.text(name, key)
    ]
    assert keys == [("autopilot-ca", "tls.key"), ("autopilot-tls", "tls.key")]


def test_the_survey_returns_certificates_of_a_secret_and_never_a_key(secrets):
    made = secrets.ensure()
    data = dict(secrets.by_name["autopilot-tls"]["data"])
    assert certificates_in(data["ca.crt"]) == made.ca
    mixed = secrets.text("autopilot-tls", "tls.key") + made.ca
    assert certificates_in(base64.b64encode(mixed.encode()).decode()) == made.ca
    for invalid in (None, 7, "?", data["tls.key"], base64.b64encode(b"\xff").decode()):
        assert certificates_in(invalid) == ""

    def found(tls_secret):
        def answer(request):
            if request.path.endswith("/secrets/autopilot-tls"):
                return {"metadata": {"name": "autopilot-tls"}, "data": data}
            return {"metadata": {"name": "autopilot"}, "items": []}

        asked = Secrets()
        asked.answer = answer
        return asked.run(survey("autopilot", "", "key", tls_secret))

    assert found("autopilot-tls")["tls_ca"] == made.ca and found("")["tls_ca"] == ""
    assert "PRIVATE KEY" not in str(found("autopilot-tls")) and data["tls.key"] not in str(
        found("autopilot-tls")
    )


def test_a_serving_certificate_is_no_ca():
    ca = make_ca(NOW)
    assert _agent_certificate.is_usable_ca(ca, NOW)
    assert not _agent_certificate.is_usable_ca(make_certificate(ca, [NAME], NOW), NOW - LIFE)
