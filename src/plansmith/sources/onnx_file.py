"""ONNX files as sources: which files a model consists of, whether they can be trusted, and what is read of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from plansmith.errors import EnvironmentFault, SourceError

if TYPE_CHECKING:
    import onnx

NUMBERS = frozenset(("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"))
"""What holds the numbers of a tensor, by the names of ONNX's protobuf."""
_DECLARATIONS = ("input", "output", "value_info")
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_KEPT_BYTES = 1024
"""A message that is not larger is kept as it is: most nodes, and tensors of sizes and single numbers."""
_MOST_NESTED = 60
_MOST_SKELETON = 256 * 2**20
_BLOCK_BYTES = 64 * 1024
_COPIED_BYTES = 2**20

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

    with path.open("rb") as stream:
        data = _Blocks(stream)
        return onnx.ModelProto.FromString(_without_numbers(data, 0, data.size, onnx.ModelProto.DESCRIPTOR))


def has_numbers(tensor: onnx.TensorProto) -> bool:
    """Whether the numbers of a tensor are in it; `read_skeleton` leaves large ones out."""
    return any(field.name in NUMBERS for field, _ in tensor.ListFields())


def write_graph(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Write a graph that was read from a file, whose weights beside it stay there.

    Args:
        model: the graph; if it is a skeleton, only inputs, outputs and what is known of tensors may have changed.
        source: the file that it was read from.
        target: another file.

    Raises:
        OSError: a file cannot be read or written.
    """
    import onnx

    if all(_is_external(tensor) or has_numbers(tensor) or 0 in tensor.dims for tensor in tensors(model)):
        onnx.save(model, target)
    else:
        copy_with_interface(source, target, model.graph)


def copy_with_interface(source: Path, target: Path, interface: onnx.GraphProto) -> None:
    """Copy an ONNX file, with what another graph says of inputs, outputs and tensors; no weights are held.

    Raises:
        ValueError: it is not written as protobuf is.
        OSError: a file cannot be read or written.
    """
    import onnx

    with source.open("rb") as stream, target.open("wb") as copy:
        data = _Blocks(stream)
        for field in _fields(data, 0, data.size, onnx.ModelProto.DESCRIPTOR):
            if field.kind is None or field.kind.name != "graph":
                data.copy([(field.begin, field.end)], copy)
                continue
            kept, place = [], field.content
            for inner in _fields(data, field.content, field.end, onnx.GraphProto.DESCRIPTOR):
                if inner.kind is not None and inner.kind.name in _DECLARATIONS:
                    kept.append((place, inner.begin))
                    place = inner.end
            kept.append((place, field.end))
            declared = onnx.GraphProto(**{name: getattr(interface, name) for name in _DECLARATIONS}).SerializeToString()
            length = sum(end - begin for begin, end in kept) + len(declared)
            copy.write(_as_varint(field.tag) + _as_varint(length))
            data.copy(kept, copy)
            copy.write(declared)


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


class _Blocks:
    """The bytes of a file, read in blocks. Mapped memory would end the process where somebody cuts the file off."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, os.SEEK_END)
        self._begin, self._block = 0, b""

    def between(self, begin: int, end: int) -> bytes:
        """Return some bytes.

        Raises:
            ValueError: the file has become shorter.
        """
        if begin < self._begin or end > self._begin + len(self._block):
            self._stream.seek(begin)
            self._begin, self._block = begin, self._stream.read(max(_BLOCK_BYTES, end - begin))
        content = self._block[begin - self._begin : end - self._begin]
        if len(content) < end - begin:
            raise ValueError("it is cut off")
        return content

    def copy(self, ranges: Iterable[tuple[int, int]], target: BinaryIO) -> None:
        """Append ranges of bytes to another file, a block at a time.

        Raises:
            ValueError: the file has become shorter.
        """
        for begin, end in ranges:
            self._stream.seek(begin)
            for place in range(begin, end, _COPIED_BYTES):
                length = min(_COPIED_BYTES, end - place)
                if target.write(self._stream.read(length)) < length:
                    raise ValueError("it is cut off")


class _Field(NamedTuple):
    """A field of a protobuf message in a file: `begin` is where its tag is, `content` what follows that and a length.

    `kind` is its descriptor, None where the message has no such field.
    """

    tag: int
    kind: Any
    begin: int
    content: int
    end: int

    @property
    def is_message(self) -> bool:
        return self.tag & 7 == _BYTES and self.kind is not None and self.kind.message_type is not None


def _fields(data: _Blocks, place: int, end: int, kind: Any) -> Iterator[_Field]:
    """Yield the fields of the message of a kind between two places.

    Raises:
        ValueError: it is not what the descriptor says.
    """
    while place < end:
        begin = place
        tag, place = _varint(data, place, end)
        place, length = _past(data, place, end, tag & 7)
        yield _Field(tag, kind.fields_by_number.get(tag >> 3), begin, place - length, place)


def _without_numbers(data: _Blocks, place: int, end: int, kind: Any, depth: int = 0) -> bytes:
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
    for field in _fields(data, place, end, kind):
        if field.kind is None or (is_tensor and field.kind.name in NUMBERS):
            continue
        if field.is_message and field.end - field.content > _KEPT_BYTES:
            skeleton += _as_field(
                field.tag, _without_numbers(data, field.content, field.end, field.kind.message_type, depth + 1)
            )
        elif len(skeleton) + field.end - field.begin <= _MOST_SKELETON:
            skeleton += data.between(field.begin, field.end)
        else:
            raise ValueError("its nodes alone are larger than those of any model")
    return bytes(skeleton)


def _past(data: _Blocks, place: int, end: int, wire: int) -> tuple[int, int]:
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


def _varint(data: _Blocks, place: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while shift < 70:
        if place >= end:
            raise ValueError("it is cut off")
        (byte,) = data.between(place, place + 1)
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("it is not written as protobuf is")


def _as_field(tag: int, content: bytes) -> bytes:
    return _as_varint(tag) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
