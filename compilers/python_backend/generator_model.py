"""Text generation model for Triton's Python backend: raw text in, text out, whole or streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from plansmith.compilers.python_backend.generate import Answer, Generator, Prompt
from plansmith.compilers.python_backend.generation_parameters import (
    TEXT_TENSOR,
    GenerationLimits,
    GenerationParameters,
    Unanswerable,
    read_generation_parameters,
)
from plansmith.compilers.python_backend.generator_loading import load_generating
from plansmith.compilers.python_backend.model_folder import REQUIREMENTS_FILE, SOURCE_FOLDER, read_settings
from plansmith.compilers.python_backend.run import guard_indices, set_threads
from plansmith.compilers.python_backend.run import place as put_on
from plansmith.errors import PlansmithError, first_line
from plansmith.records.model import BATCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOOK_SECONDS = 0.05
"""How often Triton is asked whether a request was cancelled, which goes through another process."""


@dataclass(frozen=True)
class LoadedGenerator:
    """A loaded text generator; `own`: the model's generation configuration, by option."""

    generator: Generator
    limits: GenerationLimits
    own: Mapping[str, Any]

    def ask(
        self, feed: Mapping[str, NDArray[np.generic]], parameters: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, NDArray[np.generic]]:
        """Return the answers to one request.

        Args:
            feed: its texts.
            parameters: as for `read_generation_parameters`.

        Raises:
            Unanswerable: one of its texts has none, or a parameter is wrong.
        """
        texts, wishes = texts_of(feed[TEXT_TENSOR.name]), read_generation_parameters(parameters, self.limits, self.own)
        answers_by_row = dict(self.generator.answers([Prompt(text, wishes) for text in texts]))
        refusals = [answer.refusal for answer in answers_by_row.values() if answer.refusal]
        if refusals:
            raise Unanswerable(refusals[0])
        return {TEXT_TENSOR.name: column([answers_by_row[row].text for row in range(len(texts))])}


def load_generator(folder: Path, device: str) -> LoadedGenerator:
    """Load the text generator of a version folder.

    Args:
        folder: that `model_folder.write_folder` wrote for a model with `generation`.
        device: by torch's name.

    Raises:
        SourceError: it cannot be loaded here.
        EngineError: it cannot be put on the device.
    """
    served = read_settings(folder)
    assert served.generation is not None
    model = load_generating(
        folder / SOURCE_FOLDER,
        served.generation,
        trust_remote_code=served.trust_remote_code,
        allow_pickle=False,
        task=served.task or "",
    )
    put_on(model.module, served.precision, device)
    guard_indices(model.module)
    generator = Generator(model.module, model.tokenizer, model.limits, served.axes[BATCH].max)
    return LoadedGenerator(generator, model.limits, model.module.generation_config.to_dict())


