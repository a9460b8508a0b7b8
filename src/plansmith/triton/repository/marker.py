"""What is recorded of a repository: the target that it is for, and the store that it mirrors, if it does."""

from __future__ import annotations

from pathlib import Path

from plansmith.config.target.targets import DEFAULT_TARGET
from plansmith.errors import RepositoryError, first_line
from plansmith.records.model import Record
from plansmith.system.files import fsync_tree, move_into_place, staging_folder
from plansmith.triton.repository.nesting import MARKER


class RepositoryMarker(Record):
    """Lies beside the releases of a repository.

    `mirrors`: the store that its releases were pulled from, as a person may read it; empty where models are compiled
    into it; `typed`: what that person types behind `--store` for it.
    """

    target: str
    mirrors: str = ""
    typed: str = ""


def read_marker(folder: Path) -> RepositoryMarker | None:
    """The marker in the folder beside a repository; None before the first release.

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
    """Write the marker of a repository, which appears whole."""
    with staging_folder(staging) as staged:
        (staged / MARKER).write_text(marker.model_dump_json(exclude_defaults=True))
        fsync_tree(staged)
        move_into_place(staged / MARKER, folder / MARKER)
