"""`config.pbtxt` of TensorRT plans: the additional requirements of Triton's TensorRT backend.

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
from plansmith.records.model import BATCH, Component, Device, Tensor
from plansmith.records.release import CONFIG_FILE, Package
from plansmith.triton.config.model_config import interface_of, make_config
from plansmith.validation.profile_inputs import profile_for

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.records.arrays import Arrays


PLATFORM = "tensorrt_plan"

_DTYPES = {"bool", "uint8", "int8", "int32", "int64", "float16", "float32", "bfloat16"}


def plan_package(name: str, engine: Engine) -> Package:
    """Return the release of an engine's plans.

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
    """Return the file name in a release of the plan for each compute capability."""
    if len(engine.plans) == 1:
        return dict.fromkeys(engine.plans, "model.plan")
    return {capability: f"model_{capability.replace('.', '')}.plan" for capability in engine.plans}


def make_plan_config(package: Package, engine: Engine, device: Device) -> pb.ModelConfig:
    """Return the configuration derived from an engine's plans.

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
    """Return the largest batch of instances that use some of a plan's profiles, by number; 0 for no batching."""
    profiles = [_build(engine).profiles[number] for number in numbers]
    return _max_batch_size(engine.components["model"], next(iter(engine.plans.values())), profiles)


def instances_take(config: pb.ModelConfig, profiles: Sequence[OptimizationProfile], feed: Arrays) -> bool:
    """Whether every instance group has a profile that accepts the inputs, as any of them may be scheduled.

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
    """The largest batch of all profiles; 0 where Triton must not batch requests.

    That is so where the first dim of an input or output is not the batch, or is one in the plan that does not vary;
    where a profile has no one largest batch, or a batch from a single sample to the largest of all is in no profile;
    and where an input holds a shape, as Triton takes its first value for the batch.
    """
    plan_tensors = {tensor.name: tensor for tensor in plan.tensors}
    if not profiles or _shape_tensors(plan, profiles):
        return 0
    tensors = (*component.inputs, *component.outputs)
    if not all(t.dims[:1] == (BATCH,) and plan_dims(t, plan_tensors.get(t.name))[0] == -1 for t in tensors):
        return 0
    if not all(tensor.name in profile.shapes for profile in profiles for tensor in component.inputs):
        return 0
    ranges = [[profile.shapes[tensor.name] for tensor in component.inputs] for profile in profiles]
    if any(len({shape.max[0] for shape in shapes}) > 1 for shapes in ranges):
        return 0
    return _reach((max(shape.min[0] for shape in shapes), shapes[0].max[0]) for shapes in ranges)


def _reach(ranges: Iterable[tuple[int, int]]) -> int:
    """How far the ranges go from 1 without a gap.

    0 where there is one, as the dynamic batcher forms batches of any size.
    """
    reach = 0
    for low, high in sorted(ranges):
        if low > reach + 1:
            return 0
        reach = max(reach, high)
    return reach


def _usual_batches(component: Component, profiles: Sequence[OptimizationProfile]) -> list[int]:
    """The batch sizes that the plan is optimized for, ascending, without 1."""
    name = component.inputs[0].name
    return sorted({profile.shapes[name].opt[0] for profile in profiles} - {1})


def _server_arguments(build: BuildSpec) -> tuple[str, ...]:
    """The server arguments for such plans: Triton runs code from plans and plugin libraries only when they allow it."""
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
    """Yield the differences between a plan's inputs and outputs and the graph's.

    Trtexec may report only some of them.
    """
    inputs = {tensor.name: tensor for tensor in component.inputs}
    graph_tensors = inputs | {tensor.name: tensor for tensor in component.outputs}
    plan_tensors = {tensor.name: tensor for tensor in plan.tensors}
    missing = sorted(graph_tensors.keys() - plan_tensors.keys()) if plan.builder == "api" else []
    yield from (f"{name} is not among its inputs and outputs" for name in missing)
    for name, tensor in plan_tensors.items():
        if name not in graph_tensors:
            yield f"its graph has no {name}"
        elif tensor.is_input != (name in inputs):
            yield f"{name} is an {'input' if tensor.is_input else 'output'} of the plan alone"
        elif tensor.dtype and tensor.dtype != graph_tensors[name].dtype:
            yield f"{name} is {tensor.dtype}, and {graph_tensors[name].dtype} in the graph"
        elif not _fit(tensor.dims, graph_tensors[name].dims):
            yield f"{name} has dims {list(tensor.dims)}, and {list(graph_tensors[name].dims)} in the graph"


def _fit(dims: Sequence[int], graph: Sequence[int | str]) -> bool:
    if len(dims) != len(graph):
        return False
    return all(-1 in {own, its} or isinstance(its, str) or own == its for own, its in zip(dims, graph, strict=True))


def plan_dims(tensor: Tensor, plan_tensor: PlanTensor | None) -> list[int]:
    """Return the plan's dims where fixed, otherwise the graph's; -1 if dynamic in both."""
    graph = [-1 if isinstance(dim, str) else dim for dim in tensor.dims]
    own = plan_tensor.dims if plan_tensor is not None and len(plan_tensor.dims) == len(graph) else graph
    return [its if mine == -1 else mine for mine, its in zip(own, graph, strict=True)]


def _describe(entry: pb.ModelInput | pb.ModelOutput, component: Component, engine: Engine, max_batch_size: int) -> None:
    """Merge the plans' facts on an input or output into its entry."""
    build, (plan, *_) = _build(engine), engine.plans.values()
    tensor = next(t for t in (*component.inputs, *component.outputs) if t.name == entry.name)
    plan_tensors: Mapping[str, PlanTensor] = {t.name: t for t in plan.tensors}
    dims = plan_dims(tensor, plan_tensors.get(entry.name))[1 if max_batch_size else 0 :]
    if dims:
        entry.dims[:] = dims
    entry.is_shape_tensor = entry.name in _shape_tensors(plan, build.profiles)
    layouts = {t.format for item in engine.plans.values() for t in item.tensors if t.name == entry.name}
    format_name = build.formats.get(entry.name, "chw")
    entry.is_non_linear_format_io = format_name != "chw" or not all(map(is_linear, layouts))


def _shape_tensors(plan: Plan, profiles: Sequence[OptimizationProfile]) -> set[str]:
    """The shape tensors among the inputs and outputs: those of the plan, and inputs with values in a profile."""
    return {tensor.name for tensor in plan.tensors if tensor.is_shape} | {n for p in profiles for n in p.values}


def is_linear(layout: str) -> bool:
    """Whether a TensorRT format description means a linear (row-major) layout; an empty one does, as the default."""
    return not layout or "linear" in layout.lower()
