"""Samples with the answers of a reference and of a candidate, handed to a judge in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plansmith.data.reference import StoredCase
from plansmith.records.model import Component, Precision, Tensor
from plansmith.records.validation import Evaluation, Tolerance
from plansmith.validation.comparison import TOLERANCES
from plansmith.validation.metrics.agreement import Task
from plansmith.validation.metrics.evaluator import Evaluator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

SAMPLES, LENGTH = 24, 7
AXES = ("batch", "sequence")
LOOSE = Tolerance(max_relative=9, quantile_relative=9, min_cosine=-1, min_mean_cosine=-1)


def component(*outputs: Tensor) -> Component:
    inputs = tuple(Tensor(name=n, dtype="int64", dims=AXES) for n in ("input_ids", "attention_mask"))
    return Component(file="model.onnx", external_files=(), inputs=inputs, outputs=outputs, opset=17, ir_version=8)


HIDDEN = Tensor(name="hidden", dtype="float32", dims=(*AXES, 16))
VECTOR = Tensor(name="vector", dtype="float32", dims=("batch", 16))
LOGITS = Tensor(name="logits", dtype="float32", dims=("batch", 9))
TAGS = Tensor(name="logits", dtype="float32", dims=(*AXES, 9))
START, END = (Tensor(name=f"{n}_logits", dtype="float32", dims=AXES) for n in ("start", "end"))
PLACES = Tensor(name="places", dtype="int64", dims=("batch", 9))
VALUE = Tensor(name="logits", dtype="float32", dims=("batch", 1))


class Material:
    """Answers of a reference, and of a candidate that is off by some noise, to sentences of different lengths."""

    def __init__(self, *outputs: Tensor, noise: float = 0.05, precision: Precision = Precision.INT8) -> None:
        self.rng = np.random.default_rng(8)
        self.component = component(*outputs)
        self.precision = precision
        lengths = 2 + np.arange(SAMPLES) % (LENGTH - 1)
        self.mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
        self.reference = {t.name: self.draw(t) for t in outputs}
        self.candidate = {k: self.near(v, noise) for k, v in self.reference.items()}
        self.labels: Arrays = {}

    def draw(self, output: Tensor) -> NDArray[Any]:
        sizes = [{"batch": SAMPLES, "sequence": LENGTH}.get(str(d), d) for d in output.dims]
        drawn = self.rng.normal(size=[int(s) for s in sizes])
        return (drawn * 100).astype(np.int64) if output.dtype == "int64" else drawn.astype(np.float32)

    def near(self, answer: NDArray[Any], noise: float) -> NDArray[Any]:
        if answer.dtype.kind == "i":
            return answer.copy()
        return (answer + noise * self.rng.normal(size=answer.shape)).astype(np.float32)

    def judge(
        self,
        task: Task | None = None,
        *,
        tolerances: Mapping[str, Tolerance] | None = None,
        batch: int = SAMPLES,
        **options: Any,
    ) -> Evaluation:
        """What a judge says who gets the samples in batches of this size."""
        limits = {t.name: TOLERANCES[self.precision] for t in self.component.outputs} | dict(tolerances or {})
        judge = Evaluator(
            self.component,
            "attention_mask",
            task=task or Task(),
            precision=self.precision,
            tolerances=limits,
            **options,
        )
        for stored, answer, rows in self.batches(batch):
            judge.add(stored, answer, rows)
        return judge.evaluation("samples of the tests")

    def batches(self, size: int) -> Iterator[tuple[StoredCase, Arrays, Sequence[int]]]:
        for start in range(0, SAMPLES, size):
            rows = slice(start, start + size)
            part = [{k: v[rows] for k, v in side.items()} for side in (self.reference, self.candidate, self.labels)]
            feed = {"input_ids": self.mask[rows], "attention_mask": self.mask[rows]}
            stored = StoredCase("case", feed, part[0], np.arange(len(self.mask[rows])), part[2])
            yield stored, part[1], range(100 + start, 100 + start + size)


def means(hidden: NDArray[Any], mask: NDArray[Any]) -> NDArray[np.float64]:
    weights = mask[..., None].astype(np.float64)
    return np.asarray((hidden * weights).sum(axis=1) / weights.sum(axis=1))


def cosines(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


TASKS: dict[str, tuple[Task, tuple[Tensor, ...]]] = {
    "sentences": (Task("neighbours", "mean"), (HIDDEN, VECTOR)),
    "pairs": (Task("spearman", "mean"), (HIDDEN,)),
    "values": (Task("spearman"), (VALUE,)),
    "classes": (Task("accuracy"), (LOGITS, VECTOR)),
    "tokens": (Task("token-f1"), (TAGS,)),
    "answers": (Task("answer-f1"), (START, END)),
}


def labelled(task: str) -> Material:
    material = Material(*TASKS[task][1], noise=0.8)
    rng = np.random.default_rng(9)
    starts = rng.integers(0, 2, SAMPLES)
    score = rng.random(SAMPLES)
    if task == "pairs":
        score[1::2] = np.nan
    material.labels = {
        "class": rng.integers(0, 9, SAMPLES),
        "tags": np.where(rng.random((SAMPLES, LENGTH)) < 0.2, -100, rng.integers(0, 9, (SAMPLES, LENGTH))),
        "start": starts,
        "end": starts + rng.integers(0, 2, SAMPLES),
        "score": score,
    }
    return material
