"""Labels, as read from data and as stored in the case files.

Every stored array has one row a sample of the batch; -100 stands for "does not count":

- `class`: int64 [batch], the index of the right class score;
- `tags`: int64 [batch, sequence], the right class of every token: of the first token of a word, -100 at the
  others, at marks and at padding;
- `start`, `end`: int64 [batch], the first and last token of the answer; both 0 where the text holds none, both
  -100 where the answer was cut off;
- `score`: float64 [batch], how alike the two texts of a pair are, at the first text; NaN at the second. A pair are
  the samples 2i and 2i + 1, counted over all cases of a set in their order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.data import Metric
from plansmith.data.sample import Sample
from plansmith.data.tables import Row
from plansmith.errors import SourceError, UsageError
from plansmith.formatting import count
from plansmith.records.model import Measured

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CLASS = "class"
TAGS = "tags"
START = "start"
END = "end"
SCORE = "score"
IGNORED = -100

_GIVE_IT = "give it one, take the row out, or set metric: none under `data`"

Kind = Literal["none", "class", "score", "tags", "answer"]

_VECTORS = re.compile(r"embed|hidden|pool|feature|representation|vector", re.IGNORECASE)
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
class Span:
    """Answer span: start and end (exclusive) character in the second text; both 0 without an answer."""

    begin: int
    end: int


@dataclass(frozen=True)
class Classes:
    """Mapping of class names to ids.

    Args:
        of_model: what the model's configuration calls its classes; empty where it has no names of its own.
        of_data: the names in the order that the data number them; empty where they have none.
        count: how many classes the model tells apart.
    """

    of_model: Mapping[str, int]
    of_data: tuple[str, ...]
    count: int

    def ids(self) -> dict[str, int]:
        """Return the id of each name of the data, and of the model.

        Raises:
            UsageError: data and model name their classes differently, so that nobody can tell which is which.
        """
        model = {_folded(name): number for name, number in self.of_model.items()}
        if not self.of_data:
            return model
        names = [_folded(name) for name in self.of_data]
        unknown = [name for name, folded in zip(self.of_data, names, strict=True) if folded not in model]
        if model and not unknown:
            return {folded: model[folded] for folded in names}
        if model and len(unknown) < len(names):
            raise _unknown(unknown[0], "", self.of_model)
        if all(name.lstrip("-").isdecimal() for name in names):
            return {name: int(name) for name in names}
        if len(names) == self.count:
            return {folded: number for number, folded in enumerate(names)}
        raise _unknown(self.of_data[0], "", self.of_model or {str(i): i for i in range(self.count)})


def kind_of(labels: Sequence[Any]) -> Kind:
    """Return the kind of labels, by their values.

    Numbers that are all whole are classes, and so are names; other numbers are scores; lists are tags.
    """
    if not labels or any(label is None for label in labels):
        return "none"
    if all(isinstance(label, Mapping) and "answer_start" in label for label in labels):
        return "answer"
    if all(_is_list(label) for label in labels):
        return "tags"
    numbers = [_number(label) for label in labels]
    if all(n is not None and math.isfinite(n) for n in numbers):
        written = [label for label in labels if isinstance(label, str) and not _is_whole(label)]
        is_whole = all(n is not None and n == int(n) for n in numbers) and not written
        return "class" if is_whole else "score"
    return "class" if all(isinstance(label, str) for label in labels) else "none"


def converted(samples: Sequence[Sample], kind: Kind, classes: Classes) -> list[Sample]:
    """Convert samples to labels as aligned and stored: an id, a score, a list of ids, a Span.

    Raises:
        UsageError: a class that the model does not have.
        SourceError: a label of another form than the others.
    """
    if kind == "none":
        return [replace(sample, label=None) for sample in samples]
    ids = classes.ids() if kind in {"class", "tags"} else {}

    def as_class(label: Any, sample: Sample) -> int:
        return _class_id(label, sample, ids, classes)

    forms: dict[str, Callable[[Any, Sample], Any]] = {
        "class": as_class,
        "tags": lambda label, sample: [as_class(tag, sample) for tag in label],
        "score": lambda label, _: _number(label),
        "answer": _span,
    }
    return [replace(sample, label=forms[kind](sample.label, sample)) for sample in samples]


def own_names(names: Mapping[str, int]) -> dict[str, int]:
    """Return class names that were chosen by hand: none if they are LABEL_0, LABEL_1 and so on."""
    return {} if all(name == f"LABEL_{number}" for name, number in names.items()) else dict(names)


def label_of(row: Row, column: str, names: tuple[str, ...]) -> Any:
    """Return the label of a row; ids become names if the data names its classes.

    Raises:
        SourceError: there is none, or an id that has no name.
    """
    label = row.values.get(column)
    if label is None:
        raise SourceError(
            f"{row.where} has no value for the label {column!r}",
            remedy=_GIVE_IT,
        )
    if hasattr(label, "tolist"):
        label = label.tolist()
    return [_named(tag, names, row) for tag in label] if _is_list(label) else _named(label, names, row)


def _named(label: Any, names: tuple[str, ...], row: Row) -> Any:
    if not names or not isinstance(label, int):
        return label
    if label == -1:  # as the hub marks what nobody has labelled
        raise SourceError(
            f"{row.where} has no label (-1)", remedy="take another split, or set metric: none under `data`"
        )
    if not 0 <= label < len(names):
        raise SourceError(f"{row.where}: label {label} is none of {len(names)} classes", remedy="mend that label")
    return names[label]


def _class_id(label: Any, sample: Sample, ids: Mapping[str, int], classes: Classes) -> int:
    number = ids.get(_folded(label)) if isinstance(label, str) else None
    if number is None:
        value = _number(label)
        if value is None or value != int(value):
            raise _unknown(str(label), f" (row {sample.row})", classes.of_model)
        number = int(value)
    if not 0 <= number < classes.count:
        raise UsageError(
            f"data: label {label!r} in row {sample.row} is none of the model's {classes.count} classes"
            f" (0 to {classes.count - 1})",
            remedy="number the labels as the model does, or write the names of its classes",
        )
    return number


def _span(label: Any, sample: Sample) -> Span:
    """Return the first answer in the SQuAD format: lists of texts and of their start characters."""
    texts, starts = label.get("text"), label["answer_start"]
    texts = [texts] if isinstance(texts, str) else list(texts or [])
    starts = [starts] if isinstance(starts, int) else list(starts if starts is not None else [])
    if len(texts) != len(starts):
        raise SourceError(
            f"the answer in row {sample.row} has {count(len(texts), 'text')} and {count(len(starts), 'answer_start')}",
            remedy='write {"text": ["…"], "answer_start": [17]}',
        )
    return Span(int(starts[0]), int(starts[0]) + len(texts[0])) if starts else Span(0, 0)


def _unknown(name: str, where: str, of_model: Mapping[str, int]) -> UsageError:
    names = list(of_model)
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return UsageError(
        f"data: label {name!r}{where} is none of the model's classes",
        remedy=f"write their names ({shown}) or ids" if names else "write the ids of the classes",
    )


def _folded(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split()) if not _is_whole(name) else name


def _is_whole(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _is_list(label: Any) -> bool:
    return isinstance(label, Sequence) and not isinstance(label, str | bytes)


def _number(label: Any) -> float | None:
    try:
        return float(label) if not isinstance(label, Mapping | bytes) and not _is_list(label) else None
    except (TypeError, ValueError):
        return None


def names_vectors(output: str) -> bool:
    """Whether an output is named like vectors rather than scores."""
    return _VECTORS.search(output) is not None


@dataclass(frozen=True)
class Answers:
    """Structure of a model's answers.

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
    """Describe the outputs by their names and ranks. Only names tell vectors from scores.

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


def choose_metric(requested: Metric, answers: Answers, kind: Kind, *, paired: bool) -> Measured:
    """Choose the metric; for classes without labels, the rate of agreement with FP32.

    Args:
        requested: what the spec says.
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
    if requested == "auto":
        return next(metric for metric, is_able in able.items() if is_able)
    if not able[requested]:
        have = "no labels" if kind == "none" else f"labels that are of the kind {kind!r}"
        raise UsageError(
            f"data: metric {requested} needs {_NEEDS[requested]}; there are {have},"
            f" and the outputs hold {_outputs(answers)}",
            remedy="leave `metric` out, give such labels (`columns: {label: …}`), or take a model with such"
            " outputs (--task)",
        )
    return requested


def require_measurable(metric: Measured, samples: Sequence[Sample]) -> None:
    """Require that the evaluation samples suffice for their metric, before the model runs on them.

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
    """Return the kind of labels that a metric reads."""
    kinds: dict[Measured, Kind] = {
        "accuracy": "class",
        "token-f1": "tags",
        "answer-f1": "answer",
        "spearman": "score",
    }
    return kinds.get(metric, "none")


def _outputs(answers: Answers) -> str:
    presence = {
        f"scores of {answers.classes} classes": answers.classes,
        f"scores of {answers.tags} classes a token": answers.tags,
        "where an answer starts and ends": answers.spans,
        "vectors": answers.vectors,
    }
    return " and ".join(description for description, is_present in presence.items() if is_present) or "none of these"
