"""Zoo records: the outcomes of one entry and of a list."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from plansmith.errors import EnvironmentFault, in_one_line
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.records.model import Record
from plansmith.system.memory import tells_of_memory
from plansmith.system.tasks import Task

Outcome = Literal["right", "wrong", "failed"]
"""All answers right; the graph answers, some wrongly or its batch is fixed; there is no graph."""

# Libraries wrap the number in errors of their own, and keep its words.
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_KINDS = {"hf": "transformers", "timm": "timm"}


class AxisFinding(Record):
    """Dynamic axis that PyTorch accepts at other sizes.

    `dims`: the dims that move together, each as input:place.
    `sizes`: those that PyTorch took, besides `base`.
    `moves`: whether the graph has it as an axis, and is right at all of these sizes.
    `fixed_at`: the size that the graph has instead of an axis; 0 where it has one, right or wrong.
    `problem`: why it does not move.
    """

    name: str
    dims: tuple[str, ...]
    base: int
    sizes: tuple[int, ...]
    moves: bool
    fixed_at: int = 0
    problem: str = ""


class BareResult(Record):
    """Baseline result: plain torch.onnx.export of the same model, evaluated by the same rule."""

    exporter: Literal["dynamo", "torchscript"]
    right: bool
    axes_moving: int
    problem: str
    seconds: float


class Limit(Record):
    """Exceeded limit of a stopped entry: seconds of time, or bytes of memory."""

    kind: Literal["time", "memory"]
    allowed: float


class ZooRow(Record):
    """Outcome of one entry.

    `exporter`: the one whose graph was written; empty where there is none.
    `shapes`: how many shapes were compared, `wrong`: the first answers that were not right, in words.
    `attempts`: what the exporters that were not chosen failed with.
    `seconds`: of the whole entry; `cpu_seconds`: likewise, of the processor.
    `problem`: why it is not right, in full; `cause`: the same in a few words, where it is known, with `reference`.
    `limit`: the one that it was ended at, if it was.
    `machine`: whether it lacked memory, room or something installed: it tells nothing of the model, and is not kept.
    `log`: the file that holds what libraries printed, where it is not right.
    """

    name: str
    scheme: Literal["hf", "timm"]
    outcome: Outcome
    exporter: str = ""
    axes: tuple[AxisFinding, ...] = ()
    shapes: int = 0
    wrong: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    graph_bytes: int = 0
    problem: str = ""
    cause: str = ""
    reference: str = ""
    limit: Limit | None = None
    machine: bool = False
    log: str = ""
    bare: tuple[BareResult, ...] = ()

    @property
    def moving(self) -> int:
        """The number of axes that are dynamic in the graph."""
        return sum(axis.moves for axis in self.axes)

    @property
    def fixed(self) -> tuple[AxisFinding, ...]:
        """The axes that are fixed in the graph."""
        return tuple(axis for axis in self.axes if axis.fixed_at)

    @property
    def problems(self) -> tuple[str, ...]:
        """All reported problems of the entry, its exporters and its axes."""
        axes, bare = (axis.problem for axis in self.axes), (exporter.problem for exporter in self.bare)
        return (self.problem, *self.wrong, *self.attempts, *axes, *bare)

    @property
    def why(self) -> str:
        """The reason why it fails, in one line; empty if it does not."""
        return "" if self.outcome == "right" else self.cause or in_one_line(self.problem) or "nothing says why"


class TryRequest(Record):
    """An entry to try in a worker.

    Attributes:
        entry: the entry.
        threads: of PyTorch and ONNX Runtime.
        compare_bare: whether plain exporters are tried on it, too.
    """

    entry: ZooEntry
    threads: int
    compare_bare: bool


TRY_ENTRY = Task("try_entry", TryRequest, ZooRow)


class Part(Record):
    """Subtotal of the rows of one kind."""

    kind: str
    entries: int
    right: int
    explained: int
    axes: int
    moving: int


class Summary(Record):
    """Summary of a list: total and by kind. `bare`: shares of plain exporters, where requested."""

    total: Part
    kinds: tuple[Part, ...]
    bare: tuple[Part, ...]
    seconds: float
    cpu_seconds: float


class Zoo(Record):
    """Zoo results: rows in list order, and their summary."""

    versions: dict[str, str]
    summary: Summary
    rows: tuple[ZooRow, ...]


@dataclass(frozen=True)
class KnownCause:
    """Known cause of a failure.

    Args:
        pattern: a regular expression that finds it in a row's problem and its exporters' attempts.
        description: what it is.
        reference: an upstream page, or a reproduction below tests/fleet/zoo.
    """

    pattern: str
    description: str
    reference: str


CAUSES = (
    KnownCause(
        r"'num_samples' of node 'multinomial'",
        "the number of samples that are drawn depends on the inputs' values",
        "tests/fleet/zoo/test_causes.py::sampled_by_torchscript",
    ),
)


def explained(row: ZooRow) -> ZooRow:
    """Return a row with its known cause, if it fails and the cause is known."""
    if row.outcome == "right":
        return row
    cause = cause_of("\n".join((row.problem, *row.attempts)))
    return row if cause is None else row.model_copy(update={"cause": cause.description, "reference": cause.reference})


def cause_of(text: str) -> KnownCause | None:
    """Return the first known cause that matches a failure's message."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text)), None)


def is_of_the_machine(error: BaseException) -> bool:
    """Whether an error or its cause is a lack of memory or disk space, or a missing installation."""
    return any(
        isinstance(cause, EnvironmentFault) or tells_of_the_machine(f"{type(cause).__name__}: {cause}")
        for cause in _reasons(error)
    )


def _reasons(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its chain of causes; some libraries raise exceptions from themselves."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def tells_of_the_machine(text: str) -> bool:
    """Whether a failure's message reports a lack of memory or a full disk."""
    return tells_of_memory(text) is not None or any(phrase in text for phrase in _FULL)


def summarise(rows: Sequence[ZooRow], seconds: float) -> Summary:
    """Summarize rows.

    Args:
        rows: of all entries.
        seconds: that the run took.
    """
    kinds = [part(label, (row for row in rows if row.scheme == kind)) for kind, label in _KINDS.items()]
    return Summary(
        total=part("all", rows),
        kinds=tuple(kind for kind in kinds if kind.entries),
        bare=tuple(_bare(rows)),
        seconds=round(seconds, 2),
        cpu_seconds=round(sum(row.cpu_seconds for row in rows), 2),
    )


def part(kind: str, rows: Iterable[ZooRow]) -> Part:
    """Count rows as one part; explained failures do not count as right."""
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
    """Return the ratio of a part to the whole; 1 for an empty whole."""
    return count / of if of else 1.0


def _bare(rows: Sequence[ZooRow]) -> Iterator[Part]:
    """Yield the results of plain exporters on the same entries."""
    exporters = sorted({bare.exporter for row in rows for bare in row.bare})
    for exporter in exporters:
        pairs = [(row, bare) for row in rows for bare in row.bare if bare.exporter == exporter]
        yield Part(
            kind=f"torch.onnx.export, {exporter}",
            entries=len(rows),
            right=sum(bare.right for _, bare in pairs),
            explained=0,
            axes=sum(len(row.axes) for row, _ in pairs),
            moving=sum(bare.axes_moving for _, bare in pairs),
        )
