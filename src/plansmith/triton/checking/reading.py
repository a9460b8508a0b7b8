"""What lies in a repository, as Triton would take it: models, configurations, versions, and what serves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plansmith.triton.checking.model_folder import ModelFolder


def read_models(root: Path) -> Mapping[str, ModelFolder]:
    """Every model of a repository, by name, in the order of the names.

    Args:
        root: the folder that Triton reads.
    """
    return {folder.name: read_model(folder) for folder in sorted(root.iterdir()) if folder.is_dir()}


def read_model(folder: Path) -> ModelFolder:
    """One model, of whatever its folder holds."""
    raise NotImplementedError
