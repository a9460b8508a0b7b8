"""ONNX Runtime: sessions, and the portable optimisation of a graph for its Triton backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.compilers import onnx_files
from plansmith.errors import EngineError, first_line
from plansmith.types import Component, Engine, EngineKind, OnnxModel

if TYPE_CHECKING:
    import onnxruntime

PROVIDER = "CPUExecutionProvider"
_STANDARD_DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}
_ERRORS_ONLY = 3
_NO_PREPACKING = "session.disable_prepacking"
_EXTERNAL_WEIGHTS = "session.optimized_model_external_initializers_file_name"


def open_session(
    path: Path,
    *,
    rewrites: Literal["all", "basic", "none"] = "all",
    optimised_copy: Path | None = None,
    external_weights: str | None = None,
    in_order: bool = False,
) -> onnxruntime.InferenceSession:
    """A CPU session on a graph.

    Args:
        path: the graph.
        rewrites: what ONNX Runtime does to the graph; "basic" ones (constants folded, what is redundant
            removed) leave standard operators that any ONNX Runtime and execution provider can take further.
        optimised_copy: where ONNX Runtime writes what it made of the graph.
        external_weights: names the file beside the copy that holds its weights; without it they are inside,
            which ends at 2 GiB.
        in_order: nodes run in the order of the file; else what only outputs need may run last, and hold its inputs
            in memory until then.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        "all": levels.ORT_ENABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "none": levels.ORT_DISABLE_ALL,
    }[rewrites]
    if in_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if optimised_copy is not None:
        options.optimized_model_filepath = str(optimised_copy)
        options.add_session_config_entry(_NO_PREPACKING, "1")  # this session never runs
    if external_weights is not None:
        options.add_session_config_entry(_EXTERNAL_WEIGHTS, external_weights)
    return onnxruntime.InferenceSession(path, options, providers=[PROVIDER])


def compile_onnxruntime(model: OnnxModel, folder: Path, out: Path, *, max_opset: int, max_ir_version: int) -> Engine:
    """Optimise every component and check that the target can read what came out.

    Args:
        model: the graphs, with files in `folder`.
        folder: where the graphs lie.
        out: where the engine's files go.
        max_opset: the newest opset that the target's ONNX Runtime reads.
        max_ir_version: likewise for the file format.

    Raises:
        EngineError: ONNX Runtime refuses a graph, or the result is not portable.
    """
    import onnxruntime

    return Engine(
        kind=EngineKind.ONNXRUNTIME,
        components={
            name: _optimise(component, folder, out, max_opset, max_ir_version)
            for name, component in model.components.items()
        },
        precision=model.precision,
        options={"graph_optimization_level": "basic"},
        toolchain={"onnxruntime": onnxruntime.__version__},
    )


def _optimise(component: Component, folder: Path, out: Path, max_opset: int, max_ir_version: int) -> Component:
    import onnx

    path = out / component.file
    try:
        open_session(
            folder / component.file,
            rewrites="basic",
            optimised_copy=path,
            external_weights=f"{component.file}.data" if component.external_files else None,
        )
    except Exception as error:
        raise EngineError(
            f"ONNX Runtime refuses {component.file}: {first_line(error)}", remedy="read the log"
        ) from error
    model = onnx.load(path, load_external_data=False)
    foreign = {n.domain for n in model.graph.node} - _STANDARD_DOMAINS
    # What an ONNX file came with is its author's choice; whether the target has it, the served check tells.
    if foreign and (foreign := foreign - onnx_files.domains(folder / component.file)):
        raise EngineError(
            f"the optimised graph uses operators of {', '.join(sorted(foreign))}, which other runtimes do not have",
            remedy="please report this with the model's name",
        )
    onnx.checker.check_model(path)
    made = onnx_files.describe_model(model, path)
    if (made.inputs, made.outputs) != (component.inputs, component.outputs):
        raise EngineError(
            "the optimised graph has another interface than the exported one", remedy="please report this"
        )
    if made.opset > max_opset or made.ir_version > max_ir_version:
        raise EngineError(
            f"the graph needs opset {made.opset} and IR version {made.ir_version}; the target reads up to"
            f" {max_opset} and {max_ir_version}",
            remedy=f"choose a newer --target, or export with opset {max_opset} or an older one",
        )
    return made
