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
from plansmith.stores.backend.s3 import upload
from plansmith.stores.layout import GRACE_SECONDS, object_key, release_key
from plansmith.stores.reader import read_stored_manifest
from plansmith.stores.store import Store
from plansmith.stores.transfer.publication import Terms, plan_release, publish_release
from plansmith.stores.transfer.upload import TransferProgress, send_contents
from plansmith.system.digest import Digester, digest_of_files

from ...support.faults.packages import file_entries
from ...support.stores.releases import BULK_FILE, MODEL, Made, make_release


def publish(store: Store, made: Made, **terms: Any) -> Publication:
    """Publish a release with a digester that remembers nothing."""
    return publish_release(store, made.folder, made.manifest, digester(made), terms=Terms(**terms))


def digester(made: Made) -> Digester:
    return Digester(made.folder.parent / "no-memo", read_only=True)


def edited(made: Made, **fields: object) -> Manifest:
    """Write another manifest into a release, as if it had been made at another time or elsewhere."""
    manifest = made.manifest.model_copy(update=fields)
    (made.folder / MANIFEST_FILE).unlink()
    (made.folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return manifest


def contents(store: Store) -> set[str]:
    return {held.key for held in store.objects.below("objects/")}


def test_a_release_arrives_whole_with_number_and_alias(store: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository")
    told = publish(store, made)
    catalogue, version = store.find(MODEL)
    release = store.release(MODEL, version)
    assert (told.version, told.aliases, told.unchanged) == (1, ("current",), False)
    assert told.sent_bytes == told.total_bytes == sum(file.bytes for file in release.files)
    assert sorted(release.files, key=lambda file: file.path) == sorted(file_entries(made.folder), key=lambda f: f.path)
    assert told.digest == version.digest == digest_of_files(release.files)
    assert [v.version for v in catalogue.versions] == [1]
    assert read_stored_manifest(store.objects, release) == made.manifest
    for file in release.files:
        store.objects.fetch(object_key(file.sha256), tmp_path / "back", file.sha256)
        assert (tmp_path / "back").read_bytes() == (made.folder / file.path).read_bytes()


def test_the_same_release_is_there_once_and_nothing_is_sent_again(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository")
    first, second = publish(in_folder, made), publish(in_folder, made)
    assert second == first.model_copy(update={"unchanged": True, "sent_bytes": 0})
    assert [version.version for version in in_folder.catalogue(MODEL).versions] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_file_that_an_earlier_attempt_sent_do_not_count(
    s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=12 << 20)
    arrived: list[int] = []

    def cut(shipment: Any, upload_id: str, number: int, *words: Any) -> dict[str, Any]:
        if number == 3:
            raise ConnectionAbortedError
        arrived.append(number)
        return send_part(shipment, upload_id, number, *words)

    with monkeypatch.context() as patch:
        send_part = upload._send_part
        patch.setattr(upload, "_send_part", cut)
        with pytest.raises(ConnectionAbortedError):
            publish(s3_store, made)
    told = publish(s3_store, made)
    small = sum(file.bytes for file in made.manifest.files if file.path != BULK_FILE)
    assert (5 << 20) * len(arrived) <= told.total_bytes - told.sent_bytes <= (5 << 20) * len(arrived) + small


def test_what_two_releases_have_in_common_is_sent_once(in_folder: Store, tmp_path: Path) -> None:
    first = make_release(tmp_path / "repository", 1, bulk_bytes=100_000)
    second = make_release(tmp_path / "repository", 2, bulk_bytes=100_000)
    publish(in_folder, first)
    told = publish(in_folder, second)
    assert told.total_bytes > 100_000 > told.sent_bytes > 0
    assert told.version == 2


@pytest.mark.slow
def test_a_plan_says_what_is_done_then_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    first, second = (make_release(tmp_path / "repository", n, bulk_bytes=5000) for n in (1, 2))
    for made in (first, second, second):
        before = [(held.key, held.changed) for held in store.objects.below("")]
        planned = plan_release(store, made.folder, made.manifest, digester(made))
        assert [(held.key, held.changed) for held in store.objects.below("")] == before
        told = publish(store, made)
        # What the server lacks, if anything, is found out when the store is made.
        assert told == planned.model_copy(update={"caution": store.objects.abilities.shortcoming})


def test_the_number_of_the_repository_is_kept_where_it_is_the_highest(in_folder: Store, tmp_path: Path) -> None:
    elsewhere = [make_release(tmp_path / "elsewhere", answer) for answer in (1, 2, 3)]
    here = [make_release(tmp_path / "here", answer) for answer in (4, 5, 6)]
    assert [publish(in_folder, made).version for made in (elsewhere[1], here[0], here[2], elsewhere[0])] == [2, 3, 4, 5]
    assert [version.version for version in in_folder.catalogue(MODEL).versions] == [2, 3, 4, 5]
    assert in_folder.find(MODEL)[1].version == 5


def test_a_release_that_says_nothing_new_stays_the_version_that_is_there(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "here")
    again = make_release(tmp_path / "elsewhere")
    manifest = edited(again, created="2027-01-01T00:00:00.000+00:00")
    publish(in_folder, made)
    told = publish_release(in_folder, again.folder, manifest, digester(again))
    assert (told.version, told.unchanged, told.sent_bytes) == (1, True, 0)
    forced = publish_release(in_folder, again.folder, manifest, digester(again), terms=Terms(force=True))
    assert (forced.version, forced.unchanged) == (2, False)


def test_what_was_rolled_back_is_not_undone_by_the_way(in_folder: Store, tmp_path: Path) -> None:
    first, second = (make_release(tmp_path / "repository", answer) for answer in (1, 2))
    publish(in_folder, first)
    publish(in_folder, second)
    in_folder.roll_back(MODEL)
    told = publish(in_folder, second)
    assert (told.unchanged, told.version, told.aliases, told.elsewhere) == (True, 2, (), {"current": 1})
    assert in_folder.find(MODEL)[1].version == 1
    assert publish(in_folder, second, move_anyway=True).aliases == ("current",)
    assert in_folder.find(MODEL)[1].version == 2


def test_number_and_aliases_come_in_one_write(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    for name in ("create", "swap"):
        monkeypatch.setattr(in_folder.objects, name, _noting(getattr(in_folder.objects, name), written))
    publish(in_folder, make_release(tmp_path / "repository", 1), aliases=("current", "champion", "canary"))
    publish(in_folder, make_release(tmp_path / "repository", 2), aliases=("current", "canary"))
    assert [key for key in written if key.startswith("models/")] == [f"models/{MODEL}.json"] * 2
    aliases = {name: pointer.version for name, pointer in in_folder.catalogue(MODEL).aliases.items()}
    assert aliases == {"canary": 2, "champion": 1, "current": 2}


def test_a_share_stays_with_its_alias(in_folder: Store, tmp_path: Path) -> None:
    publish(in_folder, make_release(tmp_path / "repository", 1))
    in_folder.promote(MODEL, 1, "canary", share=0.1)
    publish(in_folder, make_release(tmp_path / "repository", 2), aliases=("canary",))
    pointer = in_folder.catalogue(MODEL).aliases["canary"]
    assert (pointer.version, pointer.share, pointer.line) == (2, 0.1, (1, 2))


def test_without_aliases_a_version_is_there_and_nothing_points_to_it(in_folder: Store, tmp_path: Path) -> None:
    told = publish(in_folder, make_release(tmp_path / "repository"), aliases=())
    assert (told.version, told.aliases) == (1, ())
    assert in_folder.catalogue(MODEL).aliases == {}
    assert in_folder.find(f"{MODEL}@1")[1].version == 1


def test_clients_of_an_alias_keep_their_interface(in_folder: Store, tmp_path: Path) -> None:
    other = Interface(inputs=(Tensor(name="y", dtype="float32", dims=("batch", 1)),), outputs=())
    publish(in_folder, make_release(tmp_path / "here", 1))
    made = make_release(tmp_path / "elsewhere", 2, interface=other)
    before = contents(in_folder)
    for attempt in (publish, lambda *_: plan_release(in_folder, made.folder, made.manifest, digester(made))):
        with pytest.raises(RepositoryError, match="the inputs or outputs differ from version 1's") as caught:
            attempt(in_folder, made)
        assert "--allow-interface-change" in caught.value.remedy
    assert contents(in_folder) == before
    assert publish(in_folder, made, aliases=("next",)).version == 2
    assert publish(in_folder, made, move_anyway=True, allow_interface_change=True).aliases == ("current",)


def test_clients_of_what_an_alias_came_to_stand_for_meanwhile_keep_theirs(in_folder: Store, tmp_path: Path) -> None:
    other = Interface(inputs=(Tensor(name="y", dtype="float32", dims=("batch", 1)),), outputs=())
    publish(in_folder, make_release(tmp_path / "here", 1))
    late, early = make_release(tmp_path / "here", 2), make_release(tmp_path / "elsewhere", 3, interface=other)

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


def test_a_lost_content_and_a_lost_list_come_back_with_the_same_release(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=5000)
    told = publish(in_folder, made)
    bulk = next(file for file in file_entries(made.folder) if file.path.endswith(BULK_FILE))
    for lost in (object_key(bulk.sha256), release_key(MODEL, told.digest)):
        in_folder.objects.remove([lost])
        again = publish(in_folder, made)
        assert (again.version, again.unchanged) == (1, True)
        assert in_folder.objects.find(lost) is not None
    assert in_folder.release(MODEL, in_folder.find(MODEL)[1]).files


def test_a_damaged_content_comes_back_where_all_is_sent_again(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=5000)
    publish(in_folder, made)
    bulk = next(file for file in file_entries(made.folder) if file.path.endswith(BULK_FILE))
    in_folder.objects.put(object_key(bulk.sha256), b"x" * bulk.bytes)
    publish(in_folder, made)
    assert in_folder.objects.sha256(object_key(bulk.sha256)) != bulk.sha256
    told = publish(in_folder, made, resend=True)
    assert (told.version, told.unchanged, told.sent_bytes) == (1, True, told.total_bytes)
    assert in_folder.objects.sha256(object_key(bulk.sha256)) == bulk.sha256


def test_a_file_that_was_damaged_here_is_not_published(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=5000)
    (made.folder / "model" / BULK_FILE).write_bytes(b"x" * 5000)
    with pytest.raises(RepositoryError, match=rf"{BULK_FILE} .*SHA-256") as caught:
        publish(in_folder, made)
    assert caught.value.remedy
    assert in_folder.models() == []
    assert list(in_folder.objects.below("releases/")) == []


@pytest.mark.parametrize(("content", "why"), [(None, "is missing"), (b"cut", "has changed")])
def test_a_release_that_is_incomplete_here_is_not_published(
    in_folder: Store, tmp_path: Path, content: bytes | None, why: str
) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=5000)
    bulk = made.folder / "model" / BULK_FILE
    bulk.unlink()
    if content is not None:
        bulk.write_bytes(content)
    for attempt in (publish, lambda *_: plan_release(in_folder, made.folder, made.manifest, digester(made))):
        with pytest.raises(RepositoryError, match=f"{bulk} {why}") as caught:
            attempt(in_folder, made)
        assert "restore it" in caught.value.remedy
    assert in_folder.models() == []


def test_files_that_the_manifest_lists_are_not_read_to_be_hashed(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository")
    known = digester(made)
    publish_release(in_folder, made.folder, made.manifest, known)
    listed = {file.path for file in made.manifest.files}
    assert known.hashed == len([file for file in file_entries(made.folder) if file.path not in listed])


def test_old_contents_get_a_new_age_so_that_nobody_takes_them_for_left_over(in_folder: Store, tmp_path: Path) -> None:
    first, second = (make_release(tmp_path / "repository", answer, bulk_bytes=5000) for answer in (1, 2))
    publish(in_folder, first)
    long_ago = in_folder.objects.now() - GRACE_SECONDS
    for key in contents(in_folder):
        os.utime(tmp_path / "store" / key, (long_ago, long_ago))
    publish(in_folder, second)
    version = in_folder.find(MODEL)[1]
    ages = [in_folder.objects.find(object_key(file.sha256)) for file in in_folder.release(MODEL, version).files]
    assert all(held is not None and held.changed > long_ago + GRACE_SECONDS / 2 for held in ages)


def test_contents_that_vanish_while_others_come_are_sent_once_more(in_folder: Store, tmp_path: Path) -> None:
    made = make_release(tmp_path / "repository", bulk_bytes=5000)
    files = file_entries(made.folder)
    send_contents(in_folder.objects, made.folder, files[:1])
    begun: list[int] = []

    def vanish(count: int) -> None:
        if not begun:
            in_folder.objects.remove([object_key(files[0].sha256)])
        begun.append(count)

    assert send_contents(in_folder.objects, made.folder, files, TransferProgress(begins=vanish)) == sum(
        f.bytes for f in files
    )
    assert begun == [sum(file.bytes for file in files[1:]), files[0].bytes]
    assert contents(in_folder) == {object_key(file.sha256) for file in files}


@pytest.mark.parametrize("is_later", [False, True])
def test_an_old_content_that_goes_as_it_gets_a_new_age_is_sent_again(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_later: bool
) -> None:
    made = make_release(tmp_path / "repository")
    files = file_entries(made.folder)
    send_contents(in_folder.objects, made.folder, files)
    lost = object_key(files[0].sha256)
    long_ago = in_folder.objects.now() - GRACE_SECONDS
    os.utime(tmp_path / "store" / lost, (long_ago, long_ago))
    copy = in_folder.objects.copy

    def pruned(source: str, key: str) -> None:
        for step in (copy, lambda *_: in_folder.objects.remove([lost]))[:: 1 if is_later else -1]:
            step(source, key)

    monkeypatch.setattr(in_folder.objects, "copy", pruned)
    assert send_contents(in_folder.objects, made.folder, files) == files[0].bytes
    assert contents(in_folder) == {object_key(file.sha256) for file in files}


def test_a_store_that_keeps_nothing_is_told_of(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_release(tmp_path / "repository")
    send = in_folder.objects.send

    def send_and_lose(path: Path, key: str, *more: Any) -> None:
        send(path, key, *more)
        in_folder.objects.remove([key])

    monkeypatch.setattr(in_folder.objects, "send", send_and_lose)
    with pytest.raises(RepositoryError, match="gone again") as caught:
        send_contents(in_folder.objects, made.folder, file_entries(made.folder))
    assert caught.value.transient
    assert caught.value.remedy


@pytest.mark.slow
def test_publishers_at_once_get_numbers_of_their_own(store: Store, tmp_path: Path) -> None:
    made = [make_release(tmp_path / f"repository-{answer}", answer) for answer in range(1, 6)]
    with ThreadPoolExecutor(5) as pool:
        numbers = list(pool.map(lambda one: publish(Store(store.objects), one).version, made))
    assert sorted(numbers) == list(range(1, 6))
    for one, number in zip(made, numbers, strict=True):
        _, version = store.find(f"{MODEL}@{number}")
        assert read_stored_manifest(store.objects, store.release(MODEL, version)) == one.manifest


def test_what_is_not_ours_is_left_alone(in_folder: Store, tmp_path: Path) -> None:
    in_folder.objects.put("photos/beach.jpg", b"...")
    made = make_release(tmp_path / "repository")
    for attempt in (publish, lambda *_: plan_release(in_folder, made.folder, made.manifest, digester(made))):
        with pytest.raises(RepositoryError, match="holds something that is not plansmith's") as caught:
            attempt(in_folder, made)
        assert in_folder.place in caught.value.remedy
    assert [held.key for held in in_folder.objects.below("")] == ["photos/beach.jpg"]


def test_releases_for_another_target_go_elsewhere(in_folder: Store, tmp_path: Path) -> None:
    publish(in_folder, make_release(tmp_path / "here"))
    with pytest.raises(RepositoryError, match=r"belongs to target local-cpu, not triton-26\.05") as caught:
        publish(in_folder, make_release(tmp_path / "elsewhere", target="triton-26.05"))
    assert caught.value.remedy


def _noting(method: Callable[..., str], written: list[str]) -> Callable[..., str]:
    """A method of a store that notes the key and does what it does."""

    def noted(key: str, *more: Any) -> str:
        written.append(key)
        return method(key, *more)

    return noted
