"""A signature counts if it covers exactly the files and is by whom the policy names, now; all else is refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError, SignatureError, UsageError
from plansmith.records.release import MANIFEST_FILE
from plansmith.signing.policy import read_policy
from plansmith.signing.signer import Signer
from plansmith.signing.verification import SignatureStatus, check_signature, claimed_signer
from plansmith.triton.repository.signature import read_signature, release_status, sign_release, signature_file

from ..support.certificates import KeyRing
from ..support.stores.releases import MODEL, PackagedRelease, make_release

FILES = {MANIFEST_FILE: "ab" * 32, "model/model.onnx": "cd" * 32}


@pytest.fixture
def release(tmp_path: Path) -> PackagedRelease:
    return make_release(tmp_path / "repository")


def status_of(release: PackagedRelease, ring: KeyRing, **fields: object) -> SignatureStatus:
    return release_status(release.repository, MODEL, release.version, ring.policy(**fields))


def test_signed_release_is_accepted(release: PackagedRelease, ring: KeyRing) -> None:
    """A signed release is accepted, keeps its manifest, and is refused before it is signed."""
    before = release.repository.manifest(MODEL, 1)
    assert status_of(release, ring).state == "unsigned"
    by = sign_release(release.repository, MODEL, 1, ring.signer())
    assert status_of(release, ring) == SignatureStatus(state="valid", signer=by)
    assert by == f"key {ring.fingerprint('release')[:16]}"
    assert release.repository.manifest(MODEL, 1) == before
    assert release.repository.damage(MODEL, 1) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "model" / "model.onnx").write_bytes(b"another"), "model/model.onnx differs"),
        (lambda folder: (folder / "model" / "extra.bin").write_bytes(b"more"), "model/extra.bin was added"),
        (lambda folder: (folder / "build.log").unlink(), "build.log is missing"),
        (lambda folder: (folder / "model" / "link").symlink_to("model.onnx"), "link is a link"),
        (lambda folder: signature_file(folder).write_text("{}"), "model.sig is damaged"),
    ],
    ids=["swapped", "added", "removed", "link", "no signature"],
)
def test_changed_release_is_refused(release: PackagedRelease, ring: KeyRing, change: Any, problem: str) -> None:
    """A swapped, added or removed file is refused by name."""
    sign_release(release.repository, MODEL, 1, ring.signer())
    change(release.folder)
    status = status_of(release, ring)
    assert (status.state, problem in status.problem) == ("invalid", True), status


def test_signature_of_another_release_is_refused(tmp_path: Path, ring: KeyRing) -> None:
    """The signature of another release does not count, though the same key made it."""
    releases = [make_release(tmp_path / "repository", answer) for answer in (1, 2)]
    for release in releases:
        sign_release(release.repository, MODEL, release.version, ring.signer())
    signature_file(releases[1].folder).write_bytes(signature_file(releases[0].folder).read_bytes())
    problem = status_of(releases[1], ring).problem
    assert "manifest.json, model/model.onnx" in problem
    assert f"not what was signed as {MODEL}-1" in problem


def test_damaged_release_is_not_signed(release: PackagedRelease, ring: KeyRing) -> None:
    """What is no longer as it was published is not signed."""
    (release.folder / "model" / "model.onnx").write_bytes(b"another")
    with pytest.raises(PlansmithError, match=r"model/model.onnx is damaged"):
        sign_release(release.repository, MODEL, 1, ring.signer())
    assert read_signature(release.folder) is None


def test_untrusted_and_revoked_keys_are_refused(ring: KeyRing) -> None:
    """A key that the policy does not name, or revokes, is refused, whatever the signature says of itself."""
    signature = ring.signer().sign(FILES, "m")
    ring.key("other")
    status = check_signature(signature, FILES, ring.policy(keys=["other.pub"]))
    assert "whom the policy does not name" in status.problem
    revoked = ring.policy(keys=["release.pub"], revoked=[f"SHA256:{ring.fingerprint('release').upper()}"])
    assert "is revoked" in check_signature(signature, FILES, revoked).problem
    claimed = signature.replace(ring.fingerprint("release").encode(), ring.fingerprint("other").encode())
    assert claimed_signer(claimed) == f"key {ring.fingerprint('other')[:16]}"
    assert "is revoked" in check_signature(claimed, FILES, revoked).problem
    assert check_signature(claimed, FILES, ring.policy(keys=["other.pub"])).state == "invalid"


def test_certificates_must_be_valid_now(ring: KeyRing) -> None:
    """A certificate counts while it and its chain are valid, and for whom the policy names."""
    ring.certificate("root", "root", is_authority=True)
    leaf = ring.certificate("ci", "root")
    trusted = [{"roots": "root.crt", "subject": "CN=ci"}]
    policy = ring.policy(certificates=trusted)
    signature = ring.signer("ci", certified=True).sign(FILES, "m")
    assert check_signature(signature, FILES, policy) == SignatureStatus(state="valid", signer="certificate CN=ci")
    assert "differs" in check_signature(signature, FILES | {MANIFEST_FILE: "00" * 32}, policy).problem
    others = ring.policy(certificates=[{"roots": "root.crt", "subject": "CN=somebody"}])
    assert "does not name" in check_signature(signature, FILES, others).problem
    from cryptography.hazmat.primitives import hashes

    revoked = ring.policy(certificates=trusted, revoked=[leaf.fingerprint(hashes.SHA256()).hex(":")])
    assert "CN=ci is revoked" in check_signature(signature, FILES, revoked).problem
    ring.certificate("ci", "root", days=-1)
    expired = ring.signer("ci", certified=True).sign(FILES, "m")
    assert "CN=ci expired on" in check_signature(expired, FILES, policy).problem


def test_certificate_chain_must_be_valid_now(ring: KeyRing) -> None:
    """An expired or forged intermediate certificate is refused, though the signing certificate is valid."""
    ring.certificate("root", "root", is_authority=True)
    policy_fields = {"certificates": [{"roots": "root.crt"}]}
    for days, state in ((30, "valid"), (-1, "invalid")):
        ring.certificate("middle", "root", days=days, is_authority=True)
        ring.certificate("ci", "middle")
        signer = Signer(key=ring.key("ci"), certificate=ring.folder / "ci.crt", chain=(ring.folder / "middle.crt",))
        status = check_signature(signer.sign(FILES, "m"), FILES, ring.policy(**policy_fields))
        assert status.state == state, status
    assert "no valid chain" in status.problem
    ring.certificate("middle", "root")  # no authority
    ring.certificate("ci", "middle")
    assert check_signature(signer.sign(FILES, "m"), FILES, ring.policy(**policy_fields)).state == "invalid"


def test_encrypted_key_signs_with_its_password(ring: KeyRing) -> None:
    """An encrypted key signs with its password, also beside a certificate, and no message holds a password."""
    secret = "correct horse"
    key = ring.key("release", password=secret)
    ring.certificate("root", "root", is_authority=True)
    ring.certificate("release", "root")
    signature = Signer(key=key, password=secret).sign(FILES, "m")
    assert check_signature(signature, FILES, ring.policy()).state == "valid"
    certified = Signer(key=key, password=secret, certificate=ring.folder / "release.crt")
    policy = ring.policy(certificates=[{"roots": "root.crt"}])
    assert check_signature(certified.sign(FILES, "m"), FILES, policy).state == "valid"
    assert secret not in repr(certified)
    other = Signer(key=ring.key("other"), certificate=ring.folder / "release.crt")
    with pytest.raises(SignatureError, match="the certificate of another key"):
        other.sign(FILES, "m")
    for wrong in ("", "wrong battery"):
        with pytest.raises(SignatureError, match="cannot sign") as refused:
            Signer(key=key, password=wrong).sign(FILES, "m")
        assert not wrong or wrong not in str(refused.value)
        assert "PLANSMITH_SIGN_PASSWORD" in refused.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("certified", [False, True], ids=["key", "certificate"])
def test_other_tools_verify_signature(release: PackagedRelease, ring: KeyRing, *, certified: bool) -> None:
    """OpenSSF's own command accepts what plansmith signed, and refuses it when a file is swapped."""
    ring.certificate("root", "root", is_authority=True)
    ring.certificate("release", "root")
    sign_release(release.repository, MODEL, 1, ring.signer(certified=certified))
    trusted = (
        ("certificate", "--certificate_chain", ring.folder / "root.crt")
        if certified
        else ("key", "--public_key", ring.folder / "release.pub")
    )
    words = [*trusted, "--signature", signature_file(release.folder), release.folder]
    command = [sys.executable, "-m", "model_signing", "verify", *map(str, words)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (release.folder / "build.log").write_text("another")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_plansmith_verifies_signature_of_other_tools(release: PackagedRelease, ring: KeyRing) -> None:
    """A release that OpenSSF's library signed is accepted; one of which it left files out is not."""
    from model_signing import hashing, signing

    path, key = signature_file(release.folder), ring.key("release")
    whole = hashing.Config().set_ignored_paths(paths=[path.name], ignore_git_paths=False)
    partial = hashing.Config().set_ignored_paths(paths=[path.name, "model"])
    for config, state in ((whole, "valid"), (partial, "invalid")):
        signer = signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(config)
        signer.sign(release.folder, path)
        assert status_of(release, ring).state == state
    assert "model/model.onnx was added" in status_of(release, ring).problem


def test_sigstore_out_of_reach_is_said(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sigstore that cannot be reached is an error with a remedy, which holds no token; so it is for a verification."""
    from sigstore.models import ClientTrustConfig

    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("no route to https://tuf-repo-cdn.sigstore.dev for a.secret.token")

    monkeypatch.setattr(ClientTrustConfig, "production", unreachable)
    with pytest.raises(SignatureError, match="Sigstore cannot sign: no route") as refused:
        Signer(sigstore=True, identity_token="a.secret.token").sign(FILES, "m")
    assert "a.secret.token" not in str(refused.value)
    ring.certificate("ci", "ci")
    signature = ring.signer("ci", certified=True).sign(FILES, "m").replace(b'"tlogEntries": []', b'"tlogEntries": [{}]')
    policy = ring.policy(sigstore=[{"identity": "ci@example.com", "issuer": "https://issuer.example"}])
    with pytest.raises(EnvironmentFault, match="trusted root cannot be had"):
        check_signature(signature, FILES, policy)
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(SignatureError, match="this job has none"):
        Signer(sigstore=True).sign(FILES, "m")


def test_forged_signatures_are_refused(ring: KeyRing) -> None:
    """Whatever is broken in a signature, it is refused and raises nothing."""
    signature, policy = ring.signer().sign(FILES, "m"), ring.policy()
    for old, new in (
        (b'"signatures":[', b'"signatures":[],"others":['),
        (b"application/vnd.in-toto+json", b"text/plain"),
        (b'"publicKey"', b'"certificate"'),
        (b'"payload":"', b'"payload":"AAAA'),
    ):
        assert old in signature
        assert check_signature(signature.replace(old, new), FILES, policy).state == "invalid"
    hidden = signature.replace(ring.fingerprint("release").encode(), rb"\u001b[2J")
    assert claimed_signer(hidden) == "a key that it does not name", "no text of its own reaches a terminal"
    for text in (b"", b"[]", b"\xff", b'{"verificationMaterial": 1}'):
        assert check_signature(text, FILES, policy).state == "invalid"


def test_policy_problems_are_all_told(ring: KeyRing) -> None:
    """Every problem of a policy is told, and one that trusts nobody is none."""
    ring.key("release")
    for fields, problems in (
        ({"keys": ["none.pub", "policy.yaml"]}, ["cannot read none.pub", "policy.yaml is no public key"]),
        ({"keyz": ["release.pub"], "revoked": ["12"]}, ["keyz: is no key of a policy", "'12' is no SHA-256"]),
        ({"revoked": [hashlib.sha256(b"").hexdigest()]}, ["trusts nobody"]),
        ({"certificates": [{"roots": "release.pub"}]}, ["release.pub is no certificate"]),
    ):
        with pytest.raises(UsageError) as refused:
            read_policy(ring.policy_file(**fields))
        assert all(problem in refused.value.message for problem in problems), refused.value.message


def test_signers_exclude_each_other(ring: KeyRing) -> None:
    """A release is signed in one way, with what belongs to it."""
    key = ring.key("release")
    for fields in (
        {},
        {"key": key, "sigstore": True},
        {"key": key, "chain": (key,)},
        {"sigstore": True, "certificate": key},
        {"key": key, "trust_config": key},
    ):
        with pytest.raises(UsageError):
            Signer(**fields)
