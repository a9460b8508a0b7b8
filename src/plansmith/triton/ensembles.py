"""What lies in a repository around an ensemble: who has a model for a step, and which parts nobody needs any more."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from plansmith.manifest import CONFIG_FILE
from plansmith.triton.members import is_part, names_of_parts
from plansmith.triton.model_config import parse_config


def read_config(folder: Path) -> Any:
    """The configuration in a model's folder; None where there is none, or none that can be read: Triton will tell."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config((folder / CONFIG_FILE).read_text())
    except (OSError, ValueError, ParseError):
        return None


def steps_of(config: Any) -> set[str]:
    """The models that an ensemble asks; none of another model, or of a configuration that cannot be read."""
    return {step.model_name for step in config.ensemble_scheduling.step} if config is not None else set()


def ensembles_of(folder: Path) -> list[str]:
    """The ensembles beside a model that have it for a member."""
    found = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ()
    return [other.name for other in found if folder.name in steps_of(read_config(other))]


def parts_not_needed(folder: Path, serving: Collection[str]) -> list[str]:
    """The parts of an ensemble that a server has and that no ensemble beside it asks; sorted.

    Args:
        folder: the ensemble's, which may be gone.
        serving: the models that the server has.
    """
    looks = names_of_parts(folder.name)
    candidates = [name for name in serving if looks.fullmatch(name) and _may_be_part(folder.parent / name)]
    return sorted(name for name in candidates if not ensembles_of(folder.parent / name))


def _may_be_part(place: Path) -> bool:
    """Whether what lies in the repository under a name, if anything, is a part of ours and nobody's own model."""
    return is_part(place) or not os.path.lexists(place)
