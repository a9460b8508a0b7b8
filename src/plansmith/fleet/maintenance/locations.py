"""Maintained repositories and stores, processed one by one; an error in one does not stop the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from plansmith.config.spec import repository_of
from plansmith.errors import PlansmithError, RepositoryError, UsageError, error_from_dict, first_line
from plansmith.fleet.members import Unread, members_of
from plansmith.records.destination import Location, wrong_place
from plansmith.records.model import Record
from plansmith.stores.store import Store, open_existing, open_store
from plansmith.triton.repository.ensembles import repositories_in
from plansmith.triton.repository.repository import ModelRepository

T = TypeVar("T")


class Fault(Record):
    """Fault that prevented the check of a place; `error` is the name of its class."""

    place: str
    error: str
    message: str
    remedy: str

    def as_error(self) -> PlansmithError:
        """Return the original error."""
        fields = {"error": self.error, "message": self.message, "remedy": self.remedy}
        return error_from_dict({**fields, "model": "", "step": "", "log": None, "transient": False})


def fault_at(place: str, error: PlansmithError) -> Fault:
    """Convert an error to the fault of a place."""
    return Fault(place=place, error=type(error).__name__, message=error.message, remedy=error.remedy)


def places_of(written: Iterable[str | Location]) -> list[Location]:
    """Parse places: as text, or with their access options.

    Raises:
        UsageError: one is no place.
    """
    locations = []
    for entry in written:
        wrong = wrong_place(entry) if isinstance(entry, str) else None
        if wrong is not None:
            raise UsageError(f"{entry!r} is no store: {wrong}", remedy="name a folder or s3://bucket/prefix")
        locations.append(Location(to=entry) if isinstance(entry, str) else entry)
    return locations


class Absent(Record):
    """Empty place of the specs, with nothing in it yet."""

    place: str


@dataclass
class Notes:
    """Notes on places that could not be checked or do not exist yet; collected during iteration."""

    faults: list[Fault] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def opened(self, results: Iterable[T | Fault | Absent]) -> Iterator[T]:
        """Yield places that could be opened, one at a time; note the others."""
        for result in results:
            if isinstance(result, Fault):
                self.faults.append(result)
            elif isinstance(result, Absent):
                self.absent.append(result.place)
            else:
                yield result

    @contextmanager
    def noting(self, place: str) -> Iterator[None]:
        """Note errors on a place, including unsuitable files, and continue after the block."""
        try:
            yield
        except PlansmithError as error:
            self.faults.append(fault_at(place, error))
        except (OSError, ValueError) as error:
            fault = RepositoryError(
                f"{place} cannot be read: {first_line(error)}",
                remedy="let this user read all that is there, and move away what does not belong there",
            )
            self.faults.append(fault_at(place, fault))


@dataclass(frozen=True)
class OfSpecs:
    """Places named by specs, which need not exist yet.

    Args:
        artifacts: caches, logs and histories.
        repositories: of their models.
        stores: where they publish.
        shared_caches: where machines share finished steps.
        faults: specs that cannot be read, whose places nobody knows.
    """

    artifacts: tuple[Path, ...] = ()
    repositories: tuple[Path, ...] = ()
    stores: tuple[Location, ...] = ()
    shared_caches: tuple[Location, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Places:
    """Maintained places.

    Args:
        repositories: folders; one that holds the repositories of several targets stands for all of them.
        stores: where releases were published.
        relative_to: the folder that relative paths start from.
        of_specs: more of both.
    """

    repositories: Sequence[Path] = ()
    stores: Sequence[Location] = ()
    relative_to: Path = Path()
    of_specs: OfSpecs = OfSpecs()

    def open_repositories(self) -> Iterator[ModelRepository | Fault | Absent]:
        """Open each repository, or note why there is none."""
        for folder in self.repositories:
            matches = repositories_at(self.relative_to / folder)
            if not matches:
                error = RepositoryError(
                    f"there is no repository {folder}", remedy="name the folder that models were compiled into"
                )
                yield fault_at(str(folder), error)
            yield from matches
        for folder in self.of_specs.repositories:
            existing = repositories_at(self.relative_to / folder)
            yield from existing
            if not existing:
                yield Absent(place=str(self.relative_to / folder))

    def open_stores(self) -> Iterator[Store | Fault | Absent]:
        """Open each store, or note why it cannot be reached."""
        for place in self.stores:
            try:
                yield open_existing(place, self.relative_to)
            except PlansmithError as error:
                yield fault_at(place.to, error)
        yield from stores_there(self.of_specs.stores, self.relative_to)


def stores_there(places: Iterable[Location], relative_to: Path) -> Iterator[Store | Fault | Absent]:
    """Return the stores that exist at optional places."""
    for place in places:
        try:
            store = open_store(place, relative_to)
            yield Absent(place=store.place) if store.marker() is None else store
        except PlansmithError as error:
            yield fault_at(place.to, error)


def repositories_at(folder: Path) -> list[ModelRepository]:
    """Return the repository in a folder, or those of several targets below it; none if it is neither."""
    candidates = [ModelRepository(root) for root in repositories_in(folder) or [folder]]
    return [repository for repository in candidates if repository.is_there()]


def places_of_specs(specs: Sequence[str], folder: Path, overrides: Mapping[str, Any] | None = None) -> OfSpecs:
    """Return the places of all models of a fleet, without duplicates; reads spec files one by one, but no models.

    Args:
        specs: spec files, and folders that hold some.
        folder: what is relative starts from there, but for what a spec names: that starts from the spec.
        overrides: values for every model, as for `loader.read_specs`.
    """
    root = folder.absolute()
    members, faults = [], []
    for member in members_of([root / spec for spec in specs], overrides or {}):
        if isinstance(member, Unread):
            faults.append(fault_at(str(member.file), member.error))
        else:
            members.append((member.spec, member.file.parent))
    repositories = [(root / repository_of(spec.model_dump())).resolve() for spec, _ in members]
    caches = [(spec.shared_cache, start) for spec, start in members if spec.shared_cache is not None]
    return OfSpecs(
        artifacts=tuple(dict.fromkeys((root / spec.artifacts).resolve() for spec, _ in members)),
        repositories=tuple(dict.fromkeys(repositories)),
        stores=tuple(dict.fromkeys(_from(start, place) for spec, start in members for place in spec.publish)),
        shared_caches=tuple(dict.fromkeys(_from(start, place) for place, start in caches)),
        faults=tuple(faults),
    )


def named_places(
    of_specs: OfSpecs,
    folder: Path,
    repositories: Sequence[str] | None,
    stores: Sequence[str | Location] | None,
    shared_caches: Sequence[str | Location] | None = None,
    *,
    below: Path = Path("artifacts"),
) -> Places:
    """Return the named places; kinds without a named place use those of the specs.

    Args:
        of_specs: what they have.
        folder: what is relative starts from there.
        repositories: folders; None where none are named. Without specs, that below the artifacts is meant then.
        stores: where releases were published; None where none are named.
        shared_caches: where machines share finished steps; None where none are named.
        below: the artifacts.

    Raises:
        UsageError: a store is none.
    """
    spec_places = replace(
        of_specs,
        repositories=() if repositories is not None else of_specs.repositories,
        stores=() if stores is not None else of_specs.stores,
        shared_caches=() if shared_caches is not None else of_specs.shared_caches,
    )
    if repositories is None:
        repositories = [] if of_specs != OfSpecs() else [str(below / "repository")]
    return Places([Path(name) for name in repositories], places_of(stores or []), folder, spec_places)


def _from(start: Path, place: Location) -> Location:
    """Return a location as an absolute one; relative paths start from the spec's folder."""
    fields = {name: getattr(place, name) for name in Location.model_fields}
    if not place.is_s3:
        fields["to"] = str((start / place.to).resolve())
    if place.ca_bundle:
        fields["ca_bundle"] = str(start / place.ca_bundle)
    return Location(**fields)
