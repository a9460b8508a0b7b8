"""A store by its place."""

from __future__ import annotations

from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.stores.backend.folder import FolderObjects
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.backend.s3 import S3Objects
from plansmith.stores.store import Store


def open_objects(place: Location, relative_to: Path) -> Objects:
    """What a folder or prefix is made of; nothing is asked yet.

    Args:
        place: where.
        relative_to: the folder that relative paths start from.
    """
    return S3Objects(place, relative_to) if place.is_s3 else FolderObjects(relative_to / place.to)


def open_store(place: Location, relative_to: Path) -> Store:
    """The store at a place; it need not be there yet. Arguments as for `open_objects`."""
    return Store(open_objects(place, relative_to))


def open_existing(place: Location, relative_to: Path) -> Store:
    """The store at a place. Arguments as for `open_objects`.

    Raises:
        RepositoryError: there is none.
        EnvironmentFault: it cannot be asked.
    """
    store = open_store(place, relative_to)
    if store.marker() is None:
        raise RepositoryError(
            f"{store.place} is no store", remedy=f"publish a model there first: plansmith publish MODEL {place.typed}"
        )
    return store
