"""The gate: an engine beside the stored reference, at every shape, through Polygraphy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.comparison import TOLERANCES, Padding, compare_output, is_constant
from plansmith.errors import GateError, UsageError, first_line
from plansmith.reference import StoredCase, read_case
from plansmith.reports import OutputComparison, Tolerance, ToleranceChange, ValidationReport
from plansmith.types import Component, Engine, OnnxModel, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CONSTANT = "does not vary between different samples"


def validate(
    engine: Engine,
    engine_folder: Path,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    overrides: Mapping[str, ToleranceChange],
    progress: Callable[[str], None],
) -> ValidationReport:
    """Run the engine on every stored case and judge every output.

    Args:
        engine: the candidate, with files in `engine_folder`.
        engine_folder: where the candidate lies.
        onnx: holds the reference set, its axes and its mask.
        reference_folder: where the reference's files lie.
        overrides: what differs from the defaults of the precision, by output.
        progress: told which case is at work.

    Raises:
        UsageError: a tolerance for an output that the model does not have.
        GateError: the candidate has another interface; what it answers wrongly stands in the report.
    """
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    component = engine.components["model"]
    _require_interface(component, onnx.components["model"])
    unknown = sorted(set(overrides) - {t.name for t in component.outputs})
    if unknown:
        raise UsageError(
            f"tolerances: the model has no output {', '.join(unknown)}",
            remedy=f"its outputs are {', '.join(t.name for t in component.outputs)}",
        )
    default = TOLERANCES[engine.precision]
    tolerances = {t.name: overrides.get(t.name, ToleranceChange()).over(default) for t in component.outputs}
    padding = Padding(component.inputs, onnx.mask_input)
    comparisons: list[OutputComparison] = []
    with OnnxrtRunner(
        SessionFromOnnx(str(engine_folder / component.file), providers=["cpu"]), name="candidate"
    ) as runner:
        for case in onnx.reference.cases:
            progress(f"comparing at {case.name} ({'x'.join(str(n) for n in case.axes.values())})")
            stored = read_case(case, reference_folder)
            try:
                answer = runner.infer(stored.feed)
            except Exception as error:
                raise GateError(
                    f"the engine fails at {case.name} ({'x'.join(str(n) for n in case.axes.values())}):"
                    f" {first_line(error)}",
                    remedy="nothing was published; a size was baked into the graph: read the log",
                ) from error
            comparisons += _compare_case(answer, stored, component.outputs, tolerances, padding)
    comparisons = _refuse_constants(comparisons)
    return ValidationReport(
        verdict="failed" if any(c.failures for c in comparisons) else "passed",
        reference=onnx.reference.runtime,
        candidate=f"{engine.kind}, {engine.precision}, " + ", ".join(f"{k} {v}" for k, v in engine.toolchain.items()),
        data=onnx.reference.data,
        tolerances=tolerances,
        comparisons=tuple(comparisons),
    )


def require_passed(report: ValidationReport) -> None:
    """Let a passed report through.

    Raises:
        GateError: names the outputs, shapes and metrics that failed.
    """
    if report.verdict == "passed":
        return
    failures = report.failures()
    what, remedy = (
        "differs from the model by more than the tolerances allow",
        ("read the report, or set `tolerances` for the output in the spec"),
    )
    if all(CONSTANT in failure for failure in failures):
        what = "answers the same to all samples, so that the comparison proves nothing"
        remedy = "say with `inputs` in a spec (low, high) which values differ for the model, or leave the output out"
    shown = "\n".join(f"  {line}" for line in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    raise GateError(
        f"the engine {what}:\n{shown}{more}",
        remedy=f"nothing was published; {remedy}",
    )


def _require_interface(candidate: Component, exported: Component) -> None:
    """An engine that lost or renamed an input or output cannot be compared, and must not pass for it."""
    if (candidate.inputs, candidate.outputs) != (exported.inputs, exported.outputs):
        raise GateError(
            "the engine's inputs or outputs are not those of the exported model",
            remedy="nothing was published; please report this with the log",
        )


def _compare_case(
    answer: Mapping[str, NDArray[np.generic]],
    stored: StoredCase,
    outputs: Sequence[Tensor],
    tolerances: Mapping[str, Tolerance],
    padding: Padding,
) -> list[OutputComparison]:
    """Judge every output of one case, on the samples that the reference kept."""
    comparisons, batch = [], len(next(iter(stored.feed.values())))
    for tensor in outputs:
        expected, found = stored.answer[tensor.name], answer[tensor.name]
        valid = padding.valid(tensor, stored.feed)
        comparisons.append(
            compare_output(
                stored.name,
                tensor.name,
                expected,
                found[stored.rows] if found.shape[:1] == (batch,) else found,
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
