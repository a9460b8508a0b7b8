"""Signatures go with releases into stores and out of them; policies of stores and machines refuse the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.errors import SignatureError
from plansmith.records.destination import Location
from plansmith.records.release import SIGNATURE_FILE, Fingerprint
from plansmith.signing.policy import SignaturePolicy
from plansmith.stores.initialize import set_signature_policy
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.reader import list_versions, read_fingerprint, write_fingerprint
from plansmith.stores.repository_view import keep_view
from plansmith.stores.store import Store, open_objects
from plansmith.stores.sync.mirror import Mirror, Pulled, pull
from plansmith.stores.verify import verify_repository, verify_store
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.repository.signature import (
    read_signature,
    release_status,
    shown_problem,
    sign_release,
    signature_obstacle,
)

from ..support.certificates import KeyRing
from ..support.faults.packages import publish as publish_package
from ..support.faults.packages import write_ensemble
from ..support.stores.followed import Site
from ..support.stores.releases import MODEL, PackagedRelease, make_release
from ..support.stores.s3 import S3
from ..support.stores.scripted import ScriptedTriton, tritons
from ..support.triton.versions import MODEL as ANSWERS

__all__ = ["tritons"]

FINGERPRINT = Fingerprint(version=1, spec={}, source="", revision="", data="", target="", tools={}, destinations=())


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that is not there yet, in a folder and in S3."""
    if request.param == "folder":
        return Store(open_objects(Location(to=str(tmp_path / "store")), Path()))
    s3: S3 = request.getfixturevalue("s3")
    return Store(open_objects(s3.place(), Path()))


@pytest.fixture
def in_folder(tmp_path: Path) -> Store:
    """A store in a folder that is not there yet, for what does not hang on where a store is."""
    return Store(open_objects(Location(to=str(tmp_path / "store")), Path()))


def publish(store: Store, release: PackagedRelease, *aliases: str) -> int:
    digester = Digester(release.folder.parent / "no-memo", read_only=True)
    terms = Terms(aliases=aliases or ("current",))
    return publish_release(store, release.folder, release.manifest, digester, terms=terms).version


def sign(release: PackagedRelease, ring: KeyRing, name: str = "release") -> PackagedRelease:
    sign_release(release.repository, MODEL, release.version, ring.signer(name))
    return release


def bring(store: Store, mirror: Mirror, text: str = MODEL) -> Pulled:
    catalogue, version = store.find(text)
    with mirror.lock(store, alone=False):
        return pull(store, mirror, catalogue, version)


