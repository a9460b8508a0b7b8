"""Plan builds with TensorRT's Python API, through Polygraphy's loaders."""

from __future__ import annotations

import glob
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from plansmith.compilers.trt.api.run import inspect
from plansmith.compilers.trt.api.runtime import LogCapture, engine_of, gpu_needed, listen, load_plugins, logger, version
from plansmith.compilers.trt.api.timing_cache import Measured, write_whole
from plansmith.compilers.trt.failures import failure_of
from plansmith.compilers.trt.layers import read_layers
from plansmith.errors import EngineError
from plansmith.records.engine import BuildRequest, BuildSpec, OptimizationProfile, Plan, PlanLayer, TensorFormat
from plansmith.system.files import storage_errors, write_file

_SECONDS_BETWEEN_WORDS = 0.5
_LISTED = 3
LAYERS_FILE = "layers.json"
_PLAN = "model.plan"
_WARNINGS_KEPT = 20
_SOURCE_LINE = re.compile(r"^\w+\.cpp:\d+: ")
# What the parser says of every graph that takes indices; that inputs have the dtype they had is checked elsewhere.
_USUAL = re.compile(r"Make sure input .* has Int64 binding")


def config_for(spec: BuildSpec, profiles: list[Any], monitor: Any, finish: Callable[[Any], None]) -> Any:
    """Return Polygraphy's loader of a builder configuration.

    Args:
        spec: says what is asked for.
        profiles: Polygraphy's, in order.
        monitor: a `tensorrt.IProgressMonitor`.
        finish: given the `IBuilderConfig` when all is set, for what Polygraphy has no argument for.
    """
    import tensorrt
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    compatibility = spec.hardware_compatibility
    config = CreateConfig(
        tf32=spec.tf32,  # Polygraphy takes it away unless told
        profiles=profiles,
        sparse_weights=spec.sparsity,
        profiling_verbosity=getattr(tensorrt.ProfilingVerbosity, spec.verbosity.upper()),
        memory_pool_limits={
            getattr(tensorrt.MemoryPoolType, pool.upper()): limit for pool, limit in spec.memory_pools.items()
        },
        refittable=spec.refit,
        strip_plan=spec.strip_weights,
        builder_optimization_level=spec.optimization_level,
        hardware_compatibility_level=(
            None if compatibility == "none" else getattr(tensorrt.HardwareCompatibilityLevel, compatibility.upper())
        ),
        max_aux_streams=spec.max_aux_streams,
        version_compatible=spec.version_compatible,
        exclude_lean_runtime=spec.exclude_lean_runtime,
        error_on_timing_cache_miss=spec.error_on_timing_cache_miss,
        progress_monitor=monitor,
        tiling_optimization_level=getattr(tensorrt.TilingOptimizationLevel, spec.tiling.upper()),
    )
    return PostprocessConfig(config, lambda _builder, _network, result: _finish(spec, result, finish))


def _finish(spec: BuildSpec, config: Any, finish: Callable[[Any], None]) -> None:
    import tensorrt

    if spec.strip_weights and not spec.refit:  # 11's default, which 10.12 does not promise
        config.set_flag(tensorrt.BuilderFlag.REFIT_IDENTICAL)
    if spec.editable_timing_cache:
        config.set_flag(tensorrt.BuilderFlag.EDITABLE_TIMING_CACHE)
    finish(config)


class Parsed(NamedTuple):
    """What Polygraphy's loaders pass on: builder, network and parser, which must live until the plan is built."""

    builder: Any
    network: Any
    parser: Any


def read_network(graph: Path) -> Parsed:
    """Parse an ONNX file, with external weights, as a strongly typed network: its dtypes are the plan's."""
    from polygraphy.backend.trt import NetworkFromOnnxPath

    return Parsed(*NetworkFromOnnxPath(str(graph), strongly_typed=True)())


def inputs_of(network: Any) -> list[Any]:
    """Return the inputs (`ITensor`) in order."""
    return [network.get_input(index) for index in range(network.num_inputs)]


def outputs_of(network: Any) -> list[Any]:
    """Return the outputs (`ITensor`) in order."""
    return [network.get_output(index) for index in range(network.num_outputs)]


