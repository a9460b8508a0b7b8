"""Ensembles in a repository, and other models that call companion models in steps or a script.

Who asks a model, whom a script needs, and which parts nobody needs any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from plansmith.errors import RepositoryError
from plansmith.records.release import CONFIG_FILE, Manifest, Member
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
from plansmith.triton.config.ensemble import MEMBERS_PARAMETER
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.view import is_same, make_younger

STORE_SUFFIX = ".plansmith"
MARKER = "repository.json"

MEMBERS = "members"
_ANEW = "~"  # no name of a model has it


def repositories_in(folder: Path) -> list[Path]:
    """Return the repositories in a folder, such as those of several targets; sorted."""
    markers = folder.glob(f"*{STORE_SUFFIX}/{MARKER}")
    return sorted(folder / marker.parent.name.removesuffix(STORE_SUFFIX) for marker in markers)


def repository_around(folder: Path) -> Path | None:
    """Return the repository that contains a folder, in what Triton reads or among the releases next to it."""
    for around in (folder, *folder.parents):
        if (around / MARKER).is_file() and around.name.endswith(STORE_SUFFIX):
            return around.with_name(around.name.removesuffix(STORE_SUFFIX))
        if around.name and (around.with_name(f"{around.name}{STORE_SUFFIX}") / MARKER).is_file():
            return around
    return None


def require_alone(root: Path) -> None:
    """Require that a repository is not nested in another one and contains no others.

    Raises:
        RepositoryError: it does; says which.
    """
    inner = repositories_in(root)
    if inner:
        raise RepositoryError(
            f"{root} holds the repositories of several targets, which Triton would take for models",
            remedy=f"name one of them: {', '.join(map(str, inner))}",
        )
    outer = root.parent
    if outer.name and (outer.with_name(f"{outer.name}{STORE_SUFFIX}") / MARKER).is_file():
        raise RepositoryError(
            f"{root} would lie in the repository {outer}, where Triton takes every folder for a model",
            remedy="pass another --repository; of several targets, it is the folder that takes a repository for each",
        )


class ModelMembers:
    """Parts of one model's releases; writers hold the model's lock.

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
        """Require that what has the names of parts in Triton's folder, if present, are parts of this model.

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
        """Show the parts of a release to Triton; does nothing if they are shown already.

        Raises:
            RepositoryError: as `require_ours`.
        """
        members = manifest.package.members
        self.require_ours(members)
        for member in members:
            files = self._files(manifest, member)
            link = self._root / member.model
            if not (link.is_symlink() and self._holds(link.resolve(), files)):
                self._link(link, self._member_folder(member, files))

    def strays(self, manifest: Manifest, *, quick: bool = False) -> dict[str, Path]:
        """Return a release's parts to be shown to Triton that are missing or differ, by path in the release.

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
        """Return the folders of parts that none of some configurations names or no link points to, sorted.

        Args:
            configs: their texts.
        """
        texts = tuple(configs)
        links = self._links()
        needed = {link.resolve() for link in links if any(link.name in text for text in texts)}
        entries = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(folder for folder in entries if folder.resolve() not in needed)

    def tidy(self, configs: Iterable[str]) -> None:
        """Delete the `stale` folders."""
        for folder in self.stale(configs):
            self.remove(folder)

    def remove(self, folder: Path) -> None:
        """Delete a part: first its link for Triton, then move its folder away in one step, then delete its files."""
        links = [link for link in self._links() if link.resolve() == folder.resolve()]
        for link in links:
            link.unlink()
        if links:
            fsync_path(self._root)
        remove_folder(folder, self._staging)

    def _member_folder(self, member: Member, files: Mapping[str, Path]) -> Path:
        """The folder with all files of a member; a damaged one stays while a view shows it, and another is created."""
        make_folder(self._folder)
        existing = [entry for entry in self._folder.iterdir() if entry.name.partition(_ANEW)[0] == member.model]
        for folder in existing:  # a killed process may have left it finished but not shown
            if self._holds(folder, files):
                fsync_path(self._folder)
                return folder
        fresh = self._folder / (f"{member.model}{_ANEW}{_next_number(existing)}" if existing else member.model)
        with staging_folder(self._staging) as staged:
            for name, path in files.items():
                link_or_copy(path, staged / name)
            for name in bytecode_stops(files):
                (staged / name).touch()
            fsync_tree(staged)
            move_into_place(staged, fresh)
        make_younger(fresh, existing)
        return fresh

    def _link(self, link: Path, folder: Path) -> None:
        with staging_folder(self._staging) as staged:
            (staged / "link").symlink_to(os.path.relpath(folder, link.parent))
            move_into_place(staged / "link", link)

    def _links(self) -> list[Path]:
        entries = self._root.iterdir() if self._root.is_dir() else ()
        return [link for link in entries if self._is_ours(link)]

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
    """Require that parts have names of ensemble parts: other names might lead to any path.

    Raises:
        RepositoryError: names the first that is not.
    """
    result = tuple(members)
    for member in result:
        if not names_of_parts(model).fullmatch(member.model):
            raise RepositoryError(
                f"{member.model!r} is no name of a part of {model}, such as {model}.tokens.0123abcd",
                remedy="compile the model again, or use another version",
            )
    return result


