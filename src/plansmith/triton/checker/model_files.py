"""What model files say of their inputs and outputs: ONNX graphs without their weights, plans by our manifests."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import RepositoryError, first_line
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import Dim, Tensor
from plansmith.records.release import Manifest
from plansmith.sources import external_data
from plansmith.triton.config.plan_config import is_linear, plan_dims

if TYPE_CHECKING:
    import onnx

# What holds the numbers of a tensor in a file, by the names of ONNX's protobuf.
_NUMBERS = frozenset(
    ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
)
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_NESTED = 60
_MOST_SKELETON = 256 * 2**20
_MOST_READ = 8
_REMEDY = "export the model again, or copy the file again from where it was made"


@dataclass(frozen=True)
class GraphFacts:
    """What an ONNX file says of itself.

    Args:
        inputs: those that have no default, in order; dims are numbers, names, or "" where nothing is said.
        defaults: those that an initialiser gives a default.
        outputs: in order.
        shaped: the inputs and outputs whose rank the file tells; the dims of others mean nothing.
        ir_version: of the file's format.
        opset: of ONNX's own operators; 0 where it imports none.
        foreign: domains of operators that are neither ONNX's nor functions of the file itself.
        external: the files of external weights as the graph names them, and the bytes that each must have.
        values: the names of all that flows through the graph and those inside of it.
    """

    inputs: tuple[Tensor, ...]
    defaults: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shaped: frozenset[str]
    ir_version: int
    opset: int
    foreign: tuple[str, ...]
    external: Mapping[str, int]
    values: frozenset[str]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every input and output, by name."""
        return {tensor.name: tensor for tensor in (*self.inputs, *self.defaults, *self.outputs)}


@dataclass(frozen=True)
class PlanFact:
    """An input or output of a plan; `dims` with -1 where they vary, batch included."""

    name: str
    is_input: bool
    dtype: str
    dims: tuple[int, ...]
    is_shape: bool
    is_linear: bool


