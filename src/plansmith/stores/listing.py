"""The versions of a model in a store, with what a person wants to know of each."""

from __future__ import annotations

from typing import Any

from plansmith.errors import RepositoryError
from plansmith.records.model import Record
from plansmith.stores.reader import Seen, in_parallel, live_reports, read_stored_manifest
from plansmith.stores.records import Catalogue, StoredVersion
from plansmith.stores.store import Store

QUIET_SECONDS = 15 * 60
"""A loader that has not reported for so long may be gone; it reports every few minutes."""


class LiveAt(Record):
    """A loader that said that a version answers; `seconds_ago`: when, by the store's clock."""

    loader: str
    alias: str
    seconds_ago: float

    @property
    def is_quiet(self) -> bool:
        """Whether it has not been heard of for longer than it should."""
        return self.seconds_ago > QUIET_SECONDS


class ListedVersion(Record):
    """One version.

    `aliases`: those that stand for it, and `shares` of them that have one, from 0 to 1; `pinned`: the reason;
    `pruned`: when its files were given up. What the manifest tells is None where none can be read, and `problem` says
    why.
    """

    version: int
    digest: str
    published: str
    aliases: tuple[str, ...]
    shares: dict[str, float]
    pinned: str | None
    pruned: str | None
    live: tuple[LiveAt, ...]
    verdict: str | None = None
    precision: str | None = None
    engine: str | None = None
    bytes: int | None = None
    problem: str | None = None


def list_versions(store: Store, model: str) -> list[ListedVersion]:
    """All versions of a model, ascending, the pruned ones too.

    Raises:
        RepositoryError: there is no such model.
    """
    catalogue = store.catalogue(model)
    seen = live_reports(store, model)

    def listed(version: StoredVersion) -> ListedVersion:
        return _from_catalogue(catalogue, version, seen).model_copy(update=_from_manifest(store, model, version))

    return in_parallel(listed, catalogue.versions)


def _from_catalogue(catalogue: Catalogue, version: StoredVersion, seen: list[Seen]) -> ListedVersion:
    pointers = {name: one for name, one in catalogue.aliases.items() if one.version == version.version}
    return ListedVersion(
        version=version.version,
        digest=version.digest,
        published=version.published,
        aliases=tuple(pointers),
        shares={name: one.share for name, one in pointers.items() if one.share is not None},
        pinned=next((pin.reason for pin in catalogue.pins if pin.version == version.version), None),
        pruned=version.pruned,
        live=tuple(
            LiveAt(loader=one.report.loader, alias=one.report.alias, seconds_ago=one.seconds_ago)
            for one in seen
            if version.version in one.report.serves
        ),
    )


def _from_manifest(store: Store, model: str, version: StoredVersion) -> dict[str, Any]:
    if version.pruned is not None:
        return {}
    try:
        manifest = read_stored_manifest(store.objects, store.release(model, version))
    except RepositoryError as error:
        return {"problem": error.message}
    return {
        "verdict": manifest.validation.verdict,
        "precision": str(manifest.engine.precision),
        "engine": str(manifest.engine.kind),
        "bytes": sum(file.bytes for file in manifest.files),
    }
