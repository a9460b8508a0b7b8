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
from plansmith.stores import publication, transfer
from plansmith.stores.backend.documents import PRUNING, content_of
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import LIVE, OBJECTS, RELEASES, lease_key, object_key, release_key
from plansmith.stores.prune import Pruner, Pruning, Retention
from plansmith.stores.publication import Terms, publish_release
from plansmith.stores.records import Catalogue
from plansmith.stores.store import Store
from plansmith.stores.verify import verify_store
from plansmith.system.aws.bucket import ObjectMetadata
from plansmith.system.digest import Digester

from ...support.stores.filled import fill, let_pass, prune_day_before, publish, report_live
from ...support.stores.releases import MODEL, make_release

LAST = Retention(keep=1, seconds=0)
"""Only the newest stays in any case."""


def prune(store: Store, retention: Retention = LAST, *, dry: bool = False) -> Pruning:
    return Pruner(store, retention, dry=dry, settle_seconds=0).prune()


def keys(store: Store, prefix: str = "") -> set[str]:
    """What a store holds, but for the lease of its pruner."""
    return {item.key for item in store.objects.below(prefix)} - {lease_key(PRUNING)}


@pytest.fixture
def late_pruner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruner that was suspended for longer than its lease: publications do not wait for it."""
    for module in (publication, transfer):
        monkeypatch.setattr(module, "outwait_pruner", lambda _: None)


@pytest.mark.slow
def test_prune_keeps_aliased_versions(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prune removes what no alias holds and leaves the rest whole."""
    fill(store, tmp_path, 3)
    lists = {n: store.release(MODEL, store.find(f"{MODEL}@{n}")[1]) for n in (1, 2, 3)}
    pruned = prune_day_before(monkeypatch, store)
    assert [item.name for item in pruned.gone] == [f"{MODEL}@1"]
    assert {item.version for item in pruned.staying} == {2, 3}
    done = prune(store)
    needed = {object_key(file.sha256) for n in (2, 3) for file in lists[n].files}
    assert keys(store, OBJECTS) == needed
    assert keys(store, RELEASES) == {release_key(MODEL, lists[n].digest) for n in (2, 3)}
    lost = {object_key(file.sha256): file.bytes for file in lists[1].files}
    assert done.freed_bytes == sum(size for key, size in lost.items() if key not in needed) == pruned.waiting_bytes > 0
    assert (pruned.freed_bytes, done.waiting_bytes) == (0, 0)
    assert verify_store(store).damages == ()
    with pytest.raises(RepositoryError, match=r"version 1 .* was pruned on "):
        store.release(MODEL, store.find(f"{MODEL}@1")[1])
    assert store.roll_back(MODEL).aliases["current"].version == 2


