"""Looking at a registry, so that what no delivery told is made up for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from plansmith.config.service.patterns import is_match
from plansmith.config.service.triggers import Rule
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.event import Event
from plansmith.triggers.registries.rules import rule_of

Tell = Callable[[str], None]
"""Says something to whoever runs the service, in a line."""


class Poller(ABC):
    """Looks at one registry.

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
        """What is there.

        Args:
            now: the Unix time.

        Raises:
            PlansmithError: the registry cannot be asked now.
        """

    def acknowledge(self) -> None:  # noqa: B027 - most registries need not know
        """All that the last look told is kept: the registry may forget it.

        Raises:
            PlansmithError: the registry cannot be told now, and will tell the same again.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of connections."""


class FaultNotices:
    """Says what is wrong with something when it begins, and again only when it has become something else.

    Args:
        tell: says it.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told: dict[str, str] = {}

    def wrong(self, about: str, words: str) -> None:
        """Something is wrong with what is called so."""
        if self._told.get(about) != words:
            self._told[about] = words
            self._tell(words)

    def well(self, about: str) -> None:
        """Nothing is, any more."""
        self._told.pop(about, None)


def polled(event: Event) -> Delivery:
    """The delivery of an event that nobody sent: the same each time it is seen."""
    return Delivery(id=digest_of(["polled", event.model_dump(exclude={"at", "wrong"})]), events=(event,))


def is_wanted(rules: Sequence[Rule], event: Event) -> bool:
    """Whether an event falls under a rule."""
    return rule_of(rules, event) is not None


def rules_for(rules: Sequence[Rule], registry: str, model: str | None = None) -> tuple[Rule, ...]:
    """The rules of a registry; those that take a model of this name, where one is given."""
    return tuple(rule for rule in rules if rule.registry == registry and (model is None or is_match(model, rule.model)))


def is_pattern(text: str) -> bool:
    """Whether a text stands for others, too."""
    return "*" in text or "?" in text
