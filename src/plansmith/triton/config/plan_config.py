"""`config.pbtxt` of TensorRT plans: what Triton's TensorRT backend asks beyond what every backend does.

The rules are those of the backend's source (tensorrt.cc, instance_state.cc and loader.cc in
github.com/triton-inference-server/tensorrt_backend) and of docs/user_guide/model_configuration.md of
github.com/triton-inference-server/server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import EngineError
from plansmith.records.engine import BuildSpec, Engine, OptimizationProfile, Plan, PlanTensor
from plansmith.records.model import Component, Device, Tensor
from plansmith.records.release import CONFIG_FILE, Package
from plansmith.triton.config.model_config import BATCH, interface_of, make_config
from plansmith.validation.profile_inputs import profile_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tritonclient.grpc import model_config_pb2 as pb

    Arrays = Mapping[str, NDArray[np.generic]]

PLATFORM = "tensorrt_plan"

_DTYPES = {"bool", "uint8", "int8", "int32", "int64", "float16", "float32", "bfloat16"}


def plan_package(name: str, engine: Engine) -> Package:
    """The release of an engine's plans.

    Args:
        name: of the model.
        engine: of TensorRT, with a plan for at least one compute capability.
    """
    component, build = engine.components["model"], _build(engine)
    files = plan_files(engine)
    return Package(
        model=name,
        config_file=CONFIG_FILE,
        model_files=tuple(files.values()),
        max_batch_size=_max_batch_size(component, next(iter(engine.plans.values())), build.profiles),
        interface=interface_of(component),
        capability_files=files if len(files) > 1 else {},
        server_arguments=_server_arguments(build),
    )


def plan_files(engine: Engine) -> dict[str, str]:
    """What the plan for each compute capability is called in a release."""
    if len(engine.plans) == 1:
        return dict.fromkeys(engine.plans, "model.plan")
    return {capability: f"model_{capability.replace('.', '')}.plan" for capability in engine.plans}


def make_plan_config(package: Package, engine: Engine, device: Device) -> pb.ModelConfig:
    """The configuration that follows from an engine's plans.

    Args:
        package: of `plan_package`, maybe with a smaller batch.
        engine: its plans, and what they were built from.
        device: what the instances run on.

    Raises:
        EngineError: CPU instances, a plan without its weights, or one whose inputs and outputs are not the graph's.
    """
    component, profiles = engine.components["model"], _build(engine).profiles
    problems = [*_problems(engine, device), *_scalars(component, package.max_batch_size)]
    if problems:
        raise EngineError(
            "\n  ".join(["Triton cannot serve these plans:", *problems]),
            remedy="take a --target with GPUs; else build the plans again, and if it stays so, please report this",
        )
    config = make_config(package, engine.kind, device)
    config.platform = PLATFORM
    for entry in (*config.input, *config.output):
        _describe(entry, component, engine, package.max_batch_size)
    if len(profiles) > 1:
        config.instance_group[0].profile.extend(str(number) for number in range(len(profiles)))
    if package.max_batch_size > 1:
        usual = [size for size in _usual_batches(component, profiles) if size <= package.max_batch_size]
        config.dynamic_batching.preferred_batch_size.extend(usual)
    config.cc_model_filenames.update(package.capability_files)
    return config


def largest_batch(engine: Engine, numbers: Sequence[int]) -> int:
    """The largest batch of instances that have some of a plan's profiles, by number; 0 for no batching."""
    profiles = [_build(engine).profiles[number] for number in numbers]
    return _max_batch_size(engine.components["model"], next(iter(engine.plans.values())), profiles)


def instances_take(config: pb.ModelConfig, profiles: Sequence[OptimizationProfile], feed: Arrays) -> bool:
    """Whether every group of instances has a profile that takes inputs: any of them may be asked.

    Args:
        config: its groups name profiles; one that names none has the first alone.
        profiles: of the plan; none for a graph whose shapes are all fixed.
        feed: as the model has them, batch included.
    """
    if not profiles:
        return True
    groups = [[profiles[int(number)] for number in group.profile or ["0"]] for group in config.instance_group]
    return all(profile_for(chosen, feed) is not None for chosen in groups)


def _build(engine: Engine) -> BuildSpec:
    assert engine.build is not None
    return engine.build


def _max_batch_size(component: Component, plan: Plan, profiles: Sequence[OptimizationProfile]) -> int:
    """The largest batch of all profiles; 0 where Triton must not put samples together.

    That is so where the first dim of an input or output is not the batch, or is one in the plan that does not vary;
    where a profile has no one largest batch, or a batch from a single sample to the largest of all is in no profile;
    and where an input holds a shape, as Triton takes its first value for the batch.
    """
    told = {tensor.name: tensor for tensor in plan.tensors}
    if not profiles or _shape_tensors(plan, profiles):
        return 0
    tensors = (*component.inputs, *component.outputs)
    if not all(t.dims[:1] == (BATCH,) and plan_dims(t, told.get(t.name))[0] == -1 for t in tensors):
        return 0
    if not all(tensor.name in profile.shapes for profile in profiles for tensor in component.inputs):
        return 0
    given = [[profile.shapes[tensor.name] for tensor in component.inputs] for profile in profiles]
    if any(len({shape.max[0] for shape in shapes}) > 1 for shapes in given):
        return 0
    return _reach((max(shape.min[0] for shape in shapes), shapes[0].max[0]) for shapes in given)


