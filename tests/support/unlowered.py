"""Exported graphs as the compile step takes them when nothing was lowered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plansmith.records.model import LoweredModel, OnnxModel


def unlowered(exported: Mapping[str, Any]) -> dict[str, Any]:
    """What lowering makes of a graph that keeps its precision."""
    onnx = OnnxModel.model_validate(exported)
    made = LoweredModel(components=onnx.components, precision=onnx.precision, recipe=None, trials=(), layers=())
    return made.model_dump(mode="json")
