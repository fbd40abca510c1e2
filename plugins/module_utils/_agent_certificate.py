# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Keep a CA and a serving certificate of the agents in two Secrets: make them, and renew them when
they near their end. Private keys go into the Secrets and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import traceback
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    NotFound,
    Procedure,
    Request,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    MISSING = traceback.format_exc()
else:
    MISSING = ""

#: Lifetimes. Only a run of the role renews, so they are long.
CA_LIFE = datetime.timedelta(days=3650)
LIFE = datetime.timedelta(days=730)
#: A serving certificate with less than this left is renewed.
RENEWED_BEFORE = LIFE / 3
#: Clocks of nodes may be behind that of the controller.
_SKEW = datetime.timedelta(hours=1)
#: Most CA certificates that agents trust at once: the current one and its predecessors.
_MOST_TRUSTED = 3

Json = t.Dict[str, t.Any]


class ForeignSecret(Exception):
    """A Secret of that name exists, and the role did not create it."""


class Pair(t.NamedTuple):
    """A certificate and its private key."""

    certificate: t.Any
    key: t.Any


class Wanted(t.NamedTuple):
    """The two Secrets: names, labels, and the DNS names of the serving certificate."""

    namespace: str
    ca_name: str
    name: str
    dns_names: t.Sequence[str]
    labels: t.Mapping[str, str]


class Outcome(t.NamedTuple):
    """Whether a Secret was written (would be in check mode), and what clients may know: the CA
    certificates in PEM, and when the serving certificate ends; both "" before the first writing.
    """

    changed: bool
    ca: str
    expires: str


def ensure(wanted: Wanted, now: datetime.datetime, write: bool) -> Procedure[Outcome]:
    """Write what is missing or near its end. Raises ForeignSecret."""
    found_ca = yield from _read(wanted, wanted.ca_name)
    found = yield from _read(wanted, wanted.name)
    ca, serving = pair_of(found_ca), pair_of(found)
    trusted = _certificates(_data(found, "ca.crt"))
    new_ca = ca if ca and is_usable_ca(ca, now) else None
    bundle = _bundle(new_ca, trusted, now) if new_ca else b""
    if new_ca and serving and is_usable(serving, new_ca, wanted.dns_names, now):
        if bundle == _data(found, "ca.crt"):
            return Outcome(False, bundle.decode(), _end(serving.certificate).isoformat())
    else:
        serving = None
    if not write:
        known = _data(found, "ca.crt").decode("ascii", "replace") if trusted else ""
        return Outcome(True, known, _end(serving.certificate).isoformat() if serving else "")
    if new_ca is None:
        new_ca = make_ca(now)
        bundle = _bundle(new_ca, trusted, now)
        yield from _store(wanted, wanted.ca_name, found_ca, _content(new_ca))
    serving = serving or make_certificate(new_ca, wanted.dns_names, now)
    yield from _store(wanted, wanted.name, found, {**_content(serving), "ca.crt": bundle})
    return Outcome(True, bundle.decode(), _end(serving.certificate).isoformat())


# ---- certificates ----


def make_ca(now: datetime.datetime) -> Pair:
    """A new CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("autopilot agents CA")
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    made = (
        _builder(name, name, key, now, CA_LIFE)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )
    return Pair(made.sign(key, hashes.SHA256()), key)


def make_certificate(ca: Pair, dns_names: t.Sequence[str], now: datetime.datetime) -> Pair:
    """A new serving certificate of the CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    made = (
        _builder(_name("autopilot agents"), ca.certificate.subject, key, now, LIFE)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(usage, True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in dns_names]), False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(signer, False)
    )
    return Pair(made.sign(ca.key, hashes.SHA256()), key)


def is_usable_ca(ca: Pair, now: datetime.datetime) -> bool:
    """True if the CA outlives a serving certificate that it signs now."""
    try:
        basic = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return bool(basic.value.ca) and _end(ca.certificate) > now + LIFE


