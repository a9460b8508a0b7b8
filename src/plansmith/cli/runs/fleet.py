"""`plansmith fleet` and `plansmith status`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.options import complete_file, complete_folder, complete_model, complete_target
from plansmith.cli.output import echo_lines, fault_from_os_error, printable, short, table, without_empty_columns
from plansmith.errors import EXIT_INTERRUPTED, PlansmithError, UsageError
from plansmith.formatting import count, suggest_names

if TYPE_CHECKING:
    from plansmith.config.spec import ModelSpec
    from plansmith.fleet.records import FleetSummary, ModelOutcome, PlannedModel
    from plansmith.fleet.status import ModelStatus
    from plansmith.records.release import PublishedVersion


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
  plansmith fleet run configs/models --jobs 4
  plansmith fleet run configs/models --model minilm --force
  plansmith fleet run configs/models --publish s3://models/prod --json

Exit codes: those of plansmith compile; of several failures that of the first; 130 interrupted.
"""

_HEAD = ("MODEL", "TARGET", "VERSION", "COMPILED (UTC)", "PRECISION", "ENGINE", "STATE", "LAST RUN (UTC)", "WHY")
_STATES = ("stale", "fresh", "refused")
_EPILOG = """\
\b
Examples:
  plansmith status
  plansmith status configs/models
  plansmith status configs/models --resolve --json

Exit codes: 0 whatever is stale; where specs are refused, that of the first of them.
"""


