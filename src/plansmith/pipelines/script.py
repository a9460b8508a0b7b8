"""A script's answers, in the worker: where each model answers as its source's library, and as it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plansmith.compilers.export.model_calls import Progress
from plansmith.compilers.python_backend.generation_parameters import Unanswerable
from plansmith.config.spec import INPUT_DTYPES
from plansmith.errors import GateError, UsageError
from plansmith.pipelines.agreement import RawLimits, compare, limits_of, widest
from plansmith.pipelines.cases import read_case, store_case
from plansmith.pipelines.draft import Draft
from plansmith.pipelines.in_process import answer_of, answer_of_source, model_runner, plan_around, with_dali_of
from plansmith.pipelines.requests import ScriptRequest
from plansmith.pipelines.served.chains import Chains, Parameters, Refused
from plansmith.pipelines.served.scripting import BadScript, WrongAnswer, load_script, run_script
from plansmith.records.model import Tensor
from plansmith.records.pipeline import RawAgreement, RawCase, Script

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

SCRIPT_CASES = "reference/script"
"""Where the cases lie, in the step's folder and in the release."""

_OUTPUTS = "OUTPUTS"
_DTYPES = {*INPUT_DTYPES, "string"}
_FEWEST_DIMS = 2
_BY_CHANCE = "asked twice, the script gives two answers"

_Answer = Callable[[str, "Arrays", Parameters], "Arrays"]


@dataclass(frozen=True)
class _Model:
    """A model of the release, as a script asks it.

    Args:
        draft: what stands around it.
        own: answers as the source's own library does.
        served: answers as it is served.
    """

    draft: Draft
    own: _Answer
    served: _Answer

    @property
    def chain(self) -> dict[str, Any]:
        """The model as one step."""
        inputs, outputs = ([t.name for t in tensors] for tensors in (self.draft.inputs, self.draft.outputs))
        step = {"inputs": dict(zip(inputs, inputs, strict=True)), "outputs": dict(zip(outputs, outputs, strict=True))}
        return {"steps": [step], "outputs": outputs}


def script(request: ScriptRequest, progress: Progress) -> Script:
    """Run a script on the release's raw cases, and compare what comes of the two kinds of answers of its models.

    Raises:
        UsageError: the script cannot be used, fails, or refuses everything.
    """
    file, first = request.file, next(iter(request.folders.values()))
    try:
        module = load_script(file)
    except BadScript as error:
        raise UsageError(str(error), remedy="mend the script") from error
    outputs = outputs_of(module, request.pipeline.outputs, file.name)
    limits = widest([limits_of(one.validation) for one in request.models.values()])
    cases: list[RawCase] = []
    refused: list[str] = []
    agreements: list[RawAgreement] = []
    with ExitStack() as stack:
        models = {name: _model(stack, request, name, progress) for name in request.models}
        for case in request.pipeline.cases:
            progress(f"running the script on {case.name}")
            feed = {name: array[: request.largest or None] for name, array in read_case(first / case.file)[0].items()}
            own = {name: (one, _remembering(one.own)) for name, one in models.items()}
            owed, again = (_run(module, case.name, feed, outputs, own) for _ in range(2))
            found = _run(module, case.name, feed, outputs, {name: (one, one.served) for name, one in models.items()})
            if isinstance(owed, Refused):
                refused.append(case.name)
            else:
                cases.append(store_case(case.name, feed, owed, SCRIPT_CASES, request.out))
            rows = len(next(iter(feed.values())))
            chance = () if _is_equal(owed, again) else (_BY_CHANCE,)
            agreements.append(_agreement(case.name, owed, found, limits, rows=rows, failures=chance))
    if not cases:
        raise UsageError(f"{file.name} refuses every request that was tried", remedy="have it answer some")
    return Script(
        outputs=outputs,
        cases=tuple(cases),
        refused=tuple(refused),
        source="; ".join(dict.fromkeys(one.draft.source for one in models.values())),
        agreements=tuple(agreements),
    )