def set_formats(network: Any, formats: Mapping[str, TensorFormat]) -> None:
    """Set the I/O formats of inputs and outputs; TensorRT takes a mask with one bit per allowed format."""
    import tensorrt

    tensors = {tensor.name: tensor for tensor in [*inputs_of(network), *outputs_of(network)]}
    for name, format_name in formats.items():
        member = getattr(tensorrt.TensorFormat, "LINEAR" if format_name == "chw" else format_name.upper())
        tensors[name].allowed_formats = 1 << int(member)


def profiles_of(network: Any, spec: BuildSpec) -> list[Any]:
    """Return Polygraphy's optimization profiles, in the spec's order; none for a graph with static shapes.

    TensorRT itself tells which inputs hold a shape: those have a range of contents instead of one of shapes.

    Raises:
        EngineError: a profile leaves out an input that varies.
    """
    return [_profile(network, profile) for profile in _required(network, spec)]


def _required(network: Any, spec: BuildSpec) -> tuple[OptimizationProfile, ...]:
    if not spec.profiles and (varying := [tensor.name for tensor in inputs_of(network) if _varies(tensor)]):
        raise EngineError(
            f"{', '.join(varying)} vary, and there is no profile that says how",
            remedy="give their ranges under shapes, or tensorrt: profiles",
        )
    return spec.profiles


def _varies(tensor: Any) -> bool:
    return bool(tensor.is_shape_tensor) or any(size < 0 for size in tensor.shape)


def _profile(network: Any, profile: OptimizationProfile) -> Any:
    from polygraphy.backend.trt import Profile

    result = Profile()
    for tensor in inputs_of(network):
        ranges = profile.values if tensor.is_shape_tensor else profile.shapes
        if tensor.name in ranges:
            value_range = ranges[tensor.name]
            result.add(
                glob.escape(tensor.name), value_range.min, value_range.opt, value_range.max
            )  # Polygraphy takes names for patterns
        elif _varies(tensor):
            subject = "the contents of the shape" if tensor.is_shape_tensor else "the input"
            raise EngineError(
                f"profile {profile.name} says nothing of {subject} {tensor.name}",
                remedy="give its range under shapes, or in every one of tensorrt: profiles",
            )
        else:
            fixed = tuple(tensor.shape)
            result.add(glob.escape(tensor.name), fixed, fixed, fixed)
    return result


@dataclass
class _Phase:
    parent: str
    steps: int
    done: int = 0


@dataclass
class Watch:
    """Build watch: tracks a build's progress. Thread-safe.

    `say`: told what is being done, at most twice a second, by one thread at a time; `seconds`: what the build may take
    from now on. `is_late` and `failure` (what `say` raised) tell why a build was ended.
    """

    say: Callable[[str], None]
    seconds: float
    is_late: bool = False
    failure: BaseException | None = None
    _phases: dict[str, _Phase] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: float = field(default_factory=time.monotonic)
    _report_time: float = float("-inf")

    def start(self, phase: str, parent: str, steps: int) -> None:
        """Start a phase with a number of steps, inside a parent phase or none ("")."""
        with self._lock:
            self._phases[phase] = _Phase(parent, steps)
            self._tell(phase)

    def step(self, phase: str, step: int) -> bool:
        """Record a finished step of a phase, counted from 0; return whether the build should continue."""
        with self._lock:
            if phase in self._phases:
                self._phases[phase].done = step + 1
                self._tell(phase)
            self.is_late = self.is_late or time.monotonic() - self._begun > self.seconds
            return not self.is_late and self.failure is None

    def finish(self, phase: str) -> None:
        """Finish a phase."""
        with self._lock:
            self._phases.pop(phase, None)

    def _tell(self, phase: str) -> None:
        if self.failure is not None or time.monotonic() - self._report_time < _SECONDS_BETWEEN_WORDS:
            return
        self._report_time = time.monotonic()
        try:
            self.say(f"building: {self._phase_text(phase)}")
        except BaseException as failure:  # noqa: BLE001 - TensorRT's threads take no exception; `build` raises it
            self.failure = failure

    def _phase_text(self, phase: str) -> str:
        """The progress text: of a phase and its parents, the longest, whose count best shows the build's progress."""
        around = [phase]
        while (parent := self._phases[around[-1]].parent) in self._phases and parent not in around:
            around.append(parent)
        name = max(around, key=lambda phase_name: self._phases[phase_name].steps)
        done, steps = self._phases[name].done, self._phases[name].steps
        return f"{name}, {done} of {steps} ({100 * done // steps} %)" if steps > 1 else name


