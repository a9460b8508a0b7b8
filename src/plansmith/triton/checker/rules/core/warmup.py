"""Triton core rules on model warm-up: batches, inputs, shapes, files; `warmup.*`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, bytes_of, count_strings, enum_name
from plansmith.triton.checker.rules.backends import onnxruntime
from plansmith.triton.checker.rules.core.sequence import controls_of
from plansmith.triton.checker.rules.core.tensor import elements

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_WARMUP = "core: src/backend_model_instance.cc, GenerateWarmupData"
_SEEN = f"{_WARMUP}; Triton 2.51 was seen to do so"

SKIPPED = Rule(
    "warmup.batch-size-zero",
    "warning",
    "a warm-up has a batch_size of at least 1: Triton passes over one of 0, which is the default, and says nothing",
    _SEEN,
)
BATCH = Rule("warmup.batch-size", "error", "no warm-up is larger than max_batch_size, or than 1 where that is 0", _SEEN)
VARIABLE = Rule("warmup.variable-dims", "error", "the dims of a warm-up's inputs are numbers, none of them -1", _SEEN)
SHAPE = Rule(
    "warmup.dims",
    "error",
    "the dims of a warm-up's inputs fit those of the model's, without the batch",
    "core: src/infer_request.cc, Normalize; Triton 2.51 was seen to do so",
)
DATA_TYPE = Rule(
    "warmup.data-type",
    "error",
    "the data type of a warm-up's input is that of the model's",
    "core: src/infer_request.cc, Normalize; Triton 2.51 was seen to do so",
)
NO_DATA = Rule(
    "warmup.no-data",
    "error",
    "each input of a warm-up has zero_data, random_data or input_data_file",
    _SEEN,
)
MISSING = Rule("warmup.missing-input", "error", "a warm-up has every input of the model that is not optional", _SEEN)
UNKNOWN = Rule(
    "warmup.unknown-input",
    "warning",
    "a warm-up has only inputs that the model has: others go to the backend as what it did not ask for",
    f"{_WARMUP}; Triton 2.51 loads such a model",
)
CONTROLS = Rule(
    "warmup.control-input",
    "warning",
    "a warm-up of a model of sequences has its controls, which only the scheduler would add",
    f"{_WARMUP}; server: docs/user_guide/model_configuration.md, Model Warmup",
)
NO_FILE = Rule("warmup.file", "error", "a warm-up's file is in the folder warmup of the model", _SEEN)
FOLDER = Rule(
    "warmup.file-folder",
    "error",
    "a warm-up's file is no folder: reading one ends the server, whatever else that serves",
    "core: src/filesystem/implementations/local.h, ReadTextFile; Triton 2.51 was seen to do so",
)
SHORT = Rule(
    "warmup.file-size",
    "error",
    "a warm-up's file has all the bytes of one sample; of strings, as many as it has elements, each behind its length",
    f"{_SEEN} (each sample of a batch is the whole file)",
)
LONG = Rule(
    "warmup.file-rest",
    "warning",
    "a warm-up's file has the bytes of one sample alone: Triton takes the first ones for every sample of a batch",
    f"{_WARMUP}; Triton 2.51 loads such a model",
)
RANDOM = Rule(
    "warmup.random-data",
    "warning",
    "random_data is for inputs that any bytes are good for: they are NaN as floats, and no token ids as integers",
    f"{_WARMUP}: rand() for each byte",
)
RULES: tuple[Rule, ...] = (
    SKIPPED,
    BATCH,
    VARIABLE,
    SHAPE,
    DATA_TYPE,
    NO_DATA,
    MISSING,
    UNKNOWN,
    CONTROLS,
    NO_FILE,
    FOLDER,
    SHORT,
    LONG,
    RANDOM,
)

WARMUP_FOLDER = "warmup"

_MOST_STRING_BYTES = 256 * 2**20


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield model warmup settings that would fail or have no effect."""
    if model.config is None or model.config.HasField("ensemble_scheduling"):
        return
    largest = _largest(model, model.config, surroundings) if model.config.model_warmup else None
    for number, warmup in enumerate(model.config.model_warmup):
        named = f"warm-up {warmup.name!r}" if warmup.name else f"warm-up {number}"
        if not warmup.batch_size:
            yield model.faulted(
                SKIPPED, f"{named} has no batch_size and is not done", "model_warmup", remedy="write batch_size: 1"
            )
            continue
        if largest is not None:
            yield from _batch(model, largest, named, warmup.batch_size)
        yield from _inputs(model, model.config, named, warmup)


def _largest(model: ModelFolder, config: pb.ModelConfig, surroundings: CheckContext) -> int | None:
    """The max_batch_size of a model, as configured or as its backend completes it; None where it is unknown."""
    if config.max_batch_size or (config.input and config.output):
        return int(config.max_batch_size)
    if model.backend == onnxruntime.BACKEND:
        return onnxruntime.largest_batch(model, surroundings)
    return 0 if config.input else None


def _batch(model: ModelFolder, largest: int, named: str, size: int) -> Iterator[Finding]:
    if size > max(largest, 1):
        yield model.faulted(
            BATCH,
            f"{named} is a batch of {size}, and max_batch_size is {largest}",
            "model_warmup",
            "batch_size",
            remedy=f"write batch_size: {max(largest, 1)}, or less",
        )


