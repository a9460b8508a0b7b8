"""What MLflow 3.17 itself wrote of models of its flavours: the MLmodel file, and names and sizes of all files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.sources.mlflow.model_version import read_model_file
from plansmith.sources.remote_files import RemoteFile

FOLDER = Path(__file__).with_name("written")


def flavours_of(name: str) -> dict[str, Any]:
    """The flavours of a model, by name."""
    return read_model_file((FOLDER / name / "MLmodel").read_bytes(), name)


def files_of(name: str) -> tuple[RemoteFile, ...]:
    """Its files."""
    lines = (FOLDER / name / "files.txt").read_text().splitlines()
    return tuple(RemoteFile(path, int(size)) for path, _, size in (line.rpartition(" ") for line in lines))
