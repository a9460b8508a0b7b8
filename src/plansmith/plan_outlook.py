"""What a build of a TensorRT plan would be told, for a person to see and copy; nothing is built, and no GPU needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.onnx_files import MODEL_FILE
from plansmith.compilers.trtexec.command import build_command, shell_line
from plansmith.config import ModelSpec
from plansmith.engines import BuildSpec, Gpu, OptimizationProfile
from plansmith.errors import PlansmithError
from plansmith.fetching import fetch
from plansmith.optimization_profiles import profiles_of
from plansmith.scratch import scratch_folder
from plansmith.shapes import resolve_axes
from plansmith.sources.live import Signature
from plansmith.sources.reference import SourceReference
from plansmith.stages import Finished, Listener, StageRunner
from plansmith.targets import Target
from plansmith.types import AxisRange, LoweredModel, OnnxModel, Precision, Record, Tensor

_PLAN, _LAYERS, _TIMINGS = "model.plan", "layers.json", "timing.cache"


class BuildOutlook(Record):
    """One build that would be done.

    `tensorrt`: the target's version; `gpus`: the kinds that get a plan, none where neither the spec nor this machine
    names one; `graph`: the file, which `is_there` or would be exported first; `trtexec`: the program's arguments, the
    program first; `notes`: what is not known yet.
    """

    target: str
    tensorrt: str
    image: str
    gpus: tuple[Gpu, ...]
    precision: Precision | str
    graph: str
    is_there: bool
    spec: BuildSpec
    trtexec: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def shell_line(self) -> str:
        """The call of trtexec, to copy into a shell."""
        return shell_line(list(self.trtexec))


@dataclass(frozen=True)
class _Interface:
    """What is known of the graph: its inputs and the ranges of their axes; outputs where it is there."""

    inputs: tuple[Tensor, ...]
    axes: Mapping[str, AxisRange]
    outputs: tuple[Tensor, ...] = ()


def outlook_of(
    spec: ModelSpec,
    reference: SourceReference,
    target: Target,
    gpus: tuple[Gpu, ...],
    finished: Mapping[str, Finished[Any]],
    *,
    relative_to: Path,
) -> BuildOutlook:
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
    """
    options = spec.tensorrt.found_from(relative_to)
    notes = []
    graph, is_there = MODEL_FILE, "lower" in finished
    if is_there:
        lowered: Finished[LoweredModel] = finished["lower"]
        onnx: OnnxModel = finished["export"].record
        component = lowered.record.components["model"]
        graph = str(lowered.folder / component.file)
        interface: _Interface | None = _Interface(component.inputs, onnx.axes, component.outputs)
    else:
        notes.append(f"{graph} stands for the graph, which is not exported yet; plansmith lower writes one")
        try:
            interface = _described(spec, reference)
            why = "before the model is fetched"
        except PlansmithError as error:
            interface, why = None, f"as the model could not be looked at: {error.message}"
    if interface is None:
        notes.append(f"only the shapes that were given are known {why}")
        shapes = OptimizationProfile(name="default", shapes=spec.shapes)
        build = options.build_spec([shapes] if spec.shapes else [])
    else:
        build = options.build_spec(profiles_of(options, interface.inputs, interface.axes))
    if not gpus:
        notes.append("no GPU is here and none is named (--gpu): a plan fits the kind of GPU that it was built on")
    command = build_command(
        build,
        graph=graph,
        plan=_PLAN,
        layers=_LAYERS,
        timing_cache=_TIMINGS if build.timing_cache else "",
        program=options.trtexec or "trtexec",
        major=int(str(target.tensorrt).partition(".")[0]),
        inputs=interface.inputs if interface else (),
        outputs=interface.outputs if interface else (),
    )
    return BuildOutlook(
        target=target.name,
        tensorrt=str(target.tensorrt),
        image=target.images.get("gpu", ""),
        gpus=gpus,
        precision=spec.precision,
        graph=graph,
        is_there=is_there,
        spec=build,
        trtexec=tuple(command),
        notes=tuple(notes),
    )


def _described(spec: ModelSpec, reference: SourceReference) -> _Interface | None:
    """What a model that is on this disk says of itself; None where it would have to be fetched.

    Raises:
        PlansmithError: it cannot be loaded here.
    """
    if reference.path is None and not (spec.random_weights and reference.scheme == "timm"):
        return None
    with scratch_folder("outlook") as scratch:
        stages = StageRunner("outlook", Path(scratch), listener=Listener(), force=False, dry=False)
        try:
            source = fetch(stages, spec, reference)
            answer = stages.heavy(
                "describe",
                source=source.record.model_dump(include={"scheme", "location", "trust_remote_code", "task"}),
                folder=str(source.folder),
                allow_pickle=spec.allow_pickle,
                inputs={name: given.model_dump() for name, given in spec.inputs.items()},
                outputs=spec.outputs,
            )
        finally:
            stages.close()
    found = Signature.model_validate(answer)
    return _Interface(found.inputs, resolve_axes(found.inputs, found.axes, found.limits, spec.shapes))
