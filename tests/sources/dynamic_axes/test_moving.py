"""Which axes move is asked of the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.data.reference import first_sizes
from plansmith.data.sample import Takes
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import AxisRange, Tensor
from plansmith.sources import dynamic_axes
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
        self.requests: list[dict[str, int]] = []

    def __call__(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        self.requests.append(dict(sizes))
        if not self.condition(self.requests[-1]):
            raise RuntimeError(f"I refuse {self.requests[-1]}\nat some length")
        return {"y": self.plan.make(sizes)["x"]}


def find_axes(plan: InputPlan, condition: Callable[[dict[str, int]], bool]) -> tuple[dynamic_axes.DynamicAxes, Model]:
    model = Model(plan, condition)
    return dynamic_axes.find_dynamic_axes(model, plan, plan.axes), model


def test_size_free_model_asked_twice() -> None:
    """A model that takes every size is asked twice, and where its sides differ most."""
    result, model = find_axes(planned(height=SIDE, width=SIDE), lambda _: True)
    assert result.fixed == ()
    assert [(sizes["height"], sizes["width"]) for sizes in model.requests] == [(224, 224), (201, 163), (64, 448)]
    assert all(result.traced[axis] != result.untraced[axis] for axis in ("batch", "height", "width"))


def test_refused_axis_becomes_fixed_dim() -> None:
    """A refused axis becomes a fixed dim with the model's words."""
    result, _ = find_axes(planned(height=SIDE, tokens=TOKENS), lambda sizes: sizes["height"] == 224)
    assert [(f.axis, f.size, f.by) for f in result.fixed] == [("height", 224, "model")]
    assert result.fixed[0].reason.startswith("I refuse {'batch': 2, 'height':")
    assert "\n" not in result.fixed[0].reason
    assert result.plan.tensors[0].dims == ("batch", 224, "tokens")
    assert set(result.plan.axes) == set(result.able) == {"batch", "tokens"}
    assert result.plan.make({"batch": 3, "tokens": 5})["x"].shape == (3, 224, 5)


def test_model_of_multiples_moves_in_steps() -> None:
    """A model of multiples moves in steps of them."""
    plan = planned(height=SIDE)
    result, model = find_axes(plan, lambda sizes: sizes["height"] % 14 == 0)
    assert (result.fixed, result.able["height"]) == ((), AxisRange(min=70, opt=224, max=448, step=14))
    ranges = dynamic_axes.narrow_ranges(model, result, plan.axes, ())
    assert ranges["height"] == AxisRange(min=70, opt=224, max=448, step=14)


def test_model_of_one_batch_told() -> None:
    """A model of one batch says so."""
    result, _ = find_axes(planned(tokens=TOKENS), lambda sizes: sizes["batch"] == 8)
    assert [(f.axis, f.size) for f in result.fixed] == [("batch", 8)]
    assert result.plan.tensors[0].dims == (8, "tokens")


def test_least_needed_axis_fixed() -> None:
    """Of axes that move only one at a time, the least needed is fixed."""
    result, _ = find_axes(
        planned(height=SIDE, sequence=TOKENS), lambda sizes: sizes["height"] == 224 or sizes["sequence"] == 21
    )
    assert [f.axis for f in result.fixed] == ["height"]
    assert "not together with others: I refuse" in result.fixed[0].reason


def test_jointly_moving_axes_tied() -> None:
    """Axes of one size that move only at once are tied."""
    plan = planned(height=SIDE, width=SIDE)
    result, model = find_axes(plan, lambda sizes: sizes["height"] == sizes["width"])
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]
    assert result.tied[0].explanation.startswith(
        "width is always height in the graph, as the model takes no other: I refuse"
    )
    assert result.fixed == ()
    assert result.plan.tensors[0].dims == ("batch", "height", "height")
    assert set(result.plan.axes) == set(result.traced) == {"batch", "height"}
    assert result.plan.make({"batch": 3, "height": 90})["x"].shape == (3, 90, 90)
    assert result.full({"batch": 1, "height": 70}) == {"batch": 1, "height": 70, "width": 70}
    assert dynamic_axes.narrow_ranges(model, result, plan.axes, ())["height"] == SIDE


