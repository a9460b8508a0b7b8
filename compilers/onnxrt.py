"""ONNX Runtime: sessions, and the portable optimization of a graph for its Triton backend."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from plansmith.compilers import onnx_files
from plansmith.errors import EngineError, first_line
from plansmith.records.engine import Engine
from plansmith.records.model import Component, EngineKind, LoweredModel, Precision
from plansmith.sources.onnx_file import read_skeleton

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import onnxruntime
    from numpy.typing import NDArray

PROVIDER = "CPUExecutionProvider"
_STANDARD_DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}
_ERRORS_ONLY = 3
_LACKS_KERNEL = "NOT_IMPLEMENTED"
_NO_PREPACKING = "session.disable_prepacking"
_EXTERNAL_WEIGHTS = "session.optimized_model_external_initializers_file_name"
_threads: ContextVar[int] = ContextVar("threads", default=0)


def limit_threads(count: int) -> None:
    """Limit all sessions opened from now on to so many threads; 0 means one per core."""
    _threads.set(count)


def open_session(
    graph: Path | bytes,
    *,
    weights: Mapping[str, NDArray[np.generic]] = MappingProxyType({}),
    rewrites: Literal["all", "basic", "none"] = "all",
    optimised_copy: Path | None = None,
    external_weights: str | None = None,
    in_order: bool = False,
) -> onnxruntime.InferenceSession:
    """Open a CPU session on a graph.

    Args:
        graph: a file, or its bytes.
        weights: those that the graph names and does not have, from `onnx_files.apart_from_weights`.
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
    options.intra_op_num_threads = _threads.get()
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
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    if values:
        options.add_external_initializers(list(weights), values)
    session = onnxruntime.InferenceSession(graph, options, providers=[PROVIDER])
    session.plansmith_weights = values  # ONNX Runtime reads them where they are, and does not own them
    return session


def open_model(
    model: onnx.ModelProto,
    *,
    outputs: Iterable[str] = (),
    rewrites: Literal["all", "basic", "none"],
    in_order: bool = False,
) -> onnxruntime.InferenceSession:
    """Open a CPU session on a graph in memory, whose large weights are read where they are.

    Args:
        model: with its weights.
        outputs: inner tensors that the session gives besides the graph's own.
        rewrites: as for `open_session`.
        in_order: likewise.
    """
    import onnx

    skeleton, weights = onnx_files.apart_from_weights(model)
    own = {value.name for value in skeleton.graph.output}
    skeleton.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in own)
    return open_session(skeleton.SerializeToString(), weights=weights, rewrites=rewrites, in_order=in_order)


def compile_onnxruntime(model: LoweredModel, folder: Path, out: Path, *, max_opset: int, max_ir_version: int) -> Engine:
    """Build an engine of every component, and check that the target can read the result.

    A graph in FP32 is optimised. One in a lower precision is taken as it is: on a CPU ONNX Runtime would write its own
    casts to FP32 around the kernels that it lacks, and the engine would be FP32 under another name.

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

    plain = model.precision is Precision.FP32
    make = clean if plain else _take_over
    components = {name: make(component, folder, out) for name, component in model.components.items()}
    for component in components.values():
        _require_readable(component, max_opset, max_ir_version)
    return Engine(
        kind=EngineKind.ONNXRUNTIME,
        components=components,
        precision=model.precision,
        options={"graph_optimization_level": "basic" if plain else "none"},
        toolchain={"onnxruntime": onnxruntime.__version__},
    )


def clean(component: Component, folder: Path, out: Path) -> Component:
    """Simplify an FP32 graph: fold constants, and keep only standard operators.

    Args:
        component: a graph, with files in `folder`.
        folder: where the graph lies.
        out: where the clean one goes, under the same name.

    Raises:
        EngineError: ONNX Runtime refuses the graph, or made another one of it than was asked for.
    """
    path = out / component.file
    _open(
        folder / component.file,
        optimised_copy=path,
        external_weights=f"{component.file}.data" if component.external_files else None,
    )
    model = read_skeleton(path)
    foreign = {n.domain for n in model.graph.node} - _STANDARD_DOMAINS
    # What an ONNX file came with is its author's choice; whether the target has it, the served check tells.
    if foreign and (foreign := foreign - onnx_files.domains(folder / component.file)):
        raise EngineError(
            f"the optimised graph uses operators of {', '.join(sorted(foreign))}, which other runtimes do not have",
            remedy="please report this with the model's name",
        )
    return _checked(model, path, component)


def _take_over(component: Component, folder: Path, out: Path) -> Component:
    """Copy a lowered graph, and check that ONNX Runtime loads the copy."""
    for file in component.files:
        target = out / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / file, target)
    path = out / component.file
    _open(path)
    return _checked(read_skeleton(path), path, component)


def _open(path: Path, *, optimised_copy: Path | None = None, external_weights: str | None = None) -> None:
    try:
        open_session(path, rewrites="basic", optimised_copy=optimised_copy, external_weights=external_weights)
    except Exception as error:
        if _LACKS_KERNEL in str(error) and "bfloat16" in onnx_files.element_types(path):
            raise EngineError(
                "ONNX Runtime has no kernels for BF16 on a CPU, so that nothing here could load and judge the engine",
                remedy="use --engine tensorrt, or --precision fp16",
            ) from error
        raise EngineError(f"ONNX Runtime refuses {path.name}: {first_line(error)}", remedy="read the log") from error


def _checked(model: onnx.ModelProto, path: Path, expected: Component) -> Component:
    actual = onnx_files.describe_model(model, path)
    onnx_files.check_skeleton(model)
    if (actual.inputs, actual.outputs) != (expected.inputs, expected.outputs):
        raise EngineError(
            "the engine's graph has another interface than the one that was compiled", remedy="please report this"
        )
    return actual


def _require_readable(component: Component, max_opset: int, max_ir_version: int) -> None:
    if component.opset > max_opset or component.ir_version > max_ir_version:
        raise EngineError(
            f"the graph needs opset {component.opset} and IR version {component.ir_version}; the target reads up to"
            f" {max_opset} and {max_ir_version}",
            remedy=f"choose a newer --target, or export with opset {max_opset} or an older one",
        )
