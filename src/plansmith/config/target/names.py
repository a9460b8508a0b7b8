"""The targets that plansmith has, by name; light, as shells ask for them while a person types."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CPU_SUFFIX = "-cpu"


def runtime_names() -> list[str]:
    """The names of the target files that plansmith has, sorted."""
    names = [f.name for f in _folder().iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def target_names() -> list[str]:
    """All targets that plansmith knows, sorted: a runtime that is not for the CPU alone has two of them."""
    names = runtime_names()
    return sorted([*names, *(f"{name}{CPU_SUFFIX}" for name in names if not name.endswith(CPU_SUFFIX))])


def shipped_file(name: str) -> Traversable:
    """The file that describes the runtime of a known target."""
    runtime = name if name in runtime_names() else name.removesuffix(CPU_SUFFIX)
    return _folder() / f"{runtime}.yaml"


def _folder() -> Traversable:
    return files("plansmith") / "configs" / "targets"