def fleet_options(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `PLACE…` and the options that select models and their places.

    Passed as `places`, `models`, `target` and so on.

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
    """Return the plan of a fleet; reports unreachable places on standard error.

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
    """Report refused models and their remedies on standard error, each message once."""
    from plansmith.fleet.records import label_of

    lines = {
        f"{printable(label_of(item))}: {item.failure.message}": None for item in refused if item.failure is not None
    }
    for line in lines:
        click.echo(f"plansmith: {line}", err=True)


def exit_with_first(codes: Sequence[int]) -> None:
    """Exit with the first of several exit codes; return if there is none."""
    if codes:
        sys.exit(codes[0])


@click.group("fleet", short_help="Many models at once: which are stale and why; build those.")
def fleet_group() -> None:
    """Manage the models of a folder of specs: which are stale and why, and building them.

    A model is stale where what decides its result is not what its newest version was made from: its spec, the files of
    the model, its data, the target, a tool or plansmith itself; or where that version is gone or damaged, or was not
    published to a store that it belongs in; --resolve asks the stores whether they know of it still.

    \b
    plansmith fleet plan configs/models
    plansmith fleet run configs/models
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
    """Show which models of the specs are stale, and why; builds, fetches and imports nothing.

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
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models at a time.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def run_command(
    places: tuple[Path, ...],
    *,
    models: tuple[str, ...],
    resolve: bool,
    force: bool,
    jobs: int,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Build the stale models; a failure does not stop the others.

    PLACE is a spec, or a folder that holds some, at any depth. What was built stays when it is interrupted, and the
    same command goes on. With --jobs several models are built at a time: they share the cores, and each needs its own
    memory.
    """
    from plansmith.cli.compile.specs import values_of_options

    values = values_of_options(options)
    planned = planned_models(places, values, models=models, resolve=resolve, force=force)
    if dry_run:
        _show_plan(planned, as_json=as_json)
        return
    summary = _build(planned, values, jobs=jobs, quiet=quiet)
    _show_summary(summary, as_json=as_json)
    if any(outcome.ended == "interrupted" for outcome in summary.outcomes):
        click.echo("plansmith: interrupted; run the same command again to go on after what is finished", err=True)
        sys.exit(EXIT_INTERRUPTED)
    exit_with_first([outcome.failure.exit_code for outcome in summary.failed if outcome.failure is not None])


class _Building:
    """Builds the stale models of a plan and reports progress.

    Args:
        planned: the plan.
        quiet: say only what fails.

    Attributes:
        outcomes: of the models that had their turn.
    """

    def __init__(self, planned: Sequence[PlannedModel], *, quiet: bool) -> None:
        self.outcomes: list[ModelOutcome] = []
        self._stale = [model for model in planned if model.state == "stale"]
        self._begun = 0
        self._quiet = quiet
        self._is_said = False

    def begins(self, model: PlannedModel) -> None:
        """Report which model is being built."""
        self._begun += 1
        if not self._quiet:
            click.echo(f"{printable(label_of(model))} ({self._begun} of {len(self._stale)})", err=True)

    def compile(self, spec: ModelSpec, base: Path) -> PublishedVersion:
        """Compile a model as `plansmith compile` does."""
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

    def tell(self, model: PlannedModel, text: str) -> None:
        """Print a line about one of several models that are built at a time."""
        click.echo(f"  {printable(label_of(model))}  {printable(text)}", err=True)

    def ended(self, outcome: ModelOutcome) -> None:
        """Record the outcome of a model; report a failure that was not reported yet."""
        self.outcomes.append(outcome)
        if outcome.ended == "failed" and not self._is_said and not self._is_told_of_another(outcome):
            say_refusals([outcome])
        self._is_said = False

    def _is_told_of_another(self, outcome: ModelOutcome) -> bool:
        """Whether the same refusal was already reported for a model of that name, as when two specs share one name."""
        before = self.outcomes[:-1]
        return any(
            (outcome.model, outcome.target, outcome.failure) == (it.model, it.target, it.failure) for it in before
        )


def _build(planned: list[PlannedModel], values: dict[str, Any], *, jobs: int, quiet: bool) -> FleetSummary:
    """Build the stale models; after an interrupt, the remaining ones count as interrupted."""
    import time

    from plansmith.fleet.build import build_fleet, outcome_unbuilt
    from plansmith.fleet.records import FleetSummary
    from plansmith.steps.runner import shared_imports

    started, building = time.monotonic(), _Building(planned, quiet=quiet)
    if jobs > 1:
        from plansmith.fleet.parallel import build_in_parallel

        reports: Any = {"begins": building.begins, "tell": building.tell, "ended": building.ended}
        return build_in_parallel(planned, jobs, values, quiet=quiet, **reports)
    try:
        with shared_imports():
            return build_fleet(planned, building.compile, values, begins=building.begins, ended=building.ended)
    except KeyboardInterrupt:
        outcomes = [*building.outcomes, *map(outcome_unbuilt, planned[len(building.outcomes) :])]
        return FleetSummary(outcomes=tuple(outcomes), seconds=round(time.monotonic() - started, 3))


def label_of(model: PlannedModel | ModelOutcome) -> str:
    """Return a label that distinguishes a model from the others of its fleet."""
    from plansmith.fleet import records

    return records.label_of(model)


def _show_plan(planned: Sequence[PlannedModel], *, as_json: bool) -> None:
    from plansmith.fleet.records import PLAN_COLUMNS, cells, plan_counts, plan_rows

    say_refusals(planned)
    if as_json:
        click.echo(json.dumps({"models": [model.model_dump(mode="json") for model in planned]}))
    else:
        click.echo(plan_counts(planned))
        _echo_table(cells(plan_rows(planned), PLAN_COLUMNS))
    exit_with_first([model.failure.exit_code for model in planned if model.failure is not None])


def _show_summary(summary: FleetSummary, *, as_json: bool) -> None:
    from plansmith.fleet.records import SUMMARY_COLUMNS, cells, summary_counts, summary_rows

    if as_json:
        models = [outcome.model_dump(mode="json") for outcome in summary.outcomes]
        click.echo(json.dumps({"models": models, "seconds": summary.seconds}))
        return
    click.echo(summary_counts(summary))
    _echo_table(cells(summary_rows(summary), SUMMARY_COLUMNS))


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    echo_lines(f"  {line}" for line in table([[printable(cell) for cell in row] for row in rows]))


@click.command("status", epilog=_EPILOG, short_help="How the models stand: versions, what is stale and why, last runs.")
@fleet_options(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status_command(
    places: tuple[Path, ...], *, models: tuple[str, ...], resolve: bool, as_json: bool, **options: Any
) -> None:
    """Show the newest version of every model and target, whether and why it is stale, and the last compile's outcome.

    PLACE is a spec, or a folder that holds some: what is stale is known of the models of specs alone. Without one, all
    models of the repository are listed.
    """
    from plansmith.cli.compile.specs import values_of_options
    from plansmith.config.spec import repository_of
    from plansmith.fleet.status import model_statuses

    values = values_of_options(options)
    planned = planned_models(places, values, models=models, resolve=resolve) if places else []
    artifacts, repository = Path(values.get("artifacts", "artifacts")), repository_of(values)
    statuses = model_statuses(planned, [repository], artifacts, models=models)
    if not places and (unknown := [name for name in models if name not in {entry.model for entry in statuses}]):
        raise _unknown(unknown, repository, model_statuses([], [repository], artifacts))
    say_refusals(planned)
    if as_json:
        click.echo(json.dumps({"models": [entry.model_dump(mode="json") for entry in statuses]}))
    else:
        _print(statuses, with_specs=bool(places))
    if not statuses:
        way = "plansmith compile SOURCE, or name specs (plansmith status PLACE...) or another --repository"
        click.echo(f"plansmith: there is no model in {short(repository)}; next: {way}", err=True)
    exit_with_first([entry.failure.exit_code for entry in planned if entry.failure is not None])


def _unknown(models: Sequence[str], repository: Path, statuses: Sequence[ModelStatus]) -> UsageError:
    known = {status.model for status in statuses if status.model}
    damaged = "".join(f"; {status.why}" for status in statuses if not status.model)
    return UsageError(
        f"{short(repository)} has no model {', '.join(map(repr, models))}",
        remedy=suggest_names(models, known, otherwise="compile a model into it first")
        + f"{damaged}; plansmith status PLACE... looks at specs, --repository at another folder",
    )


def _print(statuses: Sequence[ModelStatus], *, with_specs: bool) -> None:
    from plansmith.fleet.records import names

    counts: Counter[str] = Counter(status.state for status in statuses)
    states = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    click.echo(f"{count(len(statuses), 'model')}{f': {states}' if states else ''}")
    cells = [
        _cells(status, name, with_specs=with_specs) for status, name in zip(statuses, names(statuses), strict=True)
    ]
    for reason in dict.fromkeys(status.runs_unknown for status in statuses if status.runs_unknown):
        click.echo(f"plansmith: last runs are unknown: {printable(reason)}", err=True)
    rows = without_empty_columns([_HEAD, *cells]) if statuses else []
    lines = table(rows) if rows else []
    echo_lines(f"  {line}" for line in lines[:1])
    for status, line in zip(statuses, lines[1:], strict=True):
        echo_lines([f"  {line}"])
        run = status.last_run
        if run is not None and run.message:
            first = next(iter(run.message.splitlines()), "")
            echo_lines([f"      {run.error} (exit code {run.exit_code}): {printable(first)}"])
    if statuses and not with_specs:
        click.echo("what is stale is known of specs: plansmith status PLACE...")


def _cells(status: ModelStatus, name: str, *, with_specs: bool) -> tuple[str, ...]:
    from plansmith.fleet.records import in_table
    from plansmith.formatting import minute

    newest = status.newest
    has_state = with_specs or status.state == "refused"
    hidden = "" if newest is None or newest.is_shown else ", not shown"
    cells = (
        name,
        status.target,
        f"{newest.version}{hidden}" if newest else "none",
        minute(newest.made) if newest and newest.made else "",
        (newest.precision or "unknown") if newest else "",
        (newest.engine or "unknown") if newest else "",
        status.state if has_state else "",
        _last_run(status),
        in_table(status.why) if has_state else "",
    )
    return tuple(map(printable, cells))


def _last_run(status: ModelStatus) -> str:
    from plansmith.formatting import minute

    run = status.last_run
    if run is None:
        return "unknown" if status.runs_unknown else "none noted"
    where = f" in {run.step}" if run.step else ""
    return f"{run.outcome}{where} {minute(run.started)}"
