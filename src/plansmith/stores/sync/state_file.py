"""Small records on this machine's disk that save work or say what happened; one that is lost costs only that."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from plansmith.records.model import Record
from plansmith.system.files import fsync_path, make_folder, move_into_place, staging_folder

R = TypeVar("R", bound=Record)


def read_note(path: Path, kind: type[R]) -> R | None:
    """What was noted; None where nothing was, or where it cannot be read any more."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def write_note(path: Path, record: Record, staging: Path) -> None:
    """Note something; it appears whole, in the place of what was noted before."""
    make_folder(path.parent)
    with staging_folder(staging) as staged:
        (staged / path.name).write_text(record.model_dump_json(indent=1), encoding="utf-8")
        fsync_path(staged / path.name)
        move_into_place(staged / path.name, path)
