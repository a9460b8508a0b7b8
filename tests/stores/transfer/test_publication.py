"""A release in a store: whole, once, under a number of its own, and only then visible."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Publication
from plansmith.records.model import Tensor
from plansmith.records.release import MANIFEST_FILE, Interface, Manifest
from plansmith.stores.backend import s3_transfer
from plansmith.stores.layout import GRACE_SECONDS, object_key, release_key
from plansmith.stores.publication import Terms, plan_release, publish_release
from plansmith.stores.reader import read_stored_manifest
from plansmith.stores.store import Store
from plansmith.stores.transfer import TransferProgress, send_contents
from plansmith.system.digest import Digester, digest_of_files

from ...support.faults.packages import file_entries
from ...support.stores.releases import BULK_FILE, MODEL, PackagedRelease, make_release


def publish(store: Store, made: PackagedRelease, **terms: Any) -> Publication:
    """Publish a release with a digester that remembers nothing."""
    return publish_release(store, made.folder, made.manifest, digester(made), terms=Terms(**terms))


def digester(made: PackagedRelease) -> Digester:
    return Digester(made.folder.parent / "no-memo", read_only=True)


def edited(made: PackagedRelease, **fields: object) -> Manifest:
    """Write another manifest into a release, as if it had been made at another time or elsewhere."""
    manifest = made.manifest.model_copy(update=fields)
    (made.folder / MANIFEST_FILE).unlink()
    (made.folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return manifest


def contents(store: Store) -> set[str]:
    return {item.key for item in store.objects.below("objects/")}


def test_release_arrives_with_number_and_alias(store: Store, tmp_path: Path) -> None:
    """A release arrives whole with number and alias."""
    local_release = make_release(tmp_path / "repository")
    publication = publish(store, local_release)
    catalogue, version = store.find(MODEL)
    release = store.release(MODEL, version)
    assert (publication.version, publication.aliases, publication.unchanged) == (1, ("current",), False)
    assert publication.sent_bytes == publication.total_bytes == sum(file.bytes for file in release.files)
    assert sorted(release.files, key=lambda file: file.path) == sorted(
        file_entries(local_release.folder), key=lambda f: f.path
    )
    assert publication.digest == version.digest == digest_of_files(release.files)
    assert [v.version for v in catalogue.versions] == [1]
    assert read_stored_manifest(store.objects, release) == local_release.manifest
    for file in release.files:
        store.objects.fetch(object_key(file.sha256), tmp_path / "back", file.sha256)
        assert (tmp_path / "back").read_bytes() == (local_release.folder / file.path).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_earlier_file_parts_not_counted(s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a file that an earlier attempt sent do not count."""
    release = make_release(tmp_path / "repository", bulk_bytes=12 << 20)
    arrived: list[int] = []

    def cut(shipment: Any, upload_id: str, number: int, *args: Any) -> dict[str, Any]:
        if number == 3:
            raise ConnectionAbortedError
        arrived.append(number)
        return send_part(shipment, upload_id, number, *args)

    with monkeypatch.context() as patch:
        send_part = s3_transfer._send_part
        patch.setattr(s3_transfer, "_send_part", cut)
        with pytest.raises(ConnectionAbortedError):
            publish(s3_store, release)
    publication = publish(s3_store, release)
    small = sum(file.bytes for file in release.manifest.files if file.path != BULK_FILE)
    assert (
        (5 << 20) * len(arrived) <= publication.total_bytes - publication.sent_bytes <= (5 << 20) * len(arrived) + small
    )


def test_common_contents_sent_once(in_folder: Store, tmp_path: Path) -> None:
    """What two releases have in common is sent once."""
    first = make_release(tmp_path / "repository", 1, bulk_bytes=100_000)
    second = make_release(tmp_path / "repository", 2, bulk_bytes=100_000)
    publish(in_folder, first)
    publication = publish(in_folder, second)
    assert publication.total_bytes > 100_000 > publication.sent_bytes > 0
    assert publication.version == 2


