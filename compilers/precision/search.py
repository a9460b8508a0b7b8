"""The search for a recipe: try a way of lowering, find what spoils it, keep that high, try again within a budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.layers import compare_layers, rank_causes
from plansmith.compilers.precision.method import Method
from plansmith.compilers.precision.observing import small_feeds
from plansmith.types import LayerError, SpeedRatio, Trial

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


_COMPARED = 8
"""Samples of a batch that layers are compared on: enough to rank nodes by, and many tensors of them fit into memory."""


@dataclass(frozen=True)
class Verdict:
    """What the calibration data say of a candidate.

    Args:
        score: mean cosine of its answers.
        worst: the smallest one.
        problem: why it cannot be taken; None if it can.
        feed: gives the inputs that show the problem best; None where the first ones are as good.
    """

    score: float
    worst: float
    problem: str | None
    feed: Callable[[], Arrays] | None = None


@dataclass(frozen=True)
class Candidate:
    """A lowered graph that was tried.

    Args:
        method: how it was lowered.
        keep: what stayed high because the search wanted it so, in the order of its finding, with the reason.
        folder: holds the graph as model.onnx.
        runnable: a graph of the same numbers that ONNX Runtime runs on a CPU; most often that one itself.
        verdict: of the calibration data.
        speed: beside FP32, once it was measured.
    """

    method: Method
    keep: Mapping[str, str]
    folder: Path
    runnable: Path
    verdict: Verdict
    speed: SpeedRatio | None = None

    @property
    def path(self) -> Path:
        """The lowered graph itself."""
        return self.folder / onnx_files.MODEL_FILE

    @property
    def file_bytes(self) -> int:
        """Of the lowered graph with its weights."""
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())

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


class Search:
    """Tries candidates on one graph.

    Args:
        model: the FP32 graph, its nodes named.
        judge: runs a graph on the calibration data.
        feed: a batch of inputs, for comparing layers.
        scratch: an empty folder for the candidates' files.
        progress: told what is tried.

    Attributes:
        tried: every candidate, in order.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        judge: Callable[[Path], Verdict],
        feed: Arrays,
        scratch: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.tried: list[Candidate] = []
        self._model = model
        self._judge = judge
        self._feed = feed
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
                tried.append(self.attempt(method, {}))
            if tried and tried[-1].verdict.problem is None and not all_of_them:
                break
        passed = [candidate for candidate in tried if candidate.verdict.problem is None]
        if passed or not tried:
            return passed
        repaired = self.repair(max(tried, key=lambda candidate: candidate.verdict.score), budget)
        return [repaired] if repaired else []

    def attempt(self, method: Method, keep: Mapping[str, str]) -> Candidate:
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
        candidate = Candidate(method, dict(keep), folder, path, self._judge(path))
        self.tried.append(candidate)
        return candidate

    def repair(self, failed: Candidate, budget: int) -> Candidate | None:
        """Keep the nodes that add most error high, twice as many a time until it passes; then let go of the others.

        What is blamed is measured anew after every attempt, on the inputs that it failed at. None where nothing within
        the budget passes; what was tried tells how far it came.

        Args:
            failed: not accurate enough.
            budget: how many further candidates may be tried.
        """
        last = len(self.tried) + budget
        candidate, count = failed, 1
        while len(self.tried) < last:
            blamed = self._blame(candidate, count)
            if not blamed:
                return None
            before, candidate = candidate, self.attempt(failed.method, {**candidate.keep, **blamed})
            if candidate.verdict.problem is None:
                return self._thinned(candidate, before.keep, last)
            count *= 2
        return None

    def replace(self, candidate: Candidate) -> None:
        """Take a candidate that more is known of in the place of the same one in `tried`."""
        self.tried = [candidate if tried.folder == candidate.folder else tried for tried in self.tried]

    def layers(self, candidate: Candidate) -> list[LayerError]:
        """The error behind every node that could be lowered, in the graph's order."""
        return self._compare(candidate, self._feed)

    def _blame(self, candidate: Candidate, count: int) -> dict[str, str]:
        """The nodes that add most error, worst first, with the reason; never all that are still lowered."""
        verdict = candidate.verdict
        errors = self._compare(candidate, verdict.feed() if verdict.feed else self._feed)
        lowered = [name for name in candidate.method.lowerable if name not in candidate.keep]
        causes = rank_causes(self._model, errors, lowered)[: min(count, len(lowered) - 1)]
        return {cause.node: cause.words for cause in causes}

    def _thinned(self, passed: Candidate, earlier: Collection[str], last: int) -> Candidate:
        """With fewer nodes high: of those kept last half as many a time, of the `earlier` ones each by itself."""
        newest = [name for name in passed.keep if name not in earlier]
        enough, too_few = len(newest), 0
        while enough - too_few > 1 and len(self.tried) < last:
            count = (too_few + enough) // 2
            fewer = self._with(passed, {*earlier, *newest[:count]})
            if fewer.verdict.problem is None:
                passed, enough = fewer, count
            else:
                too_few = count
        for name in list(earlier):
            if len(self.tried) >= last:
                break
            fewer = self._with(passed, set(passed.keep) - {name})
            passed = fewer if fewer.verdict.problem is None else passed
        return passed

    def _with(self, candidate: Candidate, names: Collection[str]) -> Candidate:
        """An attempt with only some of what a candidate keeps."""
        keep = {name: reason for name, reason in candidate.keep.items() if name in names}
        return self.attempt(candidate.method, keep)

    def _compare(self, candidate: Candidate, feed: Arrays) -> list[LayerError]:
        import onnx

        self._progress("looking for the nodes that bring the error in")
        lowerable = candidate.method.lowerable
        nodes = {name: name not in candidate.keep for name in lowerable}
        nodes |= dict.fromkeys(set(candidate.method.kept) - set(lowerable), False)
        few = next(small_feeds(self._model, [feed], _COMPARED))
        return compare_layers(self._model, onnx.load(candidate.runnable), [few], nodes)
