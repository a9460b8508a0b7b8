"""What nobody needs any more below an artifacts folder and in its repository: found, listed, taken away.

Nothing younger than a limit is touched but what is damaged, and a time in the future counts as young: the clock
may have been set back. What is taken away goes out of sight in one rename first, so that a kill at any
moment leaves complete things or none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from plansmith.compilers.trt.timing_cache import TimingCaches
from plansmith.errors import RepositoryError
from plansmith.formatting import seconds_of
from plansmith.steps.cache.local import ENTRY_FILE, StageCache
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.stores.transfer.upload import files_of
from plansmith.system.digest import Digester, digest_of_files
from plansmith.system.files import (
    STAGING,
    HeldByAnother,
    Waiting,
    abandoned_folders,
    not_waiting,
    storage_errors,
    sweep,
)
from plansmith.system.temporary import abandoned_scratch
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.repository.rollback import hidden_since, rollback_of
from plansmith.triton.repository.view import versions_in
from plansmith.triton.server.environment import staging_place
from plansmith.triton.server.process import UNPACKED, abandoned_environments

Kind = Literal["cache entry", "timing cache", "lock", "leftover", "log", "history record", "view", "part", "release"]

RECORDS_KEPT = 1000

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Triton puts it; only names of ours are looked at


@dataclass(frozen=True)
class Garbage:
    """One thing that can go, why, and how many bytes that frees: a file with another link elsewhere frees none."""

    kind: Kind
    path: Path
    why: str
    bytes: int = 0


@dataclass(frozen=True)
class Limits:
    """How old something must be to go, and where else than in artifacts and repository something may be left.

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
    """Finds what can go below an artifacts folder and in a repository.

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

    def found(self, waiting: Waiting) -> list[Garbage]:
        """Everything that can go, with the bytes that are free when all of it is gone; writes nothing.

        Args:
            waiting: told when another collection has to end first; what it raises ends the attempt.
        """
        with self._cache.held_to_look(waiting):
            return self._found(self._repository.known())

    def _found(self, models: list[str], only: Container[Path] | None = None) -> list[Garbage]:
        links: Counter[tuple[int, int]] = Counter()
        return [
            Garbage(one.kind, one.path, one.why, _freed(one.path, links))
            for one in (
                *self._entries(),
                *self._timings(),
                *self._locks(),
                *self._leftovers(),
                *self._logs(),
                *self._records(),
                *(one for model in models for one in self._of_model(model)),
            )
            if only is None or one.path in only
        ]

    def collect(
        self, waiting: Waiting, *, only: Container[Path] | None = None, went: Callable[[Garbage], None] = lambda _: None
    ) -> list[Garbage]:
        """Take everything away that can go, while no compile uses the cache and none publishes.

        Args:
            waiting: told when a compile has to end first; what it raises ends the attempt.
            only: of what can go, nothing but this; everything where it is None.
            went: given each thing when it is gone.

        Raises:
            RepositoryError: something cannot be removed.
        """
        models = self._repository.known()  # once: one that comes later is not locked, and waits for the next time
        with storage_errors(self._artifacts):
            while True:
                with ExitStack() as held:
                    if (self._artifacts / "cache").is_dir():
                        held.enter_context(self._cache.held(waiting, alone=True))
                    busy = self._hold(models, held)
                    if busy is None:
                        return self._take_away(models, only, went)
                # While servers load what another process publishes, minutes may pass, and compiles need the cache.
                # It may not be taken second either, as a compile that publishes holds it and waits for the model.
                with self._repository.exclusive(busy, waiting):
                    pass

    def _hold(self, models: list[str], held: ExitStack) -> str | None:
        """Take the locks of the models, waiting for none; the first model that another process publishes."""
        for model in models:
            try:
                held.enter_context(self._repository.exclusive(model, not_waiting))
            except HeldByAnother:
                return model
        return None

    def _take_away(
        self, models: list[str], only: Container[Path] | None, went: Callable[[Garbage], None]
    ) -> list[Garbage]:
        for model in models:
            self._repository.settle(model)
        found = self._found(models, only)
        for one in found:
            self._remove(one)
            went(one)
        return found

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
        """Parts of ensembles that no view names once some have gone; those a killed publication left are young."""
        configs = self._repository.views(model).configs(without=going)
        already = {*self._repository.members(model).stale(self._repository.views(model).configs())}
        for folder in self._repository.members(model).stale(configs):
            if folder not in already or self._is_old(folder):
                yield Garbage("part", folder, "no view of its ensemble names it")

    def _damaged(self, model: str) -> dict[int, str]:
        """What is wrong with the releases that are not whole and that Triton is not shown, by their numbers."""
        shown = self._repository.views(model).shown()
        numbers = [number for number in self._repository.versions(model) if number not in shown]
        found = {number: self._repository.damage(model, number) for number in numbers}
        return {number: why for number, why in found.items() if why is not None}

    def _releases(self, model: str, damaged: Mapping[int, str]) -> Iterator[Garbage]:
        """Releases that Triton is not shown: damaged ones, and old ones that no view will show again."""
        repository, leading = self._repository, self._repository.leading(model)
        newest = repository.readable(model, leading) if leading is not None else None
        kept = {*repository.views(model).shown(), rollback_of(repository, model)}
        for number in repository.versions(model)[:-1]:  # the newest keeps its number from being given again
            why = damaged.get(number)
            if why is None and number not in kept and self._is_old_release(model, number):
                why = None if self._is_spared(model, number) else repository.why_hidden(model, number, newest)
            if why is not None:
                yield Garbage("release", repository.release(model, number), why)

    def _is_spared(self, model: str, number: int) -> bool:
        """Whether a store holds on to this very release, and it is whole here."""
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
        """Whether a file or folder is older than the limit; what is gone is not."""
        try:
            return path.lstat().st_mtime <= self._limit
        except FileNotFoundError:
            return False

    def _remove(self, one: Garbage) -> None:
        with storage_errors(one.path):
            match one.kind:
                case "cache entry":
                    self._cache.remove(one.path)
                case "part":
                    self._repository.members(one.path.parent.name).remove(one.path)
                case "view" | "release":
                    self._repository.remove(one.path)
                case "leftover" if one.path.parent.name == STAGING or one.path.parent in self._staging:
                    sweep(one.path.parent)
                case _:
                    _delete(one.path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _files(path: Path) -> Iterator[Path]:
    """A file or link itself, or all of them below a folder, of which parts may vanish meanwhile."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for root, folders, names in os.walk(path):
        yield from (Path(root, name) for name in names)
        yield from (link for name in folders if (link := Path(root, name)).is_symlink())


def _freed(path: Path, links: Counter[tuple[int, int]]) -> int:
    """The bytes of the files below a path whose last link goes with it; `links` counts those that go."""
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
