"""Triton core rules on inputs and outputs: names, dtypes, dims, reshapes; `config.*` of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_CORE = "core: src/model_config_utils.cc"
_SHAPE = f"{_CORE}, ValidateIOShape; Triton 2.51 was seen to do so"
_BATCH_IO = f"{_CORE}, ValidateBatchIO; Triton 2.51 was seen to do so"

TENSOR_NAME = Rule("config.tensor-name", "error", "every input and output has a name", _SHAPE)
TWO_INPUTS = Rule(
    "config.duplicate-input",
    "error",
    "no two inputs have one name: every request is then refused for an input that it lacks",
    "core: src/model.cc, Init, counts both; Triton 2.51 loads such a model, but for its warm-ups, and refuses requests",
)
TWO_OUTPUTS = Rule(
    "config.duplicate-output",
    "warning",
    "no two outputs have one name: Triton goes by the first",
    "core: src/model.cc, Init; Triton 2.51 loads such a model",
)
DATA_TYPE = Rule("config.data-type", "error", "every input and output has a data type", _SHAPE)
DIMS = Rule("config.dims", "error", "every input and output has dims, each at least 1, or -1 where it varies", _SHAPE)
RESHAPE = Rule(
    "config.reshape",
    "error",
    "a reshape has as many elements as the dims, with what varies at the same places; an empty one stands for a single"
    " value and needs batches",
    _SHAPE,
)
FORMAT = Rule(
    "config.format", "error", "an input in FORMAT_NHWC or FORMAT_NCHW has 3 dims", f"{_CORE}, ValidateModelInput"
)
PLANS_ONLY = Rule(
    "config.tensorrt-only",
    "error",
    "shape tensors, non-linear formats and profiles are those of TensorRT plans",
    f"{_CORE}, ValidateModelInput and ValidateInstanceGroup; Triton 2.51 was seen to do so",
)
NON_LINEAR = Rule(
    "config.non-linear-dims",
    "error",
    "a tensor in a non-linear format has 3 dims",
    f"{_CORE}, ValidateNonLinearFormatIO",
)
BATCH_INPUT = Rule(
    "config.batch-input",
    "error",
    "a batch input is made of one input that is there, as TYPE_INT32 or TYPE_FP32",
    _BATCH_IO,
)
BATCH_OUTPUT = Rule(
    "config.batch-output",
    "error",
    "a batch output goes by one input that is there, to outputs that are there, each once",
    _BATCH_IO,
)
RULES: tuple[Rule, ...] = (
    TENSOR_NAME,
    TWO_INPUTS,
    TWO_OUTPUTS,
    DATA_TYPE,
    DIMS,
    RESHAPE,
    FORMAT,
    PLANS_ONLY,
    NON_LINEAR,
    BATCH_INPUT,
    BATCH_OUTPUT,
)

TENSORRT = "tensorrt_plan"
_FORMAT_DIMS = 3
_ANY = -1


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield input and output errors that Triton's core would refuse."""
    del surroundings
    config = model.config
    if config is None:
        return
    for kind, tensors, rule in (("input", config.input, TWO_INPUTS), ("output", config.output, TWO_OUTPUTS)):
        counts = Counter(tensor.name for tensor in tensors if tensor.name)
        for name, count in counts.items():
            if count > 1:
                yield model.faulted(
                    rule, f"{kind} {name!r} is listed {count} times", f'"{name}"', remedy="keep one of them"
                )
        for tensor in tensors:
            yield from _tensor(model, kind, tensor)
    for tensor in config.input:
        if tensor.format != tensor.FORMAT_NONE and len(tensor.dims) != _FORMAT_DIMS:
            yield model.faulted(
                FORMAT,
                f"input {tensor.name!r} has a format of images and {len(tensor.dims)} dims",
                f'"{tensor.name}"',
                remedy="leave the format out, or write the 3 dims of an image",
            )
    yield from _plans_only(model, config)
    yield from _batch_tensors(model, config)


def elements(dims: Iterable[int]) -> int:
    """Return the number of elements of a shape; -1 if a dim is dynamic."""
    listed = list(dims)
    return _ANY if _ANY in listed else prod(listed)


