"""The gate: an engine beside the stored reference, at every shape and on held-out samples, through Polygraphy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.comparison import CONSTANT, TOLERANCES, Padding, compare_output, is_constant, widened
from plansmith.engines import Engine
from plansmith.errors import GateError, UsageError, first_line
from plansmith.held_out import HeldOut
from plansmith.judging import Judge, kept_samples
from plansmith.reference import StoredCase, read_case
from plansmith.reports import OutputComparison, Tolerance, ToleranceChange, ValidationReport
from plansmith.roles import Task
from plansmith.types import Case, Component, OnnxModel, Precision, Recipe, Rounding, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_LOWER_FLOATS = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
_TYPES = {"tensor(float16)": "float16", "tensor(float)": "float32"}


@dataclass(frozen=True)
class Candidate:
    """What is judged.

    Args:
        engine: the record.
        folder: where its files lie.
        recipe: how its graph was lowered; None for FP32.
        runnable: a graph of the same numbers that ONNX Runtime can run on a CPU, where it cannot run the engine's.
    """

    engine: Engine
    folder: Path
    recipe: Recipe | None = None
    runnable: Path | None = None


def validate(
    candidate: Candidate,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    overrides: Mapping[str, ToleranceChange],
    progress: Callable[[str], None],
    held_out: HeldOut | None = None,
) -> ValidationReport:
    """Run the engine on every stored case and every held-out sample, and judge every output.

    Args:
        candidate: what is judged.
        onnx: holds the reference set, its axes and its mask.
        reference_folder: where the reference's files lie.
        overrides: what differs from the defaults of the precision, by output.
        progress: told which case is at work.
        held_out: samples that nothing has looked at before; their files are read once.

    Raises:
        UsageError: a tolerance for an output that the model does not have, or a measure that it cannot have.
        GateError: the candidate has another interface, or was made with the samples that it shall be judged on; what
            it answers wrongly stands in the report.
    """
    engine = candidate.engine
    component = engine.components["model"]
    _require_interface(component, onnx.components["model"], engine.precision)
    if held_out is not None:
        held_out.require_unseen(candidate.recipe)
    tolerances = tolerances_of(component.outputs, overrides, engine.precision, onnx.reference.rounding)
    padding = Padding(component.inputs, onnx.mask_input)
    comparisons: list[OutputComparison] = []
    evaluation = None
    path = candidate.runnable or candidate.folder / component.file
    with asking(path, component.outputs, onnx.components["model"].outputs, engine.precision) as ask:
        for case in onnx.reference.cases:
            progress(f"comparing at {case.name} ({_sizes(case)})")
            stored = read_case(case, reference_folder)
            comparisons += compare_case(ask(case, stored.feed), stored, component.outputs, tolerances, padding)
        if held_out is not None and held_out.data.evaluation is not None:
            judge = Judge(
                component,
                onnx.mask_input,
                task=Task(metric=held_out.data.metric, pooling=held_out.data.pooling),
                precision=engine.precision,
                tolerances=tolerances,
                max_metric_drop=held_out.max_metric_drop,
            )
            evaluation = held_out.evaluate(judge, ask, progress)
    comparisons = _refuse_constants(comparisons)
    failed = any(c.failures for c in comparisons) or (evaluation is not None and evaluation.failures())
    return ValidationReport(
        verdict="failed" if failed else "passed",
        reference=onnx.reference.runtime,
        candidate=f"{engine.kind}, {engine.precision}, " + ", ".join(f"{k} {v}" for k, v in engine.toolchain.items()),
        precision=engine.precision,
        data=onnx.reference.data,
        evidence=_evidence(onnx, held_out),
        tolerances=tolerances,
        comparisons=tuple(comparisons),
        evaluation=evaluation,
        not_validated=_not_validated(candidate, onnx),
    )


def require_passed(report: ValidationReport) -> None:
    """Let a passed report through.

    Raises:
        GateError: names the outputs, shapes, samples and measures that failed.
    """
    if report.verdict == "passed":
        return
    failures = report.failures()
    what = "differs from the model by more than the tolerances allow"
    remedy = "read the report, or set `tolerances` for the output in the spec"
    if report.precision not in (None, Precision.FP32):
        remedy = (
            f"use `precision: auto` or one above {report.precision}, keep nodes high with `lowering: {{keep: [...]}}`,"
            " or allow more with `tolerances` for the output"
        )
    if report.evaluation and any(metric.failures for metric in report.evaluation.metrics):
        remedy += " and `max_metric_drop` in `data`"
    if all(CONSTANT in failure for failure in failures):
        what = "answers the same to all samples, so that the comparison proves nothing"
        remedy = "say with `inputs` in a spec (low, high) which values differ for the model, or leave the output out"
    shown = "\n".join(f"  {line}" for line in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    raise GateError(
        f"the engine {what}:\n{shown}{more}",
        remedy=f"nothing was published; {remedy}",
    )


def tolerances_of(
    outputs: Sequence[Tensor],
    overrides: Mapping[str, ToleranceChange],
    precision: Precision,
    rounding: Mapping[str, Rounding] | None = None,
) -> dict[str, Tolerance]:
    """What is allowed, by output: the precision's limits, what the model does to roundings, what somebody changed.

    Raises:
        UsageError: a change for an output that the model does not have.
    """
    unknown = sorted(set(overrides) - {t.name for t in outputs})
    if unknown:
        raise UsageError(
            f"tolerances: the model has no output {', '.join(unknown)}",
            remedy=f"its outputs are {', '.join(t.name for t in outputs)}",
        )
    known = rounding or {}
    limits = {t.name: TOLERANCES[precision] for t in outputs}
    if precision is Precision.FP32:
        limits = {name: widened(limit, known.get(name)) for name, limit in limits.items()}
    return {name: overrides.get(name, ToleranceChange()).over(limit) for name, limit in limits.items()}


def _evidence(onnx: OnnxModel, held_out: HeldOut | None) -> Literal["given", "shipped", "drawn"]:
    """What kind of inputs the verdict rests on."""
    if held_out is not None and held_out.data.evaluation is not None and held_out.data.real:
        return "given"
    return "drawn" if onnx.reference.guessed else "shipped"


def _not_validated(candidate: Candidate, onnx: OnnxModel) -> tuple[str, ...]:
    told = candidate.recipe.not_validated if candidate.recipe else ()
    if onnx.precision is Precision.FP32:
        return told
    own = (
        f"how far the file, which came in {onnx.precision}, is from the model that it was made of: it is its own"
        " reference, so that the gate shows that it is served as it was given, and no more"
    )
    return (*told, own)


@contextmanager
def asking(
    path: Path, outputs: Sequence[Tensor], exported: Sequence[Tensor], precision: Precision
) -> Iterator[Callable[[Case, Arrays], Arrays]]:
    """A graph, ready to be asked; it takes and gives the exported model's floats, whatever its own are.

    Opening it, and asking, raise GateError where ONNX Runtime refuses.

    Args:
        path: the graph, as one that ONNX Runtime can run on a CPU.
        outputs: what the candidate gives.
        exported: what the exported model gives.
        precision: of the candidate.
    """
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    lower = _LOWER_FLOATS.get(precision)
    lowered = {t.name for t in outputs if t.dtype == lower}
    original = {t.name: t.dtype for t in exported}
    with ExitStack() as opened:
        try:
            runner = opened.enter_context(OnnxrtRunner(SessionFromOnnx(str(path), providers=["cpu"]), name="candidate"))
        except Exception as error:
            raise GateError(
                f"ONNX Runtime cannot open the engine: {first_line(error)}",
                remedy="nothing was published; please report this with the log",
            ) from error
        taken = {i.name: _TYPES[i.type] for i in runner.sess.get_inputs() if i.type in _TYPES}

        def ask(case: Case, feed: Arrays) -> Arrays:
            try:
                answer = runner.infer({k: v.astype(taken.get(k, v.dtype), copy=False) for k, v in feed.items()})
            except Exception as error:
                raise GateError(
                    f"the engine fails at {case.name} ({_sizes(case)}): {first_line(error)}",
                    remedy="nothing was published; a size was baked into the graph: read the log",
                ) from error
            return {k: v.astype(original[k]) if k in lowered else v for k, v in answer.items()}

        yield ask


def _sizes(case: Case) -> str:
    return "x".join(str(n) for n in case.axes.values())


def _require_interface(candidate: Component, exported: Component, precision: Precision) -> None:
    """An engine that lost or renamed an input or output cannot be compared, and must not pass for it.

    FP32 inputs and outputs may have become those of the engine's own precision (`lowering: {lower_io: true}`).
    """
    lower = _LOWER_FLOATS.get(precision)

    def plain(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t.model_copy(update={"dtype": "float32"}) if t.dtype == lower else t for t in tensors]

    if any(plain(mine) != plain(theirs) for mine, theirs in _interfaces(candidate, exported)):
        raise GateError(
            "the engine's inputs or outputs are not those of the exported model",
            remedy="nothing was published; please report this with the log",
        )


def _interfaces(candidate: Component, exported: Component) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    return [(candidate.inputs, exported.inputs), (candidate.outputs, exported.outputs)]


def compare_case(
    answer: Arrays,
    stored: StoredCase,
    outputs: Sequence[Tensor],
    tolerances: Mapping[str, Tolerance],
    padding: Padding,
) -> list[OutputComparison]:
    """Judge every output of one case, on the samples that the reference kept."""
    comparisons = []
    for tensor in outputs:
        valid = padding.valid(tensor, stored.feed)
        comparisons.append(
            compare_output(
                stored.name,
                tensor.name,
                stored.answer[tensor.name],
                kept_samples(answer[tensor.name], stored),
                tolerances[tensor.name],
                valid=None if valid is None else valid[stored.rows],
            )
        )
    return comparisons


def _refuse_constants(comparisons: list[OutputComparison]) -> list[OutputComparison]:
    """Fail every output that answered the same to different inputs: such a comparison proves nothing."""
    constant = {
        output
        for output in {c.output for c in comparisons}
        if is_constant([c for c in comparisons if c.output == output and not c.failures])
    }
    return [
        c.model_copy(update={"failures": (CONSTANT,)}) if c.output in constant and not c.failures else c
        for c in comparisons
    ]
