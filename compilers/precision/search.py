"""The search for a recipe: try a way of lowering, find what spoils it, keep that high, try again within a budget."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.calibration import small_feeds
from plansmith.compilers.precision.candidate import Candidate, Method, MethodFacts, Verdict
from plansmith.compilers.precision.layer_errors import compare_layers, rank_causes
from plansmith.errors import ExportError, first_line
from plansmith.records.model import LayerError

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]


_COMPARED = 8
"""Samples of a batch that layers are compared on: enough to rank nodes by, and many tensors of them fit into memory."""


@dataclass(frozen=True)
class Subject:
    """What a search is made on.

    Args:
        model: the FP32 graph, its nodes named.
        feed: a batch of inputs as they mostly are, for comparing layers.
        mask_input: the input that marks padding with 0; None where there is none.
    """

    model: onnx.ModelProto
    feed: Arrays
    mask_input: str | None = None


@dataclass(frozen=True)
class CandidateEvaluators:
    """Who says whether a candidate may be taken.

    Args:
        accuracy: runs a graph on the calibration data.
        mistakes: looks at the lowered graph of a candidate that is accurate enough, given with whether it runs
            itself; raises ExportError where something is wrong with it.
    """

    accuracy: Callable[[Path], Verdict]
    mistakes: Callable[[onnx.ModelProto, bool], None] = lambda _lowered, _runs_itself: None


class Search:
    """Tries candidates on one graph.

    Of the files only those stay that are needed further: of each method the last candidate that passed; until one
    does, the best and the newest of those that failed. In the end, what was found stays, or the best that failed.

    Args:
        subject: what is lowered.
        judges: say whether a candidate may be taken.
        scratch: an empty folder for the candidates' files.
        progress: told what is tried.

    Attributes:
        tried: every candidate, in order.
    """

    def __init__(
        self, subject: Subject, judges: CandidateEvaluators, scratch: Path, progress: Callable[[str], None]
    ) -> None:
        self.tried: list[Candidate] = []
        self._subject = subject
        self._judges = judges
        self._scratch = scratch
        self._progress = progress

    def find(self, methods: Iterable[Method], budget: int, *, all_of_them: bool) -> list[Candidate]:
        """The methods' graphs that are accurate enough, in the methods' order; where none is, one that was repaired.

        Args:
            methods: the best guess first; each has its own name.
            budget: how many further candidates may be tried for the repair, the most accurate method first; each that
                failed has a share, and what one leaves goes to the next.
            all_of_them: go on after the first that is accurate enough, to see which is fastest.
        """
        found = self._find(methods, budget, all_of_them=all_of_them)
        self._delete_all_but(found or ([best_of(self.tried)] if self.tried else []))
        return found

    def attempt(self, method: Method, keep: Mapping[str, str]) -> Candidate:
        """Lower, write, run and judge; what cannot be lowered so has failed."""
        self._progress(f"trying {method.name}" + (f" with {len(keep)} node(s) more in FP32" if keep else ""))
        folder = self._scratch / str(len(self.tried))
        folder.mkdir()
        path, file_bytes = folder / onnx_files.MODEL_FILE, 0
        try:
            lowered = method.lower(frozenset(keep))
        except ExportError as error:
            verdict = Verdict.of_failure(first_line(error))
        else:
            onnx_files.save(lowered, folder)
            file_bytes = sum(file.stat().st_size for file in folder.iterdir())
            path = self._write_twin(method, lowered, folder) or path
            verdict = self._judge(lowered, path, runs_itself=path.parent == folder)
        candidate = Candidate(MethodFacts.of(method), dict(keep), folder, path, verdict, file_bytes)
        self.tried.append(candidate)
        self._delete_all_but(self._needed())
        return candidate

    def repair(self, method: Method, failed: Candidate, share: int, last: int) -> Candidate | None:
        """Keep the nodes that add most error high, twice as many a time until it passes; then let go of the others.

        What is blamed is measured anew after every attempt, on the inputs that it failed at. None where nothing within
        the budget passes; what was tried tells how far it came.

        Args:
            method: lowers.
            failed: what it made, which is not accurate enough.
            share: how many further candidates may be tried until one passes.
            last: how many candidates there may be in all, those that let go of nodes among them.
        """
        enough = len(self.tried) + share
        candidate, count = failed, 1
        while len(self.tried) < enough:
            blamed = self._blame(candidate, count)
            if not blamed:
                return None
            before, candidate = candidate, self.attempt(method, {**candidate.keep, **blamed})
            if candidate.passed:
                return self._thinned(method, candidate, before.keep, last)
            count *= 2
        return None

    def replace(self, candidate: Candidate) -> None:
        """Take a candidate that more is known of in the place of the same one in `tried`."""
        self.tried = [candidate if tried.folder == candidate.folder else tried for tried in self.tried]

    def layers(self, candidate: Candidate) -> list[LayerError]:
        """The error behind every node that could be lowered, in the graph's order; none where it does not run."""
        return self._compare(candidate, self._subject.feed)

    def _find(self, methods: Iterable[Method], budget: int, *, all_of_them: bool) -> list[Candidate]:
        tried: list[tuple[Method, Candidate]] = []
        for method in methods:
            if method.lowerable:
                tried.append((method, self.attempt(method, {})))
            if tried and tried[-1][1].passed and not all_of_them:
                break
        if passed := [candidate for _, candidate in tried if candidate.passed]:
            return passed
        last = len(self.tried) + budget
        waiting = sorted(tried, key=lambda pair: -pair[1].verdict.score)
        while waiting:
            share = (last - len(self.tried)) // len(waiting)
            if repaired := self.repair(*waiting.pop(0), share, last):
                return [repaired]
        return []

    def _write_twin(self, method: Method, lowered: onnx.ModelProto, folder: Path) -> Path | None:
        """Write the graph that ONNX Runtime runs, where that is another one than the lowered graph."""
        twin = method.runnable(lowered)
        if twin is lowered:
            return None
        (folder / "runnable").mkdir()
        return onnx_files.save(twin, folder / "runnable")

    def _judge(self, lowered: onnx.ModelProto, runnable: Path, *, runs_itself: bool) -> Verdict:
        verdict = self._judges.accuracy(runnable)
        if verdict.problem is not None:
            return verdict
        try:
            self._judges.mistakes(lowered, runs_itself)
        except ExportError as error:
            return replace(verdict, problem=" ".join(error.message.split()), refusal=error)
        return verdict

    def _needed(self) -> list[Candidate]:
        needed = []
        for name in dict.fromkeys(candidate.method.name for candidate in self.tried):
            tried = [candidate for candidate in self.tried if candidate.method.name == name]
            passed = [candidate for candidate in tried if candidate.passed]
            needed += passed[-1:] or [best_of(tried), tried[-1]]
        return needed

    def _delete_all_but(self, needed: Collection[Candidate]) -> None:
        """Candidates are as large as the model, and there are many of them."""
        stay = {candidate.folder for candidate in needed}
        for candidate in self.tried:
            if candidate.folder not in stay and candidate.folder.exists():
                shutil.rmtree(candidate.folder)

    def _blame(self, candidate: Candidate, count: int) -> dict[str, str]:
        """The nodes that add most error, worst first, with the reason; never all that are still lowered."""
        verdict = candidate.verdict
        errors = self._compare(candidate, verdict.feed() if verdict.feed else self._subject.feed)
        lowered = [name for name in candidate.method.lowerable if name not in candidate.keep]
        causes = rank_causes(self._subject.model, errors, lowered)[: min(count, len(lowered) - 1)]
        return {cause.node: cause.words for cause in causes}

    def _thinned(self, method: Method, passed: Candidate, earlier: Collection[str], last: int) -> Candidate:
        """With fewer nodes high: of those kept last half as many a time, of the `earlier` ones each by itself."""
        newest = [name for name in passed.keep if name not in earlier]
        enough, too_few = len(newest), 0
        while enough - too_few > 1 and len(self.tried) < last:
            count = (too_few + enough) // 2
            fewer = self.attempt(method, _only(passed.keep, {*earlier, *newest[:count]}))
            if fewer.passed:
                passed, enough = fewer, count
            else:
                too_few = count
        for name in list(earlier):
            if len(self.tried) >= last:
                break
            fewer = self.attempt(method, _only(passed.keep, set(passed.keep) - {name}))
            passed = fewer if fewer.passed else passed
        return passed

    def _compare(self, candidate: Candidate, feed: Arrays) -> list[LayerError]:
        import onnx

        if not candidate.runnable.exists():  # nothing could be made
            return []
        self._progress("looking for the nodes that bring the error in")
        lowerable = candidate.method.lowerable
        nodes = {name: name not in candidate.keep for name in lowerable}
        nodes |= dict.fromkeys(set(candidate.method.kept) - set(lowerable), False)
        few = next(small_feeds(self._subject.model, [feed], _COMPARED))
        lowered, mask = onnx.load(candidate.runnable), self._subject.mask_input
        try:
            return compare_layers(self._subject.model, lowered, [few], nodes, mask_input=mask)
        except Exception:
            if candidate.verdict.ran:
                raise
            return []  # the verdict tells that it does not run, and why


def best_of(candidates: Collection[Candidate]) -> Candidate:
    """The most accurate one; the first of several."""
    return max(candidates, key=lambda candidate: candidate.verdict.score)


def _only(keep: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: reason for name, reason in keep.items() if name in names}
