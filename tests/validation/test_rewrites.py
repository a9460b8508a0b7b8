"""A rewrite that keeps what a real model computes is accepted, however much of the graph it changes."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest

from plansmith.records.model import Precision
from plansmith.records.validation import ValidationReport
from plansmith.validation.comparison import TOLERANCES
from plansmith.validation.verdict import require_passed

from ..support.validation.graphs import Change, Exported
from ..support.validation.rewrites import REWRITES, weights_kept_inside

pytestmark = pytest.mark.slow

FP32 = TOLERANCES[Precision.FP32]
LARGEST_SHARE = 1 / 5

Level = onnxruntime.GraphOptimizationLevel


def require_far_from_refused(report: ValidationReport) -> None:
    require_passed(report)
    for row in report.worst().values():
        assert row["max_relative"] < FP32.max_relative * LARGEST_SHARE
        assert row["quantile_relative"] < FP32.quantile_relative * LARGEST_SHARE


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES.keys())
def test_a_graph_is_accepted_when(rewrite: Change, minilm: Exported, name: str) -> None:
    graph = minilm.graph()
    before = graph.model.SerializeToString(deterministic=True)
    rewrite(graph)
    assert graph.model.SerializeToString(deterministic=True) != before
    require_far_from_refused(minilm.judge(graph, name))


@pytest.mark.parametrize("level", [Level.ORT_ENABLE_EXTENDED, Level.ORT_ENABLE_ALL], ids=["extended", "all"])
def test_onnx_runtime_rewrite_accepted(level: object, minilm: Exported, name: str) -> None:
    """What ONNX Runtime makes of a graph is accepted."""
    path = minilm.folder / f"{name}.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(minilm.folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    fused = {n.op_type for n in onnx.load(path, load_external_data=False).graph.node if n.domain == "com.microsoft"}
    assert fused >= {"BiasGelu", "FusedMatMul"}
    require_far_from_refused(minilm.judge_file(path))
    path.unlink()


def test_a_folded_graph_is_accepted(minilm: Exported, name: str) -> None:
    import onnxscript.optimizer

    graph = minilm.graph()
    weights_kept_inside(graph)
    graph.model.CopyFrom(onnxscript.optimizer.optimize(graph.model))
    assert len(graph.nodes) < len(minilm.graph().nodes)
    require_far_from_refused(minilm.judge(graph, name))
