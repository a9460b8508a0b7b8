"""Failures of the machine: of another run something else would come, so that nothing is learnt of the model."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from plansmith.errors import EnvironmentFault
from plansmith.memory import tells_of_memory

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
