"""Lowered ONNX files as users bring them, with data and a spec beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from plansmith.compilers.precision.graph import Graph
from plansmith.records.model import EngineKind

from . import lint_graphs
from .planting import Mistake

SAMPLES = 16


def right_graphs() -> dict[str, onnx.ModelProto]:
    """The small graphs, plain and lowered rightly, by the names that mistakes know them by."""
    plain = {"attention": lint_graphs.attention(), "cnn": lint_graphs.cnn()}
    return {
        **{f"plain {name}": model for name, model in plain.items()},
        **{f"half {name}": lint_graphs.halved(model) for name, model in plain.items()},
        "attention": lint_graphs.quantised(plain["attention"], lint_graphs.PROJECTIONS),
        "cnn": lint_graphs.quantised(plain["cnn"], lint_graphs.LAYERS),
    }


def with_mistake(model: onnx.ModelProto, mistake: Mistake) -> onnx.ModelProto:
    """A copy that holds the mistake."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return mistake.plant(Graph(copy)) or copy


def lay_out(model: onnx.ModelProto, folder: Path, **spec: Any) -> Path:
    """Write net.onnx, data that it takes, and a spec with both; its path."""
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "samples.npz", **_samples(model))  # type: ignore[arg-type]
    data = {"path": "samples.npz", "calibration": SAMPLES // 2, "evaluation": SAMPLES // 2, "metric": "none"}
    path = folder / "spec.yaml"
    path.write_text(json.dumps({"source": "onnx:net.onnx", "data": data, **spec}))
    return path


def spec_request(mistake: Mistake, engine: EngineKind) -> dict[str, str]:
    """What a spec asks for: the precision that the file is in already."""
    return {"engine": engine.value, "precision": "fp16" if "half" in mistake.into else "int8"}


def _samples(model: onnx.ModelProto) -> dict[str, NDArray[np.generic]]:
    noise = np.random.default_rng(1)
    if model.graph.input[0].name == "image":
        return {"image": noise.normal(size=(SAMPLES, 3, 12, 12)).astype(np.float32)}
    mask = np.ones((SAMPLES, 8), np.int64)
    mask[::2, 4:] = 0
    return {"ids": noise.integers(0, lint_graphs.WORDS, mask.shape), "mask": mask}
