"""Information commands: `show`, `inspect`, `report`, `schema`, `history`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plansmith.cli.options import artifacts_option, complete_file, complete_model, complete_release, repository_option
from plansmith.cli.output import echo_lines, nested_lines, printable, table
from plansmith.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    from plansmith.steps.provenance.history import RunRecord
    from plansmith.triton.repository.repository import Version

_HEAD = ("WHEN (UTC)", "MODEL", "OUTCOME", "GATE", "TOOK", "SOURCE")


@click.command("show", short_help="The versions of a model, and one of them in full.")
@click.argument("release", metavar="MODEL[@VERSION]", shell_complete=complete_model)
@repository_option("Where the model is looked up.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as one JSON document.")
def show_command(release: str, repository: Path, as_json: bool) -> None:
    """Show the versions of MODEL and which are served, and one release in full: VERSION, or the newest.

    \b
    plansmith show minilm
    plansmith show minilm@3 --repository /srv/models
    """
    from plansmith.cli.inspection import explain
    from plansmith.triton.repository.repository import ModelRepository, versions

    opened = ModelRepository(repository)
    model, number = opened.find(release)
    all_versions = versions(opened, model)
    if as_json:
        serving = max((version.number for version in all_versions if version.serves), default=None)
        listed = [version.as_json() for version in all_versions]
        facts = explain(opened.release(model, number))
        click.echo(json.dumps({"model": model, "serves": serving, "versions": listed, "release": facts}))
        return
    _print_versions(model, all_versions)
    echo_lines(nested_lines(explain(opened.release(model, number))))


def _print_versions(model: str, entries: list[Version]) -> None:
    from plansmith.formatting import minute

    rows = [("VERSION", "COMPILED (UTC)", "GATE", "TRITON")]
    for version in entries:
        triton = "serves" if version.serves else "shown" if version.shown else f"not shown: {version.hidden}"
        date = minute(version.made) if version.made else "unknown"
        rows.append((str(version.number), date, version.verdict or "unknown", triton))
    click.echo(f"{model}: {len(entries)} version{'s' if len(entries) > 1 else ''}")
    click.echo("\n".join(f"  {line}" for line in table(rows)) + "\n")


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect_command(path: Path, as_json: bool) -> None:
    """Explain a release, a repository, a graph, a plan or a record.

    \b
    plansmith inspect artifacts/repository
    plansmith inspect artifacts/repository.plansmith/releases/minilm/1
    plansmith inspect minilm-int8
    plansmith inspect model.onnx --json
    plansmith inspect model.plan
    plansmith inspect artifacts/repository.plansmith/releases/minilm/1/provenance.intoto.json
    """
    from plansmith.cli.inspection import explain

    document = explain(path)
    if as_json:
        click.echo(json.dumps(document))
    else:
        echo_lines(nested_lines(document))


@click.command("report", short_help="The page that tells how accurate a release is.")
@click.argument("release", metavar="RELEASE", shell_complete=complete_release)
@repository_option("Where MODEL[@VERSION] is looked up.")
@click.option(
    "--output",
    metavar="FILE",
    shell_complete=complete_file,
    help="Write the report anew: to FILE, or to standard output for - [the release's own is named].",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print what the page tells as one JSON document.")
def report_command(release: str, repository: Path, *, output: str | None, force: bool, as_json: bool) -> None:
    """Write the report on a RELEASE, a folder or MODEL[@VERSION] in a repository: one HTML page.

    It tells the gate's verdict, the errors at every shape, on held-out samples and layer by layer, the recipes that
    were tried and where everything came from. It needs no network and runs no script. Every release holds its own;
    without --output this prints where it is.

    \b
    plansmith report minilm
    plansmith report minilm@3 --output minilm.html
    plansmith report artifacts/repository.plansmith/releases/minilm/3 --json
    """
    from plansmith.cli.output import require_text, write_output
    from plansmith.records.release import REPORT_FILE
    from plansmith.report.render import as_json as document_of
    from plansmith.report.render import render
    from plansmith.report.verdict import facts_of
    from plansmith.steps.release.revalidate import find_release
    from plansmith.triton.repository.release import read_manifest

    require_text(release, output or "")
    if as_json and output == "-":
        raise UsageError("--json and --output - both want standard output", remedy="give one of the two")
    folder = find_release(release, repository)
    own = folder / REPORT_FILE if (folder / REPORT_FILE).is_file() else None
    path = own if output is None else Path(output)
    if path is None and not as_json:
        raise RepositoryError(
            f"{folder} holds no report: it is older than reports",
            remedy=f"pass --output {REPORT_FILE} to have one written from its manifest",
        )
    if output is None and not as_json:
        click.echo(path)
        return
    facts = facts_of(read_manifest(folder))
    if output == "-":
        click.echo(render(facts), nl=False)
        return
    if output is not None:
        write_output(Path(output), render(facts), replace=force)
    document = {"release": str(folder), "report": str(path) if path else None}
    click.echo(json.dumps(document | document_of(facts)) if as_json else path)


@click.command("schema", short_help="Print the JSON Schema of specs, for editors.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE, which is replaced.")
def schema_command(output: Path | None) -> None:
    """Print the JSON Schema of spec files, for completion and validation in editors.

    \b
    plansmith schema
    plansmith schema --output plansmith.schema.json

    Then make this the first line of a spec, with the path from the spec to the schema:

    \b
    # yaml-language-server: $schema=plansmith.schema.json
    """
    from plansmith.cli.output import write_output
    from plansmith.config.loader import spec_schema

    text = json.dumps(spec_schema(), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_output(output, text, replace=True)


@click.command("history")
@click.argument("model", required=False, shell_complete=complete_model)
@artifacts_option("Whose history is read.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="How many runs.")
@click.option("--failed", is_flag=True, help="Only those that failed or were interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole records as one JSON document.")
def history_command(model: str | None, artifacts: Path, limit: int, failed: bool, as_json: bool) -> None:
    """List the compiles on this machine, newest first.

    With MODEL, those of one model.
    OUTCOME ends with the precision where it is another than fp32; for auto, with the one that was chosen. GATE is the
    verdict and the largest error of any output, relative to the output's magnitude.

    \b
    plansmith history
    plansmith history minilm --failed --limit 5
    """
    from plansmith.steps.provenance.history import HISTORY, History

    history = History(artifacts / HISTORY)
    selection = (
        run for run in history.newest_first() if model in {None, run.model} and not (failed and run.failure is None)
    )
    chosen = list(islice(selection, limit))
    unreadable = history.unreadable()
    if as_json:
        click.echo(json.dumps({"runs": [run.model_dump(mode="json") for run in chosen], "unreadable": unreadable}))
        return
    if chosen:
        _print_runs(chosen)
    else:
        click.echo(f"no such run is noted below {artifacts}")
    if unreadable:
        click.echo(f"{unreadable} {'record' if unreadable == 1 else 'records'} cannot be read")


def _print_runs(runs: list[RunRecord]) -> None:
    head, *rows = table([_HEAD, *map(_cells, runs)])
    click.echo(head)
    for run, row in zip(runs, rows, strict=True):
        click.echo(row)
        if run.outcome == "failed" and run.failure is not None:
            first = next(iter(run.failure.message.splitlines()), "")
            click.echo(f"    {run.failure.error} (exit code {run.failure.exit_code}): {printable(first)}")


def _cells(run: RunRecord) -> tuple[str, ...]:
    from plansmith.formatting import format_seconds, minute

    took = format_seconds(run.seconds)
    return minute(run.started), run.model, run.outcome_text, run.gate_text, took, printable(run.source)
