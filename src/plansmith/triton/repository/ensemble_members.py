"""The parts of ensembles as Triton is shown them: models of their own, each a link to a folder that never changes.

A part's name ends in a digest of its content. So a part that a new version of the ensemble needs as well stays as it
is, and one that it does not need any more goes only once no view has a configuration that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from plansmith.errors import RepositoryError
from plansmith.records.release import Manifest, Member
from plansmith.system.digest import Digester
from plansmith.system.files import (
    fsync_path,
    fsync_tree,
    link_or_copy,
    make_folder,
    move_into_place,
    remove_folder,
    staging_folder,
)
from plansmith.triton.repository.nesting import STORE_SUFFIX
from plansmith.triton.repository.view_files import is_same, make_younger

MEMBERS = "members"

_ANEW = "~"  # no name of a model has it


class ModelMembers:
    """The parts of one model's releases; those who change them hold the model's lock.

    Args:
        model: the ensemble's name.
        root: the folder that Triton reads; `root/<name of the part>` is the link.
        store: holds the releases and the folders of parts.
        digester: hashes the files of parts.
    """

    def __init__(self, model: str, root: Path, store: Path, digester: Digester) -> None:
        self._root = root
        self._folder = store / MEMBERS / model
        self._releases = store / "releases" / model
        self._staging = store / "staging"
        self._digester = digester

    def require_ours(self, members: Iterable[Member]) -> None:
        """See that what Triton finds under the names of parts, if anything, are parts of this model.

        Raises:
            RepositoryError: one is a model that somebody else put there, or another model's part; or has no name of
                such a part.
        """
        model = self._folder.name
        for member in require_named(model, members):
            link = self._root / member.model
            if os.path.lexists(link) and not self._is_ours(link):
                raise RepositoryError(
                    f"{link}, which is to be a part of {model}, is a model that plansmith did not make for it",
                    remedy="move it away, or pass another --name or --repository",
                )

    def show(self, manifest: Manifest) -> None:
        """Have Triton see the parts of a release; nothing where it does.

        Raises:
            RepositoryError: as `require_ours`.
        """
        members = manifest.package.members
        self.require_ours(members)
        for member in members:
            files = self._files(manifest, member)
            link = self._root / member.model
            if not (link.is_symlink() and self._holds(link.resolve(), files)):
                self._link(link, self._made(member, files))

    def strays(self, manifest: Manifest, *, quick: bool = False) -> dict[str, Path]:
        """What Triton is to be shown of a release's parts and is missing, or not the release's: by path in the release.

        Args:
            manifest: the release's.
            quick: compare sizes, and read nothing.
        """
        release = self._release(manifest)
        return {
            released.relative_to(release).as_posix(): self._root / member.model / name
            for member in manifest.package.members
            for name, released in self._files(manifest, member).items()
            if not is_same(self._digester, self._root / member.model / name, released, quick=quick)
        }

    def stale(self, configs: Iterable[str]) -> list[Path]:
        """The folders of parts that none of some configurations names, and those that no link leads to; sorted.

        Args:
            configs: their texts.
        """
        texts = tuple(configs)
        links = self._links()
        needed = {link.resolve() for link in links if any(link.name in text for text in texts)}
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(folder for folder in found if folder.resolve() not in needed)

    def tidy(self, configs: Iterable[str]) -> None:
        """Take away the `stale` ones."""
        for folder in self.stale(configs):
            self.remove(folder)

    def remove(self, folder: Path) -> None:
        """Take a part away: first out of Triton's sight, then its folder in one step, then off the disk."""
        links = [link for link in self._links() if link.resolve() == folder.resolve()]
        for link in links:
            link.unlink()
        if links:
            fsync_path(self._root)
        remove_folder(folder, self._staging)

    def _made(self, member: Member, files: Mapping[str, Path]) -> Path:
        """A whole folder of a part; a damaged one stays, as long as Triton is shown it, and another is made."""
        make_folder(self._folder)
        made = [one for one in self._folder.iterdir() if one.name.partition(_ANEW)[0] == member.model]
        for folder in made:  # a killed process may have left it finished but not shown
            if self._holds(folder, files):
                return folder
        fresh = self._folder / (f"{member.model}{_ANEW}{_next_number(made)}" if made else member.model)
        with staging_folder(self._staging) as staged:
            for name, path in files.items():
                link_or_copy(path, staged / name)
            for name in bytecode_stops(files):
                (staged / name).touch()
            fsync_tree(staged)
            move_into_place(staged, fresh)
        make_younger(fresh, made)
        return fresh

    def _link(self, link: Path, folder: Path) -> None:
        with staging_folder(self._staging) as staged:
            (staged / "link").symlink_to(os.path.relpath(folder, link.parent))
            move_into_place(staged / "link", link)

    def _links(self) -> list[Path]:
        found = self._root.iterdir() if self._root.is_dir() else ()
        return [link for link in found if self._is_ours(link)]

    def _is_ours(self, link: Path) -> bool:
        return link.is_symlink() and link.resolve().parent == self._folder.resolve()

    def _files(self, manifest: Manifest, member: Member) -> dict[str, Path]:
        release = self._release(manifest)
        return {place: release / path for place, path in member.shown.items()}

    def _release(self, manifest: Manifest) -> Path:
        return self._releases / str(manifest.version)

    def _holds(self, folder: Path, files: Mapping[str, Path]) -> bool:
        return all(is_same(self._digester, folder / name, path) for name, path in files.items())


def require_named(model: str, members: Iterable[Member]) -> tuple[Member, ...]:
    """See that parts are named as those of an ensemble are: what is named otherwise might be anything, anywhere.

    Raises:
        RepositoryError: names the first that is not.
    """
    found = tuple(members)
    for member in found:
        if not names_of_parts(model).fullmatch(member.model):
            raise RepositoryError(
                f"{member.model!r} is no name of a part of {model}, such as {model}.tokens.0123abcd",
                remedy="compile the model again, or use another version",
            )
    return found


def bytecode_stops(files: Iterable[str]) -> list[str]:
    """Empty files to put beside those of a part, where Python would make the folder of its bytecode.

    Triton takes that folder for a change: it would load a part again that came with the rehearsal of its ensemble, that
    stays from one version to the next, or that another ensemble of an endpoint has by the same name.
    """
    return sorted({str(PurePosixPath(name).parent / "__pycache__") for name in files if name.endswith(".py")})


def is_part(place: Path) -> bool:
    """Whether what lies in a repository is a part of an ensemble of ours, and no model that people ask."""
    if not place.is_symlink():
        return False
    members = place.resolve().parent.parent
    return members.name == MEMBERS and members.parent.name.endswith(STORE_SUFFIX)


def names_of_parts(model: str) -> re.Pattern[str]:
    """What the names of an ensemble's parts look like: the model's, the part's, and eight digits of a digest."""
    return re.compile(rf"{re.escape(model)}\.[^./]+\.[0-9a-f]{{8}}")


def _next_number(made: Iterable[Path]) -> int:
    """A number above those of the folders that were made anew."""
    found = (folder.name.partition(_ANEW)[2] for folder in made)
    return max((int(number) for number in found if number.isdecimal()), default=0) + 1
