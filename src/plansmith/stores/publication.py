"""Publication into a store: contents first, then their list, then one write that assigns number and aliases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import RepositoryError
from plansmith.formatting import format_bytes
from plansmith.records.destination import CURRENT, Destination, Publication
from plansmith.records.model import FileEntry
from plansmith.records.release import SIGNATURE_FILE, Fingerprint, Manifest
from plansmith.signing.verification import check_signature, require_signature
from plansmith.stores.backend.documents import content_of, outwait_pruner, utc_now
from plansmith.stores.backend.turns import clock
from plansmith.stores.initialize import require_ours, require_store
from plansmith.stores.layout import GRACE_SECONDS, release_key
from plansmith.stores.reader import read_stored_manifest, write_fingerprint
from plansmith.stores.records import Catalogue, StoredRelease, StoredVersion, promoted
from plansmith.stores.repository_view import keep_view, refresh_view
from plansmith.stores.store import Store, open_store
from plansmith.stores.transfer import NOBODY, TransferProgress, files_of, missing_contents, send_contents
from plansmith.system.digest import Digester, digest_of_files
from plansmith.triton.repository.ensembles import repositories_in, repository_around
from plansmith.triton.repository.release import require_same_interface, stands_for
from plansmith.triton.repository.signature import read_signature

if TYPE_CHECKING:
    from plansmith.triton.repository.repository import ModelRepository

_ATTEMPTS = 5

_SECONDS_BETWEEN_WORDS = 0.1


@dataclass(frozen=True)
class Terms:
    """Publication options of a release.

    Args:
        aliases: stand for it then.
        move_anyway: they do so too where the store had the release already, and they stand for another version. Without
            it nothing that somebody promoted or rolled back in the meantime is undone by a release that says nothing
            new.
        allow_interface_change: take an alias from a version with other inputs or outputs.
        force: make a version of it, though there is one that has the same files.
        resend: send what is there, too, as it may be damaged.
    """

    aliases: tuple[str, ...] = (CURRENT,)
    move_anyway: bool = False
    allow_interface_change: bool = False
    force: bool = False
    resend: bool = False


def publish_release(
    store: Store,
    folder: Path,
    manifest: Manifest,
    digester: Digester,
    *,
    terms: Terms = Terms(),
    observer: TransferProgress = NOBODY,
) -> Publication:
    """Publish a release of a repository to a store, under its own number if that is free there and the highest.

    Whatever ends it early, nothing is visible in the store before all of it is; the same call sends the rest.

    Args:
        store: where it goes.
        folder: the release.
        manifest: its manifest.
        digester: hashes the files that the manifest does not list.
        terms: how it is published.
        observer: told how the contents are sent.

    Raises:
        RepositoryError: the store is another target's, or holds what is not plansmith's; an alias stands for a version
            with other inputs or outputs; a file of the release is damaged.
        SignatureError: the store's policy does not accept the release.
    """
    require_store(store, manifest.target)
    for _ in range(_ATTEMPTS):
        entry = _entry(store, folder, manifest, digester, terms)
        with suppress(_Stale):
            return _published(store, folder, entry, observer)
    raise RepositoryError(
        f"what {store.place} had of {manifest.name} was pruned each time that it was to be published again",
        remedy="see who prunes it, and run the same command again",
        transient=True,
    )


def plan_release(
    store: Store, folder: Path, manifest: Manifest, digester: Digester, terms: Terms = Terms()
) -> Publication:
    """Dry run of `publish_release`; nothing is written. Same arguments and errors."""
    require_ours(store, manifest.target)
    entry = _entry(store, folder, manifest, digester, terms)
    files = entry.files if terms.resend else missing_contents(store.objects, entry.files) if entry.is_new else []
    sizes = {file.sha256: file.bytes for file in files}
    return entry.outcome(store, entry.before, entry.entered(entry.before), sum(sizes.values()))


class _Stale(Exception):
    """Raised if what a release relies on may have been pruned since it was checked."""


def _published(store: Store, folder: Path, entry: _Entry, observer: TransferProgress) -> Publication:
    """Publish a release that was checked.

    Raises:
        _Stale: it is to be looked at again; whoever does so finds all that was sent.
    """
    sent, begun = 0, clock()
    if entry.is_new or entry.terms.resend:
        sent = send_contents(store.objects, folder, entry.files, observer, again=entry.terms.resend)
        if store.objects.find(release_key(entry.manifest.name, entry.digest)) is not None:
            outwait_pruner(store.objects)  # it may be about to remove the list of an equal release that was pruned
        entry.list_files(store)
    before = entry.before

    def changed(old: Catalogue) -> Catalogue:
        nonlocal before
        if entry.is_new and clock() - begun > GRACE_SECONDS / 4:
            raise _Stale  # a pruner takes what was sent so long ago for left over
        if not entry.is_new and _of_digest(old, entry.digest) is None:
            raise _Stale
        if _pointed(old, entry.terms.aliases) != _pointed(before, entry.terms.aliases):
            entry.require_same_interface(store, old)
        before = old
        return entry.entered(old)

    after = store.change(entry.manifest.name, changed)
    return entry.outcome(store, before, after, sent)


@dataclass(frozen=True)
class _Entry:
    """Store entry: a release to be published to a store.

    Args:
        manifest: its manifest.
        files: all of its files.
        digest: what the store has it under, or will have it.
        is_new: whether the store does not have it.
        terms: how it is published.
        before: the catalogue as it was when it was looked at.
        resigned: the digest of the version that differs from it in its signature alone, and becomes it; empty if there
            is none.
    """

    manifest: Manifest
    files: tuple[FileEntry, ...]
    digest: str
    is_new: bool
    terms: Terms
    before: Catalogue
    resigned: str = ""

    def version_in(self, catalogue: Catalogue) -> StoredVersion | None:
        """Return the version that is the release, or becomes it by another signature."""
        return _of_digest(catalogue, self.digest) or _of_digest(catalogue, self.resigned)

    def list_files(self, store: Store) -> None:
        """Write the list of files, which is the same for every publisher with the same files."""
        release = StoredRelease(
            model=self.manifest.name,
            digest=self.digest,
            model_version=self.manifest.version,
            created=self.manifest.created,
            plansmith=self.manifest.plansmith,
            files=self.files,
        )
        store.objects.put(release_key(release.model, release.digest), content_of(release))

    def require_same_interface(self, store: Store, old: Catalogue) -> None:
        """Check that aliases to be moved to the release currently point to releases with its interface.

        Raises:
            RepositoryError: one does not.
        """
        stay = self.version_in(old) is not None and not self.terms.move_anyway
        if self.terms.allow_interface_change or stay:
            return
        for version in _pointed(old, self.terms.aliases):
            theirs = _manifest(store, self.manifest.name, version)
            if theirs is not None:
                require_same_interface(theirs, self.manifest)

    def entered(self, old: Catalogue) -> Catalogue:
        """Return a catalogue with the release under a version number, and its aliases."""
        version, was_there = self.version_in(old), True
        if version is not None and version.digest != self.digest:
            signed = version.model_copy(update={"digest": self.digest, "before_signing": version.digests})
            versions = tuple(signed if entry == version else entry for entry in old.versions)
            old, version = old.model_copy(update={"versions": versions}), signed
        if version is None:
            was_there = False
            highest = old.versions[-1].version if old.versions else 0
            number = max(self.manifest.version, highest + 1)
            version = StoredVersion(version=number, digest=self.digest, published=utc_now())
            old = old.model_copy(update={"versions": (*old.versions, version)})
        for alias in self.terms.aliases:
            pointer = old.aliases.get(alias)
            if pointer is None or self.terms.move_anyway or not was_there:
                old = promoted(old, version.version, alias, pointer.share if pointer is not None else None)
        return old

    def outcome(self, store: Store, before: Catalogue, after: Catalogue, sent: int) -> Publication:
        """Return the outcome to report."""
        version = _of_digest(after, self.digest)
        assert version is not None
        stand = {alias: after.aliases[alias].version for alias in self.terms.aliases}
        return Publication(
            place=store.place,
            model=self.manifest.name,
            version=version.version,
            digest=self.digest,
            aliases=tuple(alias for alias, number in stand.items() if number == version.version),
            elsewhere={alias: number for alias, number in stand.items() if number != version.version},
            sent_bytes=sent,
            total_bytes=sum(file.bytes for file in self.files),
            unchanged=_of_digest(before, self.digest) is not None,
            caution=store.objects.abilities.shortcoming,
        )


def _entry(store: Store, folder: Path, manifest: Manifest, digester: Digester, terms: Terms) -> _Entry:
    """Compare a release with a store's contents, as an entry.

    Raises:
        RepositoryError: an alias would be taken from a version with another interface.
    """
    files = files_of(folder, manifest, digester)
    own = digest_of_files(files)
    catalogue = store.find_catalogue(manifest.name) or Catalogue(model=manifest.name, token="")
    resigned = _signed_otherwise(store, catalogue, files) if _of_digest(catalogue, own) is None else ""
    is_signed = any(file.path == SIGNATURE_FILE for file in files)
    same = _same(store, catalogue, manifest, own, terms, is_signed=is_signed) if not resigned else None
    entry = _Entry(manifest, files, same or own, same is None, terms, catalogue, resigned)
    entry.require_same_interface(store, catalogue)
    if entry.is_new and store.signatures is not None:
        status = check_signature(read_signature(folder), {file.path: file.sha256 for file in files}, store.signatures)
        require_signature(status, manifest.name, manifest.version)
    return entry


def _signed_otherwise(store: Store, catalogue: Catalogue, files: Sequence[FileEntry]) -> str:
    """Return the digest of the version that differs from a signed release in its signature alone; empty if none does.

    So a release gets its signature, or another one, and keeps its number. One that is not signed never takes the
    signature of a version away.
    """
    unsigned = _unsigned(files)
    if len(unsigned) == len(files):
        return ""
    for version in reversed(catalogue.standing()):
        with suppress(RepositoryError):
            if _unsigned(store.release(catalogue.model, version).files) == unsigned:
                return version.digest
    return ""


def _unsigned(files: Sequence[FileEntry]) -> dict[str, str]:
    return {file.path: file.sha256 for file in files if file.path != SIGNATURE_FILE}


def _same(
    store: Store, catalogue: Catalogue, manifest: Manifest, own: str, terms: Terms, *, is_signed: bool
) -> str | None:
    """Return the digest of an intact stored release equivalent to this one; None if there is none.

    One that is not signed does not stand for a signed one.
    """
    looked_at = [version for version in catalogue.standing() if version.digest == own]
    if not terms.force and not terms.resend:
        looked_at += [*_pointed(catalogue, terms.aliases), *catalogue.standing()[-1:]]
    for version in looked_at:
        theirs = manifest if version.digest == own else _manifest(store, manifest.name, version, is_signed=is_signed)
        if theirs is not None and stands_for(theirs, manifest) and _is_whole(store, manifest.name, version):
            return version.digest
    return None


def _pointed(catalogue: Catalogue, aliases: Sequence[str]) -> list[StoredVersion]:
    """Return the versions that aliases point to and whose files are kept."""
    numbers = {catalogue.aliases[alias].version for alias in aliases if alias in catalogue.aliases}
    return [version for version in catalogue.standing() if version.version in numbers]


def _manifest(store: Store, model: str, version: StoredVersion, *, is_signed: bool = False) -> Manifest | None:
    """Return the manifest of a version; None if it is lost or damaged, which a publication repairs.

    Args:
        store: where it is.
        model: its name.
        version: its number and digest.
        is_signed: None of one that is not signed, too.
    """
    try:
        release = store.release(model, version)
        if is_signed and len(_unsigned(release.files)) == len(release.files):
            return None
        return read_stored_manifest(store.objects, release)
    except RepositoryError:
        return None


def _is_whole(store: Store, model: str, version: StoredVersion) -> bool:
    """Whether a version's file list and everything in it exist."""
    try:
        return not missing_contents(store.objects, store.release(model, version).files)
    except RepositoryError:
        return False


