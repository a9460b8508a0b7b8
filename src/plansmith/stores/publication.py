"""A release on its way into a store: contents first, then their list, then a number, then the aliases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plansmith.destinations import CURRENT
from plansmith.digest import Digester, digest_of_files
from plansmith.errors import RepositoryError
from plansmith.manifest import Manifest
from plansmith.stores.documents import change, content_of, new_token, utc_now
from plansmith.stores.founding import make_store
from plansmith.stores.layout import MARKER_KEY, object_key, release_key
from plansmith.stores.objects import Moved, untold
from plansmith.stores.records import Catalogue, Marker, StoredRelease, StoredVersion
from plansmith.stores.store import Store
from plansmith.types import FileEntry, Record


class Publication(Record):
    """What came of a publication: bytes that were sent, and of all that belong to the release.

    `unchanged`: the store had the release already.
    """

    place: str
    model: str
    version: int
    digest: str
    aliases: tuple[str, ...]
    sent_bytes: int
    total_bytes: int
    unchanged: bool


def publish_release(
    store: Store,
    folder: Path,
    manifest: Manifest,
    digester: Digester,
    *,
    aliases: Sequence[str] = (CURRENT,),
    moved: Moved = untold,
) -> Publication:
    """Bring a release of a repository into a store, under its number there where that is free and the highest.

    Args:
        store: where it goes.
        folder: the release.
        manifest: its manifest.
        digester: hashes its files.
        aliases: stand for it then.
        moved: told of bytes on their way.

    Raises:
        RepositoryError: the store is another target's, or holds what is not plansmith's.
    """
    require_store(store, manifest.target)
    files = digester.entries(folder)
    sent = _send(store, folder, files, moved)
    digest = _list(store, manifest, files)
    version, unchanged = _number(store, manifest, digest)
    for alias in aliases:
        store.promote(manifest.name, version.version, alias)
    return Publication(
        place=store.place,
        model=manifest.name,
        version=version.version,
        digest=digest,
        aliases=tuple(aliases),
        sent_bytes=sent,
        total_bytes=sum(file.bytes for file in files),
        unchanged=unchanged,
    )


def require_store(store: Store, target: str = "") -> Marker:
    """The marker of a store for a target; made where there is nothing yet.

    Args:
        store: where.
        target: that of the releases; empty for what releases of any target have in common. A store that was made so
            takes the target of its first release.

    Raises:
        RepositoryError: the store is another target's, or holds what is not plansmith's.
    """
    marker = store.marker() or make_store(store, target)
    if target and not marker.target:
        marker = _with_target(store, marker, target)
    if target not in {"", marker.target}:
        raise RepositoryError(
            f"{store.place} belongs to target {marker.target}, not {target}",
            remedy=f"publish releases for {target} to a folder or prefix of their own",
        )
    return marker


def _with_target(store: Store, marker: Marker, target: str) -> Marker:
    """Give a store that has no target yet this one, unless another process gives it one first."""

    def changed(old: Marker | None) -> Marker:
        now = old or marker
        return now if now.target else now.model_copy(update={"target": target, "token": new_token()})

    return change(store.objects, MARKER_KEY, Marker, changed)


def _send(store: Store, folder: Path, files: Sequence[FileEntry], moved: Moved) -> int:
    """Send the contents that are not there yet; how many bytes those are."""
    sent = 0
    for sha256, file in {file.sha256: file for file in files}.items():
        held = store.objects.find(object_key(sha256))
        if held is None or held.bytes != file.bytes:
            store.objects.send(folder / file.path, object_key(sha256), sha256, moved)
            sent += file.bytes
    return sent


def _list(store: Store, manifest: Manifest, files: Sequence[FileEntry]) -> str:
    release = StoredRelease(
        model=manifest.name,
        digest=digest_of_files(list(files)),
        model_version=manifest.version,
        created=manifest.created,
        plansmith=manifest.plansmith,
        files=tuple(files),
    )
    store.objects.put(release_key(release.model, release.digest), content_of(release))
    return release.digest


def _number(store: Store, manifest: Manifest, digest: str) -> tuple[StoredVersion, bool]:
    """The version that has this digest, and whether there was one; a new number where there is none."""
    had = False

    def changed(old: Catalogue) -> Catalogue:
        nonlocal had
        had = any(version.digest == digest for version in old.standing())
        if had:
            return old
        highest = old.versions[-1].version if old.versions else 0
        number = max(manifest.version, highest + 1)
        version = StoredVersion(version=number, digest=digest, published=utc_now())
        return old.model_copy(update={"versions": (*old.versions, version)})

    catalogue = store.change(manifest.name, changed)
    return next(version for version in catalogue.standing() if version.digest == digest), had
