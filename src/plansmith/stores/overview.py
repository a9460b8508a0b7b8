"""What a store is and holds, in a few figures."""

from __future__ import annotations

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.stores.backend.object_store import Abilities
from plansmith.stores.reader import in_parallel
from plansmith.stores.store import Store


class Kind(Record):
    """How many objects there are of a kind, and their bytes."""

    objects: int
    bytes: int


class Overview(Record):
    """A store; `versions`: those that stand; `held`: its objects by the first part of their keys."""

    place: str
    target: str
    created: str
    abilities: Abilities
    models: int
    versions: int
    held: dict[str, Kind]


def look_over(store: Store) -> Overview:
    """Count everything below the store's root.

    Raises:
        RepositoryError: there is no store, or a document of it is damaged.
    """
    marker = store.marker()
    if marker is None:
        raise RepositoryError(f"{store.place} is no store", remedy="publish a model there first")
    held: dict[str, Kind] = {}
    for one in store.objects.below(""):
        kind, slash, _ = one.key.partition("/")
        if slash:
            before = held.get(kind, Kind(objects=0, bytes=0))
            held[kind] = Kind(objects=before.objects + 1, bytes=before.bytes + one.bytes)
    catalogues = in_parallel(store.catalogue, store.models())
    return Overview(
        place=store.place,
        target=marker.target,
        created=marker.created,
        abilities=marker.abilities,
        models=len(catalogues),
        versions=sum(len(catalogue.standing()) for catalogue in catalogues),
        held=held,
    )
