"""Formats of inputs and outputs: which tensors can have them, told with all that do not fit."""

from __future__ import annotations

import pytest

from plansmith.compilers.trt.rules import require_formats
from plansmith.errors import EngineError
from plansmith.records.model import Tensor

TENSORS = (
    Tensor(name="ids", dtype="int64", dims=("batch", "sequence")),
    Tensor(name="pixels", dtype="float32", dims=("batch", 3, 224, 224)),
    Tensor(name="half", dtype="float16", dims=("batch", 3, 224, 224)),
)


def test_what_fits_is_taken() -> None:
    require_formats({"ids": "chw", "pixels": "dhwc", "half": "cdhw32"}, TENSORS)


def test_misfits_told_at_once() -> None:
    """All that does not fit is told at once."""
    with pytest.raises(EngineError) as refused:
        require_formats({"ids": "hwc", "pixels": "hwc8", "half": "chw4", "scores": "chw"}, TENSORS)
    assert refused.value.message.splitlines() == [
        "tensorrt.formats: 4 problems:",
        "  half: the format chw4 is for int8, and it is float16",
        "  ids: the format hwc is for 3 dims and more, and it has 2",
        "  pixels: the format hwc8 is for float16, bfloat16, and it is float32",
        "  scores: the graph has no such input or output",
    ]
    assert "ids, pixels, half" in refused.value.remedy
