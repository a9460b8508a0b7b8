"""Which models of which specs a command works on, and what wins over their values: options that several have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder, complete_model, complete_target
from plansmith.cli.text import printable

if TYPE_CHECKING:
    from plansmith.fleet.records import ModelOutcome, PlannedModel

_OPTIONS = (
    click.option(
        "--model",
        "models",
        metavar="NAME",
        multiple=True,
        shell_complete=complete_model,
        help="This model only; repeatable.",
    ),
    click.option(
        "--target",
        multiple=True,
        shell_complete=complete_target,
        help="Serving runtime, in place of the specs' own; of several, each has <repository>/<target>.",
    ),
    click.option(
        "--artifacts",
        metavar="DIR",
        shell_complete=complete_folder,
        help="Where cache, logs and repository are [as the specs say, artifacts].",
    ),
    click.option(
        "--repository",
        metavar="DIR",
        shell_complete=complete_folder,
        help="Triton model repository [<artifacts>/repository].",
    ),
    click.option(
        "--resolve/--no-resolve",
        default=False,
        help="Ask the hub and MLflow where branches and aliases lead now, and stores for what they have"
        " [what is known here].",
    ),
)


def fleet_options(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`PLACE…`, which models, and where they are: called as `places`, `models`, `target` and so on.

    Args:
        required: refuse to work without a place.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        optioned = reduce(lambda done, option: option(done), reversed(_OPTIONS), command)
        return click.argument(
            "places",
            metavar="PLACE..." if required else "[PLACE]...",
            nargs=-1,
            required=required,
            type=click.Path(path_type=Path),
            shell_complete=complete_file,
        )(optioned)

    return decorated


def planned_models(
    places: tuple[Path, ...], values: dict[str, Any], *, models: tuple[str, ...], resolve: bool, force: bool = False
) -> list[PlannedModel]:
    """The plan of a fleet; what could not be asked is said on standard error.

    Args:
        places: specs, and folders of specs.
        values: win over those of the specs.
        models: these alone.
        resolve: ask the hub, MLflow and the stores.
        force: build every one.

    Raises:
        UsageError: no spec has one of the models.
    """
    from plansmith.fleet.plan import plan_fleet

    def tell(text: str) -> None:
        click.echo(f"plansmith: {text}", err=True)

    return list(plan_fleet(places, values, models=models, resolve=resolve, force=force, tell=tell))


def say_refusals(refused: Iterable[PlannedModel | ModelOutcome]) -> None:
    """Say on standard error what is wrong with those that are refused and what to do about it, each thing once."""
    from plansmith.fleet.text import label_of

    said = {f"{printable(label_of(one))}: {one.failure.message}": None for one in refused if one.failure is not None}
    for line in said:
        click.echo(f"plansmith: {line}", err=True)


def exit_with_first(codes: Sequence[int]) -> None:
    """End with the first of several exit codes; go on where there is none."""
    if codes:
        sys.exit(codes[0])
