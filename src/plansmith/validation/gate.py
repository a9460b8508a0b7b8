"""Accuracy gate.

Compares an engine with the stored reference, at every shape and on held-out samples, by Polygraphy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.data.reference import StoredCase, read_case
from plansmith.errors import GateError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import (
    Case,
    Component,
    EngineKind,
    OnnxModel,
    Precision,
    Recipe,
    Rounding,
    Tensor,
)
from plansmith.records.validation import Evaluation, OutputComparison, Tolerance, ToleranceChange, ValidationReport
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, is_constant, widened
from plansmith.validation.coverage import never_ran
from plansmith.validation.metrics.agreement import Task
from plansmith.validation.metrics.evaluator import Evaluator, stored_samples
from plansmith.validation.onnxruntime_runner import LOWER_FLOATS, Ask, asking, sizes_of
from plansmith.validation.verdict import CONSTANT, HeldOut, require_known_outputs

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


@dataclass(frozen=True)
class CandidateRunner:
    """Runner for a candidate that ONNX Runtime does not run.

    Args:
        ask: gives its answers.
        takes: whether it can be asked about inputs of such shapes.
        description: what it is and where it runs.
        limits_of: the precision whose limits it is held to.
    """

    ask: Ask
    takes: Callable[[Arrays], bool]
    description: str
    limits_of: Precision


@dataclass(frozen=True)
class Candidate:
    """Candidate: the engine under validation.

    Args:
        engine: the record.
        folder: where its files lie.
        recipe: how its graph was lowered; None for FP32.
        runnable: a graph of the same numbers that ONNX Runtime can run on a CPU, where it cannot run the engine's.
        own_way: how it is asked; None: by ONNX Runtime on the CPU, about everything.
    """

    engine: Engine
    folder: Path
    recipe: Recipe | None = None
    runnable: Path | None = None
    own_way: CandidateRunner | None = None

    @property
    def limits_of(self) -> Precision:
        """The precision whose limits apply."""
        return self.own_way.limits_of if self.own_way else self.engine.precision

    @property
    def description(self) -> str:
        """A description of the candidate."""
        if self.own_way is not None:
            return self.own_way.description
        if self.engine.plans:
            return f"the {self.engine.precision} graph of TensorRT plans, run by ONNX Runtime on the CPU"
        tools = ", ".join(f"{k} {v}" for k, v in self.engine.toolchain.items())
        return f"{self.engine.kind}, {self.engine.precision}, {tools}"

    def takes(self, feed: Arrays) -> bool:
        """Whether it can run on these inputs."""
        return self.own_way is None or self.own_way.takes(feed)


def validate(
    candidate: Candidate,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    overrides: Mapping[str, ToleranceChange],
    progress: Callable[[str], None],
    held_out: HeldOut | None = None,
) -> ValidationReport:
    """Run the engine on every stored case and held-out sample, and compare every output.

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
    tolerances = tolerances_of(component.outputs, overrides, candidate.limits_of, onnx.reference.rounding)
    padding = Padding(component.inputs, onnx.mask_input)
    comparisons: list[OutputComparison] = []
    evaluation = None
    with _open_candidate(candidate, onnx) as ask:
        for case in onnx.reference.cases:
            stored = read_case(case, reference_folder)
            if not candidate.takes(stored.feed):
                continue
            progress(f"comparing at {case.name} ({sizes_of(case)})")
            comparisons += compare_case(ask(case, stored.feed), stored, component.outputs, tolerances, padding)
        if held_out is not None and held_out.data.evaluation is not None:
            judge = Evaluator(
                component,
                onnx.mask_input,
                task=Task(metric=held_out.data.metric, pooling=held_out.data.pooling),
                precision=candidate.limits_of,
                tolerances=tolerances,
                max_metric_drop=held_out.max_metric_drop,
            )
            evaluation = _evaluate_held_out(held_out, judge, ask, progress, candidate.takes)
    comparisons = refuse_constants(comparisons)
    failed = any(c.failures for c in comparisons) or (evaluation is not None and evaluation.failures())
    return ValidationReport(
        verdict="failed" if failed else "passed",
        reference=onnx.reference.runtime,
        candidate=candidate.description,
        precision=engine.precision,
        data=onnx.reference.data,
        evidence=_evidence(onnx, held_out if evaluation else None),
        tolerances=tolerances,
        comparisons=tuple(comparisons),
        evaluation=evaluation,
        not_validated=_not_validated(candidate, onnx),
        limits_of=None if candidate.limits_of is engine.precision else candidate.limits_of,
        searched=engine.kind is not EngineKind.PYTHON,
    )


