"""ONNX files as sources: which files a model consists of, whether they can be trusted, and what is read of them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, SourceError

if TYPE_CHECKING:
    import onnx

NUMBERS = frozenset(("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"))
"""What holds the numbers of a tensor, by the names of ONNX's protobuf."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_KEPT_BYTES = 1024
"""A message that is not larger is kept as it is: most nodes, and tensors of sizes and single numbers."""
_MOST_NESTED = 60
_MOST_SKELETON = 256 * 2**20

_WRITE_AGAIN = "export or download the model again"


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every stored tensor of a model: initializers and attributes, including subgraphs and functions."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def locations(model: onnx.ModelProto) -> dict[str, int]:
    """Return the external weight files, and the minimum size in bytes of each.

    Raises:
        ValueError: a tensor does not say where it lies, or wants more bytes than it has.
    """
    sizes: dict[str, int] = {}
    for tensor in filter(_is_external, tensors(model)):
        facts = {entry.key: entry.value for entry in tensor.external_data}
        place, size = facts.get("location", ""), _bytes(tensor)
        if not isinstance(place, str):  # as protobuf gives what is no UTF-8
            raise ValueError(f"{place!r} is no text")  # noqa: TRY004 - as int() has it
        offset, length = int(facts.get("offset") or 0), int(facts.get("length") or size)
        if offset < 0 or not 0 <= length <= size:
            raise ValueError(f"{tensor.name!r} has {size:,} bytes, and is to have {length:,} from byte {offset:,} on")
        sizes[place] = max(offset + length, sizes.get(place, 0))
    return sizes


def relocate(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename a model's references to external weight files: old to new."""
    for tensor in filter(_is_external, tensors(model)):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == tensor.EXTERNAL


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in chain.from_iterable(node.attribute for node in nodes):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _of_graph(graph)


def _bytes(tensor: onnx.TensorProto) -> int:
    import onnx

    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise ValueError(f"{tensor.name!r} has a dtype that ONNX does not have: {tensor.data_type}") from error
    return math.prod(tensor.dims) * dtype.itemsize


def read_skeleton(path: Path) -> onnx.ModelProto:
    """Read an ONNX file without the numbers of tensors above 1 KiB; it opens no external files.

    Raises:
        ValueError: it is not written as protobuf is, or its nodes alone are larger than those of any model.
        google.protobuf.message.DecodeError: it is no ONNX model.
        OSError: it cannot be read.
    """
    import onnx

    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return onnx.ModelProto.FromString(_without_numbers(data, 0, len(data), onnx.ModelProto.DESCRIPTOR))


def read_graph(path: Path, *, weights: bool = True) -> onnx.ModelProto:
    """Read the graph of a file, without its external weights.

    Args:
        path: of the file.
        weights: with those that are in it; else as `read_skeleton`.

    Raises:
        SourceError: the file is empty, cut off, cannot be read, or is no ONNX model.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise EnvironmentFault(f"{error.name} is not installed", remedy="pip install 'plansmith[compile]'") from error
    try:
        if not path.stat().st_size:
            raise SourceError(f"{path} is empty", remedy=_WRITE_AGAIN)
        read = partial(onnx.load, format="protobuf", load_external_data=False) if weights else read_skeleton
        model = read(path)
    except (DecodeError, ValueError) as error:
        raise SourceError(f"{path} is no ONNX model, or is cut off", remedy=_WRITE_AGAIN) from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", remedy="check its permissions") from error
    if not model.graph.output or not any(o.domain in {"", "ai.onnx"} for o in model.opset_import):
        raise SourceError(
            f"{path} holds no ONNX graph with outputs and an operator set", remedy="name a file that an exporter wrote"
        )
    return model


def weights_of(path: Path) -> dict[str, int]:
    """Return the weight files that a graph refers to, by its names for them, with their minimum size in bytes.

    Raises:
        SourceError: as for `read_graph`; or the graph does not say where they lie.
    """
    try:
        return locations(read_graph(path, weights=False))
    except ValueError as error:
        raise SourceError(f"{path} does not say where its weights lie: {error}", remedy=_WRITE_AGAIN) from error


def files_of(path: Path, needed: Mapping[str, int]) -> list[Path]:
    """Return the file of a graph and its external weight files, which are checked but not read.

    Args:
        path: the graph.
        needed: what `weights_of` found in it.

    Raises:
        SourceError: weights are missing, cut off, or outside of the graph's folder.
    """
    return sorted({path, *(_weights(path, location, size) for location, size in needed.items())})


def _weights(path: Path, location: str, size: int) -> Path:
    """Return one external weights file named by the graph, which is untrusted."""
    place = PurePosixPath(location)
    file = path.parent / place
    if not location or place.is_absolute() or ".." in place.parts:
        raise SourceError(
            f"{path.name} wants weights from {location!r}, which is no path inside its own folder",
            remedy="put the weights beside the graph: onnx.save(model, path, save_as_external_data=True)",
        )
    if not file.resolve().is_relative_to(path.parent.resolve()):
        raise SourceError(
            f"the weights {file} are a link that leads out of the folder of {path.name}",
            remedy="copy the graph and the files themselves into one folder (cp -L)",
        )
    if not file.is_file():
        raise SourceError(
            f"{path.name} keeps weights in {location!r}, and there is no file {file}",
            remedy="put the file of weights beside the graph, under the name that it was exported with",
        )
    if file.stat().st_size < size:
        raise SourceError(
            f"{file} is cut off: it has {file.stat().st_size:,} bytes, {path.name} needs {size:,}",
            remedy=_WRITE_AGAIN,
        )
    return file


def _without_numbers(data: mmap.mmap, place: int, end: int, kind: Any, depth: int = 0) -> bytes:
    """Return an ONNX protobuf message without tensor data, so that only the nodes take memory.

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
    skeleton, is_tensor = bytearray(), kind.name == "TensorProto"
    while place < end:
        begin = place
        tag, place = _varint(data, place, end)
        wire, field = tag & 7, kind.fields_by_number.get(tag >> 3)
        place, length = _past(data, place, end, wire)
        if field is None or (is_tensor and field.name in NUMBERS):
            continue
        if wire == _BYTES and field.message_type is not None and length > _KEPT_BYTES:
            inner = _without_numbers(data, place - length, place, field.message_type, depth + 1)
            skeleton += _as_varint(tag) + _as_varint(len(inner)) + inner
        else:
            skeleton += data[begin:place]
        if len(skeleton) > _MOST_SKELETON:
            raise ValueError("its nodes alone are larger than those of any model")
    return bytes(skeleton)


def _past(data: mmap.mmap, place: int, end: int, wire: int) -> tuple[int, int]:
    """The end of a field's value, and the number of its content bytes."""
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
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
