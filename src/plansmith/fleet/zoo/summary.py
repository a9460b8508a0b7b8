"""What a list comes to: the share that is right, and the share of axes that move, of all and by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from plansmith.fleet.zoo.records import Part, Summary, ZooRow

_KINDS = {"hf": "transformers", "timm": "timm"}


def summarise(rows: Sequence[ZooRow], seconds: float) -> Summary:
    """Count rows.

    Args:
        rows: of all entries.
        seconds: that the run took.
    """
    kinds = [part(words, (row for row in rows if row.scheme == kind)) for kind, words in _KINDS.items()]
    return Summary(
        total=part("all", rows),
        kinds=tuple(kind for kind in kinds if kind.entries),
        bare=tuple(_bare(rows)),
        seconds=round(seconds, 2),
        cpu_seconds=round(sum(row.cpu_seconds for row in rows), 2),
    )


def part(kind: str, rows: Iterable[ZooRow]) -> Part:
    """Some rows counted together; what is explained is not right."""
    listed = list(rows)
    return Part(
        kind=kind,
        entries=len(listed),
        right=sum(row.outcome == "right" for row in listed),
        explained=sum(row.outcome != "right" and bool(row.cause) for row in listed),
        axes=sum(len(row.axes) for row in listed),
        moving=sum(row.moving for row in listed),
    )


def share(count: int, of: int) -> float:
    """A part of a whole; all of it where there is nothing."""
    return count / of if of else 1.0


def _bare(rows: Sequence[ZooRow]) -> Iterator[Part]:
    """What plain exporters come to on the same entries."""
    exporters = sorted({bare.exporter for row in rows for bare in row.bare})
    for exporter in exporters:
        found = [(row, bare) for row in rows for bare in row.bare if bare.exporter == exporter]
        yield Part(
            kind=f"torch.onnx.export, {exporter}",
            entries=len(rows),
            right=sum(bare.right for _, bare in found),
            explained=0,
            axes=sum(len(row.axes) for row, _ in found),
            moving=sum(bare.axes_moving for _, bare in found),
        )
