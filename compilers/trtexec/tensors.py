"""The inputs and outputs of a plan that trtexec built, from its inspector's JSON and the graph."""

from __future__ import annotations

from collections.abc import Mapping

from plansmith.compilers.trt.inspection.layers import read_tensors
from plansmith.records.engine import PlanTensor, TensorFormat
from plansmith.records.model import Component, Tensor


def plan_tensors(inspected: str, graph: Component, formats: Mapping[str, TensorFormat]) -> tuple[PlanTensor, ...]:
    """What a plan takes and gives.

    TensorRT 11 tells all of it, 10 little of what varies. What is not told is the graph's: a strongly typed plan has
    the graph's types, the formats that it was told to have, and an input that nothing needs is one of its own too.

    Args:
        inspected: the inspector's JSON; empty where the plan keeps it to itself.
        graph: that the plan was built from.
        formats: that were asked for, by name.

    Raises:
        EngineError: it is no JSON of an inspector.
    """
    told = {tensor.name: tensor for tensor in (read_tensors(inspected) if inspected else ())}
    tensors = [(tensor, True) for tensor in graph.inputs] + [(tensor, False) for tensor in graph.outputs]
    return tuple(
        _tensor(tensor, formats.get(tensor.name, "chw"), told.get(tensor.name), is_input=is_input)
        for tensor, is_input in tensors
    )


def _tensor(tensor: Tensor, wanted: TensorFormat, told: PlanTensor | None, *, is_input: bool) -> PlanTensor:
    """The graph's tensor with what the plan says of it."""
    of_graph = PlanTensor(
        name=tensor.name,
        is_input=is_input,
        dtype=tensor.dtype,
        dims=tuple(dim if isinstance(dim, int) else -1 for dim in tensor.dims),
        format="LINEAR" if wanted == "chw" else wanted.upper(),
    )
    if told is None:
        return of_graph
    return of_graph.model_copy(
        update={
            "dtype": told.dtype or of_graph.dtype,
            "dims": told.dims if len(told.dims) == len(of_graph.dims) else of_graph.dims,
            "format": told.format or of_graph.format,
            "is_shape": told.is_shape,
        }
    )