def test_equal_patch_sides_tied() -> None:
    """Sides of one number of patches are tied, though a pixel more may be taken by chance."""
    plan = planned(height=AxisRange(min=64, opt=64, max=96), width=AxisRange(min=64, opt=64, max=96))
    result, _ = find_axes(plan, lambda sizes: sizes["height"] // 16 == sizes["width"] // 16)
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]


@pytest.mark.parametrize("sides", [(64, 64, 96), (160, 224, 224), (64, 224, 448)])
def test_short_range_sides_tied(sides: tuple[int, int, int]) -> None:
    """Sides are tied, however short their range is."""
    side = AxisRange(min=sides[0], opt=sides[1], max=sides[2])
    result, _ = find_axes(planned(height=side, width=side), lambda sizes: sizes["height"] == sizes["width"])
    assert [(t.axis, t.to) for t in result.tied] == [("width", "height")]


def strided(size: int, halvings: int) -> int:
    """The side of the map of features that a network has of an image of one size."""
    for _ in range(halvings):
        size = -(-size // 2)
    return size


@pytest.mark.parametrize("usual", range(64, 130, 4))
@pytest.mark.parametrize("halvings", [3, 4, 5])
@pytest.mark.parametrize("largest", [1, 2])
def test_square_images_have_one_side(usual: int, halvings: int, largest: int) -> None:
    """Strides round small sizes to one map of features: whatever the graph is to take, the model has to."""

    def takes(sizes: dict[str, int]) -> bool:
        return strided(sizes["height"], halvings) == strided(sizes["width"], halvings)

    side = AxisRange(min=64, opt=usual, max=usual * largest)
    plan = planned(height=side, width=side)
    result, model = find_axes(plan, takes)
    ranges = dynamic_axes.narrow_ranges(model, result, plan.axes, ())
    lowest, highest = ({axis: getattr(r, end) for axis, r in ranges.items()} for end in ("min", "max"))
    for mixed in ({**lowest, "width": highest.get("width", 0)}, {**lowest, "height": highest.get("height", 0)}):
        assert takes(result.full({axis: mixed[axis] for axis in ranges}))
    if side.min < side.max:
        assert [t.axis for t in result.tied] == ["width"]


def test_small_sides_asked_far_apart() -> None:
    """An odd number of pixels away, as far as there is room: one pixel away is rounded to the usual size."""
    side = AxisRange(min=64, opt=96, max=96)
    assert first_sizes({"height": side, "width": side, "depth": side})[1] == {"height": 73, "width": 65, "depth": 67}


def test_side_difference_ends_at_limit() -> None:
    """Sides that differ too much for the model end where it takes them."""
    plan = planned(height=SIDE, width=SIDE)
    result, model = find_axes(plan, lambda sizes: sizes["width"] <= 4 * sizes["height"])
    ranges = dynamic_axes.narrow_ranges(model, result, plan.axes, ())
    assert (result.tied, ranges["height"], ranges["width"].max) == ((), SIDE, 256)
    with pytest.raises(UsageError) as caught:
        dynamic_axes.narrow_ranges(model, result, plan.axes, {"height", "width"})
    assert "the model fails at batch 2, height 64, width 448: I refuse" in caught.value.message


@pytest.mark.parametrize("takes_others", [lambda h, w: h % 32 == w % 32 == 0, lambda h, w: (h, w) == (320, 448)])
def test_sides_given_apart_not_tied(
    takes_others: Callable[[int, int], bool],
) -> None:
    """Sides that a person gave apart are not tied where the model takes them."""
    plan = planned(height=SIDE, width=SIDE)
    model = Model(
        plan, lambda sizes: sizes["height"] == sizes["width"] or takes_others(sizes["height"], sizes["width"])
    )
    fixed = {"height": AxisRange(min=320, opt=320, max=320), "width": AxisRange(min=448, opt=448, max=448)}
    axes = plan.axes | fixed
    result = dynamic_axes.find_dynamic_axes(model, plan, axes, set(fixed))
    ranges = dynamic_axes.narrow_ranges(model, result, axes, set(fixed))
    assert result.tied == ()
    assert result.full({axis: r.max for axis, r in ranges.items()}) == {"batch": 32, "height": 320, "width": 448}
    refused = dynamic_axes.find_dynamic_axes(
        model, plan, axes | {"height": AxisRange(min=250, opt=250, max=250)}, set(fixed)
    )
    assert [t.axis for t in refused.tied] == ["width"]


def test_fixed_size_model_skips_multiples() -> None:
    """A model that names its only size is not asked at multiples."""

    class Vit(Model):
        def __call__(self, sizes: Mapping[str, int]) -> dict[str, NDArray[Any]]:
            try:
                return super().__call__(sizes)
            except RuntimeError:
                raise ValueError(f"{sizes['height']}*{sizes['width']} doesn't match model (224*224)") from None

    plan = planned(height=SIDE, width=SIDE)
    model = Vit(plan, lambda sizes: sizes["height"] == sizes["width"] == 224)
    result = dynamic_axes.find_dynamic_axes(model, plan, plan.axes)
    assert [f.axis for f in result.fixed] == ["height", "width"]
    assert len(model.requests) <= 12
    multiples = Vit(plan, lambda sizes: sizes["height"] == sizes["width"] and sizes["width"] % 32 == 0)
    assert [t.axis for t in dynamic_axes.find_dynamic_axes(multiples, plan, plan.axes).tied] == ["width"]


def test_tied_multiples_move_in_steps() -> None:
    """Tied axes of multiples move in steps."""
    result, _ = find_axes(
        planned(height=SIDE, width=SIDE), lambda sizes: sizes["height"] == sizes["width"] and sizes["width"] % 32 == 0
    )
    assert (result.able["height"].step, [t.to for t in result.tied]) == (32, ["height"])


def test_axis_moves_below_its_range() -> None:
    """Strides and patches round: a model of 64 pixels may take 49 to 64 of them."""
    plan = planned(height=AxisRange(min=64, opt=64, max=96))
    result, model = find_axes(plan, lambda sizes: 49 <= sizes["height"] <= 64)
    assert result.fixed == ()
    ranges = dynamic_axes.narrow_ranges(model, result, plan.axes, ())
    assert (ranges["height"].min, ranges["height"].opt, ranges["height"].max) == (62, 64, 64)


def test_ranges_end_at_refusal() -> None:
    """Ranges end where the model refuses."""
    plan = planned(sequence=TOKENS)
    result, model = find_axes(plan, lambda sizes: 7 <= sizes["sequence"] <= 300)
    assert dynamic_axes.narrow_ranges(model, result, plan.axes, ())["sequence"] == AxisRange(min=7, opt=128, max=300)


def test_given_range_never_narrowed() -> None:
    """A range that a person gave is never narrowed."""
    plan = planned(sequence=TOKENS)
    result, model = find_axes(plan, lambda sizes: sizes["sequence"] <= 300)
    with pytest.raises(UsageError) as caught:
        dynamic_axes.narrow_ranges(model, result, plan.axes, {"sequence"})
    assert "the model fails at batch 1, sequence 512: I refuse" in caught.value.message


def test_unanswering_model_is_error() -> None:
    """A model that answers nowhere is an error with its words."""
    with pytest.raises(SourceError) as caught:
        find_axes(planned(sequence=TOKENS), lambda _: False)
    assert "I refuse" in caught.value.message
    assert caught.value.remedy
