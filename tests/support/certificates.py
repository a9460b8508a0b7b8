"""Certificates for the tests of TLS; keys, certificates and policies for those of signatures."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from plansmith.signing.policy import SignaturePolicy, read_policy
from plansmith.signing.signer import Signer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name


def write_certificate(path: Path) -> Path:
    """Write a certificate of 127.0.0.1 that nobody signed, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, form, plain)
    )
    return path


@dataclass
class KeyRing:
    """A folder of EC keys, certificates and policies; `NAME` is a private key, `NAME.pub` and `NAME.crt` are public."""

    folder: Path
    keys: dict[str, EllipticCurvePrivateKey] = field(default_factory=dict)

    def key(self, name: str, password: str = "") -> Path:
        """Write a private key and its public key; the same one for the same name."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        if name in self.keys:
            return self.folder / name
        key = self.keys[name] = ec.generate_private_key(ec.SECP256R1())
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        form, public = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
        (self.folder / name).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        (self.folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, public))
        return self.folder / name

    def certificate(self, name: str, issuer: str, *, days: int = 30, is_authority: bool = False) -> Certificate:
        """Write a certificate of a key that ends in some days; `issuer` may be itself."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        self.key(name)
        self.key(issuer)
        now = datetime.datetime.now(datetime.UTC)
        usage = x509.KeyUsage(
            digital_signature=not is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(issuer))
            .public_key(self.keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=60))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self.keys[issuer], hashes.SHA256())
        )
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return certificate

    def signer(self, name: str = "release", *, certified: bool = False) -> Signer:
        """The signer with a key, and with its certificate where it is certified."""
        return Signer(key=self.key(name), certificate=self.folder / f"{name}.crt" if certified else None)

    def policy_file(self, name: str = "policy.yaml", **fields: object) -> Path:
        """Write a policy; of the key `release` unless another is given."""
        self.key("release")
        (self.folder / name).write_text(yaml.safe_dump(fields or {"keys": ["release.pub"]}))
        return self.folder / name

    def policy(self, **fields: object) -> SignaturePolicy:
        """A policy, as it is read from a file."""
        return read_policy(self.policy_file("policy.yaml", **fields))

    def fingerprint(self, name: str) -> str:
        """The fingerprint of a public key, as `sha256sum NAME.pub` prints it."""
        return hashlib.sha256((self.folder / f"{name}.pub").read_bytes()).hexdigest()


def _named(name: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
