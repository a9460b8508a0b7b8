"""Known causes: what a failure's text tells of it, in a few words, and where that is told in full."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from plansmith.errors import EnvironmentFault
from plansmith.fleet.zoo.records import ZooRow
from plansmith.system.memory import tells_of_memory


@dataclass(frozen=True)
class KnownCause:
    """A failure that is understood.

    Args:
        pattern: a regular expression that finds it in a row's problem and its exporters' attempts.
        words: what it is.
        reference: an upstream page, or a reproduction below tests/fleet/zoo.
    """

    pattern: str
    words: str
    reference: str


CAUSES = (
    KnownCause(
        r"'num_samples' of node 'multinomial'",
        "the number of samples that are drawn depends on the inputs' values",
        "tests/fleet/zoo/test_causes.py::sampled_by_torchscript",
    ),
)


def explained(row: ZooRow) -> ZooRow:
    """A row with its cause, where it is not right and the cause is known."""
    if row.outcome == "right":
        return row
    cause = cause_of("\n".join((row.problem, *row.attempts)))
    return row if cause is None else row.model_copy(update={"cause": cause.words, "reference": cause.reference})


def cause_of(text: str) -> KnownCause | None:
    """The first known cause that a failure's text tells of."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)


# Libraries wrap the number in errors of their own, and keep its words.
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def is_of_the_machine(error: BaseException) -> bool:
    """Whether an error, or one that it came of, is a lack of memory, of room on a disk, or of something installed."""
    return any(
        isinstance(one, EnvironmentFault) or tells_of_the_machine(f"{type(one).__name__}: {one}")
        for one in _reasons(error)
    )


def _reasons(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and all that it came of; some libraries raise errors from themselves."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def tells_of_the_machine(text: str) -> bool:
    """Whether a failure's text tells of no memory, or of a full disk."""
    return tells_of_memory(text) is not None or any(words in text for words in _FULL)
