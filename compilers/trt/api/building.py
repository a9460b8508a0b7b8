"""A plan built by TensorRT's Python API, through Polygraphy's loaders."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.api.builder_config import config_for
from plansmith.compilers.trt.api.inspect import inspect
from plansmith.compilers.trt.api.logger import LogCapture, listen
from plansmith.compilers.trt.api.network import profiles_of, read_network, set_formats
from plansmith.compilers.trt.api.plugins import load_plugins
from plansmith.compilers.trt.api.probe import gpu_needed, version
from plansmith.compilers.trt.api.progress import Watch, monitor_of
from plansmith.compilers.trt.api.timing_cache import Measured, write_whole
from plansmith.compilers.trt.failures import failure_of
from plansmith.compilers.trt.inspection.layers import read_layers
from plansmith.errors import EngineError
from plansmith.records.engine import BuildRequest, BuildSpec, Plan, PlanLayer
from plansmith.system.files import storage_errors, write_file

LAYERS_FILE = "layers.json"
_PLAN = "model.plan"
_WARNINGS_KEPT = 20
_SOURCE_LINE = re.compile(r"^\w+\.cpp:\d+: ")
# What the parser says of every graph that takes indices; that inputs have the dtype they had is checked elsewhere.
_USUAL = re.compile(r"Make sure input .* has Int64 binding")


def build(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Build one plan on the GPU that CUDA takes first in this process, which should do nothing else.

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
        timing_cache=measured.words,
        tensors=inspection.tensors,
        profile_bytes=inspection.profile_bytes,
        layers_file=LAYERS_FILE,
        log="build.log",
        reproduce="reproduce.sh",
        warnings=(*measured.warnings, *warnings_of(heard)),
    )


def _write_plan(request: BuildRequest, watch: Watch, measured: Measured) -> None:
    """The build itself; what it holds in memory is gone when it returns, and before the plan is opened."""
    kept = []

    def finish(config: Any) -> None:
        measured.attach(config)
        kept.append(config)

    try:
        write_whole(serialized_plan(Path(request.graph), request.spec, watch, finish), Path(request.out, _PLAN))
    finally:
        # A build that is late leaves what it measured, so that the next one need not measure it again.
        if kept and (watch.is_late or Path(request.out, _PLAN).exists()):
            measured.save(kept[0])


def serialized_plan(graph: Path, spec: BuildSpec, watch: Watch, finish: Callable[[Any], None]) -> Any:
    """The bytes of a plan (`tensorrt.IHostMemory`).

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
def explained(what: str, watch: Watch, heard: LogCapture) -> Iterator[None]:
    """Why there is no plan: TensorRT and Polygraphy say only that there is none; the reason stands in the log.

    Args:
        what: is being done, such as "building a plan of model.onnx".
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
        said = heard.text if heard.errors else f"{heard.text}\n[E] {error}"
        raise failure_of(said, what=what) from error


def write_layers(layers: Sequence[PlanLayer], path: Path) -> None:
    """Write all that is told of layers, as JSON.

    Raises:
        RepositoryError: the disk is full.
    """
    with storage_errors(path.parent):
        write_file(path, json.dumps([layer.model_dump(mode="json") for layer in layers]), replace=True)


def warnings_of(heard: LogCapture) -> list[str]:
    """TensorRT's own, each once; only so many, as some graphs have one for each of their weights."""
    said = [_SOURCE_LINE.sub("", warning) for warning in heard.warnings if not _USUAL.search(warning)]
    more = len(said) - _WARNINGS_KEPT
    return said[:_WARNINGS_KEPT] + ([f"{more} more warnings stand in the log"] if more > 0 else [])
