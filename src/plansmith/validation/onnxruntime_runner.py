"""ONNX Runtime runner: a graph's outputs on the CPU, through Polygraphy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import GateError, first_line
from plansmith.records.model import Case, EngineKind, Precision, Tensor

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


Ask = Callable[[Case, "Arrays"], "Arrays"]
"""Gives the answer to a case's inputs; takes and gives the exported model's floats."""

LOWER_FLOATS = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
_NO_INTEGER_KERNELS = "session.disable_quant_qdq"
_TYPES = {"tensor(float16)": "float16", "tensor(float)": "float32"}


@contextmanager
def asking(
    path: Path,
    outputs: Sequence[Tensor],
    exported: Sequence[Tensor],
    precision: Precision,
    *,
    engine: EngineKind = EngineKind.ONNXRUNTIME,
    name: str = "the engine",
) -> Iterator[Ask]:
    """Open a graph for inference; inputs and outputs have the exported model's float types, whatever its own are.

    Opening it, and asking, raise GateError where ONNX Runtime refuses.

    Args:
        path: the graph, as one that ONNX Runtime can run on a CPU.
        outputs: what the candidate gives.
        exported: what the exported model gives.
        precision: of the candidate. FP8 has basic rewrites alone: ONNX Runtime 1.31's extended ones take its codes for
            integers, and drop a Relu before QuantizeLinear or write a product that it refuses.
        engine: that the graph is for. What is for TensorRT, whose sums of products of bytes are exact, has its Q/DQ
            pairs computed in floats: ONNX Runtime's integer kernels saturate on x86 without VNNI.
        name: of the graph, for what goes wrong.
    """
    import onnxruntime
    from polygraphy.backend.onnxrt import OnnxrtRunner

    def open_session() -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        if engine is EngineKind.TENSORRT:
            options.add_session_config_entry(_NO_INTEGER_KERNELS, "1")
        if precision is Precision.FP8:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    with ExitStack() as opened:
        try:
            runner = opened.enter_context(OnnxrtRunner(open_session, name="candidate"))
        except Exception as error:
            raise GateError(
                f"ONNX Runtime cannot open {name}: {first_line(error)}",
                remedy="nothing was published; please report this with the log",
            ) from error
        dtypes = {i.name: _TYPES[i.type] for i in runner.sess.get_inputs() if i.type in _TYPES}

        def ask(case: Case, feed: Arrays) -> Arrays:
            try:
                answer = runner.infer({k: v.astype(dtypes.get(k, v.dtype), copy=False) for k, v in feed.items()})
            except Exception as error:
                raise GateError(
                    f"{name} fails at {case.name} ({sizes_of(case)}): {first_line(error)}",
                    remedy="nothing was published; a size was baked into the graph: read the log",
                ) from error
            return in_exported_floats(answer, outputs, exported, precision)

        yield ask


def in_exported_floats(
    answer: Arrays, outputs: Sequence[Tensor], exported: Sequence[Tensor], precision: Precision
) -> Arrays:
    """Convert outputs in the precision's float type back to the exported model's."""
    lower = LOWER_FLOATS.get(precision)
    lowered = {t.name for t in outputs if t.dtype == lower}
    original = {t.name: t.dtype for t in exported}
    return {k: v.astype(original[k]) if k in lowered else v for k, v in answer.items()}


def sizes_of(case: Case) -> str:
    """Format the shape of a case."""
    return "x".join(str(n) for n in case.axes.values())
