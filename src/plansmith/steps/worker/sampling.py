"""Sampling in the worker: builds calibration and evaluation sets of real data, with the source model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.export.loading import load, plan_graph
from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.data import DEFAULT_CALIBRATION, TEXT, TEXT_PAIR, DataSpec
from plansmith.data.batches import Draw, calibration_batches, draw, evaluation_batches, joined_batch, own_shapes
from plansmith.data.labels import (
    CLASS,
    SCORE,
    Answers,
    Classes,
    Kind,
    choose_metric,
    converted,
    describe_answers,
    kind_of,
    label_kind,
    require_measurable,
)
from plansmith.data.reader import DataPlace, digest_of_samples, open_data
from plansmith.data.reference import store_case
from plansmith.data.sample import Sample, extent, halves, make_sample
from plansmith.errors import UsageError, first_line
from plansmith.formatting import format_bytes
from plansmith.records.model import BARE_SCHEMES, BATCH, AxisRange, Case, DataSet, Measured, Pooling, SampleSet
from plansmith.sources.dynamic_axes import with_tied
from plansmith.sources.huggingface.heads import class_names, pooling_of
from plansmith.sources.loaded_model import SEQUENCE, Align, changes_of, source_arrays
from plansmith.steps.worker.sample_request import EntryPointRequest, SampleDigest, SampleRequest
from plansmith.system.digest import digest_of
from plansmith.system.memory import tells_of_memory
from plansmith.system.tasks import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays
    from plansmith.sources.loaded_model import InputPlan


CALIBRATION = "calibration"
EVALUATION = "evaluation"

_NEARLY = 0.9
"""A sequence of this share of the longest shows what the longest does."""

_MOST_BYTES = 16 << 30
"""Answers beyond this, on the disk, are nobody's intention: a language model's scores of every word at every token."""


@dataclass(frozen=True)
class SampledModel:
    """A model to run on samples, its input plan, and the folder for its outputs."""

    plan: InputPlan
    axes: Mapping[str, AxisRange]
    ask: Callable[[Arrays], Arrays]
    class_names: Mapping[str, int]
    pooling: Pooling | None
    out: Path
    progress: Callable[[str], None]

    def batch(self) -> AxisRange:
        """The range of batch sizes.

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
        """Return the model's outputs for one batch.

        Raises:
            UsageError: it refuses data whose form or values nothing describes.
        """
        try:
            return self.ask(feed)
        except Exception as error:
            is_described = not (self.plan.guessed or self.plan.random_values)
            if is_described or tells_of_memory(f"{type(error).__name__}: {error}"):
                raise
            form = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
            raise UsageError(
                f"data: the model does not take these values ({form}): {first_line(error)}",
                remedy="give it values as it was trained with; ids, for example, below the size of its vocabulary",
            ) from error

    def pooled(self, answers: Answers, metric: Measured) -> Pooling:
        """Return how token embeddings are pooled into one vector."""
        if not answers.token_vectors:
            return "none"
        return self.pooling or ("mean" if metric in {"neighbours", "spearman"} else "none")

    def sizes(self, feed: Arrays) -> dict[str, int]:
        """Return the sizes of the axes in one batch."""
        return {
            dim: size
            for tensor in self.plan.tensors
            for dim, size in zip(tensor.dims, feed[tensor.name].shape, strict=True)
            if isinstance(dim, str)
        }


