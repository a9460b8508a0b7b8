"""Service file, as far as triggers need it: read without Prefect, with its secrets resolved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from plansmith.config.service import ServiceConfig, ServiceFile, read_service
from plansmith.config.service_triggers import Registry, Rule, TriggersConfig
from plansmith.errors import UsageError
from plansmith.system.libraries import require_library

BLOCK, _VARIABLE = "block:", "env:"
"""How a place begins that holds a secret: a block of Prefect, or a variable."""

_ASKED_WITH = {
    "hub": ("huggingface_hub", "triggers"),
    "s3": ("boto3", "s3"),
    "sagemaker": ("boto3", "s3"),
}
"""By type: the library, and the extra that brings it."""


def read_triggered(path: Path, *, instead: str = "") -> ServiceConfig:
    """Read the configuration in a service's file, as `read_triggered_file`."""
    return read_triggered_file(path, instead=instead).config


def read_triggered_file(path: Path, *, instead: str = "") -> ServiceFile:
    """Read the configuration file of a service.

    Args:
        path: of the file.
        instead: how to do without it, where that can be done.

    Raises:
        UsageError: there is no such file; or lists every problem with its line.
    """
    if not path.exists():
        remedy = "name it with --service"
        raise UsageError(f"there is no file {path}", remedy=f"{remedy}, or {instead}" if instead else remedy)
    # Prefect, which knows schedules, takes seconds to import, and none of them matters here.
    return read_service(path, cron=lambda _: None)


def find_secrets(registries: Mapping[str, Registry], read_block: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
    """Return the secrets of each registry that has any.

    Args:
        registries: by name.
        read_block: the value of a Secret block of Prefect.

    Raises:
        UsageError: names all that are not there.
        EnvironmentFault: blocks cannot be read.
    """
    missing: list[str] = []

    def find(place: str) -> str:
        if place.startswith(BLOCK):
            try:
                value = read_block(place.removeprefix(BLOCK))
            except UsageError as error:
                missing.append(error.message)
                return ""
        else:
            value = os.environ.get(place.removeprefix(_VARIABLE), "")
        if not value:
            missing.append(f"{place} is not set, or empty")
        elif not value.isprintable() or value != value.strip():
            missing.append(f"{place} begins or ends with a space or a line break, or is no text")
        return value

    named = {name: getattr(registry, "secrets", ()) for name, registry in registries.items()}
    secrets = {name: tuple(map(find, places)) for name, places in named.items() if places}
    if missing:
        raise UsageError(
            f"secrets are missing: {'; '.join(dict.fromkeys(missing))}",
            remedy="export the variable, or make a block of the type Secret in Prefect's pages under Blocks",
        )
    return secrets


def secret_problems(registries: Mapping[str, Registry], secrets: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield which registries of one type share a secret: a signature does not identify its receiver.

    Args:
        registries: by name.
        secrets: as `find_secrets` gives them.
    """
    for first, second in combinations(secrets, 2):
        if registries[first].type == registries[second].type and set(secrets[first]) & set(secrets[second]):
            yield f"{first} and {second} have a secret in common: what is sent to one is taken for the other, too"


def require_libraries(registries: Mapping[str, Registry]) -> None:
    """Require that the client libraries of these registries are installed.

    Raises:
        EnvironmentFault: a library is missing.
    """
    for name, registry in registries.items():
        library, extra = _ASKED_WITH.get(registry.type, ("", ""))
        if library:
            require_library(library, extra, purpose=f"{name} (type {registry.type}) cannot be asked without it")


def registries_of_workers(config: TriggersConfig) -> dict[str, Registry]:
    """Return the registries that workers query before a build, to confirm an event, or write results back to."""
    return {name: registry for name, registry in config.registries.items() if registry.type in {"hub", "sagemaker"}}


def spec_file(rule: Rule) -> Path:
    """Return the spec file of a rule; the working directory is the service's.

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
    """Yield messages about spec files that build several registry models as versions of one served model.

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
            if _is_pattern(rule) or any(_may_be_mixed(rule, candidate) for _, candidate in named)
        ]
        if shared:
            places = _listed([f"rules.{number}" for number, _ in shared])
            models = _listed(list(dict.fromkeys(_models(rule) for _, rule in shared)))
            yield (
                f"{places}: versions of {models} become releases of one served model, that of {shared[0][1].spec};"
                " give each model a rule and a spec of its own, unless that is meant"
            )


def _keeps_own_source(rule: Rule, config: TriggersConfig) -> bool:
    """Whether the spec's own source is built for any model name: the registry is a hook without configured sources."""
    registry = config.registries[rule.registry]
    return registry.type == "hook" and not registry.sources


def _may_be_mixed(first: Rule, second: Rule) -> bool:
    """Whether two rules of a spec build different models for the same target; rules without targets use the spec's."""
    is_apart = first.targets and second.targets and not {*first.targets} & {*second.targets}
    return (first.registry, first.model) != (second.registry, second.model) and not is_apart


def _is_pattern(rule: Rule) -> bool:
    return not {"*", "?"}.isdisjoint(rule.model)


def _models(rule: Rule) -> str:
    return f"{'every ' if _is_pattern(rule) else ''}{rule.model} (registry {rule.registry})"


def _inside(folder: str) -> str:
    files = sorted(path for ending in ("*.yaml", "*.yml") for path in Path(folder).glob(ending))
    return str(files[0]) if files else str(Path(folder) / "model.yaml")


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
