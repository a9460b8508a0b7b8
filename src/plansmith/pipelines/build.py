"""Joining, in the worker: what stands around a model is made, and held against the source's own library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plansmith.compilers.export.model_calls import Progress
from plansmith.errors import EngineError
from plansmith.pipelines.agreement import compare, exact_limits, limits_of
from plansmith.pipelines.cases import read_case, store_case
from plansmith.pipelines.dali.agreement import difference
from plansmith.pipelines.dali.recipe import recipe_from_settings
from plansmith.pipelines.draft import Draft, DraftPart, run_parts, write_part
from plansmith.pipelines.in_process import (
    ModelRunner,
    answer_of,
    answer_of_source,
    model_runner,
    plan_around,
    with_dali_of,
)
from plansmith.pipelines.requests import JoinJob, JoinRequest
from plansmith.records.model import Precision
from plansmith.records.pipeline import Pipeline, RawAgreement, RawCase
from plansmith.records.validation import ValidationReport

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.sources.loaded_model import LoadedModel

    Arrays = Mapping[str, NDArray[np.generic]]

RAW_FOLDER = "reference/raw"
"""Where the cases lie, in the pipeline's folder and in the release."""


def join(request: JoinRequest, progress: Progress) -> Pipeline:
    """Make the parts around a model, and see that with it they answer as the source's own library does.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
        EngineError: DALI cannot do what the source does.
    """
    progress("loading the model")
    job, out = request.job, request.out
    plain, live = plan_around(job, progress)
    draft = with_dali_of(plain, job)
    written = {part.name: write_part(part, job.numpy, out) for part in (*draft.before, *draft.after)}
    if draft is not plain:
        progress("holding DALI against the source's preprocessing")
        _require_near(draft, plain.before[0], job.numpy, out)
    progress("asking the source's own library")
    own = {name: draft.ask(feed) for name, feed in draft.questions.items()}
    owed = own
    if live is not None and draft.bounds:
        owed = {name: answer_of_source(draft, live, out, feed) for name, feed in draft.questions.items()}
    cases = [store_case(name, feed, owed[name], RAW_FOLDER, out) for name, feed in draft.questions.items()]
    progress("asking the pipeline")
    with model_runner(job, progress) as ask:
        agreements = [_agreement(draft, case, out, ask, job.validation) for case in cases]
    agreements = [_beside_source(found, own[found.case], owed[found.case], job) for found in agreements]
    if live is not None and not draft.bounds and job.engine.precision is not Precision.FP32:
        progress("asking the parts around the FP32 model")
        agreements += [_around_source(draft, live, case, own[case.name], job, out) for case in cases]
    return Pipeline(
        input=draft.input,
        output=draft.output,
        before=tuple(written[part.name] for part in draft.before),
        after=tuple(written[part.name] for part in draft.after),
        inputs=draft.inputs,
        outputs=draft.outputs,
        cases=tuple(cases),
        source=draft.source,
        instances=job.options.instances,
        agreements=tuple(agreements),
        labels=dict(draft.labels),
        frontend=job.options.frontend,
    )


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


def _around_source(
    draft: Draft, live: LoadedModel, case: RawCase, own: Arrays, job: JoinJob, out: Path
) -> RawAgreement:
    """The parts around the source model in FP32: what rounding cannot excuse, as it does in a lower precision."""
    made = answer_of_source(draft, live, out, read_case(out / case.file)[0])
    return compare(f"{case.name}, around the FP32 model", own, made, exact_limits(job.validation))


def _beside_source(found: RawAgreement, own: Arrays, owed: Arrays, job: JoinJob) -> RawAgreement:
    """With a word on whether the answer owed is also that of the source's own preprocessing."""
    if own is owed:
        return found
    beside = compare(found.case, own, owed, limits_of(job.validation))
    return found.model_copy(update={"same": found.same and beside.same})


def _agreement(draft: Draft, case: RawCase, out: Path, ask: ModelRunner, report: ValidationReport) -> RawAgreement:
    """What parts and model make of a request in this process, beside the answer that is owed."""
    feed, expected = read_case(out / case.file)
    answer = answer_of(draft, out, ask, case.name, feed)
    return compare(case.name, expected, answer, limits_of(report))
