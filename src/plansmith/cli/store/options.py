"""Store options shared by several commands: which store to use, and how to reach it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from plansmith.cli import options
from plansmith.cli.options import complete_file, complete_folder
from plansmith.errors import PlansmithError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.records import Pointer
    from plansmith.stores.store import Store

STORE_VARIABLE = "PLANSMITH_STORE"
_WHICH = f"pass --store with a folder or s3://bucket/prefix, or set {STORE_VARIABLE}"
_REACH = (
    click.option("--endpoint-url", metavar="URL", help="Where another S3-compatible server answers."),
    click.option("--region", metavar="NAME", help="The bucket's region."),
    click.option("--profile", metavar="NAME", help="A profile of the AWS configuration files."),
    click.option(
        "--ca-bundle",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        shell_complete=complete_file,
        help="Certificates to trust, a PEM file.",
    ),
    click.option(
        "--path-style/--no-path-style",
        default=None,
        help="Name the bucket in the path instead of the host [with --endpoint-url].",
    ),
    click.option(
        "--encryption",
        type=click.Choice(["AES256", "aws:kms"]),
        help="Server-side encryption to ask for with each object [the bucket's].",
    ),
    click.option("--kms-key", metavar="ID", help="The key for aws:kms."),
)
_NAMES = ("endpoint_url", "region", "profile", "ca_bundle", "path_style", "encryption", "kms_key")
T = TypeVar("T")
_S3 = "s3://"
_MOST_SECONDS = 3.0
"""An S3 store is not waited for any longer; nothing is offered then."""


def renew_view(store: Store, model: str, alias: str, pointer: Pointer) -> None:
    """Update the repository of a store, if it keeps one, to the current target of an alias.

    Raises:
        PlansmithError: of the kind of what went wrong; it says that the alias was moved, which a person who repeats a
            rollback would move once more.
    """
    from plansmith.stores.repository_view import refresh_view

    try:
        refresh_view(store, model)
    except PlansmithError as error:
        share = f" --share {pointer.share}" if pointer.share is not None else ""
        raise type(error)(
            f"{alias} of {model} is version {pointer.version} now; only the repository in {store.place}, for a Triton "
            f"that reads it there, was not renewed: {error.message}",
            remedy=f"plansmith promote {model}@{pointer.version} {alias}{share} --store {store.typed}",
            transient=error.transient,
        ) from error


@dataclass(frozen=True)
class Reach:
    """Access options of a folder or prefix.

    Args:
        values: fields of a Place, of the options that were typed.
    """

    values: Mapping[str, Any]

    def place(self, text: str, option: str = "--store") -> Location:
        """Return a given place with these access options.

        Args:
            text: a folder or s3://bucket/prefix; a folder is relative to where the command runs.
            option: what the text was given to, for the message.

        Raises:
            UsageError: it is no place, or one cannot be reached so.
        """
        from pydantic import ValidationError

        from plansmith.config.messages import validation_message
        from plansmith.records.destination import Location

        try:
            place = Location(to=text, **self.values)
        except ValidationError as invalid:
            problems = [
                f"{_option_of(error['loc'], option)}: {validation_message(error)}" for error in invalid.errors()
            ]
            is_place = any(error["loc"] == ("to",) for error in invalid.errors())
            remedy = (
                "write a folder, or s3://BUCKET/PREFIX" if is_place else "plansmith versions --help has the options"
            )
            raise UsageError("\n".join(problems), remedy=remedy) from None
        if self.values and not place.is_s3:
            raise UsageError(f"{self.options} is for s3:// only, and {text} is a folder", remedy="leave it out")
        return place

    @property
    def options(self) -> str:
        """The access options as given."""
        return ", ".join(f"--{name.replace('_', '-')}" for name in self.values)


def reach_of(params: Mapping[str, Any]) -> Reach:
    """Build the access options from the parameters of a command line, ignoring others."""
    return Reach({name: params[name] for name in _NAMES if params.get(name) is not None})


def reach_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the access options of a folder or prefix; the command gets a Reach, as `reach`."""

    @wraps(command)
    def reaching(*arguments: Any, **options: Any) -> Any:
        return command(*arguments, reach=reach_of({name: options.pop(name) for name in _NAMES}), **options)

    return reduce(lambda decorated, option: option(decorated), reversed(_REACH), reaching)


