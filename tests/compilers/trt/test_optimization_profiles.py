"""Profiles come from the graph's axes or from the spec, and fit the graph."""

from __future__ import annotations

import pytest

from plansmith.compilers.trt.profiles import profiles_of
from plansmith.config.shapes import parse_range
from plansmith.config.tensorrt import TensorRTOptions
from plansmith.errors import UsageError
from plansmith.records.model import AxisRange, InputRange, Tensor

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
