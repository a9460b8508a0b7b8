"""What a search goes by: graphs that ONNX Runtime refuses, and which samples stand for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers.precision.candidate import LoweringTask, TrialEvaluator
from plansmith.config.engine_options import LoweringOptions, LoweringRequest
from plansmith.data.reference import store_case
from plansmith.records.model import EngineKind, Precision

from ...support.precision import hand_made, pipeline


@pytest.fixture
def task(tmp_path: Path) -> LoweringTask:
    prepared = pipeline.prepare(hand_made.products(tmp_path), hand_made.write_rows(tmp_path), tmp_path / "prepared")
    request = LoweringRequest(
        precision=Precision.INT8,
        engine=EngineKind.ONNXRUNTIME,
        device="cpu",
        options=LoweringOptions(),
        tolerances={},
        max_metric_drop=None,
    )
    return LoweringTask(prepared.onnx, prepared.onnx_folder, prepared.data, prepared.data_folder, request)


def test_unopenable_graph_judged_worst(task: LoweringTask, tmp_path: Path) -> None:
    """A graph that cannot be opened is judged worst."""
    model = onnx.load(task.folder / task.component.file)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "strange.onnx")
    (tmp_path / "spoilt.onnx").write_bytes(b"no graph")
    for name in ("strange", "spoilt"):
        verdict = TrialEvaluator(task, Precision.INT8)(tmp_path / f"{name}.onnx")
        assert (verdict.score, verdict.ran) == (-1.0, False)
        assert verdict.problem is not None
        assert verdict.problem.startswith("ONNX Runtime cannot open the engine: ")


def test_representative_batch_is_middling(task: LoweringTask, tmp_path: Path) -> None:
    """Half of all samples are shorter than the one in the middle."""
    cases = []
    for length, batch in ((4, 3), (9, 4), (60, 2), (12, 4)):
        feed = {"x": np.zeros((batch, length), np.float32)}
        cases.append(store_case(f"c{length}", {"batch": batch, "sequence": length}, feed, feed, tmp_path))
    samples = task.data.calibration.model_copy(update={"cases": tuple(cases)})
    data = task.data.model_copy(update={"calibration": samples})
    replacement = replace(task, data=data, data_folder=tmp_path.parent)
    assert replacement.middle_feed["x"].shape == (4, 9)
    assert replacement.largest_case.name == "c60"
