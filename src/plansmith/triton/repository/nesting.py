"""Repositories inside of one another: Triton takes every folder in a repository for a model."""

from __future__ import annotations

from pathlib import Path

from plansmith.errors import RepositoryError

STORE_SUFFIX = ".plansmith"
MARKER = "repository.json"


def repositories_in(folder: Path) -> list[Path]:
    """The repositories that lie in a folder, such as those of several targets; sorted."""
    found = folder.glob(f"*{STORE_SUFFIX}/{MARKER}")
    return sorted(folder / marker.parent.name.removesuffix(STORE_SUFFIX) for marker in found)


def repository_around(folder: Path) -> Path | None:
    """The repository that a folder is, or lies in: in what Triton reads, or among the releases beside it."""
    for around in (folder, *folder.parents):
        if (around / MARKER).is_file() and around.name.endswith(STORE_SUFFIX):
            return around.with_name(around.name.removesuffix(STORE_SUFFIX))
        if around.name and (around.with_name(f"{around.name}{STORE_SUFFIX}") / MARKER).is_file():
            return around
    return None


def require_alone(root: Path) -> None:
    """See that a repository neither lies in another one nor holds others.

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
