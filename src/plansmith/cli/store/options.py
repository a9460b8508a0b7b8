"""Which store a command works on and how it is reached: options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder
from plansmith.errors import PlansmithError, UsageError

if TYPE_CHECKING:
    from plansmith.records.destination import Location
    from plansmith.stores.records import Pointer
    from plansmith.stores.store import Store


def renew_view(store: Store, model: str, alias: str, pointer: Pointer) -> None:
    """Show in a store's repository, if it keeps one, what an alias stands for now.

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


@dataclass(frozen=True)
class Reach:
    """How a folder or prefix is reached.

    Args:
        given: fields of a Place, of the options that were typed.
    """

    given: Mapping[str, Any]

    def place(self, text: str, option: str = "--store") -> Location:
        """What was typed as a place, reached so.

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
            place = Location(to=text, **self.given)
        except ValidationError as invalid:
            problems = [
                f"{_option_of(error['loc'], option)}: {validation_message(error)}" for error in invalid.errors()
            ]
            is_place = any(error["loc"] == ("to",) for error in invalid.errors())
            remedy = (
                "write a folder, or s3://BUCKET/PREFIX" if is_place else "plansmith versions --help has the options"
            )
            raise UsageError("\n".join(problems), remedy=remedy) from None
        if self.given and not place.is_s3:
            raise UsageError(f"{self.options} is for s3:// only, and {text} is a folder", remedy="leave it out")
        return place

    @property
    def options(self) -> str:
        """The options that were typed."""
        return ", ".join(f"--{name.replace('_', '-')}" for name in self.given)


def reach_of(params: Mapping[str, Any]) -> Reach:
    """How it is reached, by the parameters of a command line, other ones among them."""
    return Reach({name: params[name] for name in _NAMES if params.get(name) is not None})


def reach_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a folder or prefix is reached; the command is called with a Reach, as `reach`."""

    @wraps(command)
    def reaching(*words: Any, **given: Any) -> Any:
        return command(*words, reach=reach_of({name: given.pop(name) for name in _NAMES}), **given)

    return reduce(lambda decorated, option: option(decorated), reversed(_REACH), reaching)


def store_options(*, otherwise: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--store` and how it is reached; the command is called with a Place, as `store`.

    Args:
        otherwise: what it works on without a store, in words for the help; `store` is None then, and where
            `--repository` is typed, whatever the environment says. A command that can work on nothing else refuses to
            work without a store.
    """
    default = f"{STORE_VARIABLE}, else {otherwise}" if otherwise else STORE_VARIABLE

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def stored(*words: Any, store: str | None, reach: Reach, **given: Any) -> Any:
            if otherwise and _is_typed("repository"):
                if _is_typed("store"):
                    raise UsageError("--store and --repository are two places", remedy="give one of the two")
                store = None
            if not store and not otherwise:
                raise UsageError("it is not said which store is meant", remedy=_WHICH)
            if not store and reach.given:
                raise UsageError(f"{reach.options} is for a store, and none is named", remedy=_WHICH)
            return command(*words, store=reach.place(store) if store else None, **given)

        return click.option(
            "--store",
            metavar="PLACE",
            envvar=STORE_VARIABLE,
            shell_complete=complete_folder,
            help=f"A folder or s3://bucket/prefix [{default}].",
        )(reach_options(stored))

    return decorated


def open_existing(place: Location) -> Store:
    """The store at a place; a folder is relative to where the command runs.

    Raises:
        RepositoryError: there is none.
    """
    from plansmith.stores import open as opening

    return opening.open_existing(place, Path.cwd())


def _is_typed(name: str) -> bool:
    """Whether an option stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _option_of(place: tuple[int | str, ...], option: str) -> str:
    """The option that a field of a Place was typed as."""
    return option if place == ("to",) else f"--{str(place[0]).replace('_', '-')}"
