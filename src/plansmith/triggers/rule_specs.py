"""The spec files that rules name: which are none, and which stand for several models of registries at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from plansmith.config.service.triggers import Rule, TriggersConfig
from plansmith.errors import UsageError


def spec_file(rule: Rule) -> Path:
    """The spec file that a rule names; the process works in the directory of the service.

    Raises:
        UsageError: there is none.
    """
    path = Path(rule.spec)
    if path.is_dir():
        raise UsageError(
            f"{rule.spec} is a folder: a rule names one spec file, such as {_inside(rule.spec)}", remedy="mend the rule"
        )
    if not path.is_file():
        raise UsageError(
            f"there is no spec file {rule.spec} in {Path.cwd()}", remedy="mend the rule, or put the file there"
        )
    return path


def shared_specs(config: TriggersConfig) -> Iterator[str]:
    """Which spec files build the versions of several models of registries, as releases of one served model, in words.

    A spec is one served model for each target. That may be meant, such as of a model that moved to another registry.
    """
    rules: dict[str, list[tuple[int, Rule]]] = {}
    for number, rule in enumerate(config.rules):
        if not _keeps_own_source(rule, config):
            rules.setdefault(os.path.normpath(rule.spec), []).append((number, rule))
    for named in rules.values():
        shared = [
            (number, rule)
            for number, rule in named
            if _is_pattern(rule) or any(_may_be_mixed(rule, other) for _, other in named)
        ]
        if shared:
            places = _listed([f"rules.{number}" for number, _ in shared])
            models = _listed(list(dict.fromkeys(_models(rule) for _, rule in shared)))
            yield (
                f"{places}: versions of {models} become releases of one served model, that of {shared[0][1].spec};"
                " give each model a rule and a spec of its own, unless that is meant"
            )


def _keeps_own_source(rule: Rule, config: TriggersConfig) -> bool:
    """Whether the spec's own source is built, whatever model is named: that of a hook which may name no other."""
    registry = config.registries[rule.registry]
    return registry.type == "hook" and not registry.sources


def _may_be_mixed(one: Rule, other: Rule) -> bool:
    """Whether two rules of a spec build different models for the same target; those that none names are the spec's."""
    is_apart = one.targets and other.targets and not {*one.targets} & {*other.targets}
    return (one.registry, one.model) != (other.registry, other.model) and not is_apart


def _is_pattern(rule: Rule) -> bool:
    return not {"*", "?"}.isdisjoint(rule.model)


def _models(rule: Rule) -> str:
    return f"{'every ' if _is_pattern(rule) else ''}{rule.model} (registry {rule.registry})"


def _inside(folder: str) -> str:
    found = sorted(path for ending in ("*.yaml", "*.yml") for path in Path(folder).glob(ending))
    return str(found[0]) if found else str(Path(folder) / "model.yaml")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
