"""Configuration overrides: merges a spec's fields over the derived configuration, through Triton's own protobuf.

Nothing is converted field by field: options have the names of the protobuf's fields, and its descriptors say what
each of them is. What a field means is in docs/user_guide/model_configuration.md of
github.com/triton-inference-server/server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.triton import FILE_FOLDERS, TritonOptions
from plansmith.config.triton.batching import DynamicBatching
from plansmith.data.reference import StoredCases, read_feed
from plansmith.records.model import BATCH, AxisRange, Case, Device, Dim, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.config.model_config import data_type
from plansmith.triton.dtypes import numpy_dtype

if TYPE_CHECKING:
    import numpy as np
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from numpy.typing import NDArray
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.arrays import Arrays


PREFIXES = {
    "inference.BatchInput.Kind": "BATCH_",
    "inference.BatchOutput.Kind": "BATCH_",
    "inference.DataType": "TYPE_",
    "inference.ModelInput.Format": "FORMAT_",
    "inference.ModelInstanceGroup.Kind": "KIND_",
    "inference.ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind": "KIND_",
    "inference.ModelOptimizationPolicy.ModelPriority": "PRIORITY_",
    "inference.ModelQueuePolicy.TimeoutAction": "",
    "inference.ModelSequenceBatching.Control.Kind": "CONTROL_SEQUENCE_",
}
"""What the names of an enum's values begin with, and options leave out."""

_APART = {"max_batch_size", "dynamic_batching", "instance_group", "model_warmup", "inputs", "outputs"}
"""Options that are not the protobuf's field as it stands, but something beside what follows from the model."""

FOLDER = "warmup"
MOST_BYTES = 64 << 20
"""The files of a release's warm-up take no more."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configure(config: pb.ModelConfig, options: TritonOptions) -> None:
    """Apply a spec's options to the configuration derived from a model; its largest batch is already set.

    Args:
        config: has one group of instances, which says what a group of the spec leaves out.
        options: fit the model (see `option_rules`); files by the names that they have beside config.pbtxt.
    """
    values = options.model_dump(mode="json")
    _put({key: value for key, value in values.items() if key not in _APART}, config)
    _put_batching(options, values, config)
    _put_instances(values["instance_group"], config)
    for entry in config.input:
        _put_tensor(values["inputs"].get(entry.name, {}), entry)
    for entry in config.output:
        _put_tensor(values["outputs"].get(entry.name, {}), entry)
    if isinstance(options.model_warmup, tuple):
        _put_warmup(values["model_warmup"], config)
    hidden = hidden_names(options)
    for entries in (config.input, config.output):
        visible = [entry for entry in entries if entry.name not in hidden]
        del entries[:]
        entries.extend(visible)


def hidden_names(options: TritonOptions) -> set[str]:
    """Return the model's inputs and outputs that Triton fills or reads itself, hidden from clients."""
    batching = options.sequence_batching
    names = {name for entry in options.batch_input for name in entry.target_name}
    if batching is not None:
        names |= {entry.name for entry in batching.control_input}
        names |= {name for entry in batching.state for name in (entry.input_name, entry.output_name)}
    return names


def support_files(options: TritonOptions) -> dict[str, Path]:
    """Return the spec's files that belong next to config.pbtxt, by path there."""
    files: dict[str, Path] = {}

    def note(field: str, path: str) -> str:
        files.setdefault(place_of(field, path), Path(path))
        return path

    options.with_files(note)
    return files


def by_place(options: TritonOptions) -> TritonOptions:
    """Return the options with every file named by its path for Triton."""
    return options.with_files(lambda _, path: Path(path).name)


def place_of(field: str, path: str) -> str:
    """Return the path relative to config.pbtxt of a file that a field names."""
    return (Path(FILE_FOLDERS[field]) / Path(path).name).as_posix()


def served_package(package: Package, config: pb.ModelConfig) -> Package:
    """Return the release as clients see it: without inputs that Triton fills, and with the dims on the wire."""
    reshaped: dict[str, tuple[Dim, ...]] = {}
    sides: list[tuple[Tensor, ...]] = []
    for tensors, entries in ((package.interface.inputs, config.input), (package.interface.outputs, config.output)):
        tensors_by_name = {tensor.name: tensor for tensor in tensors}
        sides.append(
            tuple(_served(tensors_by_name[entry.name], entry, package.max_batch_size, reshaped) for entry in entries)
        )
    return package.model_copy(update={"interface": Interface(inputs=sides[0], outputs=sides[1]), "reshaped": reshaped})