def test_signature_goes_into_store_and_out(store: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A signed release is pulled with its signature, is accepted here, and names its signer in a listing."""
    policy = ring.policy()
    release = sign(make_release(tmp_path / "repository"), ring)
    publish(store, release)
    set_signature_policy(store, policy)
    pulled = bring(store, Mirror(tmp_path / "mirror", policy))
    assert read_signature(Path(pulled.release)) == read_signature(release.folder)
    mirror = Mirror(tmp_path / "mirror", policy)
    assert release_status(mirror.repository, MODEL, 1, policy).state == "valid"
    assert mirror.is_whole(MODEL)
    (listed,) = list_versions(store, MODEL)
    assert listed.signer == f"key {ring.fingerprint('release')[:16]}"
    assert verify_store(store).damages == ()
    assert verify_repository(mirror.repository, policy=policy).damages == ()


def test_stored_version_gets_signature(store: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A version that a store has gets a signature, and another one, and keeps its number, aliases and fingerprint."""
    release = make_release(tmp_path / "repository")
    assert publish(store, release) == 1
    digest = store.find(MODEL)[1].digest
    write_fingerprint(store, MODEL, digest, FINGERPRINT)
    mirror = Mirror(tmp_path / "mirror")
    bring(store, mirror)
    for name in ("release", "other"):
        sign(release, ring, name)
        assert publish(store, release) == 1
        catalogue, version = store.find(MODEL)
        assert [entry.version for entry in catalogue.versions] == [1]
        assert digest in version.before_signing
        assert read_fingerprint(store, MODEL) == FINGERPRINT
        pulled = bring(store, mirror)
        assert read_signature(Path(pulled.release)) == read_signature(release.folder)
        assert 0 < pulled.fetched_bytes < 10_000, "nothing but the signature"
    (release.folder / SIGNATURE_FILE).unlink()
    assert publish(store, release) == 1
    assert store.find(MODEL)[1].digest == version.digest, "an unsigned copy takes no signature away"


def test_signature_holds_under_another_number(in_folder: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A signed release that the store numbers anew is accepted where it is pulled, and refused when changed there."""
    policy = ring.policy()
    publish(in_folder, make_release(tmp_path / "repository"))
    release = sign(make_release(tmp_path / "elsewhere", 2), ring)
    assert (release.version, publish(in_folder, release)) == (1, 2)
    mirror = Mirror(tmp_path / "mirror", policy)
    folder = Path(bring(in_folder, mirror).release)
    assert release_status(mirror.repository, MODEL, 2, policy).state == "valid"
    assert bring(in_folder, mirror).unchanged
    for name in ("manifest.json", "report.html"):
        text = (folder / name).read_text()
        (folder / name).unlink()
        (folder / name).write_text(text.replace(MODEL, "liar", 1))
        problem = release_status(mirror.repository, MODEL, 2, policy).problem
        assert problem == f"{name} was changed after the release was pulled"
        assert not bring(in_folder, mirror).unchanged, "it is mended"
        assert release_status(mirror.repository, MODEL, 2, policy).state == "valid"


def test_machine_refuses_unsigned_copy(in_folder: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A machine with a policy takes no unsigned release, and nothing of another's; what it has stays."""
    policy = ring.policy()
    publish(in_folder, sign(make_release(tmp_path / "repository", 1), ring))
    mirror = Mirror(tmp_path / "mirror", policy)
    bring(in_folder, mirror)
    second = make_release(tmp_path / "repository", 2)
    publish(in_folder, second)
    with pytest.raises(SignatureError, match="version 2 is refused: it is not signed") as refused:
        bring(in_folder, mirror)
    assert (refused.value.model, refused.value.step) == (MODEL, "signature")
    publish(in_folder, sign(second, ring, "stranger"))
    with pytest.raises(SignatureError, match="whom the policy does not name"):
        bring(in_folder, mirror)
    assert mirror.shown(MODEL) == 1
    assert mirror.repository.versions(MODEL) == [1]
    damages = verify_store(in_folder, quick=True, policy=policy).damages
    assert [(damage.version, damage.path, bool(damage.remedy)) for damage in damages] == [(2, SIGNATURE_FILE, True)]


def test_store_refuses_unsigned_release(in_folder: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A store with a policy takes and gives no unsigned release, whoever asks, and shows none to a Triton."""
    first = make_release(tmp_path / "repository", 1)
    publish(in_folder, first)
    set_signature_policy(in_folder, ring.policy())
    others = Store(in_folder.objects)
    assert others.marker() is not None
    with pytest.raises(SignatureError, match="it is not signed"):
        publish(others, make_release(tmp_path / "repository", 2))
    with pytest.raises(SignatureError):
        bring(others, Mirror(tmp_path / "mirror"))
    with pytest.raises(SignatureError):
        keep_view(others, MODEL)
    assert not (tmp_path / "mirror").exists()
    assert publish(others, sign(first, ring)) == 1
    assert bring(others, Mirror(tmp_path / "mirror")).version == 1
    set_signature_policy(in_folder, None)
    assert publish(Store(in_folder.objects), make_release(tmp_path / "repository", 2)) == 2


def test_another_release_under_signed_name_is_refused(in_folder: Store, tmp_path: Path, ring: KeyRing) -> None:
    """A signature that was moved to another release in the store is refused before anything is fetched."""
    policy = ring.policy()
    first, second = (make_release(tmp_path / "repository", answer) for answer in (1, 2))
    sign(first, ring)
    (second.folder / SIGNATURE_FILE).write_bytes((first.folder / SIGNATURE_FILE).read_bytes())
    publish(in_folder, second)
    with pytest.raises(SignatureError, match=f"not what was signed as {MODEL}-1"):
        bring(in_folder, Mirror(tmp_path / "mirror", policy))


def test_shown_files_must_be_the_signed_ones(tmp_path: Path, ring: KeyRing) -> None:
    """What Triton is shown has to be the signed release's, file by file; a model of somebody else is not signed."""
    policy = ring.policy()
    release = make_release(tmp_path / "repository")
    repository = release.repository
    assert _problem(release, policy) == "version 1: it is not signed"
    sign(release, ring)
    assert shown_problem(repository, MODEL, policy) is None
    obstacle = signature_obstacle(repository, policy, lambda _: "needs a GPU")
    assert obstacle(MODEL) == "needs a GPU"
    view = (repository.root / MODEL).resolve()
    (view / "1" / "more.py").write_text("print()")
    assert "more.py that Triton is shown" in _problem(release, policy)
    (view / "1" / "more.py").unlink()
    planted = view / "1" / "__pycache__" / "model.cpython-312.pyc"
    planted.parent.mkdir()
    planted.write_bytes(b"what Python would run in place of model.py")
    assert shown_problem(repository, MODEL, policy) is None
    assert not planted.exists(), "bytecode is removed, not trusted"
    (view / "config.pbtxt").unlink()
    (view / "config.pbtxt").write_text('backend: "python"')
    assert "config.pbtxt that Triton is shown" in _problem(release, policy)
    (repository.root / "foreign" / "1").mkdir(parents=True)
    status = shown_problem(repository, "foreign", policy)
    assert status is not None
    assert "no release of plansmith's" in status.problem
    assert (obstacle("foreign") or "").startswith("signature: ")


def test_parts_of_an_ensemble_must_be_the_signed_ones(tmp_path: Path, ring: KeyRing) -> None:
    """A file beside those of a part is refused, too: Python would import it in place of a library."""
    root = tmp_path / "repository"
    draft = write_ensemble(tmp_path / "package", "one")
    publish_package(root, tmp_path / "package", draft)
    repository = ModelRepository(root)
    sign_release(repository, draft.name, 1, ring.signer("release"))
    assert shown_problem(repository, draft.name, ring.policy()) is None
    part = draft.package.members[0].model
    (root / part / "1" / "json.py").write_text("print()")
    status = shown_problem(repository, draft.name, ring.policy())
    assert status is not None
    assert "json.py that Triton is shown" in status.problem


def test_sync_loads_nothing_unsigned(tmp_path: Path, ring: KeyRing, tritons: list[ScriptedTriton]) -> None:
    """A sync has no server load what its policy refuses, though it is here already; without the policy it has."""
    site, server = Site(tmp_path), tritons[0]
    site.publish()
    with site.sync() as sync:
        assert sync.look() == []
    policy, site.mirror.signatures = site.mirror.signatures, ring.policy()
    with site.sync(server.url) as sync:
        assert {type(fault) for fault in sync.look()} == {SignatureError}
    assert not server.served.get(ANSWERS)
    site.mirror.signatures = policy
    with site.sync(server.url) as sync:
        assert sync.look() == []
    assert server.served[ANSWERS] == [1]


def _problem(release: PackagedRelease, policy: SignaturePolicy) -> str:
    status = shown_problem(release.repository, MODEL, policy)
    assert status is not None
    return status.problem
