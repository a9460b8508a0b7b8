"""A version on its way from a store to this machine: what is here already is linked, the rest fetched and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

from plansmith.records.model import FileEntry, Record
from plansmith.records.release import Manifest
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.layout import object_key
from plansmith.stores.records import Catalogue, StoredRelease, StoredVersion
from plansmith.stores.store import Store
from plansmith.stores.sync.mirror import Mirror
from plansmith.system.files import storage_errors
from plansmith.triton.repository.release import policy_of

_AT_ONCE = 4


class Pulled(Record):
    """What came of a pull: bytes that were fetched, and of all that belong to the version.

    `release`: its folder; `shown`: the versions that Triton sees, of which `version` is the last; `unchanged`: it was
    here already, whole.
    """

    place: str
    model: str
    version: int
    digest: str
    repository: str
    release: str
    shown: tuple[int, ...]
    fetched_bytes: int
    total_bytes: int
    unchanged: bool


class _Ended(Exception):
    """Nobody wants any more what is being fetched."""


def pull(
    store: Store,
    mirror: Mirror,
    catalogue: Catalogue,
    version: StoredVersion,
    *,
    line: Sequence[int] = (),
    spared: Iterable[int] = (),
    moved: Moved = untold,
) -> Pulled:
    """Bring a version here and show it to Triton, with the earlier ones that its policy has Triton serve beside it.

    Args:
        store: has it.
        mirror: takes it, and is held for this store.
        catalogue: the model's.
        version: one of its versions.
        line: the versions that an alias stood for; those of them that Triton is to serve come along.
        spared: releases that stay here, though they are not shown.
        moved: told of bytes on their way.

    Raises:
        RepositoryError: the store lost a file of it, the disk is full, or somebody else's model has its name.
        EnvironmentFault: the store cannot be reached.
    """
    model, number, repository = catalogue.model, version.version, mirror.repository
    release = store.release(model, version)
    repository.showing(model).require_ours()
    with storage_errors(repository.root), repository.exclusive(model):
        manifest, fetched = _bring(store, mirror, version, release, moved)
        beside = _beside(catalogue, number, line, manifest or repository.manifest(model, number))
        for other in beside:
            if not mirror.has(model, other):
                fetched += _bring(store, mirror, other, store.release(model, other), moved)[1]
        mirror.show(model, number, [other.version for other in beside])
        mirror.collect(model, spared=spared)
    return Pulled(
        place=store.place,
        model=model,
        version=number,
        digest=version.digest,
        repository=str(repository.root),
        release=str(repository.release(model, number)),
        shown=tuple(repository.views(model).shown()),
        fetched_bytes=fetched,
        total_bytes=sum(file.bytes for file in release.files),
        unchanged=manifest is None,
    )


def _bring(
    store: Store, mirror: Mirror, version: StoredVersion, release: StoredRelease, moved: Moved
) -> tuple[Manifest | None, int]:
    """Make a release here; its manifest, None where it was here already, and the bytes that were fetched for it."""
    if mirror.has(release.model, version):
        return None, 0
    here = mirror.local(release.model, release)
    missing = {file.sha256: file for file in release.files if file.sha256 not in here}
    fetched = _fetch(store, mirror, release.model, missing, moved)
    manifest = mirror.add(version, release, here | fetched)
    return manifest, sum(file.bytes for file in missing.values())


def _fetch(store: Store, mirror: Mirror, model: str, files: Mapping[str, FileEntry], moved: Moved) -> dict[str, Path]:
    """Fetch contents, some at once, by SHA-256; what is complete stays when one fails or the person ends it."""
    ended = Event()

    def told(count: int) -> None:
        if ended.is_set():
            raise _Ended
        moved(count)

    def one(sha256: str) -> Path:
        return mirror.take_in(model, sha256, lambda path: store.objects.fetch(object_key(sha256), path, sha256, told))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        works = {threads.submit(one, sha256): sha256 for sha256 in files}
        try:
            return {works[work]: work.result() for work in as_completed(works)}
        except BaseException:
            ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _beside(catalogue: Catalogue, number: int, line: Sequence[int], manifest: Manifest) -> list[StoredVersion]:
    """The earlier versions that Triton is to serve beside one, by its policy, of those that an alias stood for."""
    standing = {version.version: version for version in catalogue.standing() if version.version <= number}
    served = policy_of(manifest).served(sorted({number, *line} & standing.keys()))
    return [standing[other] for other in sorted(served - {number})]
