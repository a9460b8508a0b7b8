"""Signatures by what is outside of plansmith: Sigstore over HTTP, a PKCS #11 token, the vectors of other tools."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.signing.policy import SignaturePolicy, read_policy
from plansmith.signing.verification import check_signature

from ..support.certificates import KeyRing
from ..support.cli.in_process import InProcess
from ..support.servers.pkcs11_token import PIN, make_token
from ..support.servers.sigstore_server import SigstoreServer, running
from ..support.stores.releases import MODEL, make_release

VECTORS = Path(__file__).with_name("vectors")
"""Signatures that model-signing's own releases made, from scripts/tests of sigstore/model-transparency."""

IDENTITY, ISSUER = "ci@example.com", "https://issuer.example"
SECOND = "32dcb1f8e1ae52d5963e56a6ba06ab58b424c15ed2a6b70d2feca1d089370028"
FILES = {"signme-1": "bc9a717db6064a32cbe9eae6fc40651dd6d36ef1757183f590eff2b1765d7ebc", "signme-2": SECOND}


@pytest.fixture(scope="module")
def sigstore() -> Iterator[SigstoreServer]:
    """A private Sigstore."""
    with running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.services
def test_private_sigstore_signs_for_an_identity(run: InProcess, sigstore: SigstoreServer) -> None:
    """A release that a CI job signs is taken by who trusts its identity, and by nobody else."""
    make_release(run.folder / "artifacts" / "repository")
    (run.folder / "trust.json").write_text(json.dumps(sigstore.trust))
    token = sigstore.token(IDENTITY, ISSUER)
    trusting = ("--sigstore", "--trust-config", "trust.json")
    assert run("sign", MODEL, *trusting, PLANSMITH_IDENTITY_TOKEN=token).status == 0
    for name, identity, status in (("ours", IDENTITY, 0), ("theirs", "other@example.com", 10)):
        trusted = {"identity": identity, "issuer": ISSUER, "trust_config": "trust.json"}
        (run.folder / f"{name}.yaml").write_text(json.dumps({"sigstore": [trusted]}))
        answer = run("verify", "--require-signature", f"{name}.yaml")
        assert (answer.status, "whom the policy does not name" in answer.stdout + answer.stderr) == (status, status > 0)


@pytest.mark.slow
@pytest.mark.services
def test_refusal_of_sigstore_is_said_without_the_token(run: InProcess, sigstore: SigstoreServer) -> None:
    """What Sigstore refuses is one message that says why, without the token."""
    make_release(run.folder / "artifacts" / "repository")
    trust = json.loads(json.dumps(sigstore.trust).replace(sigstore.url, f"{sigstore.url}/nowhere"))
    (run.folder / "trust.json").write_text(json.dumps(trust))
    token = sigstore.token(IDENTITY, ISSUER)
    answer = run("sign", MODEL, "--sigstore", "--trust-config", "trust.json", PLANSMITH_IDENTITY_TOKEN=token)
    assert answer.status == 10
    assert "404" in answer.message
    assert token not in answer.stderr


@pytest.mark.slow
@pytest.mark.services
def test_token_signs(run: InProcess, ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that never leaves its token signs; no output holds the PIN."""
    make_release(run.folder / "artifacts" / "repository")
    uri = make_token(run.folder, ring.key("release"), monkeypatch)
    signed = run("sign", MODEL, "--pkcs11", uri)
    assert signed.stdout.startswith(f"{MODEL} version 1 is signed by key {ring.fingerprint('release')[:16]}\n")
    assert run("verify", "--require-signature", ring.policy_file()).status == 0
    refused = run("sign", MODEL, "--pkcs11", uri.replace("object=release", "object=absent"))
    assert refused.status == 10
    assert not [answer for answer in (signed, refused) if PIN in answer.stdout + answer.stderr]


@pytest.mark.parametrize(
    ("name", "files"),
    [("v1.0.0-elliptic-key", {".": FILES["signme-1"]}), ("v1.1.0-elliptic-key", FILES)],
)
def test_key_vectors_pass(name: str, files: dict[str, str]) -> None:
    """Signatures of other versions are accepted for the files that they were made of, and for no others."""
    bundle = json.loads((VECTORS / "v1.0.0-elliptic-key.sig").read_bytes())
    key = base64.b64decode(bundle["verificationMaterial"]["publicKey"]["rawBytes"]).decode()
    signature = (VECTORS / f"{name}.sig").read_bytes()
    policy = SignaturePolicy(keys=(key,))
    assert check_signature(signature, files, policy).state == "valid"
    assert check_signature(signature, files | {"ignore-me": SECOND}, policy).state == "invalid"
    assert check_signature(signature, dict.fromkeys(files, SECOND), policy).state == "invalid"


def test_sigstore_vector_passes(tmp_path: Path) -> None:
    """A signature in the public log is accepted of its identity, by the roots that the library ships."""
    import sigstore as library

    roots = next((Path(library.__file__).parent / "_store").glob("*sigstore.dev"))
    trust = {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": json.loads((roots / "trusted_root.json").read_text()),
        "signingConfig": json.loads((roots / "signing_config.v0.2.json").read_text()),
    }
    (tmp_path / "trust.json").write_text(json.dumps(trust))
    files = {"signme-1": "f6310066c7320497ea554260c32c43660bff648cb2a61194832cc086077085e1", "signme-2": SECOND}
    signature = (VECTORS / "v1.0.0-sigstore.sig").read_bytes()
    for identity, state in (("stefanb@us.ibm.com", "valid"), ("other@us.ibm.com", "invalid")):
        issuer = "https://sigstore.verify.ibm.com/oauth2"
        trusted = {"identity": identity, "issuer": issuer, "trust_config": "trust.json"}
        (tmp_path / "policy.yaml").write_text(json.dumps({"sigstore": [trusted]}))
        assert check_signature(signature, files, read_policy(tmp_path / "policy.yaml")).state == state
