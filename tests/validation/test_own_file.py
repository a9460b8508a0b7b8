"""A graph that plansmith exported is a source like any other ONNX file: its reference is then itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers.export.requests import ImportRequest
from plansmith.data.reference import read_case
from plansmith.records.model import InputRange
from plansmith.steps.worker import __main__ as worker
from plansmith.steps.worker import import_onnx
from plansmith.steps.worker.tasks import ValidateRequest

from ..support.validation.graphs import WEIGHTS_FILE, Exported, silent
from ..support.worker_tasks import compile_engine

pytestmark = pytest.mark.slow

SHAPES = {"input_ids": InputRange(min=(1, 1), opt=(2, 16), max=(4, 32))}


def test_own_graph_compiled_again(minilm: Exported, tmp_path: Path) -> None:
    """A real model is compiled again from its own graph."""
    import_folder, built = tmp_path / "taken", tmp_path / "built"
    for folder in (import_folder, built):
        folder.mkdir()
    path = minilm.folder / minilm.onnx.components["model"].file
    onnx_model = import_onnx.import_onnx(ImportRequest(path=path, shapes=SHAPES, out=import_folder), silent)
    mine, first = onnx_model.components["model"], minilm.onnx.components["model"]
    assert (mine.inputs, mine.outputs, mine.opset) == (first.inputs, first.outputs, first.opset)
    assert (onnx_model.mask_input, onnx_model.reference.data) == ("attention_mask", "random ids and padding masks")
    assert (import_folder / mine.external_files[0]).read_bytes() == (minilm.folder / WEIGHTS_FILE).read_bytes()
    ids = read_case(onnx_model.reference.cases[-1], import_folder).feed["input_ids"]
    rows = _rows(path, "word_embeddings.weight")
    assert rows / 2 < int(np.max(ids.astype(np.int64))) < rows, "drawn from the whole vocabulary, and no more"
    report = worker.validate(
        ValidateRequest(
            engine=compile_engine(onnx_model, import_folder, built),
            engine_folder=built,
            onnx=onnx_model,
            reference_folder=import_folder,
            tolerances={},
        ),
        silent,
    )
    assert report.verdict == "passed"


def _rows(path: Path, weight: str) -> int:
    graph = onnx.load(path, load_external_data=False).graph
    return next(int(t.dims[0]) for t in graph.initializer if t.name.endswith(weight))
