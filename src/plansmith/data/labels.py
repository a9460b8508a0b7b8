"""Labels as they are read, and as they are stored in the case files.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plansmith.data.sample import Sample
from plansmith.data.table import Row
from plansmith.errors import SourceError, UsageError

CLASS = "class"
TAGS = "tags"
START = "start"
END = "end"
SCORE = "score"
IGNORED = -100

_GIVE_IT = "give it one, take the row out, or set metric: none under `data`"

Kind = Literal["none", "class", "score", "tags", "answer"]


@dataclass(frozen=True)
class Span:
    """An answer: its first letter and the one behind its last, in the second text; both 0 where there is none."""

    begin: int
    end: int


@dataclass(frozen=True)
class Classes:
    """How the names of classes become ids.

    Args:
        of_model: what the model's configuration calls its classes; empty where it has no names of its own.
        of_data: the names in the order that the data number them; empty where they have none.
        count: how many classes the model tells apart.
    """

    of_model: Mapping[str, int]
    of_data: tuple[str, ...]
    count: int

    def ids(self) -> dict[str, int]:
        """The id of each name of the data, and of the model.

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
    """What labels are, by their values.

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
    """The samples with labels as they are aligned and stored: an id, a score, a list of ids, a Span.

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
    """Names of classes that somebody chose: none where they are LABEL_0, LABEL_1 and so on."""
    return {} if all(name == f"LABEL_{number}" for name, number in names.items()) else dict(names)


def label_of(row: Row, column: str, names: tuple[str, ...]) -> Any:
    """The label of a row; ids become names where the data name their classes.

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
    """The first answer, as SQuAD writes them: lists of texts and of the letters that they begin at."""
    texts, starts = label.get("text"), label["answer_start"]
    texts = [texts] if isinstance(texts, str) else list(texts or [])
    starts = [starts] if isinstance(starts, int) else list(starts if starts is not None else [])
    if len(texts) != len(starts):
        raise SourceError(
            f"the answer in row {sample.row} has {len(texts)} text(s) and {len(starts)} answer_start(s)",
            remedy='write {"text": ["…"], "answer_start": [17]}',
        )
    return Span(int(starts[0]), int(starts[0]) + len(texts[0])) if starts else Span(0, 0)


def _unknown(name: str, where: str, of_model: Mapping[str, int]) -> UsageError:
    known = list(of_model)
    shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return UsageError(
        f"data: label {name!r}{where} is none of the model's classes",
        remedy=f"write their names ({shown}) or ids" if known else "write the ids of the classes",
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
