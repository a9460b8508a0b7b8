"""Inputs of a load test: from a release, from the user's data, or random; at mixed sizes."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import IMAGE, TEXT, TEXT_PAIR, DataSpec
from plansmith.data.reader import DataPlace, Reading, open_data
from plansmith.data.reference import StoredCases, read_feed
from plansmith.data.sample import Sample, Takes
from plansmith.data.synthetic import sample_texts
from plansmith.errors import UsageError
from plansmith.pipelines.cases import read_case as read_raw_case
from plansmith.records.engine import OptimizationProfile
from plansmith.records.model import ANONYMOUS, BATCH, AxisRange, Case, InputRange, Tensor
from plansmith.records.pipeline import RawCase
from plansmith.records.release import CONFIG_FILE, Manifest, Package
from plansmith.sources.collate import encode_arrays
from plansmith.sources.dataset import find_data
from plansmith.system.digest import Digester
from plansmith.triton.client.request_inputs import drawn_feed
from plansmith.triton.config.model_config import parse_config
from plansmith.triton.config.plan_config import instances_take
from plansmith.triton.dtypes import STRING, Signature
from plansmith.triton.served_inputs import inputs_as_served, is_accepted
from plansmith.validation.profile_inputs import profile_cases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


DEFAULT_REQUESTS = 64
"""Different requests per model, which are sent repeatedly."""

_UNKNOWN = AxisRange(min=8, opt=8, max=64, step=8)
"""A dynamic dim of unknown range: multiples of what networks halve and cut into patches."""

_WORDS = AxisRange(min=4, opt=16, max=128)
"""Words of a text."""

_MAX_ATTEMPTS = 200
"""Sizes that no optimization profile takes, one after the other, before the search ends."""

_MAX_ROWS = 4096
"""Rows that are read: enough for requests that differ."""

_UINT8 = "uint8"


@dataclass(frozen=True)
class SizeMix:
    """Size mix: the number of requests and their sizes.

    Attributes:
        count: of requests.
        batches: batch sizes, equally frequent; those of the model's range when empty.
        seed: determines all that is drawn.
    """

    count: int = DEFAULT_REQUESTS
    batches: tuple[int, ...] = ()
    seed: int = 0

    def generator(self) -> random.Random:
        """Return a new random generator for the seed."""
        return random.Random(self.seed)  # noqa: S311 - no secret depends on it

    def draw_batch(self, generator: random.Random, batch: AxisRange) -> int:
        """Draw a batch size."""
        return generator.choice(self.batches) if self.batches else draw_size(generator, batch)

    def draw(self, axes: Mapping[str, AxisRange]) -> Iterator[dict[str, int]]:
        """Draw the sizes of all axes for one request after another, endlessly."""
        generator = self.generator()
        while True:
            yield {
                axis: self.draw_batch(generator, sizes) if axis == BATCH else draw_size(generator, sizes)
                for axis, sizes in axes.items()
            }


def draw_size(generator: random.Random, axis: AxisRange) -> int:
    """Draw the size of an axis, log-uniformly: half the size is as likely as twice the size."""
    if axis.max <= axis.min:
        return axis.min
    drawn = math.exp(generator.uniform(math.log(max(axis.min, 1)), math.log(axis.max)))
    size = round(drawn / axis.step) * axis.step
    return min(max(size, axis.min), axis.max)


def random_inputs(
    signature: Signature,
    mix: SizeMix,
    *,
    axes: Mapping[str, AxisRange] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[Arrays]:
    """Yield requests of mixed sizes, endlessly: random numbers, and sentences shipped with plansmith.

    Args:
        signature: what the model takes.
        mix: how sizes are drawn; a batch is at most the signature's largest.
        axes: known ranges of dims by name.
        shapes: fixed shapes of inputs, batch included.

    Raises:
        UsageError: a shape that the model does not take.
    """
    generator, ranges = mix.generator(), dict(axes or {})
    largest = signature.max_batch_size or 1
    batch = ranges.get(BATCH, AxisRange(min=1, opt=1, max=largest))
    ranges[BATCH] = AxisRange(min=1, opt=1, max=min(batch.max, largest))
    dims = {dim for tensor in signature.inputs for dim in tensor.dims if isinstance(dim, str)}
    while True:
        sizes = {dim: draw_size(generator, ranges.get(dim, _UNKNOWN)) for dim in sorted(dims - {BATCH})}
        sizes[BATCH] = mix.draw_batch(generator, ranges[BATCH])
        fixed = dict(shapes or {})
        if ANONYMOUS in sizes and not fixed:
            fixed = _anonymous_shapes(signature, sizes)
        arrays = drawn_feed(signature, shapes=fixed, sizes=sizes, seed=generator.getrandbits(32))
        yield _with_sentences(signature, arrays, generator)


def _anonymous_shapes(signature: Signature, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return shapes for inputs with unnamed dims: all of one size, as it is unknown which dims belong together."""
    return {
        tensor.name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
        for tensor in signature.inputs
        if ANONYMOUS in tensor.dims and tensor.name not in signature.optional
    }