def texts_of(array: NDArray[np.generic]) -> list[str]:
    """Return the texts of an input.

    Raises:
        Unanswerable: one is not UTF-8.
    """
    try:
        return [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise Unanswerable(f"a text is not UTF-8: {error}") from error


def column(texts: Sequence[str]) -> NDArray[np.generic]:
    """Return texts as an output."""
    import numpy as np

    array = np.empty((len(texts), 1), object)
    array[:, 0] = [text.encode() for text in texts]
    return array


@dataclass
class _Request:
    """One request of an execution: its prompts and parameters, and its answers so far."""

    theirs: Any
    texts: list[str] = field(default_factory=list)
    wishes: GenerationParameters = field(default_factory=GenerationParameters)
    answers: dict[int, Answer] = field(default_factory=dict)
    _looked: float = 0.0
    _is_cancelled: bool = False

    def is_cancelled(self) -> bool:
        """Whether the request was cancelled, as of the last check; checks are rate limited."""
        if not self._is_cancelled and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._is_cancelled = bool(self.theirs.is_cancelled())
            self._looked = time.monotonic()
        return self._is_cancelled

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == len(self.texts)

    @property
    def refused(self) -> Answer | None:
        """The answer to the first text that was refused."""
        return next((self.answers[row] for row in sorted(self.answers) if self.answers[row].refusal), None)


class TritonPythonModel:
    """One model instance, with the interface of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model.

        Args:
            args: Triton's words about the instance: its kind ("CPU" or "GPU"), the id of its GPU, the repository.

        Raises:
            pb_utils.TritonModelException: it cannot be loaded.
        """
        import triton_python_backend_utils as pb_utils

        config = json.loads(args["model_config"])
        self._streams = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        on_gpu = args["model_instance_kind"] == "GPU"
        try:
            if not on_gpu:
                set_threads(config)
            self._model = load_generator(
                Path(args["model_repository"], args["model_version"]),
                f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
            )
        except PlansmithError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"{first_line(error)}: the Python of this server lacks what {REQUIREMENTS_FILE} beside model.py names"
            ) from error

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Execute requests; texts with equal generation parameters are generated in one batch.

        A decoupled model sends each answer as soon as it is there, and so gives none back.
        """
        if not self._streams:
            responses: list[Any] = [None] * len(requests)
            self._answer(requests, responses.__setitem__, None)
            return responses
        senders = [request.get_response_sender() for request in requests]
        self._answer(requests, lambda place, response: _end(senders[place], response), senders)
        return None

    def _answer(self, theirs: Sequence[Any], finish: Callable[[int, Any], None], senders: Sequence[Any] | None) -> None:
        """Read all requests, generate, and finish each with its last response, None where all was sent."""
        requests, prompts, owners = [_Request(item) for item in theirs], [], []
        for place, request in enumerate(requests):
            try:
                self._read(request)
            except Unanswerable as refusal:
                finish(place, _error(str(refusal)))
                continue
            tell = _teller(senders[place]) if senders is not None and request.wishes.stream else None
            for row, text in enumerate(request.texts):
                prompts.append(Prompt(text, request.wishes, tell, request.is_cancelled))
                owners.append((place, row))
        for number, answer in self._model.generator.answers(prompts):
            place, row = owners[number]
            requests[place].answers[row] = answer
            if requests[place].is_complete:
                finish(place, _last_response(requests[place]))

    def _read(self, request: _Request) -> None:
        """Read the texts and parameters of a request; raises Unanswerable."""
        tensors = {tensor.name(): tensor for tensor in request.theirs.inputs()}
        request.texts = texts_of(tensors[TEXT_TENSOR.name].as_numpy())
        parameters = json.loads(request.theirs.parameters() or "{}")
        request.wishes = read_generation_parameters(parameters, self._model.limits, self._model.own)
        if not request.wishes.stream:
            return
        if not self._streams:
            raise Unanswerable("parameter stream: this model answers once; compile it with pipeline: {stream: true}")
        if len(request.texts) > 1:
            raise Unanswerable(f"parameter stream: one text is streamed in a request, and not {len(request.texts)}")


def _response(texts: Sequence[str]) -> Any:
    import triton_python_backend_utils as pb_utils

    return pb_utils.InferenceResponse([pb_utils.Tensor(TEXT_TENSOR.name, column(texts))])


def _error(message: str, *, is_cancelled: bool = False) -> Any:
    import triton_python_backend_utils as pb_utils

    kind = pb_utils.TritonError.CANCELLED if is_cancelled else pb_utils.TritonError.INVALID_ARG
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, kind))


def _last_response(request: _Request) -> Any:
    """The whole answer, or the rest of a streamed one; None where nothing is left."""
    refused = request.refused
    if refused is not None:
        return _error(refused.refusal, is_cancelled=refused.is_cancelled)
    if request.wishes.stream:
        rest = request.answers[0].remainder
        return _response([rest]) if rest else None
    return _response([request.answers[row].text for row in range(len(request.texts))])


def _teller(sender: Any) -> Callable[[str], None]:
    return lambda piece: sender.send(_response([piece]))


def _end(sender: Any, response: Any) -> None:
    """Send the final flag, with the last response if there is one."""
    import triton_python_backend_utils as pb_utils

    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    if response is None:
        sender.send(flags=final)
    else:
        sender.send(response, flags=final)
