"""The repositories and stores that are looked after, one by one: a fault in one leaves the others to be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from plansmith.config.multi_target import repository_of
from plansmith.errors import PlansmithError, RepositoryError, UsageError, error_from_dict, first_line
from plansmith.fleet.members import Unread, members_of
from plansmith.records.destination import Location, wrong_place
from plansmith.records.model import Record
from plansmith.stores.open import open_existing, open_store
from plansmith.stores.store import Store
from plansmith.triton.repository.nesting import repositories_in
from plansmith.triton.repository.repository import ModelRepository

T = TypeVar("T")


class Fault(Record):
    """What kept a place from being looked at; `error` is the name of its class."""

    place: str
    error: str
    message: str
    remedy: str

    def as_error(self) -> PlansmithError:
        """The error that it was."""
        fields = {"error": self.error, "message": self.message, "remedy": self.remedy}
        return error_from_dict({**fields, "model": "", "step": "", "log": None, "transient": False})


def fault_at(place: str, error: PlansmithError) -> Fault:
    """An error as what befell a place."""
    return Fault(place=place, error=type(error).__name__, message=error.message, remedy=error.remedy)


def places_of(written: Iterable[str | Location]) -> list[Location]:
    """Places as they are written: as text, or with what it takes to reach them.

    Raises:
        UsageError: one is no place.
    """
    found = []
    for one in written:
        wrong = wrong_place(one) if isinstance(one, str) else None
        if wrong is not None:
            raise UsageError(f"{one!r} is no store: {wrong}", remedy="name a folder or s3://bucket/prefix")
        found.append(Location(to=one) if isinstance(one, str) else one)
    return found


class Absent(Record):
    """A place of the specs with nothing in it yet."""

    place: str


@dataclass
class Notes:
    """What could not be looked at, and what is not there yet; it grows as places are gone through."""

    faults: list[Fault] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def opened(self, found: Iterable[T | Fault | Absent]) -> Iterator[T]:
        """What could be opened, one at a time; the rest is noted."""
        for one in found:
            if isinstance(one, Fault):
                self.faults.append(one)
            elif isinstance(one, Absent):
                self.absent.append(one.place)
            else:
                yield one

    @contextmanager
    def noting(self, place: str) -> Iterator[None]:
        """Note what goes wrong with a place, also what its files are not fit for, and go on behind the block."""
        try:
            yield
        except PlansmithError as error:
            self.faults.append(fault_at(place, error))
        except (OSError, ValueError) as error:
            said = RepositoryError(
                f"{place} cannot be read: {first_line(error)}",
                remedy="let this user read all that is there, and move away what does not belong there",
            )
            self.faults.append(fault_at(place, said))


@dataclass(frozen=True)
class OfSpecs:
    """The places that specs name: nothing need be there yet.

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
    """What is looked after.

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
        """Each repository, or why there is none."""
        for folder in self.repositories:
            found = repositories_at(self.relative_to / folder)
            if not found:
                error = RepositoryError(
                    f"there is no repository {folder}", remedy="name the folder that models were compiled into"
                )
                yield fault_at(str(folder), error)
            yield from found
        for folder in self.of_specs.repositories:
            there = repositories_at(self.relative_to / folder)
            yield from there
            if not there:
                yield Absent(place=str(self.relative_to / folder))

    def open_stores(self) -> Iterator[Store | Fault | Absent]:
        """Each store, or why it cannot be asked."""
        for place in self.stores:
            try:
                yield open_existing(place, self.relative_to)
            except PlansmithError as error:
                yield fault_at(place.to, error)
        yield from stores_there(self.of_specs.stores, self.relative_to)


def stores_there(places: Iterable[Location], relative_to: Path) -> Iterator[Store | Fault | Absent]:
    """The stores at places where one need not be yet."""
    for place in places:
        try:
            store = open_store(place, relative_to)
            yield Absent(place=store.place) if store.marker() is None else store
        except PlansmithError as error:
            yield fault_at(place.to, error)


def repositories_at(folder: Path) -> list[ModelRepository]:
    """The repository that a folder is, or those of several targets in it; none where it is neither."""
    found = [ModelRepository(one) for one in repositories_in(folder) or [folder]]
    return [repository for repository in found if repository.is_there()]


def places_of_specs(specs: Sequence[str], folder: Path, overrides: Mapping[str, Any] | None = None) -> OfSpecs:
    """The places of all models of a fleet, each once; spec files are read one at a time, and none of their models.

    Args:
        specs: spec files, and folders that hold some.
        folder: what is relative starts from there, but for what a spec names: that starts from the spec.
        overrides: values for every model, as for `loader.read_specs`.
    """
    root = folder.absolute()
    members, faults = [], []
    for one in members_of([root / spec for spec in specs], overrides or {}):
        if isinstance(one, Unread):
            faults.append(fault_at(str(one.file), one.error))
        else:
            members.append((one.spec, one.file.parent))
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
    """What is named, and of the kinds of which nothing is, what specs have.

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
    there = replace(
        of_specs,
        repositories=() if repositories is not None else of_specs.repositories,
        stores=() if stores is not None else of_specs.stores,
        shared_caches=() if shared_caches is not None else of_specs.shared_caches,
    )
    if repositories is None:
        repositories = [] if of_specs != OfSpecs() else [str(below / "repository")]
    return Places([Path(one) for one in repositories], places_of(stores or []), folder, there)


def _from(start: Path, place: Location) -> Location:
    """How a place is reached, whoever names it; what is relative starts from a spec's folder."""
    found = {name: getattr(place, name) for name in Location.model_fields}
    if not place.is_s3:
        found["to"] = str((start / place.to).resolve())
    if place.ca_bundle:
        found["ca_bundle"] = str(start / place.ca_bundle)
    return Location(**found)
