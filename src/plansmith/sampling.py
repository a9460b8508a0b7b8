"""Sampling, in the heavy child: real data become calibration and evaluation sets, with the source model's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.data.batches import calibration_batches, evaluation_batches, joined_batch, own_shapes
from plansmith.data.drawing import Draw, draw
from plansmith.data.labels import CLASS, SCORE, Classes, converted, kind_of
from plansmith.data.reading import DataPlace, digest_of_samples, open_data
from plansmith.data.samples import Sample, extent, halves, make_sample
from plansmith.data.tasks import Answers, Resolved, choose_metric, describe_answers, label_kind
from plansmith.data_spec import DEFAULT_CALIBRATION, TEXT, TEXT_PAIR, DataSpec
from plansmith.digest import digest_of
from plansmith.errors import UsageError, first_line
from plansmith.loading import axes_of, load, plan_graph
from plansmith.memory import tells_of_memory
from plansmith.reference import store_case
from plansmith.sources.heads import class_names, pooling_of
from plansmith.sources.live import BATCH, SEQUENCE, Align
from plansmith.types import AxisRange, Case, DataSet, SampleSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.live import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

CALIBRATION = "calibration"
EVALUATION = "evaluation"

_NEARLY = 0.9
"""A sequence of this share of the longest shows what the longest does."""

Progress = Callable[[str], None]


def sample(
    *,
    source: Mapping[str, Any],
    folder: str,
    allow_pickle: bool,
    shapes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    data: Mapping[str, Any] | None,
    place: Mapping[str, Any] | None,
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Store the samples of both sets as the model's inputs, with its FP32 answers and the labels.

    Args:
        source: scheme, location, trust_remote_code and task of the model.
        folder: holds its files.
        allow_pickle: whether pickled weights may be read.
        shapes: ranges by input, as the spec has them.
        inputs: what the spec says about inputs.
        outputs: those to keep; all when empty.
        data: the spec's DataSpec; None: plansmith's own inputs, for calibration alone.
        place: where the data lie (a DataPlace); None without data.
        out: the folder to store in.
        progress: told what is done.

    Raises:
        UsageError: the data do not fit the model, or there are too few.
        SourceError: model or data cannot be read.
    """
    progress("loading the model")
    plan, ask = _open(source, Path(folder), allow_pickle, inputs, outputs)
    is_graph = source["scheme"] == "onnx"
    about = _About(
        plan=plan,
        axes=axes_of(plan, shapes),
        ask=ask,
        class_names={} if is_graph else class_names(Path(folder)),
        pooling=None if is_graph else pooling_of(Path(folder)),
        out=Path(out),
        progress=progress,
    )
    if data is None or place is None:
        found = _own_inputs(about)
    else:
        found = _given_samples(about, DataSpec.model_validate(data), DataPlace.model_validate(place))
    return found.model_dump(mode="json")


def entry_point_digest(*, entry_point: str, place: Mapping[str, Any], progress: Progress) -> dict[str, str]:
    """Run the user's function once: the digest of all that it yields, which is what a cached result goes by."""
    progress(f"running {entry_point}")
    return {"digest": digest_of_samples(DataPlace.model_validate(place), entry_point)}


@dataclass(frozen=True)
class _About:
    """A model that can be asked, what is known of it, and where its answers go."""

    plan: InputPlan
    axes: Mapping[str, AxisRange]
    ask: Callable[[Arrays], Arrays]
    class_names: Mapping[str, int]
    pooling: Literal["none", "mean", "first"] | None
    out: Path
    progress: Progress

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

    def pooled(self, answers: Answers, metric: Resolved) -> Literal["none", "mean", "first"]:
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


def _open(
    source: Mapping[str, Any], folder: Path, allow_pickle: bool, inputs: Mapping[str, Any], outputs: Sequence[str]
) -> tuple[InputPlan, Callable[[Arrays], Arrays]]:
    """What the source model is fed with, and the model itself."""
    if source["scheme"] != "onnx":
        live = load(source, folder, allow_pickle, inputs, outputs)
        return live.inputs, live.ask
    from plansmith.compilers import onnx_import

    path = Path(source["location"])
    _, plan = plan_graph(path, inputs, outputs)
    asked = onnx_import.Asked(path)

    def ask(feed: Arrays) -> Arrays:
        answer = asked.run(feed)
        return {name: answer[name] for name in outputs or answer}

    return plan, ask


def _given_samples(about: _About, spec: DataSpec, place: DataPlace) -> DataSet:
    """The sets of somebody's data."""
    about.progress("reading the data")
    reading = open_data(place, spec.entry_point, spec.columns, about.plan.takes)
    drawn = draw(reading.samples, spec, place.words)
    batch = about.batch()
    answers = _first_answers(about, drawn, batch)
    kind = kind_of([s.label for s in (*drawn.calibration, *drawn.evaluation)])
    paired = TEXT_PAIR in drawn.calibration[0].values
    metric = choose_metric(spec.metric, answers, kind, paired=paired)
    classes = Classes(about.class_names, reading.class_names, answers.tags if kind == "tags" else answers.classes)
    # A model of vectors reads each text by itself; a model of scores both together.
    apart = paired and answers.vectors and metric in {"spearman", "neighbours", "none"}

    def prepared(samples: Sequence[Sample]) -> list[Sample]:
        labelled = converted(samples, label_kind(metric), classes)
        return [half for s in labelled for half in halves(s)] if apart else labelled

    sets = _Sets(about, batch, metric, apart)
    calibration, joined = sets.calibrate(prepared(drawn.calibration))
    words = reading.words + (f"; {joined} more for calibration are several of its texts in one" if joined else "")
    return DataSet(
        words=words,
        digest=place.digest or drawn.digest,
        revision=place.revision,
        available=drawn.available,
        seed=spec.seed,
        real=True,
        guessed=False,
        metric=metric,
        pooling=about.pooled(answers, metric),
        calibration=calibration,
        evaluation=sets.evaluate(prepared(drawn.evaluation)) if drawn.evaluation else None,
    )


