"""User scripts that answer requests: they call the models of their release and combine the results.

The script has a function `answer(inputs, models)`. `inputs` are the arrays of one request by name, batch first, texts
as bytes in arrays of objects, and nobody may write into them; `models` are callables by name that take tensors by
keyword, and the `parameters` of a request, and give arrays by name. It returns the arrays of the answer by name. It may
run in several threads at once.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .chains import Array, Arrays, Chains, Parameters, Refused, frozen, on_the_wire
from .requests import SCRIPT_FILE, SETTINGS_FILE

_FUNCTION = "answer"
_IMPORTED_FROM = "plansmith_served"
_TEXT = "string"
_THREADS = 16
_WORDLESS = "the script refuses the request"
_NUMBERS = itertools.count()


class WrongAnswer(Refused):
    """Wrong answer of a script: it failed, with the cause attached, or returned outputs that it does not declare."""


class BadScript(Exception):
    """Unusable script; the message says why."""


def load_script(file: Path) -> ModuleType:
    """Import a script without leaving bytecode next to it.

    Raises:
        BadScript: it cannot be imported, or has no function that can be called as scripts are.
    """
    # What a script imports its `Refused` from: in a version's folder it is a copy of this package, here it is this one.
    sys.modules.setdefault(_IMPORTED_FROM, sys.modules[__name__.rpartition(".")[0]])
    sys.modules.setdefault(f"{_IMPORTED_FROM}.scripting", sys.modules[__name__])
    module = ModuleType(f"plansmith_script_{next(_NUMBERS)}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)  # noqa: S102 - it is what is served
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise BadScript(f"{file.name} cannot be imported: {_error_line(error)}{_line_in(file, error)}") from error
    _require_function(module, file.name)
    return module


def _require_function(module: ModuleType, file: str) -> None:
    function = getattr(module, _FUNCTION, None)
    if not callable(function):
        raise BadScript(f"{file} has no function {_FUNCTION}(inputs, models)")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise BadScript(f"{file}: {_FUNCTION} has to return its answer, and so cannot be async or a generator")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise BadScript(f"{file}: {_FUNCTION} cannot be called as {_FUNCTION}(inputs, models): {error}") from error


def run_script(
    module: ModuleType, feed: Arrays, chains: Chains, outputs: Sequence[Mapping[str, Any]]
) -> dict[str, Array]:
    """Return a script's answer to one request.

    Args:
        module: from `load_script`.
        feed: the request.
        chains: what the script may ask.
        outputs: what its answer has to hold, each with `name`, `dtype` and `dims`, batch first; what it holds besides
            is left out.

    Raises:
        Refused: the script or a model refuses the request.
        WrongAnswer: the script failed, or answered with something else.
    """
    rows = len(next(iter(feed.values())))
    try:
        answer = getattr(module, _FUNCTION)({name: frozen(array) for name, array in feed.items()}, chains.of_request())
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        where = _line_in(Path(str(module.__file__)), error)
        raise WrongAnswer(f"the script failed: {_error_line(error)}{where}") from error
    if not isinstance(answer, Mapping):
        raise WrongAnswer(f"the script answered with a {type(answer).__name__}, and not with arrays by name")
    return {output["name"]: _checked(answer, output, rows) for output in outputs}


def _checked(answer: Mapping[str, Any], output: Mapping[str, Any], rows: int) -> Array:
    """Validate one array of a response and return it in the form sent to the client."""
    name, dtype, dims = output["name"], output["dtype"], output["dims"]
    if name not in answer:
        has = ", ".join(map(str, answer)) or "nothing"
        raise WrongAnswer(f"the script's answer has no {name!r}; it has {has}")
    try:
        array = on_the_wire(name, answer[name])
    except TypeError as error:
        raise WrongAnswer(f"the script's answer: {error}") from None
    actual = _TEXT if array.dtype.kind == "O" else array.dtype.name
    if actual != dtype:
        raise WrongAnswer(f"the script's answer: {name} is {actual}, and has to be {dtype}")
    sizes = [rows, *dims[1:]]
    if array.ndim != len(sizes) or any(
        isinstance(size, int) and size != own for size, own in zip(sizes, array.shape, strict=True)
    ):
        expected_shape = f"{list(dims)}, for a request of {rows} row{'s' * (rows != 1)}".replace("'", "")
        raise WrongAnswer(
            f"the script's answer: {name} has the shape {list(array.shape)}, and has to have {expected_shape}"
        )
    return np.ascontiguousarray(array, None if dtype == _TEXT else np.dtype(dtype))


def _error_line(error: BaseException) -> str:
    message = str(error).strip()
    return f"{type(error).__name__}: {message.splitlines()[0]}" if message else type(error).__name__


def _line_in(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return ""  # the error's own words tell it
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


class ScriptModel:
    """Script model: one instance of a script for Triton's Python backend.

    The requests of an execution are answered at once, in threads: while one waits for a model, another one runs, and
    the models can join what they are asked.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the settings and import the script; args are Triton's description of the instance."""
        folder = Path(args["model_repository"], args["model_version"])
        settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
        self._outputs = settings["outputs"]
        self._chains = Chains(settings["chains"], _ask_triton)
        self._module = load_script(folder / SCRIPT_FILE)
        self._threads = ThreadPoolExecutor(_THREADS)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests of an execution, each separately."""
        import triton_python_backend_utils as pb_utils

        feeds = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        answers = self._threads.map(self._answer, feeds) if len(feeds) > 1 else map(self._answer, feeds)
        responses = []
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Refused):
                for line in _trace(answer.__cause__):
                    pb_utils.Logger.log_error(line)
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer) or _WORDLESS)))
            else:
                tensors = [pb_utils.Tensor(name, answer[name]) for name in request.requested_output_names()]
                responses.append(pb_utils.InferenceResponse(tensors))
        return responses

    def finalize(self) -> None:
        """Release the threads."""
        self._threads.shutdown()

    def _answer(self, feed: Arrays) -> dict[str, Array] | Refused:
        try:
            return run_script(self._module, feed, self._chains, self._outputs)
        except Refused as refused:
            return refused


def _trace(error: BaseException | None) -> list[str]:
    """Format the traceback of a script error in separate lines, as a Triton log entry takes one line."""
    return [] if error is None else "".join(traceback.format_exception(error)).splitlines()


def _ask_triton(model: str, feed: Arrays, outputs: Sequence[str], parameters: Parameters) -> Arrays:
    """Call another model of the server.

    Raises:
        Refused: it does not; in its own words.
    """
    import triton_python_backend_utils as pb_utils

    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in feed.items()],
        # A model on a GPU would leave its outputs there, where NumPy does not reach.
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
        parameters=dict(parameters),
    )
    response = request.exec()
    if response.has_error():
        raise Refused(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
