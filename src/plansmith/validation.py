"""The gate: an engine beside the stored reference, at every shape, through Polygraphy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.comparison import TOLERANCES, Padding, compare_output, is_constant
from plansmith.errors import GateError
from plansmith.reference import StoredCase, read_case
from plansmith.types import Component, Engine, OnnxModel, OutputComparison, Precision, Tolerance, ValidationReport

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_REFERENCE_RUNNER = "reference"


def validate(
    engine: Engine,
    engine_folder: Path,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    overrides: Mapping[str, Tolerance],
    progress: Callable[[str], None],
) -> ValidationReport:
    """Run the engine on every stored case and judge every output.

    Args:
        engine: the candidate, with files in `engine_folder`.
        engine_folder: where the candidate lies.
        onnx: holds the reference set, its axes and its mask.
        reference_folder: where the reference's files lie.
        overrides: tolerances by output; the defaults follow the precision.
        progress: told which case is at work.
    """
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    component = engine.components["model"]
    _require_interface(component, onnx.components["model"])
    tolerances = {t.name: overrides.get(t.name, default_tolerance(engine.precision)) for t in component.outputs}
    comparisons: list[OutputComparison] = []
    with OnnxrtRunner(
        SessionFromOnnx(str(engine_folder / component.file), providers=["cpu"]), name="candidate"
    ) as runner:
        for case in onnx.reference.cases:
            progress(f"comparing at {case.name} ({'x'.join(str(n) for n in case.axes.values())})")
            stored = read_case(case, reference_folder)
            comparisons += _compare_case(
                runner, stored, component, tolerances, Padding(component.inputs, onnx.mask_input)
            )
    comparisons = _refuse_constants(comparisons)
    return ValidationReport(
        verdict="failed" if any(c.failures for c in comparisons) else "passed",
        reference=onnx.reference.runtime,
        candidate=f"{engine.kind}, {engine.precision}, " + ", ".join(f"{k} {v}" for k, v in engine.toolchain.items()),
        data=onnx.reference.data,
        tolerances=tolerances,
        comparisons=tuple(comparisons),
    )


def default_tolerance(precision: Precision) -> Tolerance:
    """What the gate allows unless the spec says otherwise."""
    return TOLERANCES[precision]


def require_passed(report: ValidationReport) -> None:
    """Let a passed report through.

    Raises:
        GateError: names the outputs, shapes and metrics that failed.
    """
    if report.verdict == "passed":
        return
    failures = report.failures()
    shown = "\n".join(f"  {line}" for line in failures[:5])
    more = f"\n  … and {len(failures) - 5} more" if len(failures) > 5 else ""
    raise GateError(
        f"the engine differs from the model by more than the tolerances allow:\n{shown}{more}",
        remedy="nothing was published; try another --precision, or set `tolerances` for the output in the spec",
    )


def _require_interface(candidate: Component, exported: Component) -> None:
    """An engine that lost or renamed an input or output cannot be compared, and must not pass for it."""
    if (candidate.inputs, candidate.outputs) != (exported.inputs, exported.outputs):
        raise GateError(
            "the engine's inputs or outputs are not those of the exported model",
            remedy="nothing was published; please report this with the log",
        )


def _compare_case(
    runner: Any, stored: StoredCase, component: Component, tolerances: Mapping[str, Tolerance], padding: Padding
) -> list[OutputComparison]:
    """One case through Polygraphy: its runner infers, its comparator hands both answers to our judge."""
    from polygraphy.comparator import Comparator, IterationResult, RunResults

    results = RunResults()
    results.add([IterationResult(stored.answer)], runner_name=_REFERENCE_RUNNER)
    results.add([IterationResult(runner.infer(stored.feed))], runner_name=runner.name)
    rows: list[OutputComparison] = []

    def judge(
        reference: Mapping[str, NDArray[np.generic]], candidate: Mapping[str, NDArray[np.generic]]
    ) -> dict[str, bool]:
        for tensor in component.outputs:
            name, expected, found = tensor.name, reference[tensor.name], candidate[tensor.name]
            valid = padding.valid(tensor, stored.feed)
            rows.append(
                compare_output(
                    stored.name,
                    name,
                    expected,
                    found[stored.rows] if found.ndim and len(found) != len(expected) else found,
                    tolerances[name],
                    valid=None if valid is None else valid[stored.rows],
                )
            )
        return {row.output: not row.failures for row in rows}

    Comparator.compare_accuracy(results, compare_func=judge)
    return rows


def _refuse_constants(comparisons: list[OutputComparison]) -> list[OutputComparison]:
    """Fail every output that answered the same to different inputs: such a comparison proves nothing."""
    constant = {
        output
        for output in {c.output for c in comparisons}
        if is_constant([c for c in comparisons if c.output == output and not c.failures])
    }
    return [
        c.model_copy(update={"failures": ("does not vary between different samples",)})
        if c.output in constant and not c.failures
        else c
        for c in comparisons
    ]
