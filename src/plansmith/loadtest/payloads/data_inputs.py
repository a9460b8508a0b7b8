"""Requests from the user's data: the rows of a file or data set, combined into batches."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, TEXT, TEXT_PAIR, DataSpec
from plansmith.data.columns import Takes
from plansmith.data.reader import DataPlace, Reading, open_data
from plansmith.data.sample import Sample
from plansmith.errors import UsageError
from plansmith.loadtest.payloads.sizes import SizeMix
from plansmith.records.model import ANONYMOUS, BATCH, AxisRange, Tensor
from plansmith.records.release import Manifest
from plansmith.sources.dataset import find_data
from plansmith.sources.inputs.collate import encode_arrays
from plansmith.system.digest import Digester
from plansmith.triton.client.dtypes import STRING, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_MAX_ROWS = 4096
"""Rows that are read: enough for requests that differ."""

_UINT8 = "uint8"


@dataclass(frozen=True)
class DataInputs:
    """Requests made of data.

    Args:
        signature: what the model takes.
        samples: the rows.
        axes: known ranges of dims by name.
        description: where the rows come from.
    """

    signature: Signature
    samples: Sequence[Sample]
    axes: Mapping[str, AxisRange]
    description: str

    def requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Batches of rows, without end, each row as often as the others.

        Raises:
            UsageError: the rows do not fit the model's inputs.
        """
        generator = mix.generator()
        order = list(range(len(self.samples)))
        generator.shuffle(order)
        place = 0
        batch = AxisRange(min=1, opt=1, max=max(self.signature.max_batch_size, 1))
        while True:
            size = mix.draw_batch(generator, batch)
            rows = [self.samples[order[(place + step) % len(order)]] for step in range(size)]
            place += size
            yield self._request(rows)

    def _request(self, rows: Sequence[Sample]) -> Arrays:
        is_batched = bool(self.signature.max_batch_size)
        roles = [role for role in (TEXT, TEXT_PAIR, IMAGE) if role in rows[0].values]
        if roles:
            return {
                tensor.name: _raw_array(tensor, [sample.values[role] for sample in rows], is_batched=is_batched)
                for tensor, role in zip(_raw_inputs(self.signature), roles, strict=False)
            }
        tensors = [_with_named_dims(tensor, is_batched=is_batched) for tensor in self.signature.inputs]
        dims = {dim for tensor in tensors for dim in tensor.dims if isinstance(dim, str)}
        ranges = {dim: self.axes.get(dim, AxisRange(min=0, opt=0, max=2**31)) for dim in dims}
        arrays = dict(encode_arrays(tensors, None, rows, ranges).feed)
        return arrays if is_batched else {name: array[0] for name, array in arrays.items()}


def read_data(spec: DataSpec, signature: Signature, *, manifest: Manifest | None = None) -> DataInputs:
    """Read data for the requests of a model.

    Texts and images go to string inputs as they are; other inputs take columns of their names.

    Args:
        spec: where the data are; a relative path starts from the working directory.
        signature: what the model takes.
        manifest: of the model's release, which knows the ranges of its axes.

    Raises:
        SourceError: the data are not there, or cannot be read.
        UsageError: they have no columns for the model's inputs.
        EnvironmentFault: the library that reads them is not installed, or a hub is not reached.
    """
    place = find_data(spec, relative_to=Path(), digester=Digester(Path("no-memo"), read_only=True))
    reading = _open(place, spec, signature)
    samples = list(islice(reading.samples, _MAX_ROWS))
    if not samples:
        raise UsageError(f"data: {reading.words} has no rows", remedy="name data that have some")
    return DataInputs(signature, samples, dict(manifest.onnx.axes) if manifest else {}, reading.words)


def _open(place: DataPlace, spec: DataSpec, signature: Signature) -> Reading:
    """The data, with the columns that the model's inputs take; columns of the inputs' own names come first."""
    raw = _raw_inputs(signature)
    if len(raw) < len(signature.inputs):  # numbers, at least beside texts
        takes = Takes((), tuple(tensor.name for tensor in signature.inputs), tuple(signature.optional))
        return open_data(place, spec.entry_point, spec.columns, takes, labelled=False)
    texts = (TEXT, TEXT_PAIR)[: len(raw)]
    takes = Takes((IMAGE,) if place.kind == "images" else (*texts, *((IMAGE,) if len(raw) == 1 else ())), ())
    if not spec.columns and place.kind != "images":
        named = {role: tensor.name for role, tensor in zip(texts, raw, strict=False)}
        with suppress(UsageError):
            return open_data(place, spec.entry_point, named, takes, labelled=False)
    return open_data(place, spec.entry_point, spec.columns, takes, labelled=False)


def _raw_inputs(signature: Signature) -> list[Tensor]:
    """The inputs that take texts, or the bytes of files."""
    strings = [tensor for tensor in signature.inputs if tensor.dtype == STRING]
    return strings or [t for t in signature.inputs if t.dtype == _UINT8 and t.dims and not isinstance(t.dims[-1], int)]


def _with_named_dims(tensor: Tensor, *, is_batched: bool) -> Tensor:
    """The tensor with a batch, and with a name for each dynamic dim."""
    dims = tensor.dims if is_batched else (BATCH, *tensor.dims)
    named = tuple(f"{tensor.name}.{place}" if dim == ANONYMOUS else dim for place, dim in enumerate(dims))
    return tensor.model_copy(update={"dims": named})


def _raw_array(tensor: Tensor, values: Sequence[Any], *, is_batched: bool) -> NDArray[Any]:
    """Texts or files as an array of bytes objects, or as the bytes of one file."""
    import numpy as np

    contents = [_content(tensor, value) for value in values]
    if tensor.dtype == _UINT8:  # rows of different sizes make no array: the first stands for all
        rows = np.stack([np.frombuffer(contents[0], np.uint8)] * len(contents))
        return rows if is_batched else rows[0]
    array = np.empty(len(contents), dtype=object)
    array[:] = contents
    ones = (1,) * len(tensor.dims)
    return array.reshape((len(contents), *ones[1:]) if is_batched else ones)


def _content(tensor: Tensor, value: Any) -> bytes:
    if isinstance(value, Path):
        return value.read_bytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if hasattr(value, "save"):  # an image of PIL
        out = io.BytesIO()
        value.save(out, "PNG")
        return out.getvalue()
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return " ".join(value).encode()
    raise UsageError(
        f"data: {tensor.name!r} takes texts or files, and the data have {type(value).__name__}",
        remedy="name data with a column of texts, or a folder of images",
    )
