"""A model compiled for one fixed shape is judged like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.worker_tasks import compile_engine, export_model


@pytest.mark.parametrize("shape", ["8x32", "8x8", "1x16"])
def test_gate_sees_samples_despite_fixed_dims(shape: str, tmp_path: Path) -> None:
    """Dims are told apart, and the gate sees several samples, whatever the fixed shape."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(tmp_path / "model")
    for name in ("onnx", "engine"):
        (tmp_path / name).mkdir()
    sizes = [int(n) for n in shape.split("x")]
    shapes = {"input_ids": {"min": sizes, "opt": sizes, "max": sizes}}
    model, graph = tmp_path / "model", tmp_path / "onnx"
    onnx = export_model(model, graph, task="feature-extraction", shapes=shapes, max_opset=23)
    assert [t.dims for t in onnx.components["model"].outputs] == [("batch", "sequence", 32), ("batch", 32)]
    assert len(onnx.reference.cases) >= 3
    inside = [tuple(case.axes.values()) for case in onnx.reference.cases if case.in_range]
    assert inside == [tuple(sizes)]
    engine = compile_engine(onnx, graph, tmp_path / "engine", max_opset=23, max_ir_version=11)
    assert engine.components["model"].outputs == onnx.components["model"].outputs
