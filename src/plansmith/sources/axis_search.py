"""Axis search: finds sizes at which refused dynamic axes do work, one axis at a time, then two at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from plansmith.data.reference import Sizes
from plansmith.errors import UsageError, first_line
from plansmith.records.model import AxisRange, Dim, InputRange, TiedAxis
from plansmith.sources.loaded_model import InputPlan
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ask = Callable[[Mapping[str, int]], Mapping[str, NDArray[np.generic]]]


_FEWEST_STEPS = 2
"""An axis with fewer sizes than this besides its usual one does not move."""

_SMALL = {"batch": 2}
_SMALL_LENGTH = 16


class AxisProbe:
    """Axis probe: runs a model at shapes, and records its message on refusal."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._messages: dict[frozenset[tuple[str, int]], str | None] = {}
        self.message = ""

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model accepts a shape; `message` holds its error if not.

        Raises:
            Exception: the machine is out of memory, which tells nothing about the model.
        """
        key = frozenset(sizes.items())
        if key not in self._messages:
            self._messages[key] = self._refusal(sizes)
        message = self._messages[key]
        if message is not None:
            self.message = message
        return message is None

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
    """Axis search, with the axes found to be dynamic at some size and those that are not.

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
        """Test every axis alone, then pairs at equal sizes, at the wanted sizes and then at multiples.

        Pairs at the wanted size come before multiples: a size close to the usual one may be taken by chance of
        rounding.

        Args:
            together: the axes that are known not to move by themselves, with the model's words.
        """
        self.ranges = dict(self.able)
        self.refused = {axis: together.get(axis, "") for axis in self.able}
        for axes in self._unmoved(together):
            self._move(self._wanted_size, *axes)
        final = self._final_words()
        for axes in self._unmoved(together):
            if not final or self._message_at(axes, self.untraced[axes[0]]) not in final:
                self._move(self._multiple, *axes)

    def _unmoved(self, together: Collection[str]) -> Iterator[tuple[str, ...]]:
        """Yield axes one by one, then pairs, as long as they are not known to be dynamic."""
        yield from [(axis,) for axis in self.refused if axis not in together]
        yield from (pair for pair in self.pairs if self.refused.keys() >= set(pair))

    def _final_words(self) -> set[str]:
        """Return the model's messages on axes that are fixed at their usual size, whatever else varies.

        It names that size when two axes are far below and above it, in the words that it has for one of them.
        """
        result: set[str] = set()
        for pair in self._unmoved(self.refused):
            usual, r = self.traced[pair[0]], self.able[pair[0]]
            alone = {self._message_at((axis,), self.untraced[axis]) for axis in pair}
            both = {self._message_at(pair, size) for size in {self.untraced[pair[0]], r.min, r.max} - {usual}}
            if len(both) == 1 and both <= alone and re.search(rf"(?<!\d){usual}(?!\d)", self.model.message):
                result |= both
        return result

    def _message_at(self, axes: tuple[str, ...], size: int) -> str:
        """Return the model's message at a size, with sizes masked; empty if it accepts the size."""
        if self._takes(axes, size):
            return ""
        return re.sub(rf"(?<!\d)({size}|{self.traced[axes[0]]})(?!\d)", "a size", self.model.message)

    def _move(self, another: Callable[[tuple[str, ...]], tuple[int, AxisRange] | None], *axes: str) -> None:
        """Resize axes at once, and check whether the model accepts it."""
        first, *others = axes
        moved = another(axes)
        if moved is None:
            self.refused[first] = self.refused[first] or self.model.message
            return
        self.untraced[first], self.ranges[first] = moved
        self.tied += [TiedAxis(axis=follower, to=first, reason=self.refused[follower]) for follower in others]
        for axis in axes:
            del self.refused[axis]

    def _takes(self, axes: tuple[str, ...], size: int) -> bool:
        return self.model.takes({**self.traced, **dict.fromkeys(axes, size)})

    def _wanted_size(self, axes: tuple[str, ...]) -> tuple[int, AxisRange] | None:
        """Return the wanted size for axes of one size, and their valid sizes; None if the model rejects it."""
        size, r = self.untraced[axes[0]], self.able[axes[0]]
        return (size, r) if size == self.traced[axes[0]] or self._takes(axes, size) else None

    def _multiple(self, axes: tuple[str, ...]) -> tuple[int, AxisRange] | None:
        """Return another size that the model accepts for axes of one size, and their valid sizes; None without one.

        Where nothing in the range is taken, something below it may be: strides and patches round.
        """
        usual, r = self.traced[axes[0]], self.able[axes[0]]
        # A size of the form usual - step: if only multiples are taken, then of a divisor of the usual size.
        steps = [n for n in range(2, usual // _FEWEST_STEPS + 1) if usual % n == 0]
        sizes = [(size, step) for step in steps for size in (usual - step, usual + step) if size <= r.max]
        for size, step in sorted(sizes, key=lambda pair: pair[0] < r.min):
            if self._takes(axes, size):
                return size, stepped(AxisRange(min=min(size, r.min), opt=r.opt, max=r.max), step)
        return None


def alike(traced: Sizes, able: Mapping[str, AxisRange]) -> Iterator[tuple[str, str]]:
    """Return pairs of axes with the same range and traced size: image sides, which may have to be equal."""
    for axis, partner in combinations(able, 2):
        if (traced[axis], able[axis]) == (traced[partner], able[partner]):
            yield axis, partner


def stepped(axis: AxisRange, step: int) -> AxisRange:
    """Restrict a range to multiples; unchanged if it contains none."""
    low, high = -(-axis.min // step) * step, axis.max // step * step
    if step == 1 or low > high:
        return axis
    return AxisRange(min=low, opt=min(max(round(axis.opt / step) * step, low), high), max=high, step=step)


def explain_failure(
    ask: Ask, plan: InputPlan, axes: Mapping[str, AxisRange], sizes: Mapping[str, int], error: Exception
) -> UsageError:
    """Explain to the user why a model failed at guessed sizes.

    Args:
        ask: runs the model; raises anything where it fails.
        plan: what it is fed with.
        axes: the ranges that it was to be compiled for.
        sizes: where it failed.
        error: how.
    """
    at = ", ".join(f"{axis} {size}" for axis, size in sizes.items()) or "its fixed shape"
    reason = first_line(error).rpartition("Status Message: ")[2]  # ONNX Runtime puts its own codes before it
    message = f"the model fails at {at}: {reason}"
    base = {a: min(max(_SMALL.get(a, _SMALL_LENGTH), r.min), r.max) for a, r in axes.items()}
    if not sizes:
        return UsageError(message, remedy=f"give low and high of its values in a spec:\n{_inputs_example(plan)}")
    if not _works(ask, base):
        return UsageError(
            message,
            remedy=f"say which sizes it takes: --shapes {_shapes_example(plan, axes)}\n"
            f"or describe them in a spec, with low and high for their values:\n{_inputs_example(plan)}",
        )
    guilty = next((a for a in sizes if sizes[a] != base[a] and not _works(ask, {**base, a: sizes[a]})), None)
    if guilty is None or _is_tied(ask, base, guilty, sizes[guilty]):
        return UsageError(
            message,
            remedy="if two of these axes are one, give them the same name in the spec:\n"
            f"{_inputs_example(plan)}\nelse give smaller shapes: --shapes {_shapes_example(plan, axes)}",
        )
    good = _boundary(ask, base, guilty, sizes[guilty])
    old = axes[guilty]
    low, high = (old.min, good) if sizes[guilty] > base[guilty] else (good, old.max)
    allowed = AxisRange(min=low, opt=min(max(old.opt, low), high), max=high)
    word = "up to" if sizes[guilty] > base[guilty] else "from"
    return UsageError(
        f"{message}\nIt is {guilty!r}: the model works {word} {good}",
        remedy=f"give that range: --shapes {_shapes_example(plan, {**axes, guilty: allowed}, guilty)}",
    )


def _works(ask: Ask, sizes: Mapping[str, int]) -> bool:
    try:
        ask(sizes)
    except Exception:  # noqa: BLE001 - what a model raises is not known; that it does is the answer
        return False
    return True


def _is_tied(ask: Ask, base: Mapping[str, int], axis: str, size: int) -> bool:
    """Whether an axis accepts a size once another axis of the same previous size has it too."""
    others = [a for a in base if a != axis and base[a] == base[axis]]
    return any(_works(ask, {**base, axis: size, partner: size}) for partner in others)


def _boundary(ask: Ask, base: Mapping[str, int], axis: str, bad: int) -> int:
    """Return the size nearest to `bad` at which the model works, by bisection; it works at the base size."""
    good = base[axis]
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if _works(ask, {**base, axis: middle}):
            good = middle
        else:
            bad = middle
    return good


def _shapes_example(plan: InputPlan, axes: Mapping[str, AxisRange], axis: str = "") -> str:
    """Return an example for --shapes: the range of the first input with an axis; without one, of all that vary."""
    listed_names: set[Dim] = set()
    parts = []
    for tensor in plan.tensors:
        names = {d for d in tensor.dims if isinstance(d, str)}
        if not names - listed_names or (axis and (listed_names or axis not in names)):
            continue
        listed_names |= names
        low, usual, high = (
            tuple(getattr(axes[d], end) if isinstance(d, str) else d for d in tensor.dims)
            for end in ("min", "opt", "max")
        )
        parts.append(f"{tensor.name}={InputRange(min=low, opt=usual, max=high)}")
    return f'"{",".join(parts)}"'


def _inputs_example(plan: InputPlan) -> str:
    rows = [f"    {t.name}: {{dims: [{', '.join(map(str, t.dims))}]}}" for t in plan.tensors]
    return "\n".join(["  inputs:", *rows[:4]])
