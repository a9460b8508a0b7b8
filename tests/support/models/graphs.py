"""Small ONNX files as their authors leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from plansmith.compilers.export.requests import ImportRequest
from plansmith.records.model import OnnxModel
from plansmith.steps.worker import import_onnx


def save(text: str, folder: Path, *, header: str = 'ir_version: 8, opset_import: ["": 18]', **weights: Any) -> Path:
    """Write a graph in ONNX's own text form to net.onnx; `?` is a dim without a name.

    Args:
        text: name, inputs, outputs and nodes.
        folder: where it goes.
        header: versions and operator sets.
        weights: initialisers.
    """
    model = parser.parse_model(f"<{header}>\n{text}")
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "?":
                dim.ClearField("dim_param")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items())
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def save_product(folder: Path, location: str = "weights.bin") -> tuple[Path, NDArray[np.float32]]:
    """A product with a weight that lies in a file of its own: [?, 3, 64] to [?, 3, 5]; the weight too."""
    weight = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    text = "product (float[?, 3, 64] x) => (float[?, 3, 5] y) { y = MatMul (x, weight) }"
    path = save(text, folder, weight=weight)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=location, size_threshold=0)
    return path, weight


def take(path: Path, out: Path, **options: Any) -> OnnxModel:
    """What the export step makes of a file, in `out`."""
    out.mkdir()
    progress = options.pop("progress", lambda _: None)
    request = ImportRequest.model_validate({"path": path, "out": out, **options})
    return import_onnx.import_onnx(request, progress)
