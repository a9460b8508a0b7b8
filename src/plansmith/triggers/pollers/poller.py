"""Poller base: reads a registry to make up for missed deliveries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from plansmith.config.service_triggers import Rule, is_match
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import Delivery, Event
from plansmith.triggers.registries.rules import rule_of

Tell = Callable[[str], None]
"""Says something to whoever runs the service, in a line."""


class Poller(ABC):
    """Poller of one registry.

    A look tells of what is there, and not of what is new: ids of deliveries are made of content, and whoever keeps them
    knows what was told last. What no rule wants is not told.

    Attributes:
        pause_seconds: how long to wait between two looks.
        most_polls: how many looks it takes at most to see all that is there now.
        has_more: the last look was not enough to see all that is there.
        cautions: what it cannot look at, in words, known from the start.
    """

    pause_seconds: float = 300.0
    most_polls = 1
    has_more = False
    cautions: tuple[str, ...] = ()

    @abstractmethod
    def poll(self, now: float) -> list[Delivery]:
        """Return the registry's current state as deliveries.

        Args:
            now: the Unix time.

        Raises:
            PlansmithError: the registry cannot be asked now.
        """

    def acknowledge(self) -> None:  # noqa: B027 - most registries need not know
        """Acknowledge the last poll: its deliveries are stored, so the registry may delete them.

        Raises:
            PlansmithError: the registry cannot be told now, and will tell the same again.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close the connections."""


class FaultNotices:
    """Fault notices: reports a fault when it starts, and again only when it changes.

    Args:
        tell: says it.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._messages: dict[str, str] = {}

    def wrong(self, about: str, message: str) -> None:
        """Report a fault of a subject."""
        if self._messages.get(about) != message:
            self._messages[about] = message
            self._tell(message)

    def well(self, about: str) -> None:
        """Clear the fault of a subject."""
        self._messages.pop(about, None)


def polled(event: Event) -> Delivery:
    """Return the delivery of a polled event, with the same idempotency key each time."""
    return Delivery(id=digest_of(["polled", event.model_dump(exclude={"at", "wrong"})]), events=(event,))


def is_wanted(rules: Sequence[Rule], event: Event) -> bool:
    """Whether an event matches a rule."""
    return rule_of(rules, event) is not None


def rules_for(rules: Sequence[Rule], registry: str, model: str | None = None) -> tuple[Rule, ...]:
    """Return the rules of a registry; if a model is given, only those that match its name."""
    return tuple(rule for rule in rules if rule.registry == registry and (model is None or is_match(model, rule.model)))


def is_pattern(text: str) -> bool:
    """Whether a text is a wildcard pattern."""
    return "*" in text or "?" in text