def _of_digest(catalogue: Catalogue, digest: str) -> StoredVersion | None:
    return next((version for version in catalogue.standing() if version.digest == digest), None)


class Tally:
    """Byte counter: adds up the bytes that threads report, and reports progress now and then.

    Args:
        label: what happens to them, such as "sending to s3://models".
        progress: told in words what is done, and which part of it, from 0 to 1, where that is known.
    """

    def __init__(self, label: str, progress: Callable[[str, float | None], None]) -> None:
        self._label = label
        self._progress = progress
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._report_time = 0.0

    def begin(self, total: int) -> None:
        """Set the total number of bytes to transfer."""
        self._total, self._done = total, 0

    def add(self, count: int) -> None:
        """Add transferred bytes; bytes that were sent again do not count twice."""
        with self._lock:
            self._done = min(self._done + count, self._total)
            now = time.monotonic()
            if now < self._report_time + _SECONDS_BETWEEN_WORDS and self._done < self._total:
                return
            self._report_time = now
            text = f"{self._label}, {format_bytes(self._done)} of {format_bytes(self._total)}"
            self._progress(text, self._done / self._total if self._total else None)


@dataclass(frozen=True)
class Outgoing:
    """A release to publish from its repository.

    Args:
        folder: the release.
        manifest: its manifest.
        digester: hashes what the manifest does not list.
    """

    folder: Path
    manifest: Manifest
    digester: Digester


