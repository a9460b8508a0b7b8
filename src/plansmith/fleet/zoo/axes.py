"""Dynamic axes that a PyTorch model accepts, found by running it, whatever the input plan declares.

An axis is a group of dims that move together: those which share a name in the plan, or, where the model refuses that,
one of two names of the same size and range; those without a name each by itself, or, where the model refuses that,
all of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.onnxrt import open_session
from plansmith.errors import first_line
from plansmith.fleet.zoo.records import is_of_the_machine
from plansmith.records.model import BATCH
from plansmith.validation.comparison import cosine_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays
    from plansmith.records.model import AxisRange
    from plansmith.sources.loaded_model import InputPlan


SMALLEST_COSINE = 0.9999
LARGEST_ERROR = 1e-3
"""Of the largest value of the reference, or of 1 where that is smaller."""

Ask = Callable[["Arrays"], "Arrays"]
_BASE_BATCH = 2
_BASE_LENGTH = 20
_BATCHES = (1, 3, 5)
_LARGEST_TRIED = 512
_FEWEST = 2
"""A size of 1 is broadcast, and says nothing of an axis that nobody named."""

_FEWEST_SIZES = 2
"""Strides and patches round, so that now and then a single other size fits by chance."""


def difference(reference: Arrays, answer: Arrays) -> str | None:
    """Describe the first wrong output; None if all are right.

    Every element counts, those at padded positions too; whole numbers and flags have to be equal, and what is not
    finite has to stand at the same places.
    """
    missing = [name for name in reference if name not in answer]
    if missing:
        return f"there is no output {', '.join(missing)}"
    for name, expected in reference.items():
        problem = _difference(expected, answer[name])
        if problem:
            return f"{name}: {problem}"
    return None


def _difference(expected: NDArray[np.generic], actual: NDArray[np.generic]) -> str | None:
    if expected.shape != actual.shape:
        return f"shape is {_form(actual)}, PyTorch's {_form(expected)}"
    if expected.dtype.kind in "iub":
        unequal = int(np.sum(expected != actual))
        return f"{unequal} of {expected.size} elements differ" if unequal else None
    r, c = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    finite = np.isfinite(r)
    if not np.array_equal(finite, np.isfinite(c)) or not np.array_equal(r[~finite], c[~finite], equal_nan=True):
        return "NaN or Inf at other places than PyTorch's"
    return _error(r[finite], c[finite]) if finite.any() else None


def _error(r: NDArray[np.float64], c: NDArray[np.float64]) -> str | None:
    """Return the error of finite numbers against the reference if it is too large."""
    error, scale = float(np.abs(r - c).max()), max(1.0, float(np.abs(r).max()))
    cosine = cosine_of(float(r @ r), float(c @ c), float(r @ c))
    if cosine >= SMALLEST_COSINE and error <= LARGEST_ERROR * scale:
        return None
    return f"cosine {cosine:.6f}, largest error {error:.3g} of {scale:.3g}"


def _form(array: NDArray[np.generic]) -> str:
    return "x".join(map(str, array.shape)) or "scalar"


@dataclass(frozen=True)
class AxisPlace:
    """Axis position: one dim of one input."""

    tensor: str
    dim: int

    def __str__(self) -> str:
        return f"{self.tensor}:{self.dim}"


@dataclass(frozen=True)
class Shape:
    """Tested shape: inputs and PyTorch's outputs; the plan's axis sizes, if the plan alone made the inputs."""

    name: str
    feed: Arrays
    answer: Arrays
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Axis:
    """Dynamic axis: a group of dims that PyTorch accepts at other sizes together.

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
    """Accepted shapes of PyTorch: the base shape, the dynamic axes, and shapes with several axes changed at once."""

    base: Shape
    axes: tuple[Axis, ...]
    together: tuple[Shape, ...]

    @property
    def shapes(self) -> list[Shape]:
        """All tested shapes."""
        return [self.base, *(shape for axis in self.axes for shape in axis.shapes.values()), *self.together]


