"""`plansmith submit`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from plansmith.cli.compile.compile import compile_options
from plansmith.cli.options import complete_file
from plansmith.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from plansmith.config.loader import SpecFile
    from plansmith.flows.runs.submitting import RunEnded, SubmittedRun, WantedCompile

_EPILOG = """\
\b
Examples:
  plansmith submit minilm.yaml --pool gpu-l4
  plansmith submit hf:sentence-transformers/all-MiniLM-L6-v2 --artifacts /srv/plansmith --pool gpu-l4 --no-wait
  plansmith submit models.yaml --pool gpu-l4 --json
  plansmith submit --follow minilm
  plansmith submit --cancel 6f1d2c3e-4b5a-4978-8796-a5b4c3d2e1f0

Exit codes: that of the run's failure, as for `plansmith compile`; 2 usage, spec, or no such deployment, 9 no Prefect
API, or a run that crashed, 130 cancelled or interrupted (the run goes on); of several runs that of the first failure.
"""


@click.command("submit", short_help="Compile a model on a worker of Prefect.", epilog=_EPILOG)
@click.argument("source", metavar="[SOURCE|SPEC.yaml]", required=False, shell_complete=complete_file)
@click.option("--pool", metavar="NAME", help="Work pool that compiles it [the only one, if there is only one].")
@click.option("--model", "models", metavar="NAME", multiple=True, help="Compile this model of a spec only; repeatable.")
@compile_options
@click.option("--no-wait", is_flag=True, help="Start the runs, and leave them to themselves.")
@click.option("--follow", metavar="RUN", multiple=True, help="Follow a run, by its id, name or model; repeatable.")
@click.option("--cancel", metavar="RUN", multiple=True, help="Cancel a run, and wait until it has ended; repeatable.")
@click.option("--dry-run", is_flag=True, help="Check all, say what would be sent, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quiet", is_flag=True, help="Print no progress; notices and errors stay.")
def submit_command(
    source: str | None,
    *,
    pool: str | None,
    models: tuple[str, ...],
    no_wait: bool,
    follow: tuple[str, ...],
    cancel: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compile a model on a worker of a Prefect work pool, and follow the run to its end.

    The spec is read and checked here. Its paths, and those of the options, are those of the worker: folders that both
    see at the same place, or that the worker alone has. The run goes on when this command is interrupted.
    """
    sources = [name for name, value in (("SOURCE", source), ("--follow", follow), ("--cancel", cancel)) if value]
    if len(sources) != 1:
        raise click.UsageError("give one of SOURCE, --follow and --cancel")
    extra_options = [
        item for item in (pool, models, no_wait, dry_run, *options.values()) if item not in (None, (), False)
    ]
    if source is None and extra_options:
        raise click.UsageError(f"{sources[0]} goes with --json and --quiet alone")
    manner = _SubmitOptions(as_json=as_json, quiet=quiet)
    if source is None:
        _follow_known(follow, manner) if follow else _cancel(cancel, manner)
        return
    from plansmith.cli.compile.specs import specs_from_arguments

    file, base = specs_from_arguments(source, options, models)
    _submit(file, base, pool, manner, dry=dry_run, wait=not no_wait)


@dataclass(frozen=True)
class _SubmitOptions:
    """Submit options: output as one document at the end, and without progress."""

    as_json: bool
    quiet: bool


def _submit(file: SpecFile, base: Path, pool: str | None, manner: _SubmitOptions, *, dry: bool, wait: bool) -> None:
    """Start a flow run for each model and follow the runs."""
    from plansmith.config.loader import name_of
    from plansmith.config.spec import folder_of
    from plansmith.flows.prefect_api.api import asking, require_api, rooted

    names = [entry.name or name_of(entry.spec.model_dump(include={"name", "source"}), base) for entry in file.models]
    url = require_api()
    from plansmith.flows.deploy.deployments import ONE_MODEL, find_deployment
    from plansmith.flows.runs import submitting

    compilations = [
        submitting.WantedCompile(
            model=name,
            target=entry.target or folder_of(entry.spec.target),
            spec=rooted(entry.spec, Path.cwd()),  # folders relative to the working directory, sources to the spec
            folder=base,
        )
        for name, entry in zip(names, file.models, strict=True)
    ]
    runs: list[SubmittedRun] = []
    with asking(url) as client:
        deployment = find_deployment(client, pool)
        for compilation in compilations:
            submitting.check_parameters(compilation, deployment)
        if notice := submitting.pool_notice(client, deployment):
            click.echo(f"plansmith: {notice}", err=True)
        if dry:
            _show_plan(compilations, f"{ONE_MODEL}/{deployment.name}", manner)
            return
        with _going_on(runs, [], manner):
            for compilation in compilations:
                runs.append(submitting.submit(client, compilation, deployment))
                if wait and not manner.quiet:
                    click.echo(f"{_line(runs[-1])}, submitted to {deployment.name}", err=True)
    if wait:
        _follow(url, runs, manner)
    elif manner.as_json:
        _print_document(runs, [])
    else:
        for run in runs:
            click.echo(_line(run))


