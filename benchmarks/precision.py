"""Accuracy, speed and size of plansmith's recipes beside ONNX Runtime's own tools, on real sentences, in one run.

    python -m benchmarks.precision [SENTENCES]

One export of all-MiniLM-L6-v2 is lowered in every way. Accuracy: cosine of sentence embeddings (mean over the tokens)
with PyTorch's in FP32, on sentences that no calibration saw. Speed: against PyTorch eager, 8 sentences padded to 128
tokens, one thread, in turn. INT8 for TensorRT is judged by what ONNX Runtime computes with its scales; its speed on a
CPU says nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from benchmarks.compile_cost import MINILM
from numpy.typing import NDArray
from tests.support.real_sentences import real_sentences

from plansmith.compilers import onnx_files
from plansmith.compilers.precision import benchmark
from plansmith.compilers.precision.candidate import Method
from plansmith.compilers.precision.fp16 import method as half
from plansmith.compilers.precision.int8 import onnxruntime_methods, tensorrt_method
from plansmith.compilers.precision.lint.linter import lint
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases, store_case
from plansmith.records.model import EngineKind, Precision, SpeedRatio

Arrays = dict[str, NDArray[np.generic]]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"
MASK = "attention_mask"
CALIBRATION, EVALUATION = 64, 320
BATCH, LENGTH = 8, 128
SPEED_SECONDS = 180.0
EAGER = "PyTorch eager"


@dataclass(frozen=True)
class Row:
    """A lowered graph: the file that would be deployed, what ONNX Runtime runs of it, and whether to time it."""

    name: str
    file: Path
    runnable: Path
    timed: bool = True


class Text:
    """The model in PyTorch, and its tokenizer."""

    def __init__(self) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
        self.model = transformers.AutoModel.from_pretrained(MINILM).eval()

    def batches(self, sentences: Sequence[str], *, length: int | None = None) -> Iterator[Arrays]:
        """Eight sentences at a time, padded to the longest of them or to a length."""
        for start in range(0, len(sentences), BATCH):
            chosen = list(sentences[start : start + BATCH])
            padding = {"padding": "max_length" if length else True, "max_length": length or LENGTH}
            encoding = self._tokenizer(chosen, truncation=True, return_tensors="np", **padding)
            yield {name: encoding[name].astype(np.int64) for name in INPUTS}

    def answer(self, feed: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        """The vectors of the tokens, in FP32."""
        with torch.inference_mode():
            tokens = self.model(**{name: torch.from_numpy(array) for name, array in feed.items()})
        vectors: NDArray[np.generic] = tokens.last_hidden_state.numpy()
        return vectors


def main(evaluated: int) -> None:
    torch.set_num_threads(1)
    text, sentences = Text(), real_sentences()
    calibration, evaluation = sentences[:CALIBRATION], sentences[CALIBRATION : CALIBRATION + evaluated]
    with tempfile.TemporaryDirectory(prefix="plansmith-precision-") as name:
        folder = Path(name)
        rows = list(lowered(text, calibration, folder))
        feed = next(text.batches(evaluation, length=LENGTH))
        timed: dict[str, Callable[[], object]] = {EAGER: lambda: text.answer(feed)}
        timed |= {row.name: partial(open_session(row.file), feed) for row in rows if row.timed}
        ratios = benchmark.race(timed, EAGER, setting=benchmark.machine(), budget_seconds=SPEED_SECONDS).result
        print(
            f"{len(evaluation)} held-out sentences; {BATCH}x{LENGTH} tokens, one thread, CPU seconds;"
            f" {benchmark.machine()}"
        )
        print(f"{'':<34}{'cosine mean':>12}{'worst':>10}{'times eager (95 %)':>22}{'MB':>8}{'of FP32':>9}{'lint':>6}")
        references = [(batch, embed(text.answer(batch), batch)) for batch in text.batches(evaluation)]
        for row in rows:
            print_row(row, references, ratios.get(row.name), size_of(rows[0]))


def lowered(text: Text, sentences: Sequence[str], folder: Path) -> Iterator[Row]:
    """FP32, what ONNX Runtime's tools make of it by default, and plansmith's recipes."""
    plain = save(export(text), folder / "fp32")
    yield Row("FP32", plain, plain)
    feeds = [*text.batches(sentences), *text.batches(sentences[:BATCH], length=LENGTH)]
    for name, make in peers(plain, feeds).items():
        path = folder / name.replace(" ", "-") / onnx_files.MODEL_FILE
        path.parent.mkdir()
        make(path)
        yield Row(name, path, path)
    for name, method in recipes(onnx.load(plain), stored(text, feeds, folder)).items():
        model = method.lower(())
        path = save(model, folder / name.replace(" ", "-"))
        runs = method.runnable(model)
        runnable = path if runs is model else save(runs, folder / f"{name.replace(' ', '-')}-runnable")
        yield Row(name, path, runnable, timed="TensorRT" not in name)


def peers(plain: Path, feeds: Sequence[Arrays]) -> dict[str, Callable[[Path], None]]:
    """ONNX Runtime's own tools as they come."""
    from onnxruntime import quantization
    from onnxruntime.transformers import float16

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # it has no types
        """One batch after the other; None at the end."""

        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> Arrays | None:
            return next(self._feeds, None)

    def halve(path: Path) -> None:
        onnx.save(float16.convert_float_to_float16(onnx.load(plain), keep_io_types=True), path)

    return {
        "ONNX Runtime static": lambda path: quantization.quantize_static(plain, path, Reader()),
        "ONNX Runtime dynamic": lambda path: quantization.quantize_dynamic(plain, path),
        "ONNX Runtime float16": halve,
    }


