"""A model compiled for one fixed shape is judged like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.compilers.export import export
from plansmith.records.model import OnnxModel
from plansmith.steps.worker import __main__ as worker

from ..support.unlowered import unlowered


@pytest.mark.parametrize("shape", ["8x32", "8x8", "1x16"])
def test_dims_are_told_apart_and_the_gate_sees_several_samples_whatever_the_fixed_shape(
    shape: str, tmp_path: Path
) -> None:
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
    fields = export.export(
        source={"scheme": "hf", "trust_remote_code": False, "task": "feature-extraction"},
        inputs={},
        outputs=(),
        folder=str(tmp_path / "model"),
        allow_pickle=False,
        shapes={"input_ids": {"min": sizes, "opt": sizes, "max": sizes}},
        max_opset=23,
        out=str(tmp_path / "onnx"),
        progress=lambda _: None,
    )
    onnx = OnnxModel.model_validate(fields)
    assert [t.dims for t in onnx.components["model"].outputs] == [("batch", "sequence", 32), ("batch", 32)]
    assert len(onnx.reference.cases) >= 3
    inside = [tuple(case.axes.values()) for case in onnx.reference.cases if case.in_range]
    assert inside == [tuple(sizes)]
    engine = worker.compile_engine(
        lowered=unlowered(fields),
        folder=str(tmp_path / "onnx"),
        max_opset=23,
        max_ir_version=11,
        out=str(tmp_path / "engine"),
        progress=lambda _: None,
    )
    assert engine["components"]["model"]["outputs"] == fields["components"]["model"]["outputs"]