def _served(
    tensor: Tensor, entry: pb.ModelInput | pb.ModelOutput, max_batch_size: int, reshaped: dict[str, tuple[Dim, ...]]
) -> Tensor:
    """A tensor as clients see it; `reshaped` collects the model's own dims where they differ."""
    batch, own = (tensor.dims[:1], tensor.dims[1:]) if max_batch_size else ((), tensor.dims)
    if not own and list(entry.dims) == [1]:
        return tensor  # one value a sample: that it has a dim on the wire is known to who sends it
    model = model_dims(entry)
    named = [dim if size == -1 else size for dim, size in zip(own, model, strict=False)]
    open_names = iter([str(dim) for dim in named if isinstance(dim, str)])
    wire = [
        next(open_names, f"{tensor.name}_{place}") if dim == -1 else int(dim) for place, dim in enumerate(entry.dims)
    ]
    if entry.HasField("reshape"):
        reshaped[tensor.name] = (*batch, *named)
    return tensor.model_copy(update={"dims": (*batch, *wire)})


def _put(values: Mapping[str, Any], message: Any) -> None:
    """Merge options, as JSON, into a message; fields that they do not set keep their values."""
    from google.protobuf import json_format

    json_format.ParseDict(_fields(values, message.DESCRIPTOR), message)


def _fields(values: Mapping[str, Any], message: Descriptor) -> dict[str, Any]:
    """Convert options to protobuf JSON, without values equal to their defaults."""
    fields = message.fields_by_name
    return {key: _field(value, fields[key]) for key, value in values.items() if _says(value)}


def _says(value: Any) -> bool:
    """Whether a value differs from the default; an empty mapping does, as it marks a message as present."""
    return bool(value) or value == {}


def _field(value: Any, field: FieldDescriptor) -> Any:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {key: _field_value(item, message.fields_by_name["value"]) for key, item in value.items()}
    return [_field_value(item, field) for item in value] if isinstance(value, list) else _field_value(value, field)


