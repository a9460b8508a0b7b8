"""The tree of errors that a reader sees is the tree that is raised."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from plansmith import errors
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError, error_from_dict, first_line, in_one_line

PACKAGE = Path(errors.__file__).parent
KINDS = PlansmithError.__subclasses__()


def test_the_drawn_tree_names_every_error_with_its_exit_code() -> None:
    drawn = re.findall(r"^[├└]── (\w+) +(\d+)  \S", errors.__doc__ or "", re.MULTILINE)
    assert [(kind.__name__, str(kind.exit_code)) for kind in KINDS] == drawn
    assert not [kind for kind in KINDS if kind.__subclasses__()]


def test_exit_codes_are_those_of_the_design_and_none_has_two_meanings() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert sorted(codes) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert EXIT_INTERRUPTED == 130
    assert f"ends with {EXIT_INTERRUPTED}" in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_a_process_and_stays_what_it_was(kind: type[PlansmithError]) -> None:
    raised = kind("it broke", remedy="mend it", transient=True).located(model="m", step="export")
    again = error_from_dict(raised.to_dict())
    assert (type(again), str(again)) == (kind, "m · export: it broke\nNext: mend it")
    assert again.transient


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("\n  no such file \nread the log"), "no such file"),
        (RuntimeError(""), "RuntimeError"),
        (OSError("\n \n"), "OSError"),
    ],
    ids=["lines", "nothing", "white space"],
)
def test_an_error_of_a_library_is_told_in_one_line_though_it_says_nothing(error: Exception, said: str) -> None:
    assert first_line(error) == said


@pytest.mark.slow
def test_every_error_says_what_to_type_next() -> None:
    names = {kind.__name__ for kind in KINDS}
    silent = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names
        if not {"remedy", None} & {word.arg for word in call.keywords}
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("it broke\nin many lines", "it broke"),
        ("no exporter:\n  first: a\n\n  last: b\n", "no exporter: last: b"),
        ("too far:\n  first\n  second\n  … and 3 more", "too far: first … and 3 more"),
        ("the worker ended:\n", "the worker ended"),
        ("\n", ""),
    ],
)
def test_a_text_of_several_lines_comes_to_one_that_holds_the_cause(text: str, line: str) -> None:
    assert in_one_line(text) == line
