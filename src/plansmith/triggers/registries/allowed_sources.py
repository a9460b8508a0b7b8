"""Sources that a registry names: who may write there chooses what a machine fetches, within what is allowed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plansmith.config.service.patterns import is_match
from plansmith.config.service.triggers import TriggersConfig
from plansmith.errors import UsageError
from plansmith.triggers.registries.event import Event


def is_allowed(source: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns takes a source, which leads up from none of what they name."""
    return ".." not in re.split("[:/]", source) and any(is_match(source, pattern) for pattern in patterns)


def require_allowed(config: TriggersConfig, event: Event) -> None:
    """See that an event's source is one that its registry may name.

    Raises:
        UsageError: it is not; the event waits in the inbox for whoever allows it.
    """
    registry = config.registries.get(event.registry)
    patterns = registry.allowed_sources if registry is not None else None
    if patterns is None or not event.source or is_allowed(event.source, patterns):
        return
    raise UsageError(
        f"{event.model} is at {event.source}, which `sources` of the registry {event.registry} does not allow",
        remedy=f"if it may be trusted, add it to triggers.registries.{event.registry}.sources, then retry this entry"
        " (plansmith triggers inbox retry)",
    )
