"""Verification of a release's signature: it covers exactly the release's files, and is by whom a policy names."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.errors import EnvironmentFault, SignatureError, first_line
from plansmith.records.model import Record
from plansmith.records.release import SIGNATURE_FILE
from plansmith.signing.hashing import hashing_of
from plansmith.signing.policy import SignaturePolicy, is_fingerprint, require_signing_library

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from model_signing.verifying import Config

_SHOWN_DIGITS = 16
_LONGEST = 3
_SIGN_AGAIN = "publish it again from where it was signed, or use another version"
_TRUST = "have it signed by whom the policy names, or name them in the policy: docs/signing.md"


class SignatureStatus(Record):
    """Result of a verification.

    Attributes:
        state: "valid" for a signature that a policy accepts.
        signer: who signed, as proven: a key's or certificate's fingerprint, or an identity; empty unless valid.
        problem: why it is not accepted; empty if it is.
        remedy: what to do about it.
    """

    state: Literal["unsigned", "valid", "invalid"]
    signer: str = ""
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class _Attempt:
    """One trusted signer to verify a signature with.

    Attributes:
        signer: as told where it verifies.
        fingerprints: of its key or certificates, which the policy may revoke.
        configure: sets the verifier; gets a folder for the files that it wants.
        check: returns what the library does not check, as a problem; None if nothing is wrong.
        hint: fingerprint of the key that the bundle should name.
    """

    signer: str
    fingerprints: frozenset[str]
    configure: Callable[[Config, Path], Config]
    check: Callable[[], str | None] = lambda: None
    hint: str = ""


class _Bundle:
    """Parsed signature; nothing in it is trusted yet.

    Raises:
        ValueError: it is no signature of a model.
    """

    def __init__(self, signature: bytes) -> None:
        try:
            self.document: dict[str, Any] = json.loads(signature)
            self.material: dict[str, Any] = self.document["verificationMaterial"]
            statement = json.loads(base64.b64decode(self.document["dsseEnvelope"]["payload"]))
            self.subject = str(statement["subject"][0]["name"])
            resources = statement["predicate"]["resources"]
            self.digests = {str(entry["name"]): (entry["algorithm"], entry["digest"]) for entry in resources}
            self.certificates = [base64.b64decode(entry["rawBytes"]) for entry in self._raw_certificates()]
            self._hint = str(self.material.get("publicKey", {}).get("hint") or "")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{SIGNATURE_FILE} is damaged: it is no signature of a model") from error

    @property
    def is_sigstore(self) -> bool:
        """Whether Sigstore issued the certificate."""
        return "certificate" in self.material or bool(self.certificates and self.material.get("tlogEntries"))

    @property
    def claim(self) -> str:
        """Who signed according to the signature itself."""
        if self.certificates:
            kind = "Sigstore certificate" if self.is_sigstore else "certificate"
            return f"{kind} {_sha256(self.certificates[0])[:_SHOWN_DIGITS]}"
        return f"key {self._hint[:_SHOWN_DIGITS]}" if is_fingerprint(self._hint) else "a key that it does not name"

    def content(self, hint: str) -> str:
        """Return the signature as the library takes it: without a hint it prints, and asks no other key."""
        if not hint:
            return json.dumps(self.document)
        return json.dumps(self.document | {"verificationMaterial": self.material | {"publicKey": {"hint": hint}}})

    def differences(self, files: Mapping[str, str]) -> str:
        """Describe how a release's files differ from those that were signed."""
        if any(algorithm != "sha256" for algorithm, _ in self.digests.values()):
            return "it was signed with other digests than SHA-256 of whole files"
        signed = {path: digest for path, (_, digest) in self.digests.items()}
        parts = [
            *_named("differs", sorted(path for path in signed.keys() & files.keys() if signed[path] != files[path])),
            *_named("is missing", sorted(signed.keys() - files.keys())),
            *_named("was added", sorted(files.keys() - signed.keys())),
        ]
        return f"{'; '.join(parts)}: not what was signed as {self.subject}"

    def _raw_certificates(self) -> list[dict[str, str]]:
        chain = self.material.get("x509CertificateChain", {}).get("certificates", [])
        return [self.material["certificate"]] if "certificate" in self.material else chain


