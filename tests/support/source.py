"""The source of plansmith, read without running it: its modules, and what they import."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "plansmith"


def source_files() -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module; without the stand-ins, which Triton runs and not plansmith."""
    for folder, folders, names in os.walk(PACKAGE, followlinks=True):
        folders[:] = sorted(set(folders) - {"standin", "__pycache__"})
        for path in sorted(Path(folder, name) for name in names if name.endswith(".py")):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def heavy_libraries() -> set[str]:
    """The libraries that no module may import before it needs them, by ruff's configuration."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
    return set(options["banned-module-level-imports"])


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("plansmith", exclude_type_checking_imports=True, cache_dir=None)


def reached_files(*modules: str) -> set[Path]:
    """The files of modules and of all that they import, at once or later, but for types alone."""
    files = dict(source_files())
    names = {*modules, *(name for module in modules for name in _graph().find_upstream_modules(module))}
    return {files[module] for module in names & files.keys()}
