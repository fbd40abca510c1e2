# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of a lab: one authority, and what it signs for servers and users. Elliptic keys,
since thousands of bits of RSA take their time.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=30)


class Authority:
    """Signs; ``certificate`` and ``key`` are its own files in the directory."""

    def __init__(self, directory: Path):
        self.certificate, self.key = directory / "ca.crt", directory / "ca.key"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "autopilot-lab")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(usage, True)
        )
        self.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        _write_secret(self.key, _key_pem(self._key))

    def issue(self, path: Path, name, organizations=(), addresses=(), names=()):
        """Write ``path``.crt and ``path``.key: for a user, with groups as ``organizations``; for a
        server where there are addresses or names.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)
            for organization in organizations
        ]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key)
        if addresses or names:
            others = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses] + [
                x509.DNSName(one) for one in names
            ]
            made = made.add_extension(x509.SubjectAlternativeName(others), False)
            purpose = ExtendedKeyUsageOID.SERVER_AUTH
        else:
            purpose = ExtendedKeyUsageOID.CLIENT_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([purpose]), False)
        path.with_suffix(".crt").write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        _write_secret(path.with_suffix(".key"), _key_pem(key))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
        )
        return (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + _LIFE)
        )


def signing_key(path: Path):
    """Write a key pair, ``path``.key and ``path``.pub: what tokens of service accounts are signed
    with.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    _write_secret(path.with_suffix(".key"), _key_pem(key))
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _pem(certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key) -> bytes:
    # The form with "EC PRIVATE KEY", which is what the API server reads for service accounts.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write_secret(path, content):
    path.touch(mode=0o600)
    path.write_bytes(content)
