"""Known causes: what a failure's text tells of it, in a few words, and where that is told in full."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plansmith.zoo.rows import Row


@dataclass(frozen=True)
class Cause:
    """A failure that is understood.

    Args:
        pattern: a regular expression that finds it in a row's problem and its exporters' attempts.
        words: what it is.
        reference: an upstream page, or a reproduction below tests/zoo.
    """

    pattern: str
    words: str
    reference: str


CAUSES = (
    Cause(
        r"'num_samples' of node 'multinomial'",
        "the number of samples that are drawn depends on the inputs' values",
        "tests/zoo/test_causes.py::sampled_by_torchscript",
    ),
)


def explained(row: Row) -> Row:
    """A row with its cause, where it is not right and the cause is known."""
    if row.outcome == "right":
        return row
    cause = cause_of("\n".join((row.problem, *row.attempts)))
    return row if cause is None else row.model_copy(update={"cause": cause.words, "reference": cause.reference})


def cause_of(text: str) -> Cause | None:
    """The first known cause that a failure's text tells of."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)
