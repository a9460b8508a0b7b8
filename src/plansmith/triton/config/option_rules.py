"""Option rules: whether a spec's Triton configuration fits the model, the backend and the target.

Asked twice: before anything is built, with what the spec alone tells, and when the model is known. The rules are those
of src/model_config_utils.cc of github.com/triton-inference-server/core, and of the backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.config.spec import ModelSpec
from plansmith.config.triton import TritonOptions
from plansmith.config.triton.options import Accelerator, InputOptions, InstanceGroup, OutputOptions, WarmupInput
from plansmith.errors import UsageError
from plansmith.records.model import BATCH, BATCH_RANGE, AxisRange, Component, Device, EngineKind, OnnxModel, Tensor
from plansmith.records.release import OWN_NAMES
from plansmith.triton.config.model_config import max_batch_size
from plansmith.triton.config.overrides import hidden_names, narrows, place_of
from plansmith.triton.dtypes import CONFIG_TYPES

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "bool": 1}

PROFILE_KEYS = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_USUALLY_BATCHED = ("hf:", "timm:")  # at most so; what an ONNX graph takes, it tells itself
_ACCELERATORS = {"gpu_execution_accelerator": ("tensorrt", "cuda"), "cpu_execution_accelerator": ("openvino",)}


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model; None for what is not known yet.

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
    """Return the max_batch_size to serve."""
    return largest if options.max_batch_size is None else min(largest, options.max_batch_size)


def tensor_problems(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Yield options of inputs and outputs that do not fit their dims."""
    if facts.largest is None:
        return
    batch = chosen_batch(options, facts.largest)
    for name, entry in options.inputs.items():
        tensor = (facts.inputs or {}).get(name)
        if tensor is not None:
            yield from (f"inputs.{name}.{problem}" for problem in _input(entry, _own_dims(tensor, batch), batch, facts))
    for name, out in options.outputs.items():
        tensor = (facts.outputs or {}).get(name)
        if tensor is not None:
            yield from (f"outputs.{name}.{problem}" for problem in _output(out, _own_dims(tensor, batch)))


def _input(entry: InputOptions, own: list[int], batch: int, facts: ModelFacts) -> Iterator[str]:
    if entry.allow_ragged_batch and not batch:
        yield "allow_ragged_batch: the model is served without batches"
    elif entry.allow_ragged_batch and facts.engine is not EngineKind.PYTHON and own:
        yield "allow_ragged_batch: its backend makes one dim of all requests, and the model's input has more"
    elif not entry.allow_ragged_batch:
        yield from _dims(entry, own)
    if entry.format != "none" and len(entry.dims or own) != 3:
        yield f"format: {entry.format} is for three dims, without the batch"
    if entry.optional and batch and facts.engine is EngineKind.ONNXRUNTIME:
        yield "optional: ONNX Runtime's backend has no optional inputs in batches"


def _output(entry: OutputOptions, own: list[int]) -> Iterator[str]:
    if entry.dims is not None and narrows(entry.dims, own) and list(entry.dims) != own:
        yield f"dims: the model's are {own}; what varies there varies here"
    yield from _dims(entry, own)
    yield from _labels(entry.label_filename, own)


def _own_dims(tensor: Tensor, batch: int) -> list[int]:
    return [-1 if isinstance(dim, str) else dim for dim in tensor.dims[1 if batch else 0 :]]


def _dims(entry: InputOptions | OutputOptions, own: list[int]) -> Iterator[str]:
    """Check the client-side dims against the model's own, both without the batch."""
    if entry.dims is None:
        return
    if entry.reshape is not None and list(entry.reshape.shape) != own:
        yield f"reshape: the model's dims are {own}"
    elif not narrows(entry.dims, own) and _blocks(entry.dims) != _blocks(own):
        yield f"dims: {list(entry.dims)} cannot become {own}, the model's dims: they hold other numbers of values"


def _blocks(dims: Iterable[int]) -> list[int]:
    """The products of the fixed dims before, between and after dynamic dims."""
    blocks = [1]
    for dim in dims:
        if dim == -1:
            blocks.append(1)
        else:
            blocks[-1] *= dim
    return blocks


def _labels(path: str, own: list[int]) -> Iterator[str]:
    """Check that the number of labels matches an output's only dim; Triton ends a label only at a line feed."""
    if not path or not Path(path).is_file() or len(own) != 1 or own[0] == -1:
        return
    text = Path(path).read_bytes()
    count = text.count(b"\n") + (bool(text) and not text.endswith(b"\n"))
    if count != own[0]:
        yield f"label_filename: {path} has {count} labels, and the output {own[0]} places"


