"""What fails while a store is followed, as an error of ours, and as the line that is said of it."""

from __future__ import annotations

import os

from plansmith.errors import EnvironmentFault, PlansmithError, in_one_line


def fault_of(error: PlansmithError | OSError) -> PlansmithError:
    """What failed: a disk, or a store that is mounted, may fail at any time, and be there again a minute later."""
    if isinstance(error, PlansmithError):
        return error
    why = os.strerror(error.errno) if error.errno else str(error)
    return EnvironmentFault(
        f"{error.filename or 'the file system'}: {why}",
        remedy="see that its file system is mounted, can be written to, and has space",
    )


def in_words(error: PlansmithError) -> str:
    """What failed, and what to type next."""
    remedy = in_one_line(error.remedy)
    return f"{in_one_line(error.message)} ({remedy})" if remedy else in_one_line(error.message)
