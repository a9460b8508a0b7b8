"""Garbage collection below an artifacts folder and in its repository: finds, lists and deletes.

Nothing younger than a limit is touched but what is damaged, and a time in the future counts as young: the clock
may have been set back. What is taken away goes out of sight in one rename first, so that a kill at any
moment leaves complete things or none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from plansmith.compilers.trt.timing_cache import TimingCaches
from plansmith.errors import RepositoryError
from plansmith.formatting import seconds_of
from plansmith.records.model import Record
from plansmith.steps.cache.local import ENTRY_FILE, StageCache
from plansmith.steps.cache.shared import Unused, collect_shared
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.stores.prune import PrunedItem, Pruner, Retention, Staying, fates
from plansmith.stores.reader import live_reports
from plansmith.stores.store import Store
from plansmith.stores.transfer import files_of
from plansmith.system.digest import Digester, digest_of_files
from plansmith.system.files import (
    STAGING,
    HeldByAnother,
    Waiting,
    abandoned_folders,
    abandoned_scratch,
    not_waiting,
    storage_errors,
    sweep,
)
from plansmith.triton.repository.repository import ModelRepository, hidden_since, rollback_of
from plansmith.triton.repository.view import versions_in
from plansmith.triton.server.environment import staging_place
from plansmith.triton.server.process import UNPACKED, abandoned_environments

Kind = Literal["cache entry", "timing cache", "lock", "leftover", "log", "history record", "view", "part", "release"]

RECORDS_KEPT = 1000

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton puts it; only names of ours are looked at

_HELD_ALONE = Retention(keep=0, seconds=0)


@dataclass(frozen=True)
class Garbage:
    """Garbage item, its reason, and the bytes freed: none for a file with another hard link elsewhere."""

    kind: Kind
    path: Path
    why: str
    bytes: int = 0


@dataclass(frozen=True)
class Limits:
    """Age limits of garbage, and further locations in which items may remain.

    `older_than` is in seconds, `now` in seconds since 1970; `scratch` holds temporary files, `staging` staging
    folders; `spared`: releases that stay whatever their age, by the digests that stores have them under.
    """

    older_than: float
    now: float
    scratch: tuple[Path, ...] = field(
        default_factory=lambda: tuple(dict.fromkeys((Path(tempfile.gettempdir()), UNPACKED, _SHARED_MEMORY)))
    )
    staging: tuple[Path, ...] = field(default_factory=lambda: (staging_place(),))
    spared: frozenset[str] = frozenset()


class Collector:
    """Garbage collector: finds garbage below an artifacts folder and in a repository.

    A repository that mirrors a store loses views only: which of its releases are wanted is known to the store, and
    `pull` and `sync` take the others away.

    Args:
        artifacts: holds cache, history and logs.
        repository: the model repository.
        limits: what is too young to go.
        dry: write nothing at all.
    """

    def __init__(self, artifacts: Path, repository: Path, limits: Limits, *, dry: bool = False) -> None:
        self._artifacts = artifacts
        self._limit = limits.now - limits.older_than
        self._scratch = (artifacts, *limits.scratch)
        self._staging = tuple(place for place in limits.staging if os.access(place, os.W_OK))
        self._digester = Digester(artifacts / "cache" / "digests.sqlite", read_only=dry)
        self._cache = StageCache(artifacts / "cache", self._digester)
        self._timing = TimingCaches(artifacts / "cache" / "timing")
        self._history = History(artifacts / HISTORY)
        self._repository = ModelRepository(repository, self._digester)
        self._spared = limits.spared

    def find(self, waiting: Waiting) -> list[Garbage]:
        """Find all garbage, with the bytes freed in total; writes nothing.

        Args:
            waiting: told when another collection has to end first; what it raises ends the attempt.
        """
        with self._cache.held_to_look(waiting):
            return self._list_garbage(self._repository.model_names())

    def _list_garbage(self, models: list[str], only: Container[Path] | None = None) -> list[Garbage]:
        links: Counter[tuple[int, int]] = Counter()
        return [
            Garbage(item.kind, item.path, item.why, _freed(item.path, links))
            for item in (
                *self._entries(),
                *self._timings(),
                *self._locks(),
                *self._leftovers(),
                *self._logs(),
                *self._records(),
                *(item for model in models for item in self._of_model(model)),
            )
            if only is None or item.path in only
        ]

    def collect(
        self, waiting: Waiting, *, only: Container[Path] | None = None, went: Callable[[Garbage], None] = lambda _: None
    ) -> list[Garbage]:
        """Delete all garbage, while no compile uses the cache and none publishes.

        Args:
            waiting: told when a compile has to end first; what it raises ends the attempt.
            only: of what can go, nothing but this; everything where it is None.
            went: given each thing when it is gone.

        Raises:
            RepositoryError: something cannot be removed.
        """
        models = self._repository.model_names()  # once: one that comes later is not locked, and waits for the next time
        with storage_errors(self._artifacts):
            while True:
                with ExitStack() as stack:
                    if (self._artifacts / "cache").is_dir():
                        stack.enter_context(self._cache.lock(waiting, alone=True))
                    busy = self._hold(models, stack)
                    if busy is None:
                        return self._take_away(models, only, went)
                # While servers load what another process publishes, minutes may pass, and compiles need the cache.
                # It may not be taken second either, as a compile that publishes holds it and waits for the model.
                with self._repository.exclusive(busy, waiting):
                    pass

    def _hold(self, models: list[str], stack: ExitStack) -> str | None:
        """Lock the models without waiting; return the first model that another process is publishing."""
        for model in models:
            try:
                stack.enter_context(self._repository.exclusive(model, not_waiting))
            except HeldByAnother:
                return model
        return None

    def _take_away(
        self, models: list[str], only: Container[Path] | None, went: Callable[[Garbage], None]
    ) -> list[Garbage]:
        for model in models:
            self._repository.settle(model)
        garbage = self._list_garbage(models, only)
        for item in garbage:
            self._remove(item)
            went(item)
        return garbage

    def _entries(self) -> Iterator[Garbage]:
        for folder in self._cache.folders():
            if self._is_old(folder / ENTRY_FILE):
                yield Garbage("cache entry", folder, "not used for so long")
            elif (damaged := self._cache.damage(folder)) is not None:
                yield Garbage("cache entry", folder, f"{damaged} is damaged")

    def _timings(self) -> Iterator[Garbage]:
        for first, more in self._timing.files():
            if self._is_old(first):
                yield from (Garbage("timing cache", path, "not used for so long") for path in (first, *more))

    def _locks(self) -> Iterator[Garbage]:
        for lock in self._cache.unused_locks():
            if self._is_old(lock):
                yield Garbage("lock", lock, "its entry is gone")

    def _leftovers(self) -> Iterator[Garbage]:
        own = (self._artifacts / "cache" / STAGING, self._history.staging, self._repository.staging)
        for staging in (*own, *self._staging):
            for folder in abandoned_folders(staging):
                yield Garbage("leftover", folder, "of a killed process")
        for place in self._scratch:
            for path in (*abandoned_scratch(place), *abandoned_environments(place)):
                if self._is_old(path):
                    yield Garbage("leftover", path, "of a process that is gone")

    def _logs(self) -> Iterator[Garbage]:
        for log in sorted(f for f in (self._artifacts / "logs").glob("*.*") if f.suffix in {".log", ".html"}):
            if self._is_old(log):
                yield Garbage("log", log, "not written for so long")

    def _records(self) -> Iterator[Garbage]:
        for number in self._history.numbers()[:-RECORDS_KEPT]:
            file = self._history.file(number)
            if self._is_old(file):
                yield Garbage("history record", file, f"older than the last {RECORDS_KEPT}")

    def _of_model(self, model: str) -> Iterator[Garbage]:
        marker = self._repository.marker()
        mirrors = marker is not None and bool(marker.mirrors)
        damaged = {} if mirrors else self._damaged(model)
        views = [*self._views(model, damaged)]
        yield from views
        yield from self._parts(model, [view.path for view in views])
        if not mirrors:
            yield from self._releases(model, damaged)

    def _views(self, model: str, damaged: Mapping[int, str]) -> Iterator[Garbage]:
        link = self._repository.root / model
        for view in self._repository.views(model).others():
            if self._is_old(view) and (self._is_old(link) or not link.is_symlink()):
                yield Garbage("view", view, "not shown to Triton any more")
            elif harmed := damaged.keys() & set(versions_in(view)):
                yield Garbage("view", view, f"not shown to Triton any more, and its version {min(harmed)} is damaged")

    def _parts(self, model: str, going: list[Path]) -> Iterator[Garbage]:
        """Yield ensemble members that no view refers to after the deletion.

        Those of a killed publication must be old.
        """
        configs = self._repository.views(model).configs(without=going)
        already = {*self._repository.members(model).stale(self._repository.views(model).configs())}
        for folder in self._repository.members(model).stale(configs):
            if folder not in already or self._is_old(folder):
                yield Garbage("part", folder, "no view of its ensemble names it")

    def _damaged(self, model: str) -> dict[int, str]:
        """Return the problems of damaged releases that Triton does not see, by version number."""
        shown = self._repository.views(model).shown()
        numbers = [number for number in self._repository.versions(model) if number not in shown]
        damages = {number: self._repository.damage(model, number) for number in numbers}
        return {number: why for number, why in damages.items() if why is not None}

    def _releases(self, model: str, damaged: Mapping[int, str]) -> Iterator[Garbage]:
        """Yield releases that Triton does not see: damaged ones, and old ones that no view will show again."""
        repository, leading = self._repository, self._repository.leading(model)
        newest = repository.readable(model, leading) if leading is not None else None
        live_versions = {*repository.views(model).shown(), rollback_of(repository, model)}
        for number in repository.versions(model)[:-1]:  # the newest keeps its number from being given again
            why = damaged.get(number)
            if why is None and number not in live_versions and self._is_old_release(model, number):
                why = None if self._is_spared(model, number) else repository.why_hidden(model, number, newest)
            if why is not None:
                yield Garbage("release", repository.release(model, number), why)

    def _is_spared(self, model: str, number: int) -> bool:
        """Whether a store retains this exact release and it is intact here."""
        manifest = self._repository.readable(model, number) if self._spared else None
        if manifest is None:
            return False
        try:
            files = files_of(self._repository.release(model, number), manifest, self._digester)
        except RepositoryError:
            return False
        return digest_of_files(files) in self._spared

    def _is_old_release(self, model: str, number: int) -> bool:
        manifest = self._repository.readable(model, number)
        if manifest is not None and seconds_of(manifest.created) > self._limit:
            return False
        if hidden_since(self._repository, model, number) > self._limit:
            return False
        return self._is_old(self._repository.release(model, number))

    def _is_old(self, path: Path) -> bool:
        """Whether a file or folder is older than the limit; False if it no longer exists."""
        try:
            return path.lstat().st_mtime <= self._limit
        except FileNotFoundError:
            return False

    def _remove(self, item: Garbage) -> None:
        with storage_errors(item.path):
            match item.kind:
                case "cache entry":
                    self._cache.remove(item.path)
                case "part":
                    self._repository.members(item.path.parent.name).remove(item.path)
                case "view" | "release":
                    self._repository.remove(item.path)
                case "leftover" if item.path.parent.name == STAGING or item.path.parent in self._staging:
                    sweep(item.path.parent)
                case _:
                    _delete(item.path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _files(path: Path) -> Iterator[Path]:
    """Yield a file or link itself, or all those below a folder, parts of which may vanish meanwhile."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for root, folders, names in os.walk(path):
        yield from (Path(root, name) for name in names)
        yield from (link for name in folders if (link := Path(root, name)).is_symlink())


