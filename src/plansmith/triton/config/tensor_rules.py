"""Whether what a spec says of inputs, outputs and the warm-up fits the model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from plansmith.config.triton import TritonOptions
from plansmith.config.triton.tensors import InputOptions, OutputOptions, WarmupInput
from plansmith.records.model import Device, EngineKind, Tensor
from plansmith.triton.client.dtypes import CONFIG_TYPES
from plansmith.triton.config.overrides import narrows

_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "bool": 1}


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model; None for what is not known yet.

    Args:
        engine: the backend.
        device: what the target's instances run on.
        inputs: of the model, by name; before the model is known, None.
        outputs: likewise; before the model is known, names without dims where the spec chooses them.
        largest: the largest batch; 0 where there is no batching.
        profiles: how many optimization profiles a plan has.
        reach: tells the largest batch of instances that have some of them, by number.
    """

    engine: EngineKind
    device: Device
    inputs: Mapping[str, Tensor] | None = None
    outputs: Mapping[str, Tensor | None] | None = None
    largest: int | None = None
    profiles: int | None = None
    reach: Callable[[Sequence[int]], int] | None = None


def chosen_batch(options: TritonOptions, largest: int) -> int:
    """The largest batch that is served."""
    return largest if options.max_batch_size is None else min(largest, options.max_batch_size)


def tensor_problems(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """What is said of inputs and outputs and does not fit their dims."""
    if facts.largest is None:
        return
    batch = chosen_batch(options, facts.largest)
    for name, given in options.inputs.items():
        tensor = (facts.inputs or {}).get(name)
        if tensor is not None:
            yield from (f"inputs.{name}.{words}" for words in _input(given, _own_dims(tensor, batch), batch, facts))
    for name, out in options.outputs.items():
        tensor = (facts.outputs or {}).get(name)
        if tensor is not None:
            yield from (f"outputs.{name}.{words}" for words in _output(out, _own_dims(tensor, batch)))


def _input(given: InputOptions, own: list[int], batch: int, facts: ModelFacts) -> Iterator[str]:
    if given.allow_ragged_batch and not batch:
        yield "allow_ragged_batch: the model is served without batches"
    elif given.allow_ragged_batch and facts.engine is not EngineKind.PYTHON and own:
        yield "allow_ragged_batch: its backend makes one dim of all requests, and the model's input has more"
    elif not given.allow_ragged_batch:
        yield from _dims(given, own)
    if given.format != "none" and len(given.dims or own) != 3:
        yield f"format: {given.format} is for three dims, without the batch"
    if given.optional and batch and facts.engine is EngineKind.ONNXRUNTIME:
        yield "optional: ONNX Runtime's backend has no optional inputs in batches"


def _output(given: OutputOptions, own: list[int]) -> Iterator[str]:
    if given.dims is not None and narrows(given.dims, own) and list(given.dims) != own:
        yield f"dims: the model's are {own}; what varies there varies here"
    yield from _dims(given, own)
    yield from _labels(given.label_filename, own)


def _own_dims(tensor: Tensor, batch: int) -> list[int]:
    return [-1 if isinstance(dim, str) else dim for dim in tensor.dims[1 if batch else 0 :]]


def _dims(given: InputOptions | OutputOptions, own: list[int]) -> Iterator[str]:
    """What is wrong with the dims that clients use, held against the model's own, both without the batch."""
    if given.dims is None:
        return
    if given.reshape is not None and list(given.reshape.shape) != own:
        yield f"reshape: the model's dims are {own}"
    elif not narrows(given.dims, own) and _blocks(given.dims) != _blocks(own):
        yield f"dims: {list(given.dims)} cannot become {own}, the model's dims: they hold other numbers of values"


def _blocks(dims: Iterable[int]) -> list[int]:
    """How many values there are before, between and after the dims that vary."""
    blocks = [1]
    for dim in dims:
        if dim == -1:
            blocks.append(1)
        else:
            blocks[-1] *= dim
    return blocks


def _labels(path: str, own: list[int]) -> Iterator[str]:
    """Another number of labels than the one dim of an output has places; Triton ends a label at a line feed alone."""
    if not path or not Path(path).is_file() or len(own) != 1 or own[0] == -1:
        return
    text = Path(path).read_bytes()
    count = text.count(b"\n") + (bool(text) and not text.endswith(b"\n"))
    if count != own[0]:
        yield f"label_filename: {path} has {count} labels, and the output {own[0]} places"


def warmup_problems(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Samples of the spec that Triton could not ask."""
    if not isinstance(options.model_warmup, tuple) or facts.inputs is None or facts.largest is None:
        return
    batch = chosen_batch(options, facts.largest)
    spared = {name for one in options.batch_input for name in one.target_name}
    spared |= {name for name, given in options.inputs.items() if given.optional}
    for sample in options.model_warmup:
        key = f"model_warmup.{sample.name}"
        if unknown := sorted(sample.inputs.keys() - facts.inputs.keys()):
            yield f"{key}: the model has no input {', '.join(unknown)}"
        if lacking := sorted(facts.inputs.keys() - spared - sample.inputs.keys()):
            yield f"{key}: it says nothing of {', '.join(lacking)}"
        for name, given in sample.inputs.items():
            if name in facts.inputs and not (name in options.inputs and options.inputs[name].allow_ragged_batch):
                words = _sample(given, _wire_dims(options, facts.inputs[name], batch), facts.inputs[name])
                yield from (f"{key}.inputs.{name}.{one}" for one in words)


def _sample(given: WarmupInput, wire: list[int], tensor: Tensor) -> Iterator[str]:
    """What is wrong with what one input holds, by the dims that a request has."""
    if given.dims is None and -1 in wire:
        yield "dims: give them, as some of a request's vary"
        return
    if given.dims is not None and not narrows(given.dims, wire):
        yield f"dims: {list(given.dims)} are none of a request's, {wire}"
    own = CONFIG_TYPES.get(tensor.dtype, "").removeprefix("TYPE_").lower()
    if given.data_type not in {None, own}:
        yield f"data_type: {given.data_type} is not the input's, {own}"
    kind = given.data_type or tensor.dtype
    size = prod(given.dims if given.dims is not None else wire) * _item_bytes(kind)
    path = Path(given.input_data_file)
    if given.input_data_file and path.is_file() and path.stat().st_size < size:
        yield f"input_data_file: {path} has {path.stat().st_size} bytes, and one sample {size}"


def _wire_dims(options: TritonOptions, tensor: Tensor, batch: int) -> list[int]:
    given = options.inputs.get(tensor.name)
    if given is not None and given.dims is not None:
        return list(given.dims)
    return _own_dims(tensor, batch) or [1]  # a single value a sample has a dim in a request


def _item_bytes(kind: str) -> int:
    """The bytes of one value, by NumPy's or Triton's name of its type; 0 for text, which has no one size."""
    return next((size for ending, size in _BYTES.items() if kind.endswith(ending)), 0)
