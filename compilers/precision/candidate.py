"""A lowered graph that was tried, and what is known of it; the method that made it is not held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from plansmith.compilers import onnx_files
from plansmith.errors import ExportError
from plansmith.records.model import Precision, SpeedRatio, Trial

if TYPE_CHECKING:
    import onnx

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Verdict:
    """What the calibration data say of a candidate.

    Args:
        score: mean cosine of its answers.
        worst: the smallest one.
        problem: why it cannot be taken; None if it can.
        feed: gives the inputs that show the problem best; None where usual ones are as good.
        ran: whether it answered at all.
        refusal: what is wrong with the lowered graph, though its answers are accurate enough.
    """

    score: float
    worst: float
    problem: str | None
    feed: Callable[[], Arrays] | None = None
    ran: bool = True
    refusal: ExportError | None = None

    @classmethod
    def of_failure(cls, problem: str) -> Self:
        """Of what cannot be made or does not run: the worst there is."""
        return cls(score=-1.0, worst=-1.0, problem=problem, ran=False)


@dataclass(frozen=True)
class MethodFacts:
    """What a record tells of a method, without the graphs that it works on; attributes as of `Method`."""

    name: str
    precision: Precision
    settings: Mapping[str, str]
    lowerable: tuple[str, ...]
    kept: Mapping[str, str]
    not_validated: tuple[str, ...]

    @classmethod
    def of(cls, method: Method) -> Self:
        """A method's."""
        return cls(
            name=method.name,
            precision=method.precision,
            settings=dict(method.settings),
            lowerable=tuple(method.lowerable),
            kept=dict(method.kept),
            not_validated=tuple(method.not_validated),
        )


@dataclass(frozen=True)
class Candidate:
    """A lowered graph that was tried.

    Args:
        method: how it was lowered.
        keep: what stayed high because the search wanted it so, in the order of its finding, with the reason.
        folder: holds the graph as model.onnx; gone once the search needs it no more.
        runnable: a graph of the same numbers that ONNX Runtime runs on a CPU; most often that one itself.
        verdict: of the calibration data.
        file_bytes: of the lowered graph with its weights; 0 where none could be made.
        speed: beside FP32, once it was measured.
    """

    method: MethodFacts
    keep: Mapping[str, str]
    folder: Path
    runnable: Path
    verdict: Verdict
    file_bytes: int
    speed: SpeedRatio | None = None

    @property
    def path(self) -> Path:
        """The lowered graph itself."""
        return self.folder / onnx_files.MODEL_FILE

    @property
    def passed(self) -> bool:
        """Whether it may be taken."""
        return self.verdict.problem is None

    @property
    def runs_itself(self) -> bool:
        """Whether ONNX Runtime runs the lowered graph, and not a twin of it."""
        return self.runnable == self.path

    @property
    def name(self) -> str:
        """In words, with what stayed high."""
        return f"{self.method.name}, {len(self.keep)} more node(s) in FP32" if self.keep else self.method.name

    def with_speed(self, speed: SpeedRatio) -> Candidate:
        """The same, measured."""
        return replace(self, speed=speed)

    def trial(self, *, chosen: bool) -> Trial:
        """For the record."""
        return Trial(
            name=self.name,
            precision=self.method.precision,
            lowered=len(self.method.lowerable) - len(self.keep),
            kept=len(self.keep) + len(self.method.kept),
            file_bytes=self.file_bytes,
            score=self.verdict.score,
            worst=self.verdict.worst,
            problem=self.verdict.problem,
            speed=self.speed,
            chosen=chosen,
        )


class Method(Protocol):
    """One way to lower one graph, with all that it needs to know of the data measured once.

    Attributes:
        name: in words, such as "INT8, dynamic, per channel".
        precision: what it lowers to.
        settings: what decides its result, for the recipe.
        lowerable: names of the nodes that it lowers when nobody keeps one high, in the graph's order.
        kept: nodes that it leaves high by itself, by name, with the reason.
        not_validated: what cannot be tried on this machine, in words; empty for nothing.
    """

    name: str
    precision: Precision
    settings: Mapping[str, str]
    lowerable: tuple[str, ...]
    kept: Mapping[str, str]
    not_validated: tuple[str, ...]

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A lowered copy of the graph.

        Args:
            keep: names of nodes among `lowerable` that stay high.
        """
        ...

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The same numbers as a graph that ONNX Runtime can run on a CPU; most often the lowered graph itself."""
        ...
