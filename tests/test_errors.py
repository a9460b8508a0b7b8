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


def test_drawn_tree_names_every_error() -> None:
    """The drawn tree names every error with its exit code."""
    drawn = re.findall(r"^[├└]── (\w+) +(\d+)  \S", errors.__doc__ or "", re.MULTILINE)
    assert [(kind.__name__, str(kind.exit_code)) for kind in KINDS] == drawn
    assert not [kind for kind in KINDS if kind.__subclasses__()]


def test_exit_codes_have_one_meaning() -> None:
    """Exit codes are those of the design, and none has two meanings."""
    codes = [kind.exit_code for kind in KINDS]
    assert sorted(codes) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert EXIT_INTERRUPTED == 130
    assert f"ends with {EXIT_INTERRUPTED}" in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", KINDS)
def test_error_survives_process_boundary(kind: type[PlansmithError]) -> None:
    """An error crosses a process boundary and stays what it was."""
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
def test_library_error_told_in_line(error: Exception, said: str) -> None:
    """An error of a library is told in one line though it says nothing."""
    assert first_line(error) == said


@pytest.mark.slow
def test_errors_say_what_to_type() -> None:
    """Every error says what to type next."""
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
def test_multiline_text_shortened_to_cause(text: str, line: str) -> None:
    """A text of several lines comes to one that holds the cause."""
    assert in_one_line(text) == line
