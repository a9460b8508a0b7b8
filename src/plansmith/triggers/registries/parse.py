"""Deliveries of whichever registry sends some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plansmith.config.service.triggers import HookRegistry, HubRegistry, MlflowRegistry, Registry
from plansmith.triggers.registries import huggingface, mlflow, webhook
from plansmith.triggers.registries.delivery import Delivery, Ignored

DeliveringRegistry = MlflowRegistry | HubRegistry | HookRegistry
"""Those that send requests by themselves; the others are looked at."""


def delivering(registries: Mapping[str, Registry]) -> dict[str, DeliveringRegistry]:
    """The registries, by name, that send requests."""
    return {name: one for name, one in registries.items() if isinstance(one, DeliveringRegistry)}


def read_delivery(
    config: DeliveringRegistry,
    headers: Mapping[str, str],
    body: bytes,
    *,
    registry: str,
    secrets: Sequence[str],
    now: float,
) -> Delivery | Ignored:
    """What a request of a registry says; arguments as for each of them.

    Raises:
        Refused: nothing may follow from it.
    """
    match config:
        case MlflowRegistry():
            return mlflow.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
        case HubRegistry():
            return huggingface.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
        case HookRegistry():
            return webhook.read_delivery(config, headers, body, registry=registry, secrets=secrets, now=now)
