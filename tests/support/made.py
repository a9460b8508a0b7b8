"""What a compile made of a model, as far as a test looks."""

from __future__ import annotations

from typing import Any

from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.context import ModelContext
from plansmith.steps.model_steps import MODEL_STEPS
from plansmith.steps.runner import StepResult
from plansmith.steps.walk import walk

_STEPS = {
    "source": "fetch",
    "onnx": "export",
    "data": "sample",
    "lowered": "lower",
    "engine": "compile",
    "validation": "validate",
    "pipeline": "join",
}


def made_model(**results: StepResult[Any] | None) -> CompiledModel:
    """With these results."""
    return CompiledModel({_STEPS[name]: result for name, result in results.items() if result is not None})


def fetched(context: ModelContext) -> CompiledModel:
    """What the first step makes of a model."""
    return walk(MODEL_STEPS[:1], context, CompiledModel()).state
