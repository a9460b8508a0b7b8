"""Model folder of a repository as a check sees it, with the additional facts that the check has."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.targets import Target
from plansmith.records.release import CONFIG_FILE, Manifest
from plansmith.triton.checker.findings import Finding, Rule

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_NUMPY = {
    "TYPE_BOOL": "bool",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "bfloat16",
    "TYPE_STRING": "string",
    **{f"TYPE_{sign}INT{bits}": f"{sign}int{bits}".lower() for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
_WRITTEN = {name: written for written, name in _NUMPY.items()}
_NO_COMPLETION = ("--disable-auto-complete-config", "--disable-auto-complete-config=true", "--strict-model-config=true")
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


@dataclass(frozen=True)
class ModelFolder:
    """Model folder: one model in a repository, as read from disk.

    Args:
        name: of the folder, and so of the model.
        path: of the folder.
        config: its configuration as it is written; None where there is none, or none that can be read.
        text: of the configuration; empty where there is none.
        versions: the folders of its versions that Triton takes for such, by number, ascending.
        loaded: the versions that its version policy has Triton load.
        manifests: of the versions that plansmith made.
        config_file: what the configuration was read from, relative to the model's folder.
        backend: what serves it, as Triton completes the configuration by the files; empty where it cannot tell, and for
            ensembles.
        platform: likewise, such as "tensorrt_plan" or "ensemble".
        model_file: the file, or folder, of a version that the backend opens, likewise; `cc_model_filenames` may have
            others for some GPUs.
    """

    name: str
    path: Path
    config: pb.ModelConfig | None
    text: str
    versions: Mapping[int, Path]
    loaded: tuple[int, ...]
    manifests: Mapping[int, Manifest]
    config_file: str = CONFIG_FILE
    backend: str = ""
    platform: str = ""
    model_file: str = ""

    def place(self, file: str = "") -> str:
        """Return a model file's path relative to the repository; by default that of the configuration."""
        return f"{self.name}/{file or self.config_file}"

    def typed(self, file: str = "") -> str:
        """Return the path of a model file, or of its folder, for a shell in the current directory."""
        return shlex.quote(str((self.path / file).absolute()))

    def line_of(self, *phrases: str) -> int:
        """Return the configuration line that contains the texts, each searched for after the previous match.

        Returns:
            The line of the last of them, from 1; 0 where one is not there.
        """
        lines, number = self.text.splitlines(), 1 if phrases else 0
        for phrase in phrases:
            number = next((n for n, line in enumerate(lines[number - 1 :], number) if phrase in line), 0)
            if not number:
                return 0
        return number

    def faulted(self, rule: Rule, message: str, *phrases: str, remedy: str) -> Finding:
        """Return the finding for a configuration error, at the line that contains the texts."""
        return rule.broken(message, model=self.name, place=self.place(), line=self.line_of(*phrases), remedy=remedy)


@dataclass(frozen=True)
class CheckContext:
    """Check context: the repository, target and server arguments that models are checked against.

    Args:
        root: the folder of the repository.
        models: every model of the repository, by name, those too that nobody asked about.
        target: what it will be served by; None where nobody says.
        sagemaker: it is for SageMaker's front end.
        dynamo: it is for NVIDIA Dynamo's worker.
        arguments: what the server is started with besides, such as "--backend-config=tensorrt,version-compatible=true".
    """

    root: Path
    models: Mapping[str, ModelFolder]
    target: Target | None = None
    sagemaker: bool = False
    dynamo: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def is_for_sagemaker(self) -> bool:
        """Whether the repository is for SageMaker."""
        return self.sagemaker or (self.target is not None and self.target.flavour == "sagemaker")

    def loads(self, model: str) -> bool:
        """Whether the server loads a model at startup: all models, unless it is to load only named ones."""
        if self.is_for_sagemaker:
            return False  # its start script counts folders, and names the one to load
        if self.argument("model-control-mode")[-1:] != ("explicit",):
            return True
        return not {model, "*"}.isdisjoint(self.argument("load-model"))

    def argument(self, name: str) -> tuple[str, ...]:
        """Return the values of a server argument, such as "backend-config", in order; "" if it has no value."""
        pairs = zip(self.arguments, (*self.arguments[1:], ""), strict=False)
        values = []
        for token, following in pairs:
            key, equals, value = token.partition("=")
            if key == f"--{name}":
                values.append(value if equals or following.startswith("--") else following)
        return tuple(values)


