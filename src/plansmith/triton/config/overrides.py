"""A model's configuration with what the spec says over what follows from the model, through Triton's own protobuf.

Nothing is converted field by field: options have the names of the protobuf's fields, and its descriptors say what
each of them is. What a field means is in docs/user_guide/model_configuration.md of
github.com/triton-inference-server/server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.triton import FILE_FOLDERS, TritonOptions
from plansmith.config.triton.batching import DynamicBatching
from plansmith.records.model import Dim, Tensor
from plansmith.records.release import Interface, Package

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from tritonclient.grpc import model_config_pb2 as pb

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


def configure(config: pb.ModelConfig, options: TritonOptions) -> None:
    """Put the options of a spec into a configuration that follows from the model; its largest batch is chosen already.

    Args:
        config: has one group of instances, which says what a group of the spec leaves out.
        options: fit the model (see `option_rules`); files by the names that they have beside config.pbtxt.
    """
    given = options.model_dump(mode="json")
    _put({key: value for key, value in given.items() if key not in _APART}, config)
    _put_batching(options, given, config)
    _put_instances(given["instance_group"], config)
    for entry in config.input:
        _put_tensor(given["inputs"].get(entry.name, {}), entry)
    for entry in config.output:
        _put_tensor(given["outputs"].get(entry.name, {}), entry)
    if isinstance(options.model_warmup, tuple):
        _put_warmup(given["model_warmup"], config)
    hidden = hidden_names(options)
    for entries in (config.input, config.output):
        kept = [entry for entry in entries if entry.name not in hidden]
        del entries[:]
        entries.extend(kept)


def hidden_names(options: TritonOptions) -> set[str]:
    """The inputs and outputs of the model that Triton itself fills and reads, and clients do not see."""
    batching = options.sequence_batching
    found = {name for one in options.batch_input for name in one.target_name}
    if batching is not None:
        found |= {one.name for one in batching.control_input}
        found |= {name for one in batching.state for name in (one.input_name, one.output_name)}
    return found


def support_files(options: TritonOptions) -> dict[str, Path]:
    """The files of the spec that belong beside config.pbtxt, by their place there."""
    found: dict[str, Path] = {}

    def note(field: str, path: str) -> str:
        found.setdefault(place_of(field, path), Path(path))
        return path

    options.with_files(note)
    return found


def by_place(options: TritonOptions) -> TritonOptions:
    """The same, with every file by the name by which Triton finds it."""
    return options.with_files(lambda _, path: Path(path).name)


def place_of(field: str, path: str) -> str:
    """Where a file that a field names lies beside config.pbtxt."""
    return (Path(FILE_FOLDERS[field]) / Path(path).name).as_posix()


def served_package(package: Package, config: pb.ModelConfig) -> Package:
    """The release as clients see it: without what Triton fills itself, and with the dims that go over the wire."""
    reshaped: dict[str, tuple[Dim, ...]] = {}
    seen: list[tuple[Tensor, ...]] = []
    for tensors, entries in ((package.interface.inputs, config.input), (package.interface.outputs, config.output)):
        known = {tensor.name: tensor for tensor in tensors}
        seen.append(tuple(_served(known[entry.name], entry, package.max_batch_size, reshaped) for entry in entries))
    return package.model_copy(update={"interface": Interface(inputs=seen[0], outputs=seen[1]), "reshaped": reshaped})


def _served(
    tensor: Tensor, entry: pb.ModelInput | pb.ModelOutput, max_batch_size: int, reshaped: dict[str, tuple[Dim, ...]]
) -> Tensor:
    """A tensor as it goes over the wire; `reshaped` takes the dims that the model has for it, where they differ."""
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


def _put(given: Mapping[str, Any], message: Any) -> None:
    """Put options, as JSON, into a message; what it has already stays where they say nothing."""
    from google.protobuf import json_format

    json_format.ParseDict(_fields(given, message.DESCRIPTOR), message)


def _fields(given: Mapping[str, Any], message: Descriptor) -> dict[str, Any]:
    """Options as protobuf's JSON; what says no more than its default is left out."""
    known = message.fields_by_name
    return {key: _field(value, known[key]) for key, value in given.items() if _says(value)}


def _says(value: Any) -> bool:
    """Whether a value is more than a default; an empty mapping is: that a message is there."""
    return bool(value) or value == {}


def _field(value: Any, field: FieldDescriptor) -> Any:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {key: _one(item, message.fields_by_name["value"]) for key, item in value.items()}
    return [_one(item, field) for item in value] if isinstance(value, list) else _one(value, field)


def _one(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return PREFIXES[field.enum_type.full_name] + str(value).upper()
    if field.message_type is None:
        return str(value) if field.type == field.TYPE_STRING else value
    if isinstance(value, str):  # a parameter is a message that holds one text
        return {field.message_type.fields[0].name: value}
    return _fields(value, field.message_type)


def _put_batching(options: TritonOptions, given: Mapping[str, Any], config: pb.ModelConfig) -> None:
    """Put the batcher in; single samples have one where a spec says more of it, as it is the one with the queues."""
    if options.dynamic_batching is False or (
        config.max_batch_size <= 1 and options.dynamic_batching == DynamicBatching()
    ):
        config.ClearField("dynamic_batching")
    else:
        batching = config.dynamic_batching
        if options.dynamic_batching.preferred_batch_size:
            del batching.preferred_batch_size[:]
        _put(given["dynamic_batching"], batching)


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


def _put_tensor(given: Mapping[str, Any], entry: pb.ModelInput | pb.ModelOutput) -> None:
    """Put the options of an input or output into its entry, which has the model's own dims."""
    wire, own = given.get("dims"), list(entry.dims)
    _put({key: value for key, value in given.items() if key not in {"dims", "reshape"}}, entry)
    if given.get("allow_ragged_batch"):
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
    """Whether dims are the model's own, but for sizes that vary there and are fixed here."""
    return len(wire) == len(own) and all(mine in {-1, its} for its, mine in zip(wire, own, strict=True))


def _put_warmup(samples: Sequence[Mapping[str, Any]], config: pb.ModelConfig) -> None:
    """Put samples of the spec in, with element types and dims of the inputs where it leaves them out."""
    known = {entry.name: entry for entry in config.input}
    for sample in samples:
        entry = config.model_warmup.add()
        _put(sample, entry)
        for name, value in entry.inputs.items():
            if name in known and not sample["inputs"][name]["data_type"]:
                value.data_type = known[name].data_type
            if name in known and not value.dims:
                value.dims.extend(known[name].dims)


def model_dims(entry: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The dims that the model itself has, without the batch."""
    return list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
