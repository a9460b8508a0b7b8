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


def test_what_tests_of_several_areas_share_stands_in_support() -> None:
    graph = grimp.build_graph("tests", cache_dir=None)
    imports = {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}
    assert not [(one, other) for one, other in imports if _area(other) not in {_area(one), "support"}]


def _area(module: str) -> str:
    """The folder of tests that a module stands in."""
    return module.split(".")[1] if module.count(".") > 1 else ""


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_in_its_first_line_what_it_is_for(module: str) -> None:
    words = ast.get_docstring(ast.parse(MODULES[module].read_text())) or ""
    assert words.splitlines()[0].endswith((".", ":"))


def test_the_package_itself_holds_six_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) == 6
