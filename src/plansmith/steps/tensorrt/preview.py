"""What a build of a TensorRT plan would be told, for a person to see and copy; nothing is built, and no GPU needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.onnx_files import MODEL_FILE
from plansmith.compilers.shape_inputs import read_shape_inputs
from plansmith.compilers.trt.formats import require_formats
from plansmith.compilers.trt.profiles import profiles_of, shapes_of
from plansmith.compilers.trt.rules import describe_containers
from plansmith.compilers.trtexec.command import build_command, shell_line
from plansmith.compilers.trtexec.timing import Measurement, timing_command
from plansmith.config.shapes import resolve_axes
from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target
from plansmith.errors import PlansmithError
from plansmith.records.engine import BuildSpec, Gpu, OptimizationProfile, TensorFormat
from plansmith.records.model import (
    ANONYMOUS,
    AxisRange,
    EngineKind,
    InputRange,
    LoweredModel,
    OnnxModel,
    Precision,
    Record,
    Tensor,
)
from plansmith.sources.loaded_model import Signature
from plansmith.steps.fetch import fetch, load_request
from plansmith.steps.runner import Listener, StageRunner, StepResult
from plansmith.steps.worker import tasks
from plansmith.system.temporary import scratch_folder

_PLAN, _LAYERS, _TIMINGS = "model.plan", "layers.json", "timing.cache"


class BuildPreview(Record):
    """One build that would be done.

    `tensorrt`: the target's version; `containers`: what has it; `gpus`: the kinds that get a plan, none where neither
    the spec nor this machine names one; `graph`: the file, which `is_there` or would be exported first; `trtexec`: the
    program's arguments, the program first; `timing`: likewise, to measure the plan at the opt of each profile, with the
    same `switches` for every TensorRT; `notes`: what is not known yet.
    """

    target: str
    tensorrt: str
    containers: str
    gpus: tuple[Gpu, ...]
    precision: Precision | str
    graph: str
    is_there: bool
    spec: BuildSpec
    trtexec: tuple[str, ...]
    timing: tuple[tuple[str, ...], ...]
    switches: str
    notes: tuple[str, ...]

    @property
    def shell_line(self) -> str:
        """The call of trtexec, to copy into a shell."""
        return shell_line(list(self.trtexec))

    @property
    def timing_lines(self) -> tuple[str, ...]:
        """The calls of trtexec that measure the plan, a profile each."""
        return tuple(shell_line(list(call)) for call in self.timing)


@dataclass(frozen=True)
class _Interface:
    """What is known of the graph: its inputs, the ranges of their axes, and which of them hold a shape.

    `outputs`: where the graph is there.
    """

    inputs: tuple[Tensor, ...]
    axes: Mapping[str, AxisRange]
    shape_inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _Known:
    """The file of the graph, which `is_there` or would be exported first; None for a model that cannot be asked."""

    graph: str
    interface: _Interface | None
    notes: tuple[str, ...] = ()
    is_there: bool = False


def preview_builds(
    spec: ModelSpec,
    reference: SourceReference,
    target: Target,
    gpus: tuple[Gpu, ...],
    finished: Mapping[str, StepResult[Any]],
    *,
    relative_to: Path,
) -> BuildPreview:
    """What the build of a model would be told.

    Args:
        spec: what is wanted.
        reference: the source as typed.
        target: the runtime that will serve the plan.
        gpus: the kinds that get one.
        finished: the steps whose results are in the cache, by name.
        relative_to: the folder that paths in the spec start from.

    Raises:
        UsageError: profiles that the graph cannot have.
        EngineError: formats that its inputs and outputs cannot have.
    """
    options = spec.tensorrt.with_absolute_paths(relative_to)
    known = _known(spec, reference, finished)
    notes, graph = [*known.notes], known.graph
    if known.interface is None:
        given = options.profiles or ({"default": spec.shapes} if spec.shapes else {})
        build = options.build_spec([OptimizationProfile(name=name, shapes=shapes) for name, shapes in given.items()])
        interface = _Interface(_named(given), {})
    else:
        interface = known.interface
        build = options.build_spec(profiles_of(options, interface.inputs, interface.axes, interface.shape_inputs))
    if not gpus:
        notes.append("no GPU is here and none is named (--gpu): a plan fits the kind of GPU that it was built on")
    program, major = options.trtexec or "trtexec", int(str(target.tensorrt).partition(".")[0])
    calls = [
        timing_command(measurement, program=program, plan=_PLAN, major=major)
        for measurement in _measurements(build, graph)
    ]
    formats = _told_formats(build, known, interface)
    if unjudged := build.formats.keys() - formats.keys():
        notes.append(f"the call lacks the formats of {', '.join(sorted(unjudged))}: the graph tells its outputs")
    command = build_command(
        build.model_copy(update={"formats": formats}),
        graph=graph,
        plan=_PLAN,
        layers=_LAYERS,
        timing_cache=_TIMINGS if build.timing_cache else "",
        program=program,
        major=major,
        inputs=interface.inputs,
        outputs=interface.outputs,
    )
    return BuildPreview(
        target=target.name,
        tensorrt=str(target.tensorrt),
        containers=describe_containers(target),
        gpus=gpus,
        precision=spec.precision,
        graph=graph,
        is_there=known.is_there,
        spec=build,
        trtexec=tuple(command),
        timing=tuple(call.command for call in calls),
        switches=calls[0].switches,
        notes=tuple(notes),
    )


def _told_formats(build: BuildSpec, known: _Known, interface: _Interface) -> dict[str, TensorFormat]:
    """The formats that were asked for, without those of outputs that nobody knows before the graph is there.

    Raises:
        EngineError: one that an input or output cannot have.
    """
    told = (*interface.inputs, *interface.outputs)
    names = build.formats.keys() if known.is_there else {tensor.name for tensor in told}
    formats = {name: form for name, form in build.formats.items() if name in names}
    if known.interface is not None:
        require_formats(formats, told)
    return formats


def _known(spec: ModelSpec, reference: SourceReference, finished: Mapping[str, StepResult[Any]]) -> _Known:
    """The graph where it is in the cache already, else what the model says of itself."""
    if "lower" in finished:
        lowered: StepResult[LoweredModel] = finished["lower"]
        onnx: OnnxModel = finished["export"].record
        component = lowered.record.components["model"]
        file = lowered.folder / component.file
        interface = _Interface(component.inputs, onnx.axes, read_shape_inputs(file), component.outputs)
        return _Known(str(file), interface, is_there=True)
    exported = f"{MODEL_FILE} stands for the graph, which is not exported yet; plansmith lower writes one"
    found, why = None, "before the model is fetched"
    try:
        found = _described(spec, reference)
    except PlansmithError as error:
        why = f"as the model could not be looked at: {error.message}"
    if found is None:
        return _Known(MODEL_FILE, None, (exported, f"only the shapes that were given are known {why}"))
    given = {name: one for name, one in profile_ranges(spec).items() if name not in found.shape_inputs}
    axes = resolve_axes(found.inputs, found.axes, found.limits, spec.shapes or given)
    return _Known(MODEL_FILE, _Interface(found.inputs, axes, found.shape_inputs), (exported,))


def profile_ranges(spec: ModelSpec) -> dict[str, InputRange]:
    """What the profiles of a plan take together, by input; nothing for another engine."""
    return shapes_of(spec.tensorrt.profiles) if spec.engine is EngineKind.TENSORRT else {}


def _measurements(build: BuildSpec, graph: str) -> list[Measurement]:
    """The opt of every profile; one measurement of a plan whose shapes are all fixed."""
    fixed = Measurement(
        plugins=build.plugins,
        version_compatible=build.version_compatible,
        weights=graph if build.strip_weights else "",
    )
    return [
        fixed.model_copy(
            update={"shapes": {n: r.opt for n, r in (profile.shapes | profile.values).items()}, "profile": number}
        )
        for number, profile in enumerate(build.profiles)
    ] or [fixed]


def _named(profiles: Mapping[str, Mapping[str, InputRange]]) -> tuple[Tensor, ...]:
    """The inputs that ranges were given for, of which nothing but their rank is known."""
    given = {name: shape for shapes in profiles.values() for name, shape in shapes.items()}
    return tuple(Tensor(name=n, dtype="float32", dims=(ANONYMOUS,) * len(shape.min)) for n, shape in given.items())


def _described(spec: ModelSpec, reference: SourceReference) -> Signature | None:
    """What a model that is on this disk says of itself; None where it would have to be fetched.

    Raises:
        PlansmithError: it cannot be loaded here.
    """
    if reference.path is None and not (spec.random_weights and reference.scheme == "timm"):
        return None
    with scratch_folder("preview") as scratch:
        stages = StageRunner("preview", Path(scratch), listener=Listener(), force=False, dry=False)
        try:
            source = fetch(stages, spec, reference)
            assert source is not None, "what is brought here is no look"
            return stages.run_in_worker(tasks.DESCRIBE, load_request(spec, source))
        finally:
            stages.close()
