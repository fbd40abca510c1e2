# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the certificate of the agents comes from, on a real API server: the role, cert-manager or
OpenShift. The last two are there as APIs only; the tests write what their controllers would write.
"""

from __future__ import annotations

import base64
import json

import pytest
from lab.pki import Authority

from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask

from agent_role import (
    agent_playbook,
    changed,
    cleaned,
    crd,
    everything,
    load_crds,
    nodes,
    removed_crds,
)

SPACE = ("-n", "autopilot")
NAME = "autopilot-healthchecks.autopilot.svc"
CERT_MANAGER = (
    crd("cert-manager.io", "certificates", "Certificate"),
    crd("cert-manager.io", "issuers", "Issuer"),
)
SERVICE_CA = (crd("operator.openshift.io", "servicecas", "ServiceCA", "Cluster"),)
PLAIN = "requests and tokens of callers can be read"


@pytest.fixture
def play(lab, tmp_path):
    """``play(*arguments, **variables)``: the playbook against the lab; the finished process."""
    return agent_playbook(lab, tmp_path)


@pytest.fixture
def clean(lab):
    """The cluster as it was, once the test is over."""
    with nodes(lab, "role-a"), cleaned(lab) as before:
        yield before


def data(lab, kind, name):
    return lab.get(kind, name, *SPACE).get("data", {})


def decoded(lab, name, key):
    return base64.b64decode(data(lab, "secret", name)[key]).decode()


def published(lab):
    """The CA certificates as the module status reads them."""
    return ask.published_ca(Cluster(str(lab.kubeconfig)), "autopilot")


def tls_volumes(lab):
    spec = lab.get("daemonset", "autopilot", *SPACE)["spec"]["template"]["spec"]
    return [one for one in spec["volumes"] if one["name"] == "tls"]


def issued(tmp_path, key=True):
    """What a CA makes for a Secret, in base64."""
    Authority(tmp_path).issue(tmp_path / "tls", NAME, names=[NAME])
    names = ("tls.crt", "tls.key", "ca.crt") if key else ("tls.crt", "tls.key")
    return {name: base64.b64encode((tmp_path / name).read_bytes()).decode() for name in names}


def secret(name, content, **metadata):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": "autopilot", **metadata},
        "data": content,
    }


def test_the_role_makes_a_certificate_once_and_removes_it(lab, clean, play):
    dry = play("--check", "--diff", agent_tls="create")
    assert changed(dry) > 0 and everything(lab) == clean, dry.stdout
    made = play("-vvv", agent_tls="create")
    assert changed(made) > 0 and PLAIN not in " ".join(made.stdout.split())
    keys = [decoded(lab, f"autopilot-{name}", "tls.key") for name in ("ca", "tls")]
    for key in keys:
        assert "PRIVATE KEY" in key
        # The second line has the private part; the last one is in the certificate too.
        for line in (base64.b64encode(key.encode()).decode(), key.splitlines()[1]):
            assert line not in made.stdout
    assert published(lab) == decoded(lab, "autopilot-tls", "ca.crt")
    assert "ca.crt" not in data(lab, "secret", "autopilot-ca")
    assert tls_volumes(lab)[0]["secret"]["secretName"] == "autopilot-tls"
    before = everything(lab, "secrets,configmaps,services,daemonsets")
    again = play(agent_tls="create")
    assert changed(again) == 0, again.stdout
    assert changed(play("--check", agent_tls="create")) == 0
    assert everything(lab, "secrets,configmaps,services,daemonsets").keys() == before.keys()
    assert [decoded(lab, f"autopilot-{name}", "tls.key") for name in ("ca", "tls")] == keys
    off = play(agent_tls="off")
    assert changed(off) == 2 and PLAIN not in " ".join(off.stdout.split()), off.stdout
    assert not tls_volumes(lab) and "autopilot-ca" not in json.dumps(list(everything(lab)))
    assert changed(play(agent_tls="create")) > 0
    assert changed(play(agent_state="absent")) > 0
    assert everything(lab).keys() == clean.keys()


def test_without_any_of_them_plain_http_is_reported(lab, clean, play):
    done = play()
    assert changed(done) > 0 and PLAIN in " ".join(done.stdout.split()), done.stdout
    refused = play(agent_tls="create", agent_tls_secret="mine")
    assert refused.returncode == 2 and "agent_tls: create is refused" in refused.stdout
    refused = play(agent_tls="yes-please")
    assert refused.returncode == 2 and "one of: auto, create, off" in refused.stdout


def test_a_secret_of_somebody_else_is_not_overwritten(lab, clean, play, tmp_path):
    assert changed(play(agent_tls="off")) > 0
    (tmp_path / "theirs").mkdir()
    theirs = issued(tmp_path / "theirs")
    lab.create(secret("autopilot-tls", theirs))
    refused = play(agent_tls="create")
    assert refused.returncode == 2, refused.stdout
    assert "Secret autopilot/autopilot-tls was not made by this role" in refused.stdout
    assert data(lab, "secret", "autopilot-tls") == theirs
    # The user may use it, and clients get its CA.
    assert changed(play(agent_tls_secret="autopilot-tls")) > 0
    assert published(lab) == decoded(lab, "autopilot-tls", "ca.crt")
    stays = play(agent_state="absent")
    assert "others have something in it: Secret autopilot-tls" in " ".join(stays.stdout.split())
    assert data(lab, "secret", "autopilot-tls") == theirs


def test_cert_manager_makes_the_certificate(lab, clean, play, tmp_path):
    with removed_crds(lab, CERT_MANAGER):
        load_crds(lab, CERT_MANAGER)
        assert changed(play()) > 0
        found = {
            f"{one['kind']} {one['metadata']['namespace']}/{one['metadata']['name']}": one["spec"]
            for one in lab.get("certificates,issuers", "-A")["items"]
        }
        assert sorted(found) == [
            "Certificate autopilot/autopilot-ca",
            "Certificate autopilot/autopilot-tls",
            "Issuer autopilot/autopilot-ca",
            "Issuer autopilot/autopilot-self-signed",
        ]
        assert tls_volumes(lab)[0]["secret"]["secretName"] == "autopilot-tls"
        assert changed(play()) == 0
        with pytest.raises(ask.RequestError, match="set ca_file, or run the role agent again"):
            published(lab)
        (tmp_path / "made").mkdir()
        content = issued(tmp_path / "made")
        for name in ("ca", "tls"):
            template = found[f"Certificate autopilot/autopilot-{name}"]["secretTemplate"]
            lab.create(secret(f"autopilot-{name}", content, labels=template["labels"]))
        assert changed(play()) == 1
        assert published(lab) == decoded(lab, "autopilot-tls", "ca.crt")
        assert changed(play()) == 0
        assert data(lab, "secret", "autopilot-tls") == content
        assert changed(play(agent_state="absent")) > 0
        assert not lab.get("certificates,issuers", "-A")["items"]
        assert everything(lab).keys() == clean.keys()


def test_openshift_makes_the_certificate(lab, clean, play, tmp_path):
    with removed_crds(lab, SERVICE_CA):
        load_crds(lab, SERVICE_CA)
        assert changed(play()) > 0
        service = lab.get("service", "autopilot-healthchecks", *SPACE)["metadata"]
        assert service["annotations"] == {
            "service.beta.openshift.io/serving-cert-secret-name": "autopilot-tls"
        }
        (tmp_path / "made").mkdir()
        owner = {
            "apiVersion": "v1",
            "kind": "Service",
            "name": service["name"],
            "uid": service["uid"],
        }
        lab.create(
            secret("autopilot-tls", issued(tmp_path / "made", key=False), ownerReferences=[owner])
        )
        injected = {"data": {"service-ca.crt": (tmp_path / "made/ca.crt").read_text()}}
        lab.kubectl("patch", "configmap", "autopilot-ca", *SPACE, "-p", json.dumps(injected))
        again = play()
        assert changed(again) == 0, again.stdout
        assert published(lab) == injected["data"]["service-ca.crt"]
        removed = play(agent_state="absent")
        assert changed(removed) > 0 and "others have something" not in removed.stdout
        assert everything(lab).keys() == clean.keys()
