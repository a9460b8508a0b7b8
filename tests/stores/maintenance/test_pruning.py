"""What prune takes away, and above all what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.documents import content_of
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import LIVE, OBJECTS, RELEASES, object_key, release_key
from plansmith.stores.maintenance.prune import Pruner, Pruning
from plansmith.stores.maintenance.retention import Retention
from plansmith.stores.maintenance.verify import verify_store
from plansmith.stores.records import Catalogue
from plansmith.stores.store import Store
from plansmith.stores.transfer.publication import Terms, publish_release
from plansmith.system.aws.s3.objects import Held
from plansmith.system.digest import Digester

from ...support.stores.filled import fill, let_pass, publish, report_live
from ...support.stores.releases import MODEL, make_release

LAST = Retention(keep=1, seconds=0)
"""Only the newest stays in any case."""


def prune(store: Store, retention: Retention = LAST, *, dry: bool = False) -> Pruning:
    return Pruner(store, retention, dry=dry, settle_seconds=0).prune()


def keys(store: Store, prefix: str = "") -> set[str]:
    return {held.key for held in store.objects.below(prefix)}


@pytest.mark.slow
def test_prune_removes_what_no_alias_holds_and_leaves_the_rest_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, tmp_path, 3)
    lists = {n: store.release(MODEL, store.find(f"{MODEL}@{n}")[1]) for n in (1, 2, 3)}
    let_pass(monkeypatch, store, 40)
    done = prune(store)
    assert [one.name for one in done.gone if one.kind == "version"] == [f"{MODEL}@1"]
    assert {one.version: one.why for one in done.staying} == {
        2: "a rollback of current leads to it",
        3: "current stands for it",
    }
    needed = {object_key(file.sha256) for n in (2, 3) for file in lists[n].files}
    assert keys(store, OBJECTS) == needed
    assert keys(store, RELEASES) == {release_key(MODEL, lists[n].digest) for n in (2, 3)}
    lost = {object_key(file.sha256): file.bytes for file in lists[1].files}
    assert done.freed_bytes == sum(size for key, size in lost.items() if key not in needed) > 0
    assert verify_store(store).damages == ()
    with pytest.raises(RepositoryError, match=r"version 1 .* was pruned on "):
        store.release(MODEL, store.find(f"{MODEL}@1")[1])
    assert store.roll_back(MODEL).aliases["current"].version == 2


def test_a_dry_run_says_the_same_as_the_prune_does_and_writes_nothing(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    let_pass(monkeypatch, in_folder, 40)
    before = {held.key: held for held in in_folder.objects.below("")}
    planned = prune(in_folder, dry=True)
    assert {held.key: held for held in in_folder.objects.below("")} == before
    assert planned.gone
    assert prune(in_folder) == planned
    assert prune(in_folder).gone == ()


def test_nothing_goes_that_is_pinned_live_or_young(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 5)
    in_folder.pin(MODEL, 1, "audit")
    assert prune(in_folder, Retention(keep=1, seconds=3600)).gone == ()
    let_pass(monkeypatch, in_folder, 2)
    report_live(in_folder, 2)
    done = prune(in_folder)
    assert {one.version for one in done.staying} == {1, 2, 4, 5}
    assert verify_store(in_folder).damages == ()


def test_a_report_that_is_older_than_a_week_holds_nothing_and_goes(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    report_live(in_folder, 1)
    let_pass(monkeypatch, in_folder, 8)
    done = prune(in_folder)
    assert [one.name for one in done.gone if one.kind in {"version", "report"}] == [
        f"{MODEL}@1",
        f"live/{MODEL}/gpu-7.json",
    ]
    assert keys(in_folder, "live/") == set()


def test_what_a_publication_under_way_has_sent_stays_for_a_day(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 1)
    before = keys(in_folder)
    made = make_release(tmp_path / "repository", 9)
    monkeypatch.setattr(Store, "change", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        publish(in_folder, made)
    monkeypatch.undo()
    sent = keys(in_folder) - before
    assert {key.partition("/")[0] for key in sent} == {"objects", "releases"}
    assert prune(in_folder).gone == ()
    let_pass(monkeypatch, in_folder, 0.9)
    assert prune(in_folder).gone == ()
    let_pass(monkeypatch, in_folder, 0.2)
    assert {one.name for one in prune(in_folder).gone} == sent
    assert keys(in_folder) == before


def test_what_was_begun_to_be_sent_and_never_ended_goes_after_a_day(in_folder: Store, tmp_path: Path) -> None:
    fill(in_folder, tmp_path, 1)
    old, young = (tmp_path / "store" / ".staging" / name for name in ("old", "young"))
    for path, age in ((old, 86500), (young, 86300)):
        path.write_bytes(b"half a file")
        os.utime(path, (time.time() - age,) * 2)
    prune(in_folder, dry=True)
    assert old.exists()
    prune(in_folder)
    assert (old.exists(), young.exists()) == (False, True)


def test_contents_that_a_shared_cache_has_stay(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    shared = next(file for file in first.files if file.path == "model/model.onnx")
    entry = json.dumps({"files": [{"path": "a", "sha256": shared.sha256}]})
    in_folder.objects.put("cache/export/0123.json", entry.encode())
    let_pass(monkeypatch, in_folder, 40)
    prune(in_folder)
    assert object_key(shared.sha256) in keys(in_folder)
    in_folder.objects.remove(["cache/export/0123.json"])
    assert [one.name for one in prune(in_folder).gone] == [object_key(shared.sha256)]


def test_an_alias_that_is_moved_while_prune_looks_keeps_its_version(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 4)
    let_pass(monkeypatch, in_folder, 40)
    swap = in_folder.objects.swap
    moved: list[int] = []

    def meanwhile(key: str, content: bytes, tag: str) -> str:
        if not moved:
            moved.append(1)
            Store(in_folder.objects).promote(MODEL, 1, "champion")
        return swap(key, content, tag)

    monkeypatch.setattr(in_folder.objects, "swap", meanwhile)
    done = prune(in_folder)
    assert moved
    assert [one.name for one in done.gone if one.kind == "version"] == [f"{MODEL}@2"]
    assert {one.version: one.why for one in done.staying}[1] == "champion stands for it"
    assert verify_store(in_folder).damages == ()


def test_a_release_that_is_published_again_while_its_list_goes_keeps_it(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(in_folder, tmp_path, 3)[0]
    digest = in_folder.find(f"{MODEL}@1")[1].digest
    let_pass(monkeypatch, in_folder, 40)
    remove = in_folder.objects.remove
    again: list[int] = []

    def meanwhile(given: Iterable[str]) -> None:
        listed = list(given)
        if release_key(MODEL, digest) in listed:
            again.append(publish(in_folder, made).version)
        remove(listed)

    monkeypatch.setattr(in_folder.objects, "remove", meanwhile)
    with pytest.raises(RepositoryError) as refused:
        prune(in_folder)
    assert again == [4]
    assert in_folder.release(MODEL, in_folder.find(f"{MODEL}@4")[1]).digest == digest
    assert refused.value.remedy.startswith("publish it again")
    monkeypatch.setattr(in_folder.objects, "remove", remove)
    assert publish(in_folder, made).version == 4
    assert verify_store(in_folder).damages == ()


def test_a_list_that_a_publication_has_just_written_again_stays(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    listed = release_key(MODEL, first.digest)
    let_pass(monkeypatch, in_folder, 40)
    below = in_folder.objects.below
    removed: set[str] = set()

    def meanwhile(prefix: str) -> Iterator[Held]:
        """Before the last look, a publication is about to enter the release anew."""
        if prefix == LIVE:
            for key in (listed, *(object_key(file.sha256) for file in first.files)):
                os.utime(tmp_path / "store" / key, (in_folder.objects.now(),) * 2)
        return below(prefix)

    monkeypatch.setattr(in_folder.objects, "below", meanwhile)
    monkeypatch.setattr(in_folder.objects, "remove", removed.update)
    assert {one.name for one in prune(in_folder).gone} == {f"{MODEL}@1"}
    assert removed == set()


def test_a_version_that_is_pruned_while_it_is_published_again_is_made_anew(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(in_folder, tmp_path, 3)[0]
    let_pass(monkeypatch, in_folder, 40)
    change = Store.change
    pruned: list[Pruning] = []

    def meanwhile(*words: Any) -> Catalogue:
        """Between the look at what is there and the write."""
        monkeypatch.setattr(Store, "change", change)
        pruned.append(prune(in_folder))
        return change(*words)

    monkeypatch.setattr(Store, "change", meanwhile)
    told = publish_release(
        in_folder, made.folder, made.manifest, Digester(tmp_path / "digests"), terms=Terms(move_anyway=True)
    )
    assert f"{MODEL}@1" in {one.name for one in pruned[0].gone}
    assert (told.version, told.unchanged, told.aliases) == (4, False, ("current",))
    assert told.sent_bytes > 0
    assert verify_store(in_folder).damages == ()


def test_a_release_that_is_sent_again_right_after_its_contents_went_is_whole(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(in_folder, tmp_path, 3)[0]
    let_pass(monkeypatch, in_folder, 40)
    remove = in_folder.objects.remove
    again: list[int] = []

    def meanwhile(given: Iterable[str]) -> None:
        listed = list(given)
        remove(listed)
        if not again and any(key.startswith(OBJECTS) for key in listed):
            again.append(publish(in_folder, made).version)

    monkeypatch.setattr(in_folder.objects, "remove", meanwhile)
    prune(in_folder)
    assert again == [4]
    assert verify_store(in_folder).damages == ()


def test_a_content_that_a_publication_has_just_made_young_again_stays(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    let_pass(monkeypatch, in_folder, 40)
    young = object_key(next(file.sha256 for file in first.files if file.path == "model/model.onnx"))
    find = in_folder.objects.find

    looked: list[str] = []

    def touched(key: str) -> Held | None:
        """Older at the first look than at the next."""
        held = find(key)
        looked.append(key)
        is_young = held is not None and key == young and looked.count(key) > 1
        return replace(held, changed=in_folder.objects.now()) if held is not None and is_young else held

    monkeypatch.setattr(in_folder.objects, "find", touched)
    done = prune(in_folder)
    assert looked.count(young) > 1
    assert young in keys(in_folder)
    assert young not in {one.name for one in done.gone}
    assert [one for one in done.gone if one.kind == "content"]


def test_a_store_of_which_something_cannot_be_read_loses_nothing(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(in_folder, tmp_path, 3)
    in_folder.objects.put("models/broken.json", b"{")
    let_pass(monkeypatch, in_folder, 40)
    before = keys(in_folder, "objects/") | keys(in_folder, "releases/")
    with pytest.raises(RepositoryError, match=r"models/broken\.json .* is damaged"):
        prune(in_folder)
    assert keys(in_folder, "objects/") | keys(in_folder, "releases/") == before


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_store_that_lost_the_list_of_a_version_that_stands_loses_nothing_more(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    fill(in_folder, tmp_path, 3)
    version = in_folder.find(f"{MODEL}@2")[1]
    release = in_folder.release(MODEL, version)
    if is_lost:
        in_folder.objects.remove([release_key(MODEL, version.digest)])
    else:
        damaged = content_of(release.model_copy(update={"files": release.files[1:]}))
        in_folder.objects.put(release_key(MODEL, version.digest), damaged)
    let_pass(monkeypatch, in_folder, 40)
    before = keys(in_folder, "objects/") | keys(in_folder, "releases/")
    with pytest.raises(RepositoryError, match="has lost releases/" if is_lost else "lists other files") as caught:
        prune(in_folder)
    assert "publish the release again" in caught.value.remedy
    assert keys(in_folder, "objects/") | keys(in_folder, "releases/") == before


def test_a_prune_that_is_killed_anywhere_leaves_what_stands_whole_and_the_next_one_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Store(FolderObjects(tmp_path / "filled")), tmp_path, 3)
    killed = 0
    while True:
        shutil.copytree(tmp_path / "filled", tmp_path / f"store-{killed}")
        store = Store(FolderObjects(tmp_path / f"store-{killed}"))
        with monkeypatch.context() as patched:
            let_pass(patched, store, 40)
            writes = Countdown(store.objects, killed)
            writes.count(patched)
            try:
                prune(store)
            except Killed:
                killed += 1
            assert verify_store(store).damages == ()
            assert {version.version for version in store.catalogue(MODEL).standing()} >= {2, 3}
            patched.undo()
            let_pass(patched, store, 40)
            prune(store)
            assert keys(store, "releases/") == {
                release_key(MODEL, version.digest) for version in store.catalogue(MODEL).standing()
            }
            assert verify_store(store).others == 0
        if not writes.ended:
            break
    assert killed > 3


class Killed(BaseException):
    """In place of the end of the process."""


class Countdown:
    """Ends the process before the n-th write to a store."""

    def __init__(self, objects: Objects, number: int) -> None:
        self._objects = objects
        self._left = number
        self.ended = False

    def count(self, patched: pytest.MonkeyPatch) -> None:
        """From now on."""
        for name in ("swap", "put", "create"):
            patched.setattr(self._objects, name, self._counted(getattr(self._objects, name)))
        remove = self._counted(self._objects.remove)
        patched.setattr(self._objects, "remove", lambda given: [remove([key]) for key in given])

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*words: Any) -> Any:
            if self._left == 0:
                self.ended = True
                raise Killed
            self._left -= 1
            return write(*words)

        return written
