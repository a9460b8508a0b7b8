"""Store reader: small files, manifests and aliases of releases, without fetching their models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from plansmith.errors import RepositoryError, first_line
from plansmith.records.model import SCHEMA_VERSION, Record
from plansmith.records.release import MANIFEST_FILE, SIGNATURE_FILE, Fingerprint, Manifest
from plansmith.signing.policy import SignaturePolicy
from plansmith.signing.verification import claimed_signer
from plansmith.stores.backend.documents import content_of, read_document
from plansmith.stores.backend.object_store import Abilities, Objects
from plansmith.stores.layout import LIVE, fingerprint_key, object_key
from plansmith.stores.records import Catalogue, LiveReport, StoredRelease, StoredVersion
from plansmith.stores.store import Store

A = TypeVar("A")
B = TypeVar("B")

_READERS = 8

QUIET_SECONDS = 15 * 60
"""A loader that has not reported for so long may be gone; it reports every few minutes."""


@dataclass(frozen=True)
class AgedReport:
    """A loader's report, and its age in seconds by the store's clock."""

    report: LiveReport
    seconds_ago: float


def in_parallel(function: Callable[[A], B], arguments: Iterable[A]) -> list[B]:
    """Map an I/O-bound function over arguments in threads; results in order, the first error ends it."""
    with ThreadPoolExecutor(_READERS) as pool:
        futures = [pool.submit(function, argument) for argument in arguments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read_file(objects: Objects, release: StoredRelease, path: str) -> bytes:
    """Read a small file of a release.

    Raises:
        RepositoryError: the release has no such file, or it is lost or damaged.
    """
    file = next((file for file in release.files if file.path == path), None)
    if file is None:
        raise RepositoryError(
            f"a release of {release.model} in {objects.place} has no {path}", remedy="publish it again"
        )
    document = objects.read(object_key(file.sha256))
    if document is None or hashlib.sha256(document.content).hexdigest() != file.sha256:
        raise RepositoryError(
            f"{path} of {release.model} in {objects.place} is {'missing' if document is None else 'damaged'}",
            remedy=f"see what else is: plansmith verify --store {objects.typed}",
        )
    return document.content


def read_stored_manifest(objects: Objects, release: StoredRelease) -> Manifest:
    """Read the manifest of a release, with its version number in the original repository.

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


def read_signature(objects: Objects, release: StoredRelease) -> bytes | None:
    """Return the signature of a release; None if it is not signed.

    Raises:
        RepositoryError: it is lost or damaged.
    """
    is_signed = any(file.path == SIGNATURE_FILE for file in release.files)
    return read_file(objects, release, SIGNATURE_FILE) if is_signed else None


def live_reports(store: Store, model: str) -> list[AgedReport]:
    """Return the latest reports of a model's loaders, by name."""
    items = list(store.objects.below(f"{LIVE}{model}/"))
    now = store.objects.now() if items else 0.0  # asked only where it matters: it may take a write
    reports = []
    for item in items:
        report = read_document(store.objects, item.key, LiveReport)
        if report is not None:
            reports.append(AgedReport(report, max(0.0, now - item.changed)))
    return reports


class LiveAt(Record):
    """A loader that reported a version as serving; `seconds_ago`: when, by the store's clock."""

    loader: str
    alias: str
    seconds_ago: float

    @property
    def is_quiet(self) -> bool:
        """Whether its last report is older than it should be."""
        return self.seconds_ago > QUIET_SECONDS


