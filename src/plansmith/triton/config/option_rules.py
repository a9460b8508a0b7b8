"""Whether what a spec says of Triton's configuration fits the model, the backend and the target.

Asked twice: before anything is built, with what the spec alone tells, and when the model is known. The rules are those
of src/model_config_utils.cc of github.com/triton-inference-server/core, and of the backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from plansmith.config.spec import ModelSpec
from plansmith.config.triton import TritonOptions
from plansmith.config.triton.instances import InstanceGroup
from plansmith.config.triton.optimization import Accelerator
from plansmith.errors import UsageError
from plansmith.records.model import BATCH_RANGE, Component, Device, EngineKind, OnnxModel
from plansmith.records.release import OWN_NAMES
from plansmith.triton.config.model_config import max_batch_size
from plansmith.triton.config.overrides import hidden_names, place_of
from plansmith.triton.config.tensor_rules import ModelFacts, chosen_batch, tensor_problems, warmup_problems

PROFILE_KEYS = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_USUALLY_BATCHED = ("hf:", "timm:")  # at most so; what an ONNX graph takes, it tells itself
_ACCELERATORS = {"gpu_execution_accelerator": ("tensorrt", "cuda"), "cpu_execution_accelerator": ("openvino",)}


def facts_of(spec: ModelSpec, device: Device) -> ModelFacts:
    """What a spec alone tells of its model."""
    batches = [given.max[0] for given in spec.shapes.values() if given.max]
    named = [profile for profile in spec.tensorrt.profiles.values() if spec.engine is EngineKind.TENSORRT]
    batches += [max(given.max[0] for given in profile.values()) for profile in named] if not batches else []
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
    """Refuse at once what Triton would refuse when everything is built, as far as the spec tells.

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
    """See that options fit a model.

    Args:
        options: with the paths of their files absolute.
        facts: what is known of the model.
        more: what else is wrong.
        model: its name.

    Raises:
        UsageError: names every key of `triton:` that does not fit.
    """
    found = [*_files(options), *_batches(options, facts), *_instances(options, facts), *_accelerators(options, facts)]
    found += [*_names(options, facts), *tensor_problems(options, facts), *warmup_problems(options, facts), *more]
    if found:
        words = (
            f"triton.{found[0]}" if len(found) == 1 else "\n  ".join(["these keys of `triton:` do not fit:", *found])
        )
        raise UsageError(words, remedy="correct `triton:` in the spec", model=model, step="package")


def _unasked(spec: ModelSpec) -> Iterator[str]:
    """What the served check cannot ask, as it sends requests that have nothing to do with each other."""
    if not spec.check_served:
        return
    if spec.triton.sequence_batching is not None:
        yield "sequence_batching: the served check asks no sequences; write check_served: false"
    if spec.triton.is_decoupled:
        yield "model_transaction_policy.decoupled: the served check asks for one answer; write check_served: false"


def _files(options: TritonOptions) -> Iterator[str]:
    """Files that are not there, or have each other's name or that of something else in a release."""
    taken: dict[str, tuple[str, str]] = {}
    found: list[str] = []

    def look(field: str, path: str) -> str:
        place = place_of(field, path)
        if not Path(path).is_file():
            found.append(f"{field}: there is no file {path}")
        elif place in OWN_NAMES or place.replace(".", "").isdecimal():
            found.append(f"{field}: {place} is what something else in a release is called; rename {path}")
        elif taken.setdefault(place, (field, path))[1] != path:
            found.append(f"{field}: {path} and {taken[place][1]} have the same name; rename one of them")
        return path

    options.with_files(look)
    yield from dict.fromkeys(found)


