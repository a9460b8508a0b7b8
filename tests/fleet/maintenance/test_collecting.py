"""What is found in a first look goes, and nothing else; what is served, aliased or pinned never."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.fleet.maintenance.collect import Collected, CollectionScope, Grace, collect
from plansmith.fleet.maintenance.garbage import Collector, Limits, RemovedItem
from plansmith.fleet.maintenance.locations import Places
from plansmith.records.destination import Location
from plansmith.records.release import Interface
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.layout import OBJECTS
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror, pull
from plansmith.stores.verify import verify_store
from plansmith.triton.repository.repository import ModelRepository

from ...support.cli.command import CommandLine
from ...support.faults.wholeness import repository_problems
from ...support.stores.filled import DAY, fill, publish, report_live
from ...support.stores.releases import MODEL, make_release
from ...support.triton.versions import INTERFACE

OTHER = Interface(inputs=INTERFACE.inputs, outputs=INTERFACE.outputs[:1])


class Ground:
    """A folder with artifacts, a repository in it, and a store, all of it 31 days old when it is collected.

    Args:
        folder: of all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts = folder / "artifacts"
        self.repository = ModelRepository(self.artifacts / "repository")
        self.store = Store(FolderObjects(folder / "store"))

    def fill(self, *interfaces: Interface) -> None:
        """Make a version for each, and publish it to the store."""
        for number, interface in enumerate(interfaces, 1):
            release = make_release(self.repository.root, number, interface=interface)
            publish(self.store, release, *(["current"] if interface == interfaces[-1] else [f"was-{number}"]))

    def age(self) -> None:
        """Have the files of the store look two days old."""
        for path in (self.folder / "store").rglob("*"):
            os.utime(path, (time.time() - 2 * DAY,) * 2)

    def log(self, name: str) -> Path:
        """An old log of a compile."""
        path = self.artifacts / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("log")
        return path

    def collect(
        self,
        *,
        dry_run: bool = False,
        stores: Sequence[str] = ("store",),
        told: Callable[[Sequence[RemovedItem]], None] = lambda _: None,
    ) -> Collected:
        """Collect what was not used for 30 days; of the store, all that is not held and none of the newest."""
        limits = Limits(older_than=30 * DAY, now=time.time() + 31 * DAY, scratch=(), staging=())
        places = Places([Path("artifacts/repository")], [Location(to=name) for name in stores], self.folder)
        grounds = CollectionScope(Path("artifacts"), places)
        return collect(grounds, Grace(seconds=0, keep=1, settle_seconds=0, limits=limits), dry_run=dry_run, told=told)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def names(items: Sequence[RemovedItem], *kinds: str) -> list[str]:
    return [item.name for item in items if item.kind in kinds]


def test_dry_run_tells_before_collection(ground: Ground) -> None:
    """A dry run tells what would be removed, and then that is removed."""
    ground.fill(INTERFACE, INTERFACE, INTERFACE)
    ground.age()
    log = ground.log("old")
    before = sorted(ground.folder.rglob("*"))
    looked: list[Sequence[RemovedItem]] = []
    dry = ground.collect(dry_run=True, told=looked.append)
    assert sorted(ground.folder.rglob("*")) == before
    assert (dry.gone, dry.faults, looked) == ((), (), [list(dry.found)])
    assert names(dry.found, "version") == [f"{MODEL}@1"]
    assert names(dry.found, "log") == [str(log)]
    assert {item.version for item in dry.kept} == {2, 3}
    done = ground.collect()
    assert set(done.found) == set(done.gone) == set(dry.found)
    assert done.freed_bytes == dry.freed_bytes > 0
    assert not log.exists()
    assert verify_store(ground.store).damages == ()
    assert ground.repository.views(MODEL).shown() == [1, 2, 3], "what Triton is shown stays, however old"
    assert ground.collect().gone == ()


