"""Which axes of its inputs PyTorch's model takes at other sizes: found by asking it, whatever the plan of inputs names.

An axis is a group of dims that move together: those which share a name in the plan, or, where the model refuses that,
one of two names of the same size and range; those without a name each by itself, or, where the model refuses that,
all of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from plansmith.fleet.zoo.compare import difference
from plansmith.fleet.zoo.known_causes import is_of_the_machine
from plansmith.records.model import BATCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.model import AxisRange
    from plansmith.sources.loaded_model import InputPlan

Arrays = dict[str, "NDArray[np.generic]"]
Ask = Callable[[Arrays], Arrays]

_BASE_BATCH = 2
_BASE_LENGTH = 20
_BATCHES = (1, 3, 5)
_LARGEST_TRIED = 512
_FEWEST = 2
"""A size of 1 is broadcast, and says nothing of an axis that nobody named."""
_FEWEST_SIZES = 2
"""Strides and patches round, so that now and then a single other size fits by chance."""


@dataclass(frozen=True)
class AxisPlace:
    """One dim of one input."""

    tensor: str
    dim: int

    def __str__(self) -> str:
        return f"{self.tensor}:{self.dim}"


@dataclass(frozen=True)
class Shape:
    """Inputs at one shape, and PyTorch's answer; the sizes of the plan's axes, where the plan alone made the inputs."""

    name: str
    feed: Arrays
    answer: Arrays
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """A group of dims that PyTorch takes at other sizes together.

    `names`: the plan's for them: none, one, or two that move only together; `shapes`: one for each of the sizes that it
    took.
    """

    name: str
    names: tuple[str, ...]
    places: tuple[AxisPlace, ...]
    base: int
    shapes: dict[int, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Acceptance:
    """What PyTorch takes: the base shape, the axes that move, and shapes at which several moved at once."""

    base: Shape
    axes: tuple[Axis, ...]
    together: tuple[Shape, ...]

    @property
    def shapes(self) -> list[Shape]:
        """All that it was asked at."""
        return [self.base, *(shape for axis in self.axes for shape in axis.shapes.values()), *self.together]


def base_sizes(plan: InputPlan) -> Iterator[dict[str, int]]:
    """Sizes at which each axis of a plan is moved in turn: neither smallest nor largest, else the usual ones."""
    usual = {axis: r.opt for axis, r in plan.axes.items()}
    middle = {
        axis: _BASE_LENGTH if r.min < _BASE_LENGTH else (2 * r.min if not plan.guessed else r.opt)
        for axis, r in plan.axes.items()
    }
    for sizes in (middle, usual):
        yield {
            axis: min(max(_BASE_BATCH if axis == BATCH else sizes[axis], r.min), r.max) for axis, r in plan.axes.items()
        }
    yield usual


def find_axes(plan: InputPlan, ask: Ask, *, only_batch: bool = False) -> Acceptance:
    """Ask the model at other sizes of every dim.

    Args:
        plan: how its inputs are made.
        ask: runs the model; raises anything where it does not take the inputs.
        only_batch: leave all other axes alone.
    """
    search = _Search(plan, ask)
    axes = [axis for axis in search.named() if axis.name == BATCH or not only_batch]
    if not only_batch:
        axes = [*search.tied(axes), *search.unnamed()]
    elif not axes:
        axes = [axis for axis in search.unnamed_batch() if axis.shapes]
    axes = [axis for axis in axes if axis.shapes]
    return Acceptance(search.base, tuple(axes), tuple(search.together(axes)))


class _Search:
    def __init__(self, plan: InputPlan, ask: Ask) -> None:
        self._plan, self._ask = plan, ask
        self._sizes, self.base = self._first()

    def _first(self) -> tuple[dict[str, int], Shape]:
        """Sizes that the model takes, and its answer there.

        Raises:
            Exception: whatever the model raises at the last of them; it takes none.
        """
        *others, last = base_sizes(self._plan)
        for sizes in others:
            with suppress(Exception):
                return sizes, self._asked("base", sizes)
        return last, self._asked("base", last)

    def _asked(self, name: str, sizes: Mapping[str, int]) -> Shape:
        feed = self._plan.make(sizes)
        return Shape(name, feed, self._ask(feed), sizes)

    def named(self) -> list[Axis]:
        """An axis for every name of the plan, with the sizes that the model took."""
        return [self._of_names((name,)) for name in self._sizes]

    def tied(self, axes: list[Axis]) -> list[Axis]:
        """The same, but that two which the model refuses are one where it takes them together."""
        refused = [axis for axis in axes if axis.name != BATCH and len(axis.shapes) < _FEWEST_SIZES]
        for one, other in combinations(refused, 2):
            if one in axes and other in axes and self._sized(one) == self._sized(other):
                both = self._of_names((*one.names, *other.names))
                if len(both.shapes) >= _FEWEST_SIZES:
                    axes = [both if axis is one else axis for axis in axes if axis is not other]
        return axes

    def _sized(self, axis: Axis) -> tuple[int, AxisRange]:
        return axis.base, self._plan.axes[axis.name]

    def _of_names(self, names: tuple[str, ...]) -> Axis:
        """The axis of dims that the plan calls so, with the sizes that the model took."""
        base, r = self._sizes[names[0]], self._plan.axes[names[0]]
        places = tuple(AxisPlace(t.name, i) for t in self._plan.tensors for i, d in enumerate(t.dims) if d in names)
        axis = Axis("+".join(names), names, places, base)
        lowest = r.min if r.min < base else 1
        largest = r.max if r.min < r.max else 0  # the range that it is compiled for; one size is none
        for size in _BATCHES if names == (BATCH,) else _other_sizes(base, lowest, largest):
            sizes = self._sizes | dict.fromkeys(names, size)
            shape = self._try(f"{axis.name} {size}", partial(self._plan.make, sizes), sizes)
            if shape is not None:
                axis.shapes[size] = shape
        return axis

    def unnamed_batch(self) -> list[Axis]:
        """The first dims of all inputs, where the plan does not name them."""
        places = tuple(AxisPlace(t.name, 0) for t in self._plan.tensors)
        return [self._moved(BATCH, places)]

    def unnamed(self) -> list[Axis]:
        """Axes of the dims that the plan fixes: each alone, else with all of its size."""
        fixed = [
            AxisPlace(t.name, i)
            for t in self._plan.tensors
            for i, d in enumerate(t.dims)
            if isinstance(d, int) and self.base.feed[t.name].shape[i] >= _FEWEST
        ]
        found = [self._moved(str(place), (place,)) for place in fixed]
        alone = {place for axis in found if len(axis.shapes) >= _FEWEST_SIZES for place in axis.places}
        by_size: dict[int, list[AxisPlace]] = {}
        for place in fixed:
            if place not in alone:
                by_size.setdefault(self._size(place), []).append(place)
        several = (tuple(places) for places in by_size.values() if len(places) > 1)
        found += [self._moved("+".join(map(str, places)), places) for places in several]
        return [axis for axis in found if len(axis.shapes) >= _FEWEST_SIZES]

    def together(self, axes: list[Axis]) -> list[Shape]:
        """All named axes moved at once: to their smallest sizes, and to others."""
        named = [axis for axis in axes if axis.names]
        shapes = []
        for name, choose in (("smallest", min), ("largest", max)):
            sizes = self._sizes | {name: choose(axis.shapes) for axis in named for name in axis.names}
            if sizes != self._sizes and len(named) > 1:
                shapes.append(self._try(name, partial(self._plan.make, sizes), sizes))
        return [shape for shape in shapes if shape is not None]

    def _size(self, place: AxisPlace) -> int:
        return int(self.base.feed[place.tensor].shape[place.dim])

    def _moved(self, name: str, places: tuple[AxisPlace, ...]) -> Axis:
        axis = Axis(name, (), places, self._size(places[0]))
        for size in _other_sizes(axis.base, max(_FEWEST, axis.base // 2)):
            shape = self._try(f"{name} {size}", partial(resized, self.base.feed, places, size))
            if shape is not None:
                axis.shapes[size] = shape
        return axis

    def _try(self, name: str, make: Callable[[], Arrays], sizes: Mapping[str, int] | None = None) -> Shape | None:
        """Inputs and answer, None where the model does not take them."""
        import numpy as np

        try:
            feed = make()
            answer = self._ask(feed)
        except Exception as error:
            if is_of_the_machine(error):
                raise
            return None  # what a model raises is not known; that it does is the answer
        if all(feed[key].shape == array.shape for key, array in self.base.feed.items()):
            return None  # the plan makes nothing else of this size
        if any(np.isnan(array).any() for array in answer.values() if array.dtype.kind == "f"):
            return None
        return Shape(name, feed, answer, sizes or {})


def resized(feed: Mapping[str, NDArray[np.generic]], places: tuple[AxisPlace, ...], size: int) -> Arrays:
    """Inputs with some dims cut, or gone on with from their beginning."""
    import numpy as np

    changed = dict(feed)
    for place in places:
        changed[place.tensor] = np.take(changed[place.tensor], np.arange(size), axis=place.dim, mode="wrap")
    return changed


def is_stable(ask: Ask, shape: Shape) -> bool:
    """Whether the model still answers as it did at a shape."""
    return difference(shape.answer, ask(shape.feed)) is None


def _other_sizes(base: int, lowest: int, largest: int = 0) -> list[int]:
    """Sizes below and above: the smallest, half, odd ones, one and a half times, double, and the largest.

    Args:
        base: the size itself.
        lowest: none is below it.
        largest: none is above it where there is one; tried itself where it is not too much.
    """
    wanted = [lowest, base // 2, base - max(1, base // 5), base + 7, base + base // 2, 2 * base]
    if largest:
        wanted = [size for size in wanted if size <= largest]
        wanted += [largest] if largest <= _LARGEST_TRIED else []
    return sorted({size for size in wanted if size >= lowest and size != base})
