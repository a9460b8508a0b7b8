"""Sampling, in the worker: real data become calibration and evaluation sets, with the source model's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.export.loading import load, plan_graph
from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.data import DEFAULT_CALIBRATION, TEXT_PAIR, DataSpec
from plansmith.data.batches import own_shapes
from plansmith.data.labels import Classes, Kind, converted, kind_of
from plansmith.data.reader import DataPlace, digest_of_samples, open_data
from plansmith.data.reference import store_case
from plansmith.data.sample import Sample, halves, make_sample
from plansmith.data.split import Draw, draw
from plansmith.data.task import Answers, choose_metric, describe_answers, label_kind, require_measurable
from plansmith.errors import UsageError
from plansmith.records.model import BARE_SCHEMES, BATCH, AxisRange, Case, DataSet, SampleSet
from plansmith.sources.dynamic_axes.fixed import with_tied
from plansmith.sources.huggingface.heads import class_names, pooling_of
from plansmith.sources.served_form import changes_of, source_arrays
from plansmith.steps.worker.sample_request import EntryPointRequest, SampleDigest, SampleRequest
from plansmith.steps.worker.sample_sets import CALIBRATION, SampledModel, SampleSets
from plansmith.system.digest import digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

Progress = Callable[[str], None]


def sample(request: SampleRequest, progress: Progress) -> DataSet:
    """Store the samples of both sets as the model's inputs, with its FP32 answers and the labels.

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
    """Run the user's function once: the digest of all that it yields, which is what a cached result goes by."""
    progress(f"running {request.entry_point}")
    return SampleDigest(digest=digest_of_samples(request.place, request.entry_point))


def _open(request: LoadRequest) -> tuple[InputPlan, Callable[[Arrays], Arrays]]:
    """What the source model is fed with, and the model itself."""
    if request.scheme != "onnx":
        live = load(request).on(request.device)
        return live.inputs, live.ask
    from plansmith.compilers.export import onnx_import

    path, changes = Path(request.location), changes_of(request.inputs)
    _, plan = plan_graph(path, request.inputs, request.outputs)
    asked = onnx_import.OriginalGraph(path)

    def ask(feed: Arrays) -> Arrays:
        answer = asked.run(source_arrays(feed, changes))
        return {name: answer[name] for name in request.outputs or answer}

    return plan, ask


def _given_samples(about: SampledModel, spec: DataSpec, place: DataPlace) -> DataSet:
    """The sets of somebody's data."""
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
        words=f"{reading.words}{unused}",
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
    """What the model's answers look like, told by the smallest batch."""
    if len(drawn.calibration) < batch.min:
        raise UsageError(
            f"data: the smallest batch holds {batch.min} samples, and {len(drawn.calibration)} are for calibration",
            remedy=f"set calibration: {batch.min} or more under `data`, or a smaller batch with `shapes`",
        )
    samples = [replace(s, label=None) for s in drawn.calibration[: batch.min]]
    feed = about.plan.encode(samples, about.axes, "").feed
    return describe_answers(about.answer(feed), batch.min)


def _own_inputs(about: SampledModel) -> DataSet:
    """Calibration with what plansmith brings itself, at shapes from the smallest to the largest."""
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
    """How many samples inputs hold that have no axis of samples: as many as the first of them that is no scalar."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def _row(feed: Arrays, row: int, count: int) -> Arrays:
    """One of so many samples; what does not begin with them, such as the state of an LSTM, belongs to each in whole."""
    return {name: array[row] if array.ndim and len(array) == count else array for name, array in feed.items()}