@pytest.mark.slow
def test_plan_writes_nothing(store: Store, tmp_path: Path) -> None:
    """A plan says what is done then and writes nothing."""
    first, second = (make_release(tmp_path / "repository", n, bulk_bytes=5000) for n in (1, 2))
    for release in (first, second, second):
        before = [(item.key, item.changed) for item in store.objects.below("")]
        planned = plan_release(store, release.folder, release.manifest, digester(release))
        assert [(item.key, item.changed) for item in store.objects.below("")] == before
        publication = publish(store, release)
        # What the server lacks, if anything, is found out when the store is made.
        assert publication == planned.model_copy(update={"caution": store.objects.abilities.shortcoming})


def test_repository_number_kept_if_highest(in_folder: Store, tmp_path: Path) -> None:
    """The number of the repository is kept where it is the highest."""
    elsewhere = [make_release(tmp_path / "elsewhere", answer) for answer in (1, 2, 3)]
    local_releases = [make_release(tmp_path / "here", answer) for answer in (4, 5, 6)]
    assert [
        publish(in_folder, release).version
        for release in (elsewhere[1], local_releases[0], local_releases[2], elsewhere[0])
    ] == [2, 3, 4, 5]
    assert [version.version for version in in_folder.catalogue(MODEL).versions] == [2, 3, 4, 5]
    assert in_folder.find(MODEL)[1].version == 5


def test_unchanged_release_keeps_version(in_folder: Store, tmp_path: Path) -> None:
    """A release that says nothing new stays the version that is there."""
    release = make_release(tmp_path / "here")
    again = make_release(tmp_path / "elsewhere")
    manifest = edited(again, created="2027-01-01T00:00:00.000+00:00")
    publish(in_folder, release)
    publication = publish_release(in_folder, again.folder, manifest, digester(again))
    assert (publication.version, publication.unchanged, publication.sent_bytes) == (1, True, 0)
    forced = publish_release(in_folder, again.folder, manifest, digester(again), terms=Terms(force=True))
    assert (forced.version, forced.unchanged) == (2, False)


