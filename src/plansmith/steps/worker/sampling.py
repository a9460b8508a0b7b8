"""Sampling, in the heavy child: real data become calibration and evaluation sets, with the source model's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.loading import load, plan_graph, served_changes
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
from plansmith.sources.served_form import source_arrays
from plansmith.steps.worker.sample_sets import CALIBRATION, AskedModel, SampleSets
from plansmith.system.digest import digest_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

Progress = Callable[[str], None]


def sample(
    *,
    source: Mapping[str, Any],
    folder: str,
    allow_pickle: bool,
    axes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    data: Mapping[str, Any] | None,
    place: Mapping[str, Any] | None,
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Store the samples of both sets as the model's inputs, with its FP32 answers and the labels.

    Args:
        source: scheme, location, trust_remote_code, task and device of the model.
        folder: holds its files.
        allow_pickle: whether pickled weights may be read.
        axes: the ranges that the model was exported for, or the name of the axis that one always is in the graph;
            the model's own range for those that are missing.
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
    plan = with_tied(plan, {axis: known for axis, known in axes.items() if isinstance(known, str)})
    is_bare = source["scheme"] in BARE_SCHEMES
    about = AskedModel(
        plan=plan,
        axes=plan.axes | {a: AxisRange.model_validate(r) for a, r in axes.items() if not isinstance(r, str)},
        ask=ask,
        class_names={} if is_bare else class_names(Path(folder)),
        pooling=None if is_bare else pooling_of(Path(folder), source["task"] or "", outputs),
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


def _open(
    source: Mapping[str, Any], folder: Path, allow_pickle: bool, inputs: Mapping[str, Any], outputs: Sequence[str]
) -> tuple[InputPlan, Callable[[Arrays], Arrays]]:
    """What the source model is fed with, and the model itself."""
    if source["scheme"] != "onnx":
        live = load(source, folder, allow_pickle, inputs, outputs).on(source.get("device", "cpu"))
        return live.inputs, live.ask
    from plansmith.compilers.export import onnx_import

    path, changes = Path(source["location"]), served_changes(inputs)
    _, plan = plan_graph(path, inputs, outputs)
    asked = onnx_import.Asked(path)

    def ask(feed: Arrays) -> Arrays:
        answer = asked.run(source_arrays(feed, changes))
        return {name: answer[name] for name in outputs or answer}

    return plan, ask


def _given_samples(about: AskedModel, spec: DataSpec, place: DataPlace) -> DataSet:
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


def _first_answers(about: AskedModel, drawn: Draw, batch: AxisRange) -> Answers:
    """What the model's answers look like, told by the smallest batch."""
    if len(drawn.calibration) < batch.min:
        raise UsageError(
            f"data: the smallest batch holds {batch.min} samples, and {len(drawn.calibration)} are for calibration",
            remedy=f"set calibration: {batch.min} or more under `data`, or a smaller batch with `shapes`",
        )
    samples = [replace(s, label=None) for s in drawn.calibration[: batch.min]]
    feed = about.plan.encode(samples, about.axes, "").feed
    return describe_answers(about.answer(feed), batch.min)


def _own_inputs(about: AskedModel) -> DataSet:
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
