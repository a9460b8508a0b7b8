"""Profiles come from the graph's axes or from the spec, fit the graph, and are chosen as Triton chooses them."""

from __future__ import annotations

import pytest

from plansmith.engines import OptimizationProfile
from plansmith.errors import EngineError, UsageError
from plansmith.optimization_profiles import axes_of_profiles, choose, holds, profiles_of, shapes_of
from plansmith.shapes import parse_range
from plansmith.tensorrt_options import TensorRTOptions
from plansmith.types import AxisRange, InputRange, Tensor

TEXTS = tuple(Tensor(name=n, dtype="int64", dims=("batch", "sequence")) for n in ("input_ids", "attention_mask"))
IMAGE = Tensor(name="pixels", dtype="float32", dims=("batch", 3, "height", "width"))
AXES = {"batch": AxisRange(min=1, opt=8, max=32), "sequence": AxisRange(min=8, opt=64, max=256)}
IMAGE_AXES = {
    "batch": AxisRange(min=1, opt=4, max=16),
    "height": AxisRange(min=32, opt=224, max=512, step=32),
    "width": AxisRange(min=32, opt=224, max=512, step=32),
}


def options(profiles: dict[str, dict[str, str]] | None = None) -> TensorRTOptions:
    return TensorRTOptions.model_validate({"profiles": profiles or {}})


def ranges(text: str) -> InputRange:
    return parse_range("", text)


def test_without_a_word_there_is_one_profile_of_the_graphs_own_axes() -> None:
    (made,) = profiles_of(options(), TEXTS, AXES)
    assert made.name == "default"
    assert made.shapes == dict.fromkeys(("input_ids", "attention_mask"), ranges("1x8:8x64:32x256"))
    assert made.values == {}


def test_fixed_sizes_are_the_same_in_all_three_shapes_and_scalars_need_none() -> None:
    scalar = Tensor(name="threshold", dtype="float32", dims=())
    (made,) = profiles_of(options(), (IMAGE, scalar), IMAGE_AXES)
    assert made.shapes == {"pixels": ranges("1x3x32x32:4x3x224x224:16x3x512x512")}


def test_each_regime_of_the_spec_is_a_profile_in_its_order() -> None:
    given = {"latency": {"input_ids": "1x8:1x64:1x256"}, "throughput": {"input_ids": "8x8:16x64:32x128"}}
    made = profiles_of(options(given), TEXTS, AXES)
    assert [profile.name for profile in made] == ["latency", "throughput"]
    assert made[0].shapes["attention_mask"] == ranges("1x8:1x64:1x256")
    assert str(made[1].shapes["attention_mask"]) == "8x8:16x64:32x128"


def test_what_a_regime_leaves_out_takes_the_range_of_its_axis() -> None:
    pixels = IMAGE.model_copy(update={"dims": ("batch", 3, "height", 64)})
    given = {"latency": {"input_ids": "1x8:1x64:1x256"}}
    (made,) = profiles_of(options(given), (*TEXTS, pixels), AXES | IMAGE_AXES | {"batch": AXES["batch"]})
    assert made.shapes["pixels"] == ranges("1x3x32x64:1x3x224x64:1x3x512x64")


def test_a_model_of_fixed_shapes_has_no_profiles_and_takes_none() -> None:
    tensor = Tensor(name="x", dtype="float32", dims=(1, 3))
    assert profiles_of(options(), (tensor,), {}) == ()
    with pytest.raises(UsageError, match="fixed") as refused:
        profiles_of(options({"latency": {"x": "1x3"}}), (tensor,), {})
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokens": "1x8"}, "no input 'tokens'"),
        ({"pixels": "1x3x224"}, "rank 3, the model's input has rank 4"),
        ({"pixels": "1x1x224x224"}, "axis 1 is fixed at 3"),
        ({"pixels": "1x3x224x224:32x3x224x224:64x3x224x224"}, "1 to 64 is outside of 1 to 16 for 'batch'"),
        ({"pixels": "1x3x32x32:4x3x240x224:16x3x512x512"}, "multiples of 32 only for 'height'"),
    ],
)
def test_a_profile_that_does_not_fit_the_graph_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        profiles_of(options({"latency": given}), (IMAGE,), IMAGE_AXES)
    assert words in refused.value.message
    assert "latency" in refused.value.message
    assert refused.value.remedy


