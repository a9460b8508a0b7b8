"""Tells versions of an MLflow server what came of their builds: as tags, and by an alias where one is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plansmith.config.service.triggers import MlflowRegistry
from plansmith.errors import UsageError
from plansmith.triggers.registries.mlflow_api import MlflowApi
from plansmith.triggers.write_back.verdicts import Form, VersionReport

FORM = Form(longest_name=250, longest_value=5000)
"""What every store behind an MLflow server takes."""


class MlflowWriter:
    """Writes to an MLflow server.

    Args:
        config: of the registry.
        environment: of the process, with MLflow's credentials.
    """

    def __init__(self, config: MlflowRegistry, environment: Mapping[str, str]) -> None:
        self._alias = config.write_back_alias
        self._api = MlflowApi(config.tracking_uri, environment)

    def write(self, telling: VersionReport, still_ours: Callable[[], bool]) -> bool:
        """As `Writer.write`. What is there already is not set again: each change is a delivery of its own."""
        model, version = telling.event.model, telling.event.version
        there = self._api.tags(model, version)
        if there is None:
            raise self._absent(telling)
        for key, value in FORM.texts(telling).items():
            if there.get(key) == value:
                continue
            if not still_ours():
                return False
            if not self._api.set_tag(model, version, key, value):
                raise self._absent(telling)
        if not self._alias or telling.verdict != "published" or not telling.is_last:
            return True
        if (self._api.aliases(model) or {}).get(self._alias) == version:
            return True
        if not still_ours():
            return False
        if not self._api.set_alias(model, version, self._alias):
            raise self._absent(telling)
        return True

    def _absent(self, telling: VersionReport) -> UsageError:
        return UsageError(
            f"there is no version {telling.event.version} of {telling.event.model} at {self._api.address} any more",
            remedy="it was deleted, or tracking_uri names another server",
        )
