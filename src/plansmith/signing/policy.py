"""Signature policy: who may sign a release, and which keys and certificates are revoked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError, model_validator

from plansmith.config.messages import validation_message
from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.system.libraries import require_library

EXTRA = "sign"
POLICY_VARIABLE = "PLANSMITH_SIGNATURE_POLICY"
_REMEDY = "mend the policy; docs/signing.md has an example"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def require_signing_library() -> None:
    """Require model-signing, and pyOpenSSL, which it imports and does not name among its requirements.

    Raises:
        EnvironmentFault: one of them is not installed.
    """
    for module in ("model_signing", "OpenSSL"):
        require_library(module, EXTRA, purpose="signatures are made and checked with it")


def machine_policy() -> SignaturePolicy | None:
    """Return the policy of this machine, a file that PLANSMITH_SIGNATURE_POLICY names; None if it has none.

    Raises:
        UsageError: as `read_policy`.
    """
    path = os.environ.get(POLICY_VARIABLE)
    return read_policy(Path(path)) if path else None


def is_fingerprint(text: str) -> bool:
    """Whether a text is a SHA-256 in lower-case hexadecimal digits."""
    return _SHA256.fullmatch(text) is not None


def _fingerprint(text: str) -> str:
    """Normalize a SHA-256 as OpenSSL and sha256sum print it."""
    digits = text.lower().removeprefix("sha256:").replace(":", "")
    if not is_fingerprint(digits):
        raise ValueError(f"{text!r} is no SHA-256 fingerprint: that has 64 hexadecimal digits")
    return digits


class CertificateTrust(Record):
    """Trusted certificate authority.

    Attributes:
        roots: its certificates, PEM text.
        subject: what the signing certificate must be issued to, such as "CN=release,O=Example" (RFC 4514); empty for
            any certificate of the authority.
    """

    roots: str
    subject: str = ""


class SigstoreTrust(Record):
    """Trusted Sigstore identity.

    Attributes:
        identity: such as a mail address or the URL of a workflow.
        issuer: the OpenID Connect issuer that vouched for it.
        trust_config: the configuration of a private instance, JSON text; empty for the public one.
    """

    identity: str
    issuer: str
    trust_config: str = ""


class SignaturePolicy(Record):
    """Signature policy: a release must be signed by one of those named, and by nothing revoked.

    Attributes:
        keys: trusted public keys, PEM text.
        certificates: trusted certificate authorities.
        sigstore: trusted Sigstore identities.
        revoked: SHA-256 fingerprints of public keys and certificates that are not accepted, whoever trusts them.
    """

    keys: tuple[str, ...] = ()
    certificates: tuple[CertificateTrust, ...] = ()
    sigstore: tuple[SigstoreTrust, ...] = ()
    revoked: tuple[Annotated[str, AfterValidator(_fingerprint)], ...] = ()

    @model_validator(mode="after")
    def _trusts_somebody(self) -> SignaturePolicy:
        if not (self.keys or self.certificates or self.sigstore):
            raise ValueError("trusts nobody: name keys, certificates or sigstore identities")
        return self


def read_policy(path: Path) -> SignaturePolicy:
    """Read a policy file; the files that it names are relative to it, and their contents become part of the policy.

    Raises:
        UsageError: it cannot be read, or is no policy; every problem is told.
        EnvironmentFault: model-signing is not installed.
    """
    from plansmith.config.yaml_source import read_text  # brings what reads specs, which stores need not

    require_signing_library()
    form = "a signature policy is a mapping with `keys`, `certificates` or `sigstore`"
    values = read_text(path, form=form, examples="docs/signing.md").values
    problems: list[str] = []
    contents = _with_contents(values, path.parent, problems)
    if not problems:
        try:
            return SignaturePolicy.model_validate(contents)
        except ValidationError as invalid:
            problems = [_problem(error["loc"], _message(error)) for error in invalid.errors()]
    raise UsageError("\n".join(f"{path}: {problem}" for problem in problems), remedy=_REMEDY)


def _message(error: Mapping[str, Any]) -> str:
    return "is no key of a policy" if error["type"] == "extra_forbidden" else validation_message(error)


def _problem(location: tuple[int | str, ...], message: str) -> str:
    return f"{'.'.join(map(str, location))}: {message}" if location else message


def _with_contents(values: dict[str, Any], folder: Path, problems: list[str]) -> dict[str, Any]:
    """Return the values with the contents of the files that they name; what is no list is left to the validation."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificates

    def content(name: object, kind: str) -> object:
        if not isinstance(name, str):
            return name
        try:
            text = (folder / name).read_text(encoding="utf-8")
            if kind == "public key":
                load_pem_public_key(text.encode())
            elif kind == "certificate":
                load_pem_x509_certificates(text.encode())
        except OSError as error:
            problems.append(f"cannot read {name}: {error.strerror}")
        except ValueError:
            problems.append(f"{name} is no {kind} in PEM form")
        else:
            return text
        return name

    def replaced(key: str, field: str, kind: str) -> object:
        entries = values[key]
        if not isinstance(entries, list):
            return entries
        return [
            entry | {field: content(entry[field], kind)} if isinstance(entry, dict) and field in entry else entry
            for entry in entries
        ]

    result = dict(values)
    if isinstance(values.get("keys"), list):
        result["keys"] = [content(name, "public key") for name in values["keys"]]
    if "certificates" in values:
        result["certificates"] = replaced("certificates", "roots", "certificate")
    if "sigstore" in values:
        result["sigstore"] = replaced("sigstore", "trust_config", "trust configuration")
    return result