def warmup_problems(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Yield warmup samples of the spec that Triton could not run."""
    if not isinstance(options.model_warmup, tuple) or facts.inputs is None or facts.largest is None:
        return
    batch = chosen_batch(options, facts.largest)
    spared = {name for item in options.batch_input for name in item.target_name}
    spared |= {name for name, entry in options.inputs.items() if entry.optional}
    for sample in options.model_warmup:
        key = f"model_warmup.{sample.name}"
        if unknown := sorted(sample.inputs.keys() - facts.inputs.keys()):
            yield f"{key}: the model has no input {', '.join(unknown)}"
        if lacking := sorted(facts.inputs.keys() - spared - sample.inputs.keys()):
            yield f"{key}: it says nothing of {', '.join(lacking)}"
        for name, entry in sample.inputs.items():
            if name in facts.inputs and not (name in options.inputs and options.inputs[name].allow_ragged_batch):
                problems = _sample(entry, _wire_dims(options, facts.inputs[name], batch), facts.inputs[name])
                yield from (f"{key}.inputs.{name}.{item}" for item in problems)


def _sample(entry: WarmupInput, wire: list[int], tensor: Tensor) -> Iterator[str]:
    """Check a warmup input against the dims of a request."""
    if entry.dims is None and -1 in wire:
        yield "dims: give them, as some of a request's vary"
        return
    if entry.dims is not None and not narrows(entry.dims, wire):
        yield f"dims: {list(entry.dims)} are none of a request's, {wire}"
    own = CONFIG_TYPES.get(tensor.dtype, "").removeprefix("TYPE_").lower()
    if entry.data_type not in {None, own}:
        yield f"data_type: {entry.data_type} is not the input's, {own}"
    kind = entry.data_type or tensor.dtype
    size = prod(entry.dims if entry.dims is not None else wire) * _item_bytes(kind)
    path = Path(entry.input_data_file)
    if entry.input_data_file and path.is_file() and path.stat().st_size < size:
        yield f"input_data_file: {path} has {path.stat().st_size} bytes, and one sample {size}"


def _wire_dims(options: TritonOptions, tensor: Tensor, batch: int) -> list[int]:
    entry = options.inputs.get(tensor.name)
    if entry is not None and entry.dims is not None:
        return list(entry.dims)
    return _own_dims(tensor, batch) or [1]  # a single value a sample has a dim in a request


def _item_bytes(kind: str) -> int:
    """The bytes of one value, by the NumPy or Triton name of its type; 0 for strings, whose size varies."""
    return next((size for ending, size in _BYTES.items() if kind.endswith(ending)), 0)


def facts_of(spec: ModelSpec, device: Device) -> ModelFacts:
    """Return what a spec alone tells about its model."""
    batches = [input_range.max[0] for input_range in spec.shapes.values() if input_range.max]
    named = [profile for profile in spec.tensorrt.profiles.values() if spec.engine is EngineKind.TENSORRT]
    batches += [max(input_range.max[0] for input_range in profile.values()) for profile in named] if not batches else []
    if not batches and not spec.inputs and spec.source.startswith(_USUALLY_BATCHED):
        batches = [BATCH_RANGE.max]
    return ModelFacts(
        engine=spec.engine,
        device=device,
        outputs=dict.fromkeys(spec.outputs) if spec.outputs else None,
        largest=max(batches) if batches else None,
        profiles=max(1, len(named)) if spec.engine is EngineKind.TENSORRT else None,
    )


def require_served(spec: ModelSpec, name: str, device: Device, folder: Path) -> None:
    """Refuse early what Triton would refuse after the build, as far as the spec shows.

    Args:
        spec: of the model.
        name: of the model.
        device: what the target's instances run on.
        folder: that paths of the spec are relative to.

    Raises:
        UsageError: names every key of `triton:` that does not fit.
    """
    options = spec.triton.with_absolute_paths(folder)
    require_fitting(options, facts_of(spec, device), _unasked(spec), model=name)


def require_fitting(options: TritonOptions, facts: ModelFacts, more: Iterable[str] = (), *, model: str = "") -> None:
    """Require that options fit a model.

    Args:
        options: with the paths of their files absolute.
        facts: what is known of the model.
        more: what else is wrong.
        model: its name.

    Raises:
        UsageError: names every key of `triton:` that does not fit.
    """
    problems = [
        *_files(options),
        *_batches(options, facts),
        *_instances(options, facts),
        *_accelerators(options, facts),
    ]
    problems += [*_names(options, facts), *tensor_problems(options, facts), *warmup_problems(options, facts), *more]
    if problems:
        message = (
            f"triton.{problems[0]}"
            if len(problems) == 1
            else "\n  ".join(["these keys of `triton:` do not fit:", *problems])
        )
        raise UsageError(message, remedy="correct `triton:` in the spec", model=model, step="package")


def _unasked(spec: ModelSpec) -> Iterator[str]:
    """Yield options that the served check cannot cover, as it sends independent requests."""
    if not spec.check_served:
        return
    if spec.triton.sequence_batching is not None:
        yield "sequence_batching: the served check asks no sequences; write check_served: false"
    if spec.triton.is_decoupled:
        yield "model_transaction_policy.decoupled: the served check asks for one answer; write check_served: false"


def _files(options: TritonOptions) -> Iterator[str]:
    """Check for files that are missing, or whose names collide with each other or with other files of a release."""
    owners: dict[str, tuple[str, str]] = {}
    problems: list[str] = []

    def look(field: str, path: str) -> str:
        place = place_of(field, path)
        if not Path(path).is_file():
            problems.append(f"{field}: there is no file {path}")
        elif place in OWN_NAMES or place.replace(".", "").isdecimal():
            problems.append(f"{field}: {place} is what something else in a release is called; rename {path}")
        elif owners.setdefault(place, (field, path))[1] != path:
            problems.append(f"{field}: {path} and {owners[place][1]} have the same name; rename one of them")
        return path

    options.with_files(look)
    yield from dict.fromkeys(problems)


def _batches(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Check for batch sizes larger than the model's largest, or than the spec's `max_batch_size`."""
    largest = facts.largest
    if largest is None:
        return
    if options.max_batch_size is not None and options.max_batch_size > largest:
        batch_size = options.max_batch_size
        yield f"max_batch_size: {batch_size} is more than the model's largest batch, {largest}; shapes gives it others"
        return
    most = max(1, chosen_batch(options, largest))
    for key, size in options.batch_sizes():
        if size > most:
            yield f"{key}: {size} is more than the largest batch, {most}"


def _instances(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    for number, group in enumerate(options.instance_group):
        for problem in _instance(group, options, facts):
            yield f"instance_group.{number}.{problem}"


def _instance(group: InstanceGroup, options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    kind = group.kind or facts.device
    is_plan = facts.engine is EngineKind.TENSORRT
    if kind == "gpu" and facts.device == "cpu":
        yield "kind: the target has no GPU"
    elif is_plan and kind == "cpu":
        yield "kind: TensorRT plans run on a GPU"
    elif is_plan and kind == "model" and options.parameters.get("enable_multi_device") != "true":
        yield "kind: model is for plans on several devices, with the parameter enable_multi_device"
    if group.gpus and (kind == "cpu" or (kind == "auto" and facts.device == "cpu")):
        yield "gpus: the target's instances run on the CPU"
    if group.profile and not is_plan:
        yield "profile: only TensorRT plans have profiles"
    elif facts.profiles is not None and any(number >= facts.profiles for number in group.profile):
        yield f"profile: {max(group.profile)} is none of the plan's profiles, which are 0 to {facts.profiles - 1}"
    elif group.profile and facts.reach is not None and facts.largest is not None:
        most, reach = chosen_batch(options, facts.largest), facts.reach(group.profile)
        if most > reach:
            yield f"profile: these take batches up to {reach}; choose others too, or write max_batch_size: {reach}"


def _accelerators(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Check for settings of another backend, accelerators unknown to ONNX Runtime, and incomplete profiles."""
    settings = options.optimization
    if settings is not None and settings.cuda is not None and facts.engine is not EngineKind.TENSORRT:
        yield "optimization.cuda: only TensorRT's backend reads it"
    accelerators = settings.execution_accelerators if settings is not None else None
    if accelerators is None:
        return
    if facts.engine is not EngineKind.ONNXRUNTIME:
        yield "optimization.execution_accelerators: they are ONNX Runtime's; leave them out, or take that engine"
        return
    for field, names in _ACCELERATORS.items():
        for accelerator in getattr(accelerators, field):
            key = f"optimization.execution_accelerators.{field}"
            if accelerator.name not in names:
                yield f"{key}: {accelerator.name} is none of {', '.join(names)}"
            elif lacking := _lacking(accelerator):
                yield f"{key}: give {', '.join(lacking)} too, or none of the three, which then follow from the model"


def _lacking(accelerator: Accelerator) -> list[str]:
    """The missing keys of a profile that is only partly given."""
    lacking = [key for key in PROFILE_KEYS if key not in accelerator.parameters]
    return lacking if len(lacking) < len(PROFILE_KEYS) else []


def _names(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Check for names of inputs and outputs that the model does not have."""
    hidden = hidden_names(options)
    if facts.inputs is not None:
        names = set(facts.inputs)
        for key, name in _input_names(options):
            if name not in names:
                yield f"{key}: the model has no input {name!r}; its inputs are {', '.join(sorted(names))}"
        for key, name in [*((f"inputs.{name}", name) for name in options.inputs), *_sources(options)]:
            if name in hidden:
                yield f"{key}: Triton fills {name} itself, and clients do not send it"
    if facts.outputs is not None:
        names = set(facts.outputs)
        for key, name in _output_names(options):
            if name not in names:
                yield f"{key}: the model has no output {name!r}; its outputs are {', '.join(sorted(names))}"


def _sources(options: TritonOptions) -> list[tuple[str, str]]:
    return [
        *(("batch_input.source_input", name) for entry in options.batch_input for name in entry.source_input),
        *(("batch_output.source_input", name) for entry in options.batch_output for name in entry.source_input),
    ]


def _input_names(options: TritonOptions) -> Iterator[tuple[str, str]]:
    yield from ((f"inputs.{name}", name) for name in options.inputs)
    yield from _sources(options)
    yield from (("batch_input.target_name", name) for entry in options.batch_input for name in entry.target_name)
    if options.sequence_batching is not None:
        yield from (
            ("sequence_batching.control_input", entry.name) for entry in options.sequence_batching.control_input
        )
        yield from (
            ("sequence_batching.state.input_name", entry.input_name) for entry in options.sequence_batching.state
        )
    if options.optimization is not None and options.optimization.cuda is not None:
        for spec in options.optimization.cuda.graph_spec:
            lower = spec.graph_lower_bound.input if spec.graph_lower_bound is not None else {}
            yield from (("optimization.cuda.graph_spec.input", name) for name in {**spec.input, **lower})


def _output_names(options: TritonOptions) -> Iterator[tuple[str, str]]:
    yield from ((f"outputs.{name}", name) for name in options.outputs)
    yield from (("batch_output.target_name", name) for entry in options.batch_output for name in entry.target_name)
    if options.sequence_batching is not None:
        yield from (
            ("sequence_batching.state.output_name", entry.output_name) for entry in options.sequence_batching.state
        )


def require_servable(
    options: TritonOptions, name: str, device: Device, component: Component, kind: EngineKind, onnx: OnnxModel
) -> None:
    """Require that options fit a graph before its engine is built.

    Args:
        options: with the paths of files absolute.
        name: of the model.
        device: what the instances run on.
        component: the graph.
        kind: the backend.
        onnx: knows the ranges of the axes.

    Raises:
        UsageError: they do not.
    """
    largest = max_batch_size(component, onnx.axes)
    require_fitting(options, facts_of_component(component, kind, device, largest), model=name)


def facts_of_component(component: Component, kind: EngineKind, device: Device, largest: int) -> ModelFacts:
    """Return what a graph tells about its model; `largest` is its largest batch."""
    return ModelFacts(
        engine=kind,
        device=device,
        inputs={tensor.name: tensor for tensor in component.inputs},
        outputs={tensor.name: tensor for tensor in component.outputs},
        largest=largest,
    )


def add_profiles(config: pb.ModelConfig, inputs: Sequence[Tensor], axes: Mapping[str, AxisRange]) -> None:
    """Add profile shapes to a TensorRT accelerator in the configuration that sets none.

    Args:
        config: has the accelerators and the largest batch.
        inputs: of the model.
        axes: their ranges.
    """
    varying = [tensor for tensor in inputs if any(isinstance(dim, str) for dim in tensor.dims)]
    ranges = dict(axes)
    if config.max_batch_size and BATCH in axes:
        largest = config.max_batch_size
        ranges[BATCH] = AxisRange(min=1, opt=min(axes[BATCH].opt, largest), max=largest)
    if not all(dim in ranges for tensor in varying for dim in tensor.dims if isinstance(dim, str)):
        return
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt" and varying and PROFILE_KEYS[0] not in accelerator.parameters:
            for key, point in zip(PROFILE_KEYS, ("min", "opt", "max"), strict=True):
                accelerator.parameters[key] = ",".join(_shape(tensor, ranges, point) for tensor in varying)


def _shape(tensor: Tensor, ranges: Mapping[str, AxisRange], point: str) -> str:
    sizes = (getattr(ranges[dim], point) if isinstance(dim, str) else dim for dim in tensor.dims)
    return f"{tensor.name}:{'x'.join(map(str, sizes))}"