@dataclass(frozen=True)
class SampleSets:
    """Builder of the two sample sets: runs and stores one batch of samples at a time."""

    about: SampledModel
    batch: AxisRange
    labels: Kind
    apart: bool

    def calibrate(self, samples: Sequence[Sample]) -> SampleSet:
        """Return the calibration set: batches of several sizes, from the shortest samples to the longest.

        Where real texts are short, one batch more fills the longest sequence with several of them joined: ranges
        are looked for at the largest shapes, too.
        """
        ordered = sorted(_units(samples, 2 if self.apart else 1), key=lambda unit: sum(map(extent, unit)))
        flat = [s for unit in ordered for s in unit]
        sizes = calibration_batches(len(flat), self.batch, paired=self.apart)
        records, cases = self._store(flat, sizes, CALIBRATION)
        joined: list[Sample] = []
        longest = self.about.axes.get(SEQUENCE)
        reached = max((c.axes.get(SEQUENCE, 0) for c in cases if len(samples) == 1 or _several(c)), default=0)
        if longest is not None and TEXT in samples[0].values and reached < _NEARLY * longest.max:
            joined = [self._joined(flat, i, longest.max) for i in range(joined_batch(self.batch))]
            cases.append(self._store_one("joined", joined, CALIBRATION, labelled=False))
        everything = [*records, *joined]
        return self._record(everything, cases, labelled=self._labelled and not joined, joined=len(joined))

    def evaluable(self, count: int) -> int:
        """Return how many of `count` samples fill whole batches.

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
        """Return the evaluation set: batches in the order of sampling."""
        sizes = evaluation_batches(len(samples), self.batch, paired=self.apart)
        records, cases = self._store(samples, sizes, EVALUATION)
        return self._record(records, cases, labelled=self._labelled)

    @property
    def _labelled(self) -> bool:
        return self.labels != "none"

    def _store(self, samples: Sequence[Sample], sizes: Sequence[int], name: str) -> tuple[list[Sample], list[Case]]:
        """Store batches of these sizes; return also the samples that were drawn."""
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
        """Check, by one of its batches, that a set does not fill the disk.

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
        """Return the labels that belong to whole samples."""
        import numpy as np

        if self.labels == "class":
            return {CLASS: np.array([s.label for s in samples], np.int64)}
        if self.labels == "score":
            return {SCORE: np.array([np.nan if s.label is None else s.label for s in samples], np.float64)}
        return {}

    def _joined(self, samples: Sequence[Sample], begin: int, length: int) -> Sample:
        """Join several texts, from the `begin`-th on, until they fill a sequence."""
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
    """Return groups of samples that stay together."""
    return (samples[i : i + size] for i in range(0, len(samples), size))


def _several(case: Case) -> bool:
    return case.axes.get(BATCH, 2) > 1


def sample(request: SampleRequest, progress: Progress) -> DataSet:
    """Store the samples of both sets as model inputs, with the model's FP32 outputs and the labels.

    Raises:
        UsageError: the data do not fit the model, or there are too few.
        SourceError: model or data cannot be read.
    """
    progress("loading the model")
    model = request.model
    plan, ask = _open(model)
    plan = with_tied(plan, request.tied)
    is_bare = model.scheme in BARE_SCHEMES
    about = SampledModel(
        plan=plan,
        axes=plan.axes | request.axes,
        ask=ask,
        class_names={} if is_bare else class_names(model.folder),
        pooling=None if is_bare else pooling_of(model.folder, model.task, model.outputs),
        out=request.out,
        progress=progress,
    )
    if request.data is None or request.place is None:
        return _own_inputs(about)
    return _given_samples(about, request.data, request.place)


def entry_point_digest(request: EntryPointRequest, progress: Progress) -> SampleDigest:
    """Run the user's function once and return the digest of all it yields, which is part of the cache key."""
    progress(f"running {request.entry_point}")
    return SampleDigest(digest=digest_of_samples(request.place, request.entry_point))


def _open(request: LoadRequest) -> tuple[InputPlan, Callable[[Arrays], Arrays]]:
    """Open the input source of the model, and the model itself."""
    if request.scheme != "onnx":
        live = load(request).on(request.device)
        return live.inputs, live.ask
    from plansmith.compilers.export import onnx_import

    path, changes = Path(request.location), changes_of(request.inputs)
    _, plan = plan_graph(path, request.inputs, request.outputs)
    original = onnx_import.OriginalGraph(path)

    def ask(feed: Arrays) -> Arrays:
        answer = original.run(source_arrays(feed, changes))
        return {name: answer[name] for name in request.outputs or answer}

    return plan, ask