def base_sizes(plan: InputPlan) -> Iterator[dict[str, int]]:
    """Return base sizes for testing each axis of a plan: between the smallest and largest, otherwise the usual ones."""
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
    """Test the model at other sizes of every dim.

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
        """Return sizes that the model accepts, and its output shapes there.

        Raises:
            Exception: whatever the model raises at the last of them; it takes none.
        """
        *others, last = base_sizes(self._plan)
        for sizes in others:
            with suppress(Exception):
                return sizes, self._make_shape("base", sizes)
        return last, self._make_shape("base", last)

    def _make_shape(self, name: str, sizes: Mapping[str, int]) -> Shape:
        feed = self._plan.make(sizes)
        return Shape(name, feed, self._ask(feed), sizes)

    def named(self) -> list[Axis]:
        """Return an axis for each name of the plan, with the sizes that the model accepted."""
        return [self._of_names((name,)) for name in self._sizes]

    def tied(self, axes: list[Axis]) -> list[Axis]:
        """Return the axes, with two rejected ones merged if the model accepts them together."""
        refused = [axis for axis in axes if axis.name != BATCH and len(axis.shapes) < _FEWEST_SIZES]
        for first, second in combinations(refused, 2):
            if first in axes and second in axes and self._sized(first) == self._sized(second):
                both = self._of_names((*first.names, *second.names))
                if len(both.shapes) >= _FEWEST_SIZES:
                    axes = [both if axis is first else axis for axis in axes if axis is not second]
        return axes

    def _sized(self, axis: Axis) -> tuple[int, AxisRange]:
        return axis.base, self._plan.axes[axis.name]

    def _of_names(self, names: tuple[str, ...]) -> Axis:
        """Return the axis of the dims with this name in the plan, with the sizes that the model accepted."""
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
        """Return the batch axis of all inputs' first dims if the plan does not name them."""
        places = tuple(AxisPlace(t.name, 0) for t in self._plan.tensors)
        return [self._moved(BATCH, places)]

    def unnamed(self) -> list[Axis]:
        """Return axes of dims that the plan fixes: each alone, or else with all others of its size."""
        fixed = [
            AxisPlace(t.name, i)
            for t in self._plan.tensors
            for i, d in enumerate(t.dims)
            if isinstance(d, int) and self.base.feed[t.name].shape[i] >= _FEWEST
        ]
        axes = [self._moved(str(place), (place,)) for place in fixed]
        alone = {place for axis in axes if len(axis.shapes) >= _FEWEST_SIZES for place in axis.places}
        by_size: dict[int, list[AxisPlace]] = {}
        for place in fixed:
            if place not in alone:
                by_size.setdefault(self._size(place), []).append(place)
        several = (tuple(places) for places in by_size.values() if len(places) > 1)
        axes += [self._moved("+".join(map(str, places)), places) for places in several]
        return [axis for axis in axes if len(axis.shapes) >= _FEWEST_SIZES]

    def together(self, axes: list[Axis]) -> list[Shape]:
        """Vary all named axes at once: to their smallest sizes, and to others."""
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
        """Return inputs and outputs; None if the model rejects them."""
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
    """Resize inputs by cutting dims, or by repeating them from the beginning."""
    import numpy as np

    changed = dict(feed)
    for place in places:
        changed[place.tensor] = np.take(changed[place.tensor], np.arange(size), axis=place.dim, mode="wrap")
    return changed


def is_stable(ask: Ask, shape: Shape) -> bool:
    """Whether the model still gives the same outputs at a shape."""
    return difference(shape.answer, ask(shape.feed)) is None


def _other_sizes(base: int, lowest: int, largest: int = 0) -> list[int]:
    """Return sizes around a base size: the smallest, half, odd ones, one and a half times, double, and the largest.

    Args:
        base: the size itself.
        lowest: none is below it.
        largest: none is above it where there is one; tried itself where it is not too much.
    """
    sizes = [lowest, base // 2, base - max(1, base // 5), base + 7, base + base // 2, 2 * base]
    if largest:
        sizes = [size for size in sizes if size <= largest]
        sizes += [largest] if largest <= _LARGEST_TRIED else []
    return sorted({size for size in sizes if size >= lowest and size != base})


class Graph:
    """ONNX graph in ONNX Runtime.

    Args:
        path: its file.
        outputs: what its outputs are called in PyTorch's answers, in order.
    """

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self._session = open_session(path)
        self._takes = {tensor.name for tensor in self._session.get_inputs()}
        self._outputs = tuple(outputs)
        self._problems: dict[str, str] = {}

    def problem_at(self, shape: Shape) -> str:
        """Describe the problem at a shape; empty without one. Runs each form of inputs once."""
        form = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in shape.feed.items())
        if form not in self._problems:
            self._problems[form] = self._problem(shape, form)
        return self._problems[form]

    def _problem(self, shape: Shape, form: str) -> str:
        try:
            answer = self._answer(shape)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
            return f"at {form} ONNX Runtime fails: {first_line(error)}"
        problem = difference(shape.answer, answer)
        return f"at {form} {problem}" if problem else ""

    def _answer(self, shape: Shape) -> dict[str, NDArray[np.generic]]:
        inputs = {name: array for name, array in shape.feed.items() if name in self._takes}
        return dict(zip(self._outputs, self._session.run(None, inputs), strict=True))
