"""Garbage collection across repositories and stores: finds and reports garbage, then deletes exactly that.

Never what Triton is shown, what an alias stands for or a rollback of it leads to, what is pinned, and what a loader
said to be live; nothing that is young, and nothing that was not there, or was needed, in the first look.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.errors import PlansmithError, RepositoryError, in_one_line
from plansmith.fleet.maintenance.garbage import Limits, RemovedItem, Tidied, TidiedCache, TidiedMachine, TidiedStore
from plansmith.fleet.maintenance.locations import Fault, Notes, Places, fault_at, stores_there
from plansmith.fleet.maintenance.verify import Verified, VersionAnswer
from plansmith.formatting import count, format_bytes
from plansmith.records.destination import Location
from plansmith.records.model import Record
from plansmith.stores.prune import Retention, Staying
from plansmith.stores.store import open_store
from plansmith.stores.verify import Damage, Verification
from plansmith.system.files import Waiting

_NOTHING_YET = "nothing there yet"
VERIFIED_COLUMNS = ("place", "version", "looked at", "found")
COLLECTED_COLUMNS = ("place", "kind", "name", "why", "bytes", "state")
_OUTCOMES = {
    "right": "answers as its model did",
    "wrong": "wrong",
    "unasked": "not asked",
    "incomparable": "not compared",
}
_ANSWERS = {
    "right": "answered rightly",
    "wrong": "wrongly or not at all",
    "unasked": "could not be asked",
    "incomparable": "could not be compared",
}


class RetainedVersion(Record):
    """Retained version of a store, with the reason."""

    place: str
    model: str
    version: int
    why: str


class Collected(Record):
    """Results of a garbage collection.

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
        """The bytes freed, or in a dry run the bytes to be freed."""
        return sum(item.bytes for item in (self.found if self.dry_run else self.gone))

    def error(self) -> PlansmithError | None:
        """Return the error to exit with: of the first place that could not be collected; None without one."""
        return self.faults[0].as_error().located(step="collect") if self.faults else None


@dataclass(frozen=True)
class CollectionScope:
    """Scope of a garbage collection.

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
    """Retention limits: what is always kept.

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
    """Run garbage collection: find garbage in all places, report it, and delete exactly that unless it is a dry run.

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
    machine = _machine(grounds, grace, _retained_digests(stores, notes), waiting, notes)
    tidied: list[Tidied] = [*stores, *_caches(grounds, grace, notes), *machine]
    garbage: list[tuple[Tidied, list[RemovedItem]]] = []
    for area in tidied:
        with notes.noting(area.place):
            garbage.append((area, area.look()))
    told([thing for _, items in garbage for thing in items])
    removed: list[RemovedItem] = []
    for area, items in [] if dry_run else garbage:
        with notes.noting(area.place):
            if items:
                area.take({thing.name for thing in items}, removed)
    return Collected(
        dry_run=dry_run,
        found=tuple(thing for _, items in garbage for thing in items),
        gone=tuple(removed),
        kept=tuple(_retained_version(area.place, staying) for area in stores for staying in area.staying),
        faults=tuple(notes.faults),
        absent=tuple(notes.absent),
    )


def _retained_digests(stores: Sequence[TidiedStore], notes: Notes) -> frozenset[str] | None:
    """Return the digests of releases that stores retain; None if a store is unreachable or unknown."""
    if notes.faults:
        return None
    try:
        return frozenset(digest for store in stores for digest in store.retained_digests())
    except PlansmithError:
        return None  # it fails again, and is told, when the store is looked over


def _caches(grounds: CollectionScope, grace: Grace, notes: Notes) -> Iterator[TidiedCache]:
    """Return the shared caches that can be reached."""
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
    grounds: CollectionScope, grace: Grace, held_digests: frozenset[str] | None, waiting: Waiting, notes: Notes
) -> Iterator[TidiedMachine]:
    """Garbage-collect the artifacts with each repository; what is in the artifacts folder goes with the first."""
    folders = _artifacts(grounds, notes)
    repositories = [entry.root for entry in notes.opened(grounds.places.open_repositories())] if folders else []
    if not repositories and grounds.artifacts is None:  # what failed has left logs
        repositories = [folder / "repository" for folder in folders[:1]]
    limits = grace.limits or Limits(older_than=grace.seconds, now=time.time())
    limits = replace(limits, spared=held_digests or frozenset())
    pairs = [(folders[0], repository) for repository in repositories]
    pairs += [(folder, repository) for folder in folders[1:] for repository in repositories[:1]]
    visited_paths: set[Path] = set()
    for artifacts, repository in pairs:
        yield TidiedMachine(
            artifacts, repository, limits, waiting, takes_releases=held_digests is not None, others=visited_paths
        )


def _artifacts(grounds: CollectionScope, notes: Notes) -> list[Path]:
    """Return the existing artifacts folders."""
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


def _retained_version(place: str, staying: Staying) -> RetainedVersion:
    return RetainedVersion(place=place, model=staying.model, version=staying.version, why=staying.why)


def verified_counts(verified: Verified) -> str:
    """Format the verification counts: "2 places, 12 versions, 0 damaged; 5 asked, 1 wrong"."""
    versions = sum(place.versions for place in verified.places)
    damaged = {(place.place, item.model, item.version) for place in verified.places for item in place.damages}
    summary = f"{count(len(verified.places), 'place')}, {count(versions, 'version')}, {len(damaged)} damaged"
    counts: Counter[str] = Counter(item.outcome for item in verified.answers)
    answers = [f"{counts[outcome]} {label}" for outcome, label in _ANSWERS.items() if counts[outcome]]
    faults = [f"{count(len(verified.faults), 'place')} could not be looked at"] if verified.faults else []
    return "; ".join([summary, *([", ".join(answers)] if answers else []), *faults, *_nothing_yet(verified.absent)])


def verified_rows(verified: Verified) -> list[dict[str, str]]:
    """Return problems first, then every queried version, then the places, by `VERIFIED_COLUMNS`."""
    faults = [_row(item.place, "all", "place", in_one_line(item.message)) for item in verified.faults]
    damages = [_damage_row(place, item) for place in verified.places for item in place.damages]
    order = list(_ANSWERS)
    answers = sorted(verified.answers, key=lambda item: (item.outcome == "right", order.index(item.outcome)))
    return [*faults, *damages, *map(_answer_row, answers), *map(_place_row, verified.places)]


def describe_answer(answer: VersionAnswer) -> str:
    """Describe a version's answer in one line."""
    if answer.outcome == "right":
        return f"{_OUTCOMES['right']}: {count(answer.requests, 'request')}, {answer.runtime}"
    return f"{_OUTCOMES[answer.outcome]}: {in_one_line(answer.problem)}"


