"""One place to tidy each: a store, a shared cache, or the artifacts and a repository of this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from plansmith.fleet.maintenance.garbage import Collector, Garbage, Limits
from plansmith.records.model import Record
from plansmith.steps.cache.shared_gc import Unused, collect_shared
from plansmith.stores.maintenance.prune import PrunedItem, Pruner, Staying
from plansmith.stores.maintenance.retention import Retention, fates
from plansmith.stores.reader import live_reports
from plansmith.stores.store import Store
from plansmith.system.files import Waiting

_HELD_ALONE = Retention(keep=0, seconds=0)


class RemovedItem(Record):
    """One thing that goes: where, of which kind, by its path, key or MODEL@VERSION; why; and what that frees."""

    place: str
    kind: str
    name: str
    why: str
    bytes: int = 0


class Tidied(Protocol):
    """A place that is looked over first, and tidied then."""

    @property
    def place(self) -> str:
        """Where it is, as a person may read it."""
        ...

    def look(self) -> list[RemovedItem]:
        """What can go; nothing is written."""
        ...

    def take(self, names: Collection[str], gone: list[RemovedItem]) -> None:
        """Take away what can go still and has one of the names; each is added to `gone` as it goes."""
        ...


@dataclass
class TidiedStore:
    """A store of releases.

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
        """Where it is."""
        return self.store.place

    def look(self) -> list[RemovedItem]:
        """Versions beyond the retention, and what belongs to none."""
        pruned = self._pruner(None, lambda _: None).prune()
        self.staying = pruned.staying
        return [self._gone(one) for one in pruned.gone]

    def take(self, names: Collection[str], gone: list[RemovedItem]) -> None:
        """Give them up."""
        self.staying = self._pruner(names, lambda one: gone.append(self._gone(one))).prune().staying

    def held(self) -> Iterator[str]:
        """The digests of releases that an alias, a pin or a loader holds, or that a rollback would lead to."""
        now = self.store.objects.now()
        for model in self.store.models():
            found = fates(self.store.catalogue(model), _HELD_ALONE, live_reports(self.store, model), now)
            yield from (fate.version.digest for fate in found if fate.stays is not None)

    def _pruner(self, only: Collection[str] | None, went: Callable[[PrunedItem], None]) -> Pruner:
        settle = self.settle_seconds
        return Pruner(self.store, self.retention, dry=only is None, settle_seconds=settle, only=only, went=went)

    def _gone(self, one: PrunedItem) -> RemovedItem:
        return RemovedItem(place=self.place, kind=one.kind, name=one.name, why=one.why, bytes=one.bytes)


@dataclass
class TidiedCache:
    """What machines share.

    Args:
        store: holds it.
        seconds: what was used within so many stays.
    """

    store: Store
    seconds: float

    @property
    def place(self) -> str:
        """Where it is."""
        return self.store.place

    def look(self) -> list[RemovedItem]:
        """What no machine used for so long, and the contents that nothing else needs."""
        return [self._gone(one) for one in collect_shared(self.store, self.seconds, dry=True)]

    def take(self, names: Collection[str], gone: list[RemovedItem]) -> None:
        """Take them away."""
        collect_shared(self.store, self.seconds, dry=False, only=names, went=lambda one: gone.append(self._gone(one)))

    def _gone(self, one: Unused) -> RemovedItem:
        return RemovedItem(place=self.place, kind=one.kind, name=one.key, why=one.why, bytes=one.bytes)


@dataclass
class TidiedMachine:
    """The artifacts of this machine, with one repository.

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
        """Where it is."""
        return str(self.repository)

    def look(self) -> list[RemovedItem]:
        """What was not used for so long, what killed processes left, and releases that Triton is not shown."""
        found = Collector(self.artifacts, self.repository, self.limits, dry=True).found(self.waiting)
        mine = [one for one in found if one.path not in self.others and (self.takes_releases or one.kind != "release")]
        self.others |= {one.path for one in mine}
        return [self._gone(one) for one in mine]

    def take(self, names: Collection[str], gone: list[RemovedItem]) -> None:
        """Take them away."""
        collector = Collector(self.artifacts, self.repository, self.limits)
        meant = {Path(name) for name in names}
        collector.collect(self.waiting, only=meant, went=lambda one: gone.append(self._gone(one)))

    def _gone(self, one: Garbage) -> RemovedItem:
        return RemovedItem(place=self.place, kind=one.kind, name=str(one.path), why=one.why, bytes=one.bytes)