def _show_plan(compilations: Sequence[WantedCompile], deployment: str, manner: _SubmitOptions) -> None:
    if manner.as_json:
        runs = [{"name": compilation.run_name, "parameters": compilation.parameters} for compilation in compilations]
        click.echo(json.dumps({"deployment": deployment, "runs": runs}))
        return
    click.echo(f"nothing was sent; {deployment} would get")
    for compilation in compilations:
        click.echo(f"  {compilation.run_name}: {json.dumps(compilation.parameters, ensure_ascii=False)}")


def _follow_known(names: Sequence[str], manner: _SubmitOptions) -> None:
    from plansmith.flows.prefect_api.api import asking, require_api

    url = require_api()
    from plansmith.flows.runs.submitting import find_run, submitted_run

    with asking(url) as client:
        runs = [submitted_run(find_run(client, name)) for name in names]
    _follow(url, runs, manner)


def _cancel(names: Sequence[str], manner: _SubmitOptions) -> None:
    """Cancel runs and report how each ended; a run that had already ended is no failure."""
    from plansmith.flows.prefect_api.api import asking, require_api

    url = require_api()
    from plansmith.flows.runs.submitting import cancel_to_end, find_run

    def notice(text: str) -> None:
        click.echo(f"plansmith: {text}", err=True)

    endings: list[RunEnded] = []
    with asking(url) as client:
        matches = [find_run(client, name) for name in names]
        for run, ended in zip(matches, cancel_to_end(client, matches, notice), strict=True):
            endings.append(ended)
            before = "had ended before: " if run.state is not None and run.state.is_final() else ""
            if not manner.as_json:
                click.echo(f"{run.name} {before}{ended.summary}")
    if manner.as_json:
        _print_document([ended.run for ended in endings], endings)


def _follow(url: str, runs: Sequence[SubmittedRun], manner: _SubmitOptions) -> NoReturn:
    """Follow runs until they end; exit with their status."""
    from plansmith.cli.runs.progress import RunProgress
    from plansmith.flows.runs.following import follow

    with RunProgress(runs, quiet=manner.quiet) as progress, _going_on(runs, progress.endings, manner):
        endings = follow(url, runs, progress)
    for ended in endings:
        if ended.error is not None:
            click.echo(f"plansmith: {ended.error}", err=True)
    if manner.as_json:
        _print_document(runs, endings)
    else:
        for ended in endings:
            click.echo(f"{ended.run.name} {ended.summary}")
            if ended.run.address and ended.error is None:
                click.echo(f"  run  {ended.run.address}")
    sys.exit(next((ended.exit_code for ended in endings if ended.exit_code), 0))


@contextmanager
def _going_on(runs: Sequence[SubmittedRun], endings: Sequence[RunEnded], manner: _SubmitOptions) -> Iterator[None]:
    """Report what happens to runs that are still in progress when this command exits."""
    try:
        yield
    except BaseException as end:
        ended = {ending.run.id for ending in endings}
        left = [run for run in runs if run.id not in ended]
        for run in left:
            click.echo(f"plansmith: {_line(run)}, goes on", err=True)
            click.echo(f"Next: plansmith submit --follow {run.id}, or plansmith submit --cancel {run.id}", err=True)
        if not isinstance(end, KeyboardInterrupt):
            raise
        if manner.as_json:
            _print_document(runs, endings)
        sys.exit(EXIT_INTERRUPTED)


def _print_document(runs: Sequence[SubmittedRun], endings: Sequence[RunEnded]) -> None:
    """Print all runs as one document; a run in progress has no state in it."""
    documents = {ended.run.id: ended.document() for ended in endings}
    click.echo(json.dumps({"runs": [documents.get(run.id, run.document()) for run in runs]}))


def _line(run: SubmittedRun) -> str:
    return f"{run.name} ({run.address or run.id})"
