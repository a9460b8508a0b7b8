"""Joining, in the heavy child: what stands around a model is made, and held against the source's own library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from plansmith.asking import Progress
from plansmith.compilers.dali.agreement import difference
from plansmith.compilers.dali.parts import DaliPlace, with_dali
from plansmith.compilers.dali.recipe import recipe_from_settings
from plansmith.engines import Engine
from plansmith.errors import EngineError
from plansmith.graph_answers import asking
from plansmith.loading import load
from plansmith.parts import Pipeline, RawAgreement, RawCase
from plansmith.pipeline.drafts import Draft, DraftPart, run_parts, write_part
from plansmith.pipeline.generation import GENERATES
from plansmith.pipeline.raw_agreement import compare, exact_limits, limits_of
from plansmith.pipeline.raw_cases import read_case, write_case
from plansmith.pipeline_options import PipelineOptions
from plansmith.python_gate import own_generator, own_way
from plansmith.reports import ValidationReport
from plansmith.types import BATCH, Case, Device, EngineKind, OnnxModel, Precision, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.live import LiveModel

    Arrays = Mapping[str, NDArray[np.generic]]

RAW_FOLDER = "reference/raw"
"""Where the cases lie, in the pipeline's folder and in the release."""


class DaliJob(Record):
    """Which DALI makes the model's input of images, on what, and the largest batch of its configuration."""

    version: str
    device: Device
    max_batch_size: int


class JoinJob(Record):
    """What the parts are made around.

    `source`, `folder`, `allow_pickle`, `inputs`, `outputs`: as for `loading.load`; `onnx`: the exported model, which
    knows its axes; `runnable`: the graph that ONNX Runtime can run here with the engine's numbers, empty for the
    engine's own; `validation`: the gate's verdict on the model, which has the tolerances; `numpy`: the version that
    parts run with; `dali`: None where Pillow reads images; `dali_site`: the folder that it is installed in.
    """

    source: dict[str, Any]
    folder: str
    allow_pickle: bool
    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    options: PipelineOptions
    onnx: OnnxModel
    engine: Engine
    engine_folder: str
    runnable: str
    validation: ValidationReport
    numpy: str
    dali: DaliJob | None = None
    dali_site: str = ""


def join(*, job: Mapping[str, Any], out: str, progress: Progress) -> dict[str, Any]:
    """Make the parts around a model, and see that with it they answer as the source's own library does.

    Args:
        job: the fields of a `JoinJob`.
        out: takes a folder for each part, and the cases.
        progress: told what is done.

    Returns:
        The fields of a `Pipeline`.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
        EngineError: DALI cannot do what the source does.
    """
    progress("loading the model")
    given = JoinJob.model_validate(job)
    generates = GENERATES in given.engine.options
    draft, live = (_generation(given), None) if generates else _parts(given, progress)
    plain, draft = draft, _with_dali(draft, given)
    written = {part.name: write_part(part, given.numpy, Path(out)) for part in (*draft.before, *draft.after)}
    if draft is not plain:
        progress("holding DALI against the source's preprocessing")
        _require_near(draft, plain.before[0], given.numpy, Path(out))
    progress("asking the source's own library")
    own = {name: draft.ask(feed) for name, feed in draft.questions.items()}
    owed = own
    if live is not None and draft.bounds:
        owed = {name: _owed(draft, live, Path(out), feed) for name, feed in draft.questions.items()}
    cases = [_case(name, feed, owed[name], Path(out)) for name, feed in draft.questions.items()]
    progress("asking the pipeline")
    with _asking(given, progress) as ask:
        agreements = [_agreement(draft, case, Path(out), ask, given.validation) for case in cases]
    agreements = [_beside_source(found, own[found.case], owed[found.case], given) for found in agreements]
    if live is not None and not draft.bounds and given.engine.precision is not Precision.FP32:
        progress("asking the parts around the FP32 model")
        agreements += [_around_source(draft, live, case, own[case.name], given, Path(out)) for case in cases]
    record = Pipeline(
        input=draft.input,
        output=draft.output,
        before=tuple(written[part.name] for part in draft.before),
        after=tuple(written[part.name] for part in draft.after),
        inputs=draft.inputs,
        outputs=draft.outputs,
        cases=tuple(cases),
        source=draft.source,
        agreements=tuple(agreements),
    )
    return record.model_dump(mode="json")


def _with_dali(draft: Draft, job: JoinJob) -> Draft:
    """The same, with DALI for images where the spec asks for that."""
    if job.dali is None:
        return draft
    return with_dali(draft, DaliPlace(Path(job.dali_site), job.dali.device, job.dali.max_batch_size))


