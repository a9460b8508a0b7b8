"""How many bytes tensors take where Triton reads them from files."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from plansmith.triton.checking.enums import enum_name

_SIZES = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_INT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_INT16": 2,
    "TYPE_FP16": 2,
    "TYPE_BF16": 2,
    "TYPE_UINT32": 4,
    "TYPE_INT32": 4,
    "TYPE_FP32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT64": 8,
    "TYPE_FP64": 8,
}
_LENGTH_BYTES = 4


def bytes_of(data_type: int, dims: Iterable[int]) -> int | None:
    """What a tensor takes; None of strings and of what has no data type, which have no size of their own.

    Args:
        data_type: of Triton's protobuf.
        dims: all of them fixed.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    size = _SIZES.get(enum_name(pb.DataType, data_type))
    return None if size is None else size * prod(dims)


def count_strings(content: bytes) -> int | None:
    """How many strings there are, each behind its length in 4 bytes (little-endian); None where that is not so."""
    count = start = 0
    while start < len(content):
        length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES + length
        count += 1
    return count if start == len(content) else None
