"""Asking a source model, in the worker: each shape once, and what to tell of a shape that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from plansmith.data.reference import Sizes
from plansmith.errors import SourceError
from plansmith.records.model import AxisRange
from plansmith.sources.determinism import changed_output
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

Progress = Callable[[str], None]


class ReferenceRunner:
    """A model's answers, by shape.

    Args:
        model: runs the source model.
        plan: what it is fed with.
        axes: the ranges that it is to be compiled for.
        progress: told what is done.
    """

    def __init__(
        self, model: Callable[[Arrays], Arrays], plan: InputPlan, axes: Mapping[str, AxisRange], progress: Progress
    ) -> None:
        self._model = model
        self._plan = plan
        self._axes = axes
        self._progress = progress
        self._known: dict[tuple[int, ...], tuple[Arrays, Arrays]] = {}

    def answer(self, sizes: Sizes) -> Arrays:
        """The answer at a shape, which is kept; it raises whatever the model raises, unless the shape was guessed."""
        return self.kept("another shape", sizes)[1]

    def kept(self, name: str, sizes: Sizes) -> tuple[Arrays, Arrays]:
        """Inputs and answer at a shape, which are kept in memory.

        Raises:
            UsageError: the shape was guessed, and the model refuses it.
        """
        key = tuple(sizes[axis] for axis in self._plan.axes)
        if key not in self._known:
            self._known[key] = self.case(name, sizes)
        return self._known[key]

    def takes(self, sizes: Sizes) -> bool:
        """Whether the model answers at a shape; its answer is kept.

        Raises:
            Exception: the machine is out of memory, which tells nothing about the model.
        """
        try:
            self.kept("another shape", sizes)
        except Exception as error:
            if tells_of_memory(f"{type(error).__name__}: {error}"):
                raise
            return False
        return True

    def case(self, name: str, sizes: Sizes) -> tuple[Arrays, Arrays]:
        """Inputs and answer at a shape.

        Args:
            name: of the shape, for the progress.
            sizes: of every axis of the plan, in any order.

        Raises:
            UsageError: the shape was guessed, and the model refuses it.
        """
        ordered = {axis: sizes[axis] for axis in self._plan.axes}
        known = self._known.get(tuple(ordered.values()))
        return known or reference_at_shape(self._model, self._plan, self._axes, (name, ordered), self._progress)


def reference_at_shape(
    model: Callable[[Arrays], Arrays],
    plan: InputPlan,
    axes: Mapping[str, AxisRange],
    planned: tuple[str, Sizes],
    progress: Progress,
) -> tuple[Arrays, Arrays]:
    """Inputs at one shape, and the source model's answer.

    Raises:
        UsageError: the shape was guessed, and the model refuses it.
    """
    name, sizes = planned
    progress(f"asking the source model at {name} ({'x'.join(map(str, sizes.values()))})")
    feed = plan.make(sizes)
    try:
        return feed, model(feed)
    except Exception as error:
        if not plan.guessed or tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        from plansmith.sources.dynamic_axes.probe import explain_failure

        progress("looking for the axis that it refuses")
        raise explain_failure(lambda sizes: model(plan.make(sizes)), plan, axes, sizes, error) from error


def require_repeatable(ask: Callable[[Arrays], Arrays], feed: Arrays, answer: Arrays) -> None:
    """See that the same inputs get the same answer: nothing can be compared with a model that draws lots.

    Raises:
        SourceError: they do not.
    """
    changed = changed_output(answer, ask(feed))
    if changed is not None:
        raise SourceError(
            f"the model gives different answers to the same inputs: {changed!r} has changed",
            remedy="take out of it what is random (dropout, RandomNormal), and export or save it again",
        )