def _with_sentences(signature: Signature, arrays: dict[str, NDArray[Any]], generator: random.Random) -> Arrays:
    """Replace random letters by sentences."""
    import numpy as np

    for tensor in signature.inputs:
        if tensor.dtype == STRING and tensor.name in arrays:
            shape = arrays[tensor.name].shape
            counts = [draw_size(generator, _WORDS) for _ in range(int(np.prod(shape)))]
            texts = [sample_texts(1, count, offset=generator.randrange(1000))[0].strip() for count in counts]
            arrays[tensor.name] = np.array([text.encode() for text in texts], dtype=object).reshape(shape)
    return arrays


@dataclass(frozen=True)
class ReleaseInputs:
    """Stored inputs of a release.

    Args:
        manifest: of the release.
        release: its folder.
        package: as it is served.
    """

    manifest: Manifest
    release: Path
    package: Package

    @property
    def description(self) -> str:
        """The source of the inputs."""
        name = f"{self.manifest.name}@{self.manifest.version}"
        if self._takes_raw:
            return f"the requests that {name} keeps, in mixed batches"
        return f"the inputs that {name} keeps ({self.manifest.onnx.reference.data}), at mixed sizes"

    @property
    def is_random(self) -> bool:
        """Whether the compile drew them at random, because nothing described the model's inputs."""
        return not self._takes_raw and self.manifest.onnx.reference.guessed

    def exist(self) -> bool:
        """Whether the release stores any."""
        return bool(self._raw_cases if self._takes_raw else self._cases)

    def requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Yield requests of mixed sizes, endlessly.

        Raises:
            UsageError: no optimization profile takes the batch sizes.
        """
        return self._raw_requests(mix) if self._takes_raw else self._sized_requests(mix)

    @property
    def _takes_raw(self) -> bool:
        """Whether clients send raw data (text, images or similar) instead of the model's own inputs."""
        return self.manifest.pipeline is not None or self.manifest.script is not None

    @cached_property
    def _raw_cases(self) -> list[RawCase]:
        manifest = self.manifest
        cases: Sequence[RawCase] = ()
        if manifest.script is not None:
            cases = [case for case in manifest.script.cases if case.name not in manifest.script.refused]
        elif manifest.pipeline is not None:
            cases = manifest.pipeline.cases
        return [case for case in cases if (self.release / case.file).is_file()]

    @cached_property
    def _cases(self) -> list[Case]:
        return [case for case in self.manifest.onnx.reference.cases if (self.release / case.file).is_file()]

    def _raw_requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Yield requests made of all samples, recombined into batches."""
        import numpy as np

        generator, largest = mix.generator(), self.package.max_batch_size
        requests = [read_raw_case(self.release / case.file)[0] for case in self._raw_cases]
        if not largest:
            while True:
                yield generator.choice(requests)
        form = _sample_shapes(requests[0])
        alike = [request for request in requests if _sample_shapes(request) == form]
        samples = {name: np.concatenate([request[name] for request in alike]) for name in alike[0]}
        count = len(next(iter(samples.values())))
        while True:
            size = mix.draw_batch(generator, AxisRange(min=1, opt=1, max=largest))
            chosen = generator.sample(range(count), size) if size <= count else generator.choices(range(count), k=size)
            yield {name: array[chosen] for name, array in samples.items()}

    def _sized_requests(self, mix: SizeMix) -> Iterator[Arrays]:
        """Yield requests with inputs cut or repeated to sizes that the release accepts."""
        misses = 0
        axes = dict(self.manifest.onnx.axes)
        if self.package.max_batch_size:
            batch = axes.get(BATCH, AxisRange(min=1, opt=1, max=1))
            axes[BATCH] = AxisRange(min=1, opt=1, max=min(batch.max, self.package.max_batch_size))
        for sizes in mix.draw(axes):
            own = self._sized(sizes, mix)
            request = inputs_as_served(own, self.package)
            if self._is_taken(request, own):
                misses = 0
                yield request
                continue
            misses += 1
            if misses > _MAX_ATTEMPTS:
                raise UsageError(
                    f"no batch and sizes were found that all instances of {self.manifest.name} take",
                    remedy="choose other batch sizes (--batch), or give inputs of your own (--data)",
                )

    def _sized(self, sizes: Mapping[str, int], mix: SizeMix) -> Arrays:
        """Return inputs of these sizes, samples reordered each time; shape inputs stay unchanged."""
        import numpy as np

        build, component = self.manifest.engine.build, self.manifest.onnx.components["model"]
        if build is not None and any(profile.values for profile in build.profiles):
            return read_feed(self._cases[sum(sizes.values()) % len(self._cases)], self.release)
        axis_sizes = {**self._cases[0].axes, **sizes}
        shapes = {
            tensor.name: tuple(axis_sizes[dim] if isinstance(dim, str) else dim for dim in tensor.dims)
            for tensor in component.inputs
        }
        ranges = {name: InputRange(min=shape, opt=shape, max=shape) for name, shape in shapes.items()}
        stored, mask = StoredCases(self._cases, self.release), self.manifest.onnx.mask_input
        profile = OptimizationProfile(name="load", shapes=ranges)
        arrays = next(profile_cases([profile], stored, component, mask, corners=["opt"])).feed
        batch = sizes.get(BATCH, 0)
        order = np.random.default_rng([mix.seed, *sizes.values()]).permutation(batch)
        batched = {tensor.name for tensor in component.inputs if tensor.dims[:1] == (BATCH,)}
        return {name: array[order] if name in batched and batch else array for name, array in arrays.items()}

    def _is_taken(self, request: Arrays, own: Arrays) -> bool:
        """Whether the release accepts a request; `own` has the dims of the model itself."""
        build = self.manifest.engine.build
        if build is None or not is_accepted(request, self.package):
            return is_accepted(request, self.package)
        inputs = {name: array for name, array in own.items() if name not in self.package.reshaped}
        config = parse_config((self.release / CONFIG_FILE).read_text())
        return instances_take(config, build.profiles, inputs)


def _sample_shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in arrays.items()}


@dataclass(frozen=True)
class DataInputs:
    """Data inputs: requests made of the user's data.

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
        """Yield batches of rows, endlessly, each row equally often.

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
        raise UsageError(f"data: {reading.description} has no rows", remedy="name data that have some")
    return DataInputs(signature, samples, dict(manifest.onnx.axes) if manifest else {}, reading.description)


def _open(place: DataPlace, spec: DataSpec, signature: Signature) -> Reading:
    """Open the data, with the columns for the model's inputs; columns with an input's name come first."""
    raw = _raw_inputs(signature)
    if len(raw) < len(signature.inputs):  # numbers, at least beside texts
        names = tuple(tensor.name for tensor in signature.inputs)
        inputs = " and ".join(names)
        remedy = f"give a table or an .npz file with {inputs}; texts are for models compiled with --pipeline"
        if not spec.entry_point and all(Path(name).suffix == ".txt" for name in place.files):
            raise UsageError(f"data: {place.words} holds texts, and the model takes {inputs}", remedy=remedy)
        takes = Takes((), names, tuple(signature.optional))
        try:
            return open_data(place, spec.entry_point, spec.columns, takes, labelled=False)
        except UsageError as error:
            raise UsageError(error.message, remedy=error.remedy if spec.columns else remedy) from error
    texts = (TEXT, TEXT_PAIR)[: len(raw)]
    takes = Takes((IMAGE,) if place.kind == "images" else (*texts, *((IMAGE,) if len(raw) == 1 else ())), ())
    if not spec.columns and place.kind != "images":
        named = {role: tensor.name for role, tensor in zip(texts, raw, strict=False)}
        with suppress(UsageError):
            return open_data(place, spec.entry_point, named, takes, labelled=False)
    return open_data(place, spec.entry_point, spec.columns, takes, labelled=False)


def _raw_inputs(signature: Signature) -> list[Tensor]:
    """Return the inputs that take text or file bytes."""
    strings = [tensor for tensor in signature.inputs if tensor.dtype == STRING]
    return strings or [t for t in signature.inputs if t.dtype == _UINT8 and t.dims and not isinstance(t.dims[-1], int)]


def _with_named_dims(tensor: Tensor, *, is_batched: bool) -> Tensor:
    """Return the tensor with a batch dim and a name for each dynamic dim."""
    dims = tensor.dims if is_batched else (BATCH, *tensor.dims)
    named = tuple(f"{tensor.name}.{place}" if dim == ANONYMOUS else dim for place, dim in enumerate(dims))
    return tensor.model_copy(update={"dims": named})


def _raw_array(tensor: Tensor, values: Sequence[Any], *, is_batched: bool) -> NDArray[Any]:
    """Return texts or files as an array of bytes objects, or as the bytes of one file."""
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