def collected_counts(collected: Collected) -> str:
    """Format the number of deleted items and the bytes freed."""
    freed = f"{format_bytes(collected.freed_bytes)} freed"
    absent = _nothing_yet(collected.absent)
    if collected.dry_run:
        return "; ".join([f"{count(len(collected.found), 'thing')} would be removed, {freed}", *absent])
    still = len(collected.found) - len(collected.gone)
    stays = f"; {still} of what was found stayed" if still else ""
    return "; ".join([f"{count(len(collected.gone), 'thing')} removed, {freed}{stays}", *absent])


def collected_rows(collected: Collected) -> list[dict[str, str]]:
    """Return rows of found garbage and its fate, retained store versions and faults, by `COLLECTED_COLUMNS`."""
    went = {(item.place, item.name) for item in collected.gone}

    def state(place: str, name: str) -> str:
        return "would go" if collected.dry_run else "gone" if (place, name) in went else "stayed"

    rows = [
        {
            "place": item.place,
            "kind": item.kind,
            "name": item.name,
            "why": item.why,
            "bytes": format_bytes(item.bytes),
            "state": state(item.place, item.name),
        }
        for item in collected.found
    ]
    nothing = {"bytes": "", "state": "stays"}
    rows += [
        {"place": item.place, "kind": "version", "name": f"{item.model}@{item.version}", "why": item.why, **nothing}
        for item in collected.kept
    ]
    failed = {"kind": "place", "name": "", "bytes": "", "state": "left alone"}
    rows += [{"place": item.place, "why": in_one_line(item.message), **failed} for item in collected.faults]
    absent = {"kind": "place", "name": "", "why": _NOTHING_YET, "bytes": "", "state": "left alone"}
    return rows + [{"place": place, **absent} for place in collected.absent]


def _nothing_yet(absent: Sequence[str]) -> list[str]:
    """Return a message for empty locations; none if there are none."""
    return [f"{_NOTHING_YET} at {', '.join(absent)}"] if absent else []


def _damage_row(place: Verification, damage: Damage) -> dict[str, str]:
    version = damage.model if damage.version is None else f"{damage.model}@{damage.version}"
    return _row(place.place, version, damage.path or "its records", damage.problem)


def _answer_row(answer: VersionAnswer) -> dict[str, str]:
    return _row(answer.repository, f"{answer.model}@{answer.version}", "answers", describe_answer(answer))


def _place_row(place: Verification) -> dict[str, str]:
    how = "sizes" if place.quick else "contents"
    read = f"{count(place.versions, 'version')}, {count(place.files, 'file')}, {format_bytes(place.bytes)}"
    return _row(place.place, "all", how, read + (", not all as published" if place.damages else ", as published"))


def _row(place: str, version: str, looked_at: str, detail: str) -> dict[str, str]:
    return dict(zip(VERIFIED_COLUMNS, (place, version, looked_at, detail), strict=True))
