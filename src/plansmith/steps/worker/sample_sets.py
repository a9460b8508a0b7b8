"""Batches of samples, asked and stored: what a source model answers to the two sets of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.data import TEXT, TEXT_PAIR
from plansmith.data.batches import calibration_batches, evaluation_batches, joined_batch
from plansmith.data.labels import CLASS, SCORE, Kind
from plansmith.data.reference import store_case
from plansmith.data.sample import Sample, extent, make_sample
from plansmith.data.task import Answers
from plansmith.errors import UsageError, first_line
from plansmith.formatting import format_bytes
from plansmith.records.model import BATCH, AxisRange, Case, Measured, Pooling, SampleSet
from plansmith.sources.loaded_model import SEQUENCE, Align
from plansmith.system.memory import tells_of_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

CALIBRATION = "calibration"
EVALUATION = "evaluation"

_NEARLY = 0.9
"""A sequence of this share of the longest shows what the longest does."""

_MOST_BYTES = 16 << 30
"""Answers beyond this, on the disk, are nobody's intention: a language model's scores of every word at every token."""


@dataclass(frozen=True)
class SampledModel:
    """A model that can be asked, what is known of it, and where its answers go."""

    plan: InputPlan
    axes: Mapping[str, AxisRange]
    ask: Callable[[Arrays], Arrays]
    class_names: Mapping[str, int]
    pooling: Pooling | None
    out: Path
    progress: Callable[[str], None]

    def batch(self) -> AxisRange:
        """The sizes of a batch.

        Raises:
            UsageError: the first dims of the inputs are no batch, so that no sample can be told from another.
        """
        first = {t.dims[0] if t.dims else None for t in self.plan.tensors}
        size = next(iter(first))
        if first == {BATCH}:
            return self.axes[BATCH]
        if len(first) == 1 and isinstance(size, int):
            return AxisRange(min=size, opt=size, max=size)
        raise UsageError(
            "data: the first dims of the model's inputs are no batch, so that samples cannot be put together",
            remedy="leave `data` out, or call the first dim batch under `inputs`",
        )

    def answer(self, feed: Arrays) -> Arrays:
        """What the model says to one batch.

        Raises:
            UsageError: it refuses data whose form was only guessed.
        """
        try:
            return self.ask(feed)
        except Exception as error:
            if not self.plan.guessed or tells_of_memory(f"{type(error).__name__}: {error}"):
                raise
            form = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
            raise UsageError(
                f"data: the model does not take these values ({form}): {first_line(error)}",
                remedy="give it values as it was trained with; ids, for example, below the size of its vocabulary",
            ) from error

    def pooled(self, answers: Answers, metric: Measured) -> Pooling:
        """How the vectors of tokens become one."""
        if not answers.token_vectors:
            return "none"
        return self.pooling or ("mean" if metric in {"neighbours", "spearman"} else "none")

    def sizes(self, feed: Arrays) -> dict[str, int]:
        """The sizes of the axes in one batch."""
        return {
            dim: size
            for tensor in self.plan.tensors
            for dim, size in zip(tensor.dims, feed[tensor.name].shape, strict=True)
            if isinstance(dim, str)
        }


@dataclass(frozen=True)
class SampleSets:
    """Makes the two sets: batches of samples, asked and stored one at a time."""

    about: SampledModel
    batch: AxisRange
    labels: Kind
    apart: bool

    def calibrate(self, samples: Sequence[Sample]) -> SampleSet:
        """Batches of several sizes, from the shortest samples to the longest.

        Where real texts are short, one batch more fills the longest sequence with several of them joined: ranges
        are looked for at the largest shapes, too.
        """
        ordered = sorted(_units(samples, 2 if self.apart else 1), key=lambda unit: sum(map(extent, unit)))
        flat = [s for unit in ordered for s in unit]
        sizes = calibration_batches(len(flat), self.batch, paired=self.apart)
        found, cases = self._store(flat, sizes, CALIBRATION)
        joined: list[Sample] = []
        longest = self.about.axes.get(SEQUENCE)
        reached = max((c.axes.get(SEQUENCE, 0) for c in cases if len(samples) == 1 or _several(c)), default=0)
        if longest is not None and TEXT in samples[0].values and reached < _NEARLY * longest.max:
            joined = [self._joined(flat, i, longest.max) for i in range(joined_batch(self.batch))]
            cases.append(self._store_one("joined", joined, CALIBRATION, labelled=False))
        everything = [*found, *joined]
        return self._record(everything, cases, labelled=self._labelled and not joined, joined=len(joined))

    def evaluable(self, count: int) -> int:
        """How many of so many samples fill whole batches.

        Raises:
            UsageError: they do not fill one.
        """
        sizes = evaluation_batches(count, self.batch, paired=self.apart)
        if not sizes:
            raise UsageError(
                f"data: the smallest batch holds {self.batch.min} samples, and {count} are for evaluation",
                remedy=f"set evaluation: {self.batch.min} or more under `data`, or a smaller batch with `shapes`",
            )
        return sum(sizes)

    def evaluate(self, samples: Sequence[Sample]) -> SampleSet:
        """Batches in the order of the draw."""
        sizes = evaluation_batches(len(samples), self.batch, paired=self.apart)
        found, cases = self._store(samples, sizes, EVALUATION)
        return self._record(found, cases, labelled=self._labelled)

    @property
    def _labelled(self) -> bool:
        return self.labels != "none"

    def _store(self, samples: Sequence[Sample], sizes: Sequence[int], name: str) -> tuple[list[Sample], list[Case]]:
        """Store batches of these sizes; gives the samples that were taken, too."""
        cases = []
        begin = 0
        for number, size in enumerate(sizes):
            self.about.progress(f"asking the source model about samples for {name} ({begin} of {sum(sizes)})")
            batch = samples[begin : begin + size]
            cases.append(self._store_one(f"batch-{number:03}", batch, name, labelled=self._labelled))
            begin += size
            self._require_space(self.about.out / cases[-1].file, size, sum(sizes), name)
        return list(samples[:begin]), cases

    @staticmethod
    def _require_space(stored: Path, size: int, samples: int, name: str) -> None:
        """See that a set does not fill the disk, by one of its batches.

        Raises:
            UsageError: it would.
        """
        expected = stored.stat().st_size // size * samples
        if expected > _MOST_BYTES:
            raise UsageError(
                f"data: the model's answers to {samples} samples for {name} would take {format_bytes(expected)}",
                remedy="keep only the outputs that matter with `outputs`, set fewer samples under `data`, or shorter"
                " sequences with `shapes`",
            )

    def _store_one(self, case: str, samples: Sequence[Sample], name: str, *, labelled: bool) -> Case:
        align: Align = self.labels if labelled and self.labels in {"tags", "answer"} else ""
        encoded = self.about.plan.encode(samples, self.about.axes, align)
        answer = self.about.answer(encoded.feed)
        labels = {**encoded.labels, **(self._labels(samples) if labelled else {})}
        sizes = self.about.sizes(encoded.feed)
        return store_case(case, sizes, encoded.feed, answer, self.about.out / name, labels=labels)

    def _labels(self, samples: Sequence[Sample]) -> dict[str, NDArray[np.generic]]:
        """Labels that stand at whole samples."""
        import numpy as np

        if self.labels == "class":
            return {CLASS: np.array([s.label for s in samples], np.int64)}
        if self.labels == "score":
            return {SCORE: np.array([np.nan if s.label is None else s.label for s in samples], np.float64)}
        return {}

    def _joined(self, samples: Sequence[Sample], begin: int, length: int) -> Sample:
        """Several texts as one, from the `begin`-th on, until they fill a sequence."""
        first = samples[begin % len(samples)]
        role = TEXT_PAIR if TEXT_PAIR in first.values else TEXT
        value = first.values[role]
        # Every text brings two marks of the tokenizer at most, and one token at least but for empty ones.
        for step in range(1, length + len(samples)):
            joined = make_sample(first.row, {**first.values, role: value})
            feed = self.about.plan.encode([joined], self.about.axes, "").feed
            if self.about.sizes(feed)[SEQUENCE] >= length:
                break
            more = samples[(begin + step) % len(samples)].values[role]
            value = f"{value} {more}" if isinstance(value, str) else [*value, *more]
        return joined

    @staticmethod
    def _record(samples: Sequence[Sample], cases: Sequence[Case], *, labelled: bool, joined: int = 0) -> SampleSet:
        rows, digests = tuple(s.row for s in samples), tuple(s.digest for s in samples)
        return SampleSet(cases=tuple(cases), rows=rows, digests=digests, labelled=labelled, joined=joined)


def _units(samples: Sequence[Sample], size: int) -> Iterator[Sequence[Sample]]:
    """Samples that stay together."""
    return (samples[i : i + size] for i in range(0, len(samples), size))


def _several(case: Case) -> bool:
    return case.axes.get(BATCH, 2) > 1
