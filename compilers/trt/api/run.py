"""Plan runs on the GPU for evaluation: outputs, layer times and latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from plansmith.compilers.trt.api.runtime import LogCapture, engine_of, io_names, listen
from plansmith.errors import EngineError, first_line
from plansmith.records.engine import PlanTensor
from plansmith.records.model import Record

# TensorRT's names of data types by NumPy's (and ml_dtypes', which carries on where NumPy ends).
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "FP8": "float8_e4m3fn",
    "INT4": "int4",
    "FP4": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}

# Axis of the channels from the end, and how many of them lie together; 0 where all do, in their own number.
_GROUPED = {"CHW2": (3, 2), "CHW4": (3, 4), "CHW16": (3, 16), "CHW32": (3, 32), "CDHW32": (4, 32)}
_LAST = {"HWC": (3, 1), "HWC8": (3, 8), "HWC16": (3, 16), "DHWC": (4, 1), "DHWC8": (4, 8)}
Feed = Mapping[str, npt.NDArray[Any]]
# Formats that Polygraphy's runner lays out itself, or takes as the array in its own order.
_POLYGRAPHYS = {"LINEAR", "CHW16"}


class Inspection(Record):
    """Inspection of a plan; `layers`: JSON from its inspector; `profile_bytes`: device memory by profile."""

    tensors: tuple[PlanTensor, ...]
    layers: str
    profile_bytes: tuple[int, ...]


def inspect(plan: Path, *, plugins: Iterable[str] = (), version_compatible: bool = False) -> Inspection:
    """Load a plan and inspect it.

    Raises:
        EngineError: TensorRT refuses it.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    engine = engine_of(plan, plugins=plugins, version_compatible=version_compatible)
    import tensorrt

    inspector = engine.create_engine_inspector()
    return Inspection(
        tensors=tuple(_tensor(engine, name) for name in io_names(engine)),
        layers=inspector.get_engine_information(tensorrt.LayerInformationFormat.JSON),
        profile_bytes=tuple(
            engine.get_device_memory_size_for_profile_v2(index) for index in range(engine.num_optimization_profiles)
        ),
    )


def _tensor(engine: Any, name: str) -> PlanTensor:
    import tensorrt

    return PlanTensor(
        name=name,
        is_input=engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT,
        dtype=DTYPES[engine.get_tensor_dtype(name).name],
        dims=tuple(engine.get_tensor_shape(name)),
        format=engine.get_tensor_format_desc(name),
        is_shape=engine.is_shape_inference_io(name),
    )


