"""`plansmith fleet`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_folder
from plansmith.cli.runs.fleet_options import exit_with_first, fleet_options, planned_models, say_refusals
from plansmith.cli.text import echo_lines, fault_from_os_error, printable, table
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec
    from plansmith.fleet.records import FleetSummary, ModelOutcome, PlannedModel
    from plansmith.records.release import PublishedVersion


@click.group("fleet", short_help="Many models at once: which are stale and why; build those.")
def fleet_group() -> None:
    """The models of a folder of specs: which of them are stale, and why, and what comes of building those.

    A model is stale where what decides its result is not what its newest version was made from: its spec, the files of
    the model, its data, the target, a tool or plansmith itself; or where that version is gone or damaged, or was not
    published to a store that it belongs in; --resolve asks the stores whether they know of it still.

    \b
    plansmith fleet plan configs/models
    plansmith fleet run configs/models
    """


_EPILOG_PLAN = """\
\b
Examples:
  plansmith fleet plan configs/models
  plansmith fleet plan configs/models --resolve --json
  plansmith fleet plan bert.yaml resnets/ --target triton-26.03 --target sagemaker-26.05

Exit codes: 0 whatever is stale; where models are refused, that of the first of them.
"""

_EPILOG_RUN = """\
\b
Examples:
  plansmith fleet run configs/models
  plansmith fleet run configs/models --model minilm --force
  plansmith fleet run configs/models --publish s3://models/prod --json

Exit codes: those of plansmith compile; of several failures that of the first; 130 interrupted.
"""


@fleet_group.command("plan", epilog=_EPILOG_PLAN)
@fleet_options(required=True)
@click.option("--force", is_flag=True, help="Plan to build every model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan_command(
    places: tuple[Path, ...],
    *,
    models: tuple[str, ...],
    resolve: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Which models of the specs are stale, and why; nothing is built, fetched or imported for it.

    PLACE is a spec, or a folder that holds some, at any depth.
    """
    from plansmith.cli.compile.specs import values_of_options

    planned = planned_models(places, values_of_options(options), models=models, resolve=resolve, force=force)
    _show_plan(planned, as_json=as_json)