def test_held_or_new_releases_stay(ground: Ground) -> None:
    """Nothing is removed that was held again or came since the look."""
    ground.fill(INTERFACE, INTERFACE, INTERFACE, INTERFACE)
    ground.age()
    late: list[Path] = []

    def meanwhile(items: Sequence[RemovedItem]) -> None:
        assert names(items, "version") == [f"{MODEL}@1", f"{MODEL}@2"]
        ground.store.promote(MODEL, 1, "champion")
        late.append(ground.log("late"))

    done = ground.collect(told=meanwhile)
    assert names(done.gone, "version") == [f"{MODEL}@2"]
    assert {item.version for item in done.kept} == {1, 3, 4}
    assert late[0].exists()
    assert verify_store(ground.store).damages == ()
    assert {item.name for item in done.gone} < {item.name for item in done.found}


@pytest.mark.parametrize("reason", ["aliased", "pinned", "live", "not at all"])
def test_store_held_release_stays(reason: str, ground: Ground) -> None:
    """A release here that a store holds on to stays."""
    ground.fill(OTHER, INTERFACE, INTERFACE)
    assert ground.repository.views(MODEL).shown() == [2, 3]
    if reason != "aliased":
        ground.store.take_alias_away(MODEL, "was-1")
    if reason == "pinned":
        ground.store.pin(MODEL, 1, "audit")
    if reason == "live":
        report_live(ground.store, 1)
    done = ground.collect()
    stays = reason != "not at all"
    assert names(done.gone, "release") == ([] if stays else [str(ground.repository.release(MODEL, 1))])
    assert ground.repository.versions(MODEL) == ([1, 2, 3] if stays else [2, 3])
    assert repository_problems(ground.repository.root) == []


def test_unreachable_store_keeps_releases(ground: Ground) -> None:
    """No release is removed while a store cannot be asked what it holds."""
    ground.fill(OTHER, INTERFACE)
    log = ground.log("old")
    done = ground.collect(stores=["store", "nowhere"])
    assert [fault.place for fault in done.faults] == ["nowhere"]
    error = done.error()
    assert isinstance(error, RepositoryError)
    assert error.message.endswith("nowhere is no store")
    assert not log.exists(), "the other places are tidied all the same"
    assert ground.repository.versions(MODEL) == [1, 2]
    (ground.folder / "store" / "models" / f"{MODEL}.json").write_text("{}")
    done = ground.collect()
    assert [fault.place for fault in done.faults] == [str(ground.folder / "store")]
    assert ground.repository.versions(MODEL) == [1, 2]


def test_mirror_keeps_store_releases(tmp_path: Path) -> None:
    """A mirror keeps the releases that its store had it take."""
    store, mirror = Store(FolderObjects(tmp_path / "store")), Mirror(tmp_path / "mirror")
    for number, interface in ((1, OTHER), (2, INTERFACE), (3, INTERFACE)):
        publish(store, make_release(tmp_path / "repository", number, interface=interface), f"n{number}")
    store.pin(MODEL, 1, "audit")
    with mirror.lock(store, alone=True):
        for word in ("n1", "n2", "n3"):
            pull(store, mirror, *store.find(f"{MODEL}@{word}"), spared=[1])
    shown, numbers = mirror.repository.views(MODEL).shown(), mirror.repository.versions(MODEL)
    assert (shown, numbers) == ([3], [1, 2, 3])
    limits = Limits(older_than=0, now=time.time() + DAY, scratch=(), staging=())
    items = Collector(tmp_path, mirror.repository.root, limits).collect(lambda _: None)
    assert "release" not in {item.kind for item in items}
    assert mirror.repository.versions(MODEL) == [1, 2, 3]


