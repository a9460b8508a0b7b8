"""Looking for sizes at which axes move that a model refuses at the wanted ones: by themselves, then two at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from plansmith.data.reference import Sizes
from plansmith.errors import first_line
from plansmith.records.model import AxisRange, TiedAxis
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ask = Callable[[Mapping[str, int]], Mapping[str, NDArray[np.generic]]]

_FEWEST_STEPS = 2
"""An axis with fewer sizes than this besides its usual one does not move."""


class AxisProbe:
    """Remembers what a model said when it refused."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[frozenset[tuple[str, int]], str | None] = {}
        self.said = ""

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model answers at a shape; `said` has its words where it does not.

        Raises:
            Exception: the machine is out of memory, which tells nothing about the model.
        """
        key = frozenset(sizes.items())
        if key not in self._known:
            self._known[key] = self._refusal(sizes)
        said = self._known[key]
        if said is not None:
            self.said = said
        return said is None

    def _refusal(self, sizes: Sizes) -> str | None:
        try:
            self._ask(sizes)
        except Exception as error:
            if tells_of_memory(f"{type(error).__name__}: {error}"):
                raise
            return first_line(error)
        return None


@dataclass
class Search:
    """Axes that move at some size, and those that do not.

    Args:
        model: is asked.
        able: the ranges that were thought of.
        traced: a shape that the model answers at.
        untraced: the size that each axis is to have besides; replaced where it is another one.
        pairs: the axes that may be tied.
        refused: the axes that are not known to move, with the model's words on each by itself.
        ranges: the sizes of each axis, as far as they were tried.
        tied: the axes that move only with another one.
    """

    model: AxisProbe
    able: Mapping[str, AxisRange]
    traced: Sizes
    untraced: dict[str, int]
    pairs: Sequence[tuple[str, str]]
    refused: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, AxisRange] = field(default_factory=dict)
    tied: list[TiedAxis] = field(default_factory=list)

    def run(self, together: Mapping[str, str]) -> None:
        """Try every axis by itself, then two of one size at once, at the wanted sizes and then at multiples.

        Pairs at the wanted size come before multiples: a size close to the usual one may be taken by chance of
        rounding.

        Args:
            together: the axes that are known not to move by themselves, with the model's words.
        """
        self.ranges = dict(self.able)
        self.refused = {axis: together.get(axis, "") for axis in self.able}
        for axes in self._unmoved(together):
            self._move(self._wanted, *axes)
        final = self._final_words()
        for axes in self._unmoved(together):
            if not final or self._words(axes, self.untraced[axes[0]]) not in final:
                self._move(self._multiple, *axes)

    def _unmoved(self, together: Collection[str]) -> Iterator[tuple[str, ...]]:
        """Axes by themselves, then pairs, as long as they are not known to move."""
        yield from [(axis,) for axis in self.refused if axis not in together]
        yield from (pair for pair in self.pairs if self.refused.keys() >= set(pair))

    def _final_words(self) -> set[str]:
        """What the model says of axes that have their usual size for good, whatever else moves.

        It names that size when two axes are far below and above it, in the words that it has for one of them.
        """
        found: set[str] = set()
        for pair in self._unmoved(self.refused):
            usual, r = self.traced[pair[0]], self.able[pair[0]]
            alone = {self._words((axis,), self.untraced[axis]) for axis in pair}
            both = {self._words(pair, size) for size in {self.untraced[pair[0]], r.min, r.max} - {usual}}
            if len(both) == 1 and both <= alone and re.search(rf"(?<!\d){usual}(?!\d)", self.model.said):
                found |= both
        return found

    def _words(self, axes: tuple[str, ...], size: int) -> str:
        """What the model says of axes at a size, but for that and the usual one; nothing where it takes them."""
        if self._takes(axes, size):
            return ""
        return re.sub(rf"(?<!\d)({size}|{self.traced[axes[0]]})(?!\d)", "a size", self.model.said)

    def _move(self, another: Callable[[tuple[str, ...]], tuple[int, AxisRange] | None], *axes: str) -> None:
        """Move axes at once, and see whether the model follows."""
        first, *others = axes
        moved = another(axes)
        if moved is None:
            self.refused[first] = self.refused[first] or self.model.said
            return
        self.untraced[first], self.ranges[first] = moved
        self.tied += [TiedAxis(axis=other, to=first, reason=self.refused[other]) for other in others]
        for axis in axes:
            del self.refused[axis]

    def _takes(self, axes: tuple[str, ...], size: int) -> bool:
        return self.model.takes({**self.traced, **dict.fromkeys(axes, size)})

    def _wanted(self, axes: tuple[str, ...]) -> tuple[int, AxisRange] | None:
        """The wanted size for axes of one size, and the sizes that they can have; None where the model refuses it."""
        size, r = self.untraced[axes[0]], self.able[axes[0]]
        return (size, r) if size == self.traced[axes[0]] or self._takes(axes, size) else None

    def _multiple(self, axes: tuple[str, ...]) -> tuple[int, AxisRange] | None:
        """Another size that the model takes for axes of one size, and those that they can have; None where it is none.

        Where nothing in the range is taken, something below it may be: strides and patches round.
        """
        usual, r = self.traced[axes[0]], self.able[axes[0]]
        # A size of the form usual - step: if only multiples are taken, then of a divisor of the usual size.
        steps = [n for n in range(2, usual // _FEWEST_STEPS + 1) if usual % n == 0]
        sizes = [(size, step) for step in steps for size in (usual - step, usual + step) if size <= r.max]
        for size, step in sorted(sizes, key=lambda one: one[0] < r.min):
            if self._takes(axes, size):
                return size, stepped(AxisRange(min=min(size, r.min), opt=r.opt, max=r.max), step)
        return None


def alike(traced: Sizes, able: Mapping[str, AxisRange]) -> Iterator[tuple[str, str]]:
    """Pairs of axes of one range that are traced at one size: the sides of images, which may have to be equal."""
    for axis, other in combinations(able, 2):
        if (traced[axis], able[axis]) == (traced[other], able[other]):
            yield axis, other


def stepped(given: AxisRange, step: int) -> AxisRange:
    """A range of multiples; as it was where it holds none."""
    low, high = -(-given.min // step) * step, given.max // step * step
    if step == 1 or low > high:
        return given
    return AxisRange(min=low, opt=min(max(round(given.opt / step) * step, low), high), max=high, step=step)