def _reach(ranges: Iterable[tuple[int, int]]) -> int:
    """How far ranges go from 1 without a gap; 0 where there is one, as the batcher makes batches of any size."""
    reach = 0
    for low, high in sorted(ranges):
        if low > reach + 1:
            return 0
        reach = max(reach, high)
    return reach


def _usual_batches(component: Component, profiles: Sequence[OptimizationProfile]) -> list[int]:
    """The batches that the plan is tuned for, ascending; a single sample is none."""
    name = component.inputs[0].name
    return sorted({profile.shapes[name].opt[0] for profile in profiles} - {1})


def _server_arguments(build: BuildSpec) -> tuple[str, ...]:
    """What makes Triton load such plans: it runs code inside of a plan, and of libraries, when it is told to alone."""
    libraries = ";".join(Path(library).name for library in build.plugins)
    settings = ["version-compatible=true"] if build.version_compatible else []
    settings += [f"plugins={libraries}"] if libraries else []
    return tuple(f"--backend-config=tensorrt,{setting}" for setting in settings)


def _problems(engine: Engine, device: Device) -> Iterator[str]:
    if device != "gpu":
        yield "they are for CPU instances, and its TensorRT backend has GPU ones alone"
    for plan in engine.plans.values():
        if _build(engine).strip_weights and not plan.refitted:
            yield f"the plan for {plan.gpu.name} is without its weights, which Triton cannot put back"
        for difference in _differences(engine.components["model"], plan):
            yield f"the plan for {plan.gpu.name} is not that of the graph: {difference}"


def _scalars(component: Component, max_batch_size: int) -> Iterator[str]:
    for tensor in (*component.inputs, *component.outputs):
        if not tensor.dims and not max_batch_size:
            yield f"{tensor.name} has no dims at all, which Triton carries in batches alone"
        if tensor.dtype not in _DTYPES:
            yield f"{tensor.name} has dtype {tensor.dtype}, which its TensorRT backend does not know"


def _differences(component: Component, plan: Plan) -> Iterator[str]:
    """What a plan says of its inputs and outputs and the graph says otherwise; trtexec may tell of some only."""
    inputs = {tensor.name: tensor for tensor in component.inputs}
    known = inputs | {tensor.name: tensor for tensor in component.outputs}
    told = {tensor.name: tensor for tensor in plan.tensors}
    missing = sorted(known.keys() - told.keys()) if plan.builder == "api" else []
    yield from (f"{name} is not among its inputs and outputs" for name in missing)
    for name, tensor in told.items():
        if name not in known:
            yield f"its graph has no {name}"
        elif tensor.is_input != (name in inputs):
            yield f"{name} is an {'input' if tensor.is_input else 'output'} of the plan alone"
        elif tensor.dtype and tensor.dtype != known[name].dtype:
            yield f"{name} is {tensor.dtype}, and {known[name].dtype} in the graph"
        elif not _fit(tensor.dims, known[name].dims):
            yield f"{name} has dims {list(tensor.dims)}, and {list(known[name].dims)} in the graph"


def _fit(dims: Sequence[int], graph: Sequence[int | str]) -> bool:
    if len(dims) != len(graph):
        return False
    return all(-1 in {own, its} or isinstance(its, str) or own == its for own, its in zip(dims, graph, strict=True))


def plan_dims(tensor: Tensor, told: PlanTensor | None) -> list[int]:
    """Of the plan where it fixes them, else of the graph; -1 where neither does."""
    graph = [-1 if isinstance(dim, str) else dim for dim in tensor.dims]
    own = told.dims if told is not None and len(told.dims) == len(graph) else graph
    return [its if mine == -1 else mine for mine, its in zip(own, graph, strict=True)]


def _describe(entry: pb.ModelInput | pb.ModelOutput, component: Component, engine: Engine, max_batch_size: int) -> None:
    """Put what the plans say of an input or output into its entry."""
    build, (plan, *_) = _build(engine), engine.plans.values()
    tensor = next(t for t in (*component.inputs, *component.outputs) if t.name == entry.name)
    told: Mapping[str, PlanTensor] = {t.name: t for t in plan.tensors}
    dims = plan_dims(tensor, told.get(entry.name))[1 if max_batch_size else 0 :]
    if dims:
        entry.dims[:] = dims
    entry.is_shape_tensor = entry.name in _shape_tensors(plan, build.profiles)
    layouts = {t.format for one in engine.plans.values() for t in one.tensors if t.name == entry.name}
    asked = build.formats.get(entry.name, "chw")
    entry.is_non_linear_format_io = asked != "chw" or not all(map(is_linear, layouts))


def _shape_tensors(plan: Plan, profiles: Sequence[OptimizationProfile]) -> set[str]:
    """The inputs and outputs that hold a shape: by the plan, and the inputs that profiles give contents."""
    return {tensor.name for tensor in plan.tensors if tensor.is_shape} | {n for p in profiles for n in p.values}


def is_linear(layout: str) -> bool:
    """Whether TensorRT's words mean that a tensor lies row by row; no words, that nothing else was asked."""
    return not layout or "linear" in layout.lower()
