"""Delivery parsing for registries of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plansmith.config.service_triggers import HookRegistry, HubRegistry, MlflowRegistry, Registry
from plansmith.triggers.registries import huggingface, mlflow, webhook
from plansmith.triggers.registries.delivery import Delivery, Ignored

DeliveringRegistry = MlflowRegistry | HubRegistry | HookRegistry
"""Those that send requests by themselves; the others are looked at."""


def delivering(registries: Mapping[str, Registry]) -> dict[str, DeliveringRegistry]:
    """Return the registries that send requests, by name."""
    return {name: registry for name, registry in registries.items() if isinstance(registry, DeliveringRegistry)}


def read_delivery(
    config: DeliveringRegistry,
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,
) -> Delivery | Ignored:
    """Parse a registry's request; arguments as for each registry's own function.

    Raises:
        RequestRejected: nothing may follow from it.
    """
    match config:
        case MlflowRegistry():
            return mlflow.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
        case HubRegistry():
            return huggingface.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
        case HookRegistry():
            return webhook.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