def test_version_found_before_is_read_whole(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever found a version right before it is pruned reads all of it."""
    fill(in_folder, tmp_path, 3)
    let_pass(monkeypatch, in_folder, 40)
    catalogue, found = in_folder.find(f"{MODEL}@1")
    assert [item.name for item in prune(in_folder).gone] == [f"{MODEL}@1"]
    prune(in_folder)
    files = in_folder.release(catalogue.model, found).files
    assert files
    assert None not in [in_folder.objects.read(object_key(file.sha256)) for file in files]


def test_dry_run_matches_prune(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run says the same as the prune does, and writes nothing."""
    fill(in_folder, tmp_path, 3)
    let_pass(monkeypatch, in_folder, 40)
    for kinds in ({"version"}, {"list", "content"}):
        before = {item.key: item for item in in_folder.objects.below("")}
        planned = prune(in_folder, dry=True)
        assert {item.key: item for item in in_folder.objects.below("")} == before
        assert {item.kind for item in planned.gone} == kinds
        assert prune(in_folder).model_copy(update={"waiting_until": planned.waiting_until}) == planned
        let_pass(monkeypatch, in_folder, 0.9)
        assert prune(in_folder).gone == ()
        let_pass(monkeypatch, in_folder, 0.2)
    assert prune(in_folder).gone == ()


def test_pinned_live_or_young_stay(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes that is pinned, live or young."""
    fill(in_folder, tmp_path, 5)
    in_folder.pin(MODEL, 1, "audit")
    assert prune(in_folder, Retention(keep=1, seconds=3600)).gone == ()
    let_pass(monkeypatch, in_folder, 2)
    report_live(in_folder, 2)
    done = prune(in_folder)
    assert {item.version for item in done.staying} == {1, 2, 4, 5}
    assert verify_store(in_folder).damages == ()


def test_old_report_holds_nothing(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is older than a week holds nothing and goes."""
    fill(in_folder, tmp_path, 3)
    report_live(in_folder, 1)
    let_pass(monkeypatch, in_folder, 8)
    done = prune(in_folder)
    assert [item.name for item in done.gone if item.kind in {"version", "report"}] == [
        f"{MODEL}@1",
        f"live/{MODEL}/gpu-7.json",
    ]
    assert keys(in_folder, "live/") == set()


def test_running_publication_contents_stay_day(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a publication under way has sent stays for a day."""
    fill(in_folder, tmp_path, 1)
    before = keys(in_folder)
    release = make_release(tmp_path / "repository", 9)
    monkeypatch.setattr(Store, "change", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        publish(in_folder, release)
    monkeypatch.undo()
    sent = keys(in_folder) - before
    assert {key.partition("/")[0] for key in sent} == {"objects", "releases"}
    assert prune(in_folder).gone == ()
    let_pass(monkeypatch, in_folder, 0.9)
    assert prune(in_folder).gone == ()
    let_pass(monkeypatch, in_folder, 0.2)
    assert {item.name for item in prune(in_folder).gone} == sent
    assert keys(in_folder) == before


def test_unfinished_sending_goes_after_day(in_folder: Store, tmp_path: Path) -> None:
    """What was begun to be sent and never ended goes after a day."""
    fill(in_folder, tmp_path, 1)
    old, young = (tmp_path / "store" / ".staging" / name for name in ("old", "young"))
    for path, age in ((old, 86500), (young, 86300)):
        path.write_bytes(b"half a file")
        os.utime(path, (time.time() - age,) * 2)
    prune(in_folder, dry=True)
    assert old.exists()
    prune(in_folder)
    assert (old.exists(), young.exists()) == (False, True)


def test_shared_cache_contents_stay(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents that a shared cache has stay."""
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    shared = next(file for file in first.files if file.path == "model/model.onnx")
    entry = json.dumps({"files": [{"path": "a", "sha256": shared.sha256}]})
    in_folder.objects.put("cache/export/0123.json", entry.encode())
    prune_day_before(monkeypatch, in_folder)
    prune(in_folder)
    assert object_key(shared.sha256) in keys(in_folder)
    in_folder.objects.remove(["cache/export/0123.json"])
    assert [item.name for item in prune(in_folder).gone] == [object_key(shared.sha256)]


def test_moved_alias_keeps_version(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias that is moved while prune looks keeps its version."""
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
    assert [item.name for item in done.gone if item.kind == "version"] == [f"{MODEL}@2"]
    assert {item.version: item.why for item in done.staying}[1] == "champion stands for it"
    assert verify_store(in_folder).damages == ()


@pytest.mark.usefixtures("late_pruner")
def test_republished_release_keeps_list(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is published again while its list goes keeps the list."""
    local_release = fill(in_folder, tmp_path, 3)[0]
    digest = in_folder.find(f"{MODEL}@1")[1].digest
    prune_day_before(monkeypatch, in_folder)
    remove = in_folder.objects.remove
    again: list[int] = []

    def meanwhile(keys: Iterable[str]) -> None:
        listed = list(keys)
        if release_key(MODEL, digest) in listed:
            again.append(publish(in_folder, local_release).version)
        remove(listed)

    monkeypatch.setattr(in_folder.objects, "remove", meanwhile)
    with pytest.raises(RepositoryError) as refused:
        prune(in_folder)
    assert again == [4]
    assert in_folder.release(MODEL, in_folder.find(f"{MODEL}@4")[1]).digest == digest
    assert refused.value.remedy.startswith("publish it again")
    monkeypatch.setattr(in_folder.objects, "remove", remove)
    assert publish(in_folder, local_release).version == 4
    assert verify_store(in_folder).damages == ()


def test_rewritten_list_stays(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that a publication has just written again stays."""
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    listed = release_key(MODEL, first.digest)
    prune_day_before(monkeypatch, in_folder)
    below = in_folder.objects.below
    removed: set[str] = set()

    def meanwhile(prefix: str) -> Iterator[ObjectMetadata]:
        """Before the last look, a publication is about to enter the release anew."""
        if prefix == LIVE:
            for key in (listed, *(object_key(file.sha256) for file in first.files)):
                os.utime(tmp_path / "store" / key, (in_folder.objects.now(),) * 2)
        return below(prefix)

    monkeypatch.setattr(in_folder.objects, "below", meanwhile)
    monkeypatch.setattr(in_folder.objects, "remove", removed.update)
    assert prune(in_folder).gone == ()
    assert removed == set()


def test_version_pruned_during_republication_remade(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is pruned while it is published again is made anew."""
    release = fill(in_folder, tmp_path, 3)[0]
    let_pass(monkeypatch, in_folder, 40)
    change = Store.change
    pruned: list[Pruning] = []

    def meanwhile(*args: Any) -> Catalogue:
        """Between the look at what is there and the write."""
        monkeypatch.setattr(Store, "change", change)
        pruned.append(prune_day_before(monkeypatch, in_folder))
        prune(in_folder)
        return change(*args)

    monkeypatch.setattr(Store, "change", meanwhile)
    publication = publish_release(
        in_folder, release.folder, release.manifest, Digester(tmp_path / "digests"), terms=Terms(move_anyway=True)
    )
    assert f"{MODEL}@1" in {item.name for item in pruned[0].gone}
    assert (publication.version, publication.unchanged, publication.aliases) == (4, False, ("current",))
    assert publication.sent_bytes > 0
    assert verify_store(in_folder).damages == ()


@pytest.mark.usefixtures("late_pruner")
def test_resent_release_is_whole(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is sent again right after its contents went is whole."""
    release = fill(in_folder, tmp_path, 3)[0]
    prune_day_before(monkeypatch, in_folder)
    remove = in_folder.objects.remove
    again: list[int] = []

    def meanwhile(keys: Iterable[str]) -> None:
        listed = list(keys)
        remove(listed)
        if not again and any(key.startswith(OBJECTS) for key in listed):
            again.append(publish(in_folder, release).version)

    monkeypatch.setattr(in_folder.objects, "remove", meanwhile)
    prune(in_folder)
    assert again == [4]
    assert verify_store(in_folder).damages == ()


def test_rejuvenated_content_stays(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A content that a publication has just made young again stays."""
    fill(in_folder, tmp_path, 3)
    first = in_folder.release(MODEL, in_folder.find(f"{MODEL}@1")[1])
    prune_day_before(monkeypatch, in_folder)
    young = object_key(next(file.sha256 for file in first.files if file.path == "model/model.onnx"))
    find = in_folder.objects.find

    looked: list[str] = []

    def touched(key: str) -> ObjectMetadata | None:
        """Older at the first look than at the next."""
        entry = find(key)
        looked.append(key)
        is_young = entry is not None and key == young and looked.count(key) > 1
        return replace(entry, changed=in_folder.objects.now()) if entry is not None and is_young else entry

    monkeypatch.setattr(in_folder.objects, "find", touched)
    done = prune(in_folder)
    assert looked.count(young) > 1
    assert young in keys(in_folder)
    assert young not in {item.name for item in done.gone}
    assert [item for item in done.gone if item.kind == "content"]


def test_unreadable_store_loses_nothing(in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of which something cannot be read loses nothing."""
    fill(in_folder, tmp_path, 3)
    in_folder.objects.put("models/broken.json", b"{")
    let_pass(monkeypatch, in_folder, 40)
    before = keys(in_folder, "objects/") | keys(in_folder, "releases/")
    with pytest.raises(RepositoryError, match=r"models/broken\.json .* is damaged"):
        prune(in_folder)
    assert keys(in_folder, "objects/") | keys(in_folder, "releases/") == before


@pytest.mark.parametrize("is_lost", [True, False])
def test_lost_list_loses_nothing_more(
    in_folder: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """A store that lost the list of a version that stands loses nothing more."""
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


def test_killed_prune_ended_by_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune that is killed anywhere leaves what stands whole, and the next one ends it."""
    fill(Store(FolderObjects(tmp_path / "filled")), tmp_path, 3)
    killed = 0
    while True:
        shutil.copytree(tmp_path / "filled", tmp_path / f"store-{killed}")
        store = Store(FolderObjects(tmp_path / f"store-{killed}"))
        with monkeypatch.context() as patched:
            writes = Countdown(store.objects, killed)
            writes.count(patched)
            try:
                prune_day_before(patched, store)
                prune(store)
            except Killed:
                killed += 1
            assert verify_store(store).damages == ()
            assert {version.version for version in store.catalogue(MODEL).standing()} >= {2, 3}
            patched.undo()
            let_pass(patched, store, 2)  # the killed one's lease has run out
            prune_day_before(patched, store)
            prune(store)
            assert keys(store, "releases/") == {
                release_key(MODEL, version.digest) for version in store.catalogue(MODEL).standing()
            }
            assert verify_store(store).others == 0
        if not writes.ended:
            break
    assert killed > 8


class Killed(BaseException):
    """In place of the end of the process."""


class Countdown:
    """Ends the process before the n-th write to a store."""

    def __init__(self, objects: Objects, number: int) -> None:
        self._objects = objects
        self._count = number
        self.ended = False

    def count(self, patched: pytest.MonkeyPatch) -> None:
        """From now on."""
        for name in ("swap", "put", "create"):
            patched.setattr(self._objects, name, self._counted(getattr(self._objects, name)))
        remove = self._counted(self._objects.remove)
        patched.setattr(self._objects, "remove", lambda keys: [remove([key]) for key in keys])

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*args: Any) -> Any:
            if self._count == 0:
                self.ended = True
                raise Killed
            self._count -= 1
            return write(*args)

        return written
