"""Text layout in a terminal, where a character takes one cell, two (東) or none."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_GAP = "  "
_MORE = "…"
# Characters that turn the order of all that follows in a line, as Unicode's technical report 36 warns of.
_TURNING = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
_TAB = 4


class Cells:
    """Width of text in terminal cells."""

    @staticmethod
    def of(text: str) -> int:
        """Return the width of a text in cells."""
        from rich.cells import cell_len

        return cell_len(text)

    @staticmethod
    def padded(text: str, width: int) -> str:
        """Pad a text with spaces to a width."""
        return text + " " * (width - Cells.of(text))


def safe(text: str) -> str:
    """Escape untrusted text for display in one line: control, color and direction characters become escapes."""
    return "".join(_escaped(c) if _is_command(c) else c for c in text.expandtabs(_TAB))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns; the last column is not padded."""
    widths = [max(map(Cells.of, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(Cells.padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def shortened(text: str, most: int) -> str:
    """Shorten a name to one line and a number of cells; keeps the end of a path, otherwise the beginning."""
    from rich.cells import set_cell_size

    line = safe(" ".join(text.split()))
    if Cells.of(line) <= most:
        return line
    if "/" in line and " " not in line:
        return _MORE + set_cell_size(line[::-1], most - 1)[::-1]
    return set_cell_size(line, most - 1).rstrip() + _MORE


def wrapped(before: str, text: str, room: int | None) -> Iterator[str]:
    """Wrap a text after its prefix, with following lines indented to its beginning.

    Args:
        before: the same in all cells of the first line; the others have spaces.
        text: one line.
        room: cells for the text; None for as many as it takes.
    """
    if room is None or Cells.of(text) <= room:
        yield f"{before}{text}"
        return
    from rich.console import Console
    from rich.text import Text

    lines = Text(text).wrap(Console(width=room), room, overflow="fold")
    for number, line in enumerate(lines):
        yield f"{' ' * Cells.of(before) if number else before}{line.plain.rstrip()}"


def _is_command(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"} or character in _TURNING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


_INDENT = "    "
_MORE_VALUES = " …"
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
    """Layout for showing rows.

    Args:
        width: cells of a line in the terminal; None where lines may be as long as they are.
        names: what a person knows each row of the batch by; none where they are only counted.
        batches: the first dim of every output is the batch.
    """

    width: int | None = None
    names: Sequence[str] = ()
    batches: bool = True

    def heads(self, count: int) -> list[str]:
        """Return the heading of each row: nothing for a single one, otherwise its name or number."""
        if count == 1:
            return [""]
        if len(self.names) != count:
            return [str(number).rjust(len(str(count))) for number in range(1, count + 1)]
        most = _MOST_NAME if self.width is None else max(self.width // _NAME_SHARE, 8)
        return [shortened(name, most) or '""' for name in self.names]

    def room(self, before: int) -> int | None:
        """Return the cells left after a number of cells."""
        return None if self.width is None else max(self.width - len(_INDENT) - before, 8)

    def has_room(self, lines: Sequence[str]) -> bool:
        """Whether lines may have any length."""
        return self.width is None or all(Cells.of(line) + len(_INDENT) <= self.width for line in lines)


def shown_outputs(outputs: Arrays, dtypes: Mapping[str, str], sheet: Sheet, *, values: bool) -> Iterator[str]:
    """Return lines for all outputs: names, dtypes and shapes, and the values on request."""
    scores = {label: score for label in outputs for score in [_score_of(label, outputs)] if score} if values else {}
    for name, array in outputs.items():
        if name in scores.values():
            continue
        descriptions = [
            f"{output}: {dtypes[output]} {list(outputs[output].shape)}" for output in (name, scores.get(name)) if output
        ]
        yield f"  {' with '.join(descriptions)}"
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
    """Decode a string of an answer; invalid UTF-8 becomes escapes."""
    return item.decode(errors="backslashreplace")


def _score_of(label: str, outputs: Arrays) -> str | None:
    """Return the name of the score output for a label output.

    `score` for `label`, `first_scores` for `first_labels`.
    """
    start, separator, end = label.rpartition(_LABEL)
    score = outputs.get(f"{start}{_SCORE}{end}") if separator else None
    if score is None or outputs[label].dtype != object or score.shape != outputs[label].shape or not score.ndim:
        return None
    return f"{start}{_SCORE}{end}" if score.dtype.kind in "fV" else None


def _labels(labels: NDArray[Any], scores: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    """Format one line per sample, likeliest label first; one per label for a single sample or if lines are too long.

    The score stands before its label: labels are of all lengths, and have commas and spaces in them.
    """
    samples = zip(_samples(labels, sheet), _samples(scores.astype("float64"), sheet), strict=True)
    answers = [
        [(_number(score), safe(as_text(label))) for label, score in zip(*sample, strict=True)] for sample in samples
    ]
    heads = sheet.heads(len(answers))
    first, gap = _head_cells(heads)
    rows = [[f"{score} {label}" for score, label in row] for row in answers]
    beside = [f"{Cells.padded(head, first)}{gap}{line}" for head, line in zip(heads, aligned(rows), strict=True)]
    if all(len(row) == 1 for row in answers) or (len(answers) > 1 and sheet.has_room(beside)):
        yield from beside
        return
    digits = max((len(score) for row in answers for score, _ in row), default=0)
    for head, row in zip(heads, answers, strict=True):
        for place, (score, label) in enumerate(row):
            before = f"{Cells.padded('' if place else head, first)}{gap}{score.rjust(digits)}{_GAP}"
            yield from wrapped(before, label, sheet.room(Cells.of(before)))


def _texts(array: NDArray[Any], sheet: Sheet) -> Iterator[str]:
    """Format the texts of each sample; those that hold JSON are pretty-printed."""
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
    """Return the values of an output, one row per sample."""
    return array.reshape(len(array) if sheet.batches else 1, -1)


def _head_cells(heads: Sequence[str]) -> tuple[int, str]:
    """Return the width of the row headers, and the gap between them and the rows."""
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


def _document(value: Any) -> list[str]:
    """Format JSON for reading: a list of uniform records, such as entities in a text, becomes a table."""
    records = value if isinstance(value, list) else []
    keys = list(dict.fromkeys(key for record in records if isinstance(record, dict) for key in record))
    if keys and all(isinstance(record, dict) and _is_flat(record) for record in records):
        rows = [[_cell(record[key]) if key in record else "" for key in keys] for record in records]
        return aligned([[safe(key) for key in keys], *rows])
    whole = json.dumps(value, ensure_ascii=False)
    if len(whole) <= _SHORT_DOCUMENT:
        return [safe(whole)]
    return [safe(line) for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines()]


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
    """Format vectors: Euclidean norm and first values of each sample; of many samples only the first ones."""
    import numpy as np

    count = len(rows)
    heads = sheet.heads(count)[: _MOST_VECTORS if count > _MOST_VECTORS + 1 else count]
    first, gap = _head_cells(heads)
    norms = [f"norm {_number(float(np.linalg.norm(row)))}" for row in rows[: len(heads)]]
    before = [f"{Cells.padded(head, first)}{gap}{norm}" for head, norm in zip(heads, _even(norms), strict=True)]
    room = sheet.room(max(map(Cells.of, before), default=0) + len(_MORE_VALUES))
    shown = _ANYHOW if room is None else max(room // _CELLS_OF_NUMBER, 1)
    for start, row in zip(before, rows, strict=False):
        values = "".join(_number(float(value)).rjust(_CELLS_OF_NUMBER) for value in row[:shown])
        yield f"{start}{values}{_MORE_VALUES if len(row) > shown else ''}"
    if len(heads) < count:
        yield f"… and {count - len(heads)} more, which --json or --output FILE gives"


def _even(cells: Sequence[str]) -> list[str]:
    return [Cells.padded(cell, max(map(Cells.of, cells))) for cell in cells]


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < _PLAIN_BELOW else f"{value:.4g}"
