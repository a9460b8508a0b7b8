"""CUDA's memory and streams in the host's memory, for Polygraphy's runner: copies are real, nothing is computed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


class HostCuda:
    """In place of `polygraphy.cuda.Cuda`. `allocated`: the memory that is still held, by address."""

    def __init__(self) -> None:
        self.allocated: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.streams: set[int] = set()
        self.waits = 0
        self._allocation_count = 0

    def create_stream(self) -> int:
        self._allocation_count += 1
        self.streams.add(self._allocation_count)
        return self._allocation_count

    def destroy_stream(self, ptr: int) -> None:
        self.streams.remove(ptr)

    def stream_synchronize(self, ptr: int) -> None:
        assert ptr in self.streams
        self.waits += 1

    def malloc(self, nbytes: int) -> int:
        memory = ctypes.create_string_buffer(max(nbytes, 1))
        self.allocated[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, ptr: int) -> None:
        if ptr:  # as CUDA, which takes a null pointer
            del self.allocated[ptr]

    def memcpy(self, dst: int, src: int, nbytes: int, kind: int, stream_ptr: int | None = None) -> None:
        del kind
        assert stream_ptr is None or stream_ptr in self.streams
        ctypes.memmove(dst, src, nbytes)


@contextmanager
def installed() -> Iterator[HostCuda]:
    """Have Polygraphy use the host's memory."""
    from polygraphy.cuda import cuda

    with mock.patch.object(cuda, "G_CUDA", HostCuda()) as host:
        yield host
