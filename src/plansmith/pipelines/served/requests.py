"""Base of all pipeline parts for Triton's Python backend: one call for all requests of an execution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

SETTINGS_FILE = "settings.json"
SCRIPT_FILE = "script.py"


@dataclass(frozen=True)
class Refusal:
    """Refusal of one request; the others of its batch are answered."""

    message: str


class Step(Protocol):
    """Pipeline step: the work of a part on requests."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        """Set up the step: `settings` as stored with it, `folder` with its other files."""

    def answer(self, feeds: Sequence[Arrays]) -> Sequence[Arrays | Refusal]:
        """Return an answer or refusal per request: arrays by name, batch first. Texts are bytes in object arrays.

        Requests may have different batch sizes; each answer has as many rows as its request.
        """
        ...


class PartModel:
    """Part model: one instance of a part for Triton's Python backend; `step` does the work."""

    step: type[Step]

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the settings; args are Triton's description of the instance."""
        folder = Path(args["model_repository"], args["model_version"])
        # Triton's Python takes the locale's encoding for files, which in containers is ASCII.
        self._step = self.step(json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8")), folder)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests of an execution in one call of the step."""
        import numpy as np
        import triton_python_backend_utils as pb_utils

        feeds = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.message))
            if isinstance(answer, Refusal)
            else pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, np.ascontiguousarray(answer[name])) for name in request.requested_output_names()]
            )
            for request, answer in zip(requests, self._step.answer(feeds), strict=True)
        ]