def bytecode_stops(files: Iterable[str]) -> list[str]:
    """Return empty files to add to a part where Python would create its bytecode folder.

    Triton takes that folder for a change: it would load a part again that came with the rehearsal of its ensemble, that
    stays from one version to the next, or that another ensemble of an endpoint has by the same name.
    """
    return sorted({str(PurePosixPath(name).parent / "__pycache__") for name in files if name.endswith(".py")})


def is_part(place: Path) -> bool:
    """Whether a folder in a repository is a part of a plansmith ensemble, not a model for clients."""
    if not place.is_symlink():
        return False
    members = place.resolve().parent.parent
    return members.name == MEMBERS and members.parent.name.endswith(STORE_SUFFIX)


def names_of_parts(model: str) -> re.Pattern[str]:
    """Return the pattern of an ensemble's part names: the model, the part, and eight digits of a digest."""
    return re.compile(rf"{re.escape(model)}\.[^./]+\.[0-9a-f]{{8}}")


def _next_number(folders: Iterable[Path]) -> int:
    """A number above those of the recreated folders."""
    suffixes = (folder.name.partition(_ANEW)[2] for folder in folders)
    return max((int(number) for number in suffixes if number.isdecimal()), default=0) + 1


def read_config(folder: Path) -> Any:
    """Read the configuration in a model folder; None if missing or unreadable, which Triton will report."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config((folder / CONFIG_FILE).read_text())
    except (OSError, ValueError, ParseError):
        return None


def steps_of(config: Any) -> set[str]:
    """Return the models that an ensemble or script calls; none for other models or a configuration that is None."""
    if config is None:
        return set()
    return {*(step.model_name for step in config.ensemble_scheduling.step), *members_of_script(config)}


def members_of_script(config: Any) -> list[str]:
    """Return the models that a script calls, which must be loaded with it; none for other models or None."""
    if config is None or MEMBERS_PARAMETER not in config.parameters:
        return []
    names = config.parameters[MEMBERS_PARAMETER].string_value.split(",")
    return list(dict.fromkeys(filter(None, map(str.strip, names))))


def with_members(root: Path, models: Iterable[str]) -> list[str]:
    """Return models of a repository, each after those its script calls, as a server does not load these by itself.

    Args:
        root: the repository.
        models: some of its models, or `*` for all.
    """
    names: dict[str, None] = {}
    for model in models:
        names |= dict.fromkeys(_members_in(root / model) if model != "*" else ())
        names[model] = None
    return [*names]


def _members_in(folder: Path) -> list[str]:
    """The members that the script in a model's folder calls; empty where there is no script or it cannot be read."""
    try:
        has_script = MEMBERS_PARAMETER in (folder / CONFIG_FILE).read_text()
    except (OSError, ValueError):
        return []
    return members_of_script(read_config(folder)) if has_script else []


def askers_of(folder: Path) -> list[str]:
    """Return the ensembles and scripts in the repository that call a model."""
    folders = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ()
    return [sibling.name for sibling in folders if folder.name in steps_of(read_config(sibling))]


def parts_not_needed(folder: Path, serving: Collection[str]) -> list[str]:
    """Return the parts of a model that a server has loaded and nothing in the repository calls; sorted.

    Args:
        folder: the model's, which may be gone.
        serving: the models that the server has.
    """
    looks = names_of_parts(folder.name)
    candidates = [name for name in serving if looks.fullmatch(name) and _may_be_part(folder.parent / name)]
    return sorted(name for name in candidates if not askers_of(folder.parent / name))


def _may_be_part(place: Path) -> bool:
    """Whether a repository entry of this name, if any, is a plansmith member and not a user's own model."""
    return is_part(place) or not os.path.lexists(place)