def test_sizes_that_are_out_of_order_are_refused_wherever_they_come_from() -> None:
    wrong = InputRange(min=(4, 8), opt=(2, 8), max=(8, 8))
    steered = TensorRTOptions.model_construct(profiles={"latency": {"input_ids": wrong}})
    with pytest.raises(UsageError, match="min <= opt <= max"):
        profiles_of(steered, TEXTS, AXES)


def test_inputs_that_share_an_axis_cannot_contradict_each_other() -> None:
    given = {"latency": {"input_ids": "1x8:1x64:1x256", "attention_mask": "1x8:2x64:2x256"}}
    with pytest.raises(UsageError, match="different ranges for their common axis 'batch'"):
        profiles_of(options(given), TEXTS, AXES)


def test_all_problems_of_all_profiles_are_said_at_once() -> None:
    given = {"one": {"pixels": "1x3x224", "tokens": "1x8"}, "two": {"pixels": "1x3x224x224:2x3x224x224:99x3x224x224"}}
    with pytest.raises(UsageError) as refused:
        profiles_of(options(given), (IMAGE,), IMAGE_AXES)
    lines = refused.value.message.splitlines()
    assert lines[0] == "tensorrt.profiles: 3 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["one", "one", "two"]
    assert refused.value.remedy.count(";") == 2


def test_two_profiles_that_are_equal_are_refused() -> None:
    given = {"one": {"input_ids": "1x8:8x64:32x256"}, "two": {"attention_mask": "1x8:8x64:32x256"}}
    with pytest.raises(UsageError, match="one and two are the same"):
        profiles_of(options(given), TEXTS, AXES)


def test_an_axis_that_nothing_gives_a_range_is_refused_unless_a_profile_names_it() -> None:
    nameless = Tensor(name="x", dtype="float32", dims=("?", 4))
    unknown = Tensor(name="z", dtype="float32", dims=("frames",))
    with pytest.raises(UsageError) as refused:
        profiles_of(options(), (nameless, unknown), {})
    assert "axis 0 of x" in refused.value.message
    assert "'frames'" in refused.value.message
    (made,) = profiles_of(options({"all": {"x": "1x4:2x4:3x4", "z": "5"}}), (nameless, unknown), {})
    assert made.shapes == {"x": ranges("1x4:2x4:3x4"), "z": ranges("5")}


SIZE = Tensor(name="size", dtype="int64", dims=(2,))


def test_the_range_of_an_input_that_holds_a_shape_is_of_its_contents() -> None:
    given = {"all": {"size": "224x224:384x384:512x512"}}
    (made,) = profiles_of(options(given), (*TEXTS, SIZE), AXES, shape_inputs={"size"})
    assert "size" not in made.shapes
    assert made.values == {"size": ranges("224x224:384x384:512x512")}
    count = Tensor(name="count", dtype="int64", dims=())
    (made,) = profiles_of(options({"all": {"count": "1:4:8"}}), (count,), {}, shape_inputs={"count"})
    assert made.values == {"count": ranges("1:4:8")}


@pytest.mark.parametrize(
    ("given", "words"),
    [({}, "nothing says which values"), ({"size": "224"}, "has 1 values, the input holds 2")],
)
def test_an_input_that_holds_a_shape_is_refused_without_its_values(given: dict[str, str], words: str) -> None:
    steered = options({"all": {"input_ids": "1x8:8x64:32x256", **given}})
    with pytest.raises(UsageError, match=words) as refused:
        profiles_of(steered, (*TEXTS, SIZE), AXES, shape_inputs={"size"})
    assert refused.value.remedy