@fleet_group.command("run", epilog=_EPILOG_RUN)
@fleet_options(required=True)
@click.option(
    "--shared-cache",
    metavar="PLACE",
    shell_complete=complete_folder,
    help="Where machines share finished steps: a folder or s3://bucket/prefix [PLANSMITH_SHARED_CACHE].",
)
@click.option(
    "--publish",
    metavar="PLACE",
    multiple=True,
    shell_complete=complete_folder,
    help="Publish releases to a store besides, in place of the specs' own: a folder or s3://bucket/prefix; repeatable.",
)
@click.option("--no-publish", is_flag=True, help="Publish to none of the stores that the specs name.")
@click.option("--force", is_flag=True, help="Build every model anew, and publish new versions.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def run_command(
    places: tuple[Path, ...],
    *,
    models: tuple[str, ...],
    resolve: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Build the models that are stale, one after another; one that fails stops none of the others.

    PLACE is a spec, or a folder that holds some, at any depth. What was built stays when it is interrupted, and the
    same command goes on.
    """
    from plansmith.cli.compile.specs import values_of_options

    values = values_of_options(options)
    planned = planned_models(places, values, models=models, resolve=resolve, force=force)
    if dry_run:
        _show_plan(planned, as_json=as_json)
        return
    summary = _build(planned, values, quiet=quiet)
    _show_summary(summary, as_json=as_json)
    if any(one.ended == "interrupted" for one in summary.outcomes):
        click.echo("plansmith: interrupted; run the same command again to go on after what is finished", err=True)
        sys.exit(EXIT_INTERRUPTED)
    exit_with_first([one.failure.exit_code for one in summary.failed if one.failure is not None])


class _Building:
    """Builds what is stale of a plan, and says how that goes.

    Args:
        planned: the plan.
        quiet: say only what fails.

    Attributes:
        outcomes: of the models that had their turn.
    """

    def __init__(self, planned: Sequence[PlannedModel], *, quiet: bool) -> None:
        self.outcomes: list[ModelOutcome] = []
        self._stale = [one for one in planned if one.state == "stale"]
        self._begun = 0
        self._quiet = quiet
        self._is_said = False

    def begins(self, one: PlannedModel) -> None:
        """Say whose turn it is."""
        self._begun += 1
        if not self._quiet:
            click.echo(f"{printable(label_of(one))} ({self._begun} of {len(self._stale)})", err=True)

    def compile(self, spec: ModelSpec, base: Path) -> PublishedVersion:
        """Compile a model, as `plansmith compile` does."""
        from plansmith.cli.compile.progress import TerminalProgress
        from plansmith.steps.compilation import Compilation

        try:
            with (
                TerminalProgress(quiet=self._quiet) as listener,
                Compilation(spec, relative_to=base, listener=listener) as compilation,
            ):
                return compilation.run()[0]
        except (PlansmithError, OSError) as error:
            fault = fault_from_os_error(error) if isinstance(error, OSError) else error
            click.echo(f"plansmith: {fault.located(model=spec.name)}", err=True)
            self._is_said = True
            raise

    def ended(self, one: ModelOutcome) -> None:
        """Take note of what came of a model, and say why it failed where nobody has."""
        self.outcomes.append(one)
        if one.ended == "failed" and not self._is_said and not self._is_told_of_another(one):
            say_refusals([one])
        self._is_said = False

    def _is_told_of_another(self, one: ModelOutcome) -> bool:
        """Whether the same was said of a model of the same name: of two specs that call theirs so, each is refused."""
        before = self.outcomes[:-1]
        return any((one.model, one.target, one.failure) == (it.model, it.target, it.failure) for it in before)


def _build(planned: list[PlannedModel], values: dict[str, Any], *, quiet: bool) -> FleetSummary:
    """Build what is stale; after an interrupt what is left of it counts as interrupted."""
    import time

    from plansmith.fleet.build import build_fleet, outcome_unbuilt
    from plansmith.fleet.records import FleetSummary

    started, building = time.monotonic(), _Building(planned, quiet=quiet)
    try:
        return build_fleet(planned, building.compile, values, begins=building.begins, ended=building.ended)
    except KeyboardInterrupt:
        outcomes = [*building.outcomes, *map(outcome_unbuilt, planned[len(building.outcomes) :])]
        return FleetSummary(outcomes=tuple(outcomes), seconds=round(time.monotonic() - started, 3))


def label_of(one: PlannedModel | ModelOutcome) -> str:
    """What tells a model from the others of its fleet."""
    from plansmith.fleet import text

    return text.label_of(one)


def _show_plan(planned: Sequence[PlannedModel], *, as_json: bool) -> None:
    from plansmith.fleet.text import PLAN_COLUMNS, cells, plan_counts, plan_rows

    say_refusals(planned)
    if as_json:
        click.echo(json.dumps({"models": [one.model_dump(mode="json") for one in planned]}))
    else:
        click.echo(plan_counts(planned))
        _echo_table(cells(plan_rows(planned), PLAN_COLUMNS))
    exit_with_first([one.failure.exit_code for one in planned if one.failure is not None])


def _show_summary(summary: FleetSummary, *, as_json: bool) -> None:
    from plansmith.fleet.text import SUMMARY_COLUMNS, cells, summary_counts, summary_rows

    if as_json:
        models = [one.model_dump(mode="json") for one in summary.outcomes]
        click.echo(json.dumps({"models": models, "seconds": summary.seconds}))
        return
    click.echo(summary_counts(summary))
    _echo_table(cells(summary_rows(summary), SUMMARY_COLUMNS))


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    echo_lines(f"  {line}" for line in table([[printable(cell) for cell in row] for row in rows]))
