"""`config.pbtxt` generation: derived from the engine's graph and written through Triton's own protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.generation_parameters import STREAMS, TEXT_TENSOR
from plansmith.config.triton import TritonOptions
from plansmith.errors import EngineError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import BATCH, AxisRange, Component, Device, EngineKind, Tensor
from plansmith.records.release import Interface, Package
from plansmith.triton.dtypes import CONFIG_TYPES

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message
    from tritonclient.grpc import model_config_pb2 as pb


_ON_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
"""Unless this parameter of the Python backend is "no", it copies inputs to the CPU's memory (its README.md,
"Input Tensor Device Placement")."""


def max_batch_size(component: Component, axes: Mapping[str, AxisRange]) -> int:
    """Return max_batch_size; 0 if some input or output has no leading batch axis, so that Triton must not batch."""
    tensors = (*component.inputs, *component.outputs)
    batches = all(t.dims and t.dims[0] == BATCH for t in tensors)
    return axes[BATCH].max if batches and BATCH in axes else 0


def make_config(package: Package, kind: EngineKind, device: Device) -> pb.ModelConfig:
    """Return the configuration derived from the model, for any backend.

    Args:
        package: name, files, largest batch and the model's own interface; without batching, dims are written in full.
        kind: the backend.
        device: what the instances run on.

    Raises:
        EngineError: a dtype that Triton has no name for.
    """
    from plansmith.triton.messages import model_config_pb2 as pb

    batch = package.max_batch_size
    config = pb.ModelConfig(name=package.model, backend=str(kind), max_batch_size=batch)
    config.default_model_filename = Path(package.model_files[0]).parts[0]
    config.version_policy.latest.num_versions = 1
    for tensors, written in ((package.interface.inputs, config.input), (package.interface.outputs, config.output)):
        for tensor in tensors:
            dims = [-1 if isinstance(d, str) else d for d in (tensor.dims[1:] if batch else tensor.dims)]
            entry = written.add(name=tensor.name, data_type=data_type(tensor), dims=dims or [1])
            if not dims:  # one value a sample: Triton wants a dim on the wire, and takes it off for the model
                entry.reshape.SetInParent()
    if batch > 1:
        config.dynamic_batching.SetInParent()
    if package.decoupled:
        config.model_transaction_policy.decoupled = True
    config.instance_group.add(kind=f"KIND_{device.upper()}", count=1)
    return config


def leave_inputs_on_gpu(config: pb.ModelConfig) -> None:
    """Let a PyTorch model on GPUs take inputs in GPU memory, unless its configuration already decides that.

    Texts are not left there: DLPack does not carry them.

    Args:
        config: with the instances that it is served with; changed.
    """
    from plansmith.triton.messages import model_config_pb2 as pb

    on_gpu = all(group.kind == group.KIND_GPU for group in config.instance_group)
    if (
        config.backend == EngineKind.PYTHON
        and on_gpu
        and _ON_CPU not in config.parameters
        and not any(entry.data_type == pb.TYPE_STRING for entry in config.input)
    ):
        config.parameters[_ON_CPU].string_value = "no"


def text_of(config: Message) -> str:
    """Format a configuration as the text of config.pbtxt."""
    from google.protobuf import text_format

    return str(text_format.MessageToString(config))


def with_cpu_instances(text: str) -> str:
    """Return config.pbtxt with every GPU instance moved to the CPU, for a server without a GPU.

    Of a warm-up its first sample is left: the largest batch of a model for GPUs may keep a CPU busy for minutes.
    """
    config = parse_config(text)
    for group in config.instance_group:
        if group.kind == group.KIND_GPU or (group.kind == group.KIND_AUTO and group.gpus):
            group.kind = group.KIND_CPU
            group.ClearField("gpus")  # Triton refuses CPU instances that name GPUs
            group.ClearField("secondary_devices")
            del config.model_warmup[1:]
    return text_of(config)


def parse_config(text: str) -> Any:
    """Parse config.pbtxt to its protobuf message.

    Raises:
        google.protobuf.text_format.ParseError: a field that Triton does not have.
    """
    from google.protobuf import text_format

    from plansmith.triton.messages import model_config_pb2 as pb

    return text_format.Parse(text, pb.ModelConfig())


def interface_of(component: Component) -> Interface:
    """Return the interface that clients of the model rely on."""
    return Interface(inputs=component.inputs, outputs=component.outputs)


def contradictions(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return the fields set by plansmith that differ in Triton's auto-completed configuration."""
    differences: list[str] = []
    if not path and not ours.max_batch_size and theirs.max_batch_size:
        differences.append(f"max_batch_size: wrote 0, Triton has {theirs.max_batch_size}")
    for field, value in ours.ListFields():
        place = f"{path}{field.name}"
        counterpart = getattr(theirs, field.name)
        if field.message_type is None or _is_map(field):
            if value != counterpart:
                differences.append(f"{place}: wrote {_plain(value)}, Triton has {_plain(counterpart)}")
        elif _is_repeated(value):
            if len(value) != len(counterpart):
                differences.append(f"{place}: wrote {len(value)} entries, Triton has {len(counterpart)}")
                continue
            for number, (mine, its) in enumerate(zip(value, counterpart, strict=True)):
                differences += contradictions(mine, its, f"{place}[{number}].")
        else:
            differences += contradictions(value, counterpart, f"{place}.")
    return differences


def completions(ours: Message, theirs: Message, path: str = "") -> dict[str, Any]:
    """Return the fields that Triton auto-completed, by path."""
    additions: dict[str, Any] = {}
    for field, value in theirs.ListFields():
        place = f"{path}{field.name}"
        mine = getattr(ours, field.name)
        if field.message_type is None or _is_map(field):
            if value != mine and not mine:
                additions[place] = _plain(value)
        elif _is_repeated(value):
            for number, (own, its) in enumerate(zip(mine, value, strict=False)):
                additions |= completions(own, its, f"{place}[{number}].")
        else:
            additions |= completions(mine, value, f"{place}.")
    return additions


def data_type(tensor: Tensor) -> str:
    """Return Triton's data type of a tensor.

    Raises:
        EngineError: it has none.
    """
    if tensor.dtype not in CONFIG_TYPES:
        raise EngineError(
            f"{tensor.name} has dtype {tensor.dtype}, which Triton cannot carry", remedy="cast it inside the model"
        )
    return CONFIG_TYPES[tensor.dtype]


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: inner if isinstance(inner, str) else str(inner) for key, inner in value.items()}
    return list(value) if _is_repeated(value) else value


def text_package(package: Package, engine: Engine, axes: Mapping[str, AxisRange]) -> Package:
    """Return the release of a model with text inputs and outputs.

    Args:
        package: as it would be of the model's own inputs and outputs.
        engine: says whether it streams.
        axes: the ranges that it is served for.
    """
    return package.model_copy(
        update={
            "interface": Interface(inputs=(TEXT_TENSOR,), outputs=(TEXT_TENSOR,)),
            "max_batch_size": axes[BATCH].max if BATCH in axes else 1,
            "decoupled": engine.options.get(STREAMS) == "true",
        }
    )


def require_uncached(options: TritonOptions) -> None:
    """Require that the response cache is off: its key covers a request's inputs but not its parameters.

    Raises:
        UsageError: the spec wants one.
    """
    if options.response_cache is not None and options.response_cache.enable:
        raise UsageError(
            "triton.response_cache would give every request the first answer to its text, whatever its parameters",
            remedy="leave response_cache out for a model that generates text",
        )
