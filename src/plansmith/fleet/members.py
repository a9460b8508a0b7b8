"""The members of a fleet: spec files in folders and by name, read one at a time, and the models that they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.loader import read_specs
from plansmith.config.multi_target import folder_of, repository_of
from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError, UsageError, first_line

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Member:
    """One model of a spec file, for one target.

    Args:
        name: of the model.
        target: the label that tells it from the same model for others.
        file: the spec, from the root.
        spec: what is wanted.
    """

    name: str
    target: str
    file: Path
    spec: ModelSpec

    @property
    def repository(self) -> Path:
        """The model repository that it is published in."""
        return repository_of(self.spec.model_dump(include={"repository", "artifacts"})).absolute()


@dataclass(frozen=True)
class Unread:
    """A place that holds no spec that can be read, and why."""

    file: Path
    error: PlansmithError


def members_of(places: Sequence[Path], overrides: Mapping[str, Any]) -> Iterator[Member | Unread]:
    """The models of spec files and of those in folders, file by file; each file once, under the first of its names.

    Args:
        places: spec files, and folders that hold some, at any depth; what is hidden is left out.
        overrides: values for every model, as for `loader.read_specs`.
    """
    seen: set[str] = set()
    for place in [place.absolute() for place in places]:
        unread: list[Unread] = []
        try:
            files = _files(place, unread)
            if not files and not unread:
                unread.append(Unread(place, _nothing_at(place)))
        except OSError as error:
            files = []
            unread.append(Unread(place, _unreadable(place, error)))
        yield from unread
        for file in files:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield from members_in(file, overrides)


def members_in(file: Path, overrides: Mapping[str, Any]) -> Iterator[Member | Unread]:
    """The models of one spec file, or why it cannot be read."""
    try:
        models = read_specs(file, overrides).models
    except PlansmithError as error:
        yield Unread(file, error)
        return
    except OSError as error:
        yield Unread(file, _unreadable(file, error))
        return
    yield from (Member(one.name, folder_of(one.spec.target), file, one.spec) for one in models)


def _files(place: Path, unread: list[Unread]) -> list[Path]:
    """The spec files at a place, sorted; whether one that is named can be read is seen when it is.

    Args:
        place: where.
        unread: takes the folders that cannot be read; the others count all the same.

    Raises:
        OSError: it cannot even be seen what is there.
    """
    if not place.is_dir():
        return [place] if place.is_file() else []
    found, entered = [], set()

    def skip(error: OSError) -> None:
        folder = Path(error.filename)
        unread.append(Unread(folder, _unreadable(folder, error)))

    for root, folders, names in os.walk(place, onerror=skip, followlinks=True):
        real = os.path.realpath(root)
        # A link may lead back to where it lies.
        folders[:] = [] if real in entered else sorted(name for name in folders if not name.startswith("."))
        if real not in entered:
            entered.add(real)
            found += [Path(root, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    return sorted(found)


def _unreadable(place: Path, error: OSError) -> UsageError:
    words = error.strerror or first_line(error)
    return UsageError(
        f"{place} cannot be read: {words}", remedy="let this user read it, or name the places that are meant"
    )


def _nothing_at(place: Path) -> UsageError:
    if place.is_dir():
        return UsageError(
            f"{place} holds no spec", remedy=f"put one there ({' or '.join(SUFFIXES)}), or name another folder"
        )
    return UsageError(
        f"there is no spec and no folder {place}", remedy="name a .yaml file, or a folder that holds some"
    )
