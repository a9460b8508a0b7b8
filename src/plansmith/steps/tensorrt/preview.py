"""Build preview: settings of a TensorRT plan build for the user to see and copy; builds nothing and needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.onnx_files import MODEL_FILE
from plansmith.compilers.shape_inputs import read_shape_inputs
from plansmith.compilers.trt.profiles import profiles_of, shapes_of
from plansmith.compilers.trt.rules import describe_containers, require_formats
from plansmith.compilers.trt.trtexec.command import Measurement, build_command, shell_line, timing_command
from plansmith.config.shapes import resolve_axes
from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
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
from plansmith.system.files import scratch_folder

_PLAN, _LAYERS, _TIMINGS = "model.plan", "layers.json", "timing.cache"


class BuildPreview(Record):
    """Preview of one plan build.

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
        """The trtexec build command, ready to copy into a shell."""
        return shell_line(list(self.trtexec))

    @property
    def timing_lines(self) -> tuple[str, ...]:
        """The trtexec commands that benchmark the plan, one per optimization profile."""
        return tuple(shell_line(list(call)) for call in self.timing)


@dataclass(frozen=True)
class _Interface:
    """Known interface of the graph: its inputs, the ranges of their axes, and its shape inputs.

    `outputs`: where the graph is there.
    """

    inputs: tuple[Tensor, ...]
    axes: Mapping[str, AxisRange]
    shape_inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _GraphFacts:
    """Graph facts: its file, which `is_there` or would be exported; None for a model that cannot be inspected."""

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
    """Return a preview of a model's plan build: its precision, profiles and trtexec commands.

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
    basis = _graph_facts(spec, reference, finished)
    notes, graph = [*basis.notes], basis.graph
    if basis.interface is None:
        ranges = options.profiles or ({"default": spec.shapes} if spec.shapes else {})
        build = options.build_spec([OptimizationProfile(name=name, shapes=shapes) for name, shapes in ranges.items()])
        interface = _Interface(_named(ranges), {})
    else:
        interface = basis.interface
        build = options.build_spec(profiles_of(options, interface.inputs, interface.axes, interface.shape_inputs))
    if not gpus:
        notes.append("no GPU is here and none is named (--gpu): a plan fits the kind of GPU that it was built on")
    program, major = options.trtexec or "trtexec", int(str(target.tensorrt).partition(".")[0])
    calls = [
        timing_command(measurement, program=program, plan=_PLAN, major=major)
        for measurement in _measurements(build, graph)
    ]
    formats = _told_formats(build, basis, interface)
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
        is_there=basis.is_there,
        spec=build,
        trtexec=tuple(command),
        timing=tuple(call.command for call in calls),
        switches=calls[0].switches,
        notes=tuple(notes),
    )


def _told_formats(build: BuildSpec, basis: _GraphFacts, interface: _Interface) -> dict[str, TensorFormat]:
    """Return the requested formats, without those of outputs that are unknown before the export.

    Raises:
        EngineError: one that an input or output cannot have.
    """
    tensors = (*interface.inputs, *interface.outputs)
    names = build.formats.keys() if basis.is_there else {tensor.name for tensor in tensors}
    formats = {name: form for name, form in build.formats.items() if name in names}
    if basis.interface is not None:
        require_formats(formats, tensors)
    return formats


def _graph_facts(spec: ModelSpec, reference: SourceReference, finished: Mapping[str, StepResult[Any]]) -> _GraphFacts:
    """Return the graph's facts from the cache, else from the model's own description."""
    if "lower" in finished:
        lowered: StepResult[LoweredModel] = finished["lower"]
        onnx: OnnxModel = finished["export"].record
        component = lowered.record.components["model"]
        file = lowered.folder / component.file
        interface = _Interface(component.inputs, onnx.axes, read_shape_inputs(file), component.outputs)
        return _GraphFacts(str(file), interface, is_there=True)
    exported = f"{MODEL_FILE} stands for the graph, which is not exported yet; plansmith lower writes one"
    signature, why = None, "before the model is fetched"
    try:
        signature = _described(spec, reference)
    except PlansmithError as error:
        why = f"as the model could not be looked at: {error.message}"
    if signature is None:
        return _GraphFacts(MODEL_FILE, None, (exported, f"only the shapes that were given are known {why}"))
    ranges = {
        name: input_range for name, input_range in profile_ranges(spec).items() if name not in signature.shape_inputs
    }
    axes = resolve_axes(signature.inputs, signature.axes, signature.limits, spec.shapes or ranges)
    return _GraphFacts(MODEL_FILE, _Interface(signature.inputs, axes, signature.shape_inputs), (exported,))


def profile_ranges(spec: ModelSpec) -> dict[str, InputRange]:
    """Return the combined ranges of a plan's optimization profiles, by input; empty for other engines."""
    return shapes_of(spec.tensorrt.profiles) if spec.engine is EngineKind.TENSORRT else {}


def _measurements(build: BuildSpec, graph: str) -> list[Measurement]:
    """Return the opt shape of each profile; one measurement for a plan with fixed shapes."""
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
    """Return the inputs with given ranges, of which only the rank is known."""
    ranges = {name: shape for shapes in profiles.values() for name, shape in shapes.items()}
    return tuple(Tensor(name=n, dtype="float32", dims=(ANONYMOUS,) * len(shape.min)) for n, shape in ranges.items())


def _described(spec: ModelSpec, reference: SourceReference) -> Signature | None:
    """Return the description of a model on this disk; None if it would have to be fetched.

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