def _field_value(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return PREFIXES[field.enum_type.full_name] + str(value).upper()
    if field.message_type is None:
        return str(value) if field.type == field.TYPE_STRING else value
    if isinstance(value, str):  # a parameter is a message that holds one text
        return {field.message_type.fields[0].name: value}
    return _fields(value, field.message_type)


def _put_batching(options: TritonOptions, values: Mapping[str, Any], config: pb.ModelConfig) -> None:
    """Configure the dynamic batcher.

    An unbatched model gets one where the spec sets more options, as it owns the queues.
    """
    if options.dynamic_batching is False or (
        config.max_batch_size <= 1 and options.dynamic_batching == DynamicBatching()
    ):
        config.ClearField("dynamic_batching")
    else:
        batching = config.dynamic_batching
        if options.dynamic_batching.preferred_batch_size:
            del batching.preferred_batch_size[:]
        _put(values["dynamic_batching"], batching)


def _put_instances(groups: Sequence[Mapping[str, Any]], config: pb.ModelConfig) -> None:
    if not groups:
        return
    usual = type(config.instance_group[0])()
    usual.CopyFrom(config.instance_group[0])
    del config.instance_group[:]
    for group in groups:
        entry = config.instance_group.add(kind=usual.kind)
        if not group["profile"]:
            entry.profile.extend(usual.profile)
        _put(group, entry)


def _put_tensor(values: Mapping[str, Any], entry: pb.ModelInput | pb.ModelOutput) -> None:
    """Merge the options of an input or output into its entry, which has the model's own dims."""
    wire, own = values.get("dims"), list(entry.dims)
    _put({key: value for key, value in values.items() if key not in {"dims", "reshape"}}, entry)
    if values.get("allow_ragged_batch"):
        # Its requests are put one behind the other, in the one dim that the model has.
        entry.ClearField("reshape")
        entry.dims[:] = wire or [-1]
    elif wire is not None:
        entry.dims[:] = wire
        if entry.HasField("reshape"):  # a single value a sample
            return
        if not narrows(wire, own):
            entry.reshape.shape[:] = own


def narrows(wire: Sequence[int], own: Sequence[int]) -> bool:
    """Whether dims equal the model's own, except for dynamic sizes that are fixed here."""
    return len(wire) == len(own) and all(mine in {-1, its} for its, mine in zip(wire, own, strict=True))


def _put_warmup(samples: Sequence[Mapping[str, Any]], config: pb.ModelConfig) -> None:
    """Add the spec's warmup samples, with the inputs' data types and dims where the samples give none."""
    inputs_by_name = {entry.name: entry for entry in config.input}
    for sample in samples:
        entry = config.model_warmup.add()
        _put(sample, entry)
        for name, value in entry.inputs.items():
            if name in inputs_by_name and not sample["inputs"][name]["data_type"]:
                value.data_type = inputs_by_name[name].data_type
            if name in inputs_by_name and not value.dims:
                value.dims.extend(inputs_by_name[name].dims)


def model_dims(entry: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """Return the model's own dims, without the batch."""
    return list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def is_wanted(options: TritonOptions, config: pb.ModelConfig, device: Device) -> bool:
    """Whether to make a warmup from the reference: by default for GPU instances, whose first requests are slow."""
    if options.model_warmup != "auto":
        return options.model_warmup == "on"
    groups = config.instance_group
    return any(group.kind == group.KIND_GPU or (group.kind == group.KIND_AUTO and device == "gpu") for group in groups)


def obstacle(options: TritonOptions, config: pb.ModelConfig) -> str:
    """Return why no warmup can be made from the reference; empty if it can."""
    if options.sequence_batching is not None:
        return "its requests belong to sequences"
    if any(entry.allow_ragged_batch for entry in config.input) or options.batch_input:
        return "its batches are ragged"
    return ""


@dataclass
class Warmup:
    """Warmup of a release that is being built.

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
    _names: dict[tuple[tuple[int, ...], ...], str] = field(default_factory=dict, init=False)

    def add(self) -> None:
        """Add samples at batch 1, at the usual batch and at the largest, each at the shapes of that point."""
        batches = {sample.batch_size for sample in self.config.model_warmup}
        for point in ("min", "opt", "max"):
            case = self._case(point)
            if case is None:
                self.skipped.append(f"at {point}: the reference has no inputs of that shape")
                continue
            sample = self._sample(read_feed(case, self.cases.folder))
            shapes, batch = tuple(array.shape for array in sample.values()), self._batch(point)
            if shapes in self._names and batch in batches:
                continue
            if not self.takes({name: self._repeated(array, batch) for name, array in sample.items()}):
                self.skipped.append(f"at {point}: no optimization profile takes it")
            elif self._store(point, sample):
                self._write(point, batch, sample, self._names[shapes])
                batches.add(batch)

    def _case(self, point: str) -> Case | None:
        """The stored case that matches a profile point in all client-controlled axes.

        The batch size does not matter.
        """
        sizes = {axis: getattr(r, point) for axis, r in self.axes.items()} | self._fixed()
        expected = {axis: size for axis, size in sizes.items() if axis != BATCH or not self._is_batched}
        fitting = (case for case in self.cases.cases if expected.items() <= case.axes.items())
        return min(fitting, key=lambda case: case.axes.get(BATCH, 1), default=None)

    def _fixed(self) -> dict[str, int]:
        """The sizes of axes that are dynamic in the model and fixed in the configuration."""
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
        """A sample repeated along the batch, as Triton does it."""
        import numpy as np

        return np.broadcast_to(array, (batch, *array.shape)) if self._is_batched else array

    def _sample(self, feed: Arrays) -> dict[str, NDArray[np.generic]]:
        """The first sample of a batch; the whole feed without batching."""
        arrays = {t.name: feed[t.name][0] if self._is_batched else feed[t.name] for t in self.inputs}
        return {tensor.name: arrays[tensor.name].astype(numpy_dtype(tensor.dtype)) for tensor in self.inputs}

    def _store(self, point: str, sample: Arrays) -> bool:
        """Write the files of a sample, unless one of these shapes exists; return false where there is no room."""
        shapes = tuple(array.shape for array in sample.values())
        if shapes in self._names:
            return True
        size = sum(array.nbytes for array in sample.values())
        if size > self.room:
            reason = f"its files would have {size} bytes, and {self.room} are left of {MOST_BYTES >> 20} MiB"
            self.skipped.append(f"at {point}: {reason}")
            return False
        self.room -= size
        self._names[shapes] = point
        for number, (name, array) in enumerate(sample.items()):
            path = Path(FOLDER, point, _file_name(name, number))
            (self.out / path).parent.mkdir(parents=True, exist_ok=True)
            (self.out / path).write_bytes(array.tobytes())
            self.files.append(path.as_posix())
        return True

    def _write(self, point: str, batch: int, sample: Arrays, folder: str) -> None:
        from plansmith.triton.messages import model_config_pb2 as pb

        entries = {entry.name: entry for entry in self.config.input}
        entry = self.config.model_warmup.add(name=point, batch_size=batch)
        for number, tensor in enumerate(self.inputs):
            value = entry.inputs[tensor.name]
            value.data_type = pb.DataType.Value(data_type(tensor))
            value.dims.extend(_wire_dims(entries[tensor.name], sample[tensor.name].shape))
            value.input_data_file = f"{folder}/{_file_name(tensor.name, number)}"


def _wire_dims(entry: pb.ModelInput, shape: Sequence[int]) -> list[int]:
    """The dims of a warmup request: dynamic dims take the sample's sizes, in order."""
    varying = iter([size for size, dim in zip(shape, model_dims(entry), strict=True) if dim == -1])
    return [next(varying) if dim == -1 else int(dim) for dim in entry.dims]


def _file_name(name: str, number: int) -> str:
    """The file name of an input: its own name where that is a valid file name."""
    return name if _PLAIN.fullmatch(name) else f"input{number}"
