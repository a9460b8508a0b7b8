"""Recipe search.

Tries a lowering, keeps the nodes that harm accuracy in high precision, and repeats within a budget.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.calibration import Positions, find_positions, small_feeds, stream, without_padding
from plansmith.compilers.precision.candidate import Candidate, Method, MethodFacts, Verdict
from plansmith.compilers.precision.graph import Graph
from plansmith.errors import ExportError, first_line
from plansmith.formatting import count
from plansmith.records.model import LayerError

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


AT_ONCE = 32
"""Tensors of each graph that are held at the same time, for one batch."""

BEST_DB, WORST_DB = 150.0, -100.0
"""What stands for no error at all, and for NaN, Inf or an answer that has nothing to do with the right one."""

_COMPARED = 8
"""Samples of a batch that layers are compared on: enough to rank nodes by, and many tensors of them fit into memory."""


def compare_layers(
    reference: onnx.ModelProto,
    lowered: onnx.ModelProto,
    feeds: Sequence[Arrays],
    nodes: Mapping[str, bool],
    *,
    mask_input: str | None = None,
) -> list[LayerError]:
    """Return the error after each node, in the graph's order; nodes whose output the lowered graph lacks are omitted.

    An error that is a constant factor of one channel is none: recipes move scales from one layer into the next. Nor is
    what stands at padding: recipes cut it off on purpose, as it reaches no answer.

    Args:
        reference: the FP32 graph.
        lowered: the same graph lowered, as one that ONNX Runtime runs here.
        feeds: inputs, a batch each.
        nodes: names in the reference, with whether each one is lowered.
        mask_input: the input that marks padding with 0; None where there is none.
    """
    lowered_outputs = {output for node in lowered.graph.node for output in node.output}
    nodes_by_output = {
        node.output[0]: node
        for node in reference.graph.node
        if node.name in nodes and node.output[0] in lowered_outputs
    }
    positions = find_positions(reference, feeds, list(nodes_by_output), mask_input)
    errors = []
    for start in range(0, len(nodes_by_output), AT_ONCE):
        tensors = list(nodes_by_output)[start : start + AT_ONCE]
        noise = dict.fromkeys(tensors, 0.0)
        signal = dict.fromkeys(tensors, 0.0)
        pairs = zip(stream(reference, feeds, tensors), stream(lowered, feeds, tensors), strict=True)
        for feed, (right, candidate) in zip(feeds, pairs, strict=True):
            mask = feed[mask_input].astype(bool) if mask_input in feed else None  # type: ignore[index]
            for tensor in tensors:
                n, s = _noise_and_signal(right[tensor], candidate[tensor], mask, positions[tensor])
                noise[tensor] += n
                signal[tensor] += s
        errors += [
            LayerError(
                node=nodes_by_output[tensor].name,
                op_type=nodes_by_output[tensor].op_type,
                lowered=nodes[nodes_by_output[tensor].name],
                sqnr_db=decibels(signal[tensor], noise[tensor]),
            )
            for tensor in tensors
        ]
    return errors


@dataclass(frozen=True)
class ErrorSource:
    """A node that adds quantization error.

    Args:
        node: its name.
        before: what reaches it in dB, `BEST_DB` for what has no error; None, as `behind`, where nothing was measured.
        behind: what is there once it has computed.
        shown_by: the node in FP32 where it shows; empty: the node itself.
    """

    node: str
    before: float | None = None
    behind: float | None = None
    shown_by: str = ""

    @property
    def added(self) -> float:
        """The noise-to-signal ratio that the node adds."""
        return -math.inf if self.behind is None or self.before is None else _noise(self.behind) - _noise(self.before)

    @property
    def reason(self) -> str:
        """The reason to keep the node in higher precision."""
        if self.behind is None or self.before is None:
            return "cannot be compared with FP32, and what can was not enough"
        place = f"at {self.shown_by}, which takes what it makes" if self.shown_by else "here"
        return f"brought too much error in: from {self.before:.0f} to {self.behind:.0f} dB {place}"


def rank_causes(reference: onnx.ModelProto, errors: Sequence[LayerError], among: Collection[str]) -> list[ErrorSource]:
    """Rank nodes by the error that each adds to its inputs, the worst first.

    A node that is not lowered adds none by itself. What it shows came in with its data, which the nodes before it may
    have stored in few bits, so that these are named for it.

    Args:
        reference: the FP32 graph.
        errors: of its nodes, as `compare_layers` gives them.
        among: names of the lowered nodes, which may be named; those without a measured error come last.
    """
    behind = {error.node: error.sqnr_db for error in errors}
    reached: dict[str, float] = {}  # by tensor: the worst of the nearest measured nodes before it, in dB
    makers: dict[str, frozenset[str]] = {}  # by tensor: the nearest lowered nodes before it
    worst = {name: ErrorSource(name) for name in among}
    for node in Graph(reference).model.graph.node:
        before = min((reached.get(name, BEST_DB) for name in node.input), default=BEST_DB)
        feeders = frozenset[str]().union(*(makers.get(name, ()) for name in node.input))
        lowered = node.name in worst
        if node.name in behind:
            for name in (node.name,) if lowered else feeders:
                cause = ErrorSource(name, before, behind[node.name], "" if lowered else node.name)
                worst[name] = max(worst[name], cause, key=lambda c: c.added)
        reached.update(dict.fromkeys(node.output, behind.get(node.name, before)))
        makers.update(dict.fromkeys(node.output, frozenset({node.name}) if lowered else feeders))
    return sorted(worst.values(), key=lambda cause: -cause.added)


def decibels(signal: float, noise: float) -> float:
    """Return the signal-to-noise ratio in dB, from sums of squares; clipped to `WORST_DB` and `BEST_DB`."""
    if not math.isfinite(noise) or signal <= 0.0 < noise:
        return WORST_DB
    if noise <= 0.0:
        return BEST_DB
    return min(BEST_DB, max(WORST_DB, 10 * math.log10(signal / noise)))


def _noise(db: float) -> float:
    """Convert a signal-to-noise ratio in dB to the noise-to-signal ratio."""
    return float(10 ** (-db / 10))


def _noise_and_signal(
    right: NDArray[np.generic],
    candidate: NDArray[np.generic],
    mask: NDArray[np.bool_] | None,
    positions: Positions,
) -> tuple[float, float]:
    """Sums of squares: the noise that no factor per channel explains, and the reference. Channels: see `_channels`."""
    import numpy as np

    if right.shape != candidate.shape:
        return math.inf, 1.0
    right, candidate = (without_padding(values, mask, positions) for values in (right, candidate))
    if not np.isfinite(candidate).all():
        return math.inf, 1.0
    x, y = _channels(right), _channels(candidate)
    xx, yy, xy = (np.einsum("ij,ij->j", a, b) for a, b in ((x, x), (y, y), (x, y)))
    explained = np.divide(xy**2, yy, out=np.zeros_like(xy), where=yy > 0)
    return float(np.maximum(xx - explained, 0).sum()), float(xx.sum())


def _channels(array: NDArray[np.generic]) -> NDArray[np.float64]:
    """Reshape to [elements, channels].

    Channels are the second axis of images (four axes or more), else the last one.
    """
    import numpy as np

    if array.ndim < 2:
        return array.astype(np.float64).reshape(-1, 1)
    moved = np.moveaxis(array, 1, -1) if array.ndim >= 4 else array
    return moved.astype(np.float64).reshape(-1, moved.shape[-1])


@dataclass(frozen=True)
class Subject:
    """The graph and inputs of a search.

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
    """Candidate evaluators, which decide whether a candidate may be chosen.

    Args:
        accuracy: runs a graph on the calibration data.
        mistakes: looks at the lowered graph of a candidate that is accurate enough, given with whether it runs
            itself; raises ExportError where something is wrong with it.
    """

    accuracy: Callable[[Path], Verdict]
    mistakes: Callable[[onnx.ModelProto, bool], None] = lambda _lowered, _runs_itself: None


