"""Repository contents: releases, their records, and what Triton sees; read-only.

A repository at `R` has two folders. `R.plansmith/releases/<model>/<n>/` holds the releases: immutable, each with its
own config.pbtxt and manifest. `R/<model>` is the view that Triton reads: a link, exchanged by one rename, to a
generated folder with the newest release's configuration and one folder for every version that fits it. The parts of an
ensemble are `R/<model>.<part>.<digest>`: links as well, to folders that never change. Releases lie beside `R` because
Triton takes every folder in it for a model.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from plansmith.config.targets import DEFAULT_TARGET, Target, load_target
from plansmith.errors import RepositoryError, first_line, in_one_line
from plansmith.formatting import suggest_names
from plansmith.records.model import SCHEMA_VERSION, Record
from plansmith.records.release import MANIFEST_FILE, Fingerprint, Manifest, PublishedVersion
from plansmith.system.digest import Digester
from plansmith.system.files import fsync_path, fsync_tree, make_folder, move_into_place, staging_folder, storage_errors
from plansmith.triton.repository.ensembles import MARKER, STORE_SUFFIX, ModelMembers, is_part, require_alone
from plansmith.triton.repository.release import damaged_file, misfit, read_manifest, stands_for
from plansmith.triton.repository.view import ModelViews

BASIS_FOLDER = "basis"

_REMEDY = "compile the model again: the note is written anew"

_UNKNOWN = "the record that says why is damaged"


class Fingerprints:
    """Fingerprint files, one per model, `<store>/basis/<model>.json`; writers hold the model's lock.

    Args:
        store: holds the repository's releases.
    """

    def __init__(self, store: Path) -> None:
        self._folder = store / BASIS_FOLDER
        self._staging = store / "staging"

    def read(self, model: str) -> Fingerprint | None:
        """Return the fingerprint of the newest version; None if there is none.

        Raises:
            RepositoryError: the note is damaged, or of another version of plansmith.
        """
        file = self._file(model)
        try:
            fields = json.loads(file.read_bytes())
            form = fields["schema_version"]
            if form == SCHEMA_VERSION:
                return Fingerprint.model_validate(fields)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RepositoryError(f"{file} cannot be read: {first_line(error)}", remedy=_REMEDY) from error
        raise RepositoryError(f"{file} has form {form}, and this plansmith reads form {SCHEMA_VERSION}", remedy=_REMEDY)

    def write(self, model: str, basis: Fingerprint) -> None:
        """Write a version's fingerprint atomically.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        final = self._file(model)
        make_folder(final.parent)
        with staging_folder(self._staging) as staged:
            (staged / final.name).write_text(basis.model_dump_json(indent=1), encoding="utf-8")
            fsync_path(staged / final.name)
            move_into_place(staged / final.name, final)

    def _file(self, model: str) -> Path:
        return self._folder / f"{model}.json"


class Withdrawal(Record):
    """Why and when a release was withdrawn; the time is ISO 8601 in UTC."""

    version: int
    reason: str
    withdrawn: str


