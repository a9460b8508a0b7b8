"""The file of a service, as far as triggers need it: read without Prefect, its secrets found where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from plansmith.config.service.service import ServiceConfig, ServiceFile, read_service
from plansmith.config.service.triggers import Registry
from plansmith.errors import UsageError

BLOCK, _VARIABLE = "block:", "env:"
"""How a place begins that holds a secret: a block of Prefect, or a variable."""


def read_triggered(path: Path, *, instead: str = "") -> ServiceConfig:
    """The configuration in the file of a service; as `read_triggered_file`."""
    return read_triggered_file(path, instead=instead).config


def read_triggered_file(path: Path, *, instead: str = "") -> ServiceFile:
    """Read the file of a service.

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
    """The secrets of each registry that has some.

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
    found = {name: tuple(map(find, places)) for name, places in named.items() if places}
    if missing:
        raise UsageError(
            f"secrets are missing: {'; '.join(dict.fromkeys(missing))}",
            remedy="export the variable, or make a block of the type Secret in Prefect's pages under Blocks",
        )
    return found


def secret_problems(registries: Mapping[str, Registry], secrets: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Which registries of one type have a secret in common, in words: a signature says nothing of whom it is for.

    Args:
        registries: by name.
        secrets: as `find_secrets` gives them.
    """
    for one, other in combinations(secrets, 2):
        if registries[one].type == registries[other].type and set(secrets[one]) & set(secrets[other]):
            yield f"{one} and {other} have a secret in common: what is sent to one is taken for the other, too"
