"""Which measure a task has, told by the model's outputs and by the labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.config.data import Metric
from plansmith.data.labels import Kind
from plansmith.data.sample import Sample
from plansmith.errors import UsageError
from plansmith.records.model import Measured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_VECTORS = re.compile(r"embed|hidden|pool|feature|representation|vector", re.IGNORECASE)


def names_vectors(output: str) -> bool:
    """Whether an output is called as vectors are, and not as scores are."""
    return _VECTORS.search(output) is not None


_FEWEST = 3
"""Of fewer samples there is no nearest one, and no order of ranks."""

_ANSWER = ("start_logits", "end_logits")

_NEEDS: dict[Measured, str] = {
    "none": "nothing",
    "accuracy": "an output of class scores [batch, classes], and no labels other than classes",
    "token-f1": "a list of tags a sample, and an output of class scores [batch, sequence, classes]",
    "answer-f1": "answers with answer_start, and outputs called start_logits and end_logits",
    "spearman": "pairs of texts with a number that says how alike they are, and an output of vectors",
    "neighbours": "an output of vectors, such as embeddings or features",
}


@dataclass(frozen=True)
class Answers:
    """What a model's answers look like.

    Args:
        classes: how many classes the scores of [batch, classes] tell apart; 0 where there are none.
        tags: likewise of [batch, sequence, classes].
        spans: whether there are scores for the first and last token of an answer.
        vectors: whether there are vectors [batch, size] or [batch, sequence, size].
        token_vectors: whether there are such of every token.
    """

    classes: int
    tags: int
    spans: bool
    vectors: bool
    token_vectors: bool


def describe_answers(answer: Mapping[str, NDArray[np.generic]], batch: int) -> Answers:
    """What the outputs are, by their names and ranks. Vectors are told from scores by their names alone.

    Args:
        answer: of one batch.
        batch: its size.
    """
    floats = {n: a for n, a in answer.items() if a.dtype.kind == "f" and a.ndim in {2, 3} and a.shape[0] == batch}
    vectors = {n: a for n, a in floats.items() if names_vectors(n)}
    spans = set(_ANSWER) <= floats.keys()
    scores = {n: a for n, a in floats.items() if n not in vectors and not spans}
    return Answers(
        classes=next((a.shape[1] for a in scores.values() if a.ndim == 2 and a.shape[1] > 1), 0),
        tags=next((a.shape[2] for a in scores.values() if a.ndim == 3), 0),
        spans=spans,
        vectors=bool(vectors),
        token_vectors=any(a.ndim == 3 for a in vectors.values()),
    )


def choose_metric(asked: Metric, answers: Answers, kind: Kind, *, paired: bool) -> Measured:
    """The measure to take; of classes without labels, it is how often FP32 names the same one.

    Args:
        asked: what the spec says.
        answers: what the outputs are.
        kind: what the labels are.
        paired: whether every sample is two texts.

    Raises:
        UsageError: outputs or labels do not have what was asked for.
    """
    able: dict[Measured, bool] = {
        "answer-f1": kind == "answer" and answers.spans,
        "token-f1": kind == "tags" and answers.tags > 0,
        "accuracy": kind in {"class", "none"} and answers.classes > 0,
        "spearman": kind in {"score", "class"} and paired and answers.vectors,
        "neighbours": answers.vectors,
        "none": True,
    }
    if asked == "auto":
        return next(metric for metric, is_able in able.items() if is_able)
    if not able[asked]:
        have = "no labels" if kind == "none" else f"labels that are of the kind {kind!r}"
        raise UsageError(
            f"data: metric {asked} needs {_NEEDS[asked]}; there are {have}, and the outputs hold {_outputs(answers)}",
            remedy="leave `metric` out, give such labels (`columns: {label: …}`), or take a model with such"
            " outputs (--task)",
        )
    return asked


def require_measurable(metric: Measured, samples: Sequence[Sample]) -> None:
    """See that the samples of an evaluation are enough for its measure, before a model is asked about them.

    Args:
        metric: what will be measured.
        samples: as they will be asked, with their labels converted; of pairs that are read apart, both halves.

    Raises:
        UsageError: they are too few, or all have the same score.
    """
    scores = [s.label for s in samples if s.label is not None] if metric == "spearman" else []
    if metric in {"spearman", "neighbours"} and len(scores or samples) < _FEWEST:
        raise UsageError(
            f"data.metric: {metric} needs {_FEWEST} {'pairs' if scores else 'samples'} or more for evaluation, and"
            f" there are {len(scores or samples)}",
            remedy=f"set evaluation: {_FEWEST} or more under `data` (better: hundreds), or metric: none",
        )
    if scores and len(set(scores)) == 1:
        raise UsageError(
            f"data.metric: {metric} compares orders, and all {len(scores)} samples for evaluation have the score"
            f" {scores[0]:g}",
            remedy="give samples of different scores, or set metric: none under `data`",
        )


def label_kind(metric: Measured) -> Kind:
    """What labels a measure reads."""
    kinds: dict[Measured, Kind] = {
        "accuracy": "class",
        "token-f1": "tags",
        "answer-f1": "answer",
        "spearman": "score",
    }
    return kinds.get(metric, "none")


def _outputs(answers: Answers) -> str:
    found = {
        f"scores of {answers.classes} classes": answers.classes,
        f"scores of {answers.tags} classes a token": answers.tags,
        "where an answer starts and ends": answers.spans,
        "vectors": answers.vectors,
    }
    return " and ".join(words for words, there in found.items() if there) or "none of these"
