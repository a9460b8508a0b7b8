"""The README and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from plansmith.cli import cli
from plansmith.validation.comparison import LIMITS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _table(first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with a cell."""
    lines = README.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def test_the_limits_of_the_readme_are_those_of_the_gate() -> None:
    expected = [
        [
            str(precision),
            *(f"{value:.10g}" for value in limits.tolerance.model_dump().values()),
            *(f"{share:.10g}" for share in (limits.scores, limits.classes, limits.neighbours)),
        ]
        for precision, limits in LIMITS.items()
    ]
    assert _table("precision, at most or at least") == expected


def test_every_command_stands_in_the_readme_and_nothing_that_is_none() -> None:
    named = {word for row in _table("command") for word in re.findall(r"plansmith ([a-z-]+)", row[0])}
    assert named == set(cli.commands)


def test_every_file_and_make_target_that_the_readme_names_is_there() -> None:
    root = Path(__file__).parents[1]
    files = set(re.findall(r"`((?:src|configs|compilers|benchmarks)/[\w./-]*)`", README))
    assert {"configs/models/", "compilers/precision/", "src/plansmith/validation/comparison.py"} <= files
    assert not [name for name in files if not (root / name).exists()]
    targets = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", README, re.MULTILINE)) <= targets
