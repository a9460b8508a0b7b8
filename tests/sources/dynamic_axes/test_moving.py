"""Which axes move is asked of the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.data.columns import Takes
from plansmith.data.reference import first_sizes
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import AxisRange, Tensor
from plansmith.sources.dynamic_axes import find
from plansmith.sources.loaded_model import Encoded, InputPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH = AxisRange(min=1, opt=8, max=32)
SIDE = AxisRange(min=64, opt=224, max=448)
TOKENS = AxisRange(min=1, opt=128, max=512)


def planned(**axes: AxisRange) -> InputPlan:
    tensor = Tensor(name="x", dtype="float32", dims=("batch", *axes))
    return InputPlan(
        tensors=(tensor,),
        axes={"batch": BATCH, **axes},
        limits={},
        mask_input=None,
        make=lambda sizes: {"x": np.zeros([sizes[d] for d in ("batch", *axes)], np.float32)},
        data="zeros",
        takes=Takes((), ("x",)),
        encode=lambda *_: Encoded({}, {}),
    )


class Model:
    """Answers where a condition holds; remembers what it was asked."""

    def __init__(self, plan: InputPlan, condition: Callable[[dict[str, int]], bool]) -> None:
        self.plan, self.condition = plan, condition
        self.asked: list[dict[str, int]] = []

    def __call__(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        self.asked.append(dict(sizes))
        if not self.condition(self.asked[-1]):
            raise RuntimeError(f"I refuse {self.asked[-1]}\nat some length")
        return {"y": self.plan.make(sizes)["x"]}


def found(plan: InputPlan, condition: Callable[[dict[str, int]], bool]) -> tuple[find.DynamicAxes, Model]:
    model = Model(plan, condition)
    return find.find_dynamic_axes(model, plan, plan.axes), model


def test_a_model_that_takes_every_size_is_asked_twice_and_where_its_sides_differ_most() -> None:
    result, model = found(planned(height=SIDE, width=SIDE), lambda _: True)
    assert result.fixed == ()
    assert [(sizes["height"], sizes["width"]) for sizes in model.asked] == [(224, 224), (201, 163), (64, 448)]
    assert all(result.traced[axis] != result.untraced[axis] for axis in ("batch", "height", "width"))


def test_a_refused_axis_becomes_a_fixed_dim_with_the_models_words() -> None:
    result, _ = found(planned(height=SIDE, tokens=TOKENS), lambda sizes: sizes["height"] == 224)
    assert [(f.axis, f.size, f.by) for f in result.fixed] == [("height", 224, "model")]
    assert result.fixed[0].reason.startswith("I refuse {'batch': 2, 'height':")
    assert "\n" not in result.fixed[0].reason
    assert result.plan.tensors[0].dims == ("batch", 224, "tokens")
    assert set(result.plan.axes) == set(result.able) == {"batch", "tokens"}
    assert result.plan.make({"batch": 3, "tokens": 5})["x"].shape == (3, 224, 5)


def test_a_model_of_multiples_moves_in_steps_of_them() -> None:
    plan = planned(height=SIDE)
    result, model = found(plan, lambda sizes: sizes["height"] % 14 == 0)
    assert (result.fixed, result.able["height"]) == ((), AxisRange(min=70, opt=224, max=448, step=14))
    ranges = find.narrow_ranges(model, result, plan.axes, ())
    assert ranges["height"] == AxisRange(min=70, opt=224, max=448, step=14)


def test_a_model_of_one_batch_says_so() -> None:
    result, _ = found(planned(tokens=TOKENS), lambda sizes: sizes["batch"] == 8)
    assert [(f.axis, f.size) for f in result.fixed] == [("batch", 8)]
    assert result.plan.tensors[0].dims == (8, "tokens")


def test_of_axes_that_move_only_one_at_a_time_the_least_needed_is_fixed() -> None:
    result, _ = found(
        planned(height=SIDE, sequence=TOKENS), lambda sizes: sizes["height"] == 224 or sizes["sequence"] == 21
    )
    assert [f.axis for f in result.fixed] == ["height"]
    assert "not together with others: I refuse" in result.fixed[0].reason


def test_axes_of_one_size_that_move_at_once_only_are_tied() -> None:
    plan = planned(height=SIDE, width=SIDE)
    result, model = found(plan, lambda sizes: sizes["height"] == sizes["width"])
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]
    assert result.tied[0].words.startswith("width is always height in the graph, as the model takes no other: I refuse")
    assert result.fixed == ()
    assert result.plan.tensors[0].dims == ("batch", "height", "height")
    assert set(result.plan.axes) == set(result.traced) == {"batch", "height"}
    assert result.plan.make({"batch": 3, "height": 90})["x"].shape == (3, 90, 90)
    assert result.full({"batch": 1, "height": 70}) == {"batch": 1, "height": 70, "width": 70}
    assert find.narrow_ranges(model, result, plan.axes, ())["height"] == SIDE


def test_sides_of_one_number_of_patches_are_tied_though_a_pixel_more_may_be_taken_by_chance() -> None:
    plan = planned(height=AxisRange(min=64, opt=64, max=96), width=AxisRange(min=64, opt=64, max=96))
    result, _ = found(plan, lambda sizes: sizes["height"] // 16 == sizes["width"] // 16)
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]


@pytest.mark.parametrize("sides", [(64, 64, 96), (160, 224, 224), (64, 224, 448)])
def test_sides_are_tied_however_short_their_range_is(sides: tuple[int, int, int]) -> None:
    side = AxisRange(min=sides[0], opt=sides[1], max=sides[2])
    result, _ = found(planned(height=side, width=side), lambda sizes: sizes["height"] == sizes["width"])
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]


def strided(size: int, halvings: int) -> int:
    """The side of the map of features that a network has of an image of one size."""
    for _ in range(halvings):
        size = -(-size // 2)
    return size


@pytest.mark.parametrize("usual", range(64, 130, 4))
@pytest.mark.parametrize("halvings", [3, 4, 5])
@pytest.mark.parametrize("largest", [1, 2])
def test_a_model_of_square_images_has_no_side_of_its_own(usual: int, halvings: int, largest: int) -> None:
    """Strides round small sizes to one map of features: whatever the graph is to take, the model has to."""

    def takes(sizes: dict[str, int]) -> bool:
        return strided(sizes["height"], halvings) == strided(sizes["width"], halvings)

    side = AxisRange(min=64, opt=usual, max=usual * largest)
    plan = planned(height=side, width=side)
    result, model = found(plan, takes)
    ranges = find.narrow_ranges(model, result, plan.axes, ())
    lowest, highest = ({axis: getattr(r, end) for axis, r in ranges.items()} for end in ("min", "max"))
    for mixed in ({**lowest, "width": highest.get("width", 0)}, {**lowest, "height": highest.get("height", 0)}):
        assert takes(result.full({axis: mixed[axis] for axis in ranges}))
    if side.min < side.max:
        assert [t.axis for t in result.tied] == ["width"]


def test_sides_of_small_images_are_asked_far_from_their_usual_sizes_and_from_each_other() -> None:
    """An odd number of pixels away, as far as there is room: one pixel away is rounded to the usual size."""
    side = AxisRange(min=64, opt=96, max=96)
    assert first_sizes({"height": side, "width": side, "depth": side})[1] == {"height": 73, "width": 65, "depth": 67}


def test_sides_that_differ_too_much_for_the_model_end_where_it_takes_them() -> None:
    plan = planned(height=SIDE, width=SIDE)
    result, model = found(plan, lambda sizes: sizes["width"] <= 4 * sizes["height"])
    ranges = find.narrow_ranges(model, result, plan.axes, ())
    assert (result.tied, ranges["height"], ranges["width"].max) == ((), SIDE, 256)
    with pytest.raises(UsageError) as caught:
        find.narrow_ranges(model, result, plan.axes, {"height", "width"})
    assert "the model fails at batch 2, height 64, width 448: I refuse" in caught.value.message


@pytest.mark.parametrize("takes_others", [lambda h, w: h % 32 == w % 32 == 0, lambda h, w: (h, w) == (320, 448)])
def test_sides_that_a_person_gave_apart_are_not_tied_where_the_model_takes_them(
    takes_others: Callable[[int, int], bool],
) -> None:
    plan = planned(height=SIDE, width=SIDE)
    model = Model(
        plan, lambda sizes: sizes["height"] == sizes["width"] or takes_others(sizes["height"], sizes["width"])
    )
    fixed = {"height": AxisRange(min=320, opt=320, max=320), "width": AxisRange(min=448, opt=448, max=448)}
    axes = plan.axes | fixed
    result = find.find_dynamic_axes(model, plan, axes, set(fixed))
    ranges = find.narrow_ranges(model, result, axes, set(fixed))
    assert result.tied == ()
    assert result.full({axis: r.max for axis, r in ranges.items()}) == {"batch": 32, "height": 320, "width": 448}
    refused = find.find_dynamic_axes(model, plan, axes | {"height": AxisRange(min=250, opt=250, max=250)}, set(fixed))
    assert [t.axis for t in refused.tied] == ["width"]


def test_a_model_that_names_its_only_size_is_not_asked_at_multiples() -> None:
    class Vit(Model):
        def __call__(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
            try:
                return super().__call__(sizes)
            except RuntimeError:
                raise ValueError(f"{sizes['height']}*{sizes['width']} doesn't match model (224*224)") from None

    plan = planned(height=SIDE, width=SIDE)
    model = Vit(plan, lambda sizes: sizes["height"] == sizes["width"] == 224)
    result = find.find_dynamic_axes(model, plan, plan.axes)
    assert [f.axis for f in result.fixed] == ["height", "width"]
    assert len(model.asked) <= 12
    multiples = Vit(plan, lambda sizes: sizes["height"] == sizes["width"] and sizes["width"] % 32 == 0)
    assert [t.axis for t in find.find_dynamic_axes(multiples, plan, plan.axes).tied] == ["width"]


def test_tied_axes_of_multiples_move_in_steps() -> None:
    result, _ = found(
        planned(height=SIDE, width=SIDE), lambda sizes: sizes["height"] == sizes["width"] and sizes["width"] % 32 == 0
    )
    assert (result.able["height"].step, [t.to for t in result.tied]) == (32, ["height"])


def test_an_axis_that_takes_only_less_than_its_range_moves_there() -> None:
    """Strides and patches round: a model of 64 pixels may take 49 to 64 of them."""
    plan = planned(height=AxisRange(min=64, opt=64, max=96))
    result, model = found(plan, lambda sizes: 49 <= sizes["height"] <= 64)
    assert result.fixed == ()
    ranges = find.narrow_ranges(model, result, plan.axes, ())
    assert (ranges["height"].min, ranges["height"].opt, ranges["height"].max) == (62, 64, 64)


def test_ranges_end_where_the_model_refuses() -> None:
    plan = planned(sequence=TOKENS)
    result, model = found(plan, lambda sizes: 7 <= sizes["sequence"] <= 300)
    assert find.narrow_ranges(model, result, plan.axes, ())["sequence"] == AxisRange(min=7, opt=128, max=300)


def test_a_range_that_a_person_gave_is_never_narrowed() -> None:
    plan = planned(sequence=TOKENS)
    result, model = found(plan, lambda sizes: sizes["sequence"] <= 300)
    with pytest.raises(UsageError) as caught:
        find.narrow_ranges(model, result, plan.axes, {"sequence"})
    assert "the model fails at batch 1, sequence 512: I refuse" in caught.value.message


def test_a_model_that_answers_nowhere_is_an_error_with_its_words() -> None:
    with pytest.raises(SourceError) as caught:
        found(planned(sequence=TOKENS), lambda _: False)
    assert "I refuse" in caught.value.message
    assert caught.value.remedy
