"""The progress of `plansmith capacity`."""

from __future__ import annotations

from collections.abc import Sequence

from plansmith.capacity.loader import Progress
from plansmith.capacity.results import LoadedCopy, MemoryPool
from plansmith.cli.capacity.table import copy_line
from plansmith.cli.compile.progress import WithMovingLine


class CapacityProgress(WithMovingLine):
    """A line for each copy, and one that moves below them; a context manager."""

    @property
    def callbacks(self) -> Progress:
        """What a measurement tells."""
        return Progress(activity=self._line.tell, copy=self._show_copy)

    def _show_copy(self, copy: LoadedCopy, pools: Sequence[MemoryPool]) -> None:
        if not self._quiet:
            self._console.print(copy_line(copy, pools), markup=False)
