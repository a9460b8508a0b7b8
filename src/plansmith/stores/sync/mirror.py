"""Mirror of a store: a folder in model repository layout, written only by `pull` and `sync`.

Beside what every repository has (`triton.repository`), at R.plansmith:

pulled/<model>/<n>.json       which release of the store a release is
pulled/<model>/<n>.signed/    the files of a signed release that another number changed, as they were signed
incoming/<model>/<sha256>     contents of a release that is not complete yet, so that a killed pull goes on from there
following/<model>.json        what servers made of it (`stores.syncing`)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TypeVar

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry, Record
from plansmith.records.release import CONFIG_FILE, MANIFEST_FILE, REPORT_FILE, SIGNATURE_FILE, Manifest
from plansmith.report.render import renumber
from plansmith.signing.policy import SignaturePolicy
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.stores.layout import object_key
from plansmith.stores.records import Catalogue, StoredRelease, StoredVersion
from plansmith.stores.signatures import require_signed
from plansmith.stores.store import Store
from plansmith.system.digest import Digester
from plansmith.system.files import (
    fsync_path,
    fsync_tree,
    link_or_copy,
    locked,
    make_folder,
    move_into_place,
    staging_folder,
    storage_errors,
    sweep,
)
from plansmith.triton.repository.ensembles import require_named
from plansmith.triton.repository.release import damaged_file, misfit, policy_of, read_manifest
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.repository.signature import NUMBERED_FILES, changed_number, shown_problem, signed_originals

R = TypeVar("R", bound=Record)

_REPRODUCTION = "reproduce.sh"  # which a person runs
_AT_ONCE = 4


def read_note(path: Path, kind: type[R]) -> R | None:
    """Read a record; None if it is missing or unreadable."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_note(path: Path, record: Record, staging: Path) -> None:
    """Write a record atomically, replacing the previous one."""
    make_folder(path.parent)
    with staging_folder(staging) as staged:
        (staged / path.name).write_text(record.model_dump_json(indent=1), encoding="utf-8")
        fsync_path(staged / path.name)
        move_into_place(staged / path.name, path)


