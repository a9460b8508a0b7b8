"""TensorRT-RTX's real parser and builder in place of TensorRT: they need neither a GPU nor a driver.

Its API is that of TensorRT 11.4, with the same names and integers; what it builds is a plan for RTX alone. It works in
a process of its own, as it may end its process.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from plansmith.compilers.trt.rtx import DISTRIBUTIONS, VERSION
from plansmith.records.engine import BuildRequest, BuildSpec
from plansmith.system.files import locked

from .builds import gpu

if TYPE_CHECKING:
    import pytest

WHEELS = tuple(f"{name}=={VERSION}" for name in DISTRIBUTIONS)
_CACHE = Path(sys.prefix) / "tensorrt-rtx"
_SECONDS = 240

Result = TypeVar("Result")


class LibraryCrash(Exception):
    """The library ended its process: by which signal."""


@dataclass(frozen=True)
class Outcome:
    """What a build ended with.

    Attributes:
        error: the class of the error, or the signal that ended the process, such as "signal 11".
        message: of the error.
        plan: the file, which may be there in spite of an error: looking at it takes a GPU.
        progress: what the build said that it does.
        layers: the library's own text on the layers, inputs and outputs of what it built.
    """

    error: str
    message: str
    plan: Path
    progress: tuple[str, ...] = ()
    layers: str = ""

    @property
    def is_built(self) -> bool:
        """Whether the library took the graph."""
        return self.plan.exists()


class Library:
    """A process that has the library as `tensorrt`; another one after each that the library ended."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What a function of a module returns in that process.

        Raises:
            LibraryCrash: a signal ended the process.
        """
        if self._process is None:
            self._connection, theirs = multiprocessing.Pipe()
            self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, str(fetched())))
            self._process.start()
            theirs.close()
        assert self._connection is not None
        self._connection.send((function, arguments))
        try:
            assert self._connection.poll(_SECONDS), f"no answer in {_SECONDS} s"
            result: Result = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            status = self._end()
            assert status < 0, f"the process ended with {status}"
            raise LibraryCrash(f"signal {-status}") from error
        return result

    def build(
        self, folder: Path, graph: bytes, *profiles: dict[str, Any], seconds: float = 120, stop_at: str = ""
    ) -> Outcome:
        """Have a graph built in an empty folder.

        Args:
            folder: takes the graph and the plan.
            graph: the ONNX file.
            profiles: that the plan is to have, in order.
            seconds: what the build may take.
            stop_at: a build that says so is told that nobody listens any more.
        """
        file, out = folder / "model.onnx", folder / "out"
        out.mkdir(parents=True)
        file.write_bytes(graph)
        named = [{"name": f"profile {number}", **profile} for number, profile in enumerate(profiles)]
        spec = BuildSpec.model_validate({"profiles": named})
        request = BuildRequest(
            graph=str(file), out=str(out), spec=spec, gpu=gpu(), trtexec="", timing_cache="", deadline_seconds=seconds
        )
        plan = out / "model.plan"
        try:
            error, message, progress, layers = self.call(_build, request, stop_at)
        except LibraryCrash as crash:
            return Outcome(str(crash), "", plan)
        return Outcome(error, message, plan, progress, layers)

    def operators(self, names: list[str]) -> set[str]:
        """Which of some operators its parser reads by itself."""
        return self.call(_operators, names)

    def attach(self, cache: Path) -> tuple[str, list[str]]:
        """What becomes of a timing cache, and the warnings, where a build begins with it."""
        return self.call(_attach, cache)

    def _end(self) -> int:
        """The exit status of the process, which ends with its connection if it has not."""
        process, self._process = self._process, None
        if process is None or self._connection is None:
            return 0
        self._connection.close()
        process.join(_SECONDS)
        return process.exitcode or 0


def fetched() -> Path:
    """The folder that has the library; fetched from the package index by the first who asks."""
    place = _CACHE / VERSION
    if place.is_dir():
        return place
    with locked(_CACHE / f"{VERSION}.lock"):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
                pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
                subprocess.run([*pip, *WHEELS], check=True, stdout=subprocess.DEVNULL)
                Path(folder).rename(place)
                Path(folder).mkdir()  # which goes with the block
    return place


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and those that it starts, find the library as if pip had installed it here."""
    monkeypatch.syspath_prepend(str(fetched()))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(fetched()), os.environ.get("PYTHONPATH", "")]))


def _serve(connection: Connection, folder: str) -> None:
    """Call what comes in, until nobody asks any more."""
    from plansmith.compilers.trt.rtx import stand_in

    sys.path.insert(0, folder)
    stand_in()
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        connection.send(function(*arguments))


def _build(request: BuildRequest, stop_at: str) -> tuple[str, str, tuple[str, ...], str]:
    """The class and the message of the error that a build ends with, what it said, and the layers of its plan."""
    from plansmith.compilers.trt.api.building import build
    from plansmith.compilers.trt.api.runtime import logger
    from plansmith.errors import PlansmithError

    messages, layers, failure = [], "", ("", "")

    def progress(message: str) -> None:
        nonlocal layers
        messages.append(message)
        layers = logger().heard.layers
        if stop_at and message.startswith(stop_at):
            raise BrokenPipeError("nobody listens")

    try:
        build(request, progress)
    except (PlansmithError, BrokenPipeError) as error:
        failure = type(error).__name__, str(error)
    return *failure, tuple(messages), layers


def _operators(names: list[str]) -> set[str]:
    import tensorrt

    from plansmith.compilers.trt.api.runtime import logger

    network = tensorrt.Builder(logger()).create_network(0)
    parser = tensorrt.OnnxParser(network, logger())
    return {name for name in names if parser.supports_operator(name)}


def _attach(cache: Path) -> tuple[str, list[str]]:
    import tensorrt

    from plansmith.compilers.trt.api.runtime import logger
    from plansmith.compilers.trt.api.timing_cache import Measured

    measured = Measured(cache)
    measured.attach(tensorrt.Builder(logger()).create_builder_config())
    return measured.status, measured.warnings
