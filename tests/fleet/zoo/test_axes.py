"""Which axes PyTorch takes at other sizes is found by asking it, whatever the plan of inputs names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.fleet.zoo.axes import Acceptance, find_axes
from plansmith.records.model import AxisRange, Dim, Tensor
from plansmith.sources.inputs.random import plan_drawn
from plansmith.sources.loaded_model import InputPlan

Arrays = dict[str, NDArray[Any]]
BATCHES = AxisRange(min=1, opt=8, max=32)


def plan(**dims: tuple[Dim, ...]) -> InputPlan:
    return plan_drawn([Tensor(name=name, dtype="float32", dims=d) for name, d in dims.items()], {})


def found(acceptance: Acceptance) -> dict[str, tuple[int, ...]]:
    return {axis.name: tuple(axis.shapes) for axis in acceptance.axes}


def answer(compute: Callable[[Arrays], Any]) -> Callable[[Arrays], Arrays]:
    return lambda feed: {"out": np.asarray(compute(feed))}


def test_a_named_axis_that_the_model_takes_is_found_with_the_sizes_that_it_took() -> None:
    def at_most_30(feed: Arrays) -> Any:
        if feed["x"].shape[1] > 30:
            raise ValueError
        return feed["x"].sum(axis=1)

    axes = found(find_axes(plan(x=("batch", "length")), answer(at_most_30)))
    assert axes["batch"] == (1, 3, 5)
    assert set(axes["length"]) == {1, 10, 16, 27, 30}


def test_an_axis_that_the_plan_fixes_is_found_all_the_same() -> None:
    axes = found(find_axes(plan(x=("batch", 12, 4)), answer(lambda feed: feed["x"] @ np.ones((4, 3)))))
    assert set(axes) == {"batch", "x:1"}
    assert min(axes["x:1"]) < 12 < max(axes["x:1"])


def test_sides_that_move_only_together_are_one_axis() -> None:
    def square(feed: Arrays) -> Any:
        assert feed["x"].shape[2] == feed["x"].shape[3]
        return feed["x"].mean(axis=(1, 2, 3))

    assert set(found(find_axes(plan(x=("batch", 3, 16, 16)), answer(square)))) == {"batch", "x:1", "x:2+x:3"}


def test_named_sides_that_move_only_together_are_one_axis_and_move_with_the_others() -> None:
    def square(feed: Arrays) -> Any:
        assert feed["x"].shape[2] == feed["x"].shape[3]
        return feed["x"].mean(axis=(2, 3))

    sides = AxisRange(min=16, opt=32, max=48)
    squares = replace(plan(x=("batch", 1, "height", "width")), axes={"batch": BATCHES, "height": sides, "width": sides})
    accepted = find_axes(squares, answer(square))
    assert found(accepted) == {"batch": (1, 3, 5), "height+width": (16, 27, 30, 40, 48)}
    assert [shape.feed["x"].shape for shape in accepted.together] == [(1, 1, 16, 16), (5, 1, 48, 48)]
    free = find_axes(squares, answer(lambda feed: feed["x"].mean(axis=(2, 3))))
    assert set(found(free)) == {"batch", "height", "width"}


def test_an_axis_that_two_inputs_share_moves_in_both() -> None:
    axes = find_axes(plan(x=("batch", "length"), mask=("batch", "length")), answer(lambda f: f["x"] * f["mask"])).axes
    assert [tuple(map(str, axis.places)) for axis in axes] == [("x:0", "mask:0"), ("x:1", "mask:1")]


def test_a_single_other_size_that_fits_by_chance_makes_no_axis() -> None:
    def in_steps(feed: Arrays) -> Any:
        assert (feed["x"].shape[1] - 16) // 10 == 1
        return feed["x"].mean(axis=1)

    assert set(found(find_axes(plan(x=("batch", 32)), answer(in_steps)))) == {"batch"}


def test_what_the_model_refuses_or_answers_with_nan_is_no_axis() -> None:
    def fixed(feed: Arrays) -> Any:
        x = feed["x"]
        assert x.shape[1] == 20
        return x.mean(axis=(1, 2)) * (np.nan if x.shape[2] != 8 else 1)

    assert set(found(find_axes(plan(x=("batch", "length", 8)), answer(fixed)))) == {"batch"}


def test_a_lack_of_memory_is_no_answer_of_the_model() -> None:
    def hungry(feed: Arrays) -> Any:
        if feed["x"].shape[1] > 30:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return feed["x"].sum(axis=1)

    with pytest.raises(RuntimeError, match="allocate memory"):
        find_axes(plan(x=("batch", "length")), answer(hungry))


def test_all_named_axes_are_moved_together_too() -> None:
    shapes = find_axes(plan(x=("batch", "length")), answer(lambda feed: feed["x"])).together
    assert [shape.feed["x"].shape for shape in shapes] == [(1, 1), (5, 512)]


def test_of_timm_models_only_the_batch_is_asked_for() -> None:
    asked = find_axes(plan(x=("batch", 3, 16, 16)), answer(lambda feed: feed["x"]), only_batch=True)
    assert set(found(asked)) == {"batch"}


def test_a_model_that_takes_only_the_usual_size_is_asked_at_that() -> None:
    def only_128(feed: Arrays) -> Any:
        assert feed["x"].shape[1] == 128
        return feed["x"].sum(axis=1)

    acceptance = find_axes(plan(x=("batch", "length")), answer(only_128))
    assert acceptance.base.feed["x"].shape == (2, 128)
    assert set(found(acceptance)) == {"batch"}


def test_an_axis_is_asked_within_the_range_that_it_is_compiled_for() -> None:
    at_most_30 = replace(
        plan(x=("batch", "length")), axes={"batch": BATCHES, "length": AxisRange(min=1, opt=30, max=30)}
    )
    assert max(found(find_axes(at_most_30, answer(lambda feed: feed["x"])))["length"]) == 30


def test_a_model_that_fails_at_every_shape_says_so() -> None:
    def broken(feed: Arrays) -> Any:
        raise RuntimeError(str(feed["x"].shape))

    with pytest.raises(RuntimeError, match=r"\(8, 128\)"):
        find_axes(plan(x=("batch", "length")), answer(broken))
