"""Rule matching: which rule applies to an event, and which rules can never apply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plansmith.config.service_triggers import (
    Change,
    Registry,
    Rule,
    TriggersConfig,
    is_covering,
    is_match,
    is_overlapping,
)
from plansmith.errors import UsageError
from plansmith.triggers.registries.delivery import OWN_TAGS, Event, RegistryKind

_TOLD: dict[RegistryKind, tuple[Change, ...]] = {
    "mlflow": ("alias", "stage", "tag", "created"),
    "hub": ("branch",),
    "sagemaker": ("approved",),
    "s3": ("ready",),
    "folder": ("ready",),
    "hook": ("asked",),
}
# Patterns of the values that a change comes with, and what one looks like; nothing is said of the others.
_VALUES: dict[Change, tuple[tuple[str, ...], str]] = {
    "alias": (("?*",), "such as champion"),
    "stage": (("?*",), "such as Production"),
    "tag": (("?*=*",), "KEY=VALUE, such as compile=requested"),
    "created": (("",), "nothing: leave `value` out"),
    "branch": (("refs/heads/?*", "refs/tags/?*"), "such as refs/heads/main or refs/tags/v1"),
    "asked": (("",), "nothing: leave `value` out"),
}


def rule_of(rules: Sequence[Rule], event: Event) -> Rule | None:
    """Return the first rule that matches an event; None if none does."""
    return next((rule for rule in rules if _is_under(rule, event)), None)


@dataclass(frozen=True)
class RuleProblem:
    """A problem with a rule.

    Args:
        rule: its number, from 0.
        message: that name it.
        is_idle: it can never decide anything; one that is not decides only by its order.
    """

    rule: int
    message: str
    is_idle: bool


def rule_problems(config: TriggersConfig) -> list[RuleProblem]:
    """Return the rules that can never match, and those that match only because of their order."""
    problems: list[RuleProblem] = []
    for number, rule in enumerate(config.rules):
        registry = config.registries[rule.registry]
        if wrong := _never(rule, registry.type) or _own(rule, registry):
            problems.append(_idle(number, wrong))
        else:
            problems += _beside_earlier(config.rules, number)
    return problems


def _idle(number: int, why: str) -> RuleProblem:
    return RuleProblem(number, f"rules.{number} never matches: {why}", is_idle=True)


def _is_under(rule: Rule, event: Event) -> bool:
    return (
        (rule.registry, rule.when) == (event.registry, event.change)
        and is_match(event.model, rule.model)
        and is_match(event.value, rule.value)
    )


def _never(rule: Rule, kind: RegistryKind) -> str:
    """Why no event of the registry can match a rule; empty where one can."""
    if rule.when not in _TOLD[kind]:
        return f"{rule.registry} is of type {kind}, which tells of {', '.join(_TOLD[kind])} and never of {rule.when}"
    if not rule.model:
        return "no model has an empty name"
    if rule.when in _VALUES:
        patterns, example = _VALUES[rule.when]
        if not any(is_overlapping(rule.value, pattern) for pattern in patterns):
            return f"the value of {rule.when} is never {rule.value!r}, but {example}"
    return ""


def _own(rule: Rule, registry: Registry) -> str:
    """Why a rule matches only what plansmith writes back, which starts no build.

    Empty where it can match other events.
    """
    if rule.when == "tag" and is_covering(f"{OWN_TAGS}*", rule.value):
        return f"tags that begin with {OWN_TAGS} are what plansmith writes back, which starts no build"
    if rule.when == "alias" and rule.value == getattr(registry, "write_back_alias", ""):
        return f"{rule.value} is the alias that plansmith sets itself (write_back_alias), which starts no build"
    return ""


def _beside_earlier(rules: Sequence[Rule], number: int) -> Iterator[RuleProblem]:
    """Yield the problems of a rule shadowed by earlier rules: it matches nothing, or not what both name.

    An exception before a rule for all is what the order is for, and nothing is said of it.
    """
    rule = rules[number]
    for place, earlier in enumerate(rules[:number]):
        if (earlier.registry, earlier.when) != (rule.registry, rule.when):
            continue
        if is_covering(earlier.model, rule.model) and is_covering(earlier.value, rule.value):
            yield _idle(number, f"rules.{place} comes first and takes all that it would")
            return
        if is_covering(rule.model, earlier.model) and is_covering(rule.value, earlier.value):
            continue
        if is_overlapping(earlier.model, rule.model) and is_overlapping(earlier.value, rule.value):
            yield RuleProblem(
                number,
                f"rules.{number} and rules.{place} both take {rule.when} {_join_names(earlier.value, rule.value)} of"
                f" {_join_names(earlier.model, rule.model)}: rules.{place} decides, as it comes first",
                is_idle=False,
            )


def _join_names(first: str, second: str) -> str:
    return first if first == second else f"{first} with {second}"


def is_allowed(source: str, patterns: Sequence[str]) -> bool:
    """Whether a source matches one of the patterns, without path segments that lead out of it."""
    return ".." not in re.split("[:/]", source) and any(is_match(source, pattern) for pattern in patterns)


def require_allowed(config: TriggersConfig, event: Event) -> None:
    """Require that an event's source is one that its registry may name.

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
