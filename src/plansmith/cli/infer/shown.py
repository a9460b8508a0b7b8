"""How `plansmith infer` shows answers to a person: labels with their scores, texts, embeddings, other numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.cli.infer.layout import Cells, aligned, safe, shortened, wrapped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_INDENT = "    "
_MORE = " …"
_GAP = "  "
_ANYHOW = 6
"""So many numbers of a sample are shown as they are; of longer ones the first."""
_CELLS_OF_NUMBER = 9
_MOST_VECTORS = 10
_MOST_BYTES = 24
_SHORT_DOCUMENT = 48
_NAME_SHARE = 3
_MOST_NAME = 40
_PLAIN_BELOW = 1000
_LABEL, _SCORE = "label", "score"


@dataclass(frozen=True)
class Sheet:
    """What rows are shown on.

    Args:
        width: cells of a line in the terminal; None where lines may be as long as they are.
        names: what a person knows each row of the batch by; none where they are only counted.
        batches: the first dim of every output is the batch.
    """

    width: int | None = None
    names: Sequence[str] = ()
    batches: bool = True

    def heads(self, count: int) -> list[str]:
        """What stands before each of so many rows: nothing before a single one, else its name or number."""
        if count == 1:
            return [""]
        if len(self.names) != count:
            return [str(number).rjust(len(str(count))) for number in range(1, count + 1)]
        most = _MOST_NAME if self.width is None else max(self.width // _NAME_SHARE, 8)
        return [shortened(name, most) or '""' for name in self.names]

    def room(self, before: int) -> int | None:
        """Cells that are left behind so many."""
        return None if self.width is None else max(self.width - len(_INDENT) - before, 8)

    def has_room(self, lines: Sequence[str]) -> bool:
        """Whether lines can be as long as they are."""
        return self.width is None or all(Cells.of(line) + len(_INDENT) <= self.width for line in lines)


def shown_outputs(outputs: Arrays, dtypes: Mapping[str, str], sheet: Sheet, *, values: bool) -> Iterator[str]:
    """Lines for all outputs: names, dtypes and shapes, and the values where they are wanted."""
    scores = {label: score for label in outputs for score in [_score_of(label, outputs)] if score} if values else {}
    for name, array in outputs.items():
        if name in scores.values():
            continue
        told = [f"{one}: {dtypes[one]} {list(outputs[one].shape)}" for one in (name, scores.get(name)) if one]
        yield f"  {' with '.join(told)}"
        if not values:
            continue
        if name in scores:
            lines = _labels(array, outputs[scores[name]], sheet)
        elif array.dtype == object:
            lines = _texts(array, sheet)
        else:
            lines = _numbers(array, sheet)
        yield from (f"{_INDENT}{line}".rstrip() for line in lines)


def as_text(item: bytes) -> str:
    """A string of an answer; what is no UTF-8 in it as escapes."""
    return item.decode(errors="backslashreplace")


def _score_of(label: str, outputs: Arrays) -> str | None:
    """The output with the scores of another with labels: `score` to `label`, `first_scores` to `first_labels`."""
    start, found, end = label.rpartition(_LABEL)
    score = outputs.get(f"{start}{_SCORE}{end}") if found else None
    if score is None or outputs[label].dtype != object or score.shape != outputs[label].shape or not score.ndim:
        return None
    return f"{start}{_SCORE}{end}" if score.dtype.kind in "fV" else None


def _labels(labels: NDArray[Any], scores: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    """A line for each sample, the likeliest first; a line for each label where a sample is alone, or lines too long.

    The score stands before its label: labels are of all lengths, and have commas and spaces in them.
    """
    samples = zip(_samples(labels, sheet), _samples(scores.astype("float64"), sheet), strict=True)
    told = [
        [(_number(score), safe(as_text(label))) for label, score in zip(*sample, strict=True)] for sample in samples
    ]
    heads = sheet.heads(len(told))
    first, gap = _head_cells(heads)
    rows = [[f"{score} {label}" for score, label in row] for row in told]
    beside = [f"{Cells.padded(head, first)}{gap}{line}" for head, line in zip(heads, aligned(rows), strict=True)]
    if all(len(row) == 1 for row in told) or (len(told) > 1 and sheet.has_room(beside)):
        yield from beside
        return
    digits = max((len(score) for row in told for score, _ in row), default=0)
    for head, row in zip(heads, told, strict=True):
        for place, (score, label) in enumerate(row):
            before = f"{Cells.padded('' if place else head, first)}{gap}{score.rjust(digits)}{_GAP}"
            yield from wrapped(before, label, sheet.room(Cells.of(before)))


def _texts(array: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    """The texts of each sample; those that hold JSON laid out."""
    samples = _samples(array, sheet)
    heads = sheet.heads(len(samples))
    first, gap = _head_cells(heads)
    for head, sample in zip(heads, samples, strict=True):
        before = f"{Cells.padded(head, first)}{gap}"
        for item in sample:
            for line in _lines_of(item):
                yield from wrapped(before, line, sheet.room(Cells.of(before)))
                before = " " * Cells.of(before)


def _samples(array: NDArray[Any], sheet: Sheet) -> NDArray[Any]:
    """The values of an output, a row for each sample."""
    return array.reshape(len(array) if sheet.batches else 1, -1)


def _head_cells(heads: Sequence[str]) -> tuple[int, str]:
    """How wide what stands before rows is, and what parts it from them."""
    first = max(map(Cells.of, heads), default=0)
    return first, _GAP if first else ""


def _lines_of(item: bytes) -> list[str]:
    try:
        text = item.decode()
    except UnicodeDecodeError:
        shown = f"{as_text(item[:_MOST_BYTES])}{'…' if len(item) > _MOST_BYTES else ''}"
        return [f"{len(item)} bytes that are no text: {safe(shown)}"]
    if text.startswith(("{", "[")):
        try:
            return _document(json.loads(text))
        except (ValueError, RecursionError):
            pass
    return [safe(line) for line in text.split("\n")] if text else ['""']


def _document(found: Any) -> list[str]:
    """JSON as a person reads it: a table where it is a list of records of one kind, such as entities in a text."""
    records = found if isinstance(found, list) else []
    keys = list(dict.fromkeys(key for record in records if isinstance(record, dict) for key in record))
    if keys and all(isinstance(record, dict) and _is_flat(record) for record in records):
        rows = [[_cell(record[key]) if key in record else "" for key in keys] for record in records]
        return aligned([[safe(key) for key in keys], *rows])
    whole = json.dumps(found, ensure_ascii=False)
    if len(whole) <= _SHORT_DOCUMENT:
        return [safe(whole)]
    return [safe(line) for line in json.dumps(found, indent=2, ensure_ascii=False).splitlines()]


def _is_flat(record: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, list | dict) for value in record.values())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    return safe(value) if isinstance(value, str) else json.dumps(value)


def _numbers(array: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    import numpy as np

    plain = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    rank = 2 if sheet.batches else 1
    if plain.dtype.kind == "f" and plain.ndim == rank and plain.shape[-1] > _ANYHOW:
        yield from _vectors(plain.reshape(-1, plain.shape[-1]).astype(np.float64), sheet)
        return
    text = np.array2string(plain, precision=6, threshold=_ANYHOW, edgeitems=_ANYHOW // 2)
    yield from text.splitlines()


def _vectors(rows: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    """Of each sample the length (the Euclidean norm) and the first values; of many samples the first."""
    import numpy as np

    count = len(rows)
    heads = sheet.heads(count)[: _MOST_VECTORS if count > _MOST_VECTORS + 1 else count]
    first, gap = _head_cells(heads)
    norms = [f"norm {_number(float(np.linalg.norm(row)))}" for row in rows[: len(heads)]]
    before = [f"{Cells.padded(head, first)}{gap}{norm}" for head, norm in zip(heads, _even(norms), strict=True)]
    room = sheet.room(max(map(Cells.of, before), default=0) + len(_MORE))
    shown = _ANYHOW if room is None else max(room // _CELLS_OF_NUMBER, 1)
    for start, row in zip(before, rows, strict=False):
        values = "".join(_number(float(value)).rjust(_CELLS_OF_NUMBER) for value in row[:shown])
        yield f"{start}{values}{_MORE if len(row) > shown else ''}"
    if len(heads) < count:
        yield f"… and {count - len(heads)} more, which --json or --output FILE gives"


def _even(cells: Sequence[str]) -> list[str]:
    return [Cells.padded(cell, max(map(Cells.of, cells))) for cell in cells]


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < _PLAIN_BELOW else f"{value:.4g}"