def _batches(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Batches that are larger than the model's largest, or than the one that the spec chose."""
    largest = facts.largest
    if largest is None:
        return
    if options.max_batch_size is not None and options.max_batch_size > largest:
        given = options.max_batch_size
        yield f"max_batch_size: {given} is more than the model's largest batch, {largest}; shapes gives it others"
        return
    most = max(1, chosen_batch(options, largest))
    for key, size in options.batch_sizes():
        if size > most:
            yield f"{key}: {size} is more than the largest batch, {most}"


def _instances(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    for number, group in enumerate(options.instance_group):
        for words in _instance(group, options, facts):
            yield f"instance_group.{number}.{words}"


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
    """What another backend reads; accelerators that ONNX Runtime does not know, or that have a part of a profile."""
    given = options.optimization
    if given is not None and given.cuda is not None and facts.engine is not EngineKind.TENSORRT:
        yield "optimization.cuda: only TensorRT's backend reads it"
    accelerators = given.execution_accelerators if given is not None else None
    if accelerators is None:
        return
    if facts.engine is not EngineKind.ONNXRUNTIME:
        yield "optimization.execution_accelerators: they are ONNX Runtime's; leave them out, or take that engine"
        return
    for field, known in _ACCELERATORS.items():
        for accelerator in getattr(accelerators, field):
            key = f"optimization.execution_accelerators.{field}"
            if accelerator.name not in known:
                yield f"{key}: {accelerator.name} is none of {', '.join(known)}"
            elif lacking := _lacking(accelerator):
                yield f"{key}: give {', '.join(lacking)} too, or none of the three, which then follow from the model"


def _lacking(accelerator: Accelerator) -> list[str]:
    """The keys that are missing of a profile that is given in part."""
    lacking = [key for key in PROFILE_KEYS if key not in accelerator.parameters]
    return lacking if len(lacking) < len(PROFILE_KEYS) else []


def _names(options: TritonOptions, facts: ModelFacts) -> Iterator[str]:
    """Inputs and outputs that the model does not have."""
    hidden = hidden_names(options)
    if facts.inputs is not None:
        known = set(facts.inputs)
        for key, name in _input_names(options):
            if name not in known:
                yield f"{key}: the model has no input {name!r}; its inputs are {', '.join(sorted(known))}"
        for key, name in [*((f"inputs.{name}", name) for name in options.inputs), *_sources(options)]:
            if name in hidden:
                yield f"{key}: Triton fills {name} itself, and clients do not send it"
    if facts.outputs is not None:
        known = set(facts.outputs)
        for key, name in _output_names(options):
            if name not in known:
                yield f"{key}: the model has no output {name!r}; its outputs are {', '.join(sorted(known))}"


def _sources(options: TritonOptions) -> list[tuple[str, str]]:
    return [
        *(("batch_input.source_input", name) for one in options.batch_input for name in one.source_input),
        *(("batch_output.source_input", name) for one in options.batch_output for name in one.source_input),
    ]


def _input_names(options: TritonOptions) -> Iterator[tuple[str, str]]:
    yield from ((f"inputs.{name}", name) for name in options.inputs)
    yield from _sources(options)
    yield from (("batch_input.target_name", name) for one in options.batch_input for name in one.target_name)
    if options.sequence_batching is not None:
        yield from (("sequence_batching.control_input", one.name) for one in options.sequence_batching.control_input)
        yield from (("sequence_batching.state.input_name", one.input_name) for one in options.sequence_batching.state)
    if options.optimization is not None and options.optimization.cuda is not None:
        for spec in options.optimization.cuda.graph_spec:
            lower = spec.graph_lower_bound.input if spec.graph_lower_bound is not None else {}
            yield from (("optimization.cuda.graph_spec.input", name) for name in {**spec.input, **lower})


def _output_names(options: TritonOptions) -> Iterator[tuple[str, str]]:
    yield from ((f"outputs.{name}", name) for name in options.outputs)
    yield from (("batch_output.target_name", name) for one in options.batch_output for name in one.target_name)
    if options.sequence_batching is not None:
        yield from (("sequence_batching.state.output_name", one.output_name) for one in options.sequence_batching.state)


def require_servable(
    options: TritonOptions, name: str, device: Device, component: Component, kind: EngineKind, onnx: OnnxModel
) -> None:
    """See that options fit a graph before an engine is made of it.

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
    """What a graph tells of its model; `largest` is its largest batch."""
    return ModelFacts(
        engine=kind,
        device=device,
        inputs={tensor.name: tensor for tensor in component.inputs},
        outputs={tensor.name: tensor for tensor in component.outputs},
        largest=largest,
    )