def is_usable(serving: Pair, ca: Pair, dns_names: t.Sequence[str], now: datetime.datetime) -> bool:
    """True if the CA signed the certificate, for these names, and its end is not near."""
    certificate = serving.certificate
    try:
        ca.key.public_key().verify(
            certificate.signature,
            certificate.tbs_certificate_bytes,
            ec.ECDSA(certificate.signature_hash_algorithm),
        )
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound, ValueError, TypeError):
        return False
    names = set(found.value.get_values_for_type(x509.DNSName))
    return names == set(dns_names) and _end(certificate) > now + RENEWED_BEFORE


def pair_of(secret: Json) -> Pair | None:
    """The certificate and the key of a Secret; None if one is missing or invalid, or they do not
    belong together.
    """
    certificates = _certificates(_data(secret, "tls.crt"))
    try:
        key = serialization.load_pem_private_key(_data(secret, "tls.key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not certificates or not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    is_of_key = _public(key.public_key()) == _public(certificates[0].public_key())
    return Pair(certificates[0], key) if is_of_key else None


def _builder(
    name: t.Any, issuer: t.Any, key: t.Any, now: datetime.datetime, life: datetime.timedelta
) -> t.Any:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _name(common_name: str) -> t.Any:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _bundle(ca: Pair, trusted: list[t.Any], now: datetime.datetime) -> bytes:
    """What agents trust: the CA, and its predecessors while certificates of them may be served."""
    earlier = [one for one in trusted if one != ca.certificate and _end(one) > now]
    kept = [ca.certificate, *dict.fromkeys(earlier)][:_MOST_TRUSTED]
    return b"".join(map(_pem, kept))


def _end(certificate: t.Any) -> datetime.datetime:
    """The end of validity; cryptography before 42 has it without a time zone only."""
    end = getattr(certificate, "not_valid_after_utc", None)
    return end or certificate.not_valid_after.replace(tzinfo=datetime.timezone.utc)


def _certificates(text: bytes) -> list[t.Any]:
    """The certificates of a PEM text; [] for an invalid one."""
    mark = b"-----END CERTIFICATE-----"
    try:
        return [x509.load_pem_x509_certificate(one + mark) for one in text.split(mark)[:-1]]
    except ValueError:
        return []


def _pem(certificate: t.Any) -> bytes:
    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _public(key: t.Any) -> bytes:
    return bytes(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


# ---- Secrets ----


def _read(wanted: Wanted, name: str) -> Procedure[Json]:
    """The Secret; {} if it does not exist."""
    try:
        found: Json = yield Request("GET", _path(wanted.namespace, name))
    except NotFound:
        return {}
    labels = mapping(mapping(found.get("metadata")).get("labels"))
    if any(labels.get(key) != value for key, value in wanted.labels.items()):
        raise ForeignSecret(
            f"Secret {wanted.namespace}/{name} was not made by this role; remove the Secret, or set "
            "agent_tls_secret to use it"
        )
    return found


def _store(
    wanted: Wanted, name: str, found: Json, content: t.Mapping[str, bytes]
) -> Procedure[None]:
    """Create the Secret, or replace what was read."""
    data = {key: base64.b64encode(value).decode("ascii") for key, value in content.items()}
    if found:
        yield Request("PUT", _path(wanted.namespace, name), {**found, "data": data})
        return
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": wanted.namespace, "labels": dict(wanted.labels)},
        "data": data,
    }
    yield Request("POST", path_of("api/v1/namespaces", wanted.namespace, "secrets"), secret)


def _content(pair: Pair) -> dict[str, bytes]:
    key = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"tls.crt": _pem(pair.certificate), "tls.key": key}


def _data(secret: Json, key: str) -> bytes:
    try:
        return base64.b64decode(mapping(secret.get("data")).get(key) or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        return b""


def _path(namespace: str, name: str) -> str:
    return path_of("api/v1/namespaces", namespace, "secrets", name)
