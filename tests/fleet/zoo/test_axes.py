"""Which axes PyTorch takes at other sizes is found by asking it, whatever the plan of inputs names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.fleet.zoo.axes import Acceptance, find_axes
from plansmith.records.model import AxisRange, Dim, Tensor
from plansmith.sources.loaded_model import InputPlan
from plansmith.sources.random_inputs import plan_drawn

Arrays = Mapping[str, NDArray[Any]]
BATCHES = AxisRange(min=1, opt=8, max=32)


def plan(**dims: tuple[Dim, ...]) -> InputPlan:
    return plan_drawn([Tensor(name=name, dtype="float32", dims=d) for name, d in dims.items()], {})


def shapes_by_axis(acceptance: Acceptance) -> dict[str, tuple[int, ...]]:
    return {axis.name: tuple(axis.shapes) for axis in acceptance.axes}


def answer(compute: Callable[[Arrays], Any]) -> Callable[[Arrays], Arrays]:
    return lambda feed: {"out": np.asarray(compute(feed))}


def test_named_axis_is_found() -> None:
    """A named axis that the model takes is found with the sizes that it took."""

    def at_most_30(feed: Arrays) -> Any:
        if feed["x"].shape[1] > 30:
            raise ValueError
        return feed["x"].sum(axis=1)

    axes = shapes_by_axis(find_axes(plan(x=("batch", "length")), answer(at_most_30)))
    assert axes["batch"] == (1, 3, 5)
    assert set(axes["length"]) == {1, 10, 16, 27, 30}


def test_plan_fixed_axis_is_found() -> None:
    """An axis that the plan fixes is found all the same."""
    axes = shapes_by_axis(find_axes(plan(x=("batch", 12, 4)), answer(lambda feed: feed["x"] @ np.ones((4, 3)))))
    assert set(axes) == {"batch", "x:1"}
    assert min(axes["x:1"]) < 12 < max(axes["x:1"])


def test_tied_sides_are_one_axis() -> None:
    """Sides that move only together are one axis."""

    def square(feed: Arrays) -> Any:
        assert feed["x"].shape[2] == feed["x"].shape[3]
        return feed["x"].mean(axis=(1, 2, 3))

    assert set(shapes_by_axis(find_axes(plan(x=("batch", 3, 16, 16)), answer(square)))) == {"batch", "x:1", "x:2+x:3"}


def test_named_tied_sides_move_together() -> None:
    """Named sides that move only together are one axis and move with the others."""

    def square(feed: Arrays) -> Any:
        assert feed["x"].shape[2] == feed["x"].shape[3]
        return feed["x"].mean(axis=(2, 3))

    sides = AxisRange(min=16, opt=32, max=48)
    squares = replace(plan(x=("batch", 1, "height", "width")), axes={"batch": BATCHES, "height": sides, "width": sides})
    accepted = find_axes(squares, answer(square))
    assert shapes_by_axis(accepted) == {"batch": (1, 3, 5), "height+width": (16, 27, 30, 40, 48)}
    assert [shape.feed["x"].shape for shape in accepted.together] == [(1, 1, 16, 16), (5, 1, 48, 48)]
    free = find_axes(squares, answer(lambda feed: feed["x"].mean(axis=(2, 3))))
    assert set(shapes_by_axis(free)) == {"batch", "height", "width"}


def test_shared_axis_moves_in_both() -> None:
    """An axis that two inputs share moves in both."""
    axes = find_axes(plan(x=("batch", "length"), mask=("batch", "length")), answer(lambda f: f["x"] * f["mask"])).axes
    assert [tuple(map(str, axis.places)) for axis in axes] == [("x:0", "mask:0"), ("x:1", "mask:1")]


def test_chance_size_makes_no_axis() -> None:
    """A single other size that fits by chance makes no axis."""

    def in_steps(feed: Arrays) -> Any:
        assert (feed["x"].shape[1] - 16) // 10 == 1
        return feed["x"].mean(axis=1)

    assert set(shapes_by_axis(find_axes(plan(x=("batch", 32)), answer(in_steps)))) == {"batch"}


def test_refused_size_is_no_axis() -> None:
    """What the model refuses or answers with NaN is no axis."""

    def fixed(feed: Arrays) -> Any:
        x = feed["x"]
        assert x.shape[1] == 20
        return x.mean(axis=(1, 2)) * (np.nan if x.shape[2] != 8 else 1)

    assert set(shapes_by_axis(find_axes(plan(x=("batch", "length", 8)), answer(fixed)))) == {"batch"}


def test_memory_lack_is_no_answer() -> None:
    """A lack of memory is no answer of the model."""

    def hungry(feed: Arrays) -> Any:
        if feed["x"].shape[1] > 30:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return feed["x"].sum(axis=1)

    with pytest.raises(RuntimeError, match="allocate memory"):
        find_axes(plan(x=("batch", "length")), answer(hungry))


def test_named_axes_move_together() -> None:
    """All named axes are moved together too."""
    shapes = find_axes(plan(x=("batch", "length")), answer(lambda feed: feed["x"])).together
    assert [shape.feed["x"].shape for shape in shapes] == [(1, 1), (5, 512)]


def test_timm_models_move_batch_only() -> None:
    """Of timm models, only the batch is asked for."""
    axes = find_axes(plan(x=("batch", 3, 16, 16)), answer(lambda feed: feed["x"]), only_batch=True)
    assert set(shapes_by_axis(axes)) == {"batch"}


def test_usual_size_model_asked_there() -> None:
    """A model that takes only the usual size is asked at that."""

    def only_128(feed: Arrays) -> Any:
        assert feed["x"].shape[1] == 128
        return feed["x"].sum(axis=1)

    acceptance = find_axes(plan(x=("batch", "length")), answer(only_128))
    assert acceptance.base.feed["x"].shape == (2, 128)
    assert set(shapes_by_axis(acceptance)) == {"batch"}


def test_axis_asked_within_range() -> None:
    """An axis is asked within the range that it is compiled for."""
    at_most_30 = replace(
        plan(x=("batch", "length")), axes={"batch": BATCHES, "length": AxisRange(min=1, opt=30, max=30)}
    )
    assert max(shapes_by_axis(find_axes(at_most_30, answer(lambda feed: feed["x"])))["length"]) == 30


def test_always_failing_model_says_so() -> None:
    """A model that fails at every shape says so."""

    def broken(feed: Arrays) -> Any:
        raise RuntimeError(str(feed["x"].shape))

    with pytest.raises(RuntimeError, match=r"\(8, 128\)"):
        find_axes(plan(x=("batch", "length")), answer(broken))