def _named(change: str, paths: Sequence[str]) -> list[str]:
    more = f" and {len(paths) - _LONGEST} more" if len(paths) > _LONGEST else ""
    return [f"{', '.join(paths[:_LONGEST])}{more} {change}"] if paths else []


def claimed_signer(signature: bytes | None) -> str:
    """Return who signed a release according to its signature, which is not checked; empty if it is not signed."""
    if signature is None:
        return ""
    try:
        return _Bundle(signature).claim
    except ValueError:
        return f"nobody: {SIGNATURE_FILE} is damaged"


def check_signature(signature: bytes | None, files: Mapping[str, str], policy: SignaturePolicy) -> SignatureStatus:
    """Verify a release's signature against a policy.

    Args:
        signature: the content of model.sig; None if there is none.
        files: SHA-256 by path of all files of the release; one of the signature is left out.
        policy: who may have signed.

    Raises:
        EnvironmentFault: the library is not installed, or Sigstore's trusted root cannot be fetched.
    """
    if signature is None:
        remedy = "sign it where it was compiled, and publish it again: plansmith publish MODEL PLACE --sign"
        return SignatureStatus(state="unsigned", problem="it is not signed", remedy=remedy)
    require_signing_library()
    try:
        bundle = _Bundle(signature)
    except ValueError as error:
        return SignatureStatus(state="invalid", problem=str(error), remedy=_SIGN_AGAIN)
    covered = {path: sha256 for path, sha256 in files.items() if path != SIGNATURE_FILE}
    problem = f"it is signed by {bundle.claim}, whom the policy does not name"
    for attempt in _attempts(bundle, policy):
        is_authentic, difference = _verified(bundle, covered, attempt)
        if not is_authentic:
            continue
        revoked = sorted(attempt.fingerprints & set(policy.revoked))
        found = f"{attempt.signer} is revoked ({revoked[0][:_SHOWN_DIGITS]}…)" if revoked else attempt.check()
        if found is None and difference:
            return SignatureStatus(state="invalid", problem=difference, remedy=_SIGN_AGAIN)
        if found is None:
            return SignatureStatus(state="valid", signer=attempt.signer)
        problem = found
    return SignatureStatus(state="invalid", problem=problem, remedy=_TRUST)


def require_signature(status: SignatureStatus, model: str, version: int) -> None:
    """Require a valid signature.

    Raises:
        SignatureError: the status is another.
    """
    if status.state != "valid":
        raise SignatureError(
            f"version {version} is refused: {status.problem}", remedy=status.remedy, model=model, step="signature"
        )


def _attempts(bundle: _Bundle, policy: SignaturePolicy) -> Iterator[_Attempt]:
    """Yield the policy's signers of the signature's kind."""
    if bundle.is_sigstore:
        yield from _sigstore_attempts(bundle, policy)
    elif bundle.certificates:
        yield from _certificate_attempts(bundle, policy)
    else:
        yield from map(_key_attempt, policy.keys)


def _key_attempt(pem: str) -> _Attempt:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    key = load_pem_public_key(pem.encode())
    form = PublicFormat.SubjectPublicKeyInfo
    hint = _sha256(key.public_bytes(Encoding.PEM, form))

    def configure(config: Config, folder: Path) -> Config:
        (folder / "key.pem").write_text(pem, encoding="utf-8")
        return config.use_elliptic_key_verifier(public_key=folder / "key.pem")

    fingerprints = frozenset({hint, _sha256(key.public_bytes(Encoding.DER, form))})
    return _Attempt(f"key {hint[:_SHOWN_DIGITS]}", fingerprints, configure, hint=hint)


def _certificate_attempts(bundle: _Bundle, policy: SignaturePolicy) -> Iterator[_Attempt]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509 import load_der_x509_certificate

    try:  # a certificate is parsed where something of it is asked for
        chain = [load_der_x509_certificate(content) for content in bundle.certificates]
        subject = chain[0].subject.rfc4514_string()
        fingerprints = frozenset().union(*map(_fingerprints, chain))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return
    name = f"certificate {subject}"
    for trust in policy.certificates:
        roots = _without_revoked(trust.roots, policy)
        if not roots or trust.subject not in {"", subject}:
            continue

        def configure(config: Config, folder: Path, roots: str = roots) -> Config:
            (folder / "roots.pem").write_text(roots, encoding="utf-8")
            return config.use_certificate_verifier(certificate_chain=[folder / "roots.pem"])

        def check(roots: str = roots) -> str | None:
            problem = _certificate_problem(chain, roots)
            return f"{name} {problem}" if problem else None

        yield _Attempt(name, fingerprints, configure, check)


