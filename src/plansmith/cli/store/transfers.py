"""Transfer progress between this machine and a store, as a moving line in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from plansmith.cli.compile.progress import MovingLine

if TYPE_CHECKING:
    from plansmith.stores.backend.object_store import Moved


@contextmanager
def transfer_line(action: str, *, quiet: bool = False) -> Iterator[Moved]:
    """Show the number of transferred bytes in a moving line during the block.

    Args:
        action: what is done, such as "fetched".
        quiet: draw nothing.
    """
    from plansmith.formatting import format_bytes

    total, lock = 0, Lock()
    with MovingLine(quiet=quiet) as line:

        def moved(count: int) -> None:
            nonlocal total
            with lock:
                total += count
                line.tell(f"{format_bytes(total)} {action}")

        yield moved