class ListedVersion(Record):
    """One version in a listing.

    `aliases`: those that stand for it, and `shares` of them that have one, from 0 to 1; `pinned`: the reason;
    `pruned`: when its files were given up; `signer`: who signed it according to its signature, which is not checked;
    empty if it is not signed. What the manifest tells is None where none can be read, and `problem` says
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
    signer: str = ""
    problem: str | None = None


def list_versions(store: Store, model: str) -> list[ListedVersion]:
    """Return all versions of a model, ascending, including pruned ones.

    Raises:
        RepositoryError: there is no such model.
    """
    catalogue = store.catalogue(model)
    reports = live_reports(store, model)

    def listed(version: StoredVersion) -> ListedVersion:
        return _from_catalogue(catalogue, version, reports).model_copy(update=_from_manifest(store, model, version))

    return in_parallel(listed, catalogue.versions)


def _from_catalogue(catalogue: Catalogue, version: StoredVersion, reports: list[AgedReport]) -> ListedVersion:
    pointers = {name: entry for name, entry in catalogue.aliases.items() if entry.version == version.version}
    return ListedVersion(
        version=version.version,
        digest=version.digest,
        published=version.published,
        aliases=tuple(pointers),
        shares={name: entry.share for name, entry in pointers.items() if entry.share is not None},
        pinned=next((pin.reason for pin in catalogue.pins if pin.version == version.version), None),
        pruned=version.pruned,
        live=tuple(
            LiveAt(loader=entry.report.loader, alias=entry.report.alias, seconds_ago=entry.seconds_ago)
            for entry in reports
            if version.version in entry.report.serves
        ),
    )


def _from_manifest(store: Store, model: str, version: StoredVersion) -> dict[str, Any]:
    if version.pruned is not None:
        return {}
    try:
        release = store.release(model, version)
        manifest, signature = read_stored_manifest(store.objects, release), read_signature(store.objects, release)
    except RepositoryError as error:
        return {"problem": error.message}
    return {
        "verdict": manifest.validation.verdict,
        "precision": str(manifest.engine.precision),
        "engine": str(manifest.engine.kind),
        "bytes": sum(file.bytes for file in release.files),
        "signer": claimed_signer(signature),
    }


class Kind(Record):
    """Number and total bytes of one kind of objects."""

    objects: int
    bytes: int


class Overview(Record):
    """Overview of a store.

    `signatures`: who must have signed its releases; None if nobody; `versions`: those not pruned; `held`: its objects
    by the first part of their keys.
    """

    place: str
    target: str
    created: str
    abilities: Abilities
    signatures: SignaturePolicy | None
    models: int
    versions: int
    held: dict[str, Kind]


def look_over(store: Store) -> Overview:
    """Count all objects below the store's root.

    Raises:
        RepositoryError: there is no store, or a document of it is damaged.
    """
    marker = store.marker()
    if marker is None:
        raise RepositoryError(f"{store.place} is no store", remedy="publish a model there first")
    kinds: dict[str, Kind] = {}
    for item in store.objects.below(""):
        kind, slash, _ = item.key.partition("/")
        if slash:
            before = kinds.get(kind, Kind(objects=0, bytes=0))
            kinds[kind] = Kind(objects=before.objects + 1, bytes=before.bytes + item.bytes)
    catalogues = in_parallel(store.catalogue, store.models())
    return Overview(
        place=store.place,
        target=marker.target,
        created=marker.created,
        abilities=marker.abilities,
        signatures=marker.signatures,
        models=len(catalogues),
        versions=sum(len(catalogue.standing()) for catalogue in catalogues),
        held=kinds,
    )


class StoredFingerprint(Record):
    """Stored fingerprint of a model; `digest`: its release's in this store."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    basis: Fingerprint


def write_fingerprint(store: Store, model: str, digest: str, basis: Fingerprint) -> None:
    """Save the fingerprint of a release, replacing the previous one.

    Args:
        store: has the release.
        model: its name.
        digest: of the release there.
        basis: what it was made from.
    """
    store.objects.put(fingerprint_key(model), content_of(StoredFingerprint(digest=digest, basis=basis)))


def read_fingerprint(store: Store, model: str) -> Fingerprint | None:
    """Return the last saved fingerprint; None if there is none or its release was pruned.

    Raises:
        RepositoryError: a document is damaged, or of another version of plansmith.
        EnvironmentFault: the store cannot be asked.
    """
    noted = read_document(store.objects, fingerprint_key(model), StoredFingerprint)
    if noted is None or noted.schema_version != SCHEMA_VERSION:
        return None
    catalogue = store.find_catalogue(model)
    versions = catalogue.standing() if catalogue is not None else []
    standing = {digest for version in versions for digest in version.digests}
    return noted.basis if noted.digest in standing else None