def outgoing_release(repository: ModelRepository, release: str) -> Outgoing:
    """Return a release that may be published from its repository: MODEL, the leading one, or MODEL@VERSION.

    Raises:
        RepositoryError: there is none of that name, or it was withdrawn.
    """
    model, number = repository.find(release)
    reason = repository.withdrawals(model).reason(number)
    if reason is not None:
        raise RepositoryError(
            f"version {number} of {model} was withdrawn: {reason}",
            remedy=f"name another: plansmith show {model} --repository {repository.root}",
        )
    digester = Digester(repository.store / "no-memo", read_only=True)
    return Outgoing(repository.release(model, number), repository.manifest(model, number), digester)


class Delivery:
    """A publish destination, opened.

    Args:
        destination: where releases go.
        relative_to: the folder that a relative path starts from.
        apart: folders that it must neither lie in nor hold: the repository, and what compiles work in.

    Raises:
        RepositoryError: the destination overlaps one of them, or any Triton repository.
    """

    def __init__(self, destination: Destination, *, relative_to: Path, apart: Sequence[Path] = ()) -> None:
        self._destination = destination
        self._store = open_store(destination, relative_to)
        if not destination.is_s3:
            _require_apart((relative_to / destination.to).resolve(), apart)

    def require_ours(self, target: str) -> None:
        """Check that releases for a target may be published there; writes nothing. Errors as for `publish`."""
        require_ours(self._store, target)

    @property
    def place(self) -> str:
        """The location, for display."""
        return self._store.place

    def plan(self, outgoing: Outgoing, terms: Terms) -> Publication:
        """Dry run of a publication; nothing is written. Errors as for `publish`."""
        terms = self._own(terms)
        publication = plan_release(self._store, outgoing.folder, outgoing.manifest, outgoing.digester, terms)
        return publication.model_copy(update={"view": self._destination.view})

    def publish(
        self, outgoing: Outgoing, terms: Terms, progress: Callable[[str, float | None], None] = lambda *_: None
    ) -> Publication:
        """Publish a release there.

        Args:
            outgoing: the release.
            terms: how it is published; the aliases are the destination's.
            progress: told in words what is done, and which part of it, from 0 to 1, where that is known.

        Raises:
            RepositoryError: what is there refuses it.
            EnvironmentFault: it cannot be reached.
        """
        progress(f"looking at what {self.place} has", None)
        tally = Tally(f"sending to {self.place}", progress)
        publication = publish_release(
            self._store,
            outgoing.folder,
            outgoing.manifest,
            outgoing.digester,
            terms=self._own(terms),
            observer=TransferProgress(begins=tally.begin, moved=tally.add),
        )
        if self._destination.view:
            progress(f"showing it in the repository of {self.place}", None)
            keep_view(self._store, publication.model, self._destination.aliases[0])
        else:
            refresh_view(self._store, publication.model)
        return publication.model_copy(update={"view": self._destination.view})

    def note(self, model: str, digest: str, basis: Fingerprint) -> None:
        """Save a release's fingerprint there; `digest`: the release's own there. Errors as for `publish`."""
        write_fingerprint(self._store, model, digest, basis)

    def _own(self, terms: Terms) -> Terms:
        return replace(terms, aliases=self._destination.aliases)


def _require_apart(folder: Path, apart: Sequence[Path]) -> None:
    around, inside = repository_around(folder), repositories_in(folder) if folder.is_dir() else []
    for existing in (*apart, *([around] if around is not None else []), *inside):
        if folder.is_relative_to(existing.resolve()) or existing.resolve().is_relative_to(folder):
            raise RepositoryError(
                f"{folder} cannot take releases: it overlaps {existing}, where compiles put theirs",
                remedy="name a folder beside it, for releases that others read",
            )
