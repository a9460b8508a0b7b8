"""The libraries that registries are asked with: what is missing is said at the start, and not found out by waiting."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from plansmith.config.service.triggers import Registry, TriggersConfig
from plansmith.errors import EnvironmentFault

_ASKED_WITH = {
    "hub": ("huggingface_hub", "triggers"),
    "s3": ("boto3", "s3"),
    "sagemaker": ("boto3", "s3"),
}
"""By type: the library, and the extra that brings it."""


def require_libraries(registries: Mapping[str, Registry]) -> None:
    """See that these registries can be asked.

    Raises:
        EnvironmentFault: a library is missing.
    """
    for name, registry in registries.items():
        library, extra = _ASKED_WITH.get(registry.type, ("", ""))
        if library and find_spec(library) is None:
            raise EnvironmentFault(
                f"{library} is not installed, and {name} (type {registry.type}) cannot be asked without it",
                remedy=f"pip install 'plansmith[{extra}]'",
            )


def registries_of_workers(config: TriggersConfig) -> dict[str, Registry]:
    """The registries that are asked before a build whether what was told is still so, or told what came of it."""
    return {name: one for name, one in config.registries.items() if one.type in {"hub", "sagemaker"}}
