"""Profiles come from the graph's axes or from the spec, and fit the graph."""

from __future__ import annotations

import pytest

from plansmith.compilers.trt.profiles import profiles_of
from plansmith.config.engine_options import TensorRTOptions
from plansmith.config.shapes import parse_range
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


def test_default_profile_uses_graph_axes() -> None:
    """Without a word, there is one profile of the graph's own axes."""
    (profile,) = profiles_of(options(), TEXTS, AXES)
    assert profile.name == "default"
    assert profile.shapes == dict.fromkeys(("input_ids", "attention_mask"), ranges("1x8:8x64:32x256"))
    assert profile.values == {}


def test_fixed_sizes_same_everywhere() -> None:
    """Fixed sizes are the same in all three shapes and scalars need none."""
    scalar = Tensor(name="threshold", dtype="float32", dims=())
    (profile,) = profiles_of(options(), (IMAGE, scalar), IMAGE_AXES)
    assert profile.shapes == {"pixels": ranges("1x3x32x32:4x3x224x224:16x3x512x512")}


def test_regimes_become_profiles() -> None:
    """Each regime of the spec is a profile in its order."""
    settings = {"latency": {"input_ids": "1x8:1x64:1x256"}, "throughput": {"input_ids": "8x8:16x64:32x128"}}
    profiles = profiles_of(options(settings), TEXTS, AXES)
    assert [profile.name for profile in profiles] == ["latency", "throughput"]
    assert profiles[0].shapes["attention_mask"] == ranges("1x8:1x64:1x256")
    assert str(profiles[1].shapes["attention_mask"]) == "8x8:16x64:32x128"


def test_missing_regime_axis_takes_range() -> None:
    """What a regime leaves out takes the range of its axis."""
    pixels = IMAGE.model_copy(update={"dims": ("batch", 3, "height", 64)})
    settings = {"latency": {"input_ids": "1x8:1x64:1x256"}}
    (profile,) = profiles_of(options(settings), (*TEXTS, pixels), AXES | IMAGE_AXES | {"batch": AXES["batch"]})
    assert profile.shapes["pixels"] == ranges("1x3x32x64:1x3x224x64:1x3x512x64")


def test_fixed_model_takes_no_profiles() -> None:
    """A model of fixed shapes has no profiles and takes none."""
    tensor = Tensor(name="x", dtype="float32", dims=(1, 3))
    assert profiles_of(options(), (tensor,), {}) == ()
    with pytest.raises(UsageError, match="fixed") as refused:
        profiles_of(options({"latency": {"x": "1x3"}}), (tensor,), {})
    assert refused.value.remedy
