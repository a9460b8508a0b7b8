"""Asks a registry whether what an event told is still so: before it is built, and before it is left unbuilt."""

from __future__ import annotations

from collections.abc import Mapping

from plansmith.config.service.triggers import HubRegistry, MlflowRegistry, SageMakerRegistry, TriggersConfig
from plansmith.sources.hub import newest_refs
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.mlflow_api import MlflowApi, stages_of
from plansmith.triggers.registries.sagemaker_packages import is_approved


class Confirmation:
    """Says whether an alias, a stage or a branch still stands for the version of an event, or a package is approved.

    What lies in a folder or under a prefix is built as it is there then, and whoever asked for something still wants
    it: of these nobody is asked, nor of what a registry told that the service's file has no more.

    Args:
        config: of the service's triggers.
        environment: of the process, with MLflow's credentials.
    """

    def __init__(self, config: TriggersConfig, environment: Mapping[str, str]) -> None:
        self._registries = config.registries
        self._environment = environment

    def __call__(self, event: Event) -> bool | None:
        """Whether it is so now; None where nobody can say.

        Raises:
            EnvironmentFault: the registry cannot be asked.
            SourceError: the hub has no such model any more.
            UsageError: SageMaker has no such package any more.
        """
        registry = self._registries.get(event.registry)
        if isinstance(registry, MlflowRegistry) and event.change in {"alias", "stage"}:
            api = MlflowApi(registry.tracking_uri, self._environment)
            found = stages_of(api.versions(event.model)) if event.change == "stage" else api.aliases(event.model) or {}
        elif isinstance(registry, HubRegistry):
            found = newest_refs(event.model)
        elif isinstance(registry, SageMakerRegistry):
            return is_approved(registry, event.version)
        else:
            return None
        return found.get(event.value) == event.version