def tolerances_of(
    outputs: Sequence[Tensor],
    overrides: Mapping[str, ToleranceChange],
    precision: Precision,
    rounding: Mapping[str, Rounding] | None = None,
) -> dict[str, Tolerance]:
    """Return the tolerances by output: the precision's limits, the model's rounding amplification, and overrides.

    Raises:
        UsageError: a change for an output that the model does not have.
    """
    require_known_outputs(overrides, outputs)
    roundings = rounding or {}
    limits = {t.name: TOLERANCES[precision] for t in outputs}
    if precision is Precision.FP32:
        limits = {name: widened(limit, roundings.get(name)) for name, limit in limits.items()}
    return {name: overrides.get(name, ToleranceChange()).over(limit) for name, limit in limits.items()}


def _evaluate_held_out(
    held_out: HeldOut,
    judge: Evaluator,
    ask: Callable[[Case, Arrays], Arrays],
    progress: Callable[[str], None],
    takes: Callable[[Arrays], bool],
) -> Evaluation | None:
    """Evaluate held-out samples batch by batch: one is in memory, and each file is opened once.

    Args:
        held_out: the samples.
        judge: takes in the answers.
        ask: gives the candidate's answer to a case's inputs.
        progress: told how many samples are done.
        takes: whether the candidate can be asked about such inputs; None is judged where it takes none.

    Raises:
        UsageError: the task's measure cannot be taken of these samples.
    """
    evaluation = held_out.data.evaluation
    if evaluation is None:
        return None
    done, left_out = 0, 0
    for case in evaluation.cases:
        progress(f"judging held-out samples ({done} of {evaluation.count})")
        stored = read_case(case, held_out.folder)
        batch = len(next(iter(stored.feed.values())))
        rows = evaluation.rows[done : done + batch]
        if takes(stored.feed):
            judge.add(stored, ask(case, stored.feed), rows)
        else:
            left_out += len(rows)
        done += len(rows)
    if left_out and left_out == done:
        return None
    result = judge.evaluation(held_out.data.words)
    if held_out.data.metric != "none" and not result.metrics:
        raise UsageError(
            f"data.metric: {held_out.data.metric} cannot be measured on these {done - left_out} held-out samples: too"
            " few of them, or none of them has a label",
            remedy="give `data` more samples or labels, or set `metric: none` in it",
        )
    return result.model_copy(update={"left_out": left_out})


def _evidence(onnx: OnnxModel, held_out: HeldOut | None) -> Literal["given", "shipped", "drawn"]:
    """The kind of inputs that the verdict is based on."""
    if held_out is not None and held_out.data.real:
        return "given"
    return "drawn" if onnx.reference.guessed else "shipped"


def _not_validated(candidate: Candidate, onnx: OnnxModel) -> tuple[str, ...]:
    notes = candidate.recipe.not_validated if candidate.recipe else ()
    if candidate.own_way is None:
        notes = (*notes, *never_ran(candidate.engine, ()))
    if onnx.precision is Precision.FP32:
        return notes
    own = (
        f"how far the file, which came in {onnx.precision}, is from the model that it was made of: it is its own"
        " reference, so that the gate shows that it is served as it was given, and no more"
    )
    return (*notes, own)


def _open_candidate(candidate: Candidate, onnx: OnnxModel) -> AbstractContextManager[Ask]:
    """Open the candidate with its own runner, or with ONNX Runtime."""
    if candidate.own_way is not None:
        return nullcontext(candidate.own_way.ask)
    component = candidate.engine.components["model"]
    path = candidate.runnable or candidate.folder / component.file
    engine = candidate.recipe.engine if candidate.recipe else candidate.engine.kind
    return asking(path, component.outputs, onnx.components["model"].outputs, candidate.engine.precision, engine=engine)


def _require_interface(candidate: Component, exported: Component, precision: Precision) -> None:
    """Require the same interface.

    An engine that lost or renamed an input or output cannot be compared and must not pass.

    FP32 inputs and outputs may have become those of the engine's own precision (`lowering: {lower_io: true}`).
    """
    lower = LOWER_FLOATS.get(precision)

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
    """Compare every output of one case, on the samples that the reference kept."""
    comparisons = []
    for tensor in outputs:
        valid = padding.valid(tensor, stored.feed)
        comparisons.append(
            compare_output(
                stored.name,
                tensor.name,
                stored.answer[tensor.name],
                stored_samples(answer[tensor.name], stored),
                tolerances[tensor.name],
                valid=None if valid is None else valid[stored.rows],
            )
        )
    return comparisons


def refuse_constants(comparisons: Sequence[OutputComparison]) -> list[OutputComparison]:
    """Fail every output that is constant over different inputs, as such a comparison proves nothing."""
    constant = {
        output
        for output in {c.output for c in comparisons}
        if is_constant([c for c in comparisons if c.output == output and not c.failures])
    }
    return [
        c.model_copy(update={"failures": (CONSTANT,)}) if c.output in constant and not c.failures else c
        for c in comparisons
    ]