class Search:
    """Search: tries candidates on one graph.

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
        """Return the accurate enough graphs in the order of the methods; if there is none, a repaired one.

        Args:
            methods: the best guess first; each has its own name.
            budget: how many further candidates may be tried for the repair, the most accurate method first; each that
                failed has a share, and what one leaves goes to the next.
            all_of_them: go on after the first that is accurate enough, to see which is fastest.
        """
        candidates = self._find(methods, budget, all_of_them=all_of_them)
        self._delete_all_but(candidates or ([best_of(self.tried)] if self.tried else []))
        return candidates

    def attempt(self, method: Method, keep: Mapping[str, str]) -> Candidate:
        """Lower, write, run and evaluate a candidate; one that cannot be lowered has failed."""
        self._progress(f"trying {method.name}" + (f" with {count(len(keep), 'node')} more in FP32" if keep else ""))
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
        """Keep the nodes with the most error in high precision, doubling until it passes; then lower the others again.

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
        """Replace a candidate in `tried` by a copy with more facts."""
        self.tried = [candidate if tried.folder == candidate.folder else tried for tried in self.tried]

    def layers(self, candidate: Candidate) -> list[LayerError]:
        """Return the error after every lowerable node, in the graph's order; none if the candidate does not run."""
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
        """Write the graph for ONNX Runtime, where it differs from the lowered graph."""
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
        """Delete all other candidates: each is as large as the model, and there are many."""
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
        return {cause.node: cause.reason for cause in causes}

    def _thinned(self, method: Method, passed: Candidate, earlier: Collection[str], last: int) -> Candidate:
        """Bisect the high nodes: halve the newest ones each time, and try the `earlier` ones one by one."""
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
        nodes |= dict.fromkeys(set(candidate.method.high_reasons) - set(lowerable), False)
        few = next(small_feeds(self._subject.model, [feed], _COMPARED))
        lowered, mask = onnx.load(candidate.runnable), self._subject.mask_input
        try:
            return compare_layers(self._subject.model, lowered, [few], nodes, mask_input=mask)
        except Exception:
            if candidate.verdict.ran:
                raise
            return []  # the verdict tells that it does not run, and why


def best_of(candidates: Collection[Candidate]) -> Candidate:
    """Return the most accurate candidate; the first of several."""
    return max(candidates, key=lambda candidate: candidate.verdict.score)


def _only(keep: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: reason for name, reason in keep.items() if name in names}
