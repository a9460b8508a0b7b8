"""Failures of the machine: of another run something else would come, so that nothing is learnt of the model."""

from __future__ import annotations

import errno
import os

from plansmith.errors import EnvironmentFault
from plansmith.memory import tells_of_memory

# Libraries wrap the number in errors of their own, and keep its words.
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def is_of_the_machine(error: BaseException) -> bool:
    """Whether an error, or one that it came of, is a lack of memory, of room on a disk, or of something installed."""
    reason = error.__cause__ or error.__context__
    return (
        isinstance(error, EnvironmentFault)
        or tells_of_the_machine(f"{type(error).__name__}: {error}")
        or (reason is not None and is_of_the_machine(reason))
    )


def tells_of_the_machine(text: str) -> bool:
    """Whether a failure's text tells of no memory, or of a full disk."""
    return tells_of_memory(text) is not None or any(words in text for words in _FULL)
