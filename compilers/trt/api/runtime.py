"""TensorRT runtime: availability, its log, its plugins, and deserialization of plans."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.failures import failure_of
from plansmith.compilers.trt.layers import TITLE
from plansmith.errors import EngineError, EnvironmentFault, first_line

# As trtexec marks them, so that one reader does for the logs of both builders.
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I"}

_BINDINGS = "tensorrt_bindings"
# What pybind11 says where the library's factory gave nothing: TensorRT's `Builder` and `Runtime` without a GPU or a
# driver that fits it. The reason stands in the log only.
_NOTHING_MADE = "factory function returned nullptr"
_REMEDY = "correct tensorrt: plugins, or build the library against this TensorRT"


@dataclass
class LogCapture:
    """Log capture: lines since its start, without timestamps, each with its severity letter.

    `layers`: the verbose message with the layers of what was built, empty where there was none.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    layers: str = ""

    @property
    def text(self) -> str:
        """All lines as a log."""
        return "\n".join(f"[{letter}] [TRT] {line}" for letter, line in self.lines)

    @property
    def errors(self) -> list[str]:
        """The errors, in order."""
        return [line for letter, line in self.lines if letter in {"F", "E"}]

    @property
    def warnings(self) -> list[str]:
        """The distinct warnings, in order."""
        return list(dict.fromkeys(line for letter, line in self.lines if letter == "W"))

    def forgive(self, begun: int) -> None:
        """Downgrade the messages from an index on to warnings, which do not end the build."""
        self.lines[begun:] = [("W", line) for _, line in self.lines[begun:]]


def listen() -> LogCapture:
    """Start a new log capture of this process's logger, replacing the previous one."""
    logger().heard = heard = LogCapture()
    return heard


@cache
def logger() -> Any:
    """Return this process's `tensorrt.ILogger`: TensorRT uses the first one it receives for all its objects.

    Verbose lines are left out, as they are by trtexec: hundreds of thousands tell of each tactic that was tried.
    """
    import tensorrt
    from polygraphy.backend.trt import util

    class Logger(tensorrt.ILogger):  # type: ignore[misc] # no types
        """Called by threads of TensorRT, which cannot take an exception."""

        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)
            self.heard = LogCapture()

        def log(self, severity: Any, msg: str) -> None:
            """Take one line."""
            letter = _LETTERS.get(severity.name)
            if letter is not None:
                self.heard.lines.append((letter, msg))
                _write(letter, msg)
            elif msg.startswith(TITLE):
                self.heard.layers = msg

    # Polygraphy's loaders make a logger of their own unless this one is there.
    util.TRT_LOGGER = instance = Logger()
    return instance


def _write(letter: str, line: str) -> None:
    """Write a line in one call, as several threads write; a failing log does not stop the build."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [{letter}] [TRT] {line}\n")
        sys.stderr.flush()


def version() -> str:
    """Return the full version of TensorRT's Python package, such as "10.16.1.11", after making it importable.

    Where the libraries are, as in Triton's image, and the package is not, its bindings alone will do
    (tensorrt-cu12-bindings, tensorrt-cu13-bindings): the package's module holds nothing but what is imported from them.

    Raises:
        EnvironmentFault: it is not there, or its libraries are not.
    """
    try:
        if _has_bindings_alone():
            sys.modules["tensorrt"] = importlib.import_module(_BINDINGS)
        import tensorrt
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: its libraries could not be fetched
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            raise EnvironmentFault(
                "TensorRT's Python package is not here",
                remedy=f"install the target's version: {sys.executable} -m pip install tensorrt==<version>; in Triton's"
                " image, which has the libraries, tensorrt-cu13-bindings==<version> (before 25.08: cu12)",
            ) from error
        raise EnvironmentFault(
            f"TensorRT's Python package does not load: {first_line(error)}",
            remedy="install TensorRT's libraries in the package's own version, or run in the target's image;"
            " plansmith doctor looks again",
        ) from error
    return str(tensorrt.__version__)


def _has_bindings_alone() -> bool:
    if "tensorrt" in sys.modules or importlib.util.find_spec("tensorrt") is not None:
        return False
    return importlib.util.find_spec(_BINDINGS) is not None


@contextmanager
def gpu_needed() -> Iterator[None]:
    """Explain the failure if TensorRT cannot create its first object.

    Raises:
        EnvironmentFault: there is no usable GPU or driver.
    """
    try:
        yield
    except TypeError as error:
        if _NOTHING_MADE not in str(error):
            raise
        raise EnvironmentFault(
            f"TensorRT {version()} finds no usable GPU or driver on this machine",
            remedy="look at nvidia-smi: a GPU must be there and visible (CUDA_VISIBLE_DEVICES), and its driver new"
            " enough for this TensorRT; plansmith doctor tells what is here",
        ) from error


def load_plugins(libraries: Iterable[str]) -> None:
    """Load plugin libraries into this process; their plugins register themselves.

    Triton's backend opens those of its option `plugins` in the same way, so that a library which only tells of its
    plugins when it is asked for them would not work there either.

    Raises:
        EngineError: one is missing or cannot be loaded.
    """
    for library in libraries:
        if not Path(library).is_file():
            raise EngineError(f"the plugin library {library} is not there", remedy=_REMEDY)
        try:
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise EngineError(
                f"the plugin library {library} cannot be loaded: {first_line(error)}", remedy=_REMEDY
            ) from error


def engine_of(plan: Path, *, plugins: Iterable[str], version_compatible: bool) -> Any:
    """Deserialize a plan to TensorRT's `ICudaEngine`. It is executable code: open only plans that you built.

    Args:
        plan: the file.
        plugins: libraries that it needs.
        version_compatible: it was built so; it may then bring code for the host, which runs with the rights of this
            process and which TensorRT refuses unless told.

    Raises:
        EngineError: TensorRT refuses it: another version, another GPU, damaged.
        EnvironmentFault: there is no TensorRT, or no usable GPU.
    """
    version()
    import tensorrt

    load_plugins(plugins)
    heard = listen()
    tensorrt.init_libnvinfer_plugins(logger(), "")
    with gpu_needed():
        runtime = tensorrt.Runtime(logger())
    if version_compatible:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise failure_of(heard.text, activity=f"loading {plan.name}")
    return engine


def io_names(engine: Any) -> list[str]:
    """Return the names of a plan's inputs and outputs, in its order."""
    return [str(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)]
