"""Columns and lines of text in a terminal, where a letter takes one cell, two (東) or none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_GAP = "  "
_MORE = "…"
# Characters that turn the order of all that follows in a line, as Unicode's technical report 36 warns of.
_TURNING = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
_TAB = 4


class Cells:
    """How much room text takes."""

    @staticmethod
    def of(text: str) -> int:
        """In cells."""
        from rich.cells import cell_len

        return cell_len(text)

    @staticmethod
    def padded(text: str, width: int) -> str:
        """With spaces behind it up to a width."""
        return text + " " * (width - Cells.of(text))


def safe(text: str) -> str:
    """A line of foreign text that a terminal only shows: whatever would move, colour or turn it as escapes."""
    return "".join(_escaped(c) if _is_command(c) else c for c in text.expandtabs(_TAB))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width; the last column is as long as it is."""
    widths = [max(map(Cells.of, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(Cells.padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def shortened(text: str, most: int) -> str:
    """A name in one line and at most so many cells; of a path the end is kept, of another text the beginning."""
    from rich.cells import set_cell_size

    line = safe(" ".join(text.split()))
    if Cells.of(line) <= most:
        return line
    if "/" in line and " " not in line:
        return _MORE + set_cell_size(line[::-1], most - 1)[::-1]
    return set_cell_size(line, most - 1).rstrip() + _MORE


def wrapped(before: str, text: str, room: int | None) -> Iterator[str]:
    """A text behind what stands before it; what does not fit goes on between words below its beginning.

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
