"""What lies in a repository around a model that asks others, as its steps or by its script.

Who asks a model, whom a script needs, and which parts nobody needs any more.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from plansmith.records.release import CONFIG_FILE
from plansmith.triton.config.members import MEMBERS_PARAMETER
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.repository.ensemble_members import is_part, names_of_parts


def read_config(folder: Path) -> Any:
    """The configuration in a model's folder; None where there is none, or none that can be read: Triton will tell."""
    from google.protobuf.text_format import ParseError

    try:
        return parse_config((folder / CONFIG_FILE).read_text())
    except (OSError, ValueError, ParseError):
        return None


def steps_of(config: Any) -> set[str]:
    """The models that an ensemble or a script asks; none of another model, or of a configuration that is None."""
    if config is None:
        return set()
    return {*(step.model_name for step in config.ensemble_scheduling.step), *members_of_script(config)}


def members_of_script(config: Any) -> list[str]:
    """The models that a script asks, which have to be loaded with it; none of another model, or of None."""
    if config is None or MEMBERS_PARAMETER not in config.parameters:
        return []
    names = config.parameters[MEMBERS_PARAMETER].string_value.split(",")
    return list(dict.fromkeys(filter(None, map(str.strip, names))))


def with_members(root: Path, models: Iterable[str]) -> list[str]:
    """Models of a repository, each behind those that its script asks; a server loads no other ones by itself.

    Args:
        root: the repository.
        models: some of its models, or `*` for all.
    """
    found: dict[str, None] = {}
    for model in models:
        found |= dict.fromkeys(_members_in(root / model) if model != "*" else ())
        found[model] = None
    return [*found]


def _members_in(folder: Path) -> list[str]:
    """What the script in a model's folder asks; few models have one, and what reads configurations may be missing."""
    try:
        has_script = MEMBERS_PARAMETER in (folder / CONFIG_FILE).read_text()
    except (OSError, ValueError):
        return []
    return members_of_script(read_config(folder)) if has_script else []


def askers_of(folder: Path) -> list[str]:
    """The ensembles and scripts beside a model that ask it."""
    found = sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ()
    return [other.name for other in found if folder.name in steps_of(read_config(other))]


def parts_not_needed(folder: Path, serving: Collection[str]) -> list[str]:
    """The parts of a model that a server has and that nothing in the repository asks; sorted.

    Args:
        folder: the model's, which may be gone.
        serving: the models that the server has.
    """
    looks = names_of_parts(folder.name)
    candidates = [name for name in serving if looks.fullmatch(name) and _may_be_part(folder.parent / name)]
    return sorted(name for name in candidates if not askers_of(folder.parent / name))


def _may_be_part(place: Path) -> bool:
    """Whether what lies in the repository under a name, if anything, is a part of ours and nobody's own model."""
    return is_part(place) or not os.path.lexists(place)
