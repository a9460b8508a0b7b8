"""Requests that Triton asks a model before it is ready, made of the reference's real inputs.

Triton repeats one sample to fill a batch: a file holds the values of one sample, without the batch, and has the dims
of a request, which Triton reshapes as it does with any other (`GenerateWarmupData` in src/backend_model_instance.cc of
github.com/triton-inference-server/core).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.triton import TritonOptions
from plansmith.data.reference import StoredCases, read_feed
from plansmith.records.model import BATCH, AxisRange, Case, Device, Tensor
from plansmith.triton.client.dtypes import numpy_dtype
from plansmith.triton.config.model_config import data_type
from plansmith.triton.config.overrides import model_dims

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tritonclient.grpc import model_config_pb2 as pb

    Arrays = Mapping[str, NDArray[np.generic]]

FOLDER = "warmup"
MOST_BYTES = 64 << 20
"""The files of a release's warm-up take no more."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_wanted(options: TritonOptions, config: pb.ModelConfig, device: Device) -> bool:
    """Whether a warm-up is made of the reference: by default for instances on a GPU, where first requests are slow."""
    if options.model_warmup != "auto":
        return options.model_warmup == "on"
    groups = config.instance_group
    return any(one.kind == one.KIND_GPU or (one.kind == one.KIND_AUTO and device == "gpu") for one in groups)


def obstacle(options: TritonOptions, config: pb.ModelConfig) -> str:
    """Why no warm-up can be made of the reference, in words; empty where it can."""
    if options.sequence_batching is not None:
        return "its requests belong to sequences"
    if any(entry.allow_ragged_batch for entry in config.input) or options.batch_input:
        return "its batches are ragged"
    return ""


@dataclass
class Warmup:
    """The warm-up of one release in the making.

    Args:
        config: takes the samples; its largest batch and instances are settled.
        inputs: of the model, with its own dims and the element types that it is served with.
        axes: their ranges.
        cases: the reference's.
        out: the folder of the release; takes the files.
        takes: whether the model answers to such inputs, batch included.
        room: how many bytes more its files may have.
        skipped: what could not be made, in words.
        files: what was written, by its place in `out`.
    """

    config: pb.ModelConfig
    inputs: Sequence[Tensor]
    axes: Mapping[str, AxisRange]
    cases: StoredCases
    out: Path
    takes: Callable[[Arrays], bool]
    room: int = MOST_BYTES
    skipped: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    _made: dict[tuple[tuple[int, ...], ...], str] = field(default_factory=dict, init=False)

    def add(self) -> None:
        """Add a sample at batch 1, at the usual batch and at the largest, each at the shapes of that point."""
        batches = {sample.batch_size for sample in self.config.model_warmup}
        for point in ("min", "opt", "max"):
            case = self._case(point)
            if case is None:
                self.skipped.append(f"at {point}: the reference has no inputs of that shape")
                continue
            sample = self._sample(read_feed(case, self.cases.folder))
            shapes, batch = tuple(array.shape for array in sample.values()), self._batch(point)
            if shapes in self._made and batch in batches:
                continue
            if not self.takes({name: self._repeated(array, batch) for name, array in sample.items()}):
                self.skipped.append(f"at {point}: no optimization profile takes it")
            elif self._store(point, sample):
                self._write(point, batch, sample, self._made[shapes])
                batches.add(batch)

    def _case(self, point: str) -> Case | None:
        """The case whose samples have the shape of a point, where clients are free to; how many does not matter."""
        sizes = {axis: getattr(r, point) for axis, r in self.axes.items()} | self._fixed()
        wanted = {axis: size for axis, size in sizes.items() if axis != BATCH or not self._is_batched}
        fitting = (case for case in self.cases.cases if wanted.items() <= case.axes.items())
        return min(fitting, key=lambda case: case.axes.get(BATCH, 1), default=None)

    def _fixed(self) -> dict[str, int]:
        """The sizes of axes that the model leaves open and the configuration does not."""
        entries, skip = {entry.name: entry for entry in self.config.input}, 1 if self._is_batched else 0
        pairs = (zip(t.dims[skip:], model_dims(entries[t.name]), strict=True) for t in self.inputs)
        return {dim: size for pair in pairs for dim, size in pair if isinstance(dim, str) and size != -1}

    @property
    def _is_batched(self) -> bool:
        return bool(self.config.max_batch_size)

    def _batch(self, point: str) -> int:
        largest = max(1, int(self.config.max_batch_size))
        sizes = {"min": 1, "opt": self.axes[BATCH].opt if BATCH in self.axes else 1, "max": largest}
        return min(sizes[point], largest)

    def _repeated(self, array: NDArray[np.generic], batch: int) -> NDArray[np.generic]:
        """What Triton makes of a sample."""
        import numpy as np

        return np.broadcast_to(array, (batch, *array.shape)) if self._is_batched else array

    def _sample(self, feed: Arrays) -> dict[str, NDArray[np.generic]]:
        """The first sample of a batch; all of it where there is no batching."""
        arrays = {t.name: feed[t.name][0] if self._is_batched else feed[t.name] for t in self.inputs}
        return {tensor.name: arrays[tensor.name].astype(numpy_dtype(tensor.dtype)) for tensor in self.inputs}

    def _store(self, point: str, sample: Arrays) -> bool:
        """Write the files of a sample, unless one of these shapes is there already; false where there is no room."""
        shapes = tuple(array.shape for array in sample.values())
        if shapes in self._made:
            return True
        size = sum(array.nbytes for array in sample.values())
        if size > self.room:
            words = f"its files would have {size} bytes, and {self.room} are left of {MOST_BYTES >> 20} MiB"
            self.skipped.append(f"at {point}: {words}")
            return False
        self.room -= size
        self._made[shapes] = point
        for number, (name, array) in enumerate(sample.items()):
            path = Path(FOLDER, point, _file_name(name, number))
            (self.out / path).parent.mkdir(parents=True, exist_ok=True)
            (self.out / path).write_bytes(array.tobytes())
            self.files.append(path.as_posix())
        return True

    def _write(self, point: str, batch: int, sample: Arrays, folder: str) -> None:
        from tritonclient.grpc import model_config_pb2 as pb

        entries = {entry.name: entry for entry in self.config.input}
        entry = self.config.model_warmup.add(name=point, batch_size=batch)
        for number, tensor in enumerate(self.inputs):
            value = entry.inputs[tensor.name]
            value.data_type = pb.DataType.Value(data_type(tensor))
            value.dims.extend(_wire_dims(entries[tensor.name], sample[tensor.name].shape))
            value.input_data_file = f"{folder}/{_file_name(tensor.name, number)}"


def _wire_dims(entry: pb.ModelInput, shape: Sequence[int]) -> list[int]:
    """The dims of a request of a sample: those that vary have its sizes, in their order."""
    varying = iter([size for size, dim in zip(shape, model_dims(entry), strict=True) if dim == -1])
    return [next(varying) if dim == -1 else int(dim) for dim in entry.dims]


def _file_name(name: str, number: int) -> str:
    """The file of an input: its name where that can be one."""
    return name if _PLAIN.fullmatch(name) else f"input{number}"
