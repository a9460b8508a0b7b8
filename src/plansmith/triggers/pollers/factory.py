"""Poller factory for the registries of a service."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from plansmith.config.service_triggers import (
    FolderRegistry,
    HookRegistry,
    HubRegistry,
    MlflowRegistry,
    S3Registry,
    SageMakerRegistry,
    TriggersConfig,
)
from plansmith.system.digest import Digester
from plansmith.triggers.pollers.folder import FolderPoller
from plansmith.triggers.pollers.hub import HubPoller
from plansmith.triggers.pollers.mlflow import MlflowPoller
from plansmith.triggers.pollers.poller import Poller, Tell
from plansmith.triggers.pollers.s3 import S3Poller
from plansmith.triggers.pollers.sagemaker import SageMakerPoller


def pollers_of(
    config: TriggersConfig,
    directory: Path,
    tell: Callable[[str, str], None],
    *,
    only: str = "",
    listing_only: bool = False,
) -> dict[str, Poller]:
    """Return a poller for each registry that can be polled, by name; webhooks cannot.

    Args:
        config: of the service's triggers.
        directory: of the service, which folders are relative to.
        tell: says something of a registry: its name, and a line.
        only: the name of the one registry that is meant; empty for all.
        listing_only: no message is taken out of a queue: what is read there others do not see for a while.
    """
    pollers: dict[str, Poller] = {}
    for name in (only,) if only else config.registries:
        poller = _poller(name, config, directory, _telling(tell, name), listing_only=listing_only)
        if poller is not None:
            pollers[name] = poller
    return pollers


def _telling(tell: Callable[[str, str], None], name: str) -> Tell:
    return lambda message: tell(name, message)


def _poller(name: str, config: TriggersConfig, directory: Path, tell: Tell, *, listing_only: bool) -> Poller | None:
    rules = config.rules
    match registry := config.registries[name]:
        case FolderRegistry():
            cache = directory / "artifacts" / "cache"
            digester = Digester(cache / "digests.sqlite", read_only=not cache.is_dir())
            return FolderPoller(name, registry, directory / registry.path, rules, digester=digester, tell=tell)
        case MlflowRegistry():
            return MlflowPoller(name, registry, rules, environment=os.environ, tell=tell)
        case HubRegistry():
            return HubPoller(name, registry, rules, tell=tell)
        case S3Registry():
            return S3Poller(name, registry, rules, tell=tell, listing_only=listing_only)
        case SageMakerRegistry():
            return SageMakerPoller(name, registry, rules, tell=tell, listing_only=listing_only)
        case HookRegistry():
            return None