def data_type(entry: pb.ModelInput | pb.ModelOutput) -> str:
    """Return Triton's name of an entry's data type, such as "TYPE_INT64"."""
    from plansmith.triton.messages import model_config_pb2 as pb

    return enum_name(pb.DataType, entry.data_type)


def numpy_name(written: str) -> str:
    """Return NumPy's name of a Triton data type, empty if there is none."""
    return _NUMPY.get(written, "")


def triton_name(dtype: str) -> str:
    """Return Triton's name of a dtype, empty if there is none."""
    return _WRITTEN.get(dtype, "")


def inner_dims(entry: pb.ModelInput | pb.ModelOutput) -> tuple[int, ...]:
    """Return the dims of an entry inside the model, without the batch: those of `reshape`, if it has one."""
    return tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def format_config_dims(dims: Iterable[int | str]) -> str:
    """Format dims as in a configuration, with "?" for an unspecified one."""
    return f"[{', '.join(str(dim) if dim != '' else '?' for dim in dims)}]"


def kinds(config: pb.ModelConfig | None) -> tuple[str, ...]:
    """Return the kinds of the instance groups, such as "KIND_GPU"; none if not specified."""
    if config is None:
        return ()
    return tuple(enum_name(group.Kind, group.kind) for group in config.instance_group)


def entry_line(model: ModelFolder, name: str) -> int:
    """Return the configuration line that names a tensor; 0 if none does."""
    return model.line_of(f'"{name}"') or model.line_of(f"'{name}'")


def completes(surroundings: CheckContext) -> bool:
    """Whether the server auto-completes configurations, its default unless disabled."""
    return not any(argument in _NO_COMPLETION for argument in surroundings.arguments)


def generated_inputs(config: pb.ModelConfig) -> tuple[str, ...]:
    """Return the model inputs that Triton generates: sequence controls and states, and those of `batch_input`."""
    controls = (control.name for control in config.sequence_batching.control_input)
    states = (state.input_name for state in config.sequence_batching.state)
    batches = (name for batch_input in config.batch_input for name in batch_input.target_name)
    return (*controls, *states, *batches)


def has_own_batch(config: pb.ModelConfig, entry: pb.ModelInput | pb.ModelOutput) -> bool:
    """Whether a tensor's batch is not its first dim in the model: ragged inputs, and `batch_output`."""
    targets = {name for batch_output in config.batch_output for name in batch_output.target_name}
    return bool(getattr(entry, "allow_ragged_batch", False)) or entry.name in targets


def backend_setting(surroundings: CheckContext, backend: str, setting: str) -> str:
    """Return the last value of a backend setting in the server's arguments; empty if it is not set."""
    prefix = f"{backend},{setting}="
    values = [value for value in surroundings.argument("backend-config") if value.startswith(prefix)]
    return values[-1].removeprefix(prefix) if values else ""


def enum_name(enum: Any, number: int) -> str:
    """Return the name of an enum value, or its number if it has none."""
    return str(enum.Name(number)) if number in enum.values() else str(number)


def bytes_of(data_type: int, dims: Iterable[int]) -> int | None:
    """Return a tensor's size in bytes; None for strings and unset data types, which have no fixed size.

    Args:
        data_type: of Triton's protobuf.
        dims: all of them fixed.
    """
    from plansmith.triton.messages import model_config_pb2 as pb

    size = _SIZES.get(enum_name(pb.DataType, data_type))
    return None if size is None else size * prod(dims)


def count_strings(content: bytes) -> int | None:
    """Count serialized strings, each with a 4-byte length prefix (little-endian); None if malformed."""
    count = start = 0
    while start < len(content):
        length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        start += _LENGTH_BYTES + length
        count += 1
    return count if start == len(content) else None
