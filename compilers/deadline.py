"""A limit to the processor time of something that might never end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(Exception):
    """The limit was reached."""


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise `OutOfTime` in the code inside once it has used so much of the processor.

    Python looks at signals between two of its own steps and in the main thread alone: there is no limit in another
    thread, nor inside of one long call of a library.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime(f"gave up after {limit:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
