"""Tasks of a compile's worker in this process: export, and the engine of a graph that keeps its precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plansmith.compilers.export.export import export
from plansmith.compilers.export.requests import ExportRequest
from plansmith.records.engine import Engine
from plansmith.records.model import LoweredModel, OnnxModel
from plansmith.steps.worker import __main__ as worker
from plansmith.steps.worker.tasks import EngineRequest


def export_model(
    folder: Path, out: Path, *, scheme: str = "hf", max_opset: int = 18, shapes: Any = None, **fields: Any
) -> OnnxModel:
    """Export a model into an empty folder; `fields` are further ones of a `LoadRequest`."""
    model = {"scheme": scheme, "folder": folder, **fields}
    request = {"model": model, "shapes": shapes or {}, "max_opset": max_opset, "out": out}
    return export(ExportRequest.model_validate(request), lambda _: None)


def unlowered(onnx: OnnxModel) -> LoweredModel:
    """What lowering makes of a graph that keeps its precision."""
    return LoweredModel(components=onnx.components, precision=onnx.precision, recipe=None, trials=(), layers=())


def compile_engine(
    onnx: OnnxModel, folder: Path, out: Path, *, max_opset: int = 18, max_ir_version: int = 10
) -> Engine:
    """Make the ONNX Runtime engine of a graph whose files lie in a folder."""
    limits = {"max_opset": max_opset, "max_ir_version": max_ir_version}
    return worker.compile_engine(
        EngineRequest(lowered=unlowered(onnx), folder=folder, out=out, **limits), lambda _: None
    )