class Mirror:
    """Local mirror of a store's releases, under the store's version numbers.

    Args:
        root: the folder that Triton reads, of which everything else lies beside.
        signatures: this machine's policy: what others did not sign does not come in.
    """

    def __init__(self, root: Path, signatures: SignaturePolicy | None = None) -> None:
        self.signatures = signatures
        beside = ModelRepository(root).store
        self._digester = Digester(beside / "digests.sqlite")
        self.repository = ModelRepository(root, self._digester)

    @contextmanager
    def lock(self, store: Store, *, alone: bool) -> Iterator[None]:
        """Lock the folder for a store, exclusively or shared with other users of the lock.

        Raises:
            RepositoryError: another process wants or has it for itself; it is another store's or target's, or a
                repository that models are compiled into; the place is no store.
        """

        def waiting(process: int | None) -> None:
            owner = f" (process {process})" if process is not None else ""
            raise RepositoryError(
                f"another plansmith pull or sync uses {self.repository.root}{owner}",
                remedy="end it, or name another folder with --into; what a sync shows follows the store's aliases",
            )

        new_folders = [folder for folder in (self.repository.store, self.repository.root) if not folder.exists()]
        lock = self.repository.store / "locks" / "mirror"
        try:
            with storage_errors(self.repository.root):
                make_folder(self.repository.root)
                guard = locked(lock, waiting, shared=not alone)
            with guard:
                self._claim(store)
                yield
        except BaseException:
            if self.repository.store in new_folders:
                with suppress(RepositoryError), locked(lock, waiting):
                    self._leave(new_folders)
            raise

    def _leave(self, new_folders: Iterable[Path]) -> None:
        """Remove folders made for a store from which nothing was fetched, not even part of a file."""
        beside = self.repository.store
        if any(path.is_file() for name in ("incoming", "releases") for path in (beside / name).rglob("*")):
            return
        shutil.rmtree(beside)
        if self.repository.root in new_folders:
            with suppress(OSError):  # somebody put something there
                self.repository.root.rmdir()

    def _claim(self, store: Store) -> None:
        """Record the store, or check that it is recorded, in which case it need not be reachable."""
        recorded = self.repository.marker()
        target = recorded.target if recorded is not None else None
        if target is None:
            marker = store.marker()
            if marker is None or not marker.target:
                raise RepositoryError(
                    f"{store.place} {'is no store' if marker is None else 'holds no release yet'}",
                    remedy=f"publish a model there first: plansmith publish MODEL {store.typed}",
                )
            target = marker.target
        with storage_errors(self.repository.root):
            self.repository.claim(target, mirrors=store.place, typed=store.typed)
            sweep(self.repository.staging)

    def has(self, model: str, version: StoredVersion) -> bool:
        """Whether a version of the store is in the mirror, complete."""
        number = version.version
        release, folder = self._pulled(model, number), self.repository.release(model, number)
        if release is None or release.digest != version.digest or self.repository.readable(model, number) is None:
            return False
        if _is_renumbered(release, number):
            originals = signed_originals(self.repository, model, number)
            if not originals.is_dir() or changed_number(originals, folder, number) is not None:
                return False
        return all(self._is(folder / file.path, file) for file in release.files if file.path not in NUMBERED_FILES)

    def local(self, model: str, release: StoredRelease) -> dict[str, Path]:
        """Return local files with contents of a release, by SHA-256."""
        files_by_digest = {file.sha256: file for file in release.files}
        places = [(self._incoming(model) / sha256, file) for sha256, file in files_by_digest.items()]
        for number in reversed(self.repository.versions(model)):
            manifest = self._pulled(model, number)
            folder = self.repository.release(model, number)
            places += [(folder / file.path, file) for file in (manifest.files if manifest is not None else ())]
        paths: dict[str, Path] = {}
        for path, file in places:
            if file.sha256 in files_by_digest and file.sha256 not in paths and self._is(path, file):
                paths[file.sha256] = path
        return paths

    def take_in(self, model: str, sha256: str, fetch: Callable[[Path], None]) -> Path:
        """Download a content to a file, which is among the `local` ones until its release is complete.

        Args:
            model: whose release it belongs to.
            sha256: its digest.
            fetch: writes it, and checks what it wrote.
        """
        final = self._incoming(model) / sha256
        make_folder(final.parent)
        part = final.with_name(f"{sha256}.part")
        fetch(part)
        move_into_place(part, final)
        return final

    def add(self, version: StoredVersion, release: StoredRelease, contents: Mapping[str, Path]) -> Manifest:
        """Assemble a release from local contents, under the store's number; it appears atomically.

        Args:
            version: its number and digest.
            release: its files.
            contents: a file for each of its SHA-256 digests.

        Raises:
            RepositoryError: the release is not what its list says.
        """
        model, number = release.model, version.version
        with staging_folder(self.repository.staging) as staged:
            for file in release.files:
                link_or_copy(contents[file.sha256], staged / file.path)
            manifest = _numbered(staged, release, number)
            originals = signed_originals(self.repository, model, number)
            self.repository.remove(originals)
            if _is_renumbered(release, number):
                self._keep_originals(originals, release, contents)
            if (staged / _REPRODUCTION).is_file():
                (staged / _REPRODUCTION).chmod(0o755)
            fsync_tree(staged)
            final = self.repository.release(model, number)
            self.repository.remove(final)
            write_note(self._record(model, number), release, self.repository.staging)
            make_folder(final.parent)
            move_into_place(staged, final)
        return manifest

    def _keep_originals(self, originals: Path, release: StoredRelease, contents: Mapping[str, Path]) -> None:
        """Keep the files that a new number changed: their signature is that of the ones before."""
        make_folder(originals.parent)
        with staging_folder(self.repository.staging) as staged:
            for file in release.files:
                if file.path in NUMBERED_FILES:
                    link_or_copy(contents[file.sha256], staged / file.path)
            fsync_tree(staged)
            move_into_place(staged, originals)

    def shown(self, model: str) -> int | None:
        """Return the version shown to Triton; earlier ones may be shown as well."""
        numbers = self.repository.views(model).shown()
        return numbers[-1] if numbers else None

    def is_whole(self, model: str) -> bool:
        """Whether Triton is shown whole versions of a model, signed as this machine's policy demands."""
        if self.signatures is not None and shown_problem(self.repository, model, self.signatures) is not None:
            return False
        shown = {number: self.repository.readable(model, number) for number in self.repository.views(model).shown()}
        return bool(shown) and all(
            manifest is not None
            and damaged_file(self.repository.release(model, number), manifest, self._digester) is None
            for number, manifest in shown.items()
        )

    def show(self, model: str, number: int, beside: Iterable[int] = ()) -> None:
        """Show Triton a version, and the local earlier ones that it should serve as well and can.

        Raises:
            RepositoryError: somebody else's model has the name.
        """
        showing = self.repository.showing(model)
        newest = self.repository.manifest(model, number)
        showing.require_ours(newest)
        served = policy_of(newest).served(
            sorted({number, *(version_number for version_number in beside if version_number < number)})
        )
        others = [self.repository.manifest(model, version_number) for version_number in sorted(served - {number})]
        showing.show(newest, [*(candidate for candidate in others if misfit(candidate, newest) is None), newest])

    def collect(self, model: str, *, spared: Iterable[int] = ()) -> None:
        """Garbage collection.

        Removes leftovers of pulls, and releases that are neither shown, last shown nor spared.
        """
        self.repository.remove(self._incoming(model))
        views = self.repository.views(model)
        last = {int(entry.name) for view in views.others() for entry in view.iterdir() if entry.name.isdecimal()}
        needed = {*views.shown(), *last, *spared}
        for number in self.repository.versions(model):
            if number not in needed:
                self.repository.remove(self.repository.release(model, number))
                self._record(model, number).unlink(missing_ok=True)
                self.repository.remove(signed_originals(self.repository, model, number))

    def _is(self, path: Path, file: FileEntry) -> bool:
        """Whether a file exists and has a content."""
        return path.is_file() and path.stat().st_size == file.bytes and self._digester.file(path) == file.sha256

    def _incoming(self, model: str) -> Path:
        return self.repository.store / "incoming" / model

    def _record(self, model: str, number: int) -> Path:
        return self.repository.store / "pulled" / model / f"{number}.json"

    def _pulled(self, model: str, number: int) -> StoredRelease | None:
        return read_note(self._record(model, number), StoredRelease)


