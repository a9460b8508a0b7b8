"""A folder that shows what a store says: laid out as a repository, and written by `pull` and `sync` alone.

Beside what every repository has (`triton.repository`), at R.plansmith:

pulled/<model>/<n>.json       which release of the store a release is
incoming/<model>/<sha256>     contents of a release that is not complete yet, so that a killed pull goes on from there
following/<model>.json        what servers made of it (`stores.syncing`)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.records.model import FileEntry
from plansmith.records.release import CONFIG_FILE, MANIFEST_FILE, Manifest
from plansmith.report import REPORT_FILE, facts_of, render
from plansmith.stores.records import StoredRelease, StoredVersion
from plansmith.stores.store import Store
from plansmith.stores.sync.state_file import read_note, write_note
from plansmith.system.digest import Digester
from plansmith.system.files import (
    fsync_tree,
    link_or_copy,
    locked,
    make_folder,
    move_into_place,
    staging_folder,
    storage_errors,
    sweep,
)
from plansmith.triton.repository.ensemble_members import require_named
from plansmith.triton.repository.release import damaged_file, misfit, policy_of, read_manifest
from plansmith.triton.repository.repository import ModelRepository

_REPRODUCTION = "reproduce.sh"  # which a person runs
_NUMBERED = {MANIFEST_FILE, REPORT_FILE}


class Mirror:
    """Releases of a store on this machine, under the store's numbers.

    Args:
        root: the folder that Triton reads, of which everything else lies beside.
    """

    def __init__(self, root: Path) -> None:
        beside = ModelRepository(root).store
        self._digester = Digester(beside / "digests.sqlite")
        self.repository = ModelRepository(root, self._digester)

    @contextmanager
    def held(self, store: Store, *, alone: bool) -> Iterator[None]:
        """Use the folder for a store, alone or beside others that do not want it for themselves.

        Raises:
            RepositoryError: another process wants or has it for itself; it is another store's or target's, or a
                repository that models are compiled into; the place is no store.
        """

        def waiting(process: int | None) -> None:
            who = f" (process {process})" if process is not None else ""
            raise RepositoryError(
                f"another plansmith pull or sync uses {self.repository.root}{who}",
                remedy="end it, or name another folder with --into; what a sync shows follows the store's aliases",
            )

        made = [folder for folder in (self.repository.store, self.repository.root) if not folder.exists()]
        lock = self.repository.store / "locks" / "mirror"
        try:
            with storage_errors(self.repository.root):
                make_folder(self.repository.root)
                held = locked(lock, waiting, shared=not alone)
            with held:
                self._claim(store)
                yield
        except BaseException:
            if self.repository.store in made:
                with suppress(RepositoryError), locked(lock, waiting):
                    self._leave(made)
            raise

    def _leave(self, made: Iterable[Path]) -> None:
        """Take folders away that were made for a store of which nothing came, not even a part of a file."""
        beside = self.repository.store
        if any(path.is_file() for name in ("incoming", "releases") for path in (beside / name).rglob("*")):
            return
        shutil.rmtree(beside)
        if self.repository.root in made:
            with suppress(OSError):  # somebody put something there
                self.repository.root.rmdir()

    def _claim(self, store: Store) -> None:
        """Record the store, or see that it is recorded: then it need not be reached."""
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
        """Whether a version of the store is here, and whole."""
        number = version.version
        release, folder = self._pulled(model, number), self.repository.release(model, number)
        if release is None or release.digest != version.digest or self.repository.readable(model, number) is None:
            return False
        return all(self._is(folder / file.path, file) for file in release.files if file.path not in _NUMBERED)

    def local(self, model: str, release: StoredRelease) -> dict[str, Path]:
        """Files that are here already and hold contents of a release, by SHA-256."""
        wanted = {file.sha256: file for file in release.files}
        places = [(self._incoming(model) / sha256, file) for sha256, file in wanted.items()]
        for number in reversed(self.repository.versions(model)):
            other = self._pulled(model, number)
            folder = self.repository.release(model, number)
            places += [(folder / file.path, file) for file in (other.files if other is not None else ())]
        found: dict[str, Path] = {}
        for path, file in places:
            if file.sha256 in wanted and file.sha256 not in found and self._is(path, file):
                found[file.sha256] = path
        return found

    def take_in(self, model: str, sha256: str, fetch: Callable[[Path], None]) -> Path:
        """Have a content written to a file, which is among the `local` ones until its release is complete.

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
        """Make a release of contents that are here, under the store's number; it appears whole.

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
            if (staged / _REPRODUCTION).is_file():
                (staged / _REPRODUCTION).chmod(0o755)
            fsync_tree(staged)
            final = self.repository.release(model, number)
            self.repository.remove(final)
            write_note(self._record(model, number), release, self.repository.staging)
            make_folder(final.parent)
            move_into_place(staged, final)
        return manifest

    def shown(self, model: str) -> int | None:
        """The version that Triton is shown, beside which there may be earlier ones."""
        numbers = self.repository.views(model).shown()
        return numbers[-1] if numbers else None

    def is_whole(self, model: str) -> bool:
        """Whether Triton is shown versions of a model, and all that was published with them is here."""
        shown = {number: self.repository.readable(model, number) for number in self.repository.views(model).shown()}
        return bool(shown) and all(
            manifest is not None
            and damaged_file(self.repository.release(model, number), manifest, self._digester) is None
            for number, manifest in shown.items()
        )

    def show(self, model: str, number: int, beside: Iterable[int] = ()) -> None:
        """Have Triton see a version, and of earlier ones that are here those that it is to serve as well, and can.

        Raises:
            RepositoryError: somebody else's model has the name.
        """
        showing = self.repository.showing(model)
        newest = self.repository.manifest(model, number)
        showing.require_ours(newest)
        served = policy_of(newest).served(sorted({number, *(other for other in beside if other < number)}))
        others = [self.repository.manifest(model, other) for other in sorted(served - {number})]
        showing.show(newest, [*(one for one in others if misfit(one, newest) is None), newest])

    def collect(self, model: str, *, spared: Iterable[int] = ()) -> None:
        """Remove what a pull left, and the releases that are neither shown, nor were shown last, nor spared."""
        self.repository.remove(self._incoming(model))
        views = self.repository.views(model)
        last = {int(entry.name) for view in views.others() for entry in view.iterdir() if entry.name.isdecimal()}
        kept = {*views.shown(), *last, *spared}
        for number in self.repository.versions(model):
            if number not in kept:
                self.repository.remove(self.repository.release(model, number))
                self._record(model, number).unlink(missing_ok=True)

    def _is(self, path: Path, file: FileEntry) -> bool:
        """Whether a file is there and has a content."""
        return path.is_file() and path.stat().st_size == file.bytes and self._digester.file(path) == file.sha256

    def _incoming(self, model: str) -> Path:
        return self.repository.store / "incoming" / model

    def _record(self, model: str, number: int) -> Path:
        return self.repository.store / "pulled" / model / f"{number}.json"

    def _pulled(self, model: str, number: int) -> StoredRelease | None:
        return read_note(self._record(model, number), StoredRelease)


def _numbered(staged: Path, release: StoredRelease, number: int) -> Manifest:
    """The manifest of a release that was laid out, which tells the store's number then, as its report does."""
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
        manifest = manifest.model_copy(update={"version": number})
        _rewrite(staged / MANIFEST_FILE, manifest.model_dump_json(indent=1))
        if (staged / REPORT_FILE).is_file():
            _rewrite(staged / REPORT_FILE, render(facts_of(manifest)))
    return manifest


def _rewrite(path: Path, text: str) -> None:
    """Put a new file in the place of one that has other names, too."""
    path.unlink()
    path.write_text(text, encoding="utf-8")
