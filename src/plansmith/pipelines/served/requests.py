"""What every part of a pipeline is to Triton's Python backend: one call for all requests of an execution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

SETTINGS_FILE = "settings.json"


@dataclass(frozen=True)
class Refusal:
    """Why one request gets no answer; the others of its batch do."""

    words: str


class Step(Protocol):
    """What a part does with requests."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Make it ready: `settings` as they were written beside it, `folder` where its other files lie."""

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """One answer, or refusal, for each request: arrays by name, batch first. Texts are bytes in arrays of objects.

        Requests may have different batch sizes; each answer has as many rows as its request.
        """
        ...


class PartModel:
    """One instance of a part, as Triton's Python backend wants it; `step` is what it does."""

    step: type[Step]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the settings; args are Triton's words about the instance."""
        folder = Path(args["model_repository"], args["model_version"])
        # Triton's Python takes the locale's encoding for files, which in containers is ASCII.
        self._step = self.step(json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8")), folder)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests of an execution in one call of the step."""
        import triton_python_backend_utils as pb_utils

        feeds = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.words))
            if isinstance(answer, Refusal)
            else pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, np.ascontiguousarray(answer[name])) for name in request.requested_output_names()]
            )
            for request, answer in zip(requests, self._step.answer(feeds), strict=True)
        ]