def _numbered(staged: Path, release: StoredRelease, number: int) -> Manifest:
    """Return an unpacked release's manifest with the store's version number, which its report shows, too."""
    manifest = read_manifest(staged)
    listed = {file.path: file.sha256 for file in release.files}
    package = manifest.package
    # What a view of it is made of: names that lead elsewhere are in no list.
    shown = {CONFIG_FILE, *package.files}
    is_theirs = all(listed.get(file.path) == file.sha256 for file in manifest.files)
    if manifest.name != release.model or not is_theirs or not shown <= listed.keys():
        raise RepositoryError(
            f"release {release.digest[:12]}… of {release.model} holds other files than its manifest says",
            remedy="publish it again, or use another version",
        )
    require_named(release.model, package.members)
    if manifest.version != number:
        page = staged / REPORT_FILE
        if page.is_file():
            _rewrite(page, renumber(page.read_text(encoding="utf-8"), manifest.version, number))
        manifest = manifest.model_copy(update={"version": number})
        _rewrite(staged / MANIFEST_FILE, manifest.model_dump_json(indent=1))
    return manifest


def _is_renumbered(release: StoredRelease, number: int) -> bool:
    """Whether a release is signed under another number than it has in the store."""
    return release.model_version != number and any(file.path == SIGNATURE_FILE for file in release.files)


def _rewrite(path: Path, text: str) -> None:
    """Replace a file with a new one, even if it has other hard links."""
    path.unlink()
    path.write_text(text, encoding="utf-8")


class Pulled(Record):
    """Result of a pull: the bytes downloaded, and the total bytes of the version.

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
    """Raised if a fetch is no longer needed."""


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
    """Download a version and show it to Triton, with the earlier ones that its version policy serves.

    Args:
        store: has it.
        mirror: takes it, and is held for this store.
        catalogue: the model's.
        version: one of its versions.
        line: the versions that an alias stood for; those of them that Triton is to serve come along.
        spared: releases that stay here, though they are not shown.
        moved: told of bytes on their way.

    Raises:
        SignatureError: the store's policy or this machine's does not accept one of them.
        RepositoryError: the store lost a file of it, the disk is full, or somebody else's model has its name.
        EnvironmentFault: the store cannot be reached.
    """
    model, number, repository = catalogue.model, version.version, mirror.repository
    release = store.release(model, version)
    repository.showing(model).require_ours()
    with storage_errors(repository.root), repository.exclusive(model):
        manifest, fetched = _bring(store, mirror, version, release, moved)
        beside = _earlier_versions(catalogue, number, line, manifest or repository.manifest(model, number))
        for other_version in beside:
            if store.signatures or mirror.signatures or not mirror.has(model, other_version):
                fetched += _bring(store, mirror, other_version, store.release(model, other_version), moved)[1]
        mirror.show(model, number, [other_version.version for other_version in beside])
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
    """Fetch a release; return its manifest, None if it was already local, and the number of bytes fetched."""
    require_signed(store, release, version.version, mirror.signatures)
    if mirror.has(release.model, version):
        return None, 0
    local_files = mirror.local(release.model, release)
    missing = {file.sha256: file for file in release.files if file.sha256 not in local_files}
    fetched = _fetch(store, mirror, release.model, missing, moved)
    manifest = mirror.add(version, release, local_files | fetched)
    return manifest, sum(file.bytes for file in missing.values())


def _fetch(store: Store, mirror: Mirror, model: str, files: Mapping[str, FileEntry], moved: Moved) -> dict[str, Path]:
    """Fetch contents by SHA-256, several in parallel; complete ones are kept on a failure or interrupt."""
    ended = Event()

    def report(count: int) -> None:
        if ended.is_set():
            raise _Ended
        moved(count)

    def fetch_content(sha256: str) -> Path:
        return mirror.take_in(model, sha256, lambda path: store.objects.fetch(object_key(sha256), path, sha256, report))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        works = {threads.submit(fetch_content, sha256): sha256 for sha256 in files}
        try:
            return {works[work]: work.result() for work in as_completed(works)}
        except BaseException:
            ended.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _earlier_versions(
    catalogue: Catalogue, number: int, line: Sequence[int], manifest: Manifest
) -> list[StoredVersion]:
    """Return earlier versions of an alias that Triton serves in addition to one, by its version policy."""
    standing = {version.version: version for version in catalogue.standing() if version.version <= number}
    served = policy_of(manifest).served(sorted({number, *line} & standing.keys()))
    return [standing[version_number] for version_number in sorted(served - {number})]
