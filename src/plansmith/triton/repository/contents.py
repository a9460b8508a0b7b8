"""What a repository holds: releases, what was noted of them, and what Triton is shown; read, and never changed.

A repository at `R` has two folders. `R.plansmith/releases/<model>/<n>/` holds the releases: immutable, each with its
own config.pbtxt and manifest. `R/<model>` is the view that Triton reads: a link, exchanged by one rename, to a
generated folder with the newest release's configuration and one folder for every version that fits it. The parts of an
ensemble are `R/<model>.<part>.<digest>`: links as well, to folders that never change. Releases lie beside `R` because
Triton takes every folder in it for a model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from plansmith.config.target.targets import DEFAULT_TARGET, Target, load_target
from plansmith.errors import RepositoryError, in_one_line
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.release import MANIFEST_FILE, Manifest, PublishedVersion
from plansmith.system.digest import Digester
from plansmith.system.files import storage_errors
from plansmith.triton.repository.ensemble_members import ModelMembers, is_part
from plansmith.triton.repository.fingerprints import Fingerprints
from plansmith.triton.repository.marker import RepositoryMarker, read_marker
from plansmith.triton.repository.nesting import STORE_SUFFIX, require_alone
from plansmith.triton.repository.publish_view import ModelViewPublication
from plansmith.triton.repository.release import damaged_file, misfit, read_manifest, stands_for
from plansmith.triton.repository.view import ModelViews
from plansmith.triton.repository.withdrawals import Withdrawals


class RepositoryContents:
    """What the repository of one target holds.

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
        """Whether there is anything of the repository: the folder that Triton reads, or the releases beside it."""
        return self.root.exists() or self.store.exists()

    def target(self) -> str | None:
        """The target that the repository belongs to; None before the first publication."""
        marker = self.marker()
        return None if marker is None else marker.target

    def marker(self) -> RepositoryMarker | None:
        """What is recorded of the repository; None before the first publication."""
        with storage_errors(self.root):
            return read_marker(self.store)

    def require_target(self, target: str, *, mirrors: str = "") -> None:
        """See that releases for a target may go here.

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
        """The target that the models are for; the default one where none is recorded."""
        return load_target(self.target() or DEFAULT_TARGET)

    def served_models(self) -> list[str]:
        """The models that Triton sees, sorted: ours and any others, but no parts of ensembles, which nobody asks."""
        found = self.root.iterdir() if self.root.is_dir() else ()
        return sorted(f.name for f in found if f.is_dir() and not is_part(f))

    def versions(self, model: str) -> list[int]:
        """The numbers of a model's releases, ascending."""
        folder = self.store / "releases" / model
        return sorted(int(f.name) for f in folder.iterdir() if f.name.isdecimal()) if folder.is_dir() else []

    def standing(self, model: str) -> list[int]:
        """The numbers of a model's releases but for those withdrawn, ascending."""
        withdrawn = self.withdrawals(model).numbers()
        return [number for number in self.versions(model) if number not in withdrawn]

    def withdrawals(self, model: str) -> Withdrawals:
        """Which releases of a model were withdrawn."""
        return Withdrawals(model, self.store)

    def views(self, model: str) -> ModelViews:
        """What Triton is shown of a model, and was shown before."""
        return ModelViews(model, self.root, self.store, self._digester)

    def members(self, model: str) -> ModelMembers:
        """The parts of a model's releases that Triton is shown."""
        return ModelMembers(model, self.root, self.store, self._digester)

    def showing(self, model: str) -> ModelViewPublication:
        """A model's view and its parts together."""
        return ModelViewPublication(self.views(model), self.members(model))

    def find(self, text: str) -> tuple[str, int]:
        """The model and version that MODEL[@VERSION] names; the leading one where none is given.

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
            known = self.models()
            remedy = f"name one of its models: {', '.join(known)}" if known else "compile a model into it first"
            raise RepositoryError(f"{self.root} has no model {model!r}", remedy=remedy)
        if version and version not in {str(n) for n in numbers}:
            listed = ", ".join(map(str, numbers))
            raise RepositoryError(f"{model} has no version {version!r}", remedy=f"name one of its versions: {listed}")
        return model, int(version) if version else self.leading(model) or numbers[-1]

    def models(self) -> list[str]:
        """The names of all models with a release, sorted."""
        folder = self.store / "releases"
        return sorted(f.name for f in folder.iterdir() if self.versions(f.name)) if folder.is_dir() else []

    def known(self) -> list[str]:
        """The names of all models with a release or a view, sorted."""
        places = (self.store / "releases", self.store / "views")
        return sorted({f.name for place in places if place.is_dir() for f in place.iterdir() if f.is_dir()})

    def release(self, model: str, version: int) -> Path:
        """The folder of a release."""
        return self.store / "releases" / model / str(version)

    def manifest(self, model: str, version: int) -> Manifest:
        """The manifest of a release."""
        return read_manifest(self.release(model, version))

    def readable(self, model: str, version: int) -> Manifest | None:
        """The manifest of a release; None where it is damaged."""
        try:
            return self.manifest(model, version)
        except RepositoryError:
            return None

    def why_hidden(self, model: str, number: int, newest: Manifest | None) -> str | None:
        """Why no view will show a release again; None where one may.

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
        """What of a release is not as it was published, in words; None where it is whole."""
        manifest = self.readable(model, number)
        if manifest is None:
            return "its manifest is damaged"
        damaged = damaged_file(self.release(model, number), manifest, self._digester)
        return None if damaged is None else f"{damaged} is damaged"

    def newest(self, model: str) -> Manifest | None:
        """The manifest of a model's leading release, if there is one."""
        number = self.leading(model)
        return self.manifest(model, number) if number is not None else None

    def leading(self, model: str) -> int | None:
        """The version whose configuration Triton is shown: the newest that was not withdrawn, or what a store says."""
        marker = self.marker()
        numbers = self.views(model).shown() if marker is not None and marker.mirrors else self.standing(model)
        return numbers[-1] if numbers else None

    def basis(self, model: str) -> Fingerprint | None:
        """What the newest version of a model was made from; None where nobody noted it.

        Raises:
            RepositoryError: the note is damaged, or of another version of plansmith.
        """
        return Fingerprints(self.store).read(model)

    def holds(self, newest: Manifest, draft: Manifest) -> bool:
        """Whether a draft's newest release is all that it would become, and whole."""
        return stands_for(newest, draft) and self.is_whole(newest)

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether every file of a release is as it was published."""
        return damaged_file(self.release(manifest.name, manifest.version), manifest, self._digester) is None

    def published(self, manifest: Manifest, *, unchanged: bool) -> PublishedVersion:
        """Where a release of this repository stands."""
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
