"""The documentation and the code say the same, and every page is found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from plansmith.cli import cli
from plansmith.errors import PlansmithError
from plansmith.validation.comparison import LIMITS

from .support.documentation import (
    DOCUMENTS,
    PAGES,
    ROOT,
    code_blocks,
    read_page,
    read_readme,
    section,
    table,
    without_code,
)
from .support.pictures.scenes import SCENES
from .support.reference.pages import generated_files, navigation
from .support.source import source_files

README_LINES = 120
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_readme_is_a_front_door() -> None:
    """The README has at most 120 lines; all else is a page."""
    assert len(read_readme().splitlines()) <= README_LINES


def test_pages_are_in_navigation() -> None:
    """Whatever lies in docs/ is found from the site's navigation, once, and from the README."""
    pages = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md"))
    assert sorted(navigation()) == pages
    linked = re.findall(r"\(docs/([\w/-]+\.md)\)", read_readme())
    assert {*linked, "index.md"} == {page for page in pages if not page.startswith("reference/")}


def test_reference_is_generated() -> None:
    """The reference and llms.txt are what the code says: `make docs-reference` writes them."""
    paths = [*(PAGES / "reference").rglob("*.md"), PAGES / "llms.txt"]
    assert {path.relative_to(PAGES).as_posix(): path.read_text(encoding="utf-8") for path in paths} == generated_files()


@pytest.mark.parametrize("path", [*DOCUMENTS, *sorted((PAGES / "reference").rglob("*.md"))], ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    """A link names a file that is there, and a heading in it."""
    for target in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.is_file(), target
        assert not anchor or anchor in _anchors(linked), target


def test_pictures_are_made_and_shown() -> None:
    """Each picture is shown by a page, and is one that `make docs-pictures` or the benchmark of growth makes."""
    images = PAGES / "images"
    shown = {
        (path.parent / target).resolve()
        for path in DOCUMENTS
        for alt, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", without_code(path.read_text(encoding="utf-8")))
        if alt
    }
    assert {path.resolve() for path in images.iterdir()} == shown
    assert {path.name for path in shown} == {"growth.svg", *(name for scene in SCENES for name in scene.pictures)}


def test_limits_match_gate() -> None:
    """Limits are those of the gate."""
    expected = [
        [
            str(precision),
            *(f"{value:.10g}" for value in limits.tolerance.model_dump().values()),
            *(f"{share:.10g}" for share in (limits.scores, limits.classes, limits.neighbours)),
        ]
        for precision, limits in LIMITS.items()
    ]
    assert table(read_page("precision"), "precision, at most or at least") == expected


def test_every_command_is_documented() -> None:
    """The reference lists every command."""
    rows = table(read_page("reference"), "command")
    listed = {word for row in rows for word in re.findall(r"plansmith ([a-z-]+)", row[0])}
    assert listed == set(cli.commands)


def test_environment_variables_documented() -> None:
    """The reference lists the environment variables that the code reads; some are for plansmith's own children."""
    own = ("PLANSMITH_FLOWS_SERVED_BY", "PLANSMITH_FORK_SERVER", "PLANSMITH_ISOLATION", "PLANSMITH_SERVER_ID")
    internal = set(own)
    read = {name for _, path in source_files() for name in re.findall(r'"(PLANSMITH_[A-Z_]+)"', path.read_text())}
    assert {row[0].strip("`") for row in table(read_page("reference"), "variable")} == read - internal


def test_exit_codes_match_errors() -> None:
    """Exit codes are those of the errors."""
    listed = {int(row[0]) for row in table(read_page("reference"), "code")}
    codes = {PlansmithError.exit_code, *(error.exit_code for error in PlansmithError.__subclasses__())}
    assert listed == {0, 130, *codes}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_named_files_and_targets_exist(path: Path) -> None:
    """Named files and make targets exist."""
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"`((?:src|configs|compilers|flows|benchmarks|docker|docs|tests)/[\w./-]*)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE)) <= TARGETS


def test_makefile_runs_tests_that_exist() -> None:
    """Each test that a target of the Makefile runs by name is there."""
    named = set(re.findall(r"tests/[\w/.]+", (ROOT / "Makefile").read_text()))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_extension_guide_names_exist() -> None:
    """Each name that the guide places in a file is defined there."""
    names = re.findall(r"`(\w+)`\s+in\s+`([\w/]+\.py)`", read_page("extending"))
    assert len(names) > 20
    for name, file in names:
        pattern = rf"^\s*(?:class|def) {name}\b|^{name}\b.* = "
        assert re.search(pattern, (ROOT / file).read_text(), re.MULTILINE), f"{name} in {file}"


def test_ranks_match_import_rules() -> None:
    """Both pictures of the ranks name the packages as the rule about imports orders them."""
    contracts = tomllib.loads((ROOT / "import_rules.toml").read_text())["tool"]["importlinter"]["contracts"]
    (ranks,) = [contract["layers"] for contract in contracts if contract["id"] == "ranks"]
    units = [set(rank.split(" | ")) for rank in reversed(ranks) if rank != "__main__"]
    rows = table(section(read_page("architecture"), "The packages and their ranks"), "rank")
    assert [(int(row[0]), set(re.findall(r"`(\w+)`", row[1]))) for row in reversed(rows)] == list(
        enumerate(units, start=1)
    )
    (picture,) = code_blocks(section((ROOT / "CONTRIBUTING.md").read_text(), "The ranks"), "text")
    packages = [set(line[:31].split()) for line in picture.splitlines() if "│" not in line]
    assert packages[::-1] == units