def outputs_of(module: ModuleType, own: tuple[Tensor, ...], file: str) -> tuple[Tensor, ...]:
    """What a script says that it answers with.

    Args:
        module: from `load_script`.
        own: the outputs of the release's own model, which it answers with where it says nothing.
        file: what the script is called.

    Raises:
        UsageError: it says so in another form.
    """
    told = getattr(module, _OUTPUTS, None)
    if told is None:
        return own
    try:
        found = tuple(Tensor(name=name, dtype=dtype, dims=tuple(dims)) for name, (dtype, dims) in told.items())
    except (AttributeError, TypeError, ValueError):
        found = ()
    batch = own[0].dims[0]
    odd = next((tensor for tensor in found if tensor.dtype not in _DTYPES), None)
    if odd is not None:
        raise UsageError(
            f"{_OUTPUTS} in {file} gives {odd.name} the dtype {odd.dtype!r}, which is none that Triton has",
            remedy=f"write one of {', '.join(sorted(_DTYPES))}",
        )
    if not found or any(len(tensor.dims) < _FEWEST_DIMS or tensor.dims[0] != batch for tensor in found):
        raise UsageError(
            f"{_OUTPUTS} in {file} does not say what the script answers with",
            remedy=f'write {_OUTPUTS} = {{"label": ("string", ["{batch}", 1]), "score": ("float32", ["{batch}", 1])}}',
        )
    return found


def _model(stack: ExitStack, request: ScriptRequest, name: str, progress: Progress) -> _Model:
    one, folder = request.models[name], request.folders[name]
    plain, live = plan_around(one, progress)
    draft = with_dali_of(plain, one)
    ask = stack.enter_context(model_runner(one, progress))

    def own(_: str, feed: Arrays, parameters: Parameters) -> Arrays:
        if parameters:
            return _require_parameters(draft, name)(feed, parameters)
        return answer_of_source(draft, live, folder, feed) if live is not None and draft.bounds else draft.ask(feed)

    def served(case: str, feed: Arrays, parameters: Parameters) -> Arrays:
        if parameters:
            _require_parameters(draft, name)
        return answer_of(draft, folder, ask, case, feed, parameters)

    return _Model(draft, own, served)


def _require_parameters(draft: Draft, name: str) -> Callable[[Arrays, Parameters], Arrays]:
    """See that a model takes parameters; Triton would pass over them.

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
    """What a script answers to one request, or that it refuses it.

    Raises:
        UsageError: it fails.
    """

    def ask(model: str, asked: Arrays, _: Sequence[str], parameters: Parameters) -> Arrays:
        try:
            return models[model][1](case, asked, parameters)
        except GateError as error:
            raise Refused(error.message) from None
        except Unanswerable as error:
            raise Refused(str(error)) from None

    told = {name: one.chain for name, (one, _) in models.items()}
    for name, chain in told.items():
        chain["steps"][0]["model"] = name
    try:
        return run_script(module, feed, Chains(told, ask), [tensor.model_dump(mode="json") for tensor in outputs])
    except WrongAnswer as error:
        raise UsageError(f"request {case!r}: {error}", remedy="mend the script") from error.__cause__
    except Refused as refused:
        return refused


def _remembering(answer: _Answer) -> _Answer:
    """The same, of which each request is made once: what differs the second time is the script's own doing."""
    known: dict[Any, Arrays] = {}

    def remembered(case: str, feed: Arrays, parameters: Parameters) -> Arrays:
        key = (*((name, _content(feed[name])) for name in sorted(feed)), *sorted(parameters.items()))
        if key not in known:
            known[key] = answer(case, feed, parameters)
        return known[key]

    return remembered


def _is_equal(one: Arrays | Refused, other: Arrays | Refused) -> bool:
    if isinstance(one, Refused) or isinstance(other, Refused):
        return isinstance(one, Refused) and isinstance(other, Refused)
    return all(_content(array) == _content(other[name]) for name, array in one.items())


def _content(array: NDArray[np.generic]) -> tuple[Any, ...]:
    values = tuple(array.flat) if array.dtype == object else array.tobytes()
    return array.shape, array.dtype.str, values


def _agreement(
    case: str,
    owed: Arrays | Refused,
    found: Arrays | Refused,
    limits: RawLimits,
    *,
    rows: int,
    failures: tuple[str, ...],
) -> RawAgreement:
    if not isinstance(owed, Refused) and not isinstance(found, Refused):
        compared = compare(case, owed, found, limits)
        failures += compared.failures
        return compared.model_copy(update={"same": compared.same and not failures, "failures": failures})
    if isinstance(owed, Refused) != isinstance(found, Refused):
        answers = [f"refused ({one})" if isinstance(one, Refused) else "answered" for one in (found, owed)]
        failures += (f"it is {answers[0]}, and should be {answers[1]}",)
    return RawAgreement(case=case, rows=rows, same=not failures, failures=failures)
