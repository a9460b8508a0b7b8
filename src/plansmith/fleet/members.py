"""Fleet members: spec files in folders and by name, read one at a time, and the models in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from plansmith.config.loader import read_specs
from plansmith.config.spec import ModelSpec, folder_of, repository_of
from plansmith.errors import PlansmithError, UsageError, first_line

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Member:
    """Fleet member: one model of a spec file, for one target.

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
        """The model repository that the member is published in."""
        return repository_of(self.spec.model_dump(include={"repository", "artifacts"})).absolute()


@dataclass(frozen=True)
class Unread:
    """Unreadable spec location, with the reason."""

    file: Path
    error: PlansmithError


def members_of(places: Sequence[Path], overrides: Mapping[str, Any]) -> Iterator[Member | Unread]:
    """Return the models of spec files and folders, file by file; each file once, under its first name.

    Args:
        places: spec files, and folders that hold some, at any depth; what is hidden is left out.
        overrides: values for every model, as for `loader.read_specs`.
    """
    visited: set[str] = set()
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
            if real not in visited:
                visited.add(real)
                yield from members_in(file, overrides)


def members_in(file: Path, overrides: Mapping[str, Any]) -> Iterator[Member | Unread]:
    """Return the models of one spec file, or why it cannot be read."""
    try:
        models = read_specs(file, overrides).models
    except PlansmithError as error:
        yield Unread(file, error)
        return
    except OSError as error:
        yield Unread(file, _unreadable(file, error))
        return
    yield from (Member(model.name, folder_of(model.spec.target), file, model.spec) for model in models)


def _files(place: Path, unread: list[Unread]) -> list[Path]:
    """Return the spec files at a path, sorted; a named file's readability is checked when it is read.

    Args:
        place: where.
        unread: takes the folders that cannot be read; the others count all the same.

    Raises:
        OSError: it cannot even be seen what is there.
    """
    if not place.is_dir():
        return [place] if place.is_file() else []
    files, entered = [], set()

    def skip(error: OSError) -> None:
        folder = Path(error.filename)
        unread.append(Unread(folder, _unreadable(folder, error)))

    for root, folders, names in os.walk(place, onerror=skip, followlinks=True):
        real = os.path.realpath(root)
        # A link may lead back to where it lies.
        folders[:] = [] if real in entered else sorted(name for name in folders if not name.startswith("."))
        if real not in entered:
            entered.add(real)
            files += [Path(root, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    return sorted(files)


def _unreadable(place: Path, error: OSError) -> UsageError:
    reason = error.strerror or first_line(error)
    return UsageError(
        f"{place} cannot be read: {reason}", remedy="let this user read it, or name the places that are meant"
    )


def _nothing_at(place: Path) -> UsageError:
    if place.is_dir():
        return UsageError(
            f"{place} holds no spec", remedy=f"put one there ({' or '.join(SUFFIXES)}), or name another folder"
        )
    return UsageError(
        f"there is no spec and no folder {place}", remedy="name a .yaml file, or a folder that holds some"
    )


def _without_defaults(schema: dict[str, Any]) -> None:
    """Remove defaults from a form's schema, as prefilled values would override every spec."""
    for field in schema["properties"].values():
        field.pop("default", None)


class SpecOverrides(ModelSpec):
    """Spec overrides of a fleet; only given values apply, and all are optional.

    `target`: a list of them makes a model for each, in a repository of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_without_defaults)

    source: str = Field(default="", description=str(ModelSpec.model_fields["source"].description))
    target: str | tuple[str, ...] = Field(  # type: ignore[assignment]
        default="", description="Serving runtimes that releases are made for."
    )

    @property
    def values(self) -> dict[str, Any]:
        """The given values, in the form of `loader.read_specs`."""
        return self.model_dump(mode="json", exclude_unset=True)


AS_SPECIFIED = SpecOverrides()
"""Nothing wins."""
