"""A plan without weights made whole: Triton loads only plans that have theirs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.load import engine_of
from plansmith.compilers.trt.api.logger import listen, logger
from plansmith.compilers.trt.api.timing_cache import write_whole
from plansmith.errors import EngineError

_LISTED = 3


def refit(
    plan: Path,
    graph: Path,
    out: Path,
    *,
    plugins: Iterable[str] = (),
    version_compatible: bool = False,
    exclude_lean_runtime: bool = False,
    refittable: bool = False,
) -> None:
    """Put the weights of the graph that a plan was built from back into it, and write it whole.

    Args:
        plan: a stripped plan.
        graph: the ONNX file, weights in files beside it included; its weights must be those of the build, as their
            values decided how layers were fused (`BuilderFlag.REFIT_IDENTICAL`).
        out: the file to write, which appears whole or not at all.
        plugins: libraries that the plan needs.
        version_compatible: it was built so.
        exclude_lean_runtime: it was built so, and is to stay so.
        refittable: its weights are to stay exchangeable. From 10.14 on a plan that was asked for no such thing loses
            that (`SerializationFlag.INCLUDE_REFIT`); before, it keeps it always.

    Raises:
        EngineError: TensorRT refuses the plan or the weights, or weights are missing.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    engine = engine_of(plan, plugins=plugins, version_compatible=version_compatible)
    import tensorrt

    if not engine.refittable:
        raise EngineError(
            f"{plan.name} cannot take weights", remedy="build it again, with tensorrt: strip_weights or refit"
        )
    heard = listen()
    refitter = tensorrt.Refitter(engine, logger())
    parser = tensorrt.OnnxParserRefitter(refitter, logger())
    if not parser.refit_from_file(str(graph)):
        said = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise _refused(plan, graph, said or heard.errors)
    if missing := refitter.get_missing_weights():
        raise _refused(plan, graph, [f"it lacks {', '.join(missing[:_LISTED])} ({len(missing)} in all)"])
    if not refitter.refit_cuda_engine():
        raise _refused(plan, graph, heard.errors)
    write_whole(_whole(engine, exclude_lean_runtime=exclude_lean_runtime, refittable=refittable), out)


def _whole(engine: Any, *, exclude_lean_runtime: bool, refittable: bool) -> Any:
    import tensorrt

    flags = tensorrt.SerializationFlag
    config = engine.create_serialization_config()
    config.clear_flag(flags.EXCLUDE_WEIGHTS)  # set from the start, for a plan that was built stripped
    if exclude_lean_runtime:
        config.set_flag(flags.EXCLUDE_LEAN_RUNTIME)
    if refittable and "INCLUDE_REFIT" in flags.__members__:
        config.set_flag(flags.INCLUDE_REFIT)
    return engine.serialize_with_config(config)


def _refused(plan: Path, graph: Path, said: list[str]) -> EngineError:
    return EngineError(
        f"{plan.name} does not take the weights of {graph.name}: {'; '.join(said) or 'TensorRT says no more'}",
        remedy="it must be the very graph that the plan was built from; or set tensorrt: strip_weights: false",
    )