class Withdrawals:
    """Withdrawal and trial records of one model's releases; writers hold the model's lock.

    A release that was withdrawn is never shown again. One is on trial from before it is shown until every server that
    has to has loaded it: if this process is killed meanwhile, the next one knows that nobody relies on it yet.

    Args:
        model: its name.
        store: holds the repository's releases.
    """

    def __init__(self, model: str, store: Path) -> None:
        self._folder = store / "withdrawn" / model
        self._trials = store / "trials" / model
        self._staging = store / "staging"

    def numbers(self) -> list[int]:
        """Return the withdrawn versions, ascending."""
        files = self._folder.glob("*.json") if self._folder.is_dir() else ()
        return sorted(int(file.stem) for file in files if file.stem.isdecimal())

    def reason(self, number: int) -> str | None:
        """Return why a version was withdrawn; None if it was not."""
        try:
            record = self._read(number)
        except ValueError:
            return _UNKNOWN
        return None if record is None else record.reason

    def moment(self, number: int) -> str | None:
        """Return when a version was withdrawn, as recorded; None if it was not, or the record is damaged."""
        try:
            record = self._read(number)
        except ValueError:
            return None
        return None if record is None else record.withdrawn

    def withdraw(self, number: int, reason: str) -> None:
        """Record a version as withdrawn, never to be shown again; this ends its trial."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = Withdrawal(version=number, reason=reason, withdrawn=moment)
        self._write(self._record(number), record.model_dump_json(indent=1))
        self.end_trial(number)

    def begin_trial(self, number: int) -> None:
        """Start a version's trial: it is to be withdrawn if a server refuses it."""
        self._write(self._trials / str(number), "")

    def is_on_trial(self, number: int) -> bool:
        """Whether a version is on trial: some server that must load it has not done so yet."""
        return (self._trials / str(number)).exists()

    def on_trial(self) -> list[int]:
        """Return the versions on trial, ascending.

        For the holder of the model's lock, those left by killed processes.
        """
        files = self._trials.iterdir() if self._trials.is_dir() else ()
        return sorted(int(file.name) for file in files if file.name.isdecimal())

    def end_trial(self, number: int) -> None:
        """End a version's trial: it is kept."""
        if self._trials.is_dir():
            (self._trials / str(number)).unlink(missing_ok=True)
            fsync_path(self._trials)  # even if it was gone: a process may have been killed before this

    def _read(self, number: int) -> Withdrawal | None:
        try:
            return Withdrawal.model_validate_json(self._record(number).read_bytes())
        except FileNotFoundError:
            return None

    def _record(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _write(self, final: Path, text: str) -> None:
        make_folder(final.parent)
        with staging_folder(self._staging) as staged:
            (staged / final.name).write_text(text, encoding="utf-8")
            fsync_path(staged / final.name)
            move_into_place(staged / final.name, final)


class RepositoryMarker(Record):
    """Repository marker, stored next to the releases.

    `mirrors`: the store that its releases were pulled from, as a person may read it; empty where models are compiled
    into it; `typed`: what that person types behind `--store` for it.
    """

    target: str
    mirrors: str = ""
    typed: str = ""


def read_marker(folder: Path) -> RepositoryMarker | None:
    """Read the marker in the folder next to a repository; None before the first release.

    Raises:
        RepositoryError: it is damaged.
    """
    path = folder / MARKER
    try:
        return RepositoryMarker.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RepositoryError(
            f"{path}, which names the repository's target, is damaged: {first_line(error)}",
            remedy=f'write {{"target": "{DEFAULT_TARGET}"}} into it, or the target that the models are for',
        ) from error


def write_marker(folder: Path, marker: RepositoryMarker, staging: Path) -> None:
    """Write a repository's marker atomically."""
    with staging_folder(staging) as staged:
        (staged / MARKER).write_text(marker.model_dump_json(exclude_defaults=True))
        fsync_tree(staged)
        move_into_place(staged / MARKER, folder / MARKER)


class ModelViewPublication:
    """Publication of one model's view and its parts; writers hold the model's lock.

    Args:
        views: the model's.
        members: the model's.
    """

    def __init__(self, views: ModelViews, members: ModelMembers) -> None:
        self._views = views
        self._members = members

    def require_ours(self, *manifests: Manifest) -> None:
        """Require that entries with the names of the model and its parts in Triton's folder are plansmith's.

        Raises:
            RepositoryError: it is a model that somebody else put there.
        """
        self._views.require_ours()
        for manifest in manifests:
            self._members.require_ours(manifest.package.members)

    def show(self, newest: Manifest, fitting: list[Manifest]) -> None:
        """Show the newest release and the versions that fit it, and delete parts that no view names any more.

        Args:
            newest: its configuration is the view's.
            fitting: the manifests of the versions, in ascending order; all have the newest one's parts.

        Raises:
            RepositoryError: a part's name is somebody else's model's.
        """
        self._members.show(newest)
        self._views.show(newest, fitting)
        self.tidy()

    def hide(self) -> None:
        """Stop showing the model, but keep the parts that a Triton may still read with the previous view."""
        self._views.hide()
        self.tidy()

    def tidy(self) -> None:
        """Delete the parts that no view names, such as those left by a killed process."""
        self._members.tidy(self._views.configs())

    def strays(self, newest: Manifest, fitting: list[Manifest], *, quick: bool = False) -> dict[str, Path]:
        """Return the files to be shown to Triton that are missing, or differ from those of the releases.

        Args:
            newest: the newest release that is shown.
            fitting: the manifests of all that are.
            quick: compare sizes, and read nothing.

        Returns:
            Where Triton reads them, by what they are called: in the view, or for those of parts, in the release.
        """
        names = self._views.strays(newest, fitting, quick=quick)
        return {name: self._views.path / name for name in names} | self._members.strays(newest, quick=quick)


class RepositoryContents:
    """Contents of the model repository of one target.

    Args:
        root: the folder that Triton reads.
        digester: hashes the files of releases; one that remembers nothing when None.

    Raises:
        RepositoryError: the folder has no name, and so no place beside it.
    """

    def __init__(self, root: Path, digester: Digester | None = None) -> None:
        self.root = root.resolve()
        if not self.root.name:
            raise RepositoryError(f"{self.root} cannot be a repository", remedy="choose a folder, such as /srv/models")
        self.store = self.root.with_name(f"{self.root.name}{STORE_SUFFIX}")
        self.staging = self.store / "staging"
        self._digester = digester or Digester(self.store / "no-memo", read_only=True)

    def is_there(self) -> bool:
        """Whether any of the repository exists: the folder that Triton reads, or the releases next to it."""
        return self.root.exists() or self.store.exists()

    def target(self) -> str | None:
        """Return the repository's target; None before the first publication."""
        marker = self.marker()
        return None if marker is None else marker.target

    def marker(self) -> RepositoryMarker | None:
        """Return the repository's marker; None before the first publication."""
        with storage_errors(self.root):
            return read_marker(self.store)

    def require_target(self, target: str, *, mirrors: str = "") -> None:
        """Require that releases for a target may be published here.

        Args:
            target: its name.
            mirrors: the store that they come from; empty for those of a compile.

        Raises:
            RepositoryError: the repository belongs to another target or another store, lies in another one or holds
                others.
        """
        with storage_errors(self.root):
            require_alone(self.root)
        recorded = self.marker()
        if recorded is None:
            return
        if recorded.target != target:
            raise RepositoryError(
                f"{self.root} belongs to target {recorded.target}, not {target}",
                remedy=f"pass --target {recorded.target}, or another folder for {target}",
            )
        if recorded.mirrors != mirrors:
            others = f"shows what {recorded.mirrors} has" if recorded.mirrors else "holds releases that were made here"
            raise RepositoryError(
                f"{self.root} {others}, and nothing else may come into it",
                remedy="name another folder with --into" if mirrors else "pass another --repository",
            )

    def load_target(self) -> Target:
        """Return the target of the models; the default one if none is recorded."""
        return load_target(self.target() or DEFAULT_TARGET)

    def served_models(self) -> list[str]:
        """Return the models that Triton sees, sorted: plansmith's and others, without parts of ensembles."""
        entries = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(f.name for f in entries if f.is_dir() and not is_part(f))

    def versions(self, model: str) -> list[int]:
        """Return the version numbers of a model's releases, ascending."""
        folder = self.store / "releases" / model
        return sorted(int(f.name) for f in folder.iterdir() if f.name.isdecimal()) if folder.is_dir() else []

    def standing(self, model: str) -> list[int]:
        """Return the version numbers of a model's releases that are not withdrawn, ascending."""
        withdrawn = self.withdrawals(model).numbers()
        return [number for number in self.versions(model) if number not in withdrawn]

    def withdrawals(self, model: str) -> Withdrawals:
        """Return the withdrawal records of a model."""
        return Withdrawals(model, self.store)

    def views(self, model: str) -> ModelViews:
        """Return the current and former views of a model."""
        return ModelViews(model, self.root, self.store, self._digester)

    def members(self, model: str) -> ModelMembers:
        """Return the parts of a model's releases that are shown to Triton."""
        return ModelMembers(model, self.root, self.store, self._digester)

    def showing(self, model: str) -> ModelViewPublication:
        """Return a model's view and parts together."""
        return ModelViewPublication(self.views(model), self.members(model))

    def find(self, text: str) -> tuple[str, int]:
        """Resolve MODEL[@VERSION] to a model and version; the leading version by default.

        Raises:
            RepositoryError: there is no such release.
        """
        model, _, version = text.partition("@")
        numbers = self.versions(model)
        if not numbers and not self.root.is_dir():
            raise RepositoryError(
                f"there is no model repository {self.root}",
                remedy="name another repository, or compile a model into it first",
            )
        if not numbers:
            raise RepositoryError(
                f"{self.root} has no model {model!r}",
                remedy=suggest_names([model], self.models(), otherwise="compile a model into it first"),
            )
        if version and version not in {str(n) for n in numbers}:
            listed = ", ".join(map(str, numbers))
            raise RepositoryError(f"{model} has no version {version!r}", remedy=f"name one of its versions: {listed}")
        return model, int(version) if version else self.leading(model) or numbers[-1]

    def models(self) -> list[str]:
        """Return the names of all models with a release, sorted."""
        folder = self.store / "releases"
        return sorted(f.name for f in folder.iterdir() if self.versions(f.name)) if folder.is_dir() else []

    def model_names(self) -> list[str]:
        """Return the names of all models with a release or a view, sorted."""
        places = (self.store / "releases", self.store / "views")
        return sorted({f.name for place in places if place.is_dir() for f in place.iterdir() if f.is_dir()})

    def release(self, model: str, version: int) -> Path:
        """Return the folder of a release."""
        return self.store / "releases" / model / str(version)

    def manifest(self, model: str, version: int) -> Manifest:
        """Return the manifest of a release."""
        return read_manifest(self.release(model, version))

    def readable(self, model: str, version: int) -> Manifest | None:
        """Return the manifest of a release; None if it is damaged."""
        try:
            return self.manifest(model, version)
        except RepositoryError:
            return None

    def why_hidden(self, model: str, number: int, newest: Manifest | None) -> str | None:
        """Return why no view will show a release again; None if one may.

        Args:
            model: its name.
            number: the release's version.
            newest: the newest release's manifest, whose configuration the view has, where it can be read.
        """
        withdrawn = self.withdrawals(model).reason(number)
        if withdrawn is not None:
            return f"withdrawn: {in_one_line(withdrawn)}"
        manifest = self.readable(model, number)
        unfit = misfit(manifest, newest) if manifest is not None and newest is not None else None
        return unfit or self.damage(model, number)

    def damage(self, model: str, number: int) -> str | None:
        """Return how a release differs from what was published; None if it is intact."""
        manifest = self.readable(model, number)
        if manifest is None:
            return "its manifest is damaged"
        damaged = damaged_file(self.release(model, number), manifest, self._digester)
        return None if damaged is None else f"{damaged} is damaged"

    def newest(self, model: str) -> Manifest | None:
        """Return the manifest of a model's leading release, if there is one."""
        number = self.leading(model)
        return self.manifest(model, number) if number is not None else None

    def leading(self, model: str) -> int | None:
        """Return the leading version, whose configuration is shown.

        The newest not withdrawn, or as a store determines.
        """
        marker = self.marker()
        numbers = self.views(model).shown() if marker is not None and marker.mirrors else self.standing(model)
        return numbers[-1] if numbers else None

    def basis(self, model: str) -> Fingerprint | None:
        """Return the fingerprint of a model's newest version; None if there is none.

        Raises:
            RepositoryError: the note is damaged, or of another version of plansmith.
        """
        return Fingerprints(self.store).read(model)

    def holds(self, newest: Manifest, draft: Manifest) -> bool:
        """Whether the newest release already equals what a draft would become, and is intact."""
        return stands_for(newest, draft) and self.is_whole(newest)

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether every file of a release is as it was published."""
        return damaged_file(self.release(manifest.name, manifest.version), manifest, self._digester) is None

    def published(self, manifest: Manifest, *, unchanged: bool) -> PublishedVersion:
        """Return a release of this repository as a published version."""
        release = self.release(manifest.name, manifest.version)
        return PublishedVersion(
            name=manifest.name,
            version=manifest.version,
            repository=str(self.root),
            release=str(release),
            manifest_digest=hashlib.sha256((release / MANIFEST_FILE).read_bytes()).hexdigest(),
            published=manifest.created,
            unchanged=unchanged,
        )
