"""`plansmith sign`, and `--require-signature` of the commands that read releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.repository.signature import read_signature

from ..support.certificates import KeyRing
from ..support.cli.in_process import InProcess
from ..support.stores.releases import MODEL, PackagedRelease, make_release

SECRET = "a-password-that-no-text-may-hold"


@pytest.fixture
def release(tmp_path: Path) -> PackagedRelease:
    return make_release(tmp_path / "artifacts" / "repository")


def test_release_is_signed_and_shown(run: InProcess, ring: KeyRing, release: PackagedRelease) -> None:
    """A release is signed, again, and shown so; a dry run signs nothing, and no output holds the password."""
    key = ring.key("release", password=SECRET)
    would = run("sign", MODEL, "--key", key, "--dry-run")
    assert (would.status, would.stdout) == (0, f"{MODEL} version 1 would be signed\n")
    assert "not signed" in run("show", MODEL).stdout
    assert read_signature(release.folder) is None
    locked = run("sign", MODEL, "--key", key)
    assert (locked.status, "PLANSMITH_SIGN_PASSWORD" in locked.stderr) == (10, True)
    signed = run("sign", MODEL, PLANSMITH_SIGN_KEY=str(key), PLANSMITH_SIGN_PASSWORD=SECRET)
    by = f"key {ring.fingerprint('release')[:16]}"
    assert signed.stdout.startswith(f"{MODEL} version 1 is signed by {by}\n")
    again = run("sign", MODEL, "--key", key, "--json", PLANSMITH_SIGN_PASSWORD=SECRET)
    assert (again.document["signer"], again.document["replaced"]) == (by, True)
    assert f"by {by}" in run("show", MODEL).stdout
    assert by in run("versions", MODEL).stdout
    assert not [answer for answer in (locked, signed, again) if SECRET in answer.stdout + answer.stderr]
    assert run("sign", MODEL).status == 2


def test_commands_refuse_what_is_not_signed(run: InProcess, ring: KeyRing, release: PackagedRelease) -> None:
    """Whatever takes or serves an unsigned release refuses it with exit code 10, and takes it once it is signed."""
    key, policy = ring.key("release"), ring.policy_file()
    assert run("publish", MODEL, "store").status == 0
    reading = (
        ("verify", "--store", "store"),
        ("verify",),
        ("pull", MODEL, "--store", "store", "--into", "pulled"),
        ("sync", "--store", "store", "--into", "synced", "--once"),
        ("sync", "--store", "store", "--into", "synced", "--once", "--accept-older"),
    )
    for command in (*reading, ("serve",)):
        refused = run(*command, "--require-signature", policy)
        assert (refused.status, "sign" in refused.stderr) == (10, True), command
        assert run(*command, PLANSMITH_SIGNATURE_POLICY=str(policy)).status == 10
    assert run("store", "--store", "store", "--require-signature", policy).status == 0
    assert "required, of 1 key; 0 revoked" in run("store", "--store", "store").stdout
    assert run("pull", MODEL, "--store", "store", "--into", "pulled").status == 10
    assert run("publish", MODEL, "store", "--sign", "--dry-run", "--key", key).status == 2
    assert run("publish", MODEL, "store", "--key", key).status == 2
    assert run("publish", MODEL, "store", "--sign", "--key", key, "--json").document["version"] == 1
    assert read_signature(release.folder) is not None
    for command in reading:
        assert run(*command, "--require-signature", policy).status == 0, command
    assert ring.fingerprint("release")[:16] in run("versions", MODEL, "--store", "store").stdout
    assert run("sign", MODEL, "--repository", "pulled", "--key", key).status == 7
    unsigned = run("store", "--store", "store", "--accept-unsigned", "--json").document
    assert unsigned["signatures"] is None


@pytest.mark.usefixtures("release")
def test_synced_release_is_refused_when_its_key_is_revoked(run: InProcess, ring: KeyRing) -> None:
    """A release that is here already is refused once its key is revoked, also as an older one."""
    policy = ring.policy_file()
    assert run("publish", MODEL, "store", "--sign", "--key", ring.key("release")).status == 0
    sync = ("sync", "--store", "store", "--into", "synced", "--once", "--require-signature")
    assert run(*sync, policy).status == 0
    revoked = ring.policy_file("revoked.yaml", keys=["release.pub"], revoked=[ring.fingerprint("release")])
    refused = run(*sync, revoked)
    assert (refused.status, "is revoked" in refused.stderr) == (10, True)
    assert run(*sync, revoked, "--accept-older").status == 10
    assert "is revoked" in run("serve", "--repository", "synced", "--require-signature", revoked).stderr


@pytest.mark.usefixtures("release")
def test_missing_library_names_extra(run: InProcess, ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the commands name the extra."""
    key, policy = ring.key("release"), ring.policy_file()
    monkeypatch.setattr("plansmith.system.libraries.find_spec", lambda _: None)
    for command in (("sign", MODEL, "--key", key), ("verify", "--require-signature", policy)):
        missing = run(*command)
        assert (missing.status, "plansmith[sign]" in missing.stderr) == (9, True)
    token = run("sign", MODEL, "--pkcs11", "pkcs11:token=t;object=o?pin-value=4711")
    assert (token.status, "4711" in token.stdout + token.stderr) == (9, False)
