"""Releases and the model repository that Triton reads.

A repository at `R` has two folders. `R.plansmith/releases/<model>/<n>/` holds the releases: immutable,
each with its own config.pbtxt and manifest. `R/<model>` is the view that Triton reads: a link, exchanged
by one rename, to a generated folder with the newest release's configuration and one folder for every
version that fits it. Releases lie beside `R` because Triton takes every folder in it for a model.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from plansmith.digest import Digester, digest_of
from plansmith.durable import (
    fsync_tree,
    link_or_copy,
    locked,
    make_folder,
    move_into_place,
    remove_folder,
    staging_folder,
    storage_errors,
    sweep,
)
from plansmith.errors import RepositoryError
from plansmith.targets import DEFAULT_TARGET, Target, load_target
from plansmith.triton.model_config import CONFIG_FILE
from plansmith.triton.releases import (
    MANIFEST_FILE,
    MODEL_FOLDER,
    damaged_file,
    read_manifest,
    require_same_interface,
    stands_for,
)
from plansmith.types import Manifest, PublishedVersion

_MARKER = "repository.json"
_VIEWS_KEPT = 2


class ModelRepository:
    """The Triton model repository of one target.

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
        self.store = self.root.with_name(f"{self.root.name}.plansmith")
        self._digester = digester or Digester(self.store / "no-memo", read_only=True)

    def target(self) -> str | None:
        """The target that the repository belongs to; None before the first publication."""
        marker = self.store / _MARKER
        with storage_errors(self.root):
            try:
                return str(json.loads(marker.read_text())["target"])
            except FileNotFoundError:
                return None
            except (ValueError, KeyError, TypeError) as error:
                raise RepositoryError(
                    f"{marker}, which names the repository's target, is damaged",
                    remedy=f'write {{"target": "{DEFAULT_TARGET}"}} into it, or the target that the models are for',
                ) from error

    def require_target(self, target: str) -> None:
        """See that releases for a target may go here.

        Raises:
            RepositoryError: the repository belongs to another target.
        """
        recorded = self.target()
        if recorded not in {None, target}:
            raise RepositoryError(
                f"{self.root} belongs to target {recorded}, not {target}",
                remedy=f"pass --target {recorded}, or another --repository for {target}",
            )

    def load_target(self) -> Target:
        """The target that the models are for; the default one where none is recorded."""
        return load_target(self.target() or DEFAULT_TARGET)

    def served_models(self) -> list[str]:
        """The models that Triton sees, sorted: ours and any others."""
        return sorted(f.name for f in self.root.iterdir() if f.is_dir()) if self.root.is_dir() else []

    def versions(self, model: str) -> list[int]:
        """The numbers of a model's releases, ascending."""
        folder = self.store / "releases" / model
        return sorted(int(f.name) for f in folder.iterdir() if f.name.isdecimal()) if folder.is_dir() else []

    def shown(self, model: str) -> list[int]:
        """The versions in the view that Triton reads, ascending."""
        view = self.root / model
        return sorted(int(f.name) for f in view.iterdir() if f.name.isdecimal()) if view.is_dir() else []

    def models(self) -> list[str]:
        """The names of all models with a release, sorted."""
        folder = self.store / "releases"
        return sorted(f.name for f in folder.iterdir() if self.versions(f.name)) if folder.is_dir() else []

    def release(self, model: str, version: int) -> Path:
        """The folder of a release."""
        return self.store / "releases" / model / str(version)

    def manifest(self, model: str, version: int) -> Manifest:
        """The manifest of a release."""
        return read_manifest(self.release(model, version))

    def newest(self, model: str) -> Manifest | None:
        """The manifest of a model's newest release, if there is one."""
        numbers = self.versions(model)
        return self.manifest(model, numbers[-1]) if numbers else None

    def publish(
        self,
        draft: Manifest,
        files: Mapping[str, Path],
        texts: Mapping[str, str],
        *,
        allow_interface_change: bool,
        force: bool,
    ) -> PublishedVersion:
        """Make a release and put it into the view; the next free number is taken under a lock.

        Args:
            draft: the manifest, but for its number.
            files: the release's files by name; linked, not copied.
            texts: further files of the release by name and content.
            allow_interface_change: let a version with other inputs or outputs be the newest.
            force: publish even what is already the newest version.

        Raises:
            RepositoryError: another target's repository, a changed interface, a full or unwritable disk.
        """
        with storage_errors(self.root):
            make_folder(self.root)
        with storage_errors(self.root), locked(self.store / "locks" / "models" / draft.name):
            self._claim(draft.target)
            self._require_free_place(draft.name)
            sweep(self.store / "staging")
            newest = self.newest(draft.name)
            if newest is not None and not force and self.holds(newest, draft):
                self._exchange_view(draft.name)
                return self.published(newest, unchanged=True)
            if newest is not None and not allow_interface_change:
                require_same_interface(newest, draft)
            # A number that Triton was ever shown is not given again, even where its release was deleted.
            taken = [*self.versions(draft.name), *self.shown(draft.name)]
            manifest = draft.model_copy(update={"version": max(taken, default=0) + 1})
            with staging_folder(self.store / "staging") as staged:
                for name, path in files.items():
                    link_or_copy(path, staged / name)
                for name, text in texts.items():
                    (staged / name).write_text(text)
                    (staged / name).chmod(0o755 if text.startswith("#!") else 0o644)
                (staged / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
                read_manifest(staged)  # what cannot be read back must not be published
                fsync_tree(staged)
                final = self.release(manifest.name, manifest.version)
                make_folder(final.parent)
                move_into_place(staged, final)
            self._exchange_view(manifest.name)
            return self.published(manifest, unchanged=False)

    def holds(self, newest: Manifest, draft: Manifest) -> bool:
        """Whether a draft's newest release is all that it would become, and whole."""
        return stands_for(newest, draft) and self._is_whole(newest)

    def _is_whole(self, manifest: Manifest) -> bool:
        return damaged_file(self.release(manifest.name, manifest.version), manifest, self._digester) is None

    def _claim(self, target: str) -> None:
        with locked(self.store / "locks" / "repository"):
            self.require_target(target)
            if self.root.stat().st_dev != self.store.stat().st_dev:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if self.target() is None:
                with staging_folder(self.store / "staging") as staged:
                    (staged / _MARKER).write_text(json.dumps({"target": target}))
                    fsync_tree(staged)
                    move_into_place(staged / _MARKER, self.store / _MARKER)

    def _require_free_place(self, model: str) -> None:
        """See that what Triton finds under the model's name, if anything, is a view of ours."""
        link = self.root / model
        if link.exists() and not (link.is_symlink() and link.resolve().parent == self._views(model).resolve()):
            raise RepositoryError(
                f"{link} is a model that plansmith did not make", remedy="pass another --name or --repository"
            )

    def _views(self, model: str) -> Path:
        return self.store / "views" / model

    def _exchange_view(self, model: str) -> None:
        """Make `root/model` show the newest release and the versions that fit it; nothing when it does."""
        link, views = self.root / model, self._views(model)
        newest = self.newest(model)
        assert newest is not None
        every = [self.manifest(model, number) for number in self.versions(model)]
        fitting = [m for m in every if m.package.interface == newest.package.interface and self._is_whole(m)]
        files = self._view_files(newest, fitting)
        wanted = digest_of([newest.release_digest, [m.version for m in fitting]])[:16]
        current = link.resolve()
        if link.is_symlink() and current.name.startswith(wanted) and self._shows(current, files):
            return
        make_folder(views)
        fresh = views / wanted
        if fresh.exists() and not self._shows(fresh, files):
            fresh = views / f"{wanted}-{uuid.uuid4().hex[:8]}"
        if not fresh.exists():
            with staging_folder(self.store / "staging") as staged:
                for name, path in files.items():
                    link_or_copy(path, staged / name)
                fsync_tree(staged)
                move_into_place(staged, fresh)
        with staging_folder(self.store / "staging") as staged:
            (staged / "link").symlink_to(os.path.relpath(fresh, self.root))
            move_into_place(staged / "link", link)
        older = sorted((v for v in views.iterdir() if v != fresh), key=lambda v: v.stat().st_mtime_ns)
        for stale in older[: max(0, len(older) - _VIEWS_KEPT + 1)]:
            remove_folder(stale, self.store / "staging")

    def _view_files(self, newest: Manifest, fitting: list[Manifest]) -> dict[str, Path]:
        """What a view holds, by its place in it: the newest configuration, and each version's model files."""
        files = {CONFIG_FILE: self.release(newest.name, newest.version) / CONFIG_FILE}
        for manifest in fitting:
            source = self.release(manifest.name, manifest.version) / MODEL_FOLDER
            files |= {f"{manifest.version}/{name}": source / name for name in manifest.package.model_files}
        return files

    def _shows(self, view: Path, files: Mapping[str, Path]) -> bool:
        """Whether a view holds these files, unharmed."""
        return all(
            (view / name).is_file()
            and ((view / name).samefile(path) or self._digester.file(view / name) == self._digester.file(path))
            for name, path in files.items()
        )

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
