"""What a compile made of a model, as far as a test looks."""

from __future__ import annotations

from typing import Any

from plansmith.steps.artifacts import MadeModel
from plansmith.steps.runner import Finished


def made_model(**steps: Finished[Any] | None) -> MadeModel:
    """With these steps; whoever asks for another gets None."""
    names = ("source", "onnx", "data", "lowered", "engine", "validation", "pipeline")
    return MadeModel(**{name: steps.get(name) for name in names})  # type: ignore[arg-type]