def _require_near(draft: Draft, pillow: DraftPart, numpy: str, out: Path) -> None:
    """See that DALI makes of images what the part for Pillow does, which was held against the source's own.

    Raises:
        EngineError: it is farther from it than its other rounding explains.
    """
    recipe = recipe_from_settings(pillow.settings)
    with TemporaryDirectory() as scratch:
        write_part(pillow, numpy, Path(scratch))
        for name, feed in draft.questions.items():
            ours = run_parts(draft.before, out, feed)[recipe.output]
            found = difference(ours, run_parts((pillow,), Path(scratch), feed)[recipe.output], recipe)
            if not found.is_within_bound:
                raise EngineError(
                    f"DALI makes other pixels of the images of request {name!r} than the source does: levels of"
                    f" 255 differ by {found.mean_levels:.2g} in the mean, and 99 of 100 by at most"
                    f" {found.quantile_levels:.2g}",
                    remedy="write preprocessing: python under `pipeline`",
                )


def _around_source(draft: Draft, live: LiveModel, case: RawCase, own: Arrays, job: JoinJob, out: Path) -> RawAgreement:
    """The parts around the source model in FP32: what rounding cannot excuse, as it does in a lower precision."""
    made = _owed(draft, live, out, read_case(out / case.file)[0])
    return compare(f"{case.name}, around the FP32 model", own, made, exact_limits(job.validation))


def _owed(draft: Draft, live: LiveModel, out: Path, feed: Arrays) -> Arrays:
    """What the source model answers behind the parts' own preprocessing, which is as near to its own as they tell."""
    known = run_parts(draft.before, out, feed)
    # What is served in half precision gets such inputs; the source model has single precision.
    inputs = {tensor.name: known[tensor.name].astype(tensor.dtype) for tensor in live.inputs.tensors}
    known = run_parts(draft.after, out, {**known, **live.ask(inputs)})
    return {tensor.name: known[tensor.name] for tensor in draft.outputs}


def _beside_source(found: RawAgreement, own: Arrays, owed: Arrays, job: JoinJob) -> RawAgreement:
    """With a word on whether the answer owed is also that of the source's own preprocessing."""
    if own is owed:
        return found
    beside = compare(found.case, own, owed, limits_of(job.validation))
    return found.model_copy(update={"same": found.same and beside.same})


def _parts(job: JoinJob, progress: Progress) -> tuple[Draft, LiveModel]:
    """What stands around a model, and the model."""
    from plansmith.sources.raw_plans import plan

    folder, source = Path(job.folder), job.source
    live = load(source, folder, job.allow_pickle, job.inputs, job.outputs)
    served = job.onnx.model_copy(update={"components": job.engine.components})
    progress("making the parts around the model")
    draft = plan(
        live,
        folder,
        job.options,
        served,
        scheme=source["scheme"],
        task=source["task"] or "",
        trust_remote_code=source["trust_remote_code"],
    )
    return draft, live


def _generation(job: JoinJob) -> Draft:
    """A model that takes and gives text by itself."""
    from plansmith.sources.pipeline_generation import plan_generation

    return plan_generation(
        Path(job.folder),
        job.options,
        trust_remote_code=job.source["trust_remote_code"],
        allow_pickle=job.allow_pickle,
        task=job.source["task"] or "",
        largest_batch=job.onnx.every_axis()[BATCH].max,
    )


def _case(name: str, feed: Arrays, answer: Arrays, out: Path) -> RawCase:
    """Store a request and its answer."""
    file = f"{RAW_FOLDER}/{name.replace(' ', '-')}.npz"
    write_case(out / file, feed, answer)
    return RawCase(name=name, file=file, rows=len(next(iter(feed.values()))))


def _agreement(draft: Draft, case: RawCase, out: Path, ask: _Ask, report: ValidationReport) -> RawAgreement:
    """What parts and model make of a request in this process, beside the answer that is owed."""
    feed, expected = read_case(out / case.file)
    known = run_parts(draft.before, out, feed)
    known = {**known, **ask(case.name, known)}
    known = run_parts(draft.after, out, known)
    answer = {name: known[name] for name in expected}
    return compare(case.name, expected, answer, limits_of(report))


_Ask = Callable[[str, "Arrays"], "Arrays"]


@contextmanager
def _asking(job: JoinJob, progress: Progress) -> Iterator[_Ask]:
    """The model by itself: takes all tensors that there are, and gives its outputs as the exported model has them."""
    engine, folder = job.engine, Path(job.engine_folder)
    component = engine.components["model"]
    names = [tensor.name for tensor in component.inputs]

    def case_of(name: str) -> Case:
        return Case(name=name, axes={}, file="")

    if GENERATES in engine.options:
        generator = own_generator(folder, progress)
        yield lambda _, known: generator.ask(known)
        return
    if engine.kind is EngineKind.PYTHON:
        way = own_way(engine, folder, progress)
        yield lambda name, known: way.ask(case_of(name), {one: known[one] for one in names})
        return
    path = Path(job.runnable) if job.runnable else folder / component.file
    with asking(path, component.outputs, job.onnx.components["model"].outputs, engine.precision) as ask:
        yield lambda name, known: ask(case_of(name), {one: known[one] for one in names})
