"""A folder is small enough to be read, and says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

from .support.source import PACKAGE, ROOT, source_files

MOST_MODULES = 15
MODULES = dict(source_files())
FOLDERS = sorted({path.parent for path in MODULES.values()} | {path.parent for path in (ROOT / "tests").rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_folder_holds_few_modules(folder: Path) -> None:
    modules = [path.name for path in folder.glob("*.py") if path.name not in {"__init__.py", "conftest.py"}]
    assert len(modules) <= MOST_MODULES


def test_shared_helpers_stand_in_support() -> None:
    """What tests of several areas share stands in support."""
    graph = grimp.build_graph("tests", cache_dir=None)
    imports = {
        (importer, target) for importer in graph.modules for target in graph.find_modules_directly_imported_by(importer)
    }
    assert not [(importer, target) for importer, target in imports if _area(target) not in {_area(importer), "support"}]


def _area(module: str) -> str:
    """The folder of tests that a module stands in."""
    return module.split(".")[1] if module.count(".") > 1 else ""


@pytest.mark.parametrize("module", MODULES)
def test_module_first_line_says_purpose(module: str) -> None:
    """A module says in its first line what it is for."""
    docstring = ast.get_docstring(ast.parse(MODULES[module].read_text())) or ""
    assert docstring.splitlines()[0].endswith((".", ":"))


def test_package_root_holds_seven_modules() -> None:
    """The package itself holds seven modules."""
    assert len(list(PACKAGE.glob("*.py"))) == 7
