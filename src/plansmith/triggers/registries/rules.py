"""Which rule an event falls under, and which rules none ever will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plansmith.config.service.patterns import is_covering, is_match, is_overlapping
from plansmith.config.service.triggers import Change, Registry, Rule, TriggersConfig
from plansmith.triggers.registries.event import OWN_TAGS, Event, RegistryKind

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
    """The first rule that an event falls under; None where none wants it."""
    return next((rule for rule in rules if _is_under(rule, event)), None)


@dataclass(frozen=True)
class RuleProblem:
    """What is the matter with a rule.

    Args:
        rule: its number, from 0.
        words: that name it.
        is_idle: it can never decide anything; one that is not decides only by its order.
    """

    rule: int
    words: str
    is_idle: bool


def rule_problems(config: TriggersConfig) -> list[RuleProblem]:
    """Which rules can never decide anything, and which decide only by their order."""
    found: list[RuleProblem] = []
    for number, rule in enumerate(config.rules):
        registry = config.registries[rule.registry]
        if wrong := _never(rule, registry.type) or _own(rule, registry):
            found.append(_idle(number, wrong))
        else:
            found += _beside_earlier(config.rules, number)
    return found


def _idle(number: int, why: str) -> RuleProblem:
    return RuleProblem(number, f"rules.{number} never matches: {why}", is_idle=True)


def _is_under(rule: Rule, event: Event) -> bool:
    return (
        (rule.registry, rule.when) == (event.registry, event.change)
        and is_match(event.model, rule.model)
        and is_match(event.value, rule.value)
    )


def _never(rule: Rule, kind: RegistryKind) -> str:
    """Why no event of its registry falls under a rule; empty where one may."""
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
    """Why only what plansmith writes back falls under a rule, which starts nothing; empty where something else may."""
    if rule.when == "tag" and is_covering(f"{OWN_TAGS}*", rule.value):
        return f"tags that begin with {OWN_TAGS} are what plansmith writes back, which starts no build"
    if rule.when == "alias" and rule.value == getattr(registry, "write_back_alias", ""):
        return f"{rule.value} is the alias that plansmith sets itself (write_back_alias), which starts no build"
    return ""


def _beside_earlier(rules: Sequence[Rule], number: int) -> Iterator[RuleProblem]:
    """What earlier rules leave to one: nothing, or not what both name.

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
                f"rules.{number} and rules.{place} both take {rule.when} {_both(earlier.value, rule.value)} of"
                f" {_both(earlier.model, rule.model)}: rules.{place} decides, as it comes first",
                is_idle=False,
            )


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} with {other}"