def packed(array: npt.NDArray[Any], form: str) -> npt.NDArray[Any]:
    """Return an array in an I/O format (its name in `tensorrt.TensorFormat`), contiguous.

    Raises:
        EngineError: there is no such array, or the format is one of an accelerator that is not used.
    """
    if form == "LINEAR":
        return np.ascontiguousarray(array)
    axis, group = _channels(array.shape, form)
    filled = [(0, 0)] * array.ndim
    filled[axis] = (0, -array.shape[axis] % group)
    whole = np.pad(array, filled)
    if form in _LAST:
        return np.ascontiguousarray(np.moveaxis(whole, axis, -1))
    split = whole.reshape(*whole.shape[:axis], whole.shape[axis] // group, group, *whole.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def unpacked(flat: npt.NDArray[Any], shape: Sequence[int], form: str) -> npt.NDArray[Any]:
    """Return a copy of the array of a shape from its values in an I/O format, perhaps followed by padding.

    Raises:
        EngineError: as for `packed`.
    """
    if form == "LINEAR":
        return flat[: math.prod(shape)].reshape(shape).copy()
    axis, group = _channels(tuple(shape), form)
    groups = -(-shape[axis] // group)
    before, after = shape[:axis], shape[axis + 1 :]
    if form in _LAST:
        lying = (*before, *after, groups * group)
        whole = np.moveaxis(flat[: math.prod(lying)].reshape(lying), -1, axis)
    else:
        lying = (*before, groups, *after, group)
        split = np.moveaxis(flat[: math.prod(lying)].reshape(lying), -1, axis + 1)
        whole = split.reshape(*before, groups * group, *after)
    return np.take(whole, range(shape[axis]), axis=axis)


def _channels(shape: tuple[int, ...], form: str) -> tuple[int, int]:
    """The channel axis and the group size of a format."""
    from_end, group = (_GROUPED | _LAST).get(form, (0, 0))
    if not group or len(shape) < from_end:
        raise EngineError(
            f"an input or output of {len(shape)} dimensions in the format {form} cannot be filled or read here",
            remedy="leave it out of tensorrt: formats",
        )
    return len(shape) - from_end, group


@contextmanager
def open_plan(plan: Path, *, plugins: Iterable[str] = (), version_compatible: bool = False) -> Iterator[Runner]:
    """Open a plan to run it; frees the GPU memory afterwards.

    Raises:
        EngineError: TensorRT refuses the plan.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    engine = engine_of(plan, plugins=plugins, version_compatible=version_compatible)
    runner = Runner(engine, plan.name)
    try:
        yield runner
    finally:
        runner.close()


class Runner:
    """Plan runner: runs a plan with any profile (by index, from 0), through Polygraphy's `TrtRunner`.

    All of its methods raise `EngineError` where the plan does not take an input, by name, type or shape, or fails.

    Args:
        engine: the `tensorrt.ICudaEngine`.
        name: the plan, as errors call it.
    """

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine
        self._name = name
        self._stack = ExitStack()
        self._asking: tuple[int, Any] | None = None
        self._others = ExitStack()

    def close(self) -> None:
        """Free the GPU memory; callables from `runner_for` must not be called any more."""
        self._stack.close()
        self._others.close()

    def ask(self, feed: Feed, profile: int) -> dict[str, npt.NDArray[Any]]:
        """Run the plan and return all outputs by name, in their logical dimension order, whatever their format."""
        self._require(profile)
        with self._explained():
            if self._asking is None or self._asking[0] != profile:
                self._stack.close()
                self._asking = None
                self._asking = (profile, self._stack.enter_context(self._started(profile)))
            runner = self._asking[1]
            outputs = runner.infer(self._convert_inputs(runner, feed, profile), check_inputs=False)
            return {name: self._convert_output(name, output, profile) for name, output in outputs.items()}

    def layer_times(self, feed: Feed, profile: int, repeats: int) -> dict[str, float]:
        """Return milliseconds by layer: the median of so many runs after one warmup run.

        TensorRT waits for each layer to time it, so that together they take longer than the plan does.
        """
        self._require(profile)
        times: list[dict[str, float]] = []
        profiler = _profiler(times)
        with self._explained(), self._started(profile) as runner:
            inputs = self._convert_inputs(runner, feed, profile)
            runner.infer(inputs, check_inputs=False)
            runner.context.profiler = profiler
            for _ in range(repeats):
                times.append({})
                runner.infer(inputs, check_inputs=False)
        names = dict.fromkeys(name for run in times for name in run)
        return {name: median(run.get(name, 0.0) for run in times) for name in names}

    def runner_for(self, feed: Feed, profile: int) -> Callable[[], None]:
        """Return a callable that runs the plan once and waits; inputs and outputs stay on the GPU."""
        self._require(profile)
        with self._explained():
            runner = self._others.enter_context(self._started(profile))
            inputs = self._convert_inputs(runner, feed, profile)
            # Polygraphy copies the inputs to the GPU and tells TensorRT all addresses, which stay the same.
            runner.infer(inputs, check_inputs=False)

        def run(_kept: object = inputs) -> None:  # inputs that hold a shape stay in the host's memory
            if not runner.context.execute_async_v3(runner.stream.ptr):
                raise EngineError(f"{self._name} does not run any more", remedy="look at the log for TensorRT's reason")
            runner.stream.synchronize()

        return run

    @contextmanager
    def _started(self, profile: int) -> Iterator[Any]:
        from polygraphy.backend.trt import TrtRunner

        with TrtRunner(self._engine, optimization_profile=profile) as runner:
            try:
                yield runner
            finally:
                for output in runner.output_allocator.buffers.values():  # Polygraphy 0.53 never frees them
                    output.free()

    def _require(self, profile: int) -> None:
        last = self._engine.num_optimization_profiles - 1
        if not 0 <= profile <= last:
            raise EngineError(f"{self._name} has no profile {profile}", remedy=f"its profiles are 0 to {last}")

    def _require_inputs(self, feed: Feed) -> None:
        import tensorrt

        is_input = tensorrt.TensorIOMode.INPUT
        names = [name for name in io_names(self._engine) if self._engine.get_tensor_mode(name) == is_input]
        expected = {name: DTYPES[self._engine.get_tensor_dtype(name).name] for name in names}
        actual = {name: array.dtype.name for name, array in feed.items()}
        if expected != actual:
            raise EngineError(
                f"{self._name} takes {_listed(expected)}, and was given {_listed(actual)}",
                remedy="give each input under its own name and in its own type",
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from polygraphy.exception import PolygraphyException

        heard = listen()
        try:
            yield
        except PolygraphyException as error:
            raise self._failure(error, heard) from error

    def _failure(self, error: Exception, heard: LogCapture) -> EngineError:
        reasons = [first_line(error), *heard.errors]
        return EngineError(
            f"{self._name} does not run: {'; '.join(reasons)}",
            remedy="give every input a shape within the profile's smallest and largest; the log holds the whole story",
        )

    def _format(self, name: str, profile: int) -> str:
        return str(self._engine.get_tensor_format(name, profile).name)

    def _convert_inputs(self, runner: Any, feed: Feed, profile: int) -> dict[str, Any]:
        """Convert the inputs to the plan's formats, as Polygraphy's runner expects; it checks only linear ones."""
        from polygraphy.common import FormattedArray

        self._require_inputs(feed)
        inputs: dict[str, Any] = {}
        for name, array in feed.items():
            form = self._format(name, profile)
            if form in _POLYGRAPHYS:
                if form == "CHW16":
                    self._prepare_groups(runner, name, array)
                inputs[name] = array
            elif form == "HWC":
                inputs[name] = packed(array, form)
            else:
                inputs[name] = FormattedArray(packed(array, form), shape=array.shape)
        return inputs

    def _prepare_groups(self, runner: Any, name: str, array: npt.NDArray[Any]) -> None:
        """Set an input shape, from which Polygraphy pads channels to groups of 16; it supports that for images only."""
        if array.ndim != 4 or not runner.context.set_input_shape(name, array.shape):
            raise EngineError(
                f"{self._name} does not take {name} as {array.shape} in the format CHW16",
                remedy="give it a shape within the profile; a tensor that is no batch of images cannot have this format"
                " in tensorrt: formats here",
            )

    def _convert_output(self, name: str, output: Any, profile: int) -> npt.NDArray[Any]:
        """Copy an output to its own memory: the next run overwrites Polygraphy's buffer."""
        form = self._format(name, profile)
        if form == "HWC":
            return np.ascontiguousarray(np.moveaxis(output, -1, -3))
        if form in _POLYGRAPHYS:
            return np.array(output)
        dtype = np.dtype(DTYPES[self._engine.get_tensor_dtype(name).name])
        return unpacked(np.asarray(output.array).view(dtype), tuple(output.shape), form)


def _listed(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in sorted(inputs.items())) or "nothing"


def _profiler(times: list[dict[str, float]]) -> Any:
    """A `tensorrt.IProfiler` that adds to the last of the given runs."""
    import tensorrt

    class Profiler(tensorrt.IProfiler):  # type: ignore[misc] # no types
        """Called after each run, once per layer, and again where a layer ran several times."""

        def __init__(self) -> None:
            tensorrt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """A layer took so long."""
            times[-1][layer_name] = times[-1].get(layer_name, 0.0) + ms

    return Profiler()
