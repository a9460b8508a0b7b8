"""What ended a model of a fleet, as a small record."""

from __future__ import annotations

import traceback

from plansmith.errors import PlansmithError
from plansmith.history import Failure, exit_code_of

NEXT = "; next: "
"""Stands between what was wrong and what to do next."""


def failure_of(error: BaseException, step: str = "") -> Failure:
    """A failure in words, with what to do next.

    Args:
        error: of any kind.
        step: where it happened, where the error does not say.
    """
    match error:
        case PlansmithError():
            words, step = (
                f"{error.message}{NEXT}{error.remedy}" if error.remedy else error.message,
                error.step or step,
            )
        case OSError() if error.filename:
            words = f"{error.filename}: {error.strerror}"
        case KeyboardInterrupt():
            words = "it was interrupted; what was finished stays in the cache"
        case _:
            words = f"{type(error).__name__}: {error}{_place(error)}"
    return Failure(step=step, error=type(error).__name__, message=words, exit_code=exit_code_of(error))


def without_remedy(words: str) -> str:
    """What was wrong, of the words of a failure, for where the remedy is told beside."""
    return words.rpartition(NEXT)[0] or words


def _place(error: BaseException) -> str:
    """The line that raised what is not ours to word."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