def _sigstore_attempts(bundle: _Bundle, policy: SignaturePolicy) -> Iterator[_Attempt]:
    fingerprints = frozenset(_sha256(content) for content in bundle.certificates)
    for trust in policy.sigstore:

        def configure(
            config: Config,
            folder: Path,
            identity: str = trust.identity,
            issuer: str = trust.issuer,
            trust_config: str = trust.trust_config,
        ) -> Config:
            path = folder / "trust.json"
            path.write_text(trust_config, encoding="utf-8")
            try:
                return config.use_sigstore_verifier(
                    identity=identity, oidc_issuer=issuer, trust_config=path if trust_config else None
                )
            except Exception as error:
                raise EnvironmentFault(
                    f"Sigstore's trusted root cannot be had: {first_line(error)}",
                    remedy="see that Sigstore can be reached, or name a trust_config in the policy",
                    transient=not trust_config,
                ) from error

        yield _Attempt(f"{trust.identity} ({trust.issuer})", fingerprints, configure)


def _verified(bundle: _Bundle, files: Mapping[str, str], attempt: _Attempt) -> tuple[bool, str]:
    """Verify a signature with one signer's material: whether it is theirs, and how the files differ from those signed.

    The library verifies who signed before it asks for the files.
    """
    from model_signing.verifying import Config

    authentic: list[bool] = []
    hashing = hashing_of(files, bundle.subject, asked=lambda: authentic.append(True))
    with tempfile.TemporaryDirectory(prefix="plansmith-verify-") as scratch:
        folder = Path(scratch)
        (folder / SIGNATURE_FILE).write_text(bundle.content(attempt.hint), encoding="utf-8")
        config = attempt.configure(Config(), folder).set_hashing_config(hashing)
        try:
            config.verify(folder, folder / SIGNATURE_FILE)
        except Exception:  # noqa: BLE001 - a forged signature may raise anything in the libraries: it is refused
            return bool(authentic), bundle.differences(files)
    return True, ""


def _certificate_problem(chain: Sequence[Certificate], roots: str) -> str | None:
    """Return why a certificate chain is not valid now; None if it is.

    model-signing 1.1 looks at the chain as it was when the signing certificate was issued, and so never sees one
    expire: a signature without a time stamp proves no time.
    """
    from cryptography.x509 import load_pem_x509_certificates
    from OpenSSL import crypto

    now = datetime.now(UTC)
    leaf = chain[0]
    if leaf.not_valid_after_utc < now:
        return f"expired on {leaf.not_valid_after_utc:%Y-%m-%d}"
    if leaf.not_valid_before_utc > now:
        return f"is not valid before {leaf.not_valid_before_utc:%Y-%m-%d}"
    store = crypto.X509Store()
    for root in load_pem_x509_certificates(roots.encode()):
        store.add_cert(crypto.X509.from_cryptography(root))
    others = [crypto.X509.from_cryptography(certificate) for certificate in chain[1:]]
    try:
        crypto.X509StoreContext(store, crypto.X509.from_cryptography(leaf), others).verify_certificate()
    except crypto.X509StoreContextError as error:
        return f"has no valid chain: {first_line(error)}"
    return None


def _without_revoked(roots: str, policy: SignaturePolicy) -> str:
    """Return the certificates that are not revoked, PEM text; empty if there are none."""
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificates

    certificates = load_pem_x509_certificates(roots.encode())
    accepted = [entry for entry in certificates if _fingerprints(entry).isdisjoint(policy.revoked)]
    return "".join(entry.public_bytes(Encoding.PEM).decode() for entry in accepted)


def _fingerprints(certificate: Certificate) -> frozenset[str]:
    """Return the fingerprints under which a certificate or its key may be revoked."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key, form = certificate.public_key(), PublicFormat.SubjectPublicKeyInfo
    contents = (
        certificate.public_bytes(Encoding.DER),
        key.public_bytes(Encoding.DER, form),
        key.public_bytes(Encoding.PEM, form),
    )
    return frozenset(map(_sha256, contents))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
