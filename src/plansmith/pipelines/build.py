"""Pipeline build in the worker: builds the parts and compares them with the source's own library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.generation_parameters import Unanswerable
from plansmith.config.spec import INPUT_DTYPES
from plansmith.errors import EngineError, GateError, UsageError
from plansmith.pipelines.agreement import compare, exact_limits, limits_of
from plansmith.pipelines.cases import read_case, store_case
from plansmith.pipelines.dali.recipe import difference, recipe_from_settings
from plansmith.pipelines.draft import Draft, DraftPart, run_parts, write_part
from plansmith.pipelines.in_process import (
    ModelRunner,
    answer_of,
    answer_of_source,
    model_runner,
    plan_around,
    with_dali_of,
)
from plansmith.pipelines.requests import JoinJob, JoinRequest, ScriptRequest
from plansmith.pipelines.served.chains import Chains, Parameters, Refused
from plansmith.pipelines.served.scripting import BadScript, WrongAnswer, load_script, run_script
from plansmith.records.model import Precision, Tensor
from plansmith.records.pipeline import Pipeline, RawAgreement, RawCase, Script
from plansmith.records.validation import ValidationReport
from plansmith.system.tasks import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays
    from plansmith.sources.loaded_model import LoadedModel


RAW_FOLDER = "reference/raw"
"""Where the cases lie, in the pipeline's folder and in the release."""

SCRIPT_CASES = "reference/script"
"""Where the cases lie, in the step's folder and in the release."""

_OUTPUTS = "OUTPUTS"
_DTYPES = {*INPUT_DTYPES, "string"}
_FEWEST_DIMS = 2
_Answer = Callable[["Arrays", Parameters], "Arrays"]


def join(request: JoinRequest, progress: Progress) -> Pipeline:
    """Build the parts of a pipeline, and check that its answers agree with those of the source's own library.

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
    agreements = [_beside_source(agreement, own[agreement.case], owed[agreement.case], job) for agreement in agreements]
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
    """Check that DALI preprocesses images like the Pillow part, which was compared with the source's own.

    Raises:
        EngineError: it is farther from it than its other rounding explains.
    """
    recipe = recipe_from_settings(pillow.settings)
    with TemporaryDirectory() as scratch:
        write_part(pillow, numpy, Path(scratch))
        for name, feed in draft.questions.items():
            ours = run_parts(draft.before, out, feed)[recipe.output]
            result = difference(ours, run_parts((pillow,), Path(scratch), feed)[recipe.output], recipe)
            if not result.is_within_bound:
                raise EngineError(
                    f"DALI makes other pixels of the images of request {name!r} than the source does: levels of"
                    f" 255 differ by {result.mean_levels:.2g} in the mean, and 99 of 100 by at most"
                    f" {result.quantile_levels:.2g}",
                    remedy="write preprocessing: python under `pipeline`",
                )


def _around_source(
    draft: Draft, live: LoadedModel, case: RawCase, own: Arrays, job: JoinJob, out: Path
) -> RawAgreement:
    """Check the parts around the source model in FP32: rounding, as in lower precisions, is no excuse there."""
    actual = answer_of_source(draft, live, out, read_case(out / case.file)[0])
    return compare(f"{case.name}, around the FP32 model", own, actual, exact_limits(job.validation))


def _beside_source(agreement: RawAgreement, own: Arrays, owed: Arrays, job: JoinJob) -> RawAgreement:
    """Add whether the expected response also matches that of the source's own preprocessing."""
    if own is owed:
        return agreement
    beside = compare(agreement.case, own, owed, limits_of(job.validation))
    return agreement.model_copy(update={"same": agreement.same and beside.same})


def _agreement(draft: Draft, case: RawCase, out: Path, ask: ModelRunner, report: ValidationReport) -> RawAgreement:
    """Compare the response of parts and model in this process with the expected one."""
    feed, expected = read_case(out / case.file)
    answer = answer_of(draft, out, ask, case.name, feed)
    return compare(case.name, expected, answer, limits_of(report))


@dataclass(frozen=True)
class _Model:
    """Model of a release as its script calls it.

    Args:
        draft: what stands around it.
        answer: answers as the source's own library does.
    """

    draft: Draft
    answer: _Answer

    @property
    def chain(self) -> dict[str, Any]:
        """Return the model as a one-step chain."""
        inputs, outputs = ([t.name for t in tensors] for tensors in (self.draft.inputs, self.draft.outputs))
        step = {"inputs": dict(zip(inputs, inputs, strict=True)), "outputs": dict(zip(outputs, outputs, strict=True))}
        return {"steps": [step], "outputs": outputs}