def recipes(model: onnx.ModelProto, samples: StoredCases) -> dict[str, Method]:
    """The first choice of each of plansmith's ways, without the search that follows when a gate is not passed."""
    options = LoweringOptions()
    return {
        "plansmith int8": onnxruntime_methods.methods(model, samples, options, mask_input=MASK)[0],
        "plansmith fp16": half.methods(model, samples, options, precision=Precision.FP16)[0],
        "plansmith int8 for TensorRT": tensorrt_method.methods(model, samples, options, mask_input=MASK)[0],
    }


def export(text: Text) -> onnx.ModelProto:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = text.model

        def forward(self, *tensors: torch.Tensor) -> Any:
            return self.model(**dict(zip(INPUTS, tensors, strict=True))).last_hidden_state

    feed = next(text.batches(["An example of some length.", "Another."]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, onnx_files.MODEL_FILE)
        torch.onnx.export(
            Wrapped().eval(),
            tuple(torch.from_numpy(feed[name]) for name in INPUTS),
            str(path),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*INPUTS, OUTPUT)},
            dynamo=False,
        )
        return onnx.load(path)


def stored(text: Text, feeds: Sequence[Arrays], folder: Path) -> StoredCases:
    cases = [
        store_case(
            f"calibration-{place}",
            dict(zip(("batch", "sequence"), feed[MASK].shape, strict=True)),
            feed,
            {OUTPUT: text.answer(feed)},
            folder / "calibration",
        )
        for place, feed in enumerate(feeds)
    ]
    return StoredCases(cases, folder)


def open_session(path: Path) -> Callable[[Arrays], NDArray[np.generic]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run([OUTPUT], feed)[0]


def embed(vectors: NDArray[np.generic], feed: Arrays) -> NDArray[np.float64]:
    """One vector a sentence, of length 1: the mean over the tokens that are no padding."""
    mask = feed[MASK][:, :, None].astype(np.float64)
    means = (vectors.astype(np.float64) * mask).sum(1) / mask.sum(1)
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def print_row(
    row: Row, references: Sequence[tuple[Arrays, NDArray[np.float64]]], ratio: SpeedRatio | None, fp32_bytes: int
) -> None:
    answer = open_session(row.runnable)
    cosines = np.concatenate([(embed(answer(feed), feed) * expected).sum(1) for feed, expected in references])
    text = f"{ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else "-"
    size = size_of(row)
    engine = EngineKind.ONNXRUNTIME if row.timed else EngineKind.TENSORRT
    errors = sum(finding.severity == "error" for finding in lint(onnx.load(row.file), engine=engine))
    print(
        f"{row.name:<34}{cosines.mean():>12.6f}{cosines.min():>10.6f}{text:>22}"
        f"{size / 1e6:>8.1f}{size / fp32_bytes:>9.3f}{errors:>6}"
    )


def save(model: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return onnx_files.save(model, folder)


def size_of(row: Row) -> int:
    return sum(file.stat().st_size for file in row.file.parent.iterdir())


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else EVALUATION)