@dataclass(frozen=True)
class PlanFacts:
    """What the manifest of a release says of its plans.

    Args:
        tensors: inputs and outputs, by name.
        profiles: that it was built with; none for fixed shapes, where TensorRT makes one of them.
        versions: of TensorRT, by compute capability.
        stripped: the compute capabilities whose plans are without their weights.
        version_compatible: plans load in newer TensorRT too, with the runtime inside of them, if the server is told to
            run such.
    """

    tensors: Mapping[str, PlanFact]
    profiles: tuple[OptimizationProfile, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    stripped: tuple[str, ...] = ()
    version_compatible: bool = False


def graph_facts(path: Path) -> GraphFacts:
    """What an ONNX file says of itself; weights inside of it are passed over, and files beside it left alone.

    Args:
        path: of the file.

    Raises:
        RepositoryError: the file cannot be read, or is no ONNX graph.
    """
    try:
        facts = path.stat()
        return _remembered(path.resolve(), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    except OSError as error:
        raise RepositoryError(f"cannot read {path.name}: {error.strerror}", remedy=_REMEDY) from error


def plan_facts(manifest: Manifest) -> PlanFacts | None:
    """What a manifest says of plans; None where the release has none."""
    engine = manifest.engine
    if not engine.plans or engine.build is None:
        return None
    build, component, (plan, *_) = engine.build, engine.components["model"], engine.plans.values()
    told = {tensor.name: tensor for tensor in plan.tensors}
    formats = {t.name: t.format for one in engine.plans.values() for t in one.tensors if not is_linear(t.format)}
    valued = {name for profile in build.profiles for name in profile.values}
    tensors = {}
    for tensor in (*component.inputs, *component.outputs):
        own = told.get(tensor.name)
        tensors[tensor.name] = PlanFact(
            name=tensor.name,
            is_input=tensor in component.inputs,
            dtype=tensor.dtype,
            dims=tuple(plan_dims(tensor, own)),
            is_shape=tensor.name in valued or (own is not None and own.is_shape),
            is_linear=build.formats.get(tensor.name, "chw") == "chw" and tensor.name not in formats,
        )
    return PlanFacts(
        tensors=tensors,
        profiles=build.profiles,
        versions={capability: one.tensorrt for capability, one in engine.plans.items()},
        stripped=tuple(c for c, one in engine.plans.items() if build.strip_weights and not one.refitted),
        version_compatible=build.version_compatible and not build.exclude_lean_runtime,
    )


@lru_cache(maxsize=_MOST_READ)
def _remembered(path: Path, *_identity: int) -> GraphFacts:
    import google.protobuf.message
    import onnx

    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            skeleton = _without_numbers(data, 0, len(data), onnx.ModelProto.DESCRIPTOR)
        return _told(onnx.ModelProto.FromString(skeleton))
    except (ValueError, IndexError, TypeError, KeyError, google.protobuf.message.DecodeError) as error:
        raise RepositoryError(f"{path.name} is no ONNX graph: {first_line(error)}", remedy=_REMEDY) from error


def _told(model: onnx.ModelProto) -> GraphFacts:
    """What a model without its numbers says.

    Raises:
        ValueError: it is not whole.
    """
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise ValueError("it says no version of ONNX")
    given = {tensor.name for tensor in model.graph.initializer}
    given |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    entries = (*model.graph.input, *model.graph.output)
    return GraphFacts(
        inputs=tuple(_tensor(info) for info in model.graph.input if info.name not in given),
        defaults=tuple(_tensor(info) for info in model.graph.input if info.name in given),
        outputs=tuple(map(_tensor, model.graph.output)),
        shaped=frozenset(info.name for info in entries if info.type.tensor_type.HasField("shape")),
        ir_version=model.ir_version,
        opset=max((one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}), default=0),
        foreign=tuple(sorted(_domains(model.graph) - {function.domain for function in model.functions})),
        external=external_data.locations(model),
        values=frozenset((*given, *(info.name for info in entries), *_outputs(model.graph))),
    )


def _without_numbers(data: mmap.mmap, place: int, end: int, kind: Any, depth: int = 0) -> bytes:
    """A message of ONNX's protobuf without what its tensors hold, so that memory is that of the nodes alone.

    Args:
        data: the file.
        place: where the message begins in it.
        end: where it ends.
        kind: its descriptor.
        depth: how many messages it lies in.

    Raises:
        ValueError: it is not what the descriptor says.
    """
    if depth > _MOST_NESTED:
        raise ValueError("it is nested too deeply")
    kept, is_tensor = bytearray(), kind.name == "TensorProto"
    while place < end:
        begin = place
        tag, place = _varint(data, place, end)
        wire, known = tag & 7, kind.fields_by_number.get(tag >> 3)
        place, length = _past(data, place, end, wire)
        if known is None or (is_tensor and known.name in _NUMBERS):
            continue
        if wire == _BYTES and known.message_type is not None:
            inner = _without_numbers(data, place - length, place, known.message_type, depth + 1)
            kept += _as_varint(tag) + _as_varint(len(inner)) + inner
        else:
            kept += data[begin:place]
        if len(kept) > _MOST_SKELETON:
            raise ValueError("its nodes alone are larger than those of any model")
    return bytes(kept)


def _past(data: mmap.mmap, place: int, end: int, wire: int) -> tuple[int, int]:
    """Where a field's value ends, and how many bytes of it are content."""
    if wire == _VARINT:
        return _varint(data, place, end)[1], 0
    if wire == _BYTES:
        length, place = _varint(data, place, end)
    elif wire in {_FIXED_64, _FIXED_32}:
        length = 8 if wire == _FIXED_64 else 4
    else:
        raise ValueError("it is not written as protobuf is")
    if place + length > end:
        raise ValueError("it is cut off")
    return place + length, length


def _varint(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while shift < 70:
        if place >= end:
            raise ValueError("it is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("it is not written as protobuf is")


def _as_varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _tensor(info: onnx.ValueInfoProto) -> Tensor:
    """An input or output; its dtype is empty where it is no tensor, or one of a type that NumPy has no name for."""
    import onnx

    tensor = info.type.tensor_type
    dtype = ""
    if info.type.HasField("tensor_type") and tensor.elem_type in onnx.TensorProto.DataType.values():
        name = onnx.TensorProto.DataType.Name(tensor.elem_type)
        dtype = {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
    return Tensor(name=info.name, dtype=dtype, dims=tuple(map(_dim, tensor.shape.dim)))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """A size or a name; "" where nothing is said, as some exporters do by a size of -1."""
    if not dim.HasField("dim_value"):
        return dim.dim_param
    return dim.dim_value if dim.dim_value >= 0 else ""


def _domains(graph: onnx.GraphProto) -> set[str]:
    return {node.domain for node in _nodes(graph)} - {"", "ai.onnx"}


def _outputs(graph: onnx.GraphProto) -> Iterator[str]:
    return (name for node in _nodes(graph) for name in node.output)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)
