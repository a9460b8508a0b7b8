"""What the shell offers for models, versions and aliases: of the store that is named, or of the repository."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from plansmith.cli import options
from plansmith.cli.options import complete_file
from plansmith.errors import PlansmithError

T = TypeVar("T")

_S3 = "s3://"
_MOST_SECONDS = 3.0
"""An S3 store is not waited for any longer; nothing is offered then."""


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models."""
    place = ctx.params.get("store")
    if not place:
        return options.complete_model(ctx, param, incomplete)
    return _offer(_quietly(lambda: _models(place, ctx.params)), incomplete)


def complete_version(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models, and once there is an @ the versions and aliases of one; or else files."""
    model, at, _ = incomplete.partition("@")
    if not at:
        return complete_model(ctx, param, incomplete) or complete_file(ctx, param, incomplete)
    place = ctx.params.get("store")
    if place:
        words = _quietly(lambda: _versions(place, ctx.params, model) + _aliases(place, ctx.params, model))
    else:
        words = _quietly(lambda: _local_versions(ctx.params, model))
    return _offer([f"{model}@{word}" for word in words], incomplete)


def complete_served(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models of the repository, and once there is an @ the versions of one."""
    model, at, _ = incomplete.partition("@")
    if not at:
        return options.complete_model(ctx, param, incomplete)
    return _offer([f"{model}@{word}" for word in _quietly(lambda: _local_versions(ctx.params, model))], incomplete)


def complete_alias(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The aliases of the model that was named before."""
    del param
    place = ctx.params.get("store")
    # Before an option whose value is still to come, click reads no arguments, and leaves them as they are.
    named = ctx.params.get("release") or ctx.params.get("model") or next(iter(ctx.args), "")
    model = named.partition("@")[0]
    return _offer(_quietly(lambda: _aliases(place, ctx.params, model)) if place and model else [], incomplete)


def _offer(words: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _models(place: str, reach: Mapping[str, Any]) -> list[str]:
    if place.startswith(_S3):
        return _in_time(lambda: _opened(place, reach).models())
    # As plansmith.stores.layout has it; importing that takes longer than a person at the keyboard waits.
    return sorted(path.stem for path in Path(place, "models").glob("*.json"))


def _versions(place: str, reach: Mapping[str, Any], model: str) -> list[str]:
    versions = _catalogue(place, reach, model)["versions"]
    return [str(version["version"]) for version in versions if version["pruned"] is None]


def _aliases(place: str, reach: Mapping[str, Any], model: str) -> list[str]:
    return list(_catalogue(place, reach, model)["aliases"])


def _catalogue(place: str, reach: Mapping[str, Any], model: str) -> dict[str, Any]:
    if place.startswith(_S3):
        return _in_time(lambda: _opened(place, reach).catalogue(model).model_dump())
    found: dict[str, Any] = json.loads(Path(place, "models", f"{model}.json").read_text(encoding="utf-8"))
    return found


def _local_versions(params: Mapping[str, Any], model: str) -> list[str]:
    root = Path(params.get("repository") or options.DEFAULT_REPOSITORY).resolve()
    folders = (root.with_name(f"{root.name}.plansmith") / "releases" / model).iterdir()
    return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)


def _opened(place: str, params: Mapping[str, Any]) -> Any:
    from plansmith.cli.store.options import reach_of
    from plansmith.stores.open import open_store

    return open_store(reach_of(params).place(place), Path.cwd())


def _in_time(asked: Callable[[], T]) -> T:
    """What a store elsewhere answers, if it does so soon.

    Raises:
        TimeoutError: it does not, or not what was asked for.
    """
    answers: list[T] = []
    asking = threading.Thread(target=lambda: answers.extend(_quietly(lambda: [asked()])), daemon=True)
    asking.start()
    asking.join(_MOST_SECONDS)
    if not answers:
        raise TimeoutError
    return answers[0]


def _quietly(asked: Callable[[], list[T]]) -> list[T]:
    """Some words, or none where there is no telling: a shell has no place for messages."""
    try:
        return asked()
    except (PlansmithError, OSError, ValueError, LookupError, TypeError):
        return []
