"""The records of a zoo: what came of one entry, and of a list."""

from __future__ import annotations

from typing import Literal

from plansmith.errors import in_one_line
from plansmith.records.model import Record

Outcome = Literal["right", "wrong", "failed"]
"""All answers right; the graph answers, some wrongly or its batch is fixed; there is no graph."""


class AxisFinding(Record):
    """One axis that PyTorch takes at other sizes.

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
    """What plain torch.onnx.export makes of the same model, judged by the same rule."""

    exporter: Literal["dynamo", "torchscript"]
    right: bool
    axes_moving: int
    problem: str
    seconds: float


class Limit(Record):
    """What an entry was ended for: it took more seconds of time, or held more bytes of memory, than it was allowed."""

    kind: Literal["time", "memory"]
    allowed: float


class ZooRow(Record):
    """What came of one entry.

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
        """How many of the axes move."""
        return sum(axis.moves for axis in self.axes)

    @property
    def fixed(self) -> tuple[AxisFinding, ...]:
        """The axes that the graph has fixed."""
        return tuple(axis for axis in self.axes if axis.fixed_at)

    @property
    def told(self) -> tuple[str, ...]:
        """Everything that is said against it, or against one of its exporters or axes."""
        axes, bare = (axis.problem for axis in self.axes), (one.problem for one in self.bare)
        return (self.problem, *self.wrong, *self.attempts, *axes, *bare)

    @property
    def why(self) -> str:
        """Why it is not right, in one line; empty where it is."""
        return "" if self.outcome == "right" else self.cause or in_one_line(self.problem) or "nothing says why"


class Part(Record):
    """The rows of one kind together."""

    kind: str
    entries: int
    right: int
    explained: int
    axes: int
    moving: int


class Summary(Record):
    """A whole list: all of it, and by kind. `bare`: shares of plain exporters, where they were asked for."""

    total: Part
    kinds: tuple[Part, ...]
    bare: tuple[Part, ...]
    seconds: float
    cpu_seconds: float


class Zoo(Record):
    """What a run of a list says: its rows in the list's order, and their summary."""

    versions: dict[str, str]
    summary: Summary
    rows: tuple[ZooRow, ...]
