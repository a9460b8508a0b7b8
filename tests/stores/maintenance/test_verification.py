"""What verify finds in a store and in a repository."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.documents import content_of
from plansmith.stores.backend.object_store import Moved
from plansmith.stores.layout import catalogue_key, object_key, release_key
from plansmith.stores.prune import Pruner, Retention
from plansmith.stores.store import Store
from plansmith.stores.verify import Damage, verify_repository, verify_store
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

from ...support.stores.filled import fill, let_pass, publish
from ...support.stores.releases import MODEL, make_release


def content_key(store: Store, version: int, path: str) -> str:
    """Where a file of a version lies."""
    release = store.release(MODEL, store.find(f"{MODEL}@{version}")[1])
    return object_key(next(file.sha256 for file in release.files if file.path == path))


def damage_rows(damages: tuple[Damage, ...]) -> list[tuple[int | None, str, str]]:
    return [(damage.version, damage.path, damage.problem) for damage in damages]


@pytest.mark.slow
def test_untouched_store_is_well(store: Store, tmp_path: Path) -> None:
    """All is well where all is as it was published."""
    fill(store, tmp_path, 2)
    read: list[tuple[int, int]] = []
    report = verify_store(store, checked=lambda done, total: read.append((done, total)))
    assert (report.models, report.versions, report.damages, report.others) == (1, 2, (), 0)
    contents = list(store.objects.below("objects/"))
    assert report.files == len(contents)
    assert report.bytes == sum(content.bytes for content in contents)
    assert read[-1] == (report.bytes, report.bytes)
    assert read == sorted(read)
    assert len(read) >= report.files


@pytest.mark.slow
def test_damaged_content_found(store: Store, tmp_path: Path) -> None:
    """A content of other bytes is found by reading it, and one that is cut off or gone without reading."""
    fill(store, tmp_path, 3)
    first, cut, missing = (content_key(store, n, "model/model.onnx") for n in (1, 2, 3))
    stored = {stored.key: stored.bytes for stored in store.objects.below("objects/")}
    changed = bytearray(store.objects.read(first).content)  # type: ignore[union-attr]
    changed[100] ^= 1
    store.objects.put(first, bytes(changed))
    store.objects.put(cut, b"cut off")
    store.objects.remove([missing])
    report = verify_store(store)
    assert damage_rows(report.damages) == [
        (1, "model/model.onnx", "its content is not what was published"),
        (2, "model/model.onnx", f"has 7 bytes instead of {stored[cut]:,}"),
        (3, "model/model.onnx", "missing"),
    ]
    quick = verify_store(store, quick=True)
    assert [damage.version for damage in quick.damages if damage.version != 1] == [2, 3]


@pytest.mark.slow
def test_quick_look_compares_s3_digests(s3_store: Store, tmp_path: Path) -> None:
    """A quick look compares the digests that an S3 store keeps."""
    fill(s3_store, tmp_path, 1)
    key = content_key(s3_store, 1, "model/model.onnx")
    content = s3_store.objects.read(key)
    assert content is not None
    s3_store.objects.put(key, content.content[::-1])
    assert damage_rows(verify_store(s3_store, quick=True).damages) == [
        (1, "model/model.onnx", "its content is not what was published")
    ]


def test_damaged_content_blamed_on_versions(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged content is blamed on every version that has it and read once."""
    fill(in_folder, tmp_path, 3)
    key = content_key(in_folder, 1, "config.pbtxt")
    in_folder.objects.put(key, (in_folder.objects.read(key).content)[::-1])  # type: ignore[union-attr]
    sha256 = in_folder.objects.sha256
    read: list[str] = []

    def noted(item: str, moved: Moved) -> str:
        read.append(item)
        return sha256(item, moved)

    monkeypatch.setattr(in_folder.objects, "sha256", noted)
    report = verify_store(in_folder)
    assert [(item.version, item.path) for item in report.damages] == [(n, "config.pbtxt") for n in (1, 2, 3)]
    assert read.count(key) == 1


