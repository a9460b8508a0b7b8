"""The search for a recipe: try a way of lowering, find what spoils it, keep that high, try again within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.layers import compare_layers, rank_causes
from plansmith.compilers.precision.method import Method
from plansmith.types import LayerError, SpeedRatio, Trial

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Verdict:
    """What the calibration data say of a candidate: mean and worst cosine, and why it cannot be taken, if it cannot."""

    score: float
    worst: float
    problem: str | None


@dataclass(frozen=True)
class Candidate:
    """A lowered graph that was tried.

    Args:
        method: how it was lowered.
        keep: what stayed high because the search wanted it so, worst first.
        folder: holds the graph as model.onnx; `runnable` is the one that ONNX Runtime runs on a CPU.
        runnable: the same file for most methods.
        verdict: of the calibration data.
        speed: beside FP32, once it was measured.
    """

    method: Method
    keep: tuple[str, ...]
    folder: Path
    runnable: Path
    verdict: Verdict
    speed: SpeedRatio | None = None

    @property
    def file_bytes(self) -> int:
        """Of the lowered graph with its weights."""
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())

    @property
    def runs_itself(self) -> bool:
        """Whether ONNX Runtime runs the lowered graph, and not a twin of it."""
        return self.runnable.parent == self.folder

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


class Search:
    """Tries candidates on one graph.

    Args:
        model: the FP32 graph, its nodes named.
        judge: runs a graph on the calibration data.
        feeds: a few batches, for comparing layers.
        scratch: an empty folder for the candidates' files.
        progress: told what is tried.

    Attributes:
        tried: every candidate, in order.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        judge: Callable[[Path], Verdict],
        feeds: Sequence[Arrays],
        scratch: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.tried: list[Candidate] = []
        self._model = model
        self._judge = judge
        self._feeds = feeds
        self._scratch = scratch
        self._progress = progress

    def find(self, methods: Iterable[Method], budget: int, *, all_of_them: bool) -> list[Candidate]:
        """The methods' graphs that are accurate enough; where none is, the most accurate of them, repaired.

        Args:
            methods: the best guess first.
            budget: how many further candidates may be tried for the repair.
            all_of_them: go on after the first that is accurate enough, to see which is fastest.
        """
        tried: list[Candidate] = []
        for method in methods:
            if method.lowerable:
                tried.append(self.attempt(method, ()))
            if tried and tried[-1].verdict.problem is None and not all_of_them:
                break
        passed = [candidate for candidate in tried if candidate.verdict.problem is None]
        if passed or not tried:
            return passed
        repaired = self.repair(max(tried, key=lambda candidate: candidate.verdict.score), budget)
        return [repaired] if repaired else []

    def attempt(self, method: Method, keep: Sequence[str]) -> Candidate:
        """Lower, write, run and judge."""
        self._progress(f"trying {method.name}" + (f" with {len(keep)} node(s) more in FP32" if keep else ""))
        folder = self._scratch / str(len(self.tried))
        folder.mkdir()
        lowered = method.lower(frozenset(keep))
        path = onnx_files.save(lowered, folder)
        twin = method.runnable(lowered)
        if twin is not lowered:
            (folder / "runnable").mkdir()
            path = onnx_files.save(twin, folder / "runnable")
        candidate = Candidate(method, tuple(keep), folder, path, self._judge(path))
        self.tried.append(candidate)
        return candidate

    def repair(self, failed: Candidate, budget: int) -> Candidate | None:
        """Keep the nodes that add most error high: twice as many until it passes, then halving back to the fewest.

        None where nothing within the budget passes; what was tried tells how far it came.
        """
        method, passed = failed.method, None
        ranked = rank_causes(self._model, self.layers(failed), method.lowerable)
        enough, too_few = len(ranked), 0
        count = 1
        while budget > 0 and too_few < count < enough:
            candidate = self.attempt(method, ranked[:count])
            budget -= 1
            if candidate.verdict.problem is None:
                passed, enough = candidate, count
            else:
                too_few = count
            count = (too_few + enough) // 2 if passed else min(2 * count, enough - 1)
        return passed

    def layers(self, candidate: Candidate) -> list[LayerError]:
        """The error behind every node that could be lowered, in the graph's order."""
        import onnx

        self._progress("looking for the nodes that bring the error in")
        lowerable = candidate.method.lowerable
        nodes = {name: name not in candidate.keep for name in lowerable}
        nodes |= dict.fromkeys(set(candidate.method.kept) - set(lowerable), False)
        return compare_layers(self._model, onnx.load(candidate.runnable), self._feeds, nodes)
