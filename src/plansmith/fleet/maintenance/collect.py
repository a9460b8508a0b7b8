"""What nobody needs any more, here and in stores: looked for first, told, and then that alone taken away.

Never what Triton is shown, what an alias stands for or a rollback of it leads to, what is pinned, and what a loader
said to be live; nothing that is young, and nothing that was not there, or was needed, in the first look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.errors import PlansmithError, RepositoryError
from plansmith.fleet.maintenance.cleanup import RemovedItem, Tidied, TidiedCache, TidiedMachine, TidiedStore
from plansmith.fleet.maintenance.garbage import Limits
from plansmith.fleet.maintenance.locations import Fault, Notes, Places, fault_at, stores_there
from plansmith.records.destination import Location
from plansmith.records.model import Record
from plansmith.stores.maintenance.prune import Staying
from plansmith.stores.maintenance.retention import Retention
from plansmith.stores.open import open_store
from plansmith.system.files import Waiting


class RetainedVersion(Record):
    """A version in a store that stays, and why."""

    place: str
    model: str
    version: int
    why: str


class Collected(Record):
    """What came of it.

    `found`: in the first look; `gone`: of that, what then went, nothing in a dry run; `kept`: versions of stores;
    `faults`: places that could not be looked at, or refused, maybe half-way; `absent`: places of specs with nothing in
    them yet.
    """

    dry_run: bool
    found: tuple[RemovedItem, ...]
    gone: tuple[RemovedItem, ...]
    kept: tuple[RetainedVersion, ...]
    faults: tuple[Fault, ...]
    absent: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """What it freed; of a dry run, what it would."""
        return sum(one.bytes for one in (self.found if self.dry_run else self.gone))

    def error(self) -> PlansmithError | None:
        """What to end with: the first place that could not be tidied; None where all were."""
        return self.faults[0].as_error().located(step="collect") if self.faults else None


@dataclass(frozen=True)
class CollectionScope:
    """What is tidied.

    Args:
        artifacts: cache, logs and history of this machine; None where those of the specs are meant.
        places: its repositories, and stores.
        shared_caches: where machines share finished steps, besides those of the specs.
    """

    artifacts: Path | None
    places: Places
    shared_caches: Sequence[Location] = ()


@dataclass(frozen=True)
class Grace:
    """What stays in any case.

    Args:
        seconds: what was used or published within so many.
        keep: so many of the newest versions of each model in a store.
        settle_seconds: as for `Pruner`.
        limits: for this machine, as `Collector` takes them; by `seconds` and the clock where it is None.
    """

    seconds: float
    keep: int = 5
    settle_seconds: float = 3.0
    limits: Limits | None = None


def collect(
    grounds: CollectionScope,
    grace: Grace,
    *,
    dry_run: bool,
    told: Callable[[Sequence[RemovedItem]], None] = lambda _: None,
    waiting: Waiting = lambda _: None,
) -> Collected:
    """Look for what can go in all places; tell it; then, unless it is a dry run, take that away and nothing else.

    A place that fails leaves the others to be tidied. What was found stays where it is held or used again by then.

    Args:
        grounds: where.
        grace: what stays in any case.
        dry_run: only look.
        told: given what was found, before anything goes.
        waiting: told when a compile has to end first; what it raises ends the attempt.
    """
    notes = Notes([*grounds.places.of_specs.faults])
    stores = [
        TidiedStore(store, Retention(grace.keep, grace.seconds), grace.settle_seconds)
        for store in notes.opened(grounds.places.open_stores())
    ]
    machine = _machine(grounds, grace, _held(stores, notes), waiting, notes)
    tidied: list[Tidied] = [*stores, *_caches(grounds, grace, notes), *machine]
    found: list[tuple[Tidied, list[RemovedItem]]] = []
    for one in tidied:
        with notes.noting(one.place):
            found.append((one, one.look()))
    told([thing for _, there in found for thing in there])
    gone: list[RemovedItem] = []
    for one, there in [] if dry_run else found:
        with notes.noting(one.place):
            if there:
                one.take({thing.name for thing in there}, gone)
    return Collected(
        dry_run=dry_run,
        found=tuple(thing for _, there in found for thing in there),
        gone=tuple(gone),
        kept=tuple(_kept(one.place, staying) for one in stores for staying in one.staying),
        faults=tuple(notes.faults),
        absent=tuple(notes.absent),
    )


def _held(stores: Sequence[TidiedStore], notes: Notes) -> frozenset[str] | None:
    """The digests of the releases that stores hold on to; None where one of them cannot be asked, or is not known."""
    if notes.faults:
        return None
    try:
        return frozenset(digest for store in stores for digest in store.held())
    except PlansmithError:
        return None  # it fails again, and is told, when the store is looked over


def _caches(grounds: CollectionScope, grace: Grace, notes: Notes) -> Iterator[TidiedCache]:
    """The shared caches that can be asked."""
    relative_to = grounds.places.relative_to
    for place in grounds.shared_caches:
        with notes.noting(place.to):
            store = open_store(place, relative_to)
            if store.marker() is None:
                raise RepositoryError(
                    f"nothing is shared at {store.place}", remedy=f"compile something with --shared-cache {place.to}"
                )
            yield TidiedCache(store, grace.seconds)
    for store in notes.opened(stores_there(grounds.places.of_specs.shared_caches, relative_to)):
        yield TidiedCache(store, grace.seconds)


def _machine(
    grounds: CollectionScope, grace: Grace, held: frozenset[str] | None, waiting: Waiting, notes: Notes
) -> Iterator[TidiedMachine]:
    """The artifacts with each repository; what is below the artifacts is tidied with the first."""
    folders = _artifacts(grounds, notes)
    repositories = [one.root for one in notes.opened(grounds.places.open_repositories())] if folders else []
    if not repositories and grounds.artifacts is None:  # what failed has left logs
        repositories = [folder / "repository" for folder in folders[:1]]
    limits = grace.limits or Limits(older_than=grace.seconds, now=time.time())
    limits = replace(limits, spared=held or frozenset())
    pairs = [(folders[0], repository) for repository in repositories]
    pairs += [(folder, repository) for folder in folders[1:] for repository in repositories[:1]]
    seen: set[Path] = set()
    for artifacts, repository in pairs:
        yield TidiedMachine(artifacts, repository, limits, waiting, takes_releases=held is not None, others=seen)


def _artifacts(grounds: CollectionScope, notes: Notes) -> list[Path]:
    """The folders of artifacts that are there."""
    if grounds.artifacts is None:
        folders = grounds.places.of_specs.artifacts
        notes.absent += [str(folder) for folder in folders if not folder.is_dir()]
        return [folder for folder in folders if folder.is_dir()]
    artifacts = grounds.places.relative_to / grounds.artifacts
    if artifacts.is_dir():
        return [artifacts]
    error = RepositoryError(f"{artifacts} is no folder", remedy="name the --artifacts that models were compiled in")
    notes.faults.append(fault_at(str(artifacts), error))
    return []


def _kept(place: str, staying: Staying) -> RetainedVersion:
    return RetainedVersion(place=place, model=staying.model, version=staying.version, why=staying.why)