def test_version_pruned_meanwhile_is_undamaged(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is pruned while it is read is no damage."""
    fill(in_folder, tmp_path, 3)
    key = content_key(in_folder, 1, "model/model.onnx")
    let_pass(monkeypatch, in_folder, 40)
    sha256 = in_folder.objects.sha256

    def meanwhile(item: str, moved: Moved) -> str:
        if item == key:
            Pruner(in_folder, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
        return sha256(item, moved)

    monkeypatch.setattr(in_folder.objects, "sha256", meanwhile)
    assert verify_store(in_folder).damages == ()
    assert in_folder.find(f"{MODEL}@1")[1].pruned is not None
    in_folder.objects.remove([content_key(in_folder, 3, "model/model.onnx")])
    assert [item.version for item in verify_store(in_folder).damages] == [3]


def test_lost_or_changed_lists_found(in_folder: Store, tmp_path: Path) -> None:
    """Lists that are lost or changed are found, and the other versions are read."""
    fill(in_folder, tmp_path, 3)
    lost, changed = (in_folder.find(f"{MODEL}@{n}")[1] for n in (1, 2))
    in_folder.objects.remove([release_key(MODEL, lost.digest)])
    release = in_folder.release(MODEL, changed)
    in_folder.objects.put(
        release_key(MODEL, changed.digest), content_of(release.model_copy(update={"files": release.files[1:]}))
    )
    report = verify_store(in_folder)
    assert [(damage.version, damage.path, damage.key) for damage in report.damages] == [
        (1, "", release_key(MODEL, lost.digest)),
        (2, "", release_key(MODEL, changed.digest)),
    ]
    assert "has lost" in report.damages[0].problem
    assert "it lists other files than were published" in report.damages[1].problem
    assert report.versions == 1


def test_damaged_catalogue_found(in_folder: Store, tmp_path: Path) -> None:
    """A damaged catalogue is found, and the other models are read."""
    fill(in_folder, tmp_path, 1)
    publish(in_folder, make_release(tmp_path / "repository", 1, model="other"))
    in_folder.objects.put(catalogue_key(MODEL), b"{}")
    report = verify_store(in_folder)
    assert [(damage.model, damage.version, damage.key) for damage in report.damages] == [
        (MODEL, None, catalogue_key(MODEL))
    ]
    assert (report.models, report.versions) == (2, 1)


def test_dangling_alias_found(in_folder: Store, tmp_path: Path) -> None:
    """An alias that stands for what is not there is found."""
    fill(in_folder, tmp_path, 2)
    line = in_folder.catalogue(MODEL)
    pruned = tuple(v.model_copy(update={"pruned": v.published}) if v.version == 2 else v for v in line.versions)
    in_folder.objects.put(catalogue_key(MODEL), content_of(line.model_copy(update={"versions": pruned})))
    assert damage_rows(verify_store(in_folder).damages) == [(2, "", "alias current stands for it, and it is not there")]


def test_one_model_verified_alone(in_folder: Store, tmp_path: Path) -> None:
    """One model is looked at alone, and contents of no version are counted."""
    fill(in_folder, tmp_path, 1)
    publish(in_folder, make_release(tmp_path / "repository", 1, model="other"))
    in_folder.objects.put(object_key("0" * 64), b"left by a killed publication")
    in_folder.objects.remove([content_key(in_folder, 1, "model/model.onnx")])
    assert {damage.model for damage in verify_store(in_folder).damages} == {MODEL, "other"}
    assert {damage.model for damage in verify_store(in_folder, "other").damages} == {"other"}
    assert (verify_store(in_folder).others, verify_store(in_folder).other_bytes) == (1, 28)
    with pytest.raises(RepositoryError, match="has no model 'third'"):
        verify_store(in_folder, "third")


def test_release_collected_meanwhile_is_undamaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is collected while it is read is no damage."""
    repository = make_release(tmp_path / "repository", 1).repository
    make_release(tmp_path / "repository", 2)
    repository.withdraw(MODEL, 1, "not good")
    read, alone = Digester.file, Lock()

    def meanwhile(digester: Digester, path: Path, **how: bool) -> str:
        with alone:
            if 1 in repository.versions(MODEL):
                repository.remove(repository.release(MODEL, 1))
        return read(digester, path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Digester, "file", meanwhile)
        assert verify_repository(repository).damages == ()
    assert repository.versions(MODEL) == [2]
    (repository.release(MODEL, 2) / "model" / "model.onnx").unlink()
    assert [damage.problem for damage in verify_repository(repository).damages] == ["missing"]


@pytest.mark.parametrize("quick", [True, False])
def test_repository_verified_alike(quick: bool, tmp_path: Path) -> None:
    """A repository is looked at alike."""
    releases = [make_release(tmp_path / "repository", number) for number in (1, 2, 3)]
    repository = ModelRepository(tmp_path / "repository")
    assert verify_repository(repository).damages == ()
    repository.withdraw(MODEL, 2, "not good")
    for release, content in zip(releases, (b"cut off", None, b""), strict=True):
        graph = release.folder / "model" / "model.onnx"
        whole = graph.read_bytes()
        graph.unlink()
        if content is not None:
            graph.write_bytes(content or whole[::-1])
    (releases[0].folder / "manifest.json").write_text("{}")
    report = verify_repository(repository, MODEL, quick=quick)
    problems = {(damage.version, damage.path): damage.problem for damage in report.damages}
    assert problems.pop((2, "model/model.onnx")) == "missing"
    assert "is damaged" in problems.pop((1, ""))
    assert problems == ({} if quick else {(3, "model/model.onnx"): "its content is not what was published"})
    with pytest.raises(RepositoryError, match="has no model 'third'"):
        verify_repository(repository, "third")