def test_repositories_of_targets_are_tidied(tmp_path: Path) -> None:
    """The repositories of several targets are tidied and the artifacts once."""
    ground = Ground(tmp_path)
    log = ground.log("old")
    for target in ("local-cpu", "triton-26.03"):
        for number, interface in ((1, OTHER), (2, INTERFACE), (3, INTERFACE)):
            root = ground.artifacts / "repository" / target
            make_release(root, number, interface=interface, target=target)
    surroundings = {"TMPDIR": str(tmp_path), "PLANSMITH_SERVE_ENV": str(tmp_path / "serve-env")}
    garbage = CommandLine(tmp_path)("gc", "--older-than", "0", "--dry-run", "--json", **surroundings).document[
        "garbage"
    ]
    done = ground.collect(stores=[])
    assert names(done.found, "log") == [str(log)]
    paths = [item["path"] for item in garbage if item["kind"] in {"log", "release"}]
    assert paths == [str(Path("artifacts/logs/old.log")), *names(done.found, "release")], "plansmith gc tells the same"
    roots = [ground.artifacts / "repository" / target for target in ("local-cpu", "triton-26.03")]
    assert names(done.gone, "release") == [str(ModelRepository(root).release(MODEL, 1)) for root in roots]
    assert done.error() is None


def test_shared_cache_is_tidied(tmp_path: Path) -> None:
    """A shared cache is tidied and contents that releases need stay."""
    store = Store(FolderObjects(tmp_path / "store"))
    fill(store, tmp_path, 1)
    entry = "cache/export/0123.json"
    store.objects.put(entry, b"{}")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    (tmp_path / "artifacts" / "repository").mkdir(parents=True)
    grounds = CollectionScope(
        Path("artifacts"), Places([Path("artifacts/repository")], relative_to=tmp_path), [Location(to="store")]
    )
    done = collect(grounds, Grace(seconds=30 * DAY, settle_seconds=0), dry_run=False)
    assert (names(done.found, "cache entry"), names(done.gone, "cache entry")) == ([entry], [entry])
    assert verify_store(store).damages == ()
    nothing = CollectionScope(Path("artifacts"), Places(relative_to=tmp_path), [Location(to="nowhere")])
    assert "nothing is shared" in collect(nothing, Grace(seconds=0), dry_run=True).faults[0].message


def test_removals_before_failure_are_told(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed before a place failed is told."""
    ground.fill(INTERFACE, INTERFACE, INTERFACE)
    ground.age()
    ground.collect()  # marks the first version, which can still be read for a day
    monkeypatch.setattr(FolderObjects, "now", lambda _: time.time() + 2 * DAY)
    first, second = ground.log("first"), ground.log("second")
    remove = FolderObjects.remove

    def refused(objects: FolderObjects, keys: Iterable[str]) -> None:
        keys = list(keys)
        if any(key.startswith(OBJECTS) for key in keys):
            raise RepositoryError("no space", remedy="make some")
        remove(objects, keys)

    def full(path: Path) -> None:
        if path == second:
            raise OSError(errno.EROFS, "read-only")
        path.unlink()

    monkeypatch.setattr(FolderObjects, "remove", refused)
    monkeypatch.setattr("plansmith.fleet.maintenance.garbage._delete", full)
    done = ground.collect()
    assert (first.exists(), second.exists()) == (False, True)
    assert names(done.gone, "list", "content", "log") == [*names(done.found, "list"), str(first)]
    assert names(done.found, "list")
    assert names(done.found, "content")
    assert [fault.place for fault in done.faults] == [str(ground.folder / "store"), str(ground.repository.root)]
    assert done.freed_bytes == sum(item.bytes for item in done.gone)


def test_cache_removals_before_failure_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed from a shared cache before it failed is told."""
    store = Store(FolderObjects(tmp_path / "store"))
    fill(store, tmp_path, 1)
    entry = "cache/export/0123.json"
    store.objects.put(entry, b"{}")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)

    def lost(_: FolderObjects, _before: float) -> int:
        raise RepositoryError("the store is gone", remedy="bring it back")

    monkeypatch.setattr(FolderObjects, "give_up", lost)
    (tmp_path / "artifacts").mkdir()
    grounds = CollectionScope(Path("artifacts"), Places(relative_to=tmp_path), [Location(to="store")])
    done = collect(grounds, Grace(seconds=30 * DAY, settle_seconds=0), dry_run=False)
    assert (names(done.gone, "cache entry"), len(done.faults)) == ([entry], 1)
