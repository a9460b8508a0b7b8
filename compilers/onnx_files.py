"""ONNX file I/O: interface, versions, external weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.records.model import ANONYMOUS, Component, Dim, Tensor
from plansmith.sources import onnx_file
from plansmith.sources.onnx_file import read_skeleton

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

MODEL_FILE = "model.onnx"
EXTERNAL_FILE = "model.onnx.data"

# A protobuf message ends at 2 GiB; what is near it goes beside the graph.
EXTERNAL_THRESHOLD_BYTES = 1_800_000_000
_SMALL_BYTES = 1024


def save(model: onnx.ModelProto, folder: Path, *, threshold_bytes: int = EXTERNAL_THRESHOLD_BYTES) -> Path:
    """Save a graph as model.onnx, with weights in an external file if they are too large for one protobuf message."""
    import onnx

    path = folder / MODEL_FILE
    external = sum(len(t.raw_data) for t in model.graph.initializer) > threshold_bytes
    onnx.save(model, path, save_as_external_data=external, location=EXTERNAL_FILE if external else None)
    if external:  # onnx has moved the weights out of the model; whoever holds it goes on with them
        onnx.load_external_data_for_model(model, str(folder))
    return path


def apart_from_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """Return a copy of a graph without its large weights, and these by name, for `onnxrt.open_session`.

    A graph as one message would be copied several times before it runs, with all that it weighs.
    """
    import onnx

    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    for field, value in model.graph.ListFields():
        if isinstance(value, str):
            setattr(skeleton.graph, field.name, value)
        elif field.name != "initializer":
            getattr(skeleton.graph, field.name).extend(value)
    kinds = onnx.TensorProto
    shared = {kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE, kinds.INT8, kinds.UINT8, kinds.INT32, kinds.INT64}
    weights: dict[str, NDArray[np.generic]] = {}
    for tensor in model.graph.initializer:
        is_large = tensor.HasField("raw_data") and tensor.ByteSize() > _SMALL_BYTES
        if not is_large or tensor.data_type not in shared:  # those that NumPy has, too
            skeleton.graph.initializer.append(tensor)
            continue
        weights[tensor.name] = onnx.numpy_helper.to_array(tensor)
        named = skeleton.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        named.data_location = onnx.TensorProto.EXTERNAL
        named.external_data.add(key="location", value="in memory")
    return skeleton, weights


def finish(raw: Path, tensors: tuple[Tensor, ...]) -> Component:
    """Make an exporter's file the only one in its folder, as model.onnx, with the given dims.

    Weights are read only where they lie beside the graph.
    """
    import onnx

    path, skeleton = raw.parent / MODEL_FILE, read_skeleton(raw)
    component = describe_model(skeleton, path)
    if not component.external_files:
        name_dims(skeleton, tensors)
        named = describe_model(skeleton, path)
        if named == component:
            raw.rename(path)
        else:
            onnx_file.copy_with_interface(raw, path, skeleton.graph)
            raw.unlink()
        return named
    model = onnx.load(raw)
    for written in raw.parent.iterdir():
        written.unlink()
    name_dims(model, tensors)
    save(model, raw.parent)
    external = (EXTERNAL_FILE,) if (path.parent / EXTERNAL_FILE).exists() else ()
    return describe_model(model, path).model_copy(update={"external_files": external})


def describe(path: Path) -> Component:
    """Return the interface and versions of a graph, without reading its weights."""
    return describe_model(read_skeleton(path), path)


def domains(path: Path) -> set[str]:
    """Return the operator domains that a graph's nodes and local functions use."""
    return {node.domain for node in all_nodes(read_skeleton(path))}


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, including those of its functions and subgraphs."""
    waiting = [*model.graph.node, *(n for function in model.functions for n in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            waiting += [*attribute.g.node, *(n for graph in attribute.graphs for n in graph.node)]


def check_skeleton(skeleton: onnx.ModelProto) -> None:
    """Have onnx.checker judge all of a graph but the numbers of its tensors, which it sees as ones without elements.

    Raises:
        onnx.checker.ValidationError: the graph is not what ONNX describes.
    """
    import onnx

    shown = onnx.ModelProto()
    shown.CopyFrom(skeleton)
    for tensor in onnx_file.tensors(shown):
        if not onnx_file.has_numbers(tensor):
            tensor.dims[:] = [0]
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    onnx.checker.check_model(shown)


def element_types(path: Path) -> set[str]:
    """Return the NumPy type names of all weights of a graph."""
    import onnx

    stored = onnx_file.tensors(read_skeleton(path))
    return {onnx.helper.tensor_dtype_to_np_dtype(kind).name for kind in {tensor.data_type for tensor in stored}}


def describe_model(model: onnx.ModelProto, path: Path) -> Component:
    """As `describe`, for a loaded graph; `path` is its location."""
    initializers = {t.name for t in model.graph.initializer}
    return Component(
        file=path.name,
        external_files=tuple(sorted(onnx_file.locations(model))),
        inputs=tuple(_tensor(v) for v in model.graph.input if v.name not in initializers),
        outputs=tuple(_tensor(v) for v in model.graph.output),
        opset=next(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}),
        ir_version=model.ir_version,
    )


def name_dims(model: onnx.ModelProto, tensors: tuple[Tensor, ...]) -> None:
    """Replace the exporter's dim names of inputs and outputs with the given ones."""
    tensors_by_name = {t.name: t for t in tensors}
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in tensors_by_name:
            continue
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for dim in tensors_by_name[value.name].dims:
            entry = shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            else:
                entry.dim_param = dim


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    import onnx

    kind = value.type.tensor_type
    # Old exporters write -1 or 0 for a size that varies.
    dims: list[Dim] = [d.dim_value if d.dim_value > 0 else (d.dim_param or ANONYMOUS) for d in kind.shape.dim]
    return Tensor(name=value.name, dtype=onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name, dims=tuple(dims))