def _first_answers(about: _About, drawn: Draw, batch: AxisRange) -> Answers:
    """What the model's answers look like, told by the smallest batch."""
    if len(drawn.calibration) < batch.min:
        raise UsageError(
            f"data: the smallest batch holds {batch.min} samples, and {len(drawn.calibration)} are for calibration",
            remedy=f"set calibration: {batch.min} or more under `data`, or a smaller batch with `shapes`",
        )
    samples = [replace(s, label=None) for s in drawn.calibration[: batch.min]]
    feed = about.plan.encode(samples, about.axes, "").feed
    return describe_answers(about.answer(feed), batch.min)


@dataclass(frozen=True)
class _Sets:
    """Makes the two sets: batches of samples, asked and stored one at a time."""

    about: _About
    batch: AxisRange
    metric: Resolved
    apart: bool

    def calibrate(self, samples: Sequence[Sample]) -> tuple[SampleSet, int]:
        """Batches of several sizes, from the shortest samples to the longest, and the number of joined ones.

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
        return self._record(everything, cases, labelled=self._labelled and not joined), len(joined)

    def evaluate(self, samples: Sequence[Sample]) -> SampleSet:
        """Batches in the order of the draw."""
        sizes = evaluation_batches(len(samples), self.batch, paired=self.apart)
        if not sizes:
            raise UsageError(
                f"data: the smallest batch holds {self.batch.min} samples, and {len(samples)} are for evaluation",
                remedy=f"set evaluation: {self.batch.min} or more under `data`, or a smaller batch with `shapes`",
            )
        found, cases = self._store(samples, sizes, EVALUATION)
        return self._record(found, cases, labelled=self._labelled)

    @property
    def _labelled(self) -> bool:
        return label_kind(self.metric) != "none"

    def _store(self, samples: Sequence[Sample], sizes: Sequence[int], name: str) -> tuple[list[Sample], list[Case]]:
        """Store batches of these sizes; gives the samples that were taken, too."""
        cases = []
        begin = 0
        for number, size in enumerate(sizes):
            self.about.progress(f"asking the source model about samples for {name} ({begin} of {sum(sizes)})")
            batch = samples[begin : begin + size]
            cases.append(self._store_one(f"batch-{number:03}", batch, name, labelled=self._labelled))
            begin += size
        return list(samples[:begin]), cases

    def _store_one(self, case: str, samples: Sequence[Sample], name: str, *, labelled: bool) -> Case:
        align: Align = {"token-f1": "tags", "answer-f1": "answer"}.get(self.metric, "") if labelled else ""  # type: ignore[assignment]
        encoded = self.about.plan.encode(samples, self.about.axes, align)
        answer = self.about.answer(encoded.feed)
        labels = {**encoded.labels, **(self._labels(samples) if labelled else {})}
        sizes = self.about.sizes(encoded.feed)
        return store_case(case, sizes, encoded.feed, answer, self.about.out / name, labels=labels)

    def _labels(self, samples: Sequence[Sample]) -> dict[str, NDArray[np.generic]]:
        """Labels that stand at whole samples."""
        import numpy as np

        if self.metric == "accuracy":
            return {CLASS: np.array([s.label for s in samples], np.int64)}
        if self.metric == "spearman":
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
    def _record(samples: Sequence[Sample], cases: Sequence[Case], *, labelled: bool) -> SampleSet:
        rows, digests = tuple(s.row for s in samples), tuple(s.digest for s in samples)
        return SampleSet(cases=tuple(cases), rows=rows, digests=digests, labelled=labelled)


def _units(samples: Sequence[Sample], size: int) -> Iterator[Sequence[Sample]]:
    """Samples that stay together."""
    return (samples[i : i + size] for i in range(0, len(samples), size))


def _several(case: Case) -> bool:
    return case.axes.get(BATCH, 2) > 1


def _own_inputs(about: _About) -> DataSet:
    """Calibration with what plansmith brings itself, at shapes from the smallest to the largest."""
    plan = about.plan
    cases: list[Case] = []
    samples: list[Sample] = []
    answers: Answers | None = None
    for number, sizes in enumerate(own_shapes(about.axes, BATCH, DEFAULT_CALIBRATION)):
        about.progress(f"asking the source model about {plan.data} ({'x'.join(map(str, sizes.values()))})")
        feed = plan.make(sizes)
        answer = about.answer(feed)
        count = len(next(iter(feed.values())))
        answers = answers or describe_answers(answer, count)
        cases.append(store_case(f"batch-{number:03}", sizes, feed, answer, about.out / CALIBRATION))
        samples += [make_sample(len(samples) + i, {n: a[i] for n, a in feed.items()}) for i in range(count)]
    digests = tuple(s.digest for s in samples)
    assert answers is not None
    return DataSet(
        words=f"{plan.data}, as no data were given",
        digest=digest_of(digests),
        revision=None,
        available=len(set(digests)),
        seed=0,
        real=False,
        guessed=plan.guessed,
        metric="none",
        pooling=about.pooled(answers, "neighbours"),
        calibration=SampleSet(cases=tuple(cases), rows=tuple(range(len(samples))), digests=digests, labelled=False),
        evaluation=None,
    )