def _inputs(model: ModelFolder, config: pb.ModelConfig, named: str, warmup: pb.ModelWarmup) -> Iterator[Finding]:
    tensors = {tensor.name: tensor for tensor in config.input}
    controls = controls_of(config)
    for name in sorted({t.name for t in config.input if not t.optional} - set(warmup.inputs)):
        yield model.faulted(
            MISSING, f"{named} lacks the input {name!r}", "model_warmup", remedy="add it, with data_type, dims and data"
        )
    for name in sorted(controls - set(warmup.inputs)):
        yield model.faulted(
            CONTROLS,
            f"{named} lacks the control {name!r}, which the model may ask for",
            "model_warmup",
            remedy="add it, with the control's data_type, dims: [ 1 ] and data",
        )
    for name in sorted(warmup.inputs):
        entry, tensor = warmup.inputs[name], tensors.get(name)
        if tensor is None and tensors and name not in controls:
            yield model.faulted(
                UNKNOWN,
                f"{named} has {name!r}, which is no input of the model",
                "model_warmup",
                f'"{name}"',
                remedy=f"take it out; the inputs are {', '.join(tensors)}",
            )
        yield from _input(model, f"{named}, input {name!r}", name, entry, tensor)


def _input(
    model: ModelFolder, named: str, name: str, entry: pb.ModelWarmup.Input, tensor: pb.ModelInput | None
) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    where, dims = ("model_warmup", f'"{name}"'), list(entry.dims)
    expected = list(tensor.dims) if tensor is not None else None
    if elements(dims) == -1:
        yield model.faulted(
            VARIABLE, f"{named} has dims {dims}, with one that varies", *where, remedy="write its size instead of -1"
        )
        return
    if expected is not None and not _fits(dims, expected):
        batched = len(dims) == len(expected) + 1
        yield model.faulted(
            SHAPE,
            f"{named} has dims {dims}, and the model's input has {expected}{', without the batch' if batched else ''}",
            *where,
            remedy=f"write dims: {expected}, with numbers for -1; the batch is batch_size",
        )
        return
    if tensor is not None and entry.data_type != tensor.data_type:
        types = [enum_name(pb.DataType, item.data_type) for item in (entry, tensor)]
        yield model.faulted(
            DATA_TYPE,
            f"{named} is {types[0]}, and the model's input {types[1]}",
            *where,
            remedy=f"write data_type: {types[1]}",
        )
        return
    yield from _data(model, named, name, entry)


def _fits(dims: list[int], expected: list[int]) -> bool:
    return len(dims) == len(expected) and all(w in {-1, d} for d, w in zip(dims, expected, strict=True))


def _data(model: ModelFolder, named: str, name: str, entry: pb.ModelWarmup.Input) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    where, kind = ("model_warmup", f'"{name}"'), entry.WhichOneof("input_data_type")
    if kind is None:
        yield model.faulted(
            NO_DATA, f"{named} has no data", *where, remedy="write zero_data: true, or an input_data_file"
        )
    elif kind == "random_data" and entry.data_type not in {pb.TYPE_UINT8, pb.TYPE_INT8, pb.TYPE_STRING}:
        yield model.faulted(
            RANDOM,
            f"{named} has random bytes for data, such as NaN or ids that are none",
            *where,
            remedy="write zero_data: true, or give a real sample as input_data_file",
        )
    elif kind == "input_data_file":
        yield from _file(model, named, entry)


def _file(model: ModelFolder, named: str, entry: pb.ModelWarmup.Input) -> Iterator[Finding]:
    name = f"{WARMUP_FOLDER}/{entry.input_data_file}"
    file, where = Path(model.path, name), ("model_warmup", f'"{entry.input_data_file}"')
    if not file.exists():
        yield model.faulted(
            NO_FILE, f"{named}: there is no {name}", *where, remedy=f"write one sample to {model.place(name)}"
        )
        return
    if not file.is_file():
        yield model.faulted(FOLDER, f"{named}: {name} is no file", *where, remedy="name a file")
        return
    needed, size = bytes_of(entry.data_type, entry.dims), file.stat().st_size
    if needed is None:
        yield from _strings(model, named, file, elements(entry.dims), where)
    elif size < needed:
        yield model.faulted(
            SHORT,
            f"{named}: {name} has {size} bytes, and a sample has {needed}",
            *where,
            remedy="write the raw bytes of one sample, without batch and without a header such as that of .npy",
        )
    elif size > needed:
        yield model.faulted(
            LONG,
            f"{named}: {name} has {size} bytes, of which only the first {needed} are used, for every sample",
            *where,
            remedy="write one sample to the file; a batch repeats it",
        )


def _strings(model: ModelFolder, named: str, file: Path, expected: int, where: tuple[str, str]) -> Iterator[Finding]:
    if file.stat().st_size > _MOST_STRING_BYTES:
        return
    count = count_strings(file.read_bytes())
    if count != expected:
        contents = "no strings, each behind its length in 4 bytes" if count is None else f"{count} strings"
        yield model.faulted(
            SHORT,
            f"{named}: {file.name} holds {contents}, and a sample has {expected}",
            *where,
            remedy="write for each string its length as 4 bytes (little-endian) and its bytes",
        )
