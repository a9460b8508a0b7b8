"""Signer: makes a release's signature with a key, a certificate, a PKCS #11 token or Sigstore."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import SignatureError, UsageError, first_line
from plansmith.records.release import SIGNATURE_FILE
from plansmith.signing.hashing import hashing_of
from plansmith.signing.policy import EXTRA, require_signing_library
from plansmith.system.libraries import require_library

if TYPE_CHECKING:
    from model_signing.signing import Config

PASSWORD_VARIABLE = "PLANSMITH_SIGN_PASSWORD"  # noqa: S105 - a name
_PIN = re.compile(r"pin-value=([^&;]+)")


@dataclass(frozen=True)
class Signer:
    """Signer of releases; exactly one of `key`, `pkcs11` and `sigstore` is set.

    Attributes:
        key: private EC key, a PEM file (P-256, P-384 or P-521).
        password: of the key.
        certificate: issued for the key or the token's key, a PEM file.
        chain: further certificates up to the root, PEM files.
        pkcs11: URI of a key on a token (RFC 7512); it may hold a PIN.
        sigstore: sign with a short-lived certificate for an identity.
        identity_token: OpenID Connect token for Sigstore; found in the environment of a CI job where it is empty.
        trust_config: configuration of a private Sigstore instance, a JSON file; the public one where it is None.
    """

    key: Path | None = None
    password: str = field(default="", repr=False)
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()
    pkcs11: str = field(default="", repr=False)
    sigstore: bool = False
    identity_token: str = field(default="", repr=False)
    trust_config: Path | None = None

    def __post_init__(self) -> None:
        """Check that the options go together.

        Raises:
            UsageError: they do not.
        """
        ways = [self.key is not None, bool(self.pkcs11), self.sigstore]
        if sum(ways) != 1:
            raise UsageError(
                "it is not said with what to sign" if not any(ways) else "a release is signed in one way",
                remedy="pass one of --key, --pkcs11 and --sigstore",
            )
        if self.sigstore and (self.certificate or self.chain):
            raise UsageError("Sigstore issues the certificate itself", remedy="leave out --certificate")
        if self.chain and self.certificate is None:
            raise UsageError("--certificate-chain is for a certificate", remedy="pass --certificate, too")
        if not self.sigstore and (self.identity_token or self.trust_config):
            raise UsageError("--identity-token and --trust-config are Sigstore's", remedy="pass --sigstore, too")

    def sign(self, files: Mapping[str, str], name: str) -> bytes:
        """Return the signature of a release, a Sigstore bundle.

        Args:
            files: SHA-256 by path in the release; one of the signature is left out.
            name: of the release, for whoever reads the signature.

        Raises:
            SignatureError: the key, the token or Sigstore refuses.
            EnvironmentFault: the library is not installed.
        """
        require_signing_library()
        if self.pkcs11:
            require_library("PyKCS11", f"{EXTRA}-pkcs11", purpose="tokens are asked with it")
        if self.sigstore:
            self._require_identity()
        with tempfile.TemporaryDirectory(prefix="plansmith-sign-") as folder:
            path = Path(folder) / SIGNATURE_FILE
            try:
                self._configured().set_hashing_config(hashing_of(files, name)).sign(name, path)
                return path.read_bytes() if self.certificate is None else self._certified(path.read_bytes())
            except Exception as error:  # noqa: BLE001 - the key, OpenSSL, the token and Sigstore raise their own kinds
                raise self._refusal(error) from None

    def _configured(self) -> Config:
        from model_signing.signing import Config

        if self.sigstore:
            return Config().use_sigstore_signer(
                use_ambient_credentials=True,
                identity_token=self.identity_token or None,
                trust_config=self.trust_config,
            )
        if self.pkcs11:
            return Config().use_pkcs11_signer(pkcs11_uri=self.pkcs11)
        assert self.key is not None
        password: Any = self.password.encode() or None  # handed on to `cryptography`, which takes bytes
        return Config().use_elliptic_key_signer(private_key=self.key, password=password)

    def _certified(self, signature: bytes) -> bytes:
        """Return a key's signature with the key's certificates in place of its fingerprint, which both are not signed.

        model-signing 1.1 does the same, but for no key with a password and for no token.

        Raises:
            ValueError: the certificate is another key's.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        from cryptography.x509 import load_pem_x509_certificates

        assert self.certificate is not None
        pem = b"".join(path.read_bytes() for path in (self.certificate, *self.chain))
        certificates = load_pem_x509_certificates(pem)
        public = certificates[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        document = json.loads(signature)
        if document["verificationMaterial"]["publicKey"]["hint"] != hashlib.sha256(public).hexdigest():
            raise ValueError(f"{self.certificate} is the certificate of another key")
        contents = [base64.b64encode(entry.public_bytes(Encoding.DER)).decode() for entry in certificates]
        chain = {"certificates": [{"rawBytes": content} for content in contents]}
        document["verificationMaterial"] = {"x509CertificateChain": chain, "tlogEntries": []}
        return json.dumps(document).encode()

    def _require_identity(self) -> None:
        """Require an identity for Sigstore, rather than have a job without a terminal wait for a browser."""
        from sigstore.oidc import detect_credential

        if not (self.identity_token or sys.stdin.isatty() or detect_credential()):
            raise SignatureError(
                "Sigstore needs an identity, and this job has none",
                remedy="set PLANSMITH_IDENTITY_TOKEN, give the job the permission to request one, or sign with --key",
            )

    def _refusal(self, error: Exception) -> SignatureError:
        """Describe a library's error; the libraries quote no passwords, but may quote the URI and the token."""
        reason = first_line(error if str(error) else error.__cause__ or error)
        for secret in filter(None, (self.pkcs11, *_PIN.findall(self.pkcs11), self.identity_token)):
            reason = reason.replace(secret, "…")
        what = self.key or ("Sigstore" if self.sigstore else "the token")
        if self.key is not None:
            remedy = f"pass an EC key (P-256, P-384 or P-521) in PEM form; its password goes into {PASSWORD_VARIABLE}"
        elif self.sigstore:
            remedy = "see that Sigstore can be reached and the identity token is new; or sign with --key"
        else:
            remedy = "see the URI, the PIN and the module: pkcs11-tool --list-objects shows what a token has"
        return SignatureError(f"{what} cannot sign: {reason}", remedy=remedy)
