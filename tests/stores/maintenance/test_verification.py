"""What verify finds in a store and in a repository."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.documents import content_of
from plansmith.stores.backend.object_store import Moved
from plansmith.stores.layout import catalogue_key, object_key, release_key
from plansmith.stores.maintenance.damage import Damage
from plansmith.stores.maintenance.prune import Pruner
from plansmith.stores.maintenance.retention import Retention
from plansmith.stores.maintenance.verify import verify_repository, verify_store
from plansmith.stores.store import Store
from plansmith.system.digest import Digester
from plansmith.triton.repository.repository import ModelRepository

from ...support.stores.filled import fill, let_pass, publish
from ...support.stores.releases import MODEL, make_release


def content_key(store: Store, version: int, path: str) -> str:
    """Where a file of a version lies."""
    release = store.release(MODEL, store.find(f"{MODEL}@{version}")[1])
    return object_key(next(file.sha256 for file in release.files if file.path == path))


def told(damages: tuple[Damage, ...]) -> list[tuple[int | None, str, str]]:
    return [(one.version, one.path, one.problem) for one in damages]


@pytest.mark.slow
def test_all_is_well_where_all_is_as_it_was_published(store: Store, tmp_path: Path) -> None:
    fill(store, tmp_path, 2)
    read: list[tuple[int, int]] = []
    found = verify_store(store, checked=lambda done, total: read.append((done, total)))
    assert (found.models, found.versions, found.damages, found.others) == (1, 2, (), 0)
    contents = list(store.objects.below("objects/"))
    assert found.files == len(contents)
    assert found.bytes == sum(held.bytes for held in contents)
    assert read[-1] == (found.bytes, found.bytes)
    assert read == sorted(read)
    assert len(read) >= found.files


@pytest.mark.slow
def test_a_content_of_other_bytes_is_found_by_reading_it_and_one_that_is_cut_off_or_gone_without(
    store: Store, tmp_path: Path
) -> None:
    fill(store, tmp_path, 3)
    other, cut, gone = (content_key(store, n, "model/model.onnx") for n in (1, 2, 3))
    held = {held.key: held.bytes for held in store.objects.below("objects/")}
    changed = bytearray(store.objects.read(other).content)  # type: ignore[union-attr]
    changed[100] ^= 1
    store.objects.put(other, bytes(changed))
    store.objects.put(cut, b"cut off")
    store.objects.remove([gone])
    found = verify_store(store)
    assert told(found.damages) == [
        (1, "model/model.onnx", "its content is not what was published"),
        (2, "model/model.onnx", f"has 7 bytes instead of {held[cut]:,}"),
        (3, "model/model.onnx", "missing"),
    ]
    quick = verify_store(store, quick=True)
    assert [one.version for one in quick.damages if one.version != 1] == [2, 3]


@pytest.mark.slow
def test_a_quick_look_compares_the_digests_that_an_s3_store_keeps(s3_store: Store, tmp_path: Path) -> None:
    fill(s3_store, tmp_path, 1)
    key = content_key(s3_store, 1, "model/model.onnx")
    content = s3_store.objects.read(key)
    assert content is not None
    s3_store.objects.put(key, content.content[::-1])
    assert told(verify_store(s3_store, quick=True).damages) == [
        (1, "model/model.onnx", "its content is not what was published")
    ]


def test_a_damaged_content_is_blamed_on_every_version_that_has_it_and_read_once(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    key = content_key(in_folder, 1, "config.pbtxt")
    in_folder.objects.put(key, (in_folder.objects.read(key).content)[::-1])  # type: ignore[union-attr]
    sha256 = in_folder.objects.sha256
    read: list[str] = []

    def noted(one: str, moved: Moved) -> str:
        read.append(one)
        return sha256(one, moved)

    monkeypatch.setattr(in_folder.objects, "sha256", noted)
    found = verify_store(in_folder)
    assert [(one.version, one.path) for one in found.damages] == [(n, "config.pbtxt") for n in (1, 2, 3)]
    assert read.count(key) == 1


def test_a_version_that_is_pruned_while_it_is_read_is_no_damage(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    key = content_key(in_folder, 1, "model/model.onnx")
    let_pass(monkeypatch, in_folder, 40)
    sha256 = in_folder.objects.sha256

    def meanwhile(one: str, moved: Moved) -> str:
        if one == key:
            Pruner(in_folder, Retention(keep=1, seconds=0), dry=False, settle_seconds=0).prune()
        return sha256(one, moved)

    monkeypatch.setattr(in_folder.objects, "sha256", meanwhile)
    assert verify_store(in_folder).damages == ()
    assert in_folder.find(f"{MODEL}@1")[1].pruned is not None
    in_folder.objects.remove([content_key(in_folder, 3, "model/model.onnx")])
    assert [one.version for one in verify_store(in_folder).damages] == [3]


def test_lists_that_are_lost_or_changed_are_found_and_the_other_versions_read(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 3)
    lost, changed = (in_folder.find(f"{MODEL}@{n}")[1] for n in (1, 2))
    in_folder.objects.remove([release_key(MODEL, lost.digest)])
    release = in_folder.release(MODEL, changed)
    in_folder.objects.put(
        release_key(MODEL, changed.digest), content_of(release.model_copy(update={"files": release.files[1:]}))
    )
    found = verify_store(in_folder)
    assert [(one.version, one.path, one.key) for one in found.damages] == [
        (1, "", release_key(MODEL, lost.digest)),
        (2, "", release_key(MODEL, changed.digest)),
    ]
    assert "has lost" in found.damages[0].problem
    assert "it lists other files than were published" in found.damages[1].problem
    assert found.versions == 1


def test_a_damaged_catalogue_is_found_and_the_other_models_read(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 1)
    publish(in_folder, make_release(tmp_path / "repository", 1, model="other"))
    in_folder.objects.put(catalogue_key(MODEL), b"{}")
    found = verify_store(in_folder)
    assert [(one.model, one.version, one.key) for one in found.damages] == [(MODEL, None, catalogue_key(MODEL))]
    assert (found.models, found.versions) == (2, 1)


def test_an_alias_that_stands_for_what_is_not_there_is_found(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 2)
    gone = in_folder.catalogue(MODEL)
    pruned = tuple(v.model_copy(update={"pruned": v.published}) if v.version == 2 else v for v in gone.versions)
    in_folder.objects.put(catalogue_key(MODEL), content_of(gone.model_copy(update={"versions": pruned})))
    assert told(verify_store(in_folder).damages) == [(2, "", "alias current stands for it, and it is not there")]


def test_one_model_is_looked_at_alone_and_contents_of_no_version_are_counted(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 1)
    publish(in_folder, make_release(tmp_path / "repository", 1, model="other"))
    in_folder.objects.put(object_key("0" * 64), b"left by a killed publication")
    in_folder.objects.remove([content_key(in_folder, 1, "model/model.onnx")])
    assert {one.model for one in verify_store(in_folder).damages} == {MODEL, "other"}
    assert {one.model for one in verify_store(in_folder, "other").damages} == {"other"}
    assert (verify_store(in_folder).others, verify_store(in_folder).other_bytes) == (1, 28)
    with pytest.raises(RepositoryError, match="has no model 'third'"):
        verify_store(in_folder, "third")


def test_a_release_that_is_collected_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert [one.problem for one in verify_repository(repository).damages] == ["missing"]


@pytest.mark.parametrize("quick", [True, False])
def test_a_repository_is_looked_at_alike(quick: bool, tmp_path: Path) -> None:
    made = [make_release(tmp_path / "repository", number) for number in (1, 2, 3)]
    repository = ModelRepository(tmp_path / "repository")
    assert verify_repository(repository).damages == ()
    repository.withdraw(MODEL, 2, "not good")
    for release, content in zip(made, (b"cut off", None, b""), strict=True):
        graph = release.folder / "model" / "model.onnx"
        whole = graph.read_bytes()
        graph.unlink()
        if content is not None:
            graph.write_bytes(content or whole[::-1])
    (made[0].folder / "manifest.json").write_text("{}")
    found = verify_repository(repository, MODEL, quick=quick)
    problems = {(one.version, one.path): one.problem for one in found.damages}
    assert problems.pop((2, "model/model.onnx")) == "missing"
    assert "is damaged" in problems.pop((1, ""))
    assert problems == ({} if quick else {(3, "model/model.onnx"): "its content is not what was published"})
    with pytest.raises(RepositoryError, match="has no model 'third'"):
        verify_repository(repository, "third")
