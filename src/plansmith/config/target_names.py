"""Target names for shell completion; light to import."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


CPU_SUFFIX = "-cpu"


def runtime_names() -> list[str]:
    """Return the names of the shipped target files, sorted."""
    names = [f.name for f in _folder().iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def target_names() -> list[str]:
    """Return all known targets, sorted; a runtime that is not CPU-only has two."""
    names = runtime_names()
    return sorted([*names, *(f"{name}{CPU_SUFFIX}" for name in names if not name.endswith(CPU_SUFFIX))])


def shipped_file(name: str) -> Traversable:
    """Return the file that describes the runtime of a known target."""
    runtime = name if name in runtime_names() else name.removesuffix(CPU_SUFFIX)
    return _folder() / f"{runtime}.yaml"


def _folder() -> Traversable:
    return files("plansmith") / "configs" / "targets"
