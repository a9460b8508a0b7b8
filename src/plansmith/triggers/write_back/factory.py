"""The writers of a service's registries."""

from __future__ import annotations

import os
from collections.abc import Mapping

from plansmith.config.service.triggers import MlflowRegistry, Registry, SageMakerRegistry
from plansmith.triggers.write_back.mlflow import MlflowWriter
from plansmith.triggers.write_back.sagemaker import SageMakerWriter
from plansmith.triggers.write_back.verdicts import Writer


def writers_of(registries: Mapping[str, Registry]) -> dict[str, Writer]:
    """A writer for each registry that is told what came of its builds, by name; credentials are the environment's."""
    found: dict[str, Writer] = {}
    for name, registry in registries.items():
        match registry:
            case MlflowRegistry(write_back=True):
                found[name] = MlflowWriter(registry, os.environ)
            case SageMakerRegistry(write_back=True):
                found[name] = SageMakerWriter(registry)
            case _:
                pass
    return found
