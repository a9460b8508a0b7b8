"""What a store tells of its releases without their models being fetched: small files, manifests, who serves what."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from plansmith.errors import RepositoryError, first_line
from plansmith.records.release import MANIFEST_FILE, Manifest
from plansmith.stores.backend.documents import read_document
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import LIVE, object_key
from plansmith.stores.records import LiveReport, StoredRelease
from plansmith.stores.store import Store

A = TypeVar("A")
B = TypeVar("B")

_READERS = 8


@dataclass(frozen=True)
class Seen:
    """What a loader reported, and how many seconds ago by the store's clock."""

    report: LiveReport
    seconds_ago: float


def in_parallel(function: Callable[[A], B], given: Iterable[A]) -> list[B]:
    """What a function that waits for a store makes of each, in their order; the first error ends it."""
    with ThreadPoolExecutor(_READERS) as pool:
        futures = [pool.submit(function, one) for one in given]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read_file(objects: Objects, release: StoredRelease, path: str) -> bytes:
    """A small file of a release.

    Raises:
        RepositoryError: the release has no such file, or it is lost or damaged.
    """
    file = next((file for file in release.files if file.path == path), None)
    if file is None:
        raise RepositoryError(
            f"a release of {release.model} in {objects.place} has no {path}", remedy="publish it again"
        )
    found = objects.read(object_key(file.sha256))
    if found is None or hashlib.sha256(found.content).hexdigest() != file.sha256:
        raise RepositoryError(
            f"{path} of {release.model} in {objects.place} is {'missing' if found is None else 'damaged'}",
            remedy=f"see what else is: plansmith verify --store {objects.typed}",
        )
    return found.content


def read_stored_manifest(objects: Objects, release: StoredRelease) -> Manifest:
    """The manifest of a release, with the number that it had where it was made.

    Raises:
        RepositoryError: it is lost, damaged or of a later plansmith.
    """
    try:
        return Manifest.model_validate_json(read_file(objects, release, MANIFEST_FILE))
    except ValueError as error:
        raise RepositoryError(
            f"{MANIFEST_FILE} of {release.model} in {objects.place} cannot be read: {first_line(error)}",
            remedy="publish the release again, with this version of plansmith",
        ) from error


def live_reports(store: Store, model: str) -> list[Seen]:
    """What the loaders of a model reported last, by their names."""
    there = list(store.objects.below(f"{LIVE}{model}/"))
    now = store.objects.now() if there else 0.0  # asked only where it matters: it may take a write
    found = []
    for held in there:
        report = read_document(store.objects, held.key, LiveReport)
        if report is not None:
            found.append(Seen(report, max(0.0, now - held.changed)))
    return found