def test_a_shape_of_more_values_than_tensorrt_reads_is_refused() -> None:
    long = Tensor(name="size", dtype="int64", dims=("n",))
    steered = options({"all": {"size": "x".join(["1"] * 65)}})
    with pytest.raises(UsageError, match="65 values"):
        profiles_of(steered, (long,), {}, shape_inputs={"size"})


def test_the_axes_of_profiles_hold_all_of_them_and_are_tuned_for_the_first() -> None:
    given = {"latency": {"input_ids": "1x16:1x64:2x128"}, "throughput": {"input_ids": "8x8:16x32:24x64"}}
    made = profiles_of(options(given), TEXTS, AXES)
    assert axes_of_profiles(made, TEXTS, AXES) == {
        "batch": AxisRange(min=1, opt=1, max=24),
        "sequence": AxisRange(min=8, opt=64, max=128),
    }
    assert axes_of_profiles((), TEXTS, AXES) == AXES


def test_the_axes_of_profiles_keep_the_steps_of_the_model() -> None:
    made = profiles_of(options({"small": {"pixels": "1x3x32x32:1x3x64x64:1x3x96x96"}}), (IMAGE,), IMAGE_AXES)
    assert axes_of_profiles(made, (IMAGE,), IMAGE_AXES)["height"] == AxisRange(min=32, opt=64, max=96, step=32)


def test_before_there_is_a_graph_the_profiles_say_what_to_ask_the_model_for() -> None:
    given = {
        "latency": {"input_ids": ranges("1x16:1x64:2x128"), "pixels": ranges("1x3x8x8")},
        "throughput": {"input_ids": ranges("8x8:16x32:24x64")},
    }
    assert shapes_of(given) == {"input_ids": ranges("1x8:1x64:24x128")}
    assert shapes_of({}) == {}
    with pytest.raises(UsageError, match="different ranks"):
        shapes_of({"one": {"x": ranges("1x2")}, "two": {"x": ranges("1")}})


def regimes() -> tuple[OptimizationProfile, ...]:
    given = {"latency": {"input_ids": "1x8:1x64:4x256"}, "throughput": {"input_ids": "1x8:16x64:32x128"}}
    return profiles_of(options(given), TEXTS, AXES)


@pytest.mark.parametrize(
    ("shape", "chosen"), [((1, 64), 0), ((4, 64), 0), ((5, 64), 1), ((16, 128), 1), ((2, 200), 0), ((4, 8), 0)]
)
def test_triton_takes_the_nearest_profile_of_those_that_hold_a_request(shape: tuple[int, int], chosen: int) -> None:
    assert choose(regimes(), {"input_ids": shape, "attention_mask": shape}) == chosen


def test_of_equally_near_profiles_the_first_is_taken() -> None:
    given = {"one": {"input_ids": "1x8:1x64:9x256"}, "nine": {"input_ids": "1x8:9x64:9x256"}}
    made = profiles_of(options(given), TEXTS, AXES)
    assert choose(made, {"input_ids": (5, 64), "attention_mask": (5, 64)}) == 0


def test_what_no_profile_holds_is_said_with_its_shapes() -> None:
    with pytest.raises(EngineError, match="input_ids 16x200") as refused:
        choose(regimes(), {"input_ids": (16, 200)})
    assert refused.value.remedy


def test_a_profile_holds_what_is_within_it_in_every_axis() -> None:
    latency, _ = regimes()
    assert holds(latency, {"input_ids": (4, 256)})
    assert not holds(latency, {"input_ids": (4, 257)})
    assert not holds(latency, {"input_ids": (0, 64)})
    assert not holds(latency, {"input_ids": (4, 64, 1)})
    assert holds(latency, {"threshold": ()})


def test_profiles_survive_json() -> None:
    for made in regimes():
        assert OptimizationProfile.model_validate_json(made.model_dump_json()) == made