def monitor_of(watch: Watch) -> Any:
    """Return a `tensorrt.IProgressMonitor` that reports to a watch and can cancel the build."""
    import tensorrt

    class Monitor(tensorrt.IProgressMonitor):  # type: ignore[misc] # no types
        """Called by threads of TensorRT."""

        def __init__(self) -> None:
            tensorrt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """A phase begins."""
            watch.start(phase_name, parent_phase or "", num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """A step is done; False ends the build."""
            return watch.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            """A phase ends."""
            watch.finish(phase_name)

    return Monitor()


def refit(
    plan: Path,
    graph: Path,
    out: Path,
    *,
    plugins: Iterable[str] = (),
    version_compatible: bool = False,
    exclude_lean_runtime: bool = False,
    refittable: bool = False,
) -> None:
    """Refit a stripped plan with the weights of the graph it was built from, and write the complete plan.

    Args:
        plan: a stripped plan.
        graph: the ONNX file, weights in files beside it included; its weights must be those of the build, as their
            values decided how layers were fused (`BuilderFlag.REFIT_IDENTICAL`).
        out: the file to write, which appears whole or not at all.
        plugins: libraries that the plan needs.
        version_compatible: it was built so.
        exclude_lean_runtime: it was built so, and is to stay so.
        refittable: its weights are to stay exchangeable. From 10.14 on a plan that was asked for no such thing loses
            that (`SerializationFlag.INCLUDE_REFIT`); before, it keeps it always.

    Raises:
        EngineError: TensorRT refuses the plan or the weights, or weights are missing.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    engine = engine_of(plan, plugins=plugins, version_compatible=version_compatible)
    import tensorrt

    if not engine.refittable:
        raise EngineError(
            f"{plan.name} cannot take weights", remedy="build it again, with tensorrt: strip_weights or refit"
        )
    heard = listen()
    refitter = tensorrt.Refitter(engine, logger())
    parser = tensorrt.OnnxParserRefitter(refitter, logger())
    if not parser.refit_from_file(str(graph)):
        messages = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise _refused(plan, graph, messages or heard.errors)
    if missing := refitter.get_missing_weights():
        raise _refused(plan, graph, [f"it lacks {', '.join(missing[:_LISTED])} ({len(missing)} in all)"])
    if not refitter.refit_cuda_engine():
        raise _refused(plan, graph, heard.errors)
    write_whole(_serialize_plan(engine, exclude_lean_runtime=exclude_lean_runtime, refittable=refittable), out)


def _serialize_plan(engine: Any, *, exclude_lean_runtime: bool, refittable: bool) -> Any:
    import tensorrt

    flags = tensorrt.SerializationFlag
    config = engine.create_serialization_config()
    config.clear_flag(flags.EXCLUDE_WEIGHTS)  # set from the start, for a plan that was built stripped
    if exclude_lean_runtime:
        config.set_flag(flags.EXCLUDE_LEAN_RUNTIME)
    if refittable and "INCLUDE_REFIT" in flags.__members__:
        config.set_flag(flags.INCLUDE_REFIT)
    return engine.serialize_with_config(config)


def _refused(plan: Path, graph: Path, messages: list[str]) -> EngineError:
    return EngineError(
        f"{plan.name} does not take the weights of {graph.name}: {'; '.join(messages) or 'TensorRT says no more'}",
        remedy="it must be the very graph that the plan was built from; or set tensorrt: strip_weights: false",
    )


def build(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Build one plan on CUDA's first GPU in this process, which should do nothing else.

    Writes `model.plan` and `layers.json` into `request.out`, and the timing cache back. What TensorRT says goes to
    standard error, where the process's log is.

    Args:
        request: the graph, and all that decides the plan.
        progress: told what is being done, by any thread but one at a time; what it raises ends the build.

    Raises:
        EngineError: the graph, the spec or the deadline is the reason that there is no plan.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
        RepositoryError: the disk took no more.
    """
    begun = time.monotonic()
    tensorrt = version()
    load_plugins(request.spec.plugins)
    watch, heard = Watch(progress, request.deadline_seconds), listen()
    measured = Measured(Path(request.timing_cache) if request.timing_cache and request.spec.timing_cache else None)
    with explained(f"building a plan of {Path(request.graph).name}", watch, heard), gpu_needed():
        _write_plan(request, watch, measured)
    seconds = time.monotonic() - begun
    progress("looking at what was built")
    plan = Path(request.out, _PLAN)
    spec = request.spec
    inspection = inspect(plan, plugins=spec.plugins, version_compatible=spec.version_compatible)
    write_layers(read_layers(inspection.layers), plan.with_name(LAYERS_FILE))
    return Plan(
        file=_PLAN,
        bytes=plan.stat().st_size,
        gpu=request.gpu,
        tensorrt=tensorrt,
        builder="api",
        seconds=seconds,
        peak_host_bytes=None,
        peak_device_bytes=None,
        timing_cache=measured.status,
        tensors=inspection.tensors,
        profile_bytes=inspection.profile_bytes,
        layers_file=LAYERS_FILE,
        log="build.log",
        reproduce="reproduce.sh",
        warnings=(*measured.warnings, *warnings_of(heard)),
    )


def _write_plan(request: BuildRequest, watch: Watch, measured: Measured) -> None:
    """Build the plan and write it; the build's memory is released on return, before the plan is opened."""
    configs = []

    def finish(config: Any) -> None:
        measured.attach(config)
        configs.append(config)

    try:
        write_whole(serialized_plan(Path(request.graph), request.spec, watch, finish), Path(request.out, _PLAN))
    finally:
        # A build that is late leaves what it measured, so that the next one need not measure it again.
        if configs and (watch.is_late or Path(request.out, _PLAN).exists()):
            measured.save(configs[0])


def serialized_plan(graph: Path, spec: BuildSpec, watch: Watch, finish: Callable[[Any], None]) -> Any:
    """Return the serialized plan (`tensorrt.IHostMemory`).

    Args:
        graph: the ONNX file.
        spec: what is asked for.
        watch: follows the build, and ends it.
        finish: given the `IBuilderConfig` last, before the build.
    """
    from polygraphy.backend.trt import EngineBytesFromNetwork

    watch.say("reading the graph")
    parsed = read_network(graph)
    set_formats(parsed.network, spec.formats)
    config = config_for(spec, profiles_of(parsed.network, spec), monitor_of(watch), finish)
    watch.say("building")
    return EngineBytesFromNetwork(tuple(parsed), config)()


@contextmanager
def explained(activity: str, watch: Watch, heard: LogCapture) -> Iterator[None]:
    """Explain a failed build: TensorRT and Polygraphy only report the failure, the reason is in the log.

    Args:
        activity: is being done, such as "building a plan of model.onnx".
        watch: of the build.
        heard: what TensorRT said since it began.

    Raises:
        EngineError: the graph, the spec or the deadline is the reason that there is no plan.
        EnvironmentFault: a library, the GPU or memory is missing.
    """
    from polygraphy.exception import PolygraphyException

    try:
        yield
    except (PolygraphyException, RuntimeError) as error:  # the bindings raise the latter for values of shape tensors
        if watch.failure is not None:
            raise watch.failure from error
        if watch.is_late:
            raise EngineError(
                f"the plan was not built within {watch.seconds / 60:.0f} minutes",
                remedy="give it more time (tensorrt: deadline_minutes), or less to do: fewer profiles, narrower shapes,"
                " a lower tensorrt: optimization_level",
            ) from error
        message = heard.text if heard.errors else f"{heard.text}\n[E] {error}"
        raise failure_of(message, activity=activity) from error


def write_layers(layers: Sequence[PlanLayer], path: Path) -> None:
    """Write the layer information as JSON.

    Raises:
        RepositoryError: the disk is full.
    """
    with storage_errors(path.parent):
        write_file(path, json.dumps([layer.model_dump(mode="json") for layer in layers]), replace=True)


def warnings_of(heard: LogCapture) -> list[str]:
    """Return TensorRT's distinct warnings, up to a limit, as some graphs have one for each weight."""
    messages = [_SOURCE_LINE.sub("", warning) for warning in heard.warnings if not _USUAL.search(warning)]
    more = len(messages) - _WARNINGS_KEPT
    return messages[:_WARNINGS_KEPT] + ([f"{more} more warnings stand in the log"] if more > 0 else [])
