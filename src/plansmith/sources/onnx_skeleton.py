"""ONNX files without the numbers of their tensors: a file of any size takes the time and the memory of its nodes."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

NUMBERS = frozenset(("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"))
"""What holds the numbers of a tensor, by the names of ONNX's protobuf."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_KEPT_BYTES = 1024
"""A message that is not larger is kept as it is: most nodes, and tensors of sizes and single numbers."""
_MOST_NESTED = 60
_MOST_SKELETON = 256 * 2**20


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