def test_number_and_aliases_written_together(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number and aliases come in one write."""
    written: list[str] = []
    for name in ("create", "swap"):
        monkeypatch.setattr(in_folder.objects, name, _noting(getattr(in_folder.objects, name), written))
    publish(in_folder, make_release(tmp_path / "repository", 1), aliases=("current", "champion", "canary"))
    publish(in_folder, make_release(tmp_path / "repository", 2), aliases=("current", "canary"))
    assert [key for key in written if key.startswith("models/")] == [f"models/{MODEL}.json"] * 2
    aliases = {name: pointer.version for name, pointer in in_folder.catalogue(MODEL).aliases.items()}
    assert aliases == {"canary": 2, "champion": 1, "current": 2}


def test_share_stays_with_alias(in_folder: Store, tmp_path: Path) -> None:
    """A share stays with its alias."""
    publish(in_folder, make_release(tmp_path / "repository", 1))
    in_folder.promote(MODEL, 1, "canary", share=0.1)
    publish(in_folder, make_release(tmp_path / "repository", 2), aliases=("canary",))
    pointer = in_folder.catalogue(MODEL).aliases["canary"]
    assert (pointer.version, pointer.share, pointer.line) == (2, 0.1, (1, 2))


def test_alias_clients_keep_interface(in_folder: Store, tmp_path: Path) -> None:
    """Clients of an alias keep their interface."""
    other_interface = Interface(inputs=(Tensor(name="y", dtype="float32", dims=("batch", 1)),), outputs=())
    publish(in_folder, make_release(tmp_path / "here", 1))
    release = make_release(tmp_path / "elsewhere", 2, interface=other_interface)
    before = contents(in_folder)
    for attempt in (publish, lambda *_: plan_release(in_folder, release.folder, release.manifest, digester(release))):
        with pytest.raises(RepositoryError, match="the inputs or outputs differ from version 1's") as caught:
            attempt(in_folder, release)
        assert "--allow-interface-change" in caught.value.remedy
    assert contents(in_folder) == before
    assert publish(in_folder, release, aliases=("next",)).version == 2
    assert publish(in_folder, release, move_anyway=True, allow_interface_change=True).aliases == ("current",)


def test_moved_alias_clients_keep_interface(in_folder: Store, tmp_path: Path) -> None:
    """Clients of what an alias came to stand for meanwhile keep theirs."""
    other_interface = Interface(inputs=(Tensor(name="y", dtype="float32", dims=("batch", 1)),), outputs=())
    publish(in_folder, make_release(tmp_path / "here", 1))
    late, early = make_release(tmp_path / "here", 2), make_release(tmp_path / "elsewhere", 3, interface=other_interface)

    def overtake(_count: int) -> None:
        publish(in_folder, early, allow_interface_change=True)

    with pytest.raises(RepositoryError, match="the inputs or outputs differ") as caught:
        publish_release(
            in_folder, late.folder, late.manifest, digester(late), observer=TransferProgress(begins=overtake)
        )
    assert "--allow-interface-change" in caught.value.remedy
    catalogue, current = in_folder.find(MODEL)
    assert [version.version for version in catalogue.versions] == [1, 2]
    assert read_stored_manifest(in_folder.objects, in_folder.release(MODEL, current)) == early.manifest


def test_lost_content_returns_with_release(in_folder: Store, tmp_path: Path) -> None:
    """A lost content and a lost list come back with the same release."""
    local_release = make_release(tmp_path / "repository", bulk_bytes=5000)
    publication = publish(in_folder, local_release)
    bulk = next(file for file in file_entries(local_release.folder) if file.path.endswith(BULK_FILE))
    for lost in (object_key(bulk.sha256), release_key(MODEL, publication.digest)):
        in_folder.objects.remove([lost])
        again = publish(in_folder, local_release)
        assert (again.version, again.unchanged) == (1, True)
        assert in_folder.objects.find(lost) is not None
    assert in_folder.release(MODEL, in_folder.find(MODEL)[1]).files


def test_damaged_content_returns_when_resent(in_folder: Store, tmp_path: Path) -> None:
    """A damaged content comes back where all is sent again."""
    release = make_release(tmp_path / "repository", bulk_bytes=5000)
    publish(in_folder, release)
    bulk = next(file for file in file_entries(release.folder) if file.path.endswith(BULK_FILE))
    in_folder.objects.put(object_key(bulk.sha256), b"x" * bulk.bytes)
    publish(in_folder, release)
    assert in_folder.objects.sha256(object_key(bulk.sha256)) != bulk.sha256
    publication = publish(in_folder, release, resend=True)
    assert (publication.version, publication.unchanged, publication.sent_bytes) == (1, True, publication.total_bytes)
    assert in_folder.objects.sha256(object_key(bulk.sha256)) == bulk.sha256


def test_damaged_local_file_not_published(in_folder: Store, tmp_path: Path) -> None:
    """A file that was damaged here is not published."""
    release = make_release(tmp_path / "repository", bulk_bytes=5000)
    (release.folder / "model" / BULK_FILE).write_bytes(b"x" * 5000)
    with pytest.raises(RepositoryError, match=rf"{BULK_FILE} .*SHA-256") as caught:
        publish(in_folder, release)
    assert caught.value.remedy
    assert in_folder.models() == []
    assert list(in_folder.objects.below("releases/")) == []


@pytest.mark.parametrize(("content", "why"), [(None, "is missing"), (b"cut", "has changed")])
def test_incomplete_release_not_published(in_folder: Store, tmp_path: Path, content: bytes | None, why: str) -> None:
    """A release that is incomplete here is not published."""
    release = make_release(tmp_path / "repository", bulk_bytes=5000)
    bulk = release.folder / "model" / BULK_FILE
    bulk.unlink()
    if content is not None:
        bulk.write_bytes(content)
    for attempt in (publish, lambda *_: plan_release(in_folder, release.folder, release.manifest, digester(release))):
        with pytest.raises(RepositoryError, match=f"{bulk} {why}") as caught:
            attempt(in_folder, release)
        assert "restore it" in caught.value.remedy
    assert in_folder.models() == []


def test_listed_files_not_hashed_again(in_folder: Store, tmp_path: Path) -> None:
    """Files that the manifest lists are not read to be hashed."""
    release = make_release(tmp_path / "repository")
    memo = digester(release)
    publish_release(in_folder, release.folder, release.manifest, memo)
    listed = {file.path for file in release.manifest.files}
    assert memo.hashed == len([file for file in file_entries(release.folder) if file.path not in listed])


def test_old_contents_renewed(in_folder: Store, tmp_path: Path) -> None:
    """Old contents get a new age so that nobody takes them for left over."""
    first, second = (make_release(tmp_path / "repository", answer, bulk_bytes=5000) for answer in (1, 2))
    publish(in_folder, first)
    long_ago = in_folder.objects.now() - GRACE_SECONDS
    for key in contents(in_folder):
        os.utime(tmp_path / "store" / key, (long_ago, long_ago))
    publish(in_folder, second)
    version = in_folder.find(MODEL)[1]
    ages = [in_folder.objects.find(object_key(file.sha256)) for file in in_folder.release(MODEL, version).files]
    assert all(item is not None and item.changed > long_ago + GRACE_SECONDS / 2 for item in ages)


def test_vanishing_contents_sent_again(in_folder: Store, tmp_path: Path) -> None:
    """Contents that vanish while others come are sent once more."""
    release = make_release(tmp_path / "repository", bulk_bytes=5000)
    files = file_entries(release.folder)
    send_contents(in_folder.objects, release.folder, files[:1])
    begun: list[int] = []

    def vanish(count: int) -> None:
        if not begun:
            in_folder.objects.remove([object_key(files[0].sha256)])
        begun.append(count)

    assert send_contents(in_folder.objects, release.folder, files, TransferProgress(begins=vanish)) == sum(
        f.bytes for f in files
    )
    assert begun == [sum(file.bytes for file in files[1:]), files[0].bytes]
    assert contents(in_folder) == {object_key(file.sha256) for file in files}


@pytest.mark.parametrize("is_later", [False, True])
def test_renewed_but_gone_content_resent(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_later: bool
) -> None:
    """An old content that goes as it gets a new age is sent again."""
    release = make_release(tmp_path / "repository")
    files = file_entries(release.folder)
    send_contents(in_folder.objects, release.folder, files)
    lost = object_key(files[0].sha256)
    long_ago = in_folder.objects.now() - GRACE_SECONDS
    os.utime(tmp_path / "store" / lost, (long_ago, long_ago))
    copy = in_folder.objects.copy

    def pruned(source: str, key: str) -> None:
        for step in (copy, lambda *_: in_folder.objects.remove([lost]))[:: 1 if is_later else -1]:
            step(source, key)

    monkeypatch.setattr(in_folder.objects, "copy", pruned)
    assert send_contents(in_folder.objects, release.folder, files) == files[0].bytes
    assert contents(in_folder) == {object_key(file.sha256) for file in files}


def test_forgetful_store_told(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that keeps nothing is told of."""
    release = make_release(tmp_path / "repository")
    send = in_folder.objects.send

    def send_and_lose(path: Path, key: str, *more: Any) -> None:
        send(path, key, *more)
        in_folder.objects.remove([key])

    monkeypatch.setattr(in_folder.objects, "send", send_and_lose)
    with pytest.raises(RepositoryError, match="gone again") as caught:
        send_contents(in_folder.objects, release.folder, file_entries(release.folder))
    assert caught.value.transient
    assert caught.value.remedy


@pytest.mark.slow
def test_folder_publishers_get_own_numbers(in_folder: Store, tmp_path: Path) -> None:
    """Publishers at once into a folder get numbers of their own."""
    local_releases = [make_release(tmp_path / f"repository-{answer}", answer) for answer in range(1, 6)]
    with ThreadPoolExecutor(5) as pool:
        numbers = list(pool.map(lambda item: publish(Store(in_folder.objects), item).version, local_releases))
    assert sorted(numbers) == list(range(1, 6))
    for item, number in zip(local_releases, numbers, strict=True):
        _, version = in_folder.find(f"{MODEL}@{number}")
        assert read_stored_manifest(in_folder.objects, in_folder.release(MODEL, version)) == item.manifest


def test_foreign_objects_left_alone(in_folder: Store, tmp_path: Path) -> None:
    """What is not ours is left alone."""
    in_folder.objects.put("photos/beach.jpg", b"...")
    release = make_release(tmp_path / "repository")
    for attempt in (publish, lambda *_: plan_release(in_folder, release.folder, release.manifest, digester(release))):
        with pytest.raises(RepositoryError, match="holds something that is not plansmith's") as caught:
            attempt(in_folder, release)
        assert in_folder.place in caught.value.remedy
    assert [item.key for item in in_folder.objects.below("")] == ["photos/beach.jpg"]


def _noting(method: Callable[..., str], written: list[str]) -> Callable[..., str]:
    """A method of a store that notes the key and does what it does."""

    def noted(key: str, *more: Any) -> str:
        written.append(key)
        return method(key, *more)

    return noted