def _freed(path: Path, links: Counter[tuple[int, int]]) -> int:
    """Return the bytes freed by deleting a path: files whose last hard link goes; `links` counts deleted links."""
    freed = 0
    for file in _files(path):
        try:
            stat = file.lstat()
        except FileNotFoundError:
            continue
        links[stat.st_dev, stat.st_ino] += 1
        if links[stat.st_dev, stat.st_ino] == stat.st_nlink:
            freed += stat.st_size
    return freed


class RemovedItem(Record):
    """Removed item: its place and kind; its path, key or MODEL@VERSION; the reason; and the bytes freed."""

    place: str
    kind: str
    name: str
    why: str
    bytes: int = 0


class Tidied(Protocol):
    """Collectable place: first searched for garbage, then cleaned."""

    @property
    def place(self) -> str:
        """The place, formatted for users."""
        ...

    def look(self) -> list[RemovedItem]:
        """Find garbage; writes nothing."""
        ...

    def take(self, names: Collection[str], removed: list[RemovedItem]) -> None:
        """Delete what is still garbage and has one of the names; each item is added to `removed` as it is deleted."""
        ...


@dataclass
class TidiedStore:
    """Release store as a collectable place.

    Args:
        store: whose versions and contents.
        retention: what stays in any case.
        settle_seconds: as for `Pruner`.

    Attributes:
        staying: the versions that stay, after a look.
    """

    store: Store
    retention: Retention
    settle_seconds: float
    staying: tuple[Staying, ...] = ()

    @property
    def place(self) -> str:
        """The location of the store."""
        return self.store.place

    def look(self) -> list[RemovedItem]:
        """Find versions beyond the retention, and objects that belong to no version."""
        pruned = self._pruner(None, lambda _: None).prune()
        self.staying = pruned.staying
        return [self._removed_item(item) for item in pruned.gone]

    def take(self, names: Collection[str], removed: list[RemovedItem]) -> None:
        """Delete these versions and objects."""
        self.staying = self._pruner(names, lambda item: removed.append(self._removed_item(item))).prune().staying

    def retained_digests(self) -> Iterator[str]:
        """Return the digests of releases held by an alias, a pin or a loader, or that a rollback would restore."""
        now = self.store.objects.now()
        for model in self.store.models():
            fate_list = fates(self.store.catalogue(model), _HELD_ALONE, live_reports(self.store, model), now)
            yield from (fate.version.digest for fate in fate_list if fate.stays is not None)

    def _pruner(self, only: Collection[str] | None, went: Callable[[PrunedItem], None]) -> Pruner:
        settle = self.settle_seconds
        return Pruner(self.store, self.retention, dry=only is None, settle_seconds=settle, only=only, went=went)

    def _removed_item(self, item: PrunedItem) -> RemovedItem:
        return RemovedItem(place=self.place, kind=item.kind, name=item.name, why=item.why, bytes=item.bytes)


