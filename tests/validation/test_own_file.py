"""A graph that plansmith exported is a source like any other ONNX file: its reference is then itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.data.reference import read_case
from plansmith.records.model import OnnxModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.worker import __main__ as worker
from plansmith.steps.worker import import_onnx

from ..support.unlowered import unlowered
from ..support.validation.graphs import WEIGHTS_FILE, Exported, silent

pytestmark = pytest.mark.slow

SHAPES = {"input_ids": {"min": (1, 1), "opt": (2, 16), "max": (4, 32)}}


def test_a_real_model_is_compiled_again_from_its_own_graph(minilm: Exported, tmp_path: Path) -> None:
    taken, built = tmp_path / "taken", tmp_path / "built"
    for folder in (taken, built):
        folder.mkdir()
    path = minilm.folder / minilm.onnx.components["model"].file
    fields = import_onnx.take_graph(
        path=str(path), shapes=SHAPES, profiles={}, inputs={}, outputs=(), out=str(taken), progress=silent
    )
    onnx_model = OnnxModel.model_validate(fields)
    mine, first = onnx_model.components["model"], minilm.onnx.components["model"]
    assert (mine.inputs, mine.outputs, mine.opset) == (first.inputs, first.outputs, first.opset)
    assert (onnx_model.mask_input, onnx_model.reference.data) == ("attention_mask", "random ids and padding masks")
    assert (taken / mine.external_files[0]).read_bytes() == (minilm.folder / WEIGHTS_FILE).read_bytes()
    ids = read_case(onnx_model.reference.cases[-1], taken).feed["input_ids"]
    rows = _rows(path, "word_embeddings.weight")
    assert rows / 2 < int(np.max(ids.astype(np.int64))) < rows, "drawn from the whole vocabulary, and no more"
    engine: dict[str, Any] = worker.compile_engine(
        lowered=unlowered(fields), folder=str(taken), max_opset=18, max_ir_version=10, out=str(built), progress=silent
    )
    report = worker.validate(
        engine=engine,
        engine_folder=str(built),
        onnx=fields,
        reference_folder=str(taken),
        tolerances={},
        progress=silent,
    )
    assert ValidationReport.model_validate(report).verdict == "passed"


def _rows(path: Path, weight: str) -> int:
    graph = onnx.load(path, load_external_data=False).graph
    return next(int(t.dims[0]) for t in graph.initializer if t.name.endswith(weight))
