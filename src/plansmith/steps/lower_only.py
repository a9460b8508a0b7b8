"""A lowered graph for a person to take away: made and judged like that of a compile, and put into a folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.errors import UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, Precision
from plansmith.records.release import LOWERED_FILE, LoweredGraph
from plansmith.records.validation import ValidationReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.cache import toolchain
from plansmith.steps.context import ModelContext, graph_context, start_stages
from plansmith.steps.lower import require_kernels
from plansmith.steps.model_steps import GRAPH_STEPS, with_plans
from plansmith.steps.runner import Listener, StepResult
from plansmith.steps.tensorrt.graph import PlanGraph
from plansmith.steps.validate import ValidationInputs, validate_engine
from plansmith.steps.walk import walk
from plansmith.system.files import fsync_tree, move_into_place
from plansmith.system.temporary import scratch_folder
from plansmith.validation.gate import require_passed


@dataclass(frozen=True)
class _Judged:
    """A lowered graph, how it was judged, and what a check of its build found."""

    compiled: CompiledModel
    validation: ValidationReport
    checked: PlanGraph | None


def lower_model(
    spec: ModelSpec, out: Path | None, *, relative_to: Path, listener: Listener | None = None
) -> LoweredGraph:
    """Fetch, export and lower a model, judge it, and put the graph into a folder, which appears whole or not at all.

    Args:
        spec: what is wanted.
        out: where the graph goes, and nothing may be yet; a folder of the model's name and precision when None.
        relative_to: the folder that a source directory, and data, in the spec start from.
        listener: told how it goes.

    Raises:
        PlansmithError: located at the step that failed; nothing was written.
    """
    context = graph_context(spec, relative_to, lambda: start_stages(spec, relative_to, listener=listener))
    try:
        return _lower_into(context, out or Path(f"{context.name}-{spec.precision}"))
    finally:
        context.stages.close()


def _lower_into(context: ModelContext, out: Path) -> LoweredGraph:
    spec = context.spec
    _require_sense(spec)
    require_kernels(spec, context.name, context.target)
    if out.exists():
        raise UsageError(f"{out} is there already", remedy="name another --output, or move it away", model=context.name)
    found = _judged(with_plans(context) if spec.tensorrt.check_build else context)
    compiled, lowered = found.compiled, found.compiled.lowered
    record = LoweredGraph(
        name=context.name,
        folder=str(out),
        lowered=lowered.record,
        data=compiled.data.record if compiled.data else None,
        validation=found.validation,
        build_check=found.checked.check if found.checked is not None else None,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("lower", out.parent) as scratch:
        staged = Path(scratch) / out.name
        staged.mkdir()
        for component in record.lowered.components.values():
            for file in component.files:
                shutil.copyfile(lowered.folder / file, staged / file)
        if found.checked is not None and found.checked.layers_file is not None:
            shutil.copyfile(found.checked.layers_file, staged / found.checked.layers_file.name)
        (staged / LOWERED_FILE).write_text(record.model_dump_json(indent=2))
        fsync_tree(staged)
        move_into_place(staged, out)
    return record


def _judged(context: ModelContext) -> _Judged:
    compiled = walk(GRAPH_STEPS, context, CompiledModel()).state
    lowered = compiled.lowered
    checked = context.plans.check(compiled.onnx, lowered) if context.plans is not None else None
    # On a CPU, whatever will run it in the end: what is wrong here needs no GPU to show.
    engine = Engine(
        kind=EngineKind.ONNXRUNTIME,
        components=lowered.record.components,
        precision=lowered.record.precision,
        options={},
        toolchain={"onnxruntime": toolchain.step_toolchain("compile")["onnxruntime"]},
    )
    candidate = StepResult(engine, lowered.folder, lowered.digest, lowered.cached)
    judged = ValidationInputs(candidate, compiled.onnx, lowered, compiled.data)
    report = validate_engine(context.stages, context.spec, judged, require=context.with_report(require_passed))
    assert report is not None, "what is lowered is no look"
    return _Judged(compiled, report.record, checked)


def _require_sense(spec: ModelSpec) -> None:
    """Refuse what cannot be lowered, or not so that somebody could run it."""
    if spec.precision is Precision.FP32:
        raise UsageError(
            "a model is exported in fp32, so that there is nothing to lower",
            remedy="say what to lower it to: --precision int8, fp8, fp16, bf16 or auto",
        )
    if spec.engine not in {EngineKind.ONNXRUNTIME, EngineKind.TENSORRT}:
        raise UsageError(
            f"engine {spec.engine} runs no graph, so that there is nothing to lower for it",
            remedy="use --engine onnxruntime or tensorrt",
        )
    if spec.precision == "auto" and spec.engine is not EngineKind.ONNXRUNTIME:
        raise UsageError(
            f"auto goes by speed, and {spec.engine} is not here to be timed",
            remedy="choose --precision int8, fp8, fp16 or bf16, or --engine onnxruntime",
        )
