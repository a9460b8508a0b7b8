"""`plansmith report`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from plansmith.cli.options import complete_file, complete_release, repository_option
from plansmith.errors import RepositoryError, UsageError


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
    """The report on a RELEASE, its folder or MODEL[@VERSION] of a repository: one page for a browser.

    It tells the gate's verdict, the errors at every shape, on held-out samples and layer by layer, the recipes that
    were tried and where everything came from. It needs no network and runs no script. Every release holds its own;
    without --output this prints where it is.

    \b
    plansmith report minilm
    plansmith report minilm@3 --output minilm.html
    plansmith report artifacts/repository.plansmith/releases/minilm/3 --json
    """
    from plansmith.cli.text import require_text, write_output
    from plansmith.report import REPORT_FILE, facts_of, render
    from plansmith.report import as_json as document_of
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
    told = {"release": str(folder), "report": str(path) if path else None}
    click.echo(json.dumps(told | document_of(facts)) if as_json else path)