def store_options(*, otherwise: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--store` and its access options; the command gets a Place, as `store`.

    Args:
        otherwise: what it works on without a store, in words for the help; `store` is None then, and where
            `--repository` is typed, whatever the environment says. A command that can work on nothing else refuses to
            work without a store.
    """
    default = f"{STORE_VARIABLE}, else {otherwise}" if otherwise else STORE_VARIABLE

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def stored(*arguments: Any, store: str | None, reach: Reach, **keywords: Any) -> Any:
            if otherwise and _is_typed("repository"):
                if _is_typed("store"):
                    raise UsageError("--store and --repository are two places", remedy="give one of the two")
                store = None
            if not store and not otherwise:
                raise UsageError("it is not said which store is meant", remedy=_WHICH)
            if not store and reach.values:
                raise UsageError(f"{reach.options} is for a store, and none is named", remedy=_WHICH)
            return command(*arguments, store=reach.place(store) if store else None, **keywords)

        return click.option(
            "--store",
            metavar="PLACE",
            envvar=STORE_VARIABLE,
            shell_complete=complete_folder,
            help=f"A folder or s3://bucket/prefix [{default}].",
        )(reach_options(stored))

    return decorated


def open_existing(place: Location) -> Store:
    """Open the existing store at a place; a folder is relative to the working directory.

    Raises:
        RepositoryError: there is none.
    """
    from plansmith.stores import store as opening

    return opening.open_existing(place, Path.cwd())


def _is_typed(name: str) -> bool:
    """Whether an option was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _option_of(place: tuple[int | str, ...], option: str) -> str:
    """Return the command-line option that set a field of a Place."""
    return option if place == ("to",) else f"--{str(place[0]).replace('_', '-')}"


def complete_stored_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete models."""
    place = ctx.params.get("store")
    if not place:
        return options.complete_model(ctx, param, incomplete)
    return _offer(_quietly(lambda: _models(place, ctx.params)), incomplete)


def complete_version(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete models and, after an @, the versions and aliases of one; otherwise files."""
    model, at, _ = incomplete.partition("@")
    if not at:
        return complete_stored_model(ctx, param, incomplete) or complete_file(ctx, param, incomplete)
    place = ctx.params.get("store")
    if place:
        references = _quietly(lambda: _versions(place, ctx.params, model) + _aliases(place, ctx.params, model))
    else:
        references = _quietly(lambda: _local_versions(ctx.params, model))
    return _offer([f"{model}@{word}" for word in references], incomplete)


def complete_served(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete models of the repository and, after an @, the versions of one."""
    model, at, _ = incomplete.partition("@")
    if not at:
        return options.complete_model(ctx, param, incomplete)
    return _offer([f"{model}@{word}" for word in _quietly(lambda: _local_versions(ctx.params, model))], incomplete)


def complete_alias(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the aliases of the model given before."""
    del param
    place = ctx.params.get("store")
    # Before an option whose value is still to come, click reads no arguments, and leaves them as they are.
    named = ctx.params.get("release") or ctx.params.get("model") or next(iter(ctx.args), "")
    model = named.partition("@")[0]
    return _offer(_quietly(lambda: _aliases(place, ctx.params, model)) if place and model else [], incomplete)


def _offer(candidates: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in candidates if word.startswith(incomplete)]


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
    document: dict[str, Any] = json.loads(Path(place, "models", f"{model}.json").read_text(encoding="utf-8"))
    return document


def _local_versions(params: Mapping[str, Any], model: str) -> list[str]:
    root = Path(params.get("repository") or options.DEFAULT_REPOSITORY).resolve()
    folders = (root.with_name(f"{root.name}.plansmith") / "releases" / model).iterdir()
    return sorted((folder.name for folder in folders if folder.name.isdecimal()), key=int)


def _opened(place: str, params: Mapping[str, Any]) -> Any:
    from plansmith.stores.store import open_store

    return open_store(reach_of(params).place(place), Path.cwd())


def _in_time(query: Callable[[], T]) -> T:
    """Return the response of a remote store, if it arrives in time.

    Raises:
        TimeoutError: it does not, or not what was asked for.
    """
    answers: list[T] = []
    asking = threading.Thread(target=lambda: answers.extend(_quietly(lambda: [query()])), daemon=True)
    asking.start()
    asking.join(_MOST_SECONDS)
    if not answers:
        raise TimeoutError
    return answers[0]


def _quietly(query: Callable[[], list[T]]) -> list[T]:
    """Return completions, or none on errors: shell completion has no place for messages."""
    try:
        return query()
    except (PlansmithError, OSError, ValueError, LookupError, TypeError):
        return []