def _given_samples(about: SampledModel, spec: DataSpec, place: DataPlace) -> DataSet:
    """Return the sample sets of user-provided data."""
    about.progress("reading the data")
    labelled = spec.metric not in {"none", "neighbours"}
    reading = open_data(place, spec.entry_point, spec.columns, about.plan.takes, labelled=labelled)
    drawn = draw(reading.samples, spec, spec.entry_point or place.words)
    batch = about.batch()
    answers = _first_answers(about, drawn, batch)
    kind = kind_of([s.label for s in (*drawn.calibration, *drawn.evaluation)])
    paired = TEXT_PAIR in drawn.calibration[0].values
    metric = choose_metric(spec.metric, answers, kind, paired=paired)
    labels: Kind = label_kind(metric) if kind != "none" else "none"
    classes = Classes(about.class_names, reading.class_names, answers.tags if kind == "tags" else answers.classes)
    # A model of vectors reads each text by itself; a model of scores both together.
    apart = paired and answers.vectors and metric in {"spearman", "neighbours", "none"}

    def prepared(samples: Sequence[Sample]) -> list[Sample]:
        ready = converted(samples, labels, classes)
        return [half for s in ready for half in halves(s)] if apart else ready

    sets = SampleSets(about, batch, labels, apart)
    judging = prepared(drawn.evaluation)
    if judging:  # before the model is asked about anything
        require_measurable(metric, judging[: sets.evaluable(len(judging))])
    is_unused = kind != "none" and labels == "none"
    unused = "; its labels are not used: no output can be held against them" if is_unused else ""
    return DataSet(
        words=f"{reading.description}{unused}",
        digest=place.digest or drawn.digest,
        revision=place.revision,
        available=drawn.available,
        seed=spec.seed,
        real=True,
        guessed=False,
        metric=metric,
        pooling=about.pooled(answers, metric),
        calibration=sets.calibrate(prepared(drawn.calibration)),
        evaluation=sets.evaluate(judging) if judging else None,
    )


def _first_answers(about: SampledModel, drawn: Draw, batch: AxisRange) -> Answers:
    """Return the form of the model's outputs, from the smallest batch."""
    if len(drawn.calibration) < batch.min:
        raise UsageError(
            f"data: the smallest batch holds {batch.min} samples, and {len(drawn.calibration)} are for calibration",
            remedy=f"set calibration: {batch.min} or more under `data`, or a smaller batch with `shapes`",
        )
    samples = [replace(s, label=None) for s in drawn.calibration[: batch.min]]
    feed = about.plan.encode(samples, about.axes, "").feed
    return describe_answers(about.answer(feed), batch.min)


def _own_inputs(about: SampledModel) -> DataSet:
    """Return calibration data from plansmith's own inputs, at shapes from the smallest to the largest."""
    plan = about.plan
    cases: list[Case] = []
    samples: list[Sample] = []
    answers: Answers | None = None
    for number, sizes in enumerate(own_shapes(about.axes, BATCH, DEFAULT_CALIBRATION)):
        about.progress(f"asking the source model about {plan.data} ({'x'.join(map(str, sizes.values()))})")
        feed = plan.make(sizes)
        answer = about.answer(feed)
        count = sizes.get(BATCH) or _length(feed)
        answers = answers or describe_answers(answer, count)
        cases.append(store_case(f"batch-{number:03}", sizes, feed, answer, about.out / CALIBRATION))
        samples += [make_sample(len(samples) + row, _row(feed, row, count)) for row in range(count)]
    digests = tuple(s.digest for s in samples)
    assert answers is not None
    return DataSet(
        words=f"{plan.data}, as no data were given",
        digest=digest_of(digests),
        revision=None,
        available=len(set(digests)),
        seed=0,
        real=False,
        guessed=plan.drawn,
        metric="none",
        pooling=about.pooled(answers, "neighbours"),
        calibration=SampleSet(cases=tuple(cases), rows=tuple(range(len(samples))), digests=digests, labelled=False),
        evaluation=None,
    )


def _length(feed: Arrays) -> int:
    """Return the sample count of inputs without a sample axis: the length of the first that is no scalar."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def _row(feed: Arrays, row: int, count: int) -> Arrays:
    """Return one sample of a batch; inputs without a sample axis, such as an LSTM's state, are passed whole."""
    return {name: array[row] if array.ndim and len(array) == count else array for name, array in feed.items()}
