"""Repository view of a model for Triton: a link to a folder with one configuration and its compatible versions."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Manifest
from plansmith.system.digest import Digester, digest_of
from plansmith.system.files import (
    fsync_path,
    fsync_tree,
    link_or_copy,
    make_folder,
    move_into_place,
    remove_folder,
    staging_folder,
)

# One second, in nanoseconds: no file system of Linux that has links notes times more coarsely.
_FILE_TIME_STEP = 10**9

# A Triton that began to load before an exchange still reads the view before.
_OTHERS_KEPT = 1


def is_same(digester: Digester, shown: Path, released: Path, *, quick: bool = False) -> bool:
    """Whether a file shown to Triton is the release's, undamaged.

    Args:
        digester: hashes both where they are not one file.
        shown: what Triton reads.
        released: the release's.
        quick: compare sizes, and read nothing.
    """
    if not shown.is_file():
        return False
    if shown.samefile(released):
        return True
    if quick:
        return shown.stat().st_size == released.stat().st_size
    return digester.file(shown) == digester.file(released)


def make_younger(folder: Path, others: Iterable[Path]) -> None:
    """Set a folder's time later than any file of the previous views, independent of the clock.

    A running Triton takes a folder whose youngest file is no younger than that of its last load for unchanged: it
    answers a load with success and does nothing (core, ModelTimestamp::IsModified in model_repository_manager.cc; seen
    with 2.51 where an older view was shown again).
    """
    before = max((path.stat().st_mtime_ns for sibling in others for path in (sibling, *sibling.rglob("*"))), default=0)
    moment = max(time.time_ns(), before + _FILE_TIME_STEP)
    os.utime(folder, ns=(moment, moment))
    fsync_path(folder)


class ModelViews:
    """Views of one model; writers hold the model's lock.

    A view's name begins with a number that grows, so that the order in which they were made does not hang on a clock.

    Args:
        model: its name.
        root: the folder that Triton reads; `root/model` is the link.
        store: holds the releases and the views.
        digester: hashes the files of views.
    """

    def __init__(self, model: str, root: Path, store: Path, digester: Digester) -> None:
        self._link = root / model
        self._folder = store / "views" / model
        self._releases = store / "releases" / model
        self._staging = store / "staging"
        self._digester = digester

    def shown(self) -> list[int]:
        """Return the versions in the current view, ascending."""
        return versions_in(self._link)

    def state(self) -> str:
        """Return a state that identifies the view's configuration and versions; empty if Triton is shown nothing."""
        return self._link.resolve().name.partition("-")[2] if self._link.is_symlink() else ""

    def others(self) -> list[Path]:
        """Return the former views that Triton is not shown any more, oldest first."""
        current = self._link.resolve()
        entries = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(
            (view for view in entries if view.resolve() != current), key=lambda view: (_number(view), view.name)
        )

    def configs(self, *, without: Collection[Path] = ()) -> list[str]:
        """Return the configurations of all views, current and former, except some."""
        entries = self._folder.iterdir() if self._folder.is_dir() else ()
        return [
            (view / CONFIG_FILE).read_text(errors="replace")
            for view in entries
            if view not in without and (view / CONFIG_FILE).is_file()
        ]

    def require_ours(self) -> None:
        """Require that what has the model's name in Triton's folder, if present, is a plansmith view.

        Raises:
            RepositoryError: it is a model that somebody else put there.
        """
        link = self._link
        if link.exists() and not (link.is_symlink() and link.resolve().parent == self._folder.resolve()):
            raise RepositoryError(
                f"{link} is a model that plansmith did not make", remedy="pass another --name or --repository"
            )

    def show(self, newest: Manifest, fitting: list[Manifest]) -> None:
        """Switch the link to a view of the newest release and the versions that fit it; does nothing if it is current.

        Args:
            newest: its configuration is the view's.
            fitting: the manifests of the versions, in ascending order.
        """
        fsync_path(self._releases)  # a process that was killed may not have come to this, nor to the two below
        files = self._files(newest, fitting)
        state = digest_of([newest.release_digest, [m.version for m in fitting]])[:16]
        current = self._link.resolve()
        if self._link.is_symlink() and current.name.endswith(f"-{state}") and self._holds(current, files):
            fsync_path(self._link.parent)
            return
        make_folder(self._folder)
        last = max(self._folder.iterdir(), key=_number, default=None)
        number = _number(last) if last is not None else 0
        # A killed process may have left the wanted view finished but not shown.
        fresh = self._folder / f"{number}-{state}"
        if fresh == current or not (fresh.exists() and self._holds(fresh, files)):
            fresh = self._folder / f"{number + 1}-{state}"
            with staging_folder(self._staging) as staged:
                for name, path in files.items():
                    link_or_copy(path, staged / name)
                fsync_tree(staged)
                move_into_place(staged, fresh)
        else:
            fsync_path(self._folder)
        make_younger(fresh, [view for view in self._folder.iterdir() if view != fresh])
        with staging_folder(self._staging) as staged:
            (staged / "link").symlink_to(os.path.relpath(fresh, self._link.parent))
            move_into_place(staged / "link", self._link)
        for stale in self.others()[:-_OTHERS_KEPT]:
            remove_folder(stale, self._staging)

    @property
    def path(self) -> Path:
        """The path that Triton reads."""
        return self._link

    def strays(self, newest: Manifest, fitting: list[Manifest], *, quick: bool = False) -> list[str]:
        """Return the names of files to be shown to Triton that are missing, or differ from those of the releases.

        Args:
            newest: the newest release that is shown.
            fitting: the manifests of all that are.
            quick: compare sizes, and read nothing.
        """
        files = self._files(newest, fitting)
        return [
            name for name, path in files.items() if not is_same(self._digester, self._link / name, path, quick=quick)
        ]

    def hide(self) -> None:
        """Stop showing the model."""
        if self._link.is_symlink():
            self._link.unlink()
        if self._link.parent.is_dir():
            fsync_path(self._link.parent)  # also where it was gone: a process may have been killed before this

    def _files(self, newest: Manifest, fitting: list[Manifest]) -> dict[str, Path]:
        """The files of a view, by their paths: the newest configuration with its files, and each version's model."""
        shared = (CONFIG_FILE, *newest.package.support_files)
        files = {name: self._releases / str(newest.version) / name for name in shared}
        for manifest in fitting:
            source = self._releases / str(manifest.version) / MODEL_FOLDER
            files |= {f"{manifest.version}/{name}": source / name for name in manifest.package.model_files}
        return files

    def _holds(self, view: Path, files: Mapping[str, Path]) -> bool:
        """Whether a view has these files, undamaged."""
        return all(is_same(self._digester, view / name, path) for name, path in files.items())


def versions_in(view: Path) -> list[int]:
    """Return the versions in a view, ascending; none if it does not exist."""
    return sorted(int(f.name) for f in view.iterdir() if f.name.isdecimal()) if view.is_dir() else []


def _number(view: Path) -> int:
    """The sequence number of a view, in order of creation."""
    number = view.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0