def script(request: ScriptRequest, progress: Progress) -> Script:
    """Run a script on the release's raw cases, where each model answers as its source's library does.

    A running Triton has to give the same answers later (`check_served`).

    Raises:
        UsageError: the script cannot be used, fails, or refuses everything.
        GateError: it answers the same request in two ways.
    """
    file, first = request.file, next(iter(request.folders.values()))
    try:
        module = load_script(file)
    except BadScript as error:
        raise UsageError(str(error), remedy="mend the script") from error
    outputs = outputs_of(module, request.pipeline.outputs, file.name)
    cases: list[RawCase] = []
    refused: list[str] = []
    models = {name: _model(request, name, progress) for name in request.models}
    for case in request.pipeline.cases:
        progress(f"running the script on {case.name}")
        feed = {name: array[: request.largest or None] for name, array in read_case(first / case.file)[0].items()}
        answers = {name: (model, _remembering(model.answer)) for name, model in models.items()}
        answer, again = (_run(module, case.name, feed, outputs, answers) for _ in range(2))
        if not _is_equal(answer, again):
            raise GateError(
                f"request {case.name!r}: asked twice, the script gives two answers",
                remedy="look at what it decides by, such as chance or what it keeps between requests",
            )
        if isinstance(answer, Refused):
            refused.append(case.name)
        else:
            cases.append(store_case(case.name, feed, answer, SCRIPT_CASES, request.out))
    if not cases:
        raise UsageError(f"{file.name} refuses every request that was tried", remedy="have it answer some")
    return Script(
        outputs=outputs,
        cases=tuple(cases),
        refused=tuple(refused),
        source="; ".join(dict.fromkeys(model.draft.source for model in models.values())),
    )


def outputs_of(module: ModuleType, own: tuple[Tensor, ...], file: str) -> tuple[Tensor, ...]:
    """Return the outputs that a script declares.

    Args:
        module: from `load_script`.
        own: the outputs of the release's own model, which it answers with where it says nothing.
        file: what the script is called.

    Raises:
        UsageError: it says so in another form.
    """
    declaration = getattr(module, _OUTPUTS, None)
    if declaration is None:
        return own
    try:
        outputs = tuple(Tensor(name=name, dtype=dtype, dims=tuple(dims)) for name, (dtype, dims) in declaration.items())
    except (AttributeError, TypeError, ValueError):
        outputs = ()
    batch = own[0].dims[0]
    odd = next((tensor for tensor in outputs if tensor.dtype not in _DTYPES), None)
    if odd is not None:
        raise UsageError(
            f"{_OUTPUTS} in {file} gives {odd.name} the dtype {odd.dtype!r}, which is none that Triton has",
            remedy=f"write one of {', '.join(sorted(_DTYPES))}",
        )
    if not outputs or any(len(tensor.dims) < _FEWEST_DIMS or tensor.dims[0] != batch for tensor in outputs):
        raise UsageError(
            f"{_OUTPUTS} in {file} does not say what the script answers with",
            remedy=f'write {_OUTPUTS} = {{"label": ("string", ["{batch}", 1]), "score": ("float32", ["{batch}", 1])}}',
        )
    return outputs


def _model(request: ScriptRequest, name: str, progress: Progress) -> _Model:
    job, folder = request.models[name], request.folders[name]
    plain, live = plan_around(job, progress)
    draft = with_dali_of(plain, job)

    def answer(feed: Arrays, parameters: Parameters) -> Arrays:
        if parameters:
            return _require_parameters(draft, name)(feed, parameters)
        return answer_of_source(draft, live, folder, feed) if live is not None and draft.bounds else draft.ask(feed)

    return _Model(draft, answer)


def _require_parameters(draft: Draft, name: str) -> Callable[[Arrays, Parameters], Arrays]:
    """Check that a model accepts parameters; Triton would ignore them.

    Raises:
        TypeError: it takes none.
    """
    if draft.ask_with is None:
        raise TypeError(f"the model {name!r} takes no parameters: it does not generate text")
    return draft.ask_with


def _run(
    module: ModuleType,
    case: str,
    feed: Arrays,
    outputs: Sequence[Tensor],
    models: Mapping[str, tuple[_Model, _Answer]],
) -> Arrays | Refused:
    """Run a script on one request; return its response or refusal.

    Raises:
        UsageError: it fails.
    """

    def ask(model: str, inputs: Arrays, _: Sequence[str], parameters: Parameters) -> Arrays:
        try:
            return models[model][1](inputs, parameters)
        except GateError as error:
            raise Refused(error.message) from None
        except Unanswerable as error:
            raise Refused(str(error)) from None

    chains = {name: entry.chain for name, (entry, _) in models.items()}
    for name, chain in chains.items():
        chain["steps"][0]["model"] = name
    try:
        return run_script(module, feed, Chains(chains, ask), [tensor.model_dump(mode="json") for tensor in outputs])
    except WrongAnswer as error:
        raise UsageError(f"request {case!r}: {error}", remedy="mend the script") from error.__cause__
    except Refused as refused:
        return refused


def _remembering(answer: _Answer) -> _Answer:
    """Return a cached model that runs each request once: differences on a rerun come from the script alone."""
    cache: dict[Any, Arrays] = {}

    def remembered(feed: Arrays, parameters: Parameters) -> Arrays:
        key = (*((name, _content(feed[name])) for name in sorted(feed)), *sorted(parameters.items()))
        if key not in cache:
            cache[key] = answer(feed, parameters)
        return cache[key]

    return remembered


def _is_equal(first: Arrays | Refused, second: Arrays | Refused) -> bool:
    if isinstance(first, Refused) or isinstance(second, Refused):
        return isinstance(first, Refused) and isinstance(second, Refused)
    return all(_content(array) == _content(second[name]) for name, array in first.items())


def _content(array: NDArray[np.generic]) -> tuple[Any, ...]:
    values = tuple(array.flat) if array.dtype == object else array.tobytes()
    return array.shape, array.dtype.str, values