@dataclass
class TidiedCache:
    """Shared cache as a collectable place.

    Args:
        store: holds it.
        seconds: what was used within so many stays.
    """

    store: Store
    seconds: float

    @property
    def place(self) -> str:
        """The location of the cache."""
        return self.store.place

    def look(self) -> list[RemovedItem]:
        """Find entries unused for the time limit on every machine, and contents that nothing else needs."""
        return [self._removed_item(item) for item in collect_shared(self.store, self.seconds, dry=True)]

    def take(self, names: Collection[str], removed: list[RemovedItem]) -> None:
        """Delete these entries and contents."""
        collect_shared(
            self.store, self.seconds, dry=False, only=names, went=lambda item: removed.append(self._removed_item(item))
        )

    def _removed_item(self, item: Unused) -> RemovedItem:
        return RemovedItem(place=self.place, kind=item.kind, name=item.key, why=item.why, bytes=item.bytes)


@dataclass
class TidiedMachine:
    """Local artifacts and one repository as a collectable place.

    Args:
        artifacts: cache, logs and history.
        repository: releases and views.
        limits: what is too young, and what stores hold.
        waiting: told when a compile has to end first.
        takes_releases: whether it is known what stores hold; otherwise all releases stay.
        others: paths that belong to another place; what is looked at here is added.
    """

    artifacts: Path
    repository: Path
    limits: Limits
    waiting: Waiting
    takes_releases: bool = True
    others: set[Path] = field(default_factory=set)

    @property
    def place(self) -> str:
        """The location of the artifacts."""
        return str(self.repository)

    def look(self) -> list[RemovedItem]:
        """Find items unused for the time limit, leftovers of killed processes, and releases not visible to Triton."""
        garbage = Collector(self.artifacts, self.repository, self.limits, dry=True).find(self.waiting)
        mine = [
            item for item in garbage if item.path not in self.others and (self.takes_releases or item.kind != "release")
        ]
        self.others |= {item.path for item in mine}
        return [self._removed_item(item) for item in mine]

    def take(self, names: Collection[str], removed: list[RemovedItem]) -> None:
        """Delete these items."""
        collector = Collector(self.artifacts, self.repository, self.limits)
        meant = {Path(name) for name in names}
        collector.collect(self.waiting, only=meant, went=lambda item: removed.append(self._removed_item(item)))

    def _removed_item(self, item: Garbage) -> RemovedItem:
        return RemovedItem(place=self.place, kind=item.kind, name=str(item.path), why=item.why, bytes=item.bytes)
