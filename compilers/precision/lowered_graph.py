"""The graph that a search chose: looked over for mistakes, put into the step's folder, and told of."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers import onnx_files
from plansmith.compilers.precision.candidate import Candidate
from plansmith.compilers.precision.lint.linter import accept, lint, refuse
from plansmith.compilers.precision.trials import LoweringTask
from plansmith.data.reference import read_case
from plansmith.errors import ExportError, GateError
from plansmith.records.model import Component, HighPrecisionNode, Precision, Recipe
from plansmith.system.files import link_or_copy
from plansmith.validation.comparison import Padding
from plansmith.validation.held_out import samples_digest
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    import onnx


def refuse_mistakes(task: LoweringTask, lowered: onnx.ModelProto, runs_itself: bool) -> None:
    """Let a lowered graph pass in which the linter finds no error, or none but those that a person accepts.

    Args:
        task: what is lowered, and for which engine.
        lowered: the graph.
        runs_itself: ONNX Runtime can run it, so that it can be asked whether its scales fit the data.

    Raises:
        ExportError: there are errors.
    """
    findings = lint(
        lowered,
        engine=task.request.engine,
        samples=task.calibration if runs_itself else None,
        promised=None if task.request.options.lower_io else task.component,
        mask_input=task.onnx.mask_input,
    )
    refuse(accept(findings, task.request.options.accept))


def write_lowered(task: LoweringTask, chosen: Candidate, out: Path) -> tuple[Component, str | None]:
    """Put the chosen graph into a folder, and see that it is what it should be.

    Returns:
        The graph, and the file of its twin where ONNX Runtime cannot run the graph itself.

    Raises:
        ExportError: inputs and outputs are not what they were.
        GateError: the graph fails, or answers with something else than numbers.
    """
    promised = None if task.request.options.lower_io else task.component
    for file in sorted(chosen.folder.iterdir()):
        shutil.move(file, out / file.name)
    made = onnx_files.describe(out / onnx_files.MODEL_FILE)
    if promised is not None and (made.inputs, made.outputs) != (promised.inputs, promised.outputs):
        raise ExportError(
            "the lowered graph has other inputs or outputs than the exported one",
            remedy="please report this with the log, or use --precision fp32",
        )
    _require_running(task, out, made, chosen.method.precision)
    return made, None if chosen.runs_itself else chosen.runnable.relative_to(chosen.folder).as_posix()


def copy_unlowered(task: LoweringTask, out: Path) -> Component:
    """Put the exported graph into a folder."""
    for file in task.component.files:
        link_or_copy(task.folder / file, out / file)
    return task.component


def recipe_of(task: LoweringTask, chosen: Candidate, operators: Mapping[str, str]) -> Recipe:
    """How a graph was lowered.

    Args:
        task: names the engine and the samples.
        chosen: the graph.
        operators: the FP32 graph's, by the name of the node and in its order.
    """
    method = chosen.method
    reasons = {**method.kept, **chosen.keep}
    lowered = Counter(operators[name] for name in method.lowerable if name not in chosen.keep)
    return Recipe(
        precision=method.precision,
        method=method.name,
        engine=task.request.engine,
        lowered=dict(lowered.most_common()),
        kept=tuple(
            HighPrecisionNode(node=name, op_type=operator, reason=reasons[name])
            for name, operator in operators.items()
            if name in reasons
        ),
        settings=dict(method.settings),
        calibration=samples_digest(task.data.calibration),
        calibration_samples=task.data.calibration.count,
        not_validated=tuple(method.not_validated),
    )


def unlowered_recipe(task: LoweringTask, why: Sequence[str]) -> Recipe:
    """That nothing was lowered, and why."""
    return Recipe(
        precision=Precision.FP32,
        method="FP32: " + "; ".join(why),
        engine=task.request.engine,
        lowered={},
        kept=(),
        settings={},
        calibration=samples_digest(task.data.calibration),
        calibration_samples=task.data.calibration.count,
        not_validated=(),
    )


def _require_running(task: LoweringTask, folder: Path, made: Component, precision: Precision) -> None:
    """Run what was written on the largest batch: a twin was judged, and the graph itself has to run too.

    Raises:
        GateError: it fails, or answers with something else than numbers.
    """
    if precision is Precision.BF16:  # no kernels on a CPU, as `not_validated` says
        return
    case = task.largest_case
    feed = read_case(case, task.data_folder).feed
    with asking(folder / made.file, made.outputs, task.component.outputs, precision, engine=task.request.engine) as ask:
        answer = ask(case, feed)
    padding = Padding(made.inputs, task.onnx.mask_input)
    broken = []
    for tensor in made.outputs:
        array, valid = answer[tensor.name], padding.valid(tensor, feed)
        if array.dtype.kind == "f" and not np.isfinite(array if valid is None else array[valid]).all():
            broken.append(tensor.name)
    if broken:
        raise GateError(
            f"the lowered graph answers with NaN or Inf: {', '.join(broken)}",
            remedy="nothing was published; use a higher --precision, and please report this with the log",
        )
