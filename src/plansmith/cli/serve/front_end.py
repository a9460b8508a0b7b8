"""SageMaker's front end of Triton, started as its containers start it, by the variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plansmith.errors import RepositoryError

if TYPE_CHECKING:
    from plansmith.sagemaker.start_script import Start
    from plansmith.triton.repository.repository import ModelRepository


def is_multi_model() -> bool:
    """Whether the environment asks for a multi-model endpoint."""
    from plansmith.sagemaker.start_script import MULTI_MODEL

    return os.environ.get(MULTI_MODEL) == "true"


def front_end_start(repository: ModelRepository, models: Sequence[str]) -> Start:
    """How a container starts Triton on a repository; with no model for a multi-model endpoint.

    Args:
        repository: the repository.
        models: the default model, where it was typed.

    Raises:
        RepositoryError: the start script would end with an error, which is quoted; or no model is the default.
        UsageError: a variable has a value that the script refuses.
    """
    from plansmith.sagemaker.start_script import (
        ADDITIONAL_ARGUMENTS,
        DEFAULT_MODEL,
        default_model,
        multi_model_start,
        single_model_start,
    )
    from plansmith.triton.repository.ensembles import with_members
    from plansmith.triton.server.needs import server_arguments, shown_manifests

    environment = {name: value for name, value in os.environ.items() if name.startswith("SAGEMAKER_")}
    if is_multi_model():
        return multi_model_start(environment)
    served = repository.served_models()
    if models:
        environment[DEFAULT_MODEL] = models[0]
    elif len(served) == 1 and not environment.get(DEFAULT_MODEL):
        environment[DEFAULT_MODEL] = served[0]
    if not environment.get(DEFAULT_MODEL):
        raise RepositoryError(
            f"there are {len(served)} models, and an endpoint serves one: {', '.join(served)}",
            remedy=f"plansmith serve --sagemaker MODEL; or set {DEFAULT_MODEL}",
        )
    model = default_model(repository.root, environment)
    loads = [f"--load-model={name}" for name in with_members(repository.root, [model]) if name != model]
    needed = " ".join([*server_arguments(shown_manifests(repository, [model])), *loads])
    return single_model_start(repository.root, {ADDITIONAL_ARGUMENTS: needed} | environment)