def _tensor(model: ModelFolder, kind: str, tensor: pb.ModelInput | pb.ModelOutput) -> Iterator[Finding]:
    where, named = f'"{tensor.name}"', f"{kind} {tensor.name!r}"
    if not tensor.name:
        yield model.faulted(TENSOR_NAME, f"an {kind} has no name", f"{kind} ", remedy='write name: "…"')
        return
    if not tensor.data_type:
        yield model.faulted(DATA_TYPE, f"{named} has no data_type", where, remedy="write data_type: TYPE_FP32, or so")
    if not tensor.dims:
        yield model.faulted(
            DIMS,
            f"{named} has no dims",
            where,
            remedy="write the dims without the batch; for one value a sample dims: [ 1 ] reshape { shape: [ ] }",
        )
        return
    wrong = [dim for dim in tensor.dims if dim < 1 and dim != _ANY]
    if wrong:
        yield model.faulted(
            DIMS, f"{named} has a dim of {wrong[0]}", where, remedy="write -1 where the dim varies, else its size"
        )
    elif tensor.HasField("reshape"):
        yield from _reshape(model, named, tensor)


def _reshape(model: ModelFolder, named: str, tensor: pb.ModelInput | pb.ModelOutput) -> Iterator[Finding]:
    shape = list(tensor.reshape.shape)
    problem = ""
    assert model.config is not None
    if not shape and not model.config.max_batch_size:
        problem = "is reshaped to nothing, and the model takes no batches"
    elif any(dim < 1 and dim != _ANY for dim in shape):
        problem = f"is reshaped to {shape}"
    elif not shape and elements(tensor.dims) != 1:
        problem = f"has dims {list(tensor.dims)}, and only a single value can be reshaped to nothing"
    elif shape and _trunks(tensor.dims) != _trunks(shape):
        problem = f"has dims {list(tensor.dims)}, and the reshape to {shape} has other elements"
    if problem:
        yield model.faulted(
            RESHAPE,
            f"{named} {problem}",
            f'"{tensor.name}"',
            "reshape",
            remedy="write a shape of as many elements, with -1 between the same ones",
        )


def _trunks(dims: Sequence[int]) -> list[int]:
    """The products of the fixed dims between dynamic dims."""
    trunks = [1]
    for dim in dims:
        if dim == _ANY:
            trunks.append(1)
        else:
            trunks[-1] *= dim
    return trunks


def _plans_only(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    is_plan = model.platform == TENSORRT
    for tensor in (*config.input, *config.output):
        for field in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, field) and not is_plan:
                yield model.faulted(
                    PLANS_ONLY,
                    f"{field} of {tensor.name!r} is for TensorRT plans",
                    f'"{tensor.name}"',
                    field,
                    remedy="take it out",
                )
        if tensor.is_non_linear_format_io and is_plan and len(tensor.dims) != _FORMAT_DIMS:
            yield model.faulted(
                NON_LINEAR,
                f"{tensor.name!r} is in a non-linear format and has {len(tensor.dims)} dims",
                f'"{tensor.name}"',
                remedy="write its 3 dims, or build the plan with linear inputs and outputs",
            )
    for group in config.instance_group:
        if group.profile and not is_plan:
            yield model.faulted(
                PLANS_ONLY, "profiles of an instance group are for TensorRT plans", "profile", remedy="take them out"
            )


def _batch_tensors(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    from plansmith.triton.messages import model_config_pb2 as pb

    inputs, outputs = ({tensor.name for tensor in tensors} for tensors in (config.input, config.output))
    for batch_tensor in config.batch_input:
        sources = list(batch_tensor.source_input)
        if len(sources) != 1 or sources[0] not in inputs or batch_tensor.data_type not in {pb.TYPE_INT32, pb.TYPE_FP32}:
            yield model.faulted(
                BATCH_INPUT,
                f"batch input {', '.join(batch_tensor.target_name)!r} is not TYPE_INT32 or TYPE_FP32 of one input",
                "batch_input",
                remedy=f"choose the source_input among {', '.join(sorted(inputs))}, and one of the two data types",
            )
    for scattered in config.batch_output:
        sources, targets = list(scattered.source_input), list(scattered.target_name)
        if (
            len(sources) != 1
            or sources[0] not in inputs
            or not outputs.issuperset(targets)
            or len(set(targets)) < len(targets)
        ):
            yield model.faulted(
                BATCH_OUTPUT,
                f"batch output {', '.join(targets)!r} does not go by one input to outputs that are there, each once",
                "batch_output",
                remedy=f"choose the source_input among {', '.join(sorted(inputs))}, and the target_name among "
                f"{', '.join(sorted(outputs))}",
            )
