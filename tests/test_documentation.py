"""The documentation and the code say the same, and every page is found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from plansmith.cli import cli
from plansmith.errors import PlansmithError
from plansmith.validation.comparison import LIMITS

from .support.documentation import (
    PAGES,
    ROOT,
    code_blocks,
    read_everything,
    read_page,
    read_readme,
    section,
    without_code,
)

README_LINES = 120
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(PAGES.rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _table(text: str, first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with a cell."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    return rows


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_readme_is_a_front_door() -> None:
    """The README has at most 120 lines; all else is a page."""
    assert len(read_readme().splitlines()) <= README_LINES


def test_pages_are_in_navigation() -> None:
    """Whatever lies in docs/ is found from the site's navigation, once, and from the README."""
    entries: list[str] = []
    for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]:
        entries += [entry] if isinstance(entry, str) else [page for group in entry.values() for page in group]
    pages = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md"))
    assert sorted(entries) == pages
    linked = re.findall(r"\(docs/([\w/-]+\.md)\)", read_readme())
    assert {*linked, "index.md"} == set(pages)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    """A link names a file that is there, and a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.is_file(), target
        assert not anchor or anchor in _anchors(linked), target


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
    assert _table(read_page("precision"), "precision, at most or at least") == expected


def test_every_command_is_documented() -> None:
    """The reference lists every command, and nothing that is none; no page names another."""
    rows = _table(read_page("reference"), "command")
    listed = {word for row in rows for word in re.findall(r"plansmith ([a-z-]+)", row[0])}
    assert listed == set(cli.commands)
    text = read_everything()
    typed = re.findall(r"(?:`|\$ )plansmith ([a-z][a-z-]+)", text)
    typed += re.findall(r"^plansmith ([a-z-]+)", "".join(code_blocks(text, "")), re.MULTILINE)
    assert set(typed) <= listed


def test_exit_codes_match_errors() -> None:
    """Exit codes are those of the errors."""
    listed = {int(row[0]) for row in _table(read_page("reference"), "code")}
    codes = {PlansmithError.exit_code, *(error.exit_code for error in PlansmithError.__subclasses__())}
    assert listed == {0, 130, *codes}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_named_files_and_targets_exist(path: Path) -> None:
    """Named files and make targets exist."""
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"`((?:src|configs|compilers|flows|benchmarks|docker|docs|tests)/[\w./-]*)`", text)
    assert not [name for name in files if not (ROOT / name).exists()]
    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE)) <= TARGETS


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
    rows = _table(section(read_page("architecture"), "The packages and their ranks"), "rank")
    assert [(int(row[0]), set(re.findall(r"`(\w+)`", row[1]))) for row in reversed(rows)] == list(
        enumerate(units, start=1)
    )
    (picture,) = code_blocks(section((ROOT / "CONTRIBUTING.md").read_text(), "The ranks"), "")
    packages = [set(line[:31].split()) for line in picture.splitlines() if "│" not in line]
    assert packages[::-1] == units
