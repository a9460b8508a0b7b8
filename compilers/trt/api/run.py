"""Plans run on the GPU, to be judged: what they answer, how long each layer and the whole take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from plansmith.compilers.trt.api import layouts
from plansmith.compilers.trt.api.inspect import DTYPES
from plansmith.compilers.trt.api.load import engine_of, io_names
from plansmith.compilers.trt.api.logger import LogCapture, listen
from plansmith.errors import EngineError, first_line

Feed = Mapping[str, npt.NDArray[Any]]

# Formats that Polygraphy's runner lays out itself, or takes as the array in its own order.
_POLYGRAPHYS = {"LINEAR", "CHW16"}


@contextmanager
def open_plan(plan: Path, *, plugins: Iterable[str] = (), version_compatible: bool = False) -> Iterator[Runner]:
    """A plan that can be run; the GPU's memory is free again afterwards.

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
    """Runs a plan in any of its profiles (by number, from 0), through Polygraphy's `TrtRunner`.

    All of its methods raise `EngineError` where the plan does not take an input, by name, type or shape, or fails.

    Args:
        engine: the `tensorrt.ICudaEngine`.
        name: the plan, as errors call it.
    """

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine
        self._name = name
        self._asked = ExitStack()
        self._asking: tuple[int, Any] | None = None
        self._others = ExitStack()

    def close(self) -> None:
        """Give the GPU's memory back; what `runner_for` gave must not be called any more."""
        self._asked.close()
        self._others.close()

    def ask(self, feed: Feed, profile: int) -> dict[str, npt.NDArray[Any]]:
        """All outputs by name, in their own order of dimensions, whatever their format."""
        self._require(profile)
        with self._explained():
            if self._asking is None or self._asking[0] != profile:
                self._asked.close()
                self._asking = None
                self._asking = (profile, self._asked.enter_context(self._started(profile)))
            runner = self._asking[1]
            outputs = runner.infer(self._given(runner, feed, profile), check_inputs=False)
            return {name: self._taken(name, output, profile) for name, output in outputs.items()}

    def layer_times(self, feed: Feed, profile: int, repeats: int) -> dict[str, float]:
        """Milliseconds by layer: the median of so many runs, after one that is not counted.

        TensorRT waits for each layer to time it, so that together they take longer than the plan does.
        """
        self._require(profile)
        times: list[dict[str, float]] = []
        profiler = _profiler(times)
        with self._explained(), self._started(profile) as runner:
            given = self._given(runner, feed, profile)
            runner.infer(given, check_inputs=False)
            runner.context.profiler = profiler
            for _ in range(repeats):
                times.append({})
                runner.infer(given, check_inputs=False)
        names = dict.fromkeys(name for run in times for name in run)
        return {name: median(run.get(name, 0.0) for run in times) for name in names}

    def runner_for(self, feed: Feed, profile: int) -> Callable[[], None]:
        """What runs the plan once and waits for its end; inputs and outputs stay where they are on the GPU."""
        self._require(profile)
        with self._explained():
            runner = self._others.enter_context(self._started(profile))
            given = self._given(runner, feed, profile)
            # Polygraphy copies the inputs to the GPU and tells TensorRT all addresses, which stay the same.
            runner.infer(given, check_inputs=False)

        def run(_kept: object = given) -> None:  # inputs that hold a shape stay in the host's memory
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
        wanted = {name: DTYPES[self._engine.get_tensor_dtype(name).name] for name in names}
        found = {name: array.dtype.name for name, array in feed.items()}
        if wanted != found:
            raise EngineError(
                f"{self._name} takes {_listed(wanted)}, and was given {_listed(found)}",
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

    def _given(self, runner: Any, feed: Feed, profile: int) -> dict[str, Any]:
        """The inputs, of which Polygraphy checks only linear ones, as its runner takes them by the plan's formats."""
        from polygraphy.common import FormattedArray

        self._require_inputs(feed)
        given: dict[str, Any] = {}
        for name, array in feed.items():
            form = self._format(name, profile)
            if form in _POLYGRAPHYS:
                if form == "CHW16":
                    self._prepare_groups(runner, name, array)
                given[name] = array
            elif form == "HWC":
                given[name] = layouts.packed(array, form)
            else:
                given[name] = FormattedArray(layouts.packed(array, form), shape=array.shape)
        return given

    def _prepare_groups(self, runner: Any, name: str, array: npt.NDArray[Any]) -> None:
        """Tell TensorRT a shape, by which Polygraphy lays out groups of 16 channels; it does so for images only."""
        if array.ndim != 4 or not runner.context.set_input_shape(name, array.shape):
            raise EngineError(
                f"{self._name} does not take {name} as {array.shape} in the format CHW16",
                remedy="give it a shape within the profile; a tensor that is no batch of images cannot have this format"
                " in tensorrt: formats here",
            )

    def _taken(self, name: str, output: Any, profile: int) -> npt.NDArray[Any]:
        """An output in memory of its own: Polygraphy's is written over by the next run."""
        form = self._format(name, profile)
        if form == "HWC":
            return np.ascontiguousarray(np.moveaxis(output, -1, -3))
        if form in _POLYGRAPHYS:
            return np.array(output)
        dtype = np.dtype(DTYPES[self._engine.get_tensor_dtype(name).name])
        return layouts.unpacked(np.asarray(output.array).view(dtype), tuple(output.shape), form)


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
