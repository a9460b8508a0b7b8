"""Shared memory between client and server on one machine, for large tensors."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, first_line
from plansmith.system.files import scratch_name
from plansmith.triton.client.messages import WireTensor
from plansmith.triton.dtypes import STRING, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.shared_memory import SharedMemory

    from numpy.typing import NDArray

    from plansmith.triton.client.connection import Connection

SMALLEST_BYTES = 64 << 10
"""Tensors below it travel in the request, which costs less than a look into shared memory."""

_ALIGNMENT = 64
_STEP_BYTES = 1 << 20


class SharedRegions:
    """Shared memory regions that grow on demand: one for inputs, one for outputs.

    Closing removes them on both sides. Where this process is killed, Python's resource tracker removes them here, and
    the server keeps its mapping until it ends.

    Args:
        connection: to the server that maps them.
    """

    def __init__(self, connection: Connection) -> None:
        self._inputs = _Region(connection)
        self._outputs = _Region(connection)

    def close(self) -> None:
        """Remove both regions, until the next request needs them. Idempotent."""
        self._inputs.close()
        self._outputs.close()

    def abandon(self) -> None:
        """Remove both regions locally but leave them mapped in the server, which may still use them for a request."""
        self._inputs.abandon()
        self._outputs.abandon()

    def place_inputs(self, tensors: Sequence[WireTensor]) -> list[WireTensor]:
        """Return the inputs of a request, with large ones placed in shared memory.

        Raises:
            ServedCheckError: the server cannot map it.
            EnvironmentFault: there is not as much, or the server is not reached.
        """
        sizes = [t.values.nbytes if t.values is not None and t.dtype != STRING else 0 for t in tensors]
        places = self._inputs.reserve(sizes)
        result = []
        for tensor, place in zip(tensors, places, strict=True):
            if place is None or tensor.values is None:
                result.append(tensor)
            else:
                self._inputs.write(tensor.values, place[2])
                result.append(replace(tensor, region=place, values=None))
        return result

    def place_outputs(
        self, tensors: Sequence[WireTensor], shapes: Sequence[tuple[int, ...] | None]
    ) -> list[WireTensor]:
        """Return the outputs of a request, with space for large ones of known shape; errors as for `place_inputs`."""
        sizes = [
            0 if shape is None or t.dtype == STRING else math.prod(shape) * numpy_dtype(t.dtype).itemsize
            for t, shape in zip(tensors, shapes, strict=True)
        ]
        places = self._outputs.reserve(sizes)
        return [replace(tensor, region=place) for tensor, place in zip(tensors, places, strict=True)]

    def read_output(self, tensor: WireTensor, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a copy of an output that the server wrote."""
        assert tensor.region is not None
        return self._outputs.read(tensor.dtype, shape, tensor.region[2])


class _Region:
    """A shared memory region, registered with the server under its own name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._memory: SharedMemory | None = None

    def reserve(self, sizes: Sequence[int]) -> list[tuple[str, int, int] | None]:
        """Reserve space for tensors of these sizes in bytes: name, size and offset; None for a small one."""
        starts: list[int | None] = []
        end = 0
        for size in sizes:
            starts.append(end if size >= SMALLEST_BYTES else None)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT if size >= SMALLEST_BYTES else 0
        if end:
            self._grow(end)
        name = self._memory.name if self._memory is not None else ""
        return [None if start is None else (name, size, start) for size, start in zip(sizes, starts, strict=True)]

    def write(self, values: NDArray[Any], start: int) -> None:
        import numpy as np

        assert self._memory is not None
        np.ndarray(values.shape, values.dtype, buffer=self._memory.buf, offset=start)[...] = values

    def read(self, dtype: str, shape: tuple[int, ...], start: int) -> NDArray[Any]:
        import numpy as np

        assert self._memory is not None
        return np.ndarray(shape, numpy_dtype(dtype), buffer=self._memory.buf, offset=start).copy()

    def close(self) -> None:
        try:
            if self._memory is not None:
                with suppress(PlansmithError):  # a server that is gone has let it go
                    self._connection.forget_region(self._memory.name)
        finally:
            self.abandon()

    def abandon(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
            memory.unlink()

    def _grow(self, needed: int) -> None:
        from multiprocessing.shared_memory import SharedMemory

        if self._memory is not None and self._memory.size >= needed:
            return
        self.close()
        size = -(-needed // _STEP_BYTES) * _STEP_BYTES
        try:
            memory = SharedMemory(scratch_name(secrets.token_hex(8)), create=True, size=size)
        except OSError as error:
            raise EnvironmentFault(
                f"there are no {size} bytes of shared memory: {first_line(error)}", remedy="ask without shared memory"
            ) from error
        try:
            self._connection.register_region(memory.name, f"/{memory.name}", size)
        except BaseException as error:
            memory.close()
            memory.unlink()
            if isinstance(error, ServedCheckError):
                raise ServedCheckError(
                    error.message,
                    remedy="ask without shared memory: client and server have to share /dev/shm for it",
                ) from error
            raise
        self._memory = memory
