"""Relative folders in the specs that flows work on: a run's working directory is its worker's, and means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.target.targets import is_target_file

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec

_FOLDERS = ("artifacts", "repository", "tritonserver")


def rooted(spec: ModelSpec, folder: Path) -> ModelSpec:
    """A spec whose own folders, and whose target's file, start from a folder in place of the working directory.

    Its source, data and stores start from that folder anyway.
    """
    named = {key: value for key in _FOLDERS if (value := getattr(spec, key))}
    if is_target_file(spec.target):
        named["target"] = spec.target
    return spec.model_copy(update={key: str(folder / value) for key, value in named.items()})
